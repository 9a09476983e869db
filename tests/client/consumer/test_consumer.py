"""The consumer against a scripted broker: positions, fetching ahead, bounds, errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.client.scripted_broker import ScriptedCluster, fill
from tests.virtual_time import LoopClock, run_virtual
from tidelog.aio import Consumer, ConsumerInterceptor, HeaderFilter, OffsetAndTimestamp, Producer, TopicPartition
from tidelog.client.config.serializers import json_deserializer, string_deserializer
from tidelog.client.consumer import core
from tidelog.client.errors import (
    ClientClosedError,
    IllegalStateError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RecordDeserializationError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.record import ConsumerRecord
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch

ONE = TopicPartition("one", 0)
OTHER = TopicPartition("t", 1)


def consumer(cluster: ScriptedCluster, **settings: Any) -> Consumer:
    settings.setdefault("auto_offset_reset", "earliest")
    return Consumer(cluster.bootstrap, _network=cluster.network(), _rng=random.Random(1), **settings)


async def read(c: Consumer, count: int, **more: Any) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await c.poll(5, **more)
    return found


async def test_records_come_in_order_with_all_their_parts(cluster: ScriptedCluster) -> None:
    fill(cluster, 25)
    async with consumer(cluster) as c:
        c.assign([ONE])
        found = await read(c, 25)
        assert [r.offset for r in found] == list(range(25))
        assert found[7] == ConsumerRecord(7, 70, b"k7", b"7", (), "one", 0, 0)
        assert found[7].topic_partition == ONE
        assert await c.position(ONE) == 25
        assert await c.poll(0.02) == []
        fill(cluster, 1)
        (more,) = await c.poll(5)
        assert more.value == b"25"


async def test_max_poll_records_and_positions_within_a_batch(cluster: ScriptedCluster) -> None:
    fill(cluster, 30, per_batch=30)
    async with consumer(cluster, max_poll_records=7) as c:
        c.assign([ONE])
        assert [r.offset for r in await c.poll(5)] == list(range(7))
        assert await c.position(ONE) == 7
        assert [r.offset for r in await c.poll(5, max_records=2)] == [7, 8]
        assert [r.offset for r in await read(c, 21)] == list(range(9, 30))
        assert await c.position(ONE) == 30
        assert c.lag(ONE) == 0


async def test_a_filter_in_asyncio_passes_everything_that_a_broker_without_filters_sends(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "LOOKED_AT_MAX", 5)
    fill(cluster, 30)
    async with consumer(cluster, header_filter=HeaderFilter("h", ["x"])) as c:
        c.assign([ONE])
        assert await c.poll(1.0) == []
        assert await c.position(ONE) == 30
    async with consumer(cluster, header_filter=HeaderFilter("h", [None])) as c:
        c.assign([ONE])
        assert [r.offset for r in await read(c, 30)] == list(range(30))


async def test_seek_into_the_middle_of_a_batch(cluster: ScriptedCluster) -> None:
    fill(cluster, 30)
    async with consumer(cluster) as c:
        c.assign([ONE])
        c.seek(ONE, 17)
        assert [r.offset for r in await read(c, 13)] == list(range(17, 30))
        c.seek(ONE, 3)
        assert (await c.poll(5))[0].offset == 3
        c.seek(ONE, 28)
        batches = await c.poll_batches(5)
        assert [(b.base_offset, len(b), b.values()) for b in batches] == [(28, 2, [b"28", b"29"])]
        assert [r.offset for r in batches[0]] == [28, 29]
        c.seek(ONE, 29)
        assert await c.poll_values(5) == [b"29"]
        with pytest.raises(ValueError, match="found -3"):
            c.seek(ONE, -3)


async def test_poll_batches_after_poll_gives_what_poll_had_left(cluster: ScriptedCluster) -> None:
    fill(cluster, 30, per_batch=30)
    async with consumer(cluster) as c:
        c.assign([ONE])
        assert len(await c.poll(5, max_records=4)) == 4
        values: list[bytes | None] = []
        while len(values) < 26:
            values += await c.poll_values(5)
        assert values == [b"%d" % i for i in range(4, 30)]


async def test_beginning_end_and_times(cluster: ScriptedCluster) -> None:
    fill(cluster, 30)
    cluster.partitions["one", 0].log_start = 10
    async with consumer(cluster) as c:
        assert await c.beginning_offsets([ONE]) == {ONE: 10}
        assert await c.end_offsets([ONE]) == {ONE: 30}
        assert await c.offsets_for_times({ONE: 145}) == {ONE: OffsetAndTimestamp(15, 150, 0)}
        assert await c.offsets_for_times({ONE: 10_000}) == {ONE: None}
        with pytest.raises(ValueError, match="found -5"):
            await c.offsets_for_times({ONE: -5})
        c.assign([ONE])
        assert await c.position(ONE) == 10
        c.seek_to_end()
        assert await c.position(ONE) == 30
        c.seek_to_beginning(ONE)
        assert (await c.poll(5))[0].offset == 10


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 0), ("latest", 30), ("by_duration:PT0.2S", 10)])
async def test_where_a_consumer_starts(cluster: ScriptedCluster, reset: str, expected: int) -> None:
    class At300:
        def now_ms(self) -> int:
            return 300

        def monotonic_ms(self) -> int:
            return int(asyncio.get_running_loop().time() * 1_000)

    fill(cluster, 30)
    c = Consumer(cluster.bootstrap, _network=cluster.network(), _clock=At300(), auto_offset_reset=reset)
    async with c:
        c.assign([ONE])
        assert await c.position(ONE) == expected


async def test_a_seek_right_before_offsets_are_looked_up_leaves_other_partitions_alone(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another thread does it: after the fetcher has decided to look up, before the request is built."""
    fill(cluster, 30)
    spawn = Fetcher._spawn
    async with consumer(cluster) as c:

        def spawn_after_a_seek(fetcher: Fetcher, work: Coroutine[Any, Any, None]) -> None:
            monkeypatch.setattr(Fetcher, "_spawn", spawn)
            c.seek(ONE, 17)
            spawn(fetcher, work)

        monkeypatch.setattr(Fetcher, "_spawn", spawn_after_a_seek)
        c.assign([ONE, OTHER])
        async with asyncio.timeout(10):
            assert (await c.position(ONE), await c.position(OTHER)) == (17, 0)


async def test_by_duration_shorter_than_the_last_record_is_old_starts_at_the_end(cluster: ScriptedCluster) -> None:
    fill(cluster, 30)
    async with consumer(cluster, auto_offset_reset="by_duration:PT1S") as c:
        c.assign([ONE])
        assert await c.position(ONE) == 30


async def test_without_a_reset_policy_a_position_is_needed(cluster: ScriptedCluster) -> None:
    fill(cluster, 30)
    async with consumer(cluster, auto_offset_reset="none") as c:
        c.assign([ONE])
        with pytest.raises(NoOffsetForPartitionError, match="one-0: has no position"):
            await c.poll(5)
        c.seek(ONE, 5)
        assert (await c.poll(5))[0].offset == 5
        c.seek(ONE, 500)
        with pytest.raises(OffsetOutOfRangeError, match="found 500") as raised:
            await c.poll(5)
        assert raised.value.partitions == {ONE: 500}
        with pytest.raises(OffsetOutOfRangeError):
            await c.poll(5)
        c.seek(ONE, 29)
        assert (await c.poll(5))[0].offset == 29


async def test_out_of_range_goes_where_the_policy_says_after_what_was_fetched_ahead(cluster: ScriptedCluster) -> None:
    fill(cluster, 30)
    async with consumer(cluster, max_partition_fetch_bytes=1, max_poll_records=10) as c:
        c.assign([ONE])
        assert (await c.poll(5))[0].offset == 0
        async with asyncio.timeout(5):
            while not c._core.assignment.state(ONE).has_data:
                await asyncio.sleep(0.001)
        cluster.partitions["one", 0].log_start = 25  # what was fetched ahead is still good
        assert [r.offset for r in await c.poll(5)] == list(range(10, 20))
        assert (await c.poll(5))[0].offset in (20, 25)


async def test_pause_and_resume(cluster: ScriptedCluster) -> None:
    for partition in range(3):
        fill(cluster, 10, topic="t", partition=partition)
    parts = [TopicPartition("t", i) for i in range(3)]
    async with consumer(cluster) as c:
        c.assign(parts)
        c.pause(parts[1])
        assert c.paused() == {parts[1]}
        assert {r.partition for r in await read(c, 20)} == {0, 2}
        assert await c.poll(0.05) == []
        c.resume(parts[1])
        assert {r.partition for r in await read(c, 10)} == {1}
        assert c.paused() == set()


async def test_every_partition_has_its_turn(cluster: ScriptedCluster) -> None:
    for partition in range(3):
        fill(cluster, 300, topic="t", partition=partition)
    async with consumer(cluster, max_poll_records=10) as c:
        c.assign([TopicPartition("t", i) for i in range(3)])
        await asyncio.sleep(0.05)
        found = await read(c, 300)
        assert all(sum(r.partition == p for r in found) >= 60 for p in range(3))


async def test_a_new_assignment_keeps_what_stays(cluster: ScriptedCluster) -> None:
    for partition in range(3):
        fill(cluster, 10, topic="t", partition=partition)
    parts = [TopicPartition("t", i) for i in range(3)]
    async with consumer(cluster) as c:
        c.assign(parts[:2])
        await read(c, 20)
        c.assign([parts[1], ("t", 2)])
        assert c.assignment() == set(parts[1:])
        assert {(r.partition, r.offset) for r in await read(c, 10)} == {(2, i) for i in range(10)}
        assert await c.position(parts[1]) == 10
        with pytest.raises(IllegalStateError, match="t-0 is not assigned"):
            c.seek(parts[0], 1)
        with pytest.raises(ValueError, match="a partition from 0 on"):
            c.assign([("t", -1)])


async def test_iterating(cluster: ScriptedCluster) -> None:
    fill(cluster, 25)
    found = []
    async with consumer(cluster) as c:
        c.assign([ONE])
        async for record in c:
            found.append(record.offset)
            if len(found) == 25:
                break
    assert found == list(range(25))


async def test_an_iteration_goes_on_behind_what_was_polled_within_it(cluster: ScriptedCluster) -> None:
    fill(cluster, 25)
    found = []
    async with consumer(cluster) as c:
        c.assign([ONE])
        async for record in c:
            found.append(record.offset)
            if record.offset == 2:
                found += [each.offset for each in await c.poll(5, max_records=4)]
            if len(found) >= 25:
                break
    assert found == list(range(25))


async def test_control_batches_are_passed_over(cluster: ScriptedCluster) -> None:
    fill(cluster, 10)
    log = cluster.partitions["one", 0]
    marker = encode_control_batch(ControlKind.COMMIT, producer_id=1, producer_epoch=0, timestamp=0, coordinator_epoch=0)
    log.append(Batch(memoryview(marker)))
    fill(cluster, 5)
    async with consumer(cluster) as c:
        c.assign([ONE])
        assert [r.offset for r in await read(c, 15)] == [*range(10), *range(11, 16)]
        assert await c.position(ONE) == 16


# --- bounds and errors ------------------------------------------------------------------------------


async def test_what_is_fetched_ahead_is_bounded(cluster: ScriptedCluster) -> None:
    for partition in range(3):
        fill(cluster, 5_000, topic="t", partition=partition, per_batch=100)
    parts = [TopicPartition("t", i) for i in range(3)]
    batch = len(cluster.partitions["t", 0].batches[-1])
    async with consumer(cluster, max_partition_fetch_bytes=5 * batch) as c:
        c.assign(parts)
        async with asyncio.timeout(30):
            while not all(c._core.assignment.state(part).buffered_bytes for part in parts):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # time to fetch more than it may
        for part in parts:
            assert 0 < c._core.assignment.state(part).buffered_bytes <= 10 * batch
        assert len(await read(c, 15_000)) == 15_000
    async with consumer(cluster, max_partition_fetch_bytes=5 * batch, fetch_max_bytes=6 * batch) as c:
        c.assign(parts)
        async with asyncio.timeout(30):
            while not c._core.assignment.buffered_bytes:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # time to fetch more than it may
        assert c._core.assignment.buffered_bytes <= 3 * 6 * batch
        assert len(await read(c, 15_000)) == 15_000


async def test_an_unknown_topic_or_partition(cluster: ScriptedCluster) -> None:
    async with consumer(cluster, default_api_timeout_ms=100, retry_backoff_ms=10) as c:
        with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
            await c.partitions_for("nowhere")
        with pytest.raises(UnknownTopicOrPartitionError, match="one-5: expected a partition from 0 to 0"):
            await c.end_offsets([TopicPartition("one", 5)])
        assert [view.partition for view in await c.partitions_for("t")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (TopicPartition("nowhere", 0), "nowhere-0: no such"),
        (TopicPartition("one", 4), "one-4: expected a partition from 0 to 0"),
    ],
)
def test_an_unknown_assignment_is_an_error_after_a_while(at: TopicPartition, text: str) -> None:
    async def main() -> None:
        cluster = ScriptedCluster(nodes=1)
        cluster.topic("one")
        await cluster.start()
        c = Consumer(cluster.bootstrap, _network=cluster.network(), _clock=LoopClock(), auto_offset_reset="earliest")
        await c.start()
        c.assign([at])
        assert await c.poll(3) == []
        with pytest.raises(UnknownTopicOrPartitionError, match=text):
            await c.poll(60)
        await c.close()
        await cluster.stop()

    run_virtual(main())


async def test_position_has_a_bound(cluster: ScriptedCluster) -> None:
    async with consumer(cluster, retry_backoff_ms=10) as c:
        c.assign([TopicPartition("nowhere", 0)])
        with pytest.raises(RequestTimedOutError, match="no position within 100 ms"):
            await c.position(TopicPartition("nowhere", 0), 0.1)


async def test_deserializers(cluster: ScriptedCluster) -> None:
    async with Producer(cluster.bootstrap, _network=cluster.network()) as p:
        await p.send("one", b'{"a":1}', key=b"k")
        await p.send("one", None, key=b"k")
        await p.send("one", b"not json", key=b"k", headers=[("why", b"test")])
        await p.send("one", b"[2]", key=b"k")
    async with consumer(cluster, key_deserializer=string_deserializer, value_deserializer=json_deserializer) as c:
        c.assign([ONE])
        found: list[tuple[object, object]] = [(r.key, r.value) for r in await read(c, 2)]
        assert found == [("k", {"a": 1}), ("k", None)]
        for _ in range(2):
            with pytest.raises(
                RecordDeserializationError, match=r"value of one-0 at offset 2: JSON.*; seek past"
            ) as of:
                await c.poll(5)
            error = of.value
            assert (error.origin, error.topic_partition, error.offset) == ("value", ONE, 2)
            assert (error.key, error.value, error.headers) == (b"k", b"not json", (("why", b"test"),))
            assert error.timestamp > 0
        assert c.metrics()["records-consumed-total"] == 2, "those that were handed out"
        c.seek(ONE, 3)
        found = [(r.key, r.value) for r in await read(c, 1)]
        assert found == [("k", [2])]
        assert c.metrics()["records-consumed-total"] == 3


async def test_interceptors(cluster: ScriptedCluster) -> None:
    class Even(ConsumerInterceptor):
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            return [r for r in records if r.offset % 2 == 0]

    class Failing(ConsumerInterceptor):
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            raise ValueError("ignored")

    fill(cluster, 10)
    async with consumer(cluster, interceptor_classes=[Even, Failing()]) as c:
        c.assign([ONE])
        assert [r.offset for r in await read(c, 5)] == [0, 2, 4, 6, 8]


async def test_wakeup_ends_a_wait_or_the_next(cluster: ScriptedCluster) -> None:
    async with consumer(cluster) as c:
        c.assign([ONE])
        await c.position(ONE)
        waiting = asyncio.ensure_future(c.poll(60))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(c.wakeup)
        with pytest.raises(WakeupError, match="wakeup"):
            await asyncio.wait_for(waiting, 30)
        fill(cluster, 5)
        c.wakeup()
        with pytest.raises(WakeupError):
            await c.poll()
        assert [r.offset for r in await read(c, 5)] == list(range(5)), "no record was lost"
        c.assign([TopicPartition("nowhere", 0)])
        waiting_for = asyncio.ensure_future(c.position(TopicPartition("nowhere", 0), 60))
        await asyncio.sleep(0.01)
        c.wakeup()
        with pytest.raises(WakeupError):
            await asyncio.wait_for(waiting_for, 30)
    c.wakeup()


async def test_lag_is_among_the_metrics(cluster: ScriptedCluster) -> None:
    other = TopicPartition("t", 0)
    async with consumer(cluster, max_poll_records=2) as c:
        c.assign([ONE, other])
        assert "records-lag-max" not in c.metrics(), "nothing is known yet"
        fill(cluster, 10)
        fill(cluster, 5, topic="t")
        seen = await read(c, 4)
        while c.lag(ONE) is None or c.lag(other) is None:
            seen += await c.poll(1)
        found = c.metrics()
        assert found["one-0.records-lag"] == c.lag(ONE)
        assert found["t-0.records-lag"] == c.lag(other)
        assert found["one-0.records-lag"] + found["t-0.records-lag"] == 15 - len(seen)
        assert found["records-lag-max"] == max(found["one-0.records-lag"], found["t-0.records-lag"])
        await read(c, 15 - len(seen))
        assert c.metrics()["records-lag-max"] == 0
        c.assign([ONE])
        assert "t-0.records-lag" not in c.metrics()


async def test_use_out_of_turn(cluster: ScriptedCluster) -> None:
    c = consumer(cluster)
    with pytest.raises(IllegalStateError, match="start"):
        await c.poll()
    await c.start()
    with pytest.raises(IllegalStateError, match="assign"):
        await c.poll()
    c.assign([ONE])
    waiting = asyncio.ensure_future(c.poll(60))
    await asyncio.sleep(0.01)
    await c.close()
    with pytest.raises(ClientClosedError):
        await asyncio.wait_for(waiting, 5)
    with pytest.raises(ClientClosedError):
        c.seek(ONE, 0)
    await c.close()


async def test_a_topic_that_is_no_longer_assigned_is_forgotten(cluster: ScriptedCluster) -> None:
    fill(cluster, 5)
    async with consumer(cluster) as c:
        c.assign([ONE])
        await read(c, 5)
        c.assign([TopicPartition("t", 0)])
        async with asyncio.timeout(5):
            while "one" in c._core.cluster.cache.topics:
                await asyncio.sleep(0.005)


async def test_a_bug_in_the_fetcher_is_raised_by_poll(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consumer(cluster) as c:
        c.assign([ONE])
        await c.position(ONE)

        def broken(*_: object) -> int:
            raise RuntimeError("a bug")

        monkeypatch.setattr(c._core.fetcher, "_step", broken)
        with pytest.raises(RuntimeError, match="a bug"):
            await c.poll(5)
    assert "fetcher failed" in caplog.text
