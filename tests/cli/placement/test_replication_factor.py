"""``tidelog topics alter --replicas`` against three nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands, until
from tidelog import Admin, NewTopic
from tidelog.proto.calls.api import ConfigResource
from tidelog.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc") as found:
        yield found


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def replicas_of(admin: Admin, topic: str) -> list[set[int]]:
    return [set(map(int, part.replicas)) for part in admin.describe_topics([topic])[0].partitions]


def test_more_replicas_and_fewer(cluster: Cluster, tidelog: Tidelog) -> None:
    with cluster.admin() as admin, cluster.producer() as producer:
        admin.create_topics([NewTopic("orders", assignments={0: [1], 1: [1], 2: [2], 3: [3]})])
        admin.create_topics([NewTopic("other", assignments={0: [2]})])
        for number in range(4):
            producer.send("orders", bytes(50_000), partition=number)
        producer.flush()
        grown = as_json(
            tidelog(
                "topics", "alter", "orders", "--replicas", "3", "--throttle", "50000000", "--at-once", "2", "--json"
            )
        )
        assert (grown["changed"], grown["throttles_removed"]) == (4, True)
        assert grown["bytes"] >= 8 * 50_000
        until(lambda: replicas_of(admin, "orders") == [{1, 2, 3}] * 4, "three replicas")
        until(lambda: all(len(cluster.isr_of("orders", number)) == 3 for number in range(4)), "three in sync")
        code, out, err = tidelog("topics", "alter", "orders", "--replicas", "2")
        assert code == 0, err
        assert out.endswith("orders has 2 replicas of each partition; 4 changed\n")
        until(lambda: [len(found) for found in replicas_of(admin, "orders")] == [2] * 4, "two replicas")
        assert replicas_of(admin, "other") == [{2}]
        again = as_json(tidelog("topics", "alter", "orders", "--replicas", "2", "--json"))
        assert (again["changed"], again["bytes"]) == (0, 0)
        assert "nothing to cancel" in tidelog("topics", "alter", "orders", "--cancel")[1]


def test_what_cannot_be_is_refused_and_changes_nothing(cluster: Cluster, tidelog: Tidelog) -> None:
    with cluster.admin() as admin:
        admin.create_topics([NewTopic("strict", assignments={0: [1, 2]}, configs={"min.insync.replicas": "2"})])
        for arguments, refused, text in (
            (
                ("strict", "--replicas", "4"),
                1,
                "strict-0: expected at most as many replicas as eligible brokers",
            ),
            (("strict", "--replicas", "1"), 1, "expected at least as many replicas as min.insync.replicas, 2, found 1"),
            (("nobody", "--replicas", "1"), 1, "UNKNOWN_TOPIC_OR_PARTITION"),
            (("strict", "--replicas", "2", "--partitions", "3"), 2, "expected one of --partitions, --replicas and"),
            (("strict",), 2, "expected one of --partitions, --replicas and --cancel"),
        ):
            code, _, err = tidelog("topics", "alter", *arguments)
            assert code == refused
            assert text in err
        assert replicas_of(admin, "strict") == [{1, 2}]
        assert not admin.list_partition_reassignments()
        admin.alter_configs({ConfigResource("topic", "strict"): {"min.insync.replicas": "1"}})
        assert as_json(tidelog("topics", "alter", "strict", "--replicas", "1", "--json"))["changed"] == 1
