"""``tidelog delay``: what waits in a delay topic, and cancels."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tests.delay_topics import create_delay_topic
from tidelog import RecordMetadata, TopicPartition
from tidelog.testing import Cluster

BOUND_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, transport="grpc") as made:
        create_delay_topic(made, "later", "dead", partitions=2, delay_target="bills")
        made.create_topic("plain")
        yield made


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def test_what_waits_is_listed_and_cancelled(cluster: Cluster, tidelog: Tidelog) -> None:
    with cluster.producer() as producer:

        def send(value: bytes, key: bytes, partition: int, after_ms: int) -> RecordMetadata:
            sent = producer.send_later("later", value, key, deliver_after_ms=after_ms, partition=partition)
            return sent.result(BOUND_S)

        done, tea = send(b"now", b"a", 0, 0), send(b"tea", b"a", 0, 301_000)
        soon_ms = int(time.time() * 1_000) + 300_000
        cake = producer.send_later("later", b"cake", b"b", deliver_at_ms=soon_ms, partition=1).result(BOUND_S)
        nap = send(b"nap", b"a", 1, 302_000)
        for at_ms, after_ms in ((None, None), (1, 1), (None, -1)):
            with pytest.raises(ValueError, match="deliver_at_ms, deliver_after_ms: expected"):
                producer.send_later("later", b"x", deliver_at_ms=at_ms, deliver_after_ms=after_ms)
    with cluster.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("bills", 0)])
        until = time.monotonic() + BOUND_S
        while not (got := consumer.poll(0.2)):
            assert time.monotonic() < until, "the first one is due at once"
    assert [record.value for record in got] == [b"now"]

    found = as_json(tidelog("delay", "list", "later", "--json"))
    assert (found["pending"], found["whole"]) == (3, True)
    assert [(one["partition"], one["offset"], one["key"]) for one in found["records"]] == [
        (1, cake.offset, "b"), (0, tea.offset, "a"), (1, nap.offset, "a"),
    ]  # fmt: skip
    assert {one["target"] for one in found["records"]} == {"bills"}
    assert as_json(tidelog("delay", "list", "later", "--key", "b", "--json"))["pending"] == 1
    code, out, _ = tidelog("delay", "list", "later", "--max", "1")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if ":" in line] == [f"1:{cake.offset}"]
    assert "3 records pending" in out
    assert as_json(tidelog("delay", "list", "later", "--read", "1", "--json"))["whole"] is False

    [told] = as_json(tidelog("delay", "cancel", "later", f"1:{cake.offset}", "--json"))
    assert told["outcome"] == "cancelled"
    code, out, err = tidelog("delay", "cancel", "later", f"0:{done.offset}", "0:999")
    assert code == 1
    assert "already dealt with" in out
    assert "not found: no committed record there" in out
    assert "2 of 2 records not cancelled for sure" in err
    code, out, err = tidelog("delay", "cancel", "later", "--key", "nobody", "--read", "1")
    assert (code, out) == (1, "")
    assert "there may be more with this key" in err
    assert len(as_json(tidelog("delay", "cancel", "later", "--key", "a", "--json"))) == 2
    assert as_json(tidelog("delay", "list", "later", "--json")) == {"pending": 0, "whole": True, "records": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "plain"), "expected a delay topic (delay.enable=true), found another one"),
        (("cancel", "later"), "expected places or --key, found neither or both"),
        (("cancel", "later", "17"), "expected PARTITION:OFFSET, such as 0:17, found '17'"),
        (("cancel", "later", "7:1"), "expected a partition from 0 to 1"),
    ],
)
def test_mistakes_are_named(tidelog: Tidelog, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = tidelog("delay", *arguments)
    assert code != 0
    assert message in err
