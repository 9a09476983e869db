"""Foreign producers while the coordinator of their transactions begins anew or is killed, and after they died."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import tidelog
from tests.conftest import broker_of
from tests.kafka.calls.test_transactions_late import FIRST, SECOND, Stage
from tests.kafka.raw_connection import Closed, RawConnection
from tidelog.model.names import TRANSACTION_STATE_TOPIC
from tidelog.testing.cluster import Cluster

BOUND_S: Final = 60.0
PARTITIONS: Final = 3
RECORDS: Final = 900


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {
        "group.initial.rebalance.delay.ms": "0",
        "min.insync.replicas": "2",
        "transaction.state.log.num.partitions": "3",
        "offsets.topic.num.partitions": "3",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    }
    with Cluster(nodes=3, transport="grpc", config=config) as made:
        yield made


def begin_coordination_anew(cluster: Cluster) -> None:
    """Every coordinator of transactions loads its partitions as after an election: what it only remembered is gone."""

    coordinators = [broker_of(cluster.node(node_id)).transactions.coordinator for node_id in cluster.running]

    def work() -> None:
        for coordinator in coordinators:
            for partition, led in list(coordinator._led.items()):
                coordinator.resigned(partition)
                coordinator.elected(partition, led.epoch)

    cluster._call(work)


def late_calls(cluster: Cluster) -> int:
    brokers = [broker_of(cluster.node(node_id)) for node_id in cluster.running]
    return sum(broker.transactions.coordinator.counters.late_connections for broker in brokers)


def committed(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """``count`` records or more, as a reader of what is committed gets them, to the end of every partition."""
    found: list[bytes] = []
    at = [tidelog.TopicPartition(topic, number) for number in range(PARTITIONS)]
    with (
        cluster.consumer(isolation_level="read_committed") as consumer,
        cluster.consumer(isolation_level="read_uncommitted") as other,
    ):
        consumer.assign(at)
        consumer.seek_to_beginning(*at)
        ends = other.end_offsets(at)
        deadline = time.monotonic() + BOUND_S
        while len(found) < count or any(consumer.position(each) < ends[each] for each in at):
            assert time.monotonic() < deadline, f"{len(found)} of {count}, or something is open that nobody ends"
            found += [bytes(record.value or b"") for record in consumer.poll(timeout=0.2)]
    return found


def librdkafka_transactions(bootstrap: str, topic: str, between: Callable[[], None]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(BOUND_S)
    for number in range(3):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=number)
        between()
        producer.commit_transaction(BOUND_S)


def kafka_python_transactions(bootstrap: str, topic: str, between: Callable[[], None]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
    try:
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=number).get(BOUND_S)
            between()
            producer.commit_transaction()
    finally:
        producer.close()


def aiokafka_transactions(bootstrap: str, topic: str, between: Callable[[], None]) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic) as producer:
            for number in range(3):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"%d" % number, partition=number)
                await asyncio.to_thread(between)
                await producer.commit_transaction()

    asyncio.run(run())


@pytest.mark.parametrize(
    "transactions",
    [librdkafka_transactions, kafka_python_transactions, aiokafka_transactions],
    ids=["librdkafka", "kafka-python", "aiokafka"],
)
def test_clients_go_on_when_their_connection_counts_no_more(
    cluster: Cluster, topic_name: Callable[..., str], transactions: Callable[[str, str, Callable[[], None]], None]
) -> None:
    """The coordinator begins anew in the middle of each transaction: the next request of the first protocol comes on a
    connection from before, which is closed; the client comes again on a new one, and nothing is lost or doubled."""
    topic = topic_name("anew")
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    before = late_calls(cluster)
    transactions(cluster.kafka_bootstrap, topic, lambda: begin_coordination_anew(cluster))
    assert late_calls(cluster) > before
    assert sorted(committed(cluster, topic, 3)) == [b"0", b"1", b"2"]


async def test_a_request_from_before_the_coordinator_went_and_came_back(
    cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    """Nothing newer was heard of since the election, and yet the old connection does not speak."""
    topic = topic_name("back")
    await asyncio.to_thread(cluster.create_topic, topic, PARTITIONS, 3)
    home = await asyncio.to_thread(coordinator_address, cluster, f"tx-{topic}")
    stage = Stage(cluster, topic)
    left = await RawConnection.open(home)
    producer = await stage.producer(left, FIRST)
    assert await producer.add(left) == 0
    await asyncio.to_thread(begin_coordination_anew, cluster)
    before = late_calls(cluster)
    with pytest.raises(Closed):
        await producer.end(left)
    assert late_calls(cluster) == before + 1
    lives = await RawConnection.open(home)
    assert await producer.end(lives) == 0
    await left.close()
    await lives.close()


def coordinator_address(cluster: Cluster, transactional_id: str) -> str:
    """Its address for Kafka's clients."""
    from confluent_kafka import Producer

    Producer({"bootstrap.servers": cluster.kafka_bootstrap, "transactional.id": transactional_id}).init_transactions(30)
    partition = broker_of(cluster.node(1)).transactions.coordinator.partition_for(transactional_id)
    leader = cluster.leader_of(TRANSACTION_STATE_TOPIC, partition)
    assert leader is not None
    return str(broker_of(cluster.node(leader)).kafka_address)


@pytest.mark.parametrize("versions", [FIRST, SECOND], ids=["first", "second"])
async def test_the_transaction_of_a_client_that_died_is_aborted_in_time(
    cluster: Cluster, topic_name: Callable[..., str], versions: dict[int, int]
) -> None:
    topic = topic_name("dead")
    await asyncio.to_thread(cluster.create_topic, topic, PARTITIONS, 3)
    home = await asyncio.to_thread(coordinator_address, cluster, f"tx-{topic}")
    connection = await RawConnection.open(home)
    stage = Stage(cluster, topic)
    producer = await stage.producer(connection, versions)
    leader = cluster.leader_of(topic, 0)
    assert leader is not None
    to_leader = await RawConnection.open(str(broker_of(cluster.node(leader)).kafka_address))
    found = await producer.ask(connection, 22, transaction_timeout=400)
    producer.identity = found.producer_id, found.producer_epoch
    if versions is FIRST:
        assert await producer.add(connection) == 0
    assert await producer.send(to_leader, producer.batch(0, b"dead")) == 0
    described = await connection.ask(65, 0, {"transactional_ids": [producer.transactional_id]})
    (state,) = described.transaction_states
    assert (state.transaction_state, state.transaction_timeout, state.producer_id) == (
        "Ongoing",
        400,
        found.producer_id,
    )
    assert [(each.topic, each.partitions) for each in state.topics] == [(topic, (0,))]
    await connection.close()
    await to_leader.close()

    def alive() -> list[bytes]:
        with cluster.producer() as plain:
            plain.send(topic, b"after", partition=0).result(BOUND_S)
        return committed(cluster, topic, 1)

    assert await asyncio.to_thread(alive) == [b"after"]


def test_what_our_tools_see_and_end_of_a_foreign_transaction(cluster: Cluster, topic_name: Callable[..., str]) -> None:
    from confluent_kafka import KafkaException, Producer

    topic = topic_name("tools")
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    foreign = Producer({"bootstrap.servers": cluster.kafka_bootstrap, "transactional.id": topic, "log_level": 0})
    foreign.init_transactions(BOUND_S)
    foreign.begin_transaction()
    foreign.produce(topic, b"open", partition=1)
    assert foreign.flush(BOUND_S) == 0
    at = tidelog.TopicPartition(topic, 1)
    with cluster.admin() as admin:
        found = admin.describe_transactions([topic])[topic]
        assert found.state == "Ongoing"
        assert at in found.topic_partitions
        (state,) = [each for each in admin.describe_producers([at])[at] if each.producer_id == found.producer_id]
        assert state.producer_epoch == found.producer_epoch
        admin.fence_producers([topic])
    with pytest.raises(KafkaException):
        foreign.commit_transaction(BOUND_S)
    assert committed(cluster, topic, 0) == []


async def test_a_broker_that_died_is_still_named(cluster: Cluster) -> None:
    """For a while: clients that forget a broker at once may not find back to it when it comes back."""
    (victim, *others) = cluster.running
    home = str(broker_of(cluster.node(others[0])).kafka_address)
    await asyncio.to_thread(cluster.kill, victim)
    try:
        view = broker_of(cluster.node(others[0]))._view
        await asyncio.to_thread(cluster.wait_for, lambda: view.image.brokers[victim].fenced, "it is fenced")
        connection = await RawConnection.open(home)
        answer = await connection.ask(3, 9, {"topics": []})
        assert {broker.node_id for broker in answer.brokers} == {victim, *others}
        assert answer.controller_id == others[0], "who answers passes on what is for the controller"
        await connection.close()
    finally:
        await asyncio.to_thread(cluster.restart, victim)


@pytest.mark.parametrize("client", ["librdkafka", "aiokafka"])
def test_each_input_once_while_nodes_are_killed(cluster: Cluster, topic_name: Callable[..., str], client: str) -> None:
    """Consume, transform, produce, in a group, with aborts between, while coordinators and leaders die."""
    source, target = topic_name("source"), topic_name("target")
    for topic in (source, target):
        cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    with cluster.producer() as producer:
        for number in range(RECORDS):
            producer.send(source, b"%d" % number, partition=number % PARTITIONS)
        producer.flush()
    transforms = {"librdkafka": librdkafka_transforms, "aiokafka": aiokafka_transforms}[client]
    half, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            transforms(cluster.kafka_bootstrap, source, target, half)
        except BaseException as failure:
            failures.append(failure)
        finally:
            half.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert half.wait(BOUND_S)
        partition = broker_of(cluster.node(cluster.running[0])).transactions.coordinator.partition_for(source)
        for _ in range(2):
            victim = cluster.leader_of(TRANSACTION_STATE_TOPIC, partition)
            if victim is None or failures:
                break
            cluster.kill(victim)
            cluster.restart(victim)
            cluster.wait_for_isr(target, 0, 3)
    finally:
        thread.join(BOUND_S)
    assert not failures
    assert not thread.is_alive()
    found = committed(cluster, target, RECORDS)
    assert sorted(found, key=int) == [b"%d" % number for number in range(RECORDS)]


def librdkafka_transforms(bootstrap: str, source: str, target: str, half: threading.Event) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    base = {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200}
    producer = Producer({**base, "transactional.id": source, "socket.timeout.ms": 5_000})
    producer.init_transactions(BOUND_S)
    consumer = Consumer(
        {**base, "group.id": source, "auto.offset.reset": "earliest", "enable.auto.commit": False,
         "session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}
    )  # fmt: skip
    done = turns = 0
    try:
        consumer.subscribe([source])
        deadline = time.monotonic() + BOUND_S
        while done < RECORDS:
            assert time.monotonic() < deadline, f"{done} of {RECORDS}"
            messages = [each for each in consumer.consume(20, 0.3) if each.error() is None]
            if not messages:
                continue
            turns += 1
            producer.begin_transaction()
            nexts: dict[int, int] = {}
            firsts: dict[int, int] = {}
            for each in messages:
                partition, offset = each.partition(), each.offset()
                assert partition is not None
                assert offset is not None
                producer.produce(target, each.value(), partition=partition)
                nexts[partition] = offset + 1
                firsts.setdefault(partition, offset)
            offsets = [TopicPartition(source, partition, offset) for partition, offset in nexts.items()]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), BOUND_S)
            if turns % 5 == 0:
                producer.abort_transaction(BOUND_S)
                for partition, offset in firsts.items():
                    consumer.seek(TopicPartition(source, partition, offset))
                continue
            producer.commit_transaction(BOUND_S)
            done += len(messages)
            if done > RECORDS // 4:
                half.set()
    finally:
        consumer.close()


def aiokafka_transforms(bootstrap: str, source: str, target: str, half: threading.Event) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    async def run() -> None:
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        done = turns = 0
        async with (
            AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=source) as producer,
            AIOKafkaConsumer(source, bootstrap_servers=bootstrap, group_id=source, **settings) as consumer,
            asyncio.timeout(BOUND_S),
        ):
            while done < RECORDS:
                found = (await consumer.getmany(timeout_ms=300, max_records=20)).items()
                messages = [each for _, many in found for each in many]
                if not messages:
                    continue
                turns += 1
                await producer.begin_transaction()
                for each in messages:
                    await producer.send(target, each.value, partition=each.partition)
                nexts = {TopicPartition(source, at.partition): many[-1].offset + 1 for at, many in found if many}
                await producer.send_offsets_to_transaction(nexts, source)
                if turns % 5 == 0:
                    await producer.abort_transaction()
                    for at, many in found:
                        if many:
                            consumer.seek(at, many[0].offset)
                    continue
                await producer.commit_transaction()
                done += len(messages)
                if done > RECORDS // 4:
                    half.set()

    asyncio.run(run())
