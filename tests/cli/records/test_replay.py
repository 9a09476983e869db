"""`tidelog replay`."""

from __future__ import annotations

import time

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tests.client.workers.test_replay import cluster, read, topic, values
from tidelog import Admin, TopicPartition
from tidelog.testing import Cluster

__all__ = ["cluster", "topic"]


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def test_the_command(cluster: Cluster, topic: str, tidelog: Tidelog) -> None:
    to, group = f"copy.{topic}", f"group.{topic}"
    cluster.create_topic(to, partitions=2)
    name = f"{topic}:1"
    plan = ("replay", name, "--by-duration", "PT4H30M", "--until-offset", "9")
    code, out, _ = tidelog(*plan, "--copy-to", to)
    assert code == 0
    assert "use --execute" in out
    assert as_json(tidelog(*plan, "--json")) == {
        "executed": False, "partitions": [{"partition": 1, "start": 8, "end": 9}],
    }  # fmt: skip
    assert read(cluster, to) == []
    assert tidelog(*plan, "--copy-to", to, "--execute")[:2] == (0, "1 record copied\n")
    assert "this copy was finished before" in tidelog(*plan, "--copy-to", to, "--execute")[1]
    assert values(read(cluster, to)) == [17]
    told = as_json(tidelog("replay", to, "--from-beginning", "--copy-to", topic, "--execute", "--json"))
    assert told == {"executed": True, "copied": 0, "looping": 1, "resumed": False}
    since = str(int((time.time() - 5_400) * 1_000))
    assert tidelog("replay", name, "--from-time", since, "--group", group, "--execute")[0] == 0
    with Admin(cluster.bootstrap) as admin:
        assert admin.list_consumer_group_offsets(group)[TopicPartition(topic, 1)].offset == 9
    for wrong, said in (
        ((), "expected one of --from-beginning, --from-offset, --from-time and --by-duration, found none"),
        (("--from-beginning", "--from-offset", "3"), "found several"),
        (("--from-beginning", "--execute"), "expected --execute with one of --group and --copy-to"),
        (("--from-beginning", "--copy-to", topic), "expected a topic other than"),
        (("--from-beginning", "--id", "x"), "expected --copy-to with --id and --rate"),
        (("--from-beginning", "--until-offset", "3", "--until-time", "5"), "--until-offset or --until-time"),
    ):
        code, _, err = tidelog("replay", topic, *wrong)
        assert code == 2
        assert said in err
