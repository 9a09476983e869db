"""Groups of foreign members: every assignor, static and cooperative ones, offsets that both protocols see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.kafka.kafka_clients import Sent, confluent_produce
from tidelog.testing.cluster import Cluster

PARTITIONS = 6
BOUND_S = 60.0


def filled(cluster: Cluster, topic: str, per_partition: int = 20) -> None:
    cluster.create_topic(topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        records = [Sent(None, b"%d-%d" % (partition, number), (), 1) for number in range(per_partition)]
        confluent_produce(cluster.kafka_bootstrap, topic, partition, records, "none")


class Member:
    """A member whose client is librdkafka; what it was handed out, and what it holds."""

    def __init__(self, bootstrap: str, group: str, topic: str, assignor: str, **options: Any) -> None:
        from confluent_kafka import Consumer

        self.revoked = 0
        self.values: list[bytes] = []
        self.consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "partition.assignment.strategy": assignor,
             "auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 6000,
             "heartbeat.interval.ms": 300, **options}
        )  # fmt: skip
        self.consumer.subscribe([topic], on_revoke=self._on_revoke)

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self.revoked += len(partitions)

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.values.append(message.value() or b"")

    @property
    def holds(self) -> set[int]:
        return {one.partition for one in self.consumer.assignment()}


@contextmanager
def members(*made: Member) -> Iterator[tuple[Member, ...]]:
    try:
        yield made
    finally:
        for member in made:
            member.consumer.close()


def poll_until(condition: Callable[[], bool], *polled: Member, what: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: {[sorted(member.holds) for member in polled]}"
        for member in polled:
            member.poll()


def shared(*polled: Member) -> bool:
    """Whether every partition has exactly one of the members, and every member has some."""
    held = [partition for member in polled for partition in member.holds]
    return sorted(held) == list(range(PARTITIONS)) and all(member.holds for member in polled)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_the_partitions_and_one_takes_over_the_others(
    kafka_cluster: Cluster, topic_name: Callable[..., str], assignor: str
) -> None:
    topic, group = topic_name("group"), topic_name("members")
    filled(kafka_cluster, topic)
    bootstrap = kafka_cluster.kafka_bootstrap
    first = Member(bootstrap, group, topic, assignor)
    with members(first):
        poll_until(lambda: len(first.holds) == PARTITIONS, first, what="the first member to have all")
        second = Member(bootstrap, group, topic, assignor)
        with members(second):
            poll_until(lambda: shared(first, second), first, second, what="both to share")
            assert len(first.holds) == PARTITIONS / 2
            if assignor == "cooperative-sticky":  # only what it gave away was ever taken from it
                assert first.revoked == PARTITIONS / 2
            else:
                assert first.revoked >= PARTITIONS
        poll_until(lambda: len(first.holds) == PARTITIONS, first, what="the first member to have all again")
        wanted = {b"%d-%d" % (partition, number) for partition in range(PARTITIONS) for number in range(20)}
        poll_until(lambda: set(first.values + second.values) == wanted, first, what="every record")


def test_a_static_member_that_comes_back_keeps_its_partitions_without_a_rebalance(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    topic, group = topic_name("group"), topic_name("static")
    filled(kafka_cluster, topic, 1)
    bootstrap = kafka_cluster.kafka_bootstrap
    other = Member(bootstrap, group, topic, "range", **{"group.instance.id": "b"})
    with members(other):
        one = Member(bootstrap, group, topic, "range", **{"group.instance.id": "a"})
        poll_until(lambda: shared(one, other), one, other, what="both to share")
        held, revoked = one.holds, other.revoked
        one.consumer.close()  # a static member does not leave
        again = Member(bootstrap, group, topic, "range", **{"group.instance.id": "a"})
        with members(again):
            poll_until(lambda: shared(again, other), again, other, what="the static member to be back")
            assert again.holds == held
            assert other.revoked == revoked


def test_members_by_kafka_python_and_aiokafka_and_librdkafka_in_one_group(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    import asyncio

    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    topic, group = topic_name("group"), topic_name("mixed")
    filled(kafka_cluster, topic, 5)
    bootstrap = kafka_cluster.kafka_bootstrap
    wanted = {b"%d-%d" % (partition, number) for partition in range(PARTITIONS) for number in range(5)}
    settings: dict[str, Any] = {
        "group_id": group, "bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 300, "enable_auto_commit": False,
    }  # fmt: skip

    async def run() -> None:
        found: set[bytes] = set()
        member = Member(bootstrap, group, topic, "range")
        with (
            members(member),
            closing(KafkaConsumer(topic, partition_assignment_strategy=[RangePartitionAssignor], **settings)) as plain,
        ):
            aio = AIOKafkaConsumer(topic, partition_assignment_strategy=[AioRange], **settings)
            # Each by itself: one that waits for a rebalance must not keep the others from joining it.
            stop = asyncio.Event()

            async def poll_member() -> None:
                while not stop.is_set():
                    await asyncio.to_thread(member.poll)
                    found.update(member.values)

            async def poll_plain() -> None:
                # A join that outlasts a poll may be forgotten by kafka-python 3.0.12 (docs/kafka-clients.md).
                while not stop.is_set():
                    for many in (await asyncio.to_thread(plain.poll, 2_000)).values():
                        found.update(one.value for one in many)

            async def poll_aio() -> None:
                await aio.start()  # which waits until it is assigned some
                while not stop.is_set():
                    for many in (await aio.getmany(timeout_ms=50)).values():
                        found.update(one.value for one in many)

            def shared_out() -> bool:
                held = [plain.assignment(), aio.assignment()]
                numbers = [*member.holds, *(one.partition for some in held for one in some)]
                return sorted(numbers) == list(range(PARTITIONS)) and all(len(some) == 2 for some in held)

            polling = [asyncio.create_task(poll()) for poll in (poll_member, poll_plain, poll_aio)]
            try:
                async with asyncio.timeout(BOUND_S):
                    while not (shared_out() and found == wanted):
                        await asyncio.sleep(0.02)
            finally:
                stop.set()
                polling[2].cancel()
                ended = await asyncio.gather(*polling, return_exceptions=True)
                await aio.stop()
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    asyncio.run(run())


def test_offsets_committed_through_one_protocol_are_read_through_the_other(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as KafkaPartition

    from tidelog import OffsetAndMetadata, TopicPartition

    topic, group = topic_name("offsets"), topic_name("committers")
    kafka_cluster.create_topic(topic, partitions=2)
    foreign = Consumer(
        {"bootstrap.servers": kafka_cluster.kafka_bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    try:
        committed = foreign.commit(
            offsets=[KafkaPartition(topic, 0, 7, metadata="from librdkafka")], asynchronous=False
        )
        assert committed[0].error is None
        with kafka_cluster.consumer(group_id=group, enable_auto_commit=False) as ours:
            one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
            found = ours.committed([one])[one]
            assert found is not None
            # confluent-kafka hands librdkafka the zero behind its text too
            assert (found.offset, found.metadata.rstrip("\0")) == (7, "from librdkafka")
            ours.assign([two])
            # and reads on to the next zero, wherever that is
            ours.commit({two: OffsetAndMetadata(11, metadata="from the SDK\0")})
        seen = foreign.committed([KafkaPartition(topic, 0), KafkaPartition(topic, 1)], timeout=20)
        assert [(one.offset, one.metadata) for one in seen] == [(7, "from librdkafka"), (11, "from the SDK")]
    finally:
        foreign.close()


def test_a_group_with_members_of_both_protocols(kafka_cluster: Cluster, topic_name: Callable[..., str]) -> None:
    topic, group = topic_name("group"), topic_name("both")
    filled(kafka_cluster, topic, 5)
    wanted = {b"%d-%d" % (partition, number) for partition in range(PARTITIONS) for number in range(5)}
    foreign = Member(kafka_cluster.kafka_bootstrap, group, topic, "range")
    with (
        members(foreign),
        kafka_cluster.consumer(
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=["range"],
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
        ) as ours,
    ):
        ours.subscribe([topic])
        found: set[bytes] = set()
        deadline = time.monotonic() + BOUND_S
        while not (len(foreign.holds) == len(ours.assignment()) == PARTITIONS / 2 and found == wanted):
            assert time.monotonic() < deadline, (foreign.holds, ours.assignment(), len(found))
            found.update(one.value for one in ours.poll(0.05) if one.value is not None)
            foreign.poll()
            found.update(foreign.values)
        held = foreign.holds | {one.partition for one in ours.assignment()}
        assert held == set(range(PARTITIONS))
