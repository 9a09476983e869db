"""``tidelog groups`` and groups of the consumer protocol, whose member is librdkafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tidelog import Admin, TopicPartition
from tidelog.testing import Cluster

BOUND_S = 90.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc", config={"group.consumer.heartbeat.interval.ms": "200"}) as made:
        yield made


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def test_groups_of_the_consumer_protocol_are_listed_described_reset_and_deleted(
    cluster: Cluster, tidelog: Tidelog
) -> None:
    from confluent_kafka import Consumer

    cluster.create_topic("t", partitions=2)
    options = {"bootstrap.servers": cluster.kafka_bootstrap, "group.id": "g", "group.protocol": "consumer"}
    with closing(Consumer(options)) as member:
        member.subscribe(["t"])
        deadline = time.monotonic() + BOUND_S
        while len(member.assignment()) < 2:
            assert time.monotonic() < deadline
            member.poll(0.1)
        (listed,) = as_json(tidelog("groups", "list", "--type", "consumer", "--state", "stable", "--json"))
        assert listed == {"group": "g", "state": "Stable", "type": "consumer", "protocol": "consumer"}
        assert as_json(tidelog("groups", "list", "--type", "classic", "--json")) == []
        with Admin(cluster.bootstrap) as admin:
            found = admin.describe_consumer_groups(["g"])["g"]
        assert (found.protocol_type, found.partition_assignor, found.state) == ("consumer", "uniform", "Stable")
        assert found.members[0].assignment == (TopicPartition("t", 0), TopicPartition("t", 1))
        assert found.members[0].subscription == ("t",)
        code, out, _ = tidelog("groups", "describe", "g", "--members")
        assert code == 0
        assert found.members[0].member_id in out
        code, _, err = tidelog("groups", "reset-offsets", "g", "--topic", "t", "--to-earliest", "--execute")
        assert code != 0
        assert "expected an inactive group (Empty), found Stable with 1 member" in err
        assert "NON_EMPTY_GROUP" in tidelog("groups", "delete", "g")[2]
        assert "upgraded" not in out
        with cluster.consumer(group_id="g", client_id="old", heartbeat_interval_ms=200) as old:
            old.subscribe(["t"])
            while len(old.assignment()) != 1:
                assert time.monotonic() < deadline
                old.poll(0.05)
                member.poll(0.05)
            both = as_json(tidelog("groups", "describe", "g", "--members", "--json"))
            assert {one["client_id"] == "old": one["upgraded"] for one in both} == {True: False, False: True}
            head, _, *rows = tidelog("groups", "describe", "g", "--members")[1].splitlines()
            assert head.split()[-1] == "upgraded"
            assert {" old " in row: row.split()[-1] for row in rows} == {True: "no", False: "yes"}
            assert "NON_EMPTY_GROUP" in tidelog("groups", "delete", "g")[2]
    assert tidelog("groups", "reset-offsets", "g", "--topic", "t", "--to-earliest", "--execute")[0] == 0
    with Admin(cluster.bootstrap) as admin:
        assert len(admin.list_consumer_group_offsets("g")) == 2
    assert tidelog("groups", "delete", "g")[0] == 0
    assert as_json(tidelog("groups", "list", "--json")) == []
