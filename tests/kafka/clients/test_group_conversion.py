"""Groups that change their protocol while their members work: unmodified librdkafka with ``group.protocol`` classic and
consumer, and the SDK with either, restarted one by one under load. No record is lost, and no partition has two readers
at any instant."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.kafka.clients.test_consumer_protocol import (
    BOUND_S,
    CONFIG,
    PARTITIONS,
    Member,
    filled,
    holds_all,
    shared,
    until,
)
from tidelog.testing.cluster import Cluster

if TYPE_CHECKING:
    from confluent_kafka import Message

CLASSIC = {
    "group.protocol": "classic",
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 200,
}
CONSUMER: dict[str, Any] = {}
WAITED = "JoinGroup failed: Broker: Group rebalance in progress"
"""An upgrade answers waiting JoinGroups so, as Kafka's does (in the golden scripts: an upgrade amid a rebalance)."""
AUTO = {"enable.auto.commit": True}
"""A member commits when it gives partitions up, and when it leaves."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    quick = {"group.initial.rebalance.delay.ms": "0", "group.consumer.assignment.interval.ms": "100"}
    with Cluster(nodes=1, transport="grpc", config={**CONFIG, **quick}) as made:
        yield made


class Nodes(Protocol):
    @property
    def kafka_bootstrap(self) -> str: ...

    def create_topic(self, name: str, partitions: int) -> None: ...


class Work:
    """A topic that is written to all the time, and members that read it."""

    def __init__(self, cluster: Nodes, topic: str, group: str) -> None:
        from confluent_kafka import Producer

        self._cluster, self._topic, self._group = cluster, topic, group
        self._producer = Producer({"bootstrap.servers": cluster.kafka_bootstrap, "linger.ms": 5})
        self._numbers = itertools.count()
        self.sent: set[tuple[int, int]] = set()
        self.members: list[Member] = []
        self.gone: list[Member] = []
        cluster.create_topic(topic, partitions=PARTITIONS)

    def come(self, options: dict[str, Any]) -> None:
        self.members.append(Member(self._cluster.kafka_bootstrap, self._group, self._topic, **AUTO, **options))

    def go(self) -> None:
        """The member that has been here longest leaves."""
        member = self.members.pop(0)
        member.close()
        self.gone.append(member)

    def turn(self) -> None:
        number = next(self._numbers)
        self._producer.produce(self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered)
        self._producer.poll(0)
        for member in self.members:
            member.poll()
            for one, other in itertools.combinations(self.members, 2):
                assert one.partitions.isdisjoint(other.partitions), "a partition has two readers"

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None
        self.sent.add((message.partition() or 0, message.offset() or 0))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < deadline, [(member.partitions, member.failures) for member in self.members]
            self.turn()

    def settle(self) -> None:
        self.until(lambda: shared(*self.members))

    def drain(self) -> None:
        """Read the rest; nothing is missing."""
        self._producer.flush(BOUND_S)
        deadline = time.monotonic() + BOUND_S
        while not self.sent <= self.read:
            assert time.monotonic() < deadline, sorted(self.sent - self.read)
            for member in self.members:
                member.poll()

    @property
    def read(self) -> set[tuple[int, int]]:
        return {at for member in (*self.members, *self.gone) for at in member.read}

    def close(self) -> None:
        while self.members:
            self.go()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_three_members_are_restarted_one_by_one_up_and_down(
    cluster: Cluster, topic_name: Callable[..., str], strategy: str
) -> None:
    topic, group = topic_name(strategy), topic_name(f"group-{strategy}")
    classic = {**CLASSIC, "partition.assignment.strategy": strategy}
    with closing(Work(cluster, topic, group)) as work:
        for _ in range(3):
            work.come(classic)
        work.settle()
        for options, kinds in (
            (CONSUMER, ("consumer", "consumer", "consumer")),
            (classic, ("consumer", "consumer", "classic")),
        ):
            for kind in kinds:
                work.go()
                work.come(options)
                work.settle()
                with cluster.admin() as admin:
                    listed = {each.group_id: each.group_type for each in admin.list_groups()}
                assert listed[group] == kind
        work.drain()
        found = {each.str() for member in (*work.members, *work.gone) for each in member.failures}
        assert found <= {WAITED}


def test_members_of_both_protocols_and_both_listeners_share_a_group(
    cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    topic, group = topic_name(), topic_name("group")
    filled(cluster, topic)
    with (
        closing(Member(cluster.kafka_bootstrap, group, topic, **AUTO, **CLASSIC)) as old,
        cluster.consumer(group_id=group, auto_offset_reset="earliest", heartbeat_interval_ms=200) as our_old,
        cluster.consumer(group_id=group, auto_offset_reset="earliest", group_protocol="consumer") as our_new,
    ):
        ours = (our_old, our_new)
        read: set[tuple[int, int]] = set()
        our_old.subscribe([topic])

        def share(*consumers: Any) -> list[set[int]]:
            """What each of the SDK's and ``old`` has; no two have the same."""
            for consumer in consumers:
                read.update((record.partition, record.offset) for record in consumer.poll(0.02))
            shares = [{at.partition for at in consumer.assignment()} for consumer in consumers] + [old.partitions]
            assert sum(map(len, shares)) == len(set().union(*shares))
            return shares

        until(lambda: sorted(map(len, share(our_old))) == [3, 3], old)
        our_new.subscribe([topic])
        with closing(Member(cluster.kafka_bootstrap, group, topic, **AUTO)) as new:
            until(lambda: sorted([*map(len, share(*ours)), len(new.partitions)]) == [1, 1, 2, 2], old, new)
            assert set().union(*share(*ours), new.partitions) == set(range(PARTITIONS))
            with cluster.admin() as admin:
                members = admin.describe_consumer_groups([group])[group].members
                assert sorted(len(member.assignment or ()) for member in members) == [1, 1, 2, 2]
            everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(10)}
            until(lambda: bool(share(*ours)) and {*read, *old.read, *new.read} == everything, old, new)
        until(lambda: sorted(map(len, share(*ours))) == [2, 2, 2], old)
        our_new.close()
        until(lambda: sorted(map(len, share(our_old))) == [3, 3], old)
        our_old.close()
        until(lambda: holds_all(old), old)
        with cluster.admin() as admin:
            assert [each.group_type for each in admin.list_groups() if each.group_id == group] == ["classic"]
