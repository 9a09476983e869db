"""Groups at the port of Kafka's clients: what each version of JoinGroup is told, members of both protocols in one
group of which some are killed, and what either protocol's tools say of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

import tidelog
from tests.kafka.raw_connection import RawConnection
from tidelog.model.errors import ErrorCode
from tidelog.proto.kafka.messages import field
from tidelog.testing.cluster import Cluster

from .test_transactions_late import SECOND, Producer

VERSIONS, FIND, JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH, DESCRIBE = 18, 10, 11, 14, 12, 13, 8, 9, 15
CHOSEN = {"protocol_type": "consumer", "protocol_name": "range"}
"""What a member says from version 5 of SyncGroup on."""
PARTITIONS: Final = 6
BOUND_S: Final = 30.0

MEMBER: Final = """
import json, sys
from confluent_kafka import Consumer
consumer = Consumer({**json.loads(sys.argv[1]), "enable.auto.commit": False})
consumer.subscribe([sys.argv[2]])
while True:
    consumer.poll(0.05)
    print(json.dumps([one.partition for one in consumer.assignment()]), flush=True)
"""


# --- Version by version ---------------------------------------------------------------------------------


async def joined(connection: RawConnection, version: int, group: str, member_id: str = "", **more: Any) -> Any:
    values = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\1\0\0\0\0\0\0\0\0"}],
    }
    return await connection.ask(JOIN, version, values | more)


async def coordinated(connection: RawConnection, group: str) -> None:
    async with asyncio.timeout(BOUND_S):
        while (await connection.ask(FIND, 2, {"key": group})).error_code:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("version", range(2, 10))
async def test_a_member_in_every_version(kafka_cluster: Cluster, topic_name: Callable[..., str], version: int) -> None:
    """From version 4 on it comes back with its id; then it is the leader, assigns, lives and leaves."""
    group = topic_name("versions")
    connection = await RawConnection.open(kafka_cluster.kafka_bootstrap)
    await coordinated(connection, group)
    answer = await joined(connection, version, group)
    if version >= 4:
        assert (answer.error_code, answer.generation_id, answer.members) == (ErrorCode.MEMBER_ID_REQUIRED, -1, ())
        answer = await joined(connection, version, group, answer.member_id)
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, answer.member_id)
    assert answer.member_id.startswith("raw-")
    assert [member.member_id for member in answer.members] == [answer.member_id]
    assert field(answer, "protocol_type", "consumer") == "consumer"
    me = {"group_id": group, "generation_id": 1, "member_id": answer.member_id}
    assigned = CHOSEN | me | {"assignments": [{"member_id": answer.member_id, "assignment": b"mine"}]}
    told = await connection.ask(SYNC, min(version, 5), assigned)
    assert (told.error_code, bytes(told.assignment)) == (0, b"mine")
    assert (await connection.ask(HEARTBEAT, min(version, 4), me)).error_code == 0
    stranger = await connection.ask(HEARTBEAT, 0, me | {"member_id": "nobody"})
    assert stranger.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    left = {"group_id": group, "member_id": answer.member_id, "members": [{"member_id": answer.member_id}]}
    assert (await connection.ask(LEAVE, min(version, 5), left)).error_code == 0
    gone = await connection.ask(LEAVE, 1, left)
    assert gone.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    await connection.close()


@pytest.mark.parametrize(("version", "leads"), [(8, False), (9, True)])
async def test_a_static_leader_that_comes_back(
    kafka_cluster: Cluster, topic_name: Callable[..., str], version: int, leads: bool
) -> None:
    """It need not assign anew (KIP-814): since version 9 it is told so, before that it is not told that it leads. Who
    has its old id is fenced."""
    group = topic_name("static")
    connection = await RawConnection.open(kafka_cluster.kafka_bootstrap)
    await coordinated(connection, group)
    first = await joined(connection, version, group, group_instance_id="one")
    assert (first.error_code, first.leader) == (0, first.member_id)
    me = {"group_id": group, "generation_id": 1, "member_id": first.member_id, "group_instance_id": "one"}
    assigned = CHOSEN | me | {"assignments": [{"member_id": first.member_id, "assignment": b"mine"}]}
    await connection.ask(SYNC, 5, assigned)
    again = await joined(connection, version, group, group_instance_id="one")
    assert (again.error_code, again.generation_id) == (0, 1)
    assert again.member_id != first.member_id
    assert (again.leader == again.member_id) is leads
    assert field(again, "skip_assignment", False) is leads
    told = await connection.ask(SYNC, 5, CHOSEN | me | {"member_id": again.member_id})
    assert bytes(told.assignment) == b"mine"
    assert (await connection.ask(HEARTBEAT, 4, me)).error_code == ErrorCode.FENCED_INSTANCE_ID
    await connection.close()


async def test_new_kinds_of_groups_are_not_advertised(kafka_cluster: Cluster) -> None:
    """Clients that want them say so at once: share groups, streams groups."""
    connection = await RawConnection.open(kafka_cluster.kafka_bootstrap)
    answer = await connection.ask(VERSIONS, 3, {"client_software_name": "raw", "client_software_version": "1"})
    served = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert not served.keys() & {76, 77, 78, 79, 88, 89}
    assert served[COMMIT] == (2, 10), "version 10 names topics by id"
    assert served[FETCH] == (1, 10)
    await connection.close()


async def test_offsets_of_an_open_transaction_are_waited_for(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    """OffsetFetch since version 7: require_stable (KIP-447)."""
    topic = topic_name("stable")
    group = f"g-{topic}"
    await asyncio.to_thread(kafka_cluster.create_topic, topic)
    connection = await RawConnection.open(kafka_cluster.kafka_bootstrap)
    await coordinated(connection, group)
    producer = Producer(SECOND, f"tx-{topic}", topic)
    async with asyncio.timeout(BOUND_S):
        while (await connection.ask(FIND, 2, {"key": producer.transactional_id, "key_type": 1})).error_code:
            await asyncio.sleep(0.02)
    await producer.init(connection)
    assert await producer.commit_offsets(connection, group, 7) == 0
    asked = [{"name": topic, "partition_indexes": [0]}]

    async def seen(version: int, *, stable: bool) -> tuple[int, int]:
        groups = [{"group_id": group, "topics": asked}]
        values = {"group_id": group, "topics": asked, "groups": groups, "require_stable": stable}
        answer = await connection.ask(FETCH, version, values)
        found = (answer.groups[0] if version >= 8 else answer).topics[0].partitions[0]
        return found.error_code, found.committed_offset

    assert await seen(7, stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert await seen(9, stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert await seen(9, stable=False) == (0, -1)
    assert await producer.end(connection) == 0
    async with asyncio.timeout(BOUND_S):
        while await seen(9, stable=True) != (0, 7):
            await asyncio.sleep(0.02)
    await connection.close()


# --- Members of both protocols --------------------------------------------------------------------------


@contextmanager
def killable(cluster: Cluster, group: str, topic: str, assignor: str) -> Iterator[subprocess.Popen[str]]:
    """A member in a process of its own whose client is librdkafka; its lines are what it holds."""
    settings = {
        "bootstrap.servers": cluster.kafka_bootstrap,
        "group.id": group,
        "partition.assignment.strategy": assignor,
        "session.timeout.ms": 3_000,
        "heartbeat.interval.ms": 300,
        "client.id": "killable",
    }
    command = [sys.executable, "-c", MEMBER, json.dumps(settings), topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def sdk_member(cluster: Cluster, group: str, assignor: str, **more: Any) -> tidelog.Consumer:
    return cluster.consumer(
        group_id=group,
        enable_auto_commit=False,
        partition_assignment_strategy=[assignor],
        session_timeout_ms=3_000,
        heartbeat_interval_ms=300,
        **more,
    )


def numbers(consumer: tidelog.Consumer) -> set[int]:
    return {one.partition for one in consumer.assignment()}


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_foreign_member_is_killed_and_ours_take_over(
    kafka_cluster: Cluster, topic_name: Callable[..., str], assignor: str
) -> None:
    topic, group = topic_name("mixed"), topic_name("killed")
    kafka_cluster.create_topic(topic, partitions=PARTITIONS)
    with (
        sdk_member(kafka_cluster, group, assignor) as one,
        sdk_member(kafka_cluster, group, assignor) as two,
        killable(kafka_cluster, group, topic, assignor) as foreign,
    ):
        assert foreign.stdout is not None
        one.subscribe([topic])
        two.subscribe([topic])
        deadline = time.monotonic() + BOUND_S
        while True:
            one.poll(0.02)
            two.poll(0.02)
            held = json.loads(foreign.stdout.readline())
            if len(numbers(one)) == len(numbers(two)) == len(held) == 2:
                break
            assert time.monotonic() < deadline, (numbers(one), numbers(two), held)
        assert sorted([*numbers(one), *numbers(two), *held]) == list(range(PARTITIONS))
        with kafka_cluster.admin() as admin:
            described = admin.describe_consumer_groups([group])[group]
        assert described.partition_assignor == assignor
        found = {member.client_id: member for member in described.members}
        assert len(described.members) == 3
        assert {at.partition for at in found["killable"].assignment or ()} == set(held)
        assert found["killable"].subscription == (topic,)
        kept = numbers(one), numbers(two)
        foreign.kill()
        while len(numbers(one)) + len(numbers(two)) < PARTITIONS:
            one.poll(0.02)
            two.poll(0.02)
            assert time.monotonic() < deadline + BOUND_S, (numbers(one), numbers(two))
        assert len(numbers(one)) == len(numbers(two)) == PARTITIONS / 2
        if assignor == "cooperative-sticky":
            assert kept[0] < numbers(one)
            assert kept[1] < numbers(two)


def test_our_member_dies_and_a_foreign_one_takes_over(kafka_cluster: Cluster, topic_name: Callable[..., str]) -> None:
    """The member of ours speaks no more, without a word; a consumer of kafka-python has its partitions then."""
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    topic, group = topic_name("mixed"), topic_name("silent")
    kafka_cluster.create_topic(topic, partitions=PARTITIONS)
    foreign = KafkaConsumer(
        topic,
        group_id=group,
        bootstrap_servers=kafka_cluster.kafka_bootstrap,
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
        session_timeout_ms=3_000,
        heartbeat_interval_ms=300,
        enable_auto_commit=False,
    )
    ours = sdk_member(kafka_cluster, group, "roundrobin", max_poll_interval_ms=3_000)
    try:
        ours.subscribe([topic])
        deadline = time.monotonic() + BOUND_S
        while not len(foreign.assignment()) == len(numbers(ours)) == PARTITIONS / 2:
            ours.poll(0.02)
            foreign.poll(20)
            assert time.monotonic() < deadline, (foreign.assignment(), numbers(ours))
        assert {one.partition for one in foreign.assignment()} | numbers(ours) == set(range(PARTITIONS))
        while len(foreign.assignment()) < PARTITIONS:  # ours does not poll any more
            foreign.poll(20)
            assert time.monotonic() < deadline + BOUND_S, foreign.assignment()
    finally:
        foreign.close()
        ours.close()


def test_two_clients_that_say_they_are_the_same_static_member(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    """The newer one is it; the older one, of whatever protocol, hears that it is fenced."""
    from confluent_kafka import Consumer, KafkaError

    topic, group = topic_name("static"), topic_name("twins")
    kafka_cluster.create_topic(topic, partitions=2)
    failures: set[int] = set()
    older = Consumer(
        {"bootstrap.servers": kafka_cluster.kafka_bootstrap, "group.id": group, "group.instance.id": "twin",
         "session.timeout.ms": 6_000, "heartbeat.interval.ms": 300, "log_level": 0}
    )  # fmt: skip
    try:
        older.subscribe([topic])
        deadline = time.monotonic() + BOUND_S
        while len(older.assignment()) < 2:
            older.poll(0.05)
            assert time.monotonic() < deadline
        with sdk_member(kafka_cluster, group, "range", group_instance_id="twin") as newer:
            newer.subscribe([topic])
            while len(numbers(newer)) < 2 or not failures & {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID}:
                newer.poll(0.02)
                message = older.poll(0.02)
                if message is not None and (error := message.error()) is not None:
                    failures.add(error.code())
                assert time.monotonic() < deadline + BOUND_S, (numbers(newer), failures)
    finally:
        older.close()


async def test_sticky_members_of_python_clients_keep_what_they_have(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    """What sticky members tell of their former assignment is another's bytes: aiokafka's first, then kafka-python's."""
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    topic, group = topic_name("sticky"), topic_name("stuck")
    await asyncio.to_thread(kafka_cluster.create_topic, topic, PARTITIONS)
    settings: dict[str, Any] = {
        "group_id": group,
        "bootstrap_servers": kafka_cluster.kafka_bootstrap,
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 300,
        "enable_auto_commit": False,
    }
    async with AIOKafkaConsumer(topic, partition_assignment_strategy=[AioSticky], **settings) as aio:
        async with asyncio.timeout(BOUND_S):
            while len(aio.assignment()) < PARTITIONS:
                await aio.getmany(timeout_ms=50)
        plain = KafkaConsumer(topic, partition_assignment_strategy=[StickyPartitionAssignor], **settings)
        try:
            async with asyncio.timeout(BOUND_S):
                while len(aio.assignment()) != PARTITIONS / 2 or len(plain.assignment()) != PARTITIONS / 2:
                    await asyncio.to_thread(plain.poll, 50)
                    await aio.getmany(timeout_ms=50)
            mine = {one.partition for one in aio.assignment()}
            assert mine | {one.partition for one in plain.assignment()} == set(range(PARTITIONS))
        finally:
            await asyncio.to_thread(plain.close)
        async with asyncio.timeout(BOUND_S):
            while len(aio.assignment()) < PARTITIONS:
                await aio.getmany(timeout_ms=50)
