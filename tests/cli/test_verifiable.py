"""``tidelog verifiable-producer`` and ``verifiable-consumer`` against a running cluster, as programs that read them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tidelog.testing.cluster import Cluster

from .in_process import Tidelog, runs_commands


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc") as found:
        yield found


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def events(out: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in out.splitlines()]
    assert all(event.pop("timestamp") > 1_700_000_000_000 for event in found)
    return found


def of(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key != "name"} for event in found if event["name"] == name]


def test_each_record_is_told_sent_read_and_committed(cluster: Cluster, tidelog: Tidelog) -> None:
    cluster.create_topic("orders", partitions=2)
    given = ("--max-messages", "7", "--repeating-keys", "3", "--value-prefix", "5", "--message-create-time", "1000")
    code, out, err = tidelog("verifiable-producer", "orders", *given)
    assert (code, err) == (0, "")
    sent = events(out)
    assert [sent[0]["name"], *(event["name"] for event in sent[-2:])] == [
        "startup_complete", "shutdown_complete", "tool_data"
    ]  # fmt: skip
    told = of(sent, "producer_send_success")
    assert sorted((each["value"], each["key"]) for each in told) == [(f"5.{n}", str(n % 3)) for n in range(7)]
    (sums,) = of(sent, "tool_data")
    assert (sums["sent"], sums["acked"], sums["target_throughput"]) == (7, 7, -1)

    code, out, err = tidelog("verifiable-consumer", "orders", "--group-id", "g", "--max-messages", "7", "--verbose")
    assert (code, err) == (0, "")
    read = events(out)
    by_place = sorted(told, key=lambda each: (each["partition"], each["offset"]))
    assert sorted(of(read, "record_data"), key=lambda each: (each["partition"], each["offset"])) == by_place
    assert sum(each["count"] for each in of(read, "records_consumed")) == 7
    places = [{"topic": "orders", "partition": number} for number in (0, 1)]
    assert of(read, "partitions_assigned") == of(read, "partitions_revoked") == [{"partitions": places}]
    committed = {
        (at["topic"], at["partition"]): at["offset"]
        for each in of(read, "offsets_committed") if each["success"] for at in each["offsets"]
    }  # fmt: skip
    with cluster.admin() as admin:
        stored = admin.list_consumer_group_offsets("g")
    assert committed == {tuple(at): found.offset for at, found in stored.items()}
    assert sum(committed.values()) == 7


def test_a_record_that_fails_is_told_and_is_the_exit_code(cluster: Cluster, tidelog: Tidelog) -> None:
    cluster.create_topic("small", config={"max.message.bytes": "60"})
    code, out, _ = tidelog("verifiable-producer", "small", "--max-messages", "1")
    found = events(out)
    (failed,) = of(found, "producer_send_error")
    assert code == 1
    assert (failed["topic"], failed["value"], failed["exception"]) == ("small", "0", "RecordTooLargeError")
    assert of(found, "tool_data")[0]["acked"] == 0


def test_sigterm_ends_both_in_order(cluster: Cluster) -> None:
    """Whatever was acknowledged is told, and the member has left the group with all that it read committed."""
    cluster.create_topic("endless")

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "tidelog.cli.main", *arguments]
        environment = {**os.environ, "TIDELOG_BOOTSTRAP": cluster.bootstrap}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    with (
        start("verifiable-producer", "endless", "--throughput", "50") as producer,
        start("verifiable-consumer", "endless", "--group-id", "ends") as consumer,
    ):
        assert consumer.stdout is not None
        first = [next(consumer.stdout) for _ in range(6)]
        producer.send_signal(signal.SIGTERM)
        sent = events(producer.communicate(timeout=60)[0])
        consumer.send_signal(signal.SIGTERM)
        read = events("".join(first) + consumer.communicate(timeout=60)[0])
    assert (producer.returncode, consumer.returncode) == (0, 0)
    acknowledged = of(sent, "producer_send_success")
    assert len(acknowledged) == of(sent, "tool_data")[0]["sent"] > 0
    with cluster.admin() as admin:
        (left,) = admin.list_consumer_group_offsets("ends").values()
        assert not admin.describe_classic_groups(["ends"])["ends"].members
    assert sum(each["count"] for each in of(read, "records_consumed")) == left.offset <= len(acknowledged)
    assert read[-1]["name"] == "shutdown_complete"
