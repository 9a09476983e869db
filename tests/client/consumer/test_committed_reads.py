"""Readers of committed records skip aborted transactions and markers, and never wait at them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.scripted_broker import Partition, ScriptedCluster, on_a_virtual_cluster
from tests.virtual_time import LoopClock
from tidelog.aio import Consumer, Producer, TopicPartition
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.committed_reads import Passed, without_aborted
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.records.encoder import encode_values

ONE = TopicPartition("one", 0)
virtually = on_a_virtual_cluster(3, t=3, one=1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("commit"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("plain"), st.integers(0, 3), st.integers(1, 3)),
    ),
    max_size=40,
)


class History:
    """A log written step by step, and which of its offsets belong to what has been committed."""

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        self.partition = Partition(1)
        self.fate: dict[int, str] = {}
        sequences: dict[int, int] = {}
        epochs = dict.fromkeys(range(4), 0)
        own: dict[int, list[int]] = {p: [] for p in range(4)}
        for kind, producer, count in steps:
            if kind in ("write", "plain"):
                values = [b"%d" % (self.partition.next_offset + i) for i in range(count)]
                identity = producer if kind == "write" else producer + 10
                data = encode_values(
                    values,
                    0,
                    producer_id=identity,
                    producer_epoch=epochs.get(identity, 0),
                    base_sequence=sequences.get(identity, 0),
                    is_transactional=kind == "write",
                )
                sequences[identity] = sequences.get(identity, 0) + count
                code, base = self.partition.append(Batch(memoryview(data)))
                assert code == 0
                for offset in range(base, base + count):
                    self.fate[offset] = "open" if kind == "write" else "seen"
                    if kind == "write":
                        own[producer].append(offset)
            elif own[producer]:
                epochs[producer] += 1
                sequences[producer] = 0
                self.partition.mark(producer, epochs[producer], committed=kind == "commit")
                for offset in own[producer]:
                    self.fate[offset] = "seen" if kind == "commit" else "aborted"
                own[producer].clear()

    def fetched(self, start: int, count: int) -> tuple[list[Batch], list[tuple[int, int]]]:
        """As the leader answers: whole batches below the last stable offset, and the aborted list for them."""
        batches = [Batch(memoryview(data)) for data in self.partition.batches]
        stable = self.partition.last_stable_offset
        found = [b for b in batches if b.next_offset > start and b.base_offset < stable][:count]
        reach = found[-1].next_offset if found else start
        aborted = [(p, first) for p, first, last in self.partition.aborted if first < reach and last >= start]
        return found, aborted


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(0, 60), st.integers(1, 12), st.randoms(use_true_random=False))
def test_exactly_what_is_committed_comes_through(
    steps: list[tuple[str, int, int]], start: int, count: int, rng: random.Random
) -> None:
    history = History(steps)
    stable = history.partition.last_stable_offset
    position = start
    seen: list[int] = []
    while position < stable:
        batches, aborted = history.fetched(position, count)
        rng.shuffle(aborted)
        for batch in without_aborted(batches, aborted):
            reached = position
            position = batch.next_offset
            assert position > reached
            if isinstance(batch, Batch) and not batch.is_control:
                seen += [r.offset for r in decode_records(batch) if r.offset >= reached]
    assert seen == [o for o, fate in history.fate.items() if fate == "seen" and start <= o < stable]


def test_a_marker_that_compaction_emptied_ends_the_transaction_all_the_same() -> None:
    history = History([("write", 1, 2), ("abort", 1, 0), ("write", 1, 1), ("commit", 1, 0)])
    batches, aborted = history.fetched(0, 10)
    emptied = bytearray(batches[1].view)[:61]
    emptied[8:12] = (49).to_bytes(4, "big")
    emptied[57:61] = bytes(4)
    batches[1] = Batch(memoryview(emptied))
    assert batches[1].is_control
    assert not batches[1].record_count
    found = list(without_aborted(batches, aborted))
    assert isinstance(found[0], Passed)
    assert [isinstance(one, Passed) for one in found[1:]] == [False] * 3


# --- with a consumer ------------------------------------------------------------------------------------


def consumer(cluster: ScriptedCluster, **more: Any) -> Consumer:
    given: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"} | more
    return Consumer(
        cluster.bootstrap, _network=cluster.network("reader"), _clock=LoopClock(), _rng=random.Random(1), **given
    )


def producer(cluster: ScriptedCluster, name: str) -> Producer:
    return Producer(
        cluster.bootstrap,
        _network=cluster.network(name),
        _clock=LoopClock(),
        _rng=random.Random(1),
        transactional_id=name,
        linger_ms=0,
    )


async def write(cluster: ScriptedCluster, transactions: int, *, abort_each: int, records: int = 1) -> list[int]:
    """One producer's transactions to the topic "one", every so many of them aborted; returns what is committed."""
    good = []
    async with producer(cluster, "writer") as p:
        await p.init_transactions()
        for number in range(transactions):
            await p.begin_transaction()
            values = [b"%d" % (number * records + i) for i in range(records)]
            await (await p.send_many("one", values))
            if number % abort_each:
                await p.commit_transaction()
                good += [int(value) for value in values]
            else:
                await p.abort_transaction()
    return good


async def read(c: Consumer, how: str, count: int) -> list[int]:
    out: list[int] = []
    async with asyncio.timeout(60):
        while len(out) < count:
            if how == "poll":
                out += [int(r.value or b"") for r in await c.poll(1, max_records=7)]
            elif how == "batches":
                out += [int(r.value or b"") for batch in await c.poll_batches(1) for r in batch]
            else:
                out += [int(value or b"") for value in await c.poll_values(1)]
    return out


@pytest.mark.parametrize("how", ["poll", "batches", "values"])
@pytest.mark.parametrize("bytes_max", [200, 1 << 20])
def test_every_form_of_poll_passes_over_what_was_aborted(how: str, bytes_max: int) -> None:
    @virtually
    async def test(cluster: ScriptedCluster) -> None:
        good = await write(cluster, 40, abort_each=3, records=5)
        async with consumer(cluster, max_partition_fetch_bytes=bytes_max, fetch_max_bytes=bytes_max) as c:
            c.assign([ONE])
            assert await read(c, how, len(good)) == good
            assert await c.poll(1) == []
            assert await c.position(ONE) == cluster.partitions["one", 0].next_offset
            assert c.lag(ONE) == 0
        async with consumer(cluster, isolation_level="read_uncommitted") as c:
            c.assign([ONE])
            assert len(await read(c, how, 200)) == 200

    test()


@virtually
async def test_a_long_run_of_aborted_transactions_is_passed_within_one_poll(cluster: ScriptedCluster) -> None:
    await write(cluster, 200, abort_each=1, records=3)
    async with producer(cluster, "last") as p, p.transaction():
        await p.send("one", b"7")
    async with consumer(cluster, max_partition_fetch_bytes=300, fetch_max_bytes=300) as c:
        c.assign([ONE])
        (record,) = await c.poll(30)
        assert record.value == b"7"
        assert await c.poll(1) == []
        assert await c.position(ONE) == cluster.partitions["one", 0].next_offset


@virtually
async def test_nothing_of_an_open_transaction_nor_after_it_until_it_ends(cluster: ScriptedCluster) -> None:
    async with producer(cluster, "slow") as slow, producer(cluster, "fast") as fast, consumer(cluster) as c:
        c.assign([ONE])
        await slow.init_transactions()
        async with fast.transaction():
            await fast.send("one", b"1")
        await slow.begin_transaction()
        await slow.send_and_wait("one", b"2")
        async with fast.transaction():
            await fast.send("one", b"3")
        assert await read(c, "poll", 1) == [1]
        assert await c.poll(5) == []
        assert c.lag(ONE) == 0
        assert (await c.end_offsets([ONE]))[ONE] >= await c.position(ONE)
        await slow.commit_transaction()
        assert await read(c, "poll", 2) == [2, 3]


@virtually
async def test_reading_on_in_the_midst_of_an_aborted_transaction(cluster: ScriptedCluster) -> None:
    good = await write(cluster, 3, abort_each=2, records=10)
    assert good == list(range(10, 20))
    for start in range(35):
        async with consumer(cluster) as c:
            c.assign([ONE])
            c.seek(ONE, min(start, cluster.partitions["one", 0].next_offset))
            want = [o for o in range(11, 21) if o >= start]
            assert [r.offset for r in await c.poll(1)] == want
