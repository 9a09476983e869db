"""Requests of transactions that come late, twice, or in another order, at the port that Kafka's clients speak to.

Each delay is played by connections of its own: one that a client has left with a request on it, and the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest

import tidelog
from tests.kafka.raw_connection import Closed, RawConnection
from tidelog.model.errors import ErrorCode
from tidelog.proto.records.encoder import encode_values
from tidelog.testing.cluster import Cluster

FIND, INIT, ADD, ADD_OFFSETS, END, COMMIT_OFFSETS, FETCH_OFFSETS, PRODUCE = 10, 22, 24, 25, 26, 28, 9, 0
FIRST: Final = {INIT: 4, ADD: 3, ADD_OFFSETS: 3, END: 4, COMMIT_OFFSETS: 4, PRODUCE: 9}
SECOND: Final = {INIT: 5, END: 5, COMMIT_OFFSETS: 5, PRODUCE: 12}
CONCURRENT = int(ErrorCode.CONCURRENT_TRANSACTIONS)
RETRIED: Final = {
    CONCURRENT,
    int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
    int(ErrorCode.NOT_COORDINATOR),
}


class Producer:
    """A producer that remembers nothing but its identity; every request names its connection."""

    def __init__(self, versions: dict[int, int], transactional_id: str, topic: str) -> None:
        self.versions = versions
        self.transactional_id = transactional_id
        self.topic = topic
        self.identity = (-1, -1)

    async def ask(self, on: RawConnection, api: int, **values: Any) -> Any:
        """Asked again while the transaction before is being completed, as every client does."""
        who = {"transactional_id": self.transactional_id, "producer_id": self.identity[0]}
        async with asyncio.timeout(100):
            while True:
                answer = await on.ask(api, self.versions[api], who | {"producer_epoch": self.identity[1]} | values)
                if getattr(answer, "error_code", 0) not in RETRIED:
                    return answer
                await asyncio.sleep(0.01)

    async def init(self, on: RawConnection) -> None:
        self.identity = (-1, -1)
        found = await self.ask(on, INIT, transaction_timeout=60_000)
        assert found.error_code == 0
        self.identity = (found.producer_id, found.producer_epoch)

    async def add(self, on: RawConnection, partition: int = 0) -> int:
        topics = [{"name": self.topic, "partitions": [partition]}]
        who = dict(zip(("producer_id", "producer_epoch"), self.identity, strict=True))
        values = {f"v3_and_below_{name}": value for name, value in who.items()}
        async with asyncio.timeout(100):
            while True:
                answer = await on.ask(
                    ADD,
                    3,
                    values | {"v3_and_below_transactional_id": self.transactional_id, "v3_and_below_topics": topics},
                )
                (result,) = answer.results_by_topic_v3_and_below
                code: int = result.results_by_partition[0].partition_error_code
                if code not in RETRIED:
                    return code
                await asyncio.sleep(0.01)

    async def end(self, on: RawConnection, *, committed: bool = True) -> int:
        answer = await self.ask(on, END, committed=committed)
        code: int = answer.error_code
        if code == 0 and self.versions is SECOND:
            self.identity = (answer.producer_id, answer.producer_epoch)
        return code

    async def add_offsets(self, on: RawConnection, group: str) -> int:
        answer = await self.ask(on, ADD_OFFSETS, group_id=group)
        code: int = answer.error_code
        return code

    async def commit_offsets(self, on: RawConnection, group: str, offset: int) -> int:
        topics = [{"name": self.topic, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
        async with asyncio.timeout(100):
            while True:
                answer = await self.ask(on, COMMIT_OFFSETS, group_id=group, topics=topics)
                code: int = answer.topics[0].partitions[0].error_code
                if code not in RETRIED:
                    return code
                await asyncio.sleep(0.01)

    def batch(self, sequence: int, value: bytes, identity: tuple[int, int] | None = None) -> bytes:
        producer_id, epoch = identity or self.identity
        return bytes(
            encode_values(
                [value],
                1_700_000_000_000,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
        )

    async def send(self, on: RawConnection, batch: bytes, partition: int = 0) -> int:
        data = [{"name": self.topic, "partition_data": [{"index": partition, "records": batch}]}]
        answer = await on.ask(
            PRODUCE,
            self.versions[PRODUCE],
            {"transactional_id": self.transactional_id, "acks": -1, "timeout": 10_000, "topic_data": data},
        )
        code: int = answer.responses[0].partition_responses[0].error_code
        return code


class Stage:
    """A topic of its own on the cluster, connections, and what a reader sees in the end."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self._open: list[RawConnection] = []

    async def connection(self) -> RawConnection:
        made = await RawConnection.open(self.cluster.kafka_bootstrap)
        self._open.append(made)
        return made

    async def producer(self, on: RawConnection, versions: dict[int, int]) -> Producer:
        made = Producer(versions, f"tx-{self.topic}", self.topic)
        async with asyncio.timeout(100):
            for kind, key in ((1, made.transactional_id), (0, f"g-{self.topic}")):
                while (await on.ask(FIND, 3, {"key": key, "key_type": kind})).error_code:
                    await asyncio.sleep(0.02)
        await made.init(on)
        return made

    async def committed(self, count: int) -> list[bytes]:
        """Through the other protocol: what is committed, read to the end of the log, so that nothing can hang."""

        def read() -> list[bytes]:
            found: list[bytes] = []
            with tidelog.Consumer(self.cluster.bootstrap, isolation_level="read_committed") as consumer:
                at = tidelog.TopicPartition(self.topic, 0)
                consumer.assign([at])
                consumer.seek_to_beginning()
                for _ in range(100):
                    found += [bytes(record.value or b"") for record in consumer.poll(timeout=0.1)]
                    if len(found) >= count and consumer.position(at) >= self.high_watermark():
                        break
                assert consumer.position(at) >= self.high_watermark(), "something is open that nobody ends"
            return found

        return await asyncio.to_thread(read)

    def high_watermark(self) -> int:
        with tidelog.Consumer(self.cluster.bootstrap) as consumer:
            at = tidelog.TopicPartition(self.topic, 0)
            return consumer.end_offsets([at])[at]

    async def close(self) -> None:
        for each in self._open:
            await each.close()


@pytest.fixture
async def stage(kafka_cluster: Cluster, topic_name: Callable[..., str]) -> AsyncIterator[Stage]:
    topic = topic_name("late")
    await asyncio.to_thread(kafka_cluster.create_topic, topic, partitions=2)
    made = Stage(kafka_cluster, topic)
    yield made
    await made.close()


@pytest.mark.parametrize("committed", [True, False])
async def test_a_late_end_leaves_the_next_transaction_alone(stage: Stage, committed: bool) -> None:
    """EndTxn is on its way on a connection; the client asks on the next one, and begins again. Without the rule the
    late one would end the second transaction between its two records."""
    left, lives = await stage.connection(), await stage.connection()
    producer = await stage.producer(left, FIRST)
    assert await producer.add(left) == 0
    assert await producer.send(lives, producer.batch(0, b"one")) == 0
    assert await producer.end(lives, committed=committed) == 0
    assert await producer.add(lives) == 0
    assert await producer.send(lives, producer.batch(1, b"two")) == 0
    with pytest.raises(Closed):
        await producer.end(left, committed=committed)
    assert await producer.send(lives, producer.batch(2, b"three")) == 0
    assert await producer.end(lives) == 0
    assert await stage.committed(2) == [*([b"one"] if committed else []), b"two", b"three"]


async def test_a_late_add_and_late_offsets_are_not_taken_in(stage: Stage) -> None:
    left, lives = await stage.connection(), await stage.connection()
    producer = await stage.producer(left, FIRST)
    group = f"g-{stage.topic}"
    assert await producer.add(lives) == 0
    assert await producer.end(lives, committed=False) == 0
    assert await producer.add(lives) == 0
    with pytest.raises(Closed):
        await producer.add(left, 1)
    again = await stage.connection()
    with pytest.raises(Closed):
        await producer.add_offsets(left, group)
    assert await producer.send(lives, producer.batch(0, b"one")) == 0
    refused = await producer.commit_offsets(again, group, 5)
    assert refused == ErrorCode.TRANSACTION_ABORTABLE, "the group takes no part"
    assert await producer.end(lives) == 0
    assert await stage.committed(1) == [b"one"]


async def test_whoever_lives_comes_on_a_new_connection_and_goes_on(stage: Stage) -> None:
    """A client with two connections: the older one is closed under it, and the one that it opens counts."""
    older, newer = await stage.connection(), await stage.connection()
    producer = await stage.producer(older, FIRST)
    assert await producer.add(newer) == 0
    with pytest.raises(Closed):
        await producer.add(older, 1)
    third = await stage.connection()
    assert await producer.add(third, 1) == 0
    assert await producer.send(third, producer.batch(0, b"one")) == 0
    assert await producer.end(third) == 0
    assert await stage.committed(1) == [b"one"]


@pytest.mark.parametrize("versions", [FIRST, SECOND], ids=["first", "second"])
@pytest.mark.parametrize("committed", [True, False])
async def test_a_late_produce_opens_nothing(stage: Stage, versions: dict[int, int], committed: bool) -> None:
    """It comes when its transaction has ended, and again when the next one is open elsewhere."""
    left, lives = await stage.connection(), await stage.connection()
    producer = await stage.producer(lives, versions)
    first = producer.identity
    if versions is FIRST:
        assert await producer.add(lives) == 0
    assert await producer.send(lives, producer.batch(0, b"one")) == 0
    assert await producer.end(lives, committed=committed) == 0
    late = producer.batch(1, b"late", first)
    refused = {ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH}
    assert await producer.send(left, late) in refused
    if versions is FIRST:
        assert await producer.add(lives, 1) == 0
    assert await producer.send(lives, producer.batch(0, b"elsewhere"), partition=1) == 0
    assert await producer.send(left, late) in refused
    assert await producer.end(lives) == 0
    assert await stage.committed(int(committed)) == [b"one"] * committed


@pytest.mark.parametrize("versions", [FIRST, SECOND], ids=["first", "second"])
async def test_what_comes_twice_counts_once(stage: Stage, versions: dict[int, int]) -> None:
    """The copies come on a connection of their own, within the transaction, and once it has ended."""
    lives, copies = await stage.connection(), await stage.connection()
    producer = await stage.producer(lives, versions)
    first = producer.identity
    if versions is FIRST:
        assert await producer.add(lives) == 0
        assert await producer.add(copies) == 0
        lives, copies = copies, await stage.connection()
    batch = producer.batch(0, b"one")
    assert await producer.send(lives, batch) == 0
    assert await producer.send(copies, batch) == 0
    assert await producer.end(lives) == 0
    again = Producer(versions, producer.transactional_id, stage.topic)
    again.identity = first
    assert await again.end(copies) == 0, "the same outcome is the same answer"
    again.identity = first
    assert await again.end(copies, committed=False) == ErrorCode.INVALID_TXN_STATE
    assert await stage.committed(1) == [b"one"]


async def test_of_the_second_protocol_whatever_is_late_meets_a_newer_epoch(stage: Stage) -> None:
    left, lives = await stage.connection(), await stage.connection()
    producer = await stage.producer(lives, SECOND)
    first = producer.identity
    assert await producer.send(lives, producer.batch(0, b"one")) == 0
    assert await producer.end(lives) == 0
    assert producer.identity == (first[0], first[1] + 1)
    assert await producer.send(lives, producer.batch(0, b"two")) == 0
    late = Producer(SECOND, producer.transactional_id, stage.topic)
    late.identity = first
    assert await late.end(left, committed=False) == ErrorCode.PRODUCER_FENCED
    assert await late.end(left) == ErrorCode.PRODUCER_FENCED
    assert await late.send(left, late.batch(1, b"late")) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await late.commit_offsets(left, f"g-{stage.topic}", 7) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await producer.end(lives) == 0
    assert await stage.committed(2) == [b"one", b"two"]


async def test_a_batch_that_overtook_the_first_comes_again_behind_it(stage: Stage) -> None:
    """The first batch is sent before its partition is added: it is refused, and comes again. The next one would be
    taken meanwhile, as nothing is known of the producer."""
    lives = await stage.connection()
    producer = await stage.producer(lives, FIRST)
    assert await producer.send(lives, producer.batch(0, b"one")) == ErrorCode.INVALID_TXN_STATE
    assert await producer.add(lives) == 0
    assert await producer.send(lives, producer.batch(1, b"two")) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await producer.send(lives, producer.batch(0, b"one")) == 0
    assert await producer.send(lives, producer.batch(1, b"two")) == 0
    assert await producer.end(lives) == 0
    assert await stage.committed(2) == [b"one", b"two"]


async def test_the_gap_at_the_port(stage: Stage) -> None:
    """docs/transactions.md, "What remains", 1: nothing tells the late batch from one of the second transaction."""
    left, lives = await stage.connection(), await stage.connection()
    producer = await stage.producer(lives, FIRST)
    late = producer.batch(0, b"lost")
    assert await producer.add(lives) == 0
    assert await producer.end(lives, committed=False) == 0
    assert await producer.add(lives) == 0
    assert await producer.send(left, late) == 0
    assert await producer.send(lives, producer.batch(0, b"meant")) == 0
    assert await producer.end(lives) == 0
    assert await stage.committed(1) == [b"lost"]


async def test_without_the_gap_after_an_abort_under_the_next_epoch(stage: Stage) -> None:
    left, lives = await stage.connection(), await stage.connection()
    producer = await stage.producer(lives, FIRST)
    late = producer.batch(0, b"lost")
    assert await producer.add(lives) == 0
    assert await producer.end(lives, committed=False) == 0
    await producer.init(lives)
    assert await producer.add(lives) == 0
    assert await producer.send(left, late) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await producer.send(lives, producer.batch(0, b"meant")) == 0
    assert await producer.end(lives) == 0
    assert await stage.committed(1) == [b"meant"]
