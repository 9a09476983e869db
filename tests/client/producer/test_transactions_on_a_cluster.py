"""Transactions of both forms on a real cluster in this process: all or none, fencing, timeouts, two phases, and
consume-transform-produce with kills of nodes and of the program."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tidelog import Producer, ProducerRecord, TopicPartition, Transform, aio
from tidelog.client.errors import CommitFailedError, TidelogError, TransactionAbortedError, exception_for
from tidelog.client.record import ConsumerRecord
from tidelog.model.errors import ErrorCode
from tidelog.testing import Cluster

CONFIG = {
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.two.phase.commit.enable": "true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
WAIT_S = 60.0
OVER = type(exception_for(ErrorCode.INVALID_TXN_STATE))
FENCED = type(exception_for(ErrorCode.PRODUCER_FENCED))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, config=CONFIG) as found:
        yield found


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    cluster.create_topic(name, 3)
    return str(name)


def parts(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, i) for i in range(3)]


def committed(cluster: Cluster, topic: str) -> list[bytes | None]:
    """All that a reader of what is committed sees now, up to the end."""
    found: list[bytes | None] = []
    with cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign(parts(topic))
        ends = consumer.end_offsets(parts(topic))
        deadline = time.monotonic() + WAIT_S
        while any(consumer.position(at) < end for at, end in ends.items()):
            assert time.monotonic() < deadline, "not read to the end"
            found += consumer.poll_values(0.2)
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.02)


def test_committed_is_seen_and_aborted_is_not(cluster: Cluster, topic: str) -> None:
    with cluster.producer(transactional_id=topic) as producer:
        for number in range(10):
            producer_aborts = number % 3 == 0

            def work(number: int = number, aborts: bool = producer_aborts) -> None:
                with producer.transaction():
                    for i in range(30):
                        producer.send(topic, b"%d" % (number * 100 + i), partition=i % 3)
                    producer.send_many(topic, [b"%d" % (number * 100 + 30 + i) for i in range(20)])
                    producer.flush()
                    if aborts:
                        raise ZeroDivisionError

            if producer_aborts:
                with pytest.raises(ZeroDivisionError):
                    work()
            else:
                work()
    expected = {b"%d" % (number * 100 + i) for number in range(10) if number % 3 for i in range(50)}
    found = committed(cluster, topic)
    assert len(found) == len(expected)
    assert set(found) == expected
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(parts(topic))
        every: list[ConsumerRecord] = []
        deadline = time.monotonic() + WAIT_S
        while len(every) < 500:
            assert time.monotonic() < deadline
            every += consumer.poll(0.2)
        assert len(every) == 500


def test_an_open_transaction_is_not_seen_and_holds_back_what_comes_after(cluster: Cluster, topic: str) -> None:
    with (
        cluster.producer(transactional_id=topic) as producer,
        cluster.producer() as plain,
        cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer,
    ):
        consumer.assign(parts(topic))
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_and_wait(topic, b"1", partition=0)
        plain.send_and_wait(topic, b"2", partition=0)
        assert consumer.poll(1) == []
        producer.commit_transaction()
        found: list[object] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < 2:
            assert time.monotonic() < deadline
            found += consumer.poll_values(0.2)
        assert found == [b"1", b"2"]


def test_the_newer_producer_fences_the_older(cluster: Cluster, topic: str) -> None:
    with cluster.producer(transactional_id=topic) as old, cluster.producer(transactional_id=topic) as new:
        old.init_transactions()
        old.begin_transaction()
        old.send_and_wait(topic, b"old", partition=0)
        new.init_transactions()
        old.send(topic, b"late", partition=1)
        with pytest.raises(TidelogError):
            old.commit_transaction()
        with pytest.raises(FENCED) as caught:
            old.abort_transaction()
        assert caught.value.fatal
        with new.transaction():
            new.send(topic, b"new", partition=1)
        with pytest.raises(FENCED):
            old.begin_transaction()
    assert committed(cluster, topic) == [b"new"]


def test_a_transaction_that_takes_too_long_is_aborted(cluster: Cluster, topic: str) -> None:
    with (
        cluster.producer(transactional_id=topic, transaction_timeout_ms=500) as producer,
        cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_and_wait(topic, b"1", partition=0)
        consumer.assign(parts(topic))
        until(lambda: consumer.end_offsets(parts(topic))[parts(topic)[0]] == 2, "the abort marker is written")
        with pytest.raises(OVER, match="timed out") as caught:
            producer.commit_transaction()
        assert caught.value.abortable
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"2", partition=0)
    assert committed(cluster, topic) == [b"2"]


def test_prepared_by_one_process_decided_by_another(cluster: Cluster, topic: str) -> None:
    tokens = []
    for number in range(2):
        with (
            cluster.producer(
                transactional_id=f"{topic}-{number}",
                transaction_two_phase_commit_enable=True,
                transaction_timeout_ms=500,
            ) as producer,
            producer.transaction(),
        ):
            producer.send(topic, b"%d" % number, partition=number)
            tokens.append(producer.prepare_transaction())
    time.sleep(1.5)  # longer than the timeout, which does not apply
    how = cluster._client()
    Producer.commit_prepared(cluster.bootstrap, tokens[0], **how)
    Producer.commit_prepared(cluster.bootstrap, tokens[0], **how)
    Producer.abort_prepared(cluster.bootstrap, tokens[1], **how)
    with pytest.raises(TidelogError):
        Producer.commit_prepared(cluster.bootstrap, tokens[1], **how)
    assert committed(cluster, topic) == [b"0"]


def test_a_restart_completes_what_was_decided(cluster: Cluster, topic: str) -> None:
    settings: dict[str, Any] = {"transactional_id": topic, "transaction_two_phase_commit_enable": True}
    with cluster.producer(**settings) as producer, producer.transaction():
        producer.send(topic, b"1")
        token = producer.prepare_transaction()
    with cluster.producer(**settings) as producer:
        producer.init_transactions(keep_prepared=True)
        assert producer.complete_transaction(token)
        with producer.transaction():
            producer.send(topic, b"2")
    with cluster.producer(**settings) as producer, producer.transaction():
        producer.send(topic, b"3")
        producer.prepare_transaction()
    with cluster.producer(**settings) as producer:
        producer.init_transactions(keep_prepared=True)
        assert not producer.complete_transaction(token)
    assert sorted(value or b"" for value in committed(cluster, topic)) == [b"1", b"2"]


def test_offsets_of_a_generation_that_is_over_are_refused(cluster: Cluster, topic: str) -> None:
    with cluster.producer() as plain:
        for i in range(9):
            plain.send(topic, b"%d" % i, partition=i % 3)
    settings: dict[str, Any] = {
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 1_000,
        "heartbeat_interval_ms": 100,
    }
    with cluster.producer(transactional_id=topic) as producer, cluster.consumer(**settings) as consumer:
        consumer.subscribe([topic])
        found: list[ConsumerRecord] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < 9:
            assert time.monotonic() < deadline
            found += consumer.poll(0.2)
        stale = consumer.group_metadata()
        with producer.transaction(consumer=consumer):
            producer.send(f"{topic}", b"x", partition=0)
        assert {o.offset for o in consumer.committed(parts(topic)).values() if o is not None} == {3}
        consumer.unsubscribe()

        def work() -> None:
            with producer.transaction():
                producer.send_offsets_to_transaction({parts(topic)[0]: 99}, stale)

        with pytest.raises(CommitFailedError) as caught:
            work()
        assert caught.value.abortable
        assert {o.offset for o in consumer.committed(parts(topic)).values() if o is not None} == {3}


def test_all_or_none_through_kills_of_nodes(cluster: Cluster, topic: str) -> None:
    """Nodes are killed one after the other, leaders and coordinators among them, while transactions go on. What is
    committed is what was acknowledged; of what failed with an unknown outcome all or nothing."""
    done = threading.Event()
    outcome: dict[int, str] = {}

    def write() -> None:
        number = 0
        with cluster.producer(transactional_id=topic, request_timeout_ms=3_000) as producer:
            while not done.is_set():
                number += 1
                outcome[number] = "unknown"
                try:
                    with producer.transaction():
                        for i in range(6):
                            producer.send(topic, b"%d-%d" % (number, i), partition=i % 3)
                        if number % 5 == 0:
                            producer.flush()
                            raise ZeroDivisionError
                    outcome[number] = "committed"
                except (ZeroDivisionError, TidelogError) as error:
                    if isinstance(error, TidelogError) and error.fatal:
                        raise
                    outcome[number] = "aborted"

    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            write()
        except BaseException as error:
            errors.append(error)

    def more(count: int) -> bool:
        return len(outcome) > count or bool(errors)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        for node in (1, 2, 3):
            before = len(outcome)
            until(partial(more, before + 10), "transactions go on")
            cluster.kill(node)
            before = len(outcome)
            until(partial(more, before + 3), "transactions go on without it")
            cluster.restart(node)
    finally:
        done.set()
        thread.join()
    if errors:
        raise errors[0]
    found: dict[int, set[int]] = {}
    values = committed(cluster, topic)
    for value in values:
        number, i = map(int, (value or b"").split(b"-"))
        found.setdefault(number, set()).add(i)
    assert len(values) == sum(map(len, found.values())), "a record is there twice"
    assert found == {number: set(range(6)) for number, how in outcome.items() if how == "committed"}


def test_a_transform_of_threads_with_kills_has_each_input_once(cluster: Cluster, topic: str) -> None:
    source = f"{topic}-in"
    cluster.create_topic(source, 3)
    with cluster.producer() as plain:
        for i in range(3_000):
            plain.send(source, b"%d" % i, partition=i % 3)
    seen: list[int] = []
    killer = threading.Event()

    def image(record: ConsumerRecord) -> ProducerRecord:
        if killer.is_set():
            raise ZeroDivisionError
        seen.append(1)
        time.sleep(0.0002)
        return ProducerRecord(topic, record.value, key=record.value)

    def job(number: int) -> Transform:
        return Transform(
            image,
            cluster.bootstrap,
            topics=source,
            group_id=topic,
            transactional_id=f"{topic}-{number}",
            consumer_settings={"max_poll_records": 50, "session_timeout_ms": 1_000, "heartbeat_interval_ms": 100},
            **cluster._client(),
        )

    jobs = [job(0), job(1)]
    errors: list[BaseException] = []

    def run(number: int) -> None:
        while True:
            try:
                jobs[number].run()
                return
            except ZeroDivisionError:
                jobs[number] = job(number)
            except BaseException as error:
                errors.append(error)
                return

    def reached(goal: int) -> bool:
        return len(seen) > goal or bool(errors)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for goal in (500, 1_200):
            until(partial(reached, goal), "records are read")
            killer.set()
            time.sleep(0.05)
            killer.clear()
        cluster.kill(2)
        time.sleep(1)
        cluster.restart(2)
        until(lambda: len(set(committed(cluster, topic))) == 3_000 or bool(errors), "all inputs have their image")
    finally:
        for one in jobs:
            one.stop()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    assert sorted(int(value or b"") for value in committed(cluster, topic)) == list(range(3_000))


def test_in_asyncio(cluster: Cluster, topic: str) -> None:
    cluster._run(in_asyncio(cluster, topic))
    assert sorted(value or b"" for value in committed(cluster, topic)) == [b"1"] + [b"3"] * 10


async def in_asyncio(cluster: Cluster, topic: str) -> None:
    network = cluster.client_network()
    async with aio.Producer(cluster.bootstrap, _network=network, transactional_id=topic) as producer:
        async with producer.transaction():
            await producer.send(topic, b"1")
        await producer.begin_transaction()
        left = await producer.send(topic, b"2")
        await producer.abort_transaction()
        with pytest.raises(TransactionAbortedError):
            await left
        async with producer.transaction():
            await (await producer.send_many(topic, [b"3"] * 10))
