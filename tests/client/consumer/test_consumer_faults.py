"""The consumer against a scripted broker: faults, corrupt batches, truncation (KIP-320)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.client.scripted_broker import ScriptedCluster, fill
from tests.virtual_time import LoopClock, run_virtual
from tidelog.aio import Consumer, TopicPartition
from tidelog.client.cluster.cluster import Cluster as ClientCluster
from tidelog.client.cluster.cluster import R
from tidelog.client.errors import CorruptRecordError, LogTruncationError, OffsetOutOfRangeError, SaslAuthenticationError
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, TopicId
from tidelog.proto.calls.api import OffsetForLeaderEpochRequest
from tidelog.proto.calls.request import Request
from tidelog.proto.transport.frames import FetchedPartition, FetchPartition

from .test_consumer import ONE, consumer, read

# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_missed_or_seen_twice_through_faults(cluster: ScriptedCluster, seed: int) -> None:
    rng = random.Random(seed)
    for partition in range(3):
        fill(cluster, 2_000, topic="t", partition=partition)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    async with consumer(
        cluster, max_partition_fetch_bytes=2_000, retry_backoff_ms=1, reconnect_backoff_ms=1, max_poll_records=50
    ) as c:
        c.assign([TopicPartition("t", i) for i in range(3)])
        async with asyncio.timeout(20):
            while sum(map(len, seen.values())) < 6_000:
                for record in await c.poll(1):
                    seen[record.partition].append(record.offset)
                if rng.random() < 0.1:
                    cluster.fabric.break_connections("client", f"node{rng.randint(1, 3)}")
                if rng.random() < 0.1:
                    cluster.move("t", rng.randrange(3), rng.randint(1, 3))
        assert c.metrics()["connection-lost-total"] > 0
        assert c.metrics()["records-consumed-total"] == 6_000
    assert seen == {p: list(range(2_000)) for p in range(3)}


def test_a_consumer_without_a_connection_for_a_minute_goes_on() -> None:
    async def main() -> None:
        cluster = ScriptedCluster(nodes=2)
        cluster.topic("one")
        await cluster.start()
        fill(cluster, 10)
        c = Consumer(cluster.bootstrap, _network=cluster.network(), _clock=LoopClock(), auto_offset_reset="earliest")
        await c.start()
        c.assign([ONE])
        await read(c, 10)
        for node in (1, 2):
            await cluster.kill(node)
        fill(cluster, 10)
        assert await c.poll(60) == []
        for node in (1, 2):
            await cluster.start_node(node)
        assert [r.offset for r in await read(c, 10)] == list(range(10, 20))
        await c.close()
        await cluster.stop()

    run_virtual(main())


def test_a_fetch_without_an_answer_is_given_up() -> None:
    async def main() -> None:
        cluster = ScriptedCluster(nodes=1)
        cluster.topic("one")
        await cluster.start()
        fill(cluster, 10)
        c = Consumer(
            cluster.bootstrap,
            _network=cluster.network(),
            _clock=LoopClock(),
            auto_offset_reset="earliest",
            request_timeout_ms=3_000,
        )
        await c.start()
        c.assign([ONE])
        await read(c, 10)
        cluster.fabric.cut("node1", "client")
        fill(cluster, 10)
        assert await c.poll(10) == []
        assert c.metrics()["connection-lost-total"] > 0
        cluster.fabric.heal()
        assert [r.offset for r in await read(c, 10)] == list(range(10, 20))
        await c.close()
        await cluster.stop()

    run_virtual(main())


async def test_a_corrupt_batch_is_an_error_where_it_lies_and_can_be_passed(cluster: ScriptedCluster) -> None:
    fill(cluster, 30)
    log = cluster.partitions["one", 0]
    broken = bytearray(log.batches[1])
    broken[-2] ^= 1
    log.batches[1] = bytes(broken)
    async with consumer(cluster) as c:
        c.assign([ONE])
        assert [r.offset for r in await read(c, 10)] == list(range(10))
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match=r"one-0: the batch at offset 10 cannot be read.*seek past it"):
                await c.poll(5)
        assert c._core.assignment.state(ONE).position == 10
        c.seek(ONE, 20)
        assert [r.offset for r in await read(c, 10)] == list(range(20, 30))


@pytest.mark.parametrize(("batch", "offset"), [(1, 10_000), (2, 5), (2, 35)], ids=["ahead", "back", "at the end"])
async def test_a_batch_that_cannot_be_where_it_says_is_not_taken(
    cluster: ScriptedCluster, batch: int, offset: int
) -> None:
    """No checksum covers a batch's offset; the position must not go by one that a disk has spoiled."""
    fill(cluster, 40)
    log = cluster.partitions["one", 0]
    log.batches[batch] = offset.to_bytes(8, "big") + log.batches[batch][8:]
    async with consumer(cluster) as c:
        c.assign([ONE])
        assert [r.offset for r in await read(c, 10 * batch)] == list(range(10 * batch))
        with pytest.raises(CorruptRecordError, match=f"found {offset} to {offset + 9}"):
            await c.poll(5)
        assert c._core.assignment.state(ONE).position == 10 * batch


async def test_an_epoch_that_no_leader_has_had_is_not_waited_for(cluster: ScriptedCluster) -> None:
    """No checksum covers a batch's leader epoch either."""
    fill(cluster, 30)
    log = cluster.partitions["one", 0]
    whole = log.batches[1]
    log.batches[1] = whole[:12] + (2**20).to_bytes(4, "big") + whole[16:]
    async with consumer(cluster) as c:
        c.assign([ONE])
        assert [r.offset for r in await read(c, 10)] == list(range(10))
        with pytest.raises(CorruptRecordError, match=f"found {2**20} at offset 10"):
            await c.poll(5)
        log.batches[1] = whole
        c.seek(ONE, 10)
        assert [r.offset for r in await read(c, 20)] == list(range(10, 30))


async def test_checksums_can_be_left_unchecked(cluster: ScriptedCluster) -> None:
    fill(cluster, 10)
    log = cluster.partitions["one", 0]
    broken = bytearray(log.batches[0])
    broken[17] ^= 1
    log.batches[0] = bytes(broken)
    async with consumer(cluster, check_crcs=False) as c:
        c.assign([ONE])
        assert len(await read(c, 10)) == 10


@pytest.mark.parametrize("how", ["poll", "poll_values"])
async def test_a_batch_whose_content_is_garbage_is_not_skipped(cluster: ScriptedCluster, how: str) -> None:
    fill(cluster, 20)
    log = cluster.partitions["one", 0]
    broken = bytearray(log.batches[1])
    broken[61:70] = b"\xff" * 9
    log.batches[1] = bytes(broken)
    async with consumer(cluster, check_crcs=False) as c:
        c.assign([ONE])
        first = await getattr(c, how)(5)
        assert len(first) == 10
        for _ in range(2):
            with pytest.raises(CorruptRecordError):
                await getattr(c, how)(5)
        assert c.metrics()["records-consumed-total"] == 10, "those that were handed out"


# --- truncation (KIP-320) ---------------------------------------------------------------------------


def diverging(epoch: int, end: int) -> Any:
    """A leader whose log ends its ``epoch`` at ``end``, for a fetcher that read further."""

    def judge(_node: int, _topic: str, item: FetchPartition) -> FetchedPartition | None:
        if item.fetch_offset <= end:
            return None
        return FetchedPartition(
            item.topic_id,
            item.partition,
            ErrorCode.NONE,
            high_watermark=Offset(end),
            log_start_offset=Offset(0),
            diverging_epoch=LeaderEpoch(epoch),
            diverging_end_offset=Offset(end),
        )

    return judge


async def test_a_diverging_epoch_in_a_fetch_is_a_truncation(cluster: ScriptedCluster) -> None:
    fill(cluster, 30)
    async with consumer(cluster, auto_offset_reset="none") as c:
        c.assign([ONE])
        c.seek(ONE, 0)
        await read(c, 30)
        cluster.fetch_judge = diverging(0, 20)
        with pytest.raises(LogTruncationError, match="truncated at offset 20, below the position 30") as raised:
            await c.poll(5)
        assert raised.value.partitions == {ONE: 30}
        assert raised.value.divergent == {ONE: 20}
        assert isinstance(raised.value, OffsetOutOfRangeError)


async def test_a_truncation_with_a_policy_goes_on_where_the_logs_part(cluster: ScriptedCluster) -> None:
    fill(cluster, 30)
    async with consumer(cluster) as c:
        c.assign([ONE])
        await read(c, 30)
        log = cluster.partitions["one", 0]
        del log.batches[2:]
        log.next_offset = 20
        cluster.fetch_judge = diverging(0, 20)
        async with asyncio.timeout(5):
            while await c.position(ONE) != 20:
                await asyncio.sleep(0.005)
        cluster.fetch_judge = None
        fill(cluster, 10)
        assert [r.offset for r in await read(c, 10)] == list(range(20, 30))
        assert c.metrics()["log-truncation-total"] == 1


async def test_a_leader_of_an_older_epoch_than_the_position_is_not_asked(cluster: ScriptedCluster) -> None:
    """A deposed leader that has not heard of it would say that the log ends before the position."""
    fill(cluster, 30)
    async with consumer(cluster, retry_backoff_ms=1) as c:
        c.assign([ONE])
        c.seek(ONE, 26, leader_epoch=1)
        cluster.fetch_judge = diverging(0, 20)
        assert await c.poll(0.2) == []
        assert await c.position(ONE) == 26
        cluster.fetch_judge = None
        cluster.move("one", 0, 2)
        assert [r.offset for r in await read(c, 4)] == [26, 27, 28, 29]
        assert c.metrics()["log-truncation-total"] == 0


async def test_an_epoch_of_which_nobody_hears_is_an_error_in_the_end(cluster: ScriptedCluster) -> None:
    """As one that was kept from a topic that was deleted, and made anew since."""
    fill(cluster, 30)
    async with consumer(cluster, retry_backoff_ms=1, request_timeout_ms=500) as c:
        c.assign([ONE])
        c.seek(ONE, 26, leader_epoch=7)
        assert await c.poll(0.2) == []
        with pytest.raises(LogTruncationError, match="no leader of epoch 7 or later is known: seek to continue"):
            await c.poll(10)
        c.seek(ONE, 26)
        assert [r.offset for r in await read(c, 4)] == [26, 27, 28, 29]


@pytest.mark.parametrize("policy", ["earliest", "none"])
async def test_a_position_in_a_topic_that_was_made_anew_is_lost(cluster: ScriptedCluster, policy: str) -> None:
    cluster.partitions["one", 0].leader_epoch = 4
    fill(cluster, 30)
    async with consumer(cluster, auto_offset_reset=policy, retry_backoff_ms=1) as c:
        c.assign([ONE])
        c.seek(ONE, 0)
        await read(c, 30)
        former = cluster.topic_ids["one"]
        cluster.fetch_judge = lambda _, __, item: (
            FetchedPartition(former, 0, ErrorCode.UNKNOWN_TOPIC_ID) if item.topic_id == former else None
        )
        cluster.topic_ids["former"] = former
        cluster.partitions["former", 0] = cluster.partitions["one", 0]
        cluster.topic("one")
        cluster.topic_ids["one"] = TopicId(b"made anew".ljust(16, b"."))
        fill(cluster, 10)
        if policy == "earliest":
            assert [r.offset for r in await read(c, 10)] == list(range(10))
        else:
            with pytest.raises(
                LogTruncationError, match="one-0: the topic was deleted and created again; the position is 30"
            ):
                await c.poll(5)


async def test_a_new_leader_is_asked_whether_the_position_still_holds(cluster: ScriptedCluster) -> None:
    fill(cluster, 30)
    async with consumer(cluster, auto_offset_reset="none", retry_backoff_ms=1) as c:
        c.assign([ONE])
        c.seek(ONE, 0)
        await read(c, 30)
        cluster.epoch_ends["one", 0] = (0, 25)
        cluster.move("one", 0, 2)
        with pytest.raises(LogTruncationError, match="truncated at offset 25"):
            await c.poll(5)


async def test_a_new_leader_with_the_whole_log_is_no_truncation(cluster: ScriptedCluster) -> None:
    fill(cluster, 30)
    async with consumer(cluster, auto_offset_reset="none", retry_backoff_ms=1) as c:
        c.assign([ONE])
        c.seek(ONE, 0)
        await read(c, 30)
        cluster.move("one", 0, 2)
        fill(cluster, 10)
        assert [r.offset for r in await read(c, 10)] == list(range(30, 40))
        assert c.metrics()["log-truncation-total"] == 0


async def test_a_check_that_is_refused_for_good_is_an_error_and_no_standstill(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 30)
    call = ClientCluster.call

    async def refusing(self: ClientCluster, request: Request[R], **more: Any) -> R:
        if isinstance(request, OffsetForLeaderEpochRequest):
            raise SaslAuthenticationError("the password was changed")
        return await call(self, request, **more)

    async with consumer(cluster, auto_offset_reset="none", retry_backoff_ms=1) as c:
        c.assign([ONE])
        c.seek(ONE, 0)
        await read(c, 30)
        monkeypatch.setattr(ClientCluster, "call", refusing)
        cluster.move("one", 0, 2)
        with pytest.raises(SaslAuthenticationError, match="the password was changed"):
            await c.poll(5)
