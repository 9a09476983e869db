"""``tidelog rebalance`` against three nodes, one of which has nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands, until
from tidelog import Admin, NewTopic, TopicPartition
from tidelog.cli.work.replicas.moving import clear_throttles
from tidelog.cli.work.replicas.placement import overview_of, rates_of
from tidelog.model.ids import NodeId
from tidelog.testing import Cluster

SIZE = 300_000
PARTITIONS = 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc") as found:
        yield found


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    """Two replicas of every partition on brokers 1 and 2, and broker 1 leads them all."""
    with cluster.admin() as found, cluster.producer() as producer:
        found.create_topics([NewTopic("orders", assignments={number: [1, 2] for number in range(PARTITIONS)})])
        for number in range(PARTITIONS):
            for _ in range(SIZE // 30_000):
                producer.send("orders", bytes(30_000), partition=number)
        producer.flush()
        yield found
        found.delete_topics(["orders"])
        clear_throttles(found)


def held(admin: Admin) -> Counter[int]:
    return Counter(int(node) for part in admin.describe_topics(["orders"])[0].partitions for node in part.replicas)


def led(admin: Admin) -> Counter[int]:
    return Counter(int(part.leader) for part in admin.describe_topics(["orders"])[0].partitions)


def test_a_plan_is_shown_carried_out_and_then_there_is_none(admin: Admin, tidelog: Tidelog) -> None:
    plan = as_json(tidelog("rebalance", "--json"))
    assert {row["node"]: row["before"]["leaders"] for row in plan["brokers"]} == {1: 12, 2: 0, 3: 0}
    assert {row["node"]: row["after"]["leaders"] for row in plan["brokers"]} == {1: 4, 2: 4, 3: 4}
    assert [row["after"]["replicas"] for row in plan["brokers"]] == [8, 8, 8]
    assert (plan["replicas"], len(plan["proposal"]["partitions"])) == (8, plan["partitions"])
    assert plan["bytes"] >= 8 * SIZE
    code, out, err = tidelog("rebalance")
    assert code == 0, err
    assert "nothing was moved: use --execute to carry this out" in out
    assert held(admin) == {1: 12, 2: 12}
    code, out, err = tidelog("rebalance", "--execute", "--throttle", "100000000", "--at-once", "3")
    assert code == 0, err
    assert "to move: 8 replicas of " in out
    until(lambda: held(admin) == {1: 8, 2: 8, 3: 8}, "replicas are spread")
    until(lambda: led(admin) == {1: 4, 2: 4, 3: 4}, "leaders are spread")
    again = as_json(tidelog("rebalance", "--execute", "--json"))
    assert (again["partitions"], again["moved"], again["stay"]) == (0, 0, 0)


def test_leaders_are_evened_out_by_what_was_written_lately(cluster: Cluster, admin: Admin, tidelog: Tidelog) -> None:
    """Two partitions of broker 1 get everything; all had the same bytes long ago."""
    admin.create_topics(
        [NewTopic("calm", assignments={number: [1 + number % 2, 2 - number % 2] for number in range(8)})]
    )
    long_ago = int(time.time() * 1000) - 7_200_000
    try:
        with cluster.producer() as producer:
            for number in range(8):
                producer.send("calm", bytes(100_000), partition=number, timestamp_ms=long_ago)
            for number in (0, 2):
                producer.send("calm", bytes(90_000), partition=number)
        rows = [
            {row["node"]: row[when]["bytes_per_second"] for row in as_json(tidelog(*command))["brokers"]}
            for command in (("rebalance", "--json"), ("rebalance", "--json", "--window", "60"))
            for when in ("before", "after")
        ]
        found = overview_of(admin)
        rates = rates_of(admin, found, 3_600)
        calm = [rates[TopicPartition("calm", number)] for number in range(8)]
        assert calm == pytest.approx([26, 0, 26, 0, 0, 0, 0, 0], abs=2), "95,000 bytes a record, over an hour"
        orders = sum(rates[TopicPartition("orders", number)] for number in range(PARTITIONS))
        before, after, before_of_a_minute, _ = rows
        assert before[1] == orders + sum(calm)
        assert before_of_a_minute[1] == pytest.approx(60 * before[1], rel=0.05)
        assert sum(after.values()) == sum(before.values())
        assert max(after.values()) <= 1.2 * sum(after.values()) / 3
    finally:
        admin.delete_topics(["calm"])


def test_partitions_that_are_not_in_sync_stay(cluster: Cluster, admin: Admin, tidelog: Tidelog) -> None:
    cluster.kill(2)
    views = [cluster.node(number).view for number in (1, 3)]
    until(lambda: all(view.image.brokers[NodeId(2)].fenced for view in views), "broker 2 is fenced")
    try:
        plan = as_json(tidelog("rebalance", "--json"))
        assert [row["node"] for row in plan["brokers"]] == [1, 3]
        assert (plan["partitions"], plan["stay"]) == (0, PARTITIONS)
        assert "12 partitions left alone" in tidelog("rebalance")[1]
    finally:
        cluster.restart(2)
    until(lambda: all(len(cluster.isr_of("orders", number)) == 2 for number in range(PARTITIONS)), "in sync again")


def test_what_is_under_way_is_taken_back(cluster: Cluster, admin: Admin, tidelog: Tidelog) -> None:
    """Broker 3 is down, so the move onto it cannot end by itself."""
    cluster.kill(3)
    try:
        admin.alter_partition_reassignments({TopicPartition("orders", 0): [1, 3]})
        code, _, err = tidelog("rebalance", "--execute", "--cancel")
        assert code == 2
        assert "expected either --execute or --cancel" in err
        cancelled = as_json(tidelog("rebalance", "--cancel", "--json"))
        assert cancelled == {"cancelled": ["orders-0"], "throttles_removed": True}
        until(lambda: held(admin) == {1: 12, 2: 12}, "taken back")
        assert "nothing to cancel" in tidelog("rebalance", "--cancel")[1]
    finally:
        cluster.restart(3)
