"""A filtered fetch and a filter over everything find the same, in random logs with transactions and compaction."""

from __future__ import annotations

import os
import random

import pytest

from tests.replication.managers import Broker, MakeCluster
from tests.replication.rig import TOPIC_ID, ProducerFields
from tests.virtual_time import LoopClock, in_virtual_time
from tidelog.broker.logs.filter_indexing import FilterIndexing
from tidelog.client.fetching.positions import PartitionState
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, BrokerEpoch, LeaderEpoch, Offset, TopicPartition
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.records.encoder import encode_columns
from tidelog.proto.records.header_filter import ALL, UNPACKED_MAX, HeaderFilter, mask_of_batch
from tidelog.proto.transport.frames import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
    decode_fetch_request,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from tidelog.replication.flushing import run_inline
from tidelog.replication.serving import consumer_fetch
from tidelog.storage.cleaner.cleaning import CleaningLimits
from tidelog.storage.log.cleaner import LogCleaner

PRODUCERS = (7, 8)
SEEDS = range(int(os.environ.get("TIDELOG_FILTER_SEEDS", "2")))
"""Set the variable for a longer search."""


class Writer:
    """Random batches of one tag or several, some in transactions, some of which are aborted."""

    def __init__(self, broker: Broker, rng: random.Random) -> None:
        self.broker = broker
        self.rng = rng
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.open: set[int] = set()

    async def write(self, tags: tuple[str | None, ...]) -> None:
        rng = self.rng
        producer = rng.choice((*PRODUCERS, None, None))
        if producer in self.open and rng.random() < 0.4:
            await self.end(producer)
            return
        mine = rng.choices(tags, k=rng.choice((1, 1, 1, 3)))
        more: ProducerFields = {}
        if producer is not None:
            more = {"producer_id": producer, "producer_epoch": self.epochs[producer], "is_transactional": True}
            more["base_sequence"] = self.sequences[producer]
        headers = [() if tag is None else (("x", b"1"), ("tag", tag.encode())) for tag in mine]
        raw = encode_columns(
            [LoopClock().now_ms()] * len(mine), [b"%d" % rng.randrange(30) for _ in mine],
            [rng.randbytes(rng.randrange(300)) for _ in mine], headers,
            compression=rng.choice((Compression.NONE, Compression.GZIP)), **more,
        )  # fmt: skip
        transactional_id = None if producer is None else f"tx-{producer}"
        request = ProduceRequest(-1, 30_000, [ProducePartition(TOPIC_ID, 0, raw)], transactional_id)
        (answer,) = await self.broker.answers(request)
        assert answer.error is ErrorCode.NONE
        if producer is not None:
            self.sequences[producer] += len(mine)
            self.open.add(producer)

    async def end(self, producer: int) -> None:
        self.epochs[producer] += 1
        self.sequences[producer] = 0
        self.open.discard(producer)
        committed = self.rng.random() < 0.5
        assert await self.broker.mark(producer, self.epochs[producer], committed=committed) is ErrorCode.NONE


class Reader:
    """Reads as the SDK's consumer does. Frames go through their binary form."""

    def __init__(self, broker: Broker, header_filter: HeaderFilter, *, asks: bool, committed: bool) -> None:
        self.broker = broker
        self.filter = header_filter
        self.asks = asks
        self.committed = committed
        self.state = PartitionState(TopicPartition("t", 0))
        self.state.seek(0)
        self.found: list[tuple[int, bytes | None]] = []
        self.bytes = 0
        self.fetches = 0

    async def read_all(self, rng: random.Random) -> None:
        state, partition = self.state, self.broker.partition()
        end = partition.fetchable_end(self.committed)
        while state.position < end:
            before = state.fetch_offset
            await self.fetch(rng.choice((1, 500, 5_000, 1 << 20)))
            assert state.fetch_offset > before, "a fetch below the end makes progress"
        assert state.position == end

    async def fetch(self, bytes_max: int) -> None:
        state = self.state
        item = FetchPartition(
            TOPIC_ID, 0, LeaderEpoch(-1), Offset(state.fetch_offset), LeaderEpoch(state.fetch_epoch), Offset(-1),
            bytes_max,
        )  # fmt: skip
        wanted = self.filter.mask if self.asks else None
        request = FetchRequest(NO_NODE, BrokerEpoch(-1), 500, 1, bytes_max, self.committed, [item], wanted=wanted)
        sent = decode_fetch_request(memoryview(b"".join(encode_fetch_request(1, request))))[1]
        assert sent.wanted == wanted
        response: FetchResponse = await self.broker.manager.fetch(sent)
        answer = decode_fetch_response(memoryview(b"".join(encode_fetch_response(1, response))))[1].partitions[0]
        assert (answer.error, answer.diverging_epoch) == (ErrorCode.NONE, -1)
        self.fetches += 1
        data = b"".join(answer.records)
        self.bytes += len(data)
        state.take_fetched(split_batches(data), answer.aborted if self.committed else ())
        if self.asks:
            state.pass_until(answer.diverging_end_offset)
        while (batch := state.next_batch()) is not None:
            self.found += [(r.offset, r.value) for r in batch.records() if self.filter.wants(r.headers)]


async def compact(broker: Broker) -> None:
    log = broker.partition().log
    log.flush()
    broker.logs.checkpoint()
    cleaner = LogCleaner(broker.logs, lambda log: broker.partition().high_watermark)
    for candidate in cleaner.due(LoopClock().now_ms()):
        cleaning = cleaner.begin(candidate, CleaningLimits(io_bytes=2_000), LoopClock().now_ms())
        while cleaning is not None:
            cleaning.step()
            if not cleaner.advance(candidate.log, cleaning):
                break


@pytest.mark.parametrize("seed", SEEDS)
@in_virtual_time
async def test_the_server_finds_what_the_client_would(cluster: MakeCluster, seed: int) -> None:
    rng = random.Random(seed)
    async with cluster() as c:
        c.create(
            leader=1, segment_bytes=rng.choice((2_000, 8_000)), index_interval_bytes=200, filter_header="tag",
            cleanup_policy=("compact",) if seed % 2 else ("delete",), min_cleanable_dirty_ratio=0.0,
        )  # fmt: skip
        writer = Writer(c[1], rng)
        indexing = FilterIndexing(c[1].logs, run_inline)
        skipped = 0
        for _ in range(3):
            for tags in (("a",), ("b", None), ("c",), ("a", "b", "c", None)):
                for _ in range(25):
                    await writer.write(tags)
            if rng.random() < 0.7:
                c[1].partition().log.flush()
                await indexing.index_all()
            for tag in ("a", "b", None, "nobody"):
                wants = HeaderFilter("tag", [tag] if rng.random() < 0.7 else [tag, "c"])
                committed = rng.random() < 0.6
                whole = Reader(c[1], wants, asks=False, committed=committed)
                await whole.read_all(rng)
                by_index = Reader(c[1], wants, asks=True, committed=committed)
                await by_index.read_all(rng)
                assert by_index.found == whole.found
                skipped += whole.bytes - by_index.bytes
            if seed % 2:
                await compact(c[1])
        assert skipped > 0 or seed > 1, "in some logs each block has a marker, or everything"


@in_virtual_time
async def test_a_filter_that_matches_nothing_is_bounded_and_then_waits(
    cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_fetch, "PAGES_MAX", 3)
    async with cluster() as c:
        c.create(leader=1, segment_bytes=1_000, filter_header="tag")
        writer = Writer(c[1], random.Random(1))
        for _ in range(150):
            await writer.write(("a",))
        for producer in sorted(writer.open):
            await writer.end(producer)
        log = c[1].partition().log
        log.roll(0)
        log.flush()
        await FilterIndexing(c[1].logs, run_inline).index_all()
        sealed = log.segment_count - 1
        reader = Reader(c[1], HeaderFilter("tag", ["nobody"]), asks=True, committed=False)
        before = LoopClock().monotonic_ms()
        await reader.read_all(random.Random(1))
        assert reader.fetches >= sealed / 3
        assert LoopClock().monotonic_ms() - before <= 550, "at most one fetch has waited, the last one"
        before = LoopClock().monotonic_ms()
        await reader.fetch(1 << 20)
        assert LoopClock().monotonic_ms() - before == 500, "at the end a fetch waits"


def test_a_filter_is_exact() -> None:
    wants = HeaderFilter("tag", ["a", b"\xff", None])
    assert wants.wants((("tag", b"a"),))
    assert wants.wants((("tag", b"b"), ("tag", b"\xff")))
    assert wants.wants((("other", b"b"),))
    assert not wants.wants((("tag", b"b"), ("other", b"a")))
    assert not wants.wants((("tag", None),))
    assert HeaderFilter("tag", [b""]).wants((("tag", None),))
    assert repr(wants) == r"HeaderFilter('tag', [None, b'\xff', b'a'])"
    for header, values in (("", ["a"]), ("tag", "a"), ("tag", [])):
        with pytest.raises(ValueError, match="expected"):
            HeaderFilter(header, values)


@pytest.mark.parametrize("what", ["too large", "broken"])
def test_what_cannot_be_looked_into_is_sent(what: str) -> None:
    value = bytes(UNPACKED_MAX) if what == "too large" else b"v"
    raw = encode_columns([1], None, [value], [[("tag", b"a")]], compression=Compression.GZIP)
    if what == "broken":
        raw[-9] ^= 0xFF
    assert mask_of_batch(Batch(memoryview(raw)), "tag") == ALL


def test_masks_of_what_is_there_and_what_is_wanted_meet() -> None:
    rng = random.Random(1)
    for _ in range(300):
        tags = [rng.choice((None, b"", rng.randbytes(rng.randrange(4)))) for _ in range(3)]
        headers = [() if tag is None else (("tag", tag),) for tag in tags]
        batch = Batch(memoryview(encode_columns([1] * 3, None, [b"v"] * 3, headers)))
        for record in decode_records(batch):
            for tag in tags:
                wants = HeaderFilter("tag", [tag])
                if wants.wants(record.headers):
                    assert mask_of_batch(batch, "tag") & wants.mask.mask
