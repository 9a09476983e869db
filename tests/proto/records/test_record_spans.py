"""Where records begin and end in a batch, in both codecs, and batches made of some of their records."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.proto.records import compiled_codec
from tidelog.proto.records import spans as record_spans
from tidelog.proto.records.batches import DELETE_HORIZON, Batch, CorruptBatch, patch_batch, split_batches
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.decoder import decode_fields, record_bytes
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.storage.cleaner import offset_map

T = 1_700_000_000_000
blobs = st.none() | st.binary(max_size=9) | st.integers(55, 140).map(lambda size: b"x" * size)
records = st.lists(
    st.tuples(
        st.integers(T - 99, T + 99), blobs, blobs, st.lists(st.tuples(st.text("ab", max_size=2), blobs), max_size=2)
    ),
    min_size=1,
    max_size=70,
)


def batch_of(
    content: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]], kind: Compression
) -> Batch:
    builder = BatchBuilder(kind)
    for timestamp, key, value, headers in content:
        builder.append(timestamp, key, value, headers)
    raw = builder.build(producer_id=5, producer_epoch=1, base_sequence=9)
    patch_batch(raw, 0, base_offset=1_000, leader_epoch=3)
    return split_batches(bytes(raw))[0]


@given(records, st.sampled_from(Compression), st.randoms(use_true_random=False), st.none() | st.integers(0, 2 * T))
@settings(max_examples=150, deadline=None)
def test_a_batch_of_some_of_its_records_holds_those_as_they_were(
    content: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    kind: Compression,
    rng: random.Random,
    horizon: int | None,
) -> None:
    batch = batch_of(content, kind)
    body = record_bytes(batch)
    spans = record_spans.record_spans(body, batch)
    fields = decode_fields(batch)
    assert [(offset, time, key, has) for offset, time, key, has, _, _ in spans] == [
        (offset, time, key, value is not None) for offset, time, key, value, _ in fields
    ]
    kept = sorted(rng.sample(range(len(spans)), rng.randint(1, len(spans))))
    (made,) = split_batches(
        bytes(record_spans.rewritten(batch, body, [spans[n] for n in kept], delete_horizon_ms=horizon))
    )
    assert made.crc_ok()
    assert decode_fields(made) == [fields[n] for n in kept]
    assert made.compression is kind
    assert made.max_timestamp == max(fields[n][1] for n in kept)
    same = ("base_offset", "last_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence")
    assert [getattr(made, name) for name in same] == [getattr(batch, name) for name in same]
    assert bool(made.attributes & DELETE_HORIZON) == (horizon is not None)
    assert made.base_timestamp == (batch.base_timestamp if horizon is None else horizon)
    first = next((n for n, field in enumerate(fields) if field[2] is None), -1)
    assert record_spans.keyless_record(body, batch) == first


def outcome(body: bytes, batch: Batch) -> object:
    try:
        return record_spans.walk_spans(body, batch)
    except CorruptBatch:
        return None


@pytest.mark.skipif(compiled_codec.COMPILED is None, reason="the optional compiled codec is not built")
@given(records, st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_both_codecs_find_the_same_or_the_compiled_one_leaves_it(
    content: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]], rng: random.Random
) -> None:
    batch = batch_of(content, Compression.NONE)
    body = bytearray(record_bytes(batch))
    for spoiled in (False, True):
        if spoiled:
            for _ in range(rng.randint(1, 3)):
                body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
            if rng.random() < 0.3:
                del body[rng.randrange(len(body)) :]
        plain = outcome(bytes(body), batch)
        codec = compiled_codec.COMPILED
        assert codec is not None
        quick = codec.spans(
            bytes(body), batch.base_offset, batch.base_timestamp, None, batch.record_count, batch.last_offset_delta
        )
        keyless = codec.keyless(bytes(body), batch.record_count, batch.last_offset_delta)
        assert quick is None or quick == plain
        if not spoiled:
            assert quick is not None
        if keyless is not None and isinstance(plain, list):
            assert keyless == next((n for n, span in enumerate(plain) if span[2] is None), -1)
        assert keyless is None or plain is not None


@pytest.mark.skipif(compiled_codec.COMPILED is None, reason="the optional compiled codec is not built")
@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 1 << 30))
@settings(max_examples=100, deadline=None)
def test_both_codecs_find_the_same_place_in_a_table(slots: int, count: int, seed: int) -> None:
    compiled = compiled_codec.COMPILED
    assert compiled is not None
    rng = random.Random(seed)
    made = offset_map.OffsetMap(slots)
    digests = [rng.randbytes(16) for _ in range(count)]
    for number, digest in enumerate(digests):
        plain = offset_map.probe(made._table, slots, digest)
        assert compiled.probe(made._table, slots, digest) == plain
        if plain is not None and plain < 0:
            made._table[-1 - plain : 23 - plain] = digest + number.to_bytes(8, "big")
    for digest in digests[:slots]:
        assert offset_map.probe(made._table, slots, digest) == compiled.probe(made._table, slots, digest)
    made.close()
