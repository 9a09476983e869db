"""The parts of a batch that compaction keeps, rule by rule, and the part of a log that it cleans."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import DELETE_HORIZON, Batch, patch_batch, split_batches
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.storage.cleaner.batch_filter import BatchFilter, LastOfProducer
from tidelog.storage.cleaner.offset_map import OffsetMap
from tidelog.storage.cleaner.plan import Dirt, LogFacts, SegmentFacts, find_dirt, group_segments
from tidelog.storage.cleaner.transactions import CleanedTransactions
from tidelog.storage.segments.transaction_index import AbortedTransaction

NOW = 1_000_000
RETENTION = 500
Pairs = Sequence[tuple[bytes | None, bytes | None]]


def keyed(
    *pairs: tuple[bytes | None, bytes | None],
    at: int = 0,
    epoch: int = 0,
    compression: Compression = Compression.NONE,
    timestamp: int = NOW,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
) -> Batch:
    """A batch at offset ``at``; its records are a millisecond apart."""
    builder = BatchBuilder(compression)
    for number, (key, value) in enumerate(pairs):
        builder.append(timestamp + number, key, value, [("name", b"x")] if number % 2 else ())
    identity = {}
    if producer is not None:
        identity = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": producer[2]}
    raw = builder.build(is_transactional=transactional, **identity)
    patch_batch(raw, 0, base_offset=at, leader_epoch=epoch)
    return split_batches(bytes(raw))[0]


def marker(kind: ControlKind, *, at: int, producer: int, epoch: int = 0) -> Batch:
    raw = encode_control_batch(kind, timestamp=NOW, producer_id=producer, producer_epoch=epoch, coordinator_epoch=1)
    patch_batch(raw, 0, base_offset=at, leader_epoch=0)
    return split_batches(bytes(raw))[0]


def made_filter(
    latest: dict[bytes, int],
    *,
    mapped_end: int = 100,
    now_ms: int = NOW,
    producers: dict[int, LastOfProducer] | None = None,
    aborted: Sequence[AbortedTransaction] = (),
) -> BatchFilter:
    offsets = OffsetMap(64)
    for key, offset in latest.items():
        assert offsets.put(key, offset)
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    made = BatchFilter(
        offsets,
        mapped_end,
        now_ms=now_ms,
        delete_retention_ms=RETENTION,
        producers=producers or {},
        transactions=transactions,
    )
    made.filter(keyed((b"first of the epoch", b"x")), is_last=True)  # so that what follows is not that
    return made


def kept(made: BatchFilter, batch: Batch, *, is_last: bool = False) -> Batch | None:
    found = made.filter(batch, is_last=is_last)
    if found is None:
        return None
    (out,) = split_batches(bytes(found))
    assert out.crc_ok()
    same = ("base_offset", "last_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence")
    assert [getattr(out, name) for name in same] == [getattr(batch, name) for name in same]
    assert (out.is_transactional, out.is_control) == (batch.is_transactional, batch.is_control)
    return out


def offsets_of(batch: Batch | None) -> list[int]:
    return [] if batch is None else [record.offset for record in decode_records(batch)]


# --- Records ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", list(Compression))
def test_records_that_a_later_one_replaces_go_and_the_others_stay_as_they_are(compression: Compression) -> None:
    batch = keyed((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b""), at=10, compression=compression)
    found = kept(made_filter({b"a": 12, b"b": 50, b"c": 13}), batch)
    assert found is not None
    assert decode_records(found) == [record for record in decode_records(batch) if record.offset in (12, 13)]
    assert found.compression is compression
    assert found.max_timestamp == NOW + 3


def test_the_highest_time_is_that_of_what_stays() -> None:
    found = kept(made_filter({b"a": 10, b"b": 50}), keyed((b"a", b"1"), (b"b", b"2"), at=10))
    assert found is not None
    assert found.max_timestamp == NOW


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_batch_of_which_all_stays_is_not_touched(compression: Compression) -> None:
    batch = keyed((b"a", b"1"), (b"b", b"2"), at=10, compression=compression)
    assert made_filter({b"a": 10, b"b": 11}).filter(batch, is_last=False) is batch.view


def test_records_beyond_what_was_mapped_stay() -> None:
    made = made_filter({b"a": 90}, mapped_end=12)
    assert offsets_of(kept(made, keyed((b"a", b"1"), (None, b"2"), (b"a", b"3"), (None, b"4"), at=10))) == [12, 13]
    behind = keyed((b"a", None), (None, b"2"), at=20)
    assert made.filter(behind, is_last=False) is behind.view


def test_a_key_that_is_not_mapped_stays() -> None:
    assert offsets_of(kept(made_filter({}), keyed((b"old", b"1"), at=10))) == [10]


def test_records_without_a_key_go() -> None:
    made = made_filter({})
    assert kept(made, keyed((None, b"1"), (None, None), at=10)) is None
    assert made.counts.records_without_key == 2


def test_an_empty_key_is_a_key() -> None:
    assert offsets_of(kept(made_filter({b"": 11}), keyed((b"", b"1"), (b"", b"2"), at=10))) == [11]


def test_log_append_time_stays_with_the_records_that_stay() -> None:
    from tidelog.proto.records.batches import set_log_append_time

    stamped = split_batches(bytes(set_log_append_time(keyed((b"a", b"1"), (b"b", None), at=10), NOW + 77)))[0]
    found = kept(made_filter({b"a": 50, b"b": 11}), stamped)
    assert found is not None
    assert [(record.offset, record.timestamp) for record in decode_records(found)] == [(11, NOW + 77)]


def test_a_batch_that_cannot_be_decoded_is_kept_as_it_is() -> None:
    raw = bytearray(keyed((b"a", b"1"), at=10).view)
    raw[61] = 120  # a record longer than the batch
    from tidelog.proto.records.batches import sign

    sign(raw)
    batch = split_batches(bytes(raw))[0]
    assert batch.crc_ok()
    assert made_filter({b"a": 50}).filter(batch, is_last=False) is batch.view


# --- Tombstones (KIP-534) -----------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_a_tombstone_gets_a_horizon_and_goes_after_it(compression: Compression) -> None:
    batch = keyed((b"a", None), (b"b", b"2"), (b"gone", b"3"), at=10, compression=compression)
    latest = {b"a": 10, b"b": 11, b"gone": 50}
    marked = kept(made_filter(latest), batch)
    assert marked is not None
    assert marked.attributes & DELETE_HORIZON
    assert marked.base_timestamp == NOW + RETENTION
    assert decode_records(marked) == [record for record in decode_records(batch) if record.offset < 12]
    assert made_filter(latest, now_ms=NOW + RETENTION - 1).filter(marked, is_last=False) is marked.view
    after = kept(made_filter(latest, now_ms=NOW + RETENTION), marked)
    assert after is not None
    assert decode_records(after) == decode_records(batch)[1:2]


def test_a_batch_that_had_no_tombstone_left_keeps_its_horizon() -> None:
    """As Kafka's: the base timestamp is the horizon, so the bit must stay with it."""
    marked = kept(made_filter({b"a": 10}), keyed((b"a", None), (b"b", b"2"), at=10))
    assert marked is not None
    again = kept(made_filter({b"a": 50}, now_ms=NOW + 1), marked)
    assert again is not None
    assert again.attributes & DELETE_HORIZON
    assert decode_records(again)[0].timestamp == NOW + 1


def test_a_replaced_tombstone_goes_at_once() -> None:
    assert kept(made_filter({b"a": 50}), keyed((b"a", None), at=10)) is None


# --- Batches ------------------------------------------------------------------------------------------


def test_a_batch_left_empty_goes() -> None:
    assert kept(made_filter({b"a": 50}), keyed((b"a", b"1"), at=10, producer=(7, 0, 3))) is None


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_the_last_batch_of_a_producer_stays_without_records(compression: Compression) -> None:
    made = made_filter({b"a": 50, b"b": 51}, producers={7: LastOfProducer(11, 0)})
    batch = keyed((b"a", b"1"), (b"b", None), at=10, producer=(7, 0, 3), compression=compression)
    found = kept(made, batch)
    assert found is not None
    assert (found.record_count, found.size, found.last_sequence) == (0, 61, 4)
    assert found.compression is Compression.NONE
    assert found.max_timestamp == batch.max_timestamp
    assert made.filter(found, is_last=False) is found.view
    assert made_filter({}, producers={7: LastOfProducer(40, 0)}).filter(found, is_last=False) is None


def test_the_last_batch_of_a_group_stays_without_records() -> None:
    made = made_filter({b"a": 50})
    found = kept(made, keyed((b"a", b"1"), at=10), is_last=True)
    assert found is not None
    assert found.record_count == 0


def test_the_first_batch_of_a_leader_epoch_stays_without_records() -> None:
    made = made_filter({b"a": 50})
    batches = [keyed((b"a", b"1"), at=at, epoch=epoch) for at, epoch in ((10, 0), (11, 3), (12, 3), (13, 4))]
    assert [kept(made, batch) is not None for batch in batches] == [False, True, False, True]


# --- Transactions -------------------------------------------------------------------------------------


def test_a_commit_marker_stays_until_no_batch_of_its_transaction_is_left_and_the_horizon_passed() -> None:
    data = keyed((b"a", b"1"), at=10, producer=(7, 0, 0), transactional=True)
    commit = marker(ControlKind.COMMIT, at=11, producer=7)
    made = made_filter({b"a": 10})
    assert made.filter(data, is_last=False) is data.view
    assert made.filter(commit, is_last=False) is commit.view

    alone = kept(made_filter({}), commit)
    assert alone is not None
    assert alone.attributes & DELETE_HORIZON
    assert alone.base_timestamp == NOW + RETENTION
    assert decode_records(alone) == decode_records(commit)
    assert made_filter({}, now_ms=NOW + RETENTION - 1).filter(alone, is_last=False) is alone.view
    assert made_filter({}, now_ms=NOW + RETENTION).filter(alone, is_last=False) is None


def test_aborted_records_go_and_the_marker_after_them() -> None:
    aborted = [AbortedTransaction(10, 7, 12, 10)]
    data = keyed((b"a", b"1"), at=10, producer=(7, 0, 0), transactional=True)
    other = keyed((b"a", b"2"), at=11, producer=(8, 0, 0), transactional=True)
    abort = marker(ControlKind.ABORT, at=12, producer=7)
    made = made_filter({b"a": 11}, aborted=aborted)
    assert made.filter(data, is_last=False) is None
    assert made.filter(other, is_last=False) is other.view
    assert made.filter(abort, is_last=False) is abort.view  # something of it was still there
    assert made.transactions.take_retained() == aborted

    made = made_filter({b"a": 11}, aborted=aborted)
    assert kept(made, other) is not None
    alone = kept(made, abort)
    assert alone is not None
    assert alone.base_timestamp == NOW + RETENTION
    assert made.transactions.take_retained() == []


def test_what_follows_an_aborted_transaction_of_the_same_producer_is_not_aborted() -> None:
    made = made_filter({b"a": 13}, aborted=[AbortedTransaction(10, 7, 12, 10)])
    made.filter(keyed((b"b", b"1"), at=10, producer=(7, 0, 0), transactional=True), is_last=False)
    made.filter(marker(ControlKind.ABORT, at=12, producer=7), is_last=False)
    later = keyed((b"a", b"2"), at=13, producer=(7, 0, 1), transactional=True)
    commit = marker(ControlKind.COMMIT, at=14, producer=7)
    assert made.filter(later, is_last=False) is later.view
    assert made.filter(commit, is_last=False) is commit.view


def test_the_last_marker_of_a_producer_stays_without_its_record() -> None:
    commit = marker(ControlKind.COMMIT, at=11, producer=7, epoch=5)
    first = kept(made_filter({}), commit)
    assert first is not None
    found = kept(made_filter({}, now_ms=NOW + RETENTION, producers={7: LastOfProducer(-1, 5)}), first)
    assert found is not None
    assert (found.record_count, found.is_control) == (0, True)


# --- The map of keys ----------------------------------------------------------------------------------


def test_the_map_holds_as_many_keys_as_it_has_slots() -> None:
    offsets = OffsetMap(37)
    keys = [b"%d" % n for n in range(60)]
    taken = [offsets.put(key, n + 1) for n, key in enumerate(keys)]
    assert taken == [True] * 37 + [False] * 23
    assert offsets.put(keys[3], 99)  # one that is there
    assert [offsets.get(key) for key in keys] == [1, 2, 3, 99, *range(5, 38)] + [-1] * 23
    offsets.close()


# --- Which part ---------------------------------------------------------------------------------------


def segment(
    base: int, end: int, size: int = 100, *, first_ms: int = NOW - 900, last_ms: int = NOW - 100
) -> SegmentFacts:
    return SegmentFacts(base, end, size, 8, 12, first_ms, last_ms)


FOUR = (segment(0, 10), segment(10, 20), segment(20, 30), segment(30, 40))


def dirt(
    segments: Sequence[SegmentFacts] = FOUR,
    *,
    checkpoint: int = -1,
    stable: int = 50,
    start: int = 0,
    **settings: object,
) -> Dirt:
    config = TopicConfig(cleanup_policy=("compact",), **settings)  # type: ignore[arg-type]
    active = segments[-1].end_offset if segments else 0
    return find_dirt(LogFacts(segments, start, 50, active, 50, stable, checkpoint), config, NOW)


@pytest.mark.parametrize(
    ("found", "first", "end", "clean", "dirty", "void"),
    [
        (dirt(), 0, 40, 0, 400, False),
        (dirt(checkpoint=20), 20, 40, 200, 200, False),
        (dirt(checkpoint=25), 25, 40, 200, 200, False),
        (dirt(checkpoint=40), 40, 40, 400, 0, False),
        (dirt(stable=39), 0, 30, 0, 300, False),
        (dirt(stable=5), 0, 0, 0, 0, False),
        (dirt(checkpoint=20, stable=25), 20, 20, 200, 0, False),
        (dirt(checkpoint=51), 0, 40, 0, 400, True),
        (dirt(checkpoint=4, start=12), 12, 40, 100, 300, True),
        (dirt(()), 0, 0, 0, 0, False),
    ],
    ids=[
        "never cleaned",
        "from the checkpoint",
        "within a segment",
        "all clean",
        "up to the last stable offset",
        "nothing committed",
        "nothing new committed",
        "a checkpoint beyond the end",
        "a checkpoint before the start",
        "only an active segment",
    ],
)
def test_what_may_be_cleaned(found: Dirt, first: int, end: int, clean: int, dirty: int, void: bool) -> None:
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (first, end)
    assert (found.clean_bytes, found.cleanable_bytes, found.checkpoint_is_void) == (clean, dirty, void)


def test_young_records_are_left() -> None:
    segments = (*FOUR[:2], segment(20, 30, last_ms=NOW - 49), segment(30, 40))
    found = dirt(segments, min_compaction_lag_ms=50)
    assert (found.first_uncleanable_offset, found.cleanable_bytes, found.uncleanable_bytes) == (20, 200, 200)
    assert dirt(segments, min_compaction_lag_ms=49).first_uncleanable_offset == 40


def test_when_a_log_is_due() -> None:
    config = TopicConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=800)
    assert dirt(checkpoint=10, min_cleanable_dirty_ratio=0.5).is_due(config)
    assert not dirt(checkpoint=20).is_due(config)  # just half
    late = dirt(checkpoint=20, max_compaction_lag_ms=800)
    assert late.delay_ms == 100
    assert late.is_due(config)
    assert not dirt(checkpoint=40, max_compaction_lag_ms=800).is_due(config)
    assert not dirt(checkpoint=20, max_compaction_lag_ms=900).is_due(config)


def test_groups_keep_within_a_segments_bounds() -> None:
    def groups(segments: Sequence[SegmentFacts], size: int, index: int = 1_000) -> list[list[int]]:
        return group_segments(segments, segment_bytes=size, index_bytes=index)

    assert groups(FOUR, 200) == [[0, 1], [2, 3]]
    assert groups(FOUR, 399) == [[0, 1, 2], [3]]
    assert groups(FOUR, 50) == [[0], [1], [2], [3]]
    assert groups(FOUR, 1_000, index=24) == [[0, 1], [2, 3]]
    assert groups(FOUR, 1_000, index=11) == [[0], [1], [2], [3]]
    far = (segment(0, 10), segment(10, 2**31), segment(2**31, 2**31 + 5))
    assert groups(far, 1_000) == [[0, 1], [2]]
    assert groups((), 1_000) == []
