"""Reads from a log by offset and by timestamp. Never changes a log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.model.ids import LeaderEpoch, Offset
from tidelog.proto.records.batches import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, Batch, CorruptBatch
from tidelog.proto.records.decoder import decode_fields
from tidelog.storage.disk.handles import PooledFile
from tidelog.storage.segments.batch_walk import batch_size_at
from tidelog.storage.segments.segment import Segment

HINTS_MAX: Final = 16
"""Readers whose next position is remembered per log, so that sequential reads need no index."""


class LogRead(NamedTuple):
    """Whole batches from one segment.

    ``records`` may begin before the requested offset (with the batch that holds it) and is empty if there is nothing
    yet. Continue at ``next_offset``. ``position`` is the first byte's position in the segment with base
    ``segment_base``, for transports that send from the file.
    """

    records: memoryview
    first_offset: Offset
    next_offset: Offset
    segment_base: Offset
    position: int


class LogSpan:
    """Whole batches left in their segment's file, which stays open until :meth:`release`.

    They begin and continue as in :class:`LogRead`. Retention and compaction do not change the file: they unlink it.
    Only an unclean election truncates below the high watermark.
    """

    __slots__ = ("_file", "_log", "next_offset", "position", "size")

    def __init__(self, log: PooledFile, position: int, size: int, next_offset: Offset) -> None:
        self._log: PooledFile | None = log
        self._file = log.pin()
        self.position = position
        self.size = size
        self.next_offset = next_offset

    def fileno(self) -> int:
        return self._file.fileno()

    def release(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.unpin()


class TimestampOffset(NamedTuple):
    """A record found by its time (ms)."""

    timestamp: int
    offset: Offset
    leader_epoch: LeaderEpoch


class ReadHints:
    """The positions at which readers will continue: offset → (segment base, position). Bounded; the oldest goes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}

    def put(self, offset: int, segment_base: int, position: int) -> None:
        known = self._known
        known[offset] = (segment_base, position)
        if len(known) > HINTS_MAX:
            del known[next(iter(known))]

    def get(self, offset: int) -> tuple[int, int] | None:
        return self._known.get(offset)

    def clear(self) -> None:
        self._known.clear()


def segment_of(segments: Sequence[Segment], offset: int) -> int:
    """Return the index of the segment that holds ``offset``; the first one for offsets before it."""
    return max(bisect_right(segments, offset, key=_base) - 1, 0)


def read_batches(
    segments: Sequence[Segment],
    hints: ReadHints,
    offset: int,
    bytes_max: int,
    offset_end: int,
    *,
    log_end_offset: int,
    at_least_one: bool,
    index_interval: int,
) -> LogRead:
    """Read whole batches below ``offset_end`` from the segment that holds ``offset``.

    The caller has checked that ``offset`` is in the log and below ``offset_end``. Raises
    :class:`CorruptBatch`.
    """
    place = _locate(segments, hints, offset, index_interval)
    if place is None:
        return empty_read(offset)
    number, position = place
    segment = segments[number]
    last = number == len(segments) - 1
    end, end_offset = segment.whole_until(position, log_end_offset if last else segments[number + 1].base_offset)
    rest = end - position
    data = memoryview(segment.log.get().pread(min(bytes_max, rest), position))
    if at_least_one:
        needed = _first_size(data, segment, position)
        if needed > len(data):
            data = memoryview(segment.log.get().pread(needed, position))
    if len(data) == rest and offset_end >= end_offset:
        good, first_offset, next_offset = rest, int(HEADER.unpack_from(data)[0]), end_offset
    else:
        good, first_offset, next_offset = _cut_to_whole(data, offset, offset_end, rest)
    if not good:
        return empty_read(offset)
    hints.put(next_offset, segment.base_offset, position + good)
    return LogRead(
        data[:good] if good < len(data) else data,
        Offset(first_offset),
        Offset(next_offset),
        Offset(segment.base_offset),
        position,
    )


def find_span(
    segments: Sequence[Segment],
    hints: ReadHints,
    offset: int,
    bytes_max: int,
    offset_end: int,
    *,
    log_end_offset: int,
    at_least_one: bool,
    index_interval: int,
) -> LogSpan | None:
    """Like :func:`read_batches`, but read only headers. ``None`` if there is nothing yet.

    Raises :class:`CorruptBatch`.
    """
    place = _locate(segments, hints, offset, index_interval)
    if place is None:
        return None
    number, position = place
    segment = segments[number]
    last = number == len(segments) - 1
    whole, end_offset = segment.whole_until(position, log_end_offset if last else segments[number + 1].base_offset)
    if whole - position <= bytes_max and offset_end >= end_offset:
        end, next_offset = whole, end_offset
    else:
        end, next_offset = segment.end_of_whole(position, min(bytes_max, whole - position), offset_end)
        if end == position and at_least_one:
            end, next_offset = segment.end_of_whole(position, _first_size(_NOTHING, segment, position), offset_end)
        if end == position:
            return None
    hints.put(next_offset, segment.base_offset, end)
    return LogSpan(segment.log, position, end - position, Offset(next_offset))


def _locate(segments: Sequence[Segment], hints: ReadHints, offset: int, index_interval: int) -> tuple[int, int] | None:
    """Return the segment's index and the batch's position where a read from ``offset`` begins."""
    hint = hints.get(offset)
    number = segment_of(segments, offset)
    segment = segments[number]
    if hint is not None and hint[0] == segment.base_offset:
        position = hint[1]
        segment.refuse_damaged(offset)
    else:
        position = segment.position_of(offset, index_interval)
    while position >= segment.size:
        number += 1
        if number == len(segments):
            return None
        segment = segments[number]
        position = segment.position_of(offset, index_interval)
    return number, position


def empty_read(offset: int) -> LogRead:
    return LogRead(_NOTHING, Offset(offset), Offset(offset), Offset(-1), 0)


def find_timestamp(
    segments: Sequence[Segment], timestamp: int, *, log_start_offset: int, offset_end: int, index_interval: int
) -> TimestampOffset | None:
    """Return the first record at or after ``timestamp`` in [log_start_offset, offset_end). Raises
    :class:`CorruptBatch`."""
    for segment in segments:
        if segment.base_offset >= offset_end:
            return None
        segment.ready(index_interval)
        if segment.max_timestamp < timestamp:
            continue
        for batch in segment.batches_from(timestamp, index_interval):
            if batch.base_offset >= offset_end:
                return None
            found = _record_from(batch, timestamp, log_start_offset)
            if found is not None:
                return found if found.offset < offset_end else None
    return None


def find_latest_timestamp(
    segments: Sequence[Segment], *, log_start_offset: int, offset_end: int, index_interval: int
) -> TimestampOffset | None:
    """Return the first record with the highest timestamp below ``offset_end`` (KIP-734)."""
    best: tuple[int, Segment] | None = None
    for segment in segments:
        if segment.base_offset >= offset_end or not segment.size:
            continue
        segment.ready(index_interval)
        if segment.max_timestamp >= 0 and (best is None or segment.max_timestamp > best[0]):
            best = (segment.max_timestamp, segment)
    if best is None:
        return None
    timestamp, segment = best
    return find_timestamp(
        [segment],
        timestamp,
        log_start_offset=log_start_offset,
        offset_end=offset_end,
        index_interval=index_interval,
    )


def _record_from(batch: Batch, timestamp: int, offset_from: int) -> TimestampOffset | None:
    if batch.is_log_append_time and batch.record_count == batch.last_offset_delta + 1:
        # all of the batch's records have its highest timestamp
        offset = max(batch.base_offset, Offset(offset_from))
        return TimestampOffset(batch.max_timestamp, offset, batch.leader_epoch) if offset <= batch.last_offset else None
    for record_offset, found, _, _, _ in decode_fields(batch):
        if found >= timestamp and record_offset >= offset_from:
            return TimestampOffset(found, Offset(record_offset), batch.leader_epoch)
    return None


def _first_size(data: memoryview, segment: Segment, position: int) -> int:
    """Return the size of the batch at ``position``; ``data`` may hold too little of it to tell."""
    if len(data) < HEADER_SIZE:
        data = memoryview(segment.log.get().pread(HEADER_SIZE, position))
        if len(data) < HEADER_SIZE:
            raise CorruptBatch(f"expected a batch header at {position} of {segment.log.path}, found {len(data)} bytes")
    return batch_size_at(data, 0, segment.size - position)


def _cut_to_whole(data: memoryview, offset: int, offset_end: int, room: int) -> tuple[int, int, int]:
    """Return how many bytes of ``data`` are whole batches below ``offset_end``, their first offset, and the offset
    after them."""
    position, first_offset, next_offset = 0, offset, offset
    length = len(data)
    unpack = HEADER.unpack_from
    while position + HEADER_SIZE <= length:
        base, batch_length, _, magic, _, _, last_delta, *_ = unpack(data, position)
        end = position + batch_length + LENGTH_OVERHEAD
        if magic != 2 or batch_length + LENGTH_OVERHEAD < HEADER_SIZE or end > room:
            if position:
                break
            batch_size_at(data, position, room)
        if end > length or base + last_delta >= offset_end:
            break
        if not position:
            first_offset = base
        next_offset = base + last_delta + 1
        position = end
    return position, first_offset, next_offset


def _base(segment: Segment) -> int:
    return segment.base_offset


_NOTHING: Final = memoryview(b"")
