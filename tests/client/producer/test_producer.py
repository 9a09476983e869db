"""The producer against a scripted broker: order, bounds, hooks and errors."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Any

import pytest

from tests.client.scripted_broker import ScriptedCluster
from tests.virtual_time import LoopClock, run_virtual
from tidelog.aio import Producer
from tidelog.client.config.interceptors import ProducerInterceptor, ProducerRecord
from tidelog.client.config.serializers import json_serializer, string_serializer
from tidelog.client.delivery import RecordMetadata
from tidelog.client.errors import (
    BrokerNotAvailableError,
    BufferExhaustedError,
    ClientClosedError,
    ConfigError,
    IllegalStateError,
    InvalidTopicError,
    RecordTooLargeError,
    RequestTimedOutError,
    SerializationError,
    UnknownTopicOrPartitionError,
    exception_for,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.hashes.key_partition import partition_for_key
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.decoder import decode_records


def producer(cluster: ScriptedCluster, **settings: Any) -> Producer:
    return Producer(cluster.bootstrap, _network=cluster.network(), _rng=random.Random(1), **settings)


def numbers(cluster: ScriptedCluster, topic: str = "t") -> dict[int, list[int]]:
    """What each partition's log holds."""
    return {
        number: [int(value) for value in partition.values() if value is not None]
        for (name, number), partition in cluster.partitions.items()
        if name == topic
    }


def assert_each_once_and_in_order(cluster: ScriptedCluster, count: int, topic: str = "t") -> None:
    found = numbers(cluster, topic)
    assert sorted(n for values in found.values() for n in values) == list(range(count))
    for partition, values in found.items():
        assert values == sorted(values), f"partition {partition} is out of order"


async def test_a_record_and_its_metadata(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        first = await p.send("one", b"v", key=b"k", headers=[("h", b"x"), ("n", None)], timestamp_ms=42)
        assert await first == RecordMetadata("one", 0, 0, 42)
        second = await p.send_and_wait("one", None, key=b"k", partition=0)
        assert second.offset == 1
        assert first.done()
        assert first.result() == RecordMetadata("one", 0, 0, 42)
    records = [r for data in cluster.partitions["one", 0].batches for r in decode_records(Batch(memoryview(data)))]
    assert [(r.key, r.value, r.headers, r.timestamp == 42) for r in records] == [
        (b"k", b"v", (("h", b"x"), ("n", None)), True),
        (b"k", None, (), False),
    ]


async def test_records_with_a_key_go_where_java_puts_them(cluster: ScriptedCluster) -> None:
    keys = [b"key-%d" % i for i in range(50)]
    async with producer(cluster) as p:
        sent = [await p.send("t", b"v", key=key) for key in keys]
        for key, future in zip(keys, sent, strict=True):
            assert (await future).partition == partition_for_key(key, 3)


async def test_records_without_a_key_stick_to_a_partition_for_a_batch_and_reach_all(cluster: ScriptedCluster) -> None:
    async with producer(cluster, batch_size=1_000) as p:
        for i in range(2_000):
            await p.send("t", b"%d" % i)
        await p.flush()
    assert_each_once_and_in_order(cluster, 2_000)
    assert all(len(values) > 200 for values in numbers(cluster).values())
    batches = sum(len(p.batches) for p in cluster.partitions.values())
    assert batches < 2_000 / 20


async def test_a_node_that_comes_back_at_another_address_is_sent_to_there() -> None:
    cluster = ScriptedCluster(nodes=2)
    cluster.topic("one", 1)
    await cluster.start()
    leader = cluster.partitions["one", 0].leader
    async with producer(cluster, linger_ms=0, retry_backoff_ms=1, reconnect_backoff_ms=1) as p:
        await p.send_and_wait("one", b"a")
        await cluster.kill(leader)
        cluster.ports[leader] = 9_100
        await cluster.start_node(leader)
        async with asyncio.timeout(10):
            await p.send_and_wait("one", b"b")
    assert cluster.partitions["one", 0].values() == [b"a", b"b"]
    await cluster.stop()


@pytest.mark.parametrize("key", [None, b"k"])
async def test_no_batch_grows_beyond_a_request(cluster: ScriptedCluster, key: bytes | None) -> None:
    async with producer(cluster, batch_size=300, linger_ms=50, max_request_size=1_000) as p:
        for _ in range(40):
            await p.send("one", b"x" * 40, key)
        await p.flush()
    sizes = [len(batch) for found in cluster.partitions.values() for batch in found.batches]
    assert len(sizes) >= 3
    assert max(sizes) <= 1_000


async def test_small_records_share_a_request_when_they_linger(cluster: ScriptedCluster) -> None:
    async with producer(cluster, linger_ms=50) as p:
        for i in range(300):
            await p.send("t", b"%d" % i, partition=i % 3)
        await p.flush()
    assert cluster.produce_frames <= 3
    assert_each_once_and_in_order(cluster, 300)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_compression(cluster: ScriptedCluster, codec: str) -> None:
    async with producer(cluster, compression_type=codec) as p:
        for i in range(500):
            await p.send("one", b"%d" % i, key=b"k")
    (batch, *_) = (Batch(memoryview(data)) for data in cluster.partitions["one", 0].batches)
    assert batch.compression.kafka_name == codec
    assert_each_once_and_in_order(cluster, 500, "one")


@pytest.mark.parametrize("idempotent", [True, False])
async def test_at_most_five_in_flight_per_partition(cluster: ScriptedCluster, idempotent: bool) -> None:
    async with producer(cluster, batch_size=1, linger_ms=0, enable_idempotence=idempotent) as p:
        cluster.after = lambda *_: asyncio.sleep(0.001, ErrorCode.NONE)
        for i in range(200):
            await p.send("one", b"%d" % i)
        await p.flush()
    assert cluster.in_flight_most == 5
    assert_each_once_and_in_order(cluster, 200, "one")


async def test_every_way_to_send_may_alternate(cluster: ScriptedCluster) -> None:
    rng = random.Random(8)
    expected: dict[bytes | None, list[tuple[bytes | None, Any, int | None]]] = {}
    now = 1_000

    class Clock:
        def now_ms(self) -> int:
            return now

        def monotonic_ms(self) -> int:
            return int(asyncio.get_running_loop().time() * 1_000)

    p = Producer(cluster.bootstrap, _network=cluster.network(), _clock=Clock(), batch_size=500, linger_ms=1)
    async with p:
        for i in range(5_000):
            now += rng.random() < 0.3
            key = rng.choice([None, b"a", b"b"])
            value = rng.choice([b"%d" % i, b"%d" % i, None])
            headers = rng.choice([None, None, None, (("h", b"%d" % i),)])
            timestamp = rng.choice([None, None, None, 5])
            if rng.random() < 0.02:
                await asyncio.sleep(0)
            await p.send("one", value, key, headers=headers, timestamp_ms=timestamp)
            expected.setdefault(key, []).append((value, headers or (), timestamp or now))
    records = [r for d in cluster.partitions["one", 0].batches for r in decode_records(Batch(memoryview(d)))]
    found: dict[bytes | None, list[Any]] = {}
    for r in records:
        found.setdefault(r.key, []).append((r.value, r.headers, r.timestamp))
    assert found == expected


# --- bounds ---------------------------------------------------------------------------------------


async def test_a_full_buffer_blocks_max_block_ms_then_raises_and_goes_on_when_there_is_room(
    cluster: ScriptedCluster,
) -> None:
    gate = asyncio.get_running_loop().create_future()
    cluster.judge = lambda *_: asyncio.shield(gate)
    p = producer(cluster, buffer_memory=10_000, batch_size=1_000, max_block_ms=100)
    async with p:
        queued = 0
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def fill() -> None:
            nonlocal queued, began
            while True:
                began = loop.time()
                await p.send("t", b"%0100d" % queued)
                queued += 1

        with pytest.raises(BufferExhaustedError, match="buffer_memory = 10000 within max_block_ms = 100"):
            await fill()
        assert 0.09 < loop.time() - began < 2
        assert 60 < queued <= 100
        gate.set_result(ErrorCode.NONE)
        await p.send("t", b"%0100d" % queued)
        await p.flush()
        assert p.metrics()["buffer-exhausted-total"] == 1
    assert_each_once_and_in_order(cluster, queued + 1)


async def test_a_full_buffer_lets_everything_through_in_time(cluster: ScriptedCluster) -> None:
    async with producer(cluster, buffer_memory=5_000, batch_size=500) as p:
        for i in range(5_000):
            await p.send("t", b"%d" % i)
        await p.flush()
        assert p.metrics()["buffer-exhausted-wait-total"] > 0
        assert p._core.accumulator.memory_free == 5_000
        assert p._core.accumulator.batches == 0
    assert_each_once_and_in_order(cluster, 5_000)


def test_the_delivery_timeout_is_kept_and_the_producer_goes_on() -> None:
    async def main() -> None:
        cluster = ScriptedCluster(nodes=1)
        cluster.topic("one", 1)
        await cluster.start()
        loop = asyncio.get_running_loop()
        p = Producer(cluster.bootstrap, _network=cluster.network(), _clock=LoopClock())
        await p.start()
        await p.send_and_wait("one", b"0")
        never: asyncio.Future[ErrorCode] = loop.create_future()
        cluster.judge = lambda *_: asyncio.shield(never)
        began = loop.time()
        late = await p.send("one", b"1")
        with pytest.raises(RequestTimedOutError, match="delivery_timeout_ms = 120000; they may have been written"):
            await late
        assert 119.9 < loop.time() - began < 121
        cluster.judge = None
        assert (await p.send_and_wait("one", b"2")).partition == 0
        assert p._core.accumulator.memory_free == p._core.config.buffer_memory
        await p.close()
        never.cancel()
        await cluster.stop()

    run_virtual(main())


def test_the_delivery_timeout_holds_for_what_was_never_sent() -> None:
    async def main() -> None:
        cluster = ScriptedCluster(nodes=1)
        cluster.topic("one", 1)
        await cluster.start()
        p = Producer(
            cluster.bootstrap,
            _network=cluster.network(),
            _clock=LoopClock(),
            delivery_timeout_ms=10_000,
            request_timeout_ms=2_000,
        )
        await p.start()
        await p.send_and_wait("one", b"0")
        await cluster.kill(1)
        lost = await p.send("one", b"1")
        with pytest.raises(
            RequestTimedOutError, match=r"1 records not acknowledged within delivery_timeout_ms = 10000.*\(no broker "
        ):
            await lost
        await p.close()
        await cluster.stop()

    run_virtual(main())


async def test_an_oversized_record_is_refused_before_anything_is_sent(cluster: ScriptedCluster) -> None:
    async with producer(cluster, max_request_size=1_000) as p:
        with pytest.raises(RecordTooLargeError, match="at most max_request_size = 1000 bytes"):
            await p.send("one", b"x" * 1_000)
        with pytest.raises(RecordTooLargeError):
            await p.send_many("one", [b"small", b"x" * 1_000])
        assert cluster.produce_frames == 0
        overhead = 0
        try:
            await p.send("one", b"x" * 1_000)
        except RecordTooLargeError as error:
            overhead = int(str(error).rpartition(" ")[2]) - 1_000
        await p.send_and_wait("one", b"x" * (1_000 - overhead))


async def test_close_flushes(cluster: ScriptedCluster) -> None:
    p = producer(cluster, linger_ms=10_000)
    await p.start()
    futures = [await p.send("t", b"%d" % i) for i in range(100)]
    await p.close()
    assert all(future.done() for future in futures)
    assert_each_once_and_in_order(cluster, 100)
    with pytest.raises(ClientClosedError):
        await p.send("t", b"more")
    await p.close()


async def test_close_is_bounded_and_fails_what_is_left(cluster: ScriptedCluster) -> None:
    gate = asyncio.get_running_loop().create_future()
    cluster.judge = lambda *_: asyncio.shield(gate)
    p = producer(cluster)
    await p.start()
    told: list[object] = []
    futures = [await p.send("t", b"%d" % i, on_delivery=lambda m, e: told.append(e)) for i in range(10)]
    began = asyncio.get_running_loop().time()
    await p.close(timeout=0.1)
    assert asyncio.get_running_loop().time() - began < 2
    for future in futures:
        with pytest.raises(ClientClosedError, match="closed before"):
            await future
    assert len(told) == 10
    gate.cancel()


async def test_flush_has_a_bound(cluster: ScriptedCluster) -> None:
    gate = asyncio.get_running_loop().create_future()
    cluster.judge = lambda *_: asyncio.shield(gate)
    async with producer(cluster) as p:
        sent = await p.send("t", b"0")
        with pytest.raises(RequestTimedOutError):
            await p.flush(0.05)
        gate.set_result(ErrorCode.NONE)
        await p.flush(5)
        assert sent.done()


async def test_a_request_stays_within_max_request_size(cluster: ScriptedCluster) -> None:
    async with producer(cluster, max_request_size=2_000, batch_size=900, linger_ms=20) as p:
        for i in range(3_000):
            await p.send("t", b"%0100d" % i, partition=i % 3)
    assert max(cluster.frame_sizes) < 2_200
    assert_each_once_and_in_order(cluster, 3_000)


# --- send_many ------------------------------------------------------------------------------------


async def test_send_many_spreads_batches_and_reports_ranges(cluster: ScriptedCluster) -> None:
    async with producer(cluster, bulk_batch_size=1_000) as p:
        result = await (await p.send_many("t", [b"%d" % i for i in range(5_000)]))
    assert result.count == 5_000
    assert sum(r.count for r in result.ranges) == 5_000
    assert [r.first for r in result.ranges] == sorted(r.first for r in result.ranges)
    assert_each_once_and_in_order(cluster, 5_000)
    for part, (low, high) in result.offsets().items():
        assert (low, high) == (0, cluster.partitions[part].next_offset - 1)
    for found in result.ranges:
        values = numbers(cluster)[found.partition][found.base_offset : found.base_offset + found.count]
        assert values == list(range(found.first, found.first + found.count))


async def test_send_many_with_keys_keeps_each_keys_order(cluster: ScriptedCluster) -> None:
    values = [b"%d" % i for i in range(3_000)]
    keys = [b"k%d" % (i % 7) for i in range(3_000)]
    async with producer(cluster, bulk_batch_size=1_000) as p:
        await (await p.send_many("t", values, keys=keys))
    assert_each_once_and_in_order(cluster, 3_000)
    for (name, number), partition in cluster.partitions.items():
        for data in partition.batches if name == "t" else ():
            for record in decode_records(Batch(memoryview(data))):
                assert record.key is not None
                assert partition_for_key(record.key, 3) == number


async def test_send_many_comes_after_what_was_sent_before(cluster: ScriptedCluster) -> None:
    async with producer(cluster, linger_ms=50) as p:
        for i in range(10):
            await p.send("one", b"%d" % i)
        many = await p.send_many("one", [b"%d" % i for i in range(10, 500)], partition=0)
        for i in range(500, 510):
            await p.send("one", b"%d" % i)
        await many
        await p.flush()
    assert numbers(cluster, "one")[0] == list(range(510))


async def test_send_many_says_how_much_was_queued_when_there_is_no_room(cluster: ScriptedCluster) -> None:
    gate = asyncio.get_running_loop().create_future()
    cluster.judge = lambda *_: asyncio.shield(gate)
    async with producer(cluster, buffer_memory=10_000, bulk_batch_size=1_000, batch_size=100, max_block_ms=50) as p:
        with pytest.raises(BufferExhaustedError) as raised:
            await p.send_many("t", [b"%0100d" % i for i in range(1_000)])
        (note,) = raised.value.__notes__
        queued = int(note.split()[0])
        assert 50 < queued < 100
        gate.set_result(ErrorCode.NONE)
    assert sum(len(v) for v in numbers(cluster).values()) == queued


async def test_send_many_of_nothing(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        assert (await (await p.send_many("t", []))).ranges == ()


async def test_send_many_raises_the_first_error_and_notes_how_many_failed(cluster: ScriptedCluster) -> None:
    cluster.judge = lambda *_: ErrorCode.INVALID_RECORD
    async with producer(cluster, bulk_batch_size=1_000) as p:
        with pytest.raises(type(exception_for(ErrorCode.INVALID_RECORD))) as raised:
            await (await p.send_many("t", [b"%d" % i for i in range(500)]))
        assert raised.value.__notes__ == ["500 of 500 records of one send_many failed"]


# --- users' hooks -----------------------------------------------------------------------------------


async def test_what_a_callback_raises_is_logged_and_loses_nothing(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    told = []

    def on_delivery(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        told.append((metadata, error))
        raise ValueError("from the user")

    with caplog.at_level(logging.ERROR, "tidelog"):
        async with producer(cluster) as p:
            for i in range(100):
                await p.send("t", b"%d" % i, on_delivery=on_delivery)
    assert_each_once_and_in_order(cluster, 100)
    assert [error for _, error in told] == [None] * 100
    assert {m.offset for m, _ in told if m is not None and m.partition == 0} == set(range(len(numbers(cluster)[0])))
    assert "from the user" in caplog.text


async def test_a_callback_may_send(cluster: ScriptedCluster) -> None:
    more: list[asyncio.Task[Any]] = []
    async with producer(cluster, linger_ms=0) as p:

        def again(_m: object, _e: object) -> None:
            more.append(asyncio.ensure_future(p.send("one", b"1")))

        await (await p.send("one", b"0", on_delivery=again))
        await (await more[0])
    assert numbers(cluster, "one") == {0: [0, 1]}


async def test_serializers(cluster: ScriptedCluster) -> None:
    async with producer(cluster, key_serializer=string_serializer, value_serializer=json_serializer) as p:
        await p.send_and_wait("one", {"a": [1, "ü"]}, key="schlüssel")
        await (await p.send_many("one", [{"b": 2}, None]))
        with pytest.raises(SerializationError, match="value for topic one: TypeError"):
            await p.send("one", object())
    records = [r for d in cluster.partitions["one", 0].batches for r in decode_records(Batch(memoryview(d)))]
    assert [(r.key, r.value) for r in records] == [
        ("schlüssel".encode(), '{"a":[1,"ü"]}'.encode()),
        (None, b'{"b":2}'),
        (None, None),
    ]


async def test_what_is_not_bytes_needs_a_serializer(cluster: ScriptedCluster) -> None:
    async with producer(cluster) as p:
        with pytest.raises(SerializationError, match="expected bytes or None; without a value_serializer, found str"):
            await p.send("one", "text")
        with pytest.raises(SerializationError, match="found int"):
            await p.send("one", b"v", key=3)
        with pytest.raises(SerializationError, match="header 'h': expected bytes or None, found str"):
            await p.send("one", b"v", headers=[("h", "text")])  # type: ignore[list-item]
        assert (await p.send_and_wait("one", bytearray(b"0"))).offset == 0


async def test_interceptors(cluster: ScriptedCluster) -> None:
    class Tagging(ProducerInterceptor):
        heard: list[RecordMetadata | None] = []  # noqa: RUF012
        life: list[Any] = []  # noqa: RUF012

        def configure(self, settings: Mapping[str, Any]) -> None:
            self.life.append((settings["client_id"], settings["linger_ms"]))

        def close(self) -> None:
            self.life.append("closed")
            raise ValueError("ignored")

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return ProducerRecord(record.topic, b"<" + record.value + b">", partition=0)

        def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
            self.heard.append(metadata)
            raise ValueError("ignored")

    class Failing(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            raise ValueError("ignored")

    async with producer(cluster, client_id="me", linger_ms=7, interceptor_classes=[Tagging, Failing()]) as p:
        assert Tagging.life == [("me", 7)]
        sent = await p.send_and_wait("t", b"v")
        with pytest.raises(IllegalStateError, match="would bypass this producer's interceptors"):
            await p.send_many("t", [b"v"])
    await p.close()
    assert cluster.partitions["t", 0].values() == [b"<v>"]
    assert Tagging.heard == [sent]
    assert Tagging.life[1:] == ["closed"]


async def test_an_interceptor_that_cannot_be_one_is_refused(cluster: ScriptedCluster) -> None:
    class Typo:
        def on_sent(self, record: ProducerRecord) -> ProducerRecord:
            return record

    class Unwilling(ProducerInterceptor):
        def configure(self, settings: Mapping[str, Any]) -> None:
            raise LookupError("no such tracer")

    with pytest.raises(ConfigError, match="interceptor_classes: expected classes or objects of ProducerInterceptor"):
        producer(cluster, interceptor_classes=[Typo])
    with pytest.raises(LookupError, match="no such tracer"):
        producer(cluster, interceptor_classes=[Unwilling])


async def test_a_partitioner_of_the_users_own(cluster: ScriptedCluster) -> None:
    class Last:
        def partition(self, topic: str, key: Any, value: Any, partitions: Any) -> int | None:
            return {b"last": partitions[-1], b"wrong": 99}.get(key)

    async with producer(cluster, partitioner_class=Last) as p:
        assert (await p.send_and_wait("t", b"1", key=b"last")).partition == 2
        assert (await p.send_and_wait("t", b"1", key=b"else")).partition == partition_for_key(b"else", 3)
        with pytest.raises(ValueError, match="the partitioner chose 99; expected 0 to 2"):
            await p.send("t", b"1", key=b"wrong")


# --- asking for what is not there -------------------------------------------------------------------


async def test_an_unknown_topic(cluster: ScriptedCluster) -> None:
    async with producer(cluster, max_block_ms=150, retry_backoff_ms=10) as p:
        with pytest.raises(UnknownTopicOrPartitionError, match="nowhere: no such"):
            await p.send("nowhere", b"v")
        with pytest.raises(InvalidTopicError):
            await p.send("", b"v")
        with pytest.raises(ValueError, match="expected 0 to 2 of topic t, found 7"):
            await p.send("t", b"v", partition=7)
        with pytest.raises(ValueError, match="partition: expected 0 or more, found -1"):
            await p.send("t", b"v", partition=-1)


async def test_a_topic_that_appears_in_time(cluster: ScriptedCluster) -> None:
    async with producer(cluster, retry_backoff_ms=10) as p:
        sending = asyncio.ensure_future(p.send("late", b"0"))
        await asyncio.sleep(0.05)
        cluster.topic("late")
        assert (await (await sending)).offset == 0


async def test_no_broker_at_all(cluster: ScriptedCluster) -> None:
    p = Producer("mem:1", _network=cluster.network(), max_block_ms=150)
    async with p:
        with pytest.raises(BrokerNotAvailableError, match="mem:1: connection refused"):
            await p.send("t", b"v")


async def test_more_partitions_are_used_once_they_are_known(cluster: ScriptedCluster) -> None:
    async with producer(cluster, metadata_max_age_ms=10) as p:
        await p.send_and_wait("one", b"0")
        cluster.topic("one", 4)
        async with asyncio.timeout(5):
            while len(await p.partitions_for("one")) < 4:
                await asyncio.sleep(0.005)
        assert (await p.send_and_wait("one", b"0", partition=3)).partition == 3


async def test_acks_0_reports_no_offset(cluster: ScriptedCluster) -> None:
    async with producer(cluster, acks=0) as p:
        assert not p._core.config.enable_idempotence
        assert (await p.send_and_wait("one", b"0")).offset == -1
        await p.flush()
    assert numbers(cluster, "one") == {0: [0]}


async def test_acks_1(cluster: ScriptedCluster) -> None:
    async with producer(cluster, acks=1) as p:
        assert (await p.send_and_wait("one", b"0")).offset == 0
    assert not Batch(memoryview(cluster.partitions["one", 0].batches[0])).has_producer_id


async def test_use_before_start(cluster: ScriptedCluster) -> None:
    p = producer(cluster)
    with pytest.raises(IllegalStateError, match="start"):
        await p.send("t", b"v")
    await p.close()


async def test_a_partition_that_brokers_hear_of_late_is_waited_for(cluster: ScriptedCluster) -> None:
    async with producer(cluster, retry_backoff_ms=1) as p:
        await p.send_and_wait("one", b"0")
        sending = asyncio.create_task(p.send_and_wait("one", b"0", partition=3))
        await asyncio.sleep(0.5)
        assert not sending.done()
        cluster.topic("one", 4)
        assert (await sending).partition == 3


async def test_a_partition_that_was_added_is_found_when_it_is_named(cluster: ScriptedCluster) -> None:
    async with producer(cluster, retry_backoff_ms=1) as p:
        await p.send_and_wait("one", b"0")
        cluster.topic("one", 4)
        assert (await p.send_and_wait("one", b"0", partition=3)).partition == 3
        with pytest.raises(ValueError, match="expected 0 to 3 of topic one, found 4"):
            await p.send("one", b"0", partition=4)
        with pytest.raises(ValueError, match="expected 0 to 3 of topic one, found 4"):
            await p.send_many("one", [b"0"], partition=4)


async def test_a_topic_that_is_not_used_is_forgotten(cluster: ScriptedCluster) -> None:
    async with producer(cluster, metadata_max_age_ms=10, retry_backoff_ms=1) as p:
        await p.send_and_wait("one", b"0")
        p._core.accumulator.topics["one"].last_used_ms -= 300_001
        async with asyncio.timeout(5):
            while "one" in p._core.accumulator.topics or "one" in p._core.cluster.cache.topics:
                await asyncio.sleep(0.005)
        assert (await p.send_and_wait("one", b"1")).offset == 1


async def test_a_topic_that_was_deleted_is_an_error_again(cluster: ScriptedCluster) -> None:
    async with producer(cluster, metadata_max_age_ms=10, retry_backoff_ms=1, max_block_ms=200) as p:
        await p.send_and_wait("one", b"0")
        cluster.metadata_hidden.add("one")
        async with asyncio.timeout(5):
            while "one" in p._core.accumulator.topics:
                await asyncio.sleep(0.005)
        with pytest.raises(UnknownTopicOrPartitionError):
            await p.send("one", b"1")


def test_a_broker_that_does_not_answer_does_not_hold_up_metadata() -> None:
    async def main() -> None:
        for seed in range(6):
            cluster = ScriptedCluster(nodes=3)
            cluster.topic("one")
            await cluster.start()
            for mute in (2, 3):
                cluster.fabric.cut("client", f"node{mute}")
            p = Producer(cluster.bootstrap, _network=cluster.network(), _clock=LoopClock(), _rng=random.Random(seed))
            await p.start()
            began = asyncio.get_running_loop().time()
            await p.send_and_wait("one", b"0")
            assert asyncio.get_running_loop().time() - began < 3
            await p.close()
            await cluster.stop()

    run_virtual(main())


async def test_a_bug_in_the_sender_leaves_nobody_waiting(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = producer(cluster, linger_ms=50)
    await p.start()
    sent = await p.send("one", b"0")

    def broken(*_: object) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(p._core.sender, "_step", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        await sent
    with pytest.raises(ClientClosedError):
        await p.send("one", b"1")
    assert "sender failed" in caplog.text
    await p.close()
