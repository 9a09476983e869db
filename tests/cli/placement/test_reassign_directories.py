"""``tidelog reassign`` with ``log_dirs``: replicas move into the directories that a file names."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tidelog import Admin, NewTopic, TopicPartition
from tidelog.cli.work.replicas.disk_moves import THROTTLE
from tidelog.model.ids import NodeId
from tidelog.proto.calls.api import ConfigResource
from tidelog.testing import Cluster

SIZE = 300_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, log_dirs=2, transport="grpc") as found:
        yield found


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    """One partition, on brokers 1 and 2."""
    with cluster.admin() as found, cluster.producer() as producer:
        found.create_topics([NewTopic("orders", assignments={0: [1, 2]})])
        for _ in range(10):
            producer.send("orders", bytes(SIZE // 10), partition=0)
        producer.flush()
        yield found
        found.delete_topics(["orders"])


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def paths(admin: Admin, node: int) -> list[str]:
    return [one.path for one in admin.describe_log_dirs([node])[NodeId(node)]]


def lies_in(admin: Admin, node: int) -> str | None:
    """The directory of the replica of ``orders`` on a broker."""
    for one in admin.describe_log_dirs([node])[NodeId(node)]:
        if any(replica.topic == "orders" and not replica.is_future for replica in one.replicas):
            return one.path
    return None


def other(admin: Admin, node: int) -> str:
    (found,) = set(paths(admin, node)) - {lies_in(admin, node)}
    return found


def written(path: Path, replicas: list[int], directories: list[str]) -> str:
    item = {"topic": "orders", "partition": 0, "replicas": replicas, "log_dirs": directories}
    path.write_text(json.dumps({"version": 1, "partitions": [item]}))
    return str(path)


def until_done(tidelog: Tidelog, file: str) -> Any:
    deadline = time.monotonic() + 60
    while (result := tidelog("reassign", "--verify", "--file", file, "--json"))[0] != 0:
        assert result[0] == 1
        assert time.monotonic() < deadline, result[1]
    return as_json(result)


def copies_at(admin: Admin, node: int) -> str | None:
    at = ConfigResource("broker", str(node))
    found = admin.describe_configs([at])[at][THROTTLE]
    return None if found.source == "DEFAULT_CONFIG" else found.value


def test_replicas_that_come_and_those_that_stay_go_where_the_file_says(
    admin: Admin, tidelog: Tidelog, tmp_path: Path
) -> None:
    before, third = lies_in(admin, 1), paths(admin, 3)[1]
    file = written(tmp_path / "move.json", [3, 1], [third, other(admin, 1)])
    begun = as_json(
        tidelog("reassign", "--execute", "--file", file, "--replica-alter-log-dirs-throttle", "90000000", "--json")
    )
    assert begun["before"]["partitions"][0]["log_dirs"] == [before, "any"], "the way back"
    done = until_done(tidelog, file)
    assert [part["state"] for part in done["partitions"]] == ["complete"]
    assert (lies_in(admin, 3), lies_in(admin, 2)) == (third, None)
    assert lies_in(admin, 1) != before
    assert (copies_at(admin, 1), copies_at(admin, 3)) == (None, None)

    back = tmp_path / "back.json"
    back.write_text(json.dumps(begun["before"]))
    assert tidelog("reassign", "--execute", "--file", str(back))[0] == 0
    until_done(tidelog, str(back))
    assert (lies_in(admin, 1), lies_in(admin, 3)) == (before, None)
    assert [int(node) for node in admin.describe_topics(["orders"])[0].partitions[0].replicas] == [1, 2]


def test_moves_between_directories_are_shown_and_cancelled(admin: Admin, tidelog: Tidelog, tmp_path: Path) -> None:
    before = lies_in(admin, 1)
    file = written(tmp_path / "move.json", [1, 2], [other(admin, 1), "any"])
    execute = ("reassign", "--execute", "--file", file, "--replica-alter-log-dirs-throttle", "1")
    assert tidelog(*execute)[0] == 0
    code, out, _ = tidelog("reassign", "--verify", "--file", file, "--json")
    assert code == 1
    assert [part["state"] for part in json.loads(out)["partitions"]] == ["moves to its directory"]
    assert copies_at(admin, 1) == "1"
    assert as_json(tidelog("reassign", "--cancel", "--file", file, "--json"))["cancelled"] == ["orders-0"]
    assert (lies_in(admin, 1), copies_at(admin, 1)) == (before, None)
    code, out, _ = tidelog("reassign", "--verify", "--file", file)
    assert code == 1
    assert "in another directory" in out


def test_a_directory_that_cannot_be_meant_is_refused_and_nothing_changes(
    cluster: Cluster, admin: Admin, tidelog: Tidelog, tmp_path: Path
) -> None:
    file = written(tmp_path / "move.json", [3, 1], ["/nowhere", "any"])
    code, _, err = tidelog("reassign", "--execute", "--file", file, "--throttle", "1000")
    assert code == 1
    assert (
        f"broker 3: expected one of the broker's log directories, {', '.join(paths(admin, 3))}, found /nowhere" in err
    )
    file = written(tmp_path / "move.json", [9, 1], ["/nowhere", "any"])
    code, _, err = tidelog("reassign", "--execute", "--file", file)
    assert code == 1
    assert "9" in err
    found = admin.describe_topics(["orders"])[0].partitions[0]
    assert [int(node) for node in found.replicas] == [1, 2]
    assert not admin.list_partition_reassignments([TopicPartition("orders", 0)])
