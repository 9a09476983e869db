"""Columns through the producers and a sink's writers: into the one accumulator, with its order, bounds and errors."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.client.scripted_broker import ScriptedCluster
from tidelog.aio import Producer
from tidelog.aio import SinkWriter as AsyncSinkWriter
from tidelog.client.config.serializers import string_serializer
from tidelog.client.errors import (
    BufferExhaustedError,
    ClientClosedError,
    IllegalStateError,
    InvalidTopicError,
    RecordTooLargeError,
    TidelogError,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.hashes.key_partition import partition_for_key
from tidelog.model.ids import TopicPartition
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.records.sent_columns import BlobView, NumberView, RecordColumns
from tidelog.testing import Cluster
from tidelog.testing.async_cluster import AsyncCluster


def producer(cluster: ScriptedCluster, **settings: Any) -> Producer:
    return Producer(cluster.bootstrap, _network=cluster.network(), _rng=random.Random(1), **settings)


def blobs(column: Sequence[bytes]) -> BlobView:
    ends = [0]
    for item in column:
        ends.append(ends[-1] + len(item))
    return BlobView(struct.pack(f"={len(ends)}i", *ends), b"".join(column))


def ints(column: Sequence[int], code: str = "i") -> NumberView:
    return NumberView(struct.pack(f"={len(column)}{code}", *column))


def counted(start: int, stop: int, width: int = 0, **more: Any) -> RecordColumns:
    return RecordColumns(stop - start, blobs([b"%0*d" % (width, number) for number in range(start, stop)]), **more)


def numbers(cluster: ScriptedCluster, topic: str = "t") -> dict[int, list[int]]:
    """What each partition's log holds."""
    return {
        number: [int(value) for value in partition.values() if value is not None]
        for (name, number), partition in cluster.partitions.items()
        if name == topic
    }


def records(cluster: ScriptedCluster, topic: str = "t") -> list[tuple[int, Any]]:
    return [
        (number, record)
        for (name, number), partition in cluster.partitions.items()
        for data in (partition.batches if name == topic else ())
        for record in decode_records(Batch(memoryview(data)))
    ]


async def test_rows_are_spread_in_batches_and_keep_the_order_of_a_partition(cluster: ScriptedCluster) -> None:
    async with producer(cluster, bulk_batch_size=1_000, batch_size=100, compression_type="lz4") as p:
        bulk = await p.send_columns("t", counted(0, 5_000))
        result = await bulk
    assert result.count == sum(found.count for found in result.ranges) == 5_000
    found = numbers(cluster)
    assert sorted(number for log in found.values() for number in log) == list(range(5_000))
    assert all(log and log == sorted(log) for log in found.values())
    assert all(len(partition.batches) > 5 for (name, _), partition in cluster.partitions.items() if name == "t")


async def test_partition_column_then_key_then_any(cluster: ScriptedCluster) -> None:
    keys = [b"k%d" % (number % 7) for number in range(900)]
    named = NumberView(struct.pack("=900i", *[2] * 900), bytes([0b0001_0001]) * 113)
    async with producer(cluster) as p:
        await (await p.send_columns("t", counted(0, 900, keys=blobs(keys), partitions=named)))
        await (await p.send_columns("t", counted(900, 1_000, partitions=named), partition=1))
    for partition, record in records(cluster):
        number = int(record.value)
        if number >= 900:
            assert partition == 1
        else:
            assert partition == (partition_for_key(record.key, 3) if number % 4 else 2)
    assert all(log == sorted(log) for log in numbers(cluster).values())


async def test_times_are_the_rows_own_or_now(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        await (await p.send_columns("one", counted(0, 3, timestamps=ints([5_999, 7_000, 0], "q"))))
        before = p._core.clock.now_ms()
        await (await p.send_columns("one", counted(3, 4)))
    times = [record.timestamp for _, record in records(cluster, "one")]
    assert times[:3] == [5, 7, 0]
    assert before <= times[3] <= p._core.clock.now_ms()


async def test_what_was_sent_before_and_after_is_in_order(cluster: ScriptedCluster) -> None:
    async with producer(cluster, linger_ms=50) as p:
        for number in range(10):
            await p.send("one", b"%d" % number)
        bulk = await p.send_columns("one", counted(10, 500))
        for number in range(500, 510):
            await p.send("one", b"%d" % number)
        await bulk
        await p.flush()
    assert numbers(cluster, "one")[0] == list(range(510))


@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT])
async def test_retries_keep_order_and_sequences(cluster: ScriptedCluster, code: ErrorCode) -> None:
    chance = random.Random(7)
    cluster.judge = lambda *_: code if chance.random() < 0.3 else None
    async with producer(
        cluster, bulk_batch_size=1_000, batch_size=100, retry_backoff_ms=1, retry_backoff_max_ms=2
    ) as p:
        futures = [await p.send_columns("one", counted(start, start + 200, 10)) for start in range(0, 2_000, 200)]
        for bulk in futures:
            await bulk
    assert numbers(cluster, "one")[0] == list(range(2_000))


async def test_a_batch_that_a_broker_finds_too_large_is_split(cluster: ScriptedCluster) -> None:
    cluster.judge = lambda *found: ErrorCode.MESSAGE_TOO_LARGE if found[3].record_count > 60 else None
    async with producer(cluster) as p:
        await (await p.send_columns("one", counted(0, 500)))
        assert p.metrics()["batch-split-total"] > 5
    assert numbers(cluster, "one")[0] == list(range(500))


async def test_without_room_it_is_said_how_much_was_queued(cluster: ScriptedCluster) -> None:
    gate = asyncio.get_running_loop().create_future()
    cluster.judge = lambda *_: asyncio.shield(gate)
    async with producer(cluster, buffer_memory=10_000, bulk_batch_size=1_000, batch_size=100, max_block_ms=50) as p:
        with pytest.raises(BufferExhaustedError) as raised:
            await p.send_columns("t", counted(0, 1_000, 100))
        (note,) = raised.value.__notes__
        queued = int(note.split()[0])
        assert 50 < queued < 100
        assert note.endswith("of 1000 records were queued before")
        gate.set_result(ErrorCode.NONE)
    assert sum(len(log) for log in numbers(cluster).values()) == queued


async def test_it_waits_for_room_and_goes_on(cluster: ScriptedCluster) -> None:
    async with producer(cluster, buffer_memory=10_000, bulk_batch_size=1_000, batch_size=100) as p:
        await (await p.send_columns("t", counted(0, 1_000, 100)))
        assert p.metrics()["buffer-exhausted-wait-total"] > 0
        assert p._core.accumulator.memory_free == 10_000
    assert sum(len(log) for log in numbers(cluster).values()) == 1_000


async def test_part_of_them_is_not_committed(cluster: ScriptedCluster) -> None:
    settings: dict[str, Any] = {"buffer_memory": 40_000, "bulk_batch_size": 20_000, "max_block_ms": 50}
    gate = asyncio.get_running_loop().create_future()
    async with producer(cluster, transactional_id="columns", **settings) as p:
        await p.init_transactions()
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            await p.send_columns("one", counted(0, 1))
        await p.begin_transaction()
        cluster.judge = lambda *_: asyncio.shield(gate)
        with pytest.raises(TidelogError, match="buffer_memory"):
            await p.send_columns("one", counted(0, 100, 1_000))
        with pytest.raises(TidelogError, match="buffer_memory") as caught:
            await p.commit_transaction()
        assert caught.value.abortable
        gate.set_result(ErrorCode.NONE)
        await p.abort_transaction()


async def test_the_first_row_that_cannot_be_is_named_and_none_is_taken(cluster: ScriptedCluster) -> None:
    async with producer(cluster, max_request_size=1_000, retry_backoff_ms=1) as p:
        too_large = RecordColumns(3, blobs([b"1", b"x" * 990, b"x" * 999]))
        for columns, words in (
            (too_large, "row 1: .* max_request_size = 1000 .*, found 1072"),
            (counted(0, 2, partitions=ints([0, -3])), "row 1: partition: expected 0 or more, found -3"),
            (counted(0, 2, partitions=ints([0, 3])), "row 1: partition: expected 0 to 2 of topic t, found 3"),
            (counted(0, 2, timestamps=ints([0, -1], "q")), "row 1: timestamp: expected 0 µs or more, found -1"),
            (RecordColumns(1, BlobView(struct.pack("=2i", 0, 9), b"short")), "row 0: expected its data"),
            (RecordColumns(1, BlobView(b"", b"")), "expected 2 numbers"),
        ):
            kind = RecordTooLargeError if "max_request_size" in words else ValueError
            with pytest.raises(kind, match=words):
                await p.send_columns("t", columns)
        with pytest.raises(ValueError, match="partition: expected 0 or more, found -1"):
            await p.send_columns("t", counted(0, 1), partition=-1)
        with pytest.raises(InvalidTopicError):
            await p.send_columns("", counted(0, 1))
        assert cluster.produce_frames == 0
        assert (await (await p.send_columns("t", RecordColumns(0)))).ranges == ()
    with pytest.raises(ClientClosedError):
        await p.send_columns("t", counted(0, 1))


async def test_a_partition_that_was_added_is_found_when_a_row_names_it(cluster: ScriptedCluster) -> None:
    async with producer(cluster, retry_backoff_ms=1) as p:
        await p.send_and_wait("one", b"0")
        cluster.topic("one", 4)
        await (await p.send_columns("one", counted(1, 2, partitions=ints([3]))))
    assert numbers(cluster, "one")[3] == [1]


async def test_a_producer_that_must_see_each_record_refuses_columns(cluster: ScriptedCluster) -> None:
    class Mine:
        def partition(self, topic: str, key: object, value: object, partitions: object) -> int | None:
            return None

    refusing: list[tuple[dict[str, Any], str]] = [
        ({"partitioner_class": Mine}, "partitioner"),
        ({"key_serializer": string_serializer}, "serializer"),
    ]
    for settings, what in refusing:
        async with producer(cluster, **settings) as p:
            with pytest.raises(IllegalStateError, match=what):
                await p.send_columns("t", counted(0, 1))


# --- on clusters -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_node() -> Iterator[Cluster]:
    with Cluster() as found:
        yield found


def test_the_blocking_forms(one_node: Cluster) -> None:
    one_node.create_topic("columns", 1)
    with one_node.producer(buffer_memory=100_000, bulk_batch_size=20_000) as p:
        p.send_columns("columns", counted(0, 2_000, 100)).result(20)
        assert p.metrics()["buffer-exhausted-wait-total"] > 0
        with pytest.raises(ValueError, match="row 0: partition: expected 0 to 0 of topic columns, found 1"):
            p.send_columns("columns", counted(0, 1, partitions=ints([1])))
    with one_node.sink_ledger("columns") as ledger:
        job = ledger.new_job(0)
        with one_node.sink_writer(job) as writer:
            writer.send_columns("columns", RecordColumns(0))
            assert writer.prepare().attempt is None
        with one_node.sink_writer(job) as writer:
            writer.send_columns("columns", counted(2_000, 2_500))
            message = writer.prepare()
            assert message.rows == 500
            with pytest.raises(IllegalStateError, match="send_columns"):
                writer.send_columns("columns", counted(0, 1))
        ledger.commit_batch([message])
        with one_node.sink_writer(ledger.new_job(0)) as late:
            late.send_columns("columns", counted(0, 9))
            assert late.prepare().already_committed
    found: list[int] = []
    with one_node.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([TopicPartition("columns", 0)])
        while len(found) < 2_500:
            values = consumer.poll_values(20)
            assert values
            found += [int(value or b"") for value in values]
    assert found == list(range(2_500))


async def test_a_sinks_writer_for_asyncio() -> None:
    async with AsyncCluster() as running, running.sink_ledger("s") as ledger:
        await running.create_topic("t", 1)
        writer: AsyncSinkWriter
        async with running.sink_writer(ledger.new_job(0)) as writer:
            await writer.send_columns("t", counted(0, 50))
            message = await writer.prepare()
        assert message.rows == 50
        assert not (await ledger.commit_batch([message])).already_committed
