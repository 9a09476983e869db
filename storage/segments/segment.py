"""One segment of a log: a file of batches, its two sparse indexes, and the index of aborted transactions.

The sparse indexes are hints. An entry of the offset index names a batch's last offset and position, so a lookup sees
immediately whether it is right; if not, :class:`StaleIndex` is raised internally and both indexes are rebuilt from the
log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from tidelog.model.buffer import Buffer
from tidelog.model.ids import Offset
from tidelog.proto.records.batches import HEADER, HEADER_SIZE, Batch, CorruptBatch, split_batches
from tidelog.storage.disk.files import start_over
from tidelog.storage.disk.handles import HandlePool, PooledFile
from tidelog.storage.disk.write_job import WriteJob
from tidelog.storage.segments.batch_walk import HEADER_CHUNK, batch_size_at, walk_headers
from tidelog.storage.segments.examination import DamagedRange
from tidelog.storage.segments.filter_index import FilterIndex
from tidelog.storage.segments.index import RELATIVE_MAX, OffsetIndex, TimeIndex
from tidelog.storage.segments.transaction_index import TransactionIndex

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
FILTER_INDEX_SUFFIX: Final = ".filterindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
"""Suffix of files that compaction is writing, after their usual suffix."""
MENDED_SUFFIX: Final = ".mended"
"""Suffix of files in which damage is being replaced, after their usual suffix."""
SWAP_SUFFIX: Final = ".swap"
"""Suffix of complete files that will replace others: recovery finishes the replacement."""

ENTRIES_TRIED: Final = 8
"""Offset index entries to try before falling back to the segment's start."""

logger = logging.getLogger(__name__)


class StaleIndex(Exception):
    """An index entry that the log contradicts."""


def file_name(offset: int, suffix: str) -> str:
    """Return Kafka's name for a segment's file: 20 digits and the suffix."""
    return f"{offset:020d}{suffix}"


class Segment:
    """``size`` is the size of the log file's valid part; ``max_timestamp`` is -1 if no record has a time.

    ``created_ms`` and ``first_timestamp`` (None until known) decide when it is old enough to roll. A segment found on
    disk is checked at its first use (:meth:`ready`); missing, short or wrong indexes are repaired then. ``damage``:
    known damaged ranges of the log file, in order. They are skipped; only requests for their offsets are refused.
    """

    __slots__ = (
        "_ready",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "damage",
        "filters",
        "first_timestamp",
        "log",
        "max_timestamp",
        "max_timestamp_offset",
        "offsets",
        "size",
        "times",
        "transactions",
    )

    def __init__(
        self, pool: HandlePool, directory: str, base_offset: int, size: int, created_ms: int, *, suffix: str = ""
    ) -> None:
        """``suffix``: goes after the files' usual suffixes."""
        stem = f"{directory}/{base_offset:020d}"
        self.base_offset = base_offset
        self.size = size
        self.created_ms = created_ms
        self.log = PooledFile(pool, stem + LOG_SUFFIX + suffix)
        self.offsets = OffsetIndex(pool, stem + INDEX_SUFFIX + suffix)
        self.times = TimeIndex(pool, stem + TIME_INDEX_SUFFIX + suffix)
        self.transactions = TransactionIndex(pool, stem + TXN_INDEX_SUFFIX + suffix)
        self.filters = FilterIndex(pool, stem + FILTER_INDEX_SUFFIX + suffix, base_offset)
        self.bytes_since_index = 0
        self.first_timestamp: int | None = None
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.damage: tuple[DamagedRange, ...] = ()
        self._ready = False

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"

    def create(self, reserve: int = 0) -> None:
        """Create the empty log file, with ``reserve`` bytes preallocated."""
        start_over(self.log.get(create=True))
        if reserve:
            self.log.get().reserve(reserve)
        self.transactions.start_empty()
        self.start_empty()

    def start_empty(self) -> None:
        """Treat the sparse indexes as empty: the log is empty, or they are about to be rebuilt."""
        self.offsets.start_empty()
        self.times.start_empty()
        self.bytes_since_index = 0
        self.first_timestamp = None
        self.max_timestamp = -1
        self.max_timestamp_offset = self.base_offset
        self._ready = True

    def forget_indexes(self) -> None:
        """Empty the sparse indexes before a rebuild."""
        self.offsets.cut(0)
        self.times.cut(0)
        self.start_empty()

    def renamed_to(self, directory: str) -> None:
        """Note that the files' directory was renamed."""
        for file in (self.log, self.offsets.file, self.times.file, self.transactions.file, self.filters.file):
            file.renamed_to(directory)

    # --- Writing -------------------------------------------------------------------------------

    def append(
        self,
        buffers: Sequence[Buffer],
        batches: Sequence[tuple[int, int, int]],
        index_interval: int,
        later: Offset | None = None,
    ) -> WriteJob | None:
        """Write batches at the end with one call; ``batches``: (last offset, size, highest timestamp) of each.
        ``later``: the first offset of many batches that nobody will read soon; returns the job that writes them."""
        position = self.size
        job = None
        if later is None:
            self.log.get().pwritev(buffers, position)
        else:
            job = WriteJob(self.log, buffers, position, later)
        for last_offset, size, timestamp in batches:
            self.note_batch(position, last_offset, size, timestamp, index_interval)
            position += size
        self.size = position
        return job

    def note_batch(self, position: int, last_offset: int, size: int, timestamp: int, index_interval: int) -> None:
        """Add a batch of the log to the indexes (Kafka's ``LogSegment.append``)."""
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset
        if self.first_timestamp is None:
            self.first_timestamp = timestamp
        if self.bytes_since_index > index_interval:
            self.offsets.add(last_offset - self.base_offset, position)
            if self.max_timestamp >= 0:
                self.times.add_if_later(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self.bytes_since_index = 0
        self.bytes_since_index += size

    def has_room(self, size: int, last_offset: int, segment_bytes: int, index_bytes: int) -> bool:
        """Return whether ``size`` more bytes up to ``last_offset`` fit into this segment."""
        return (
            self.size + size <= segment_bytes
            and self.size + size <= RELATIVE_MAX
            and last_offset - self.base_offset <= RELATIVE_MAX
            and (len(self.offsets) + 1) * OffsetIndex.ENTRY.size <= index_bytes
            and (len(self.times) + 1) * TimeIndex.ENTRY.size <= index_bytes
        )

    def complete_times(self) -> None:
        """Add the highest timestamp to the time index."""
        if self._ready and self.max_timestamp >= 0:
            self.times.add_if_later(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def seal(self) -> None:
        """Close the segment to appends: complete both indexes and write them out."""
        self.complete_times()
        self.offsets.write_out(create=True)
        self.times.write_out(create=True)

    def cut(self, position: int, offset: int, index_interval: int) -> None:
        """Remove everything from ``position`` on, where ``offset`` begins, durably."""
        keep = len(self.offsets)
        while keep and self.offsets.entry(keep - 1)[1] >= position:
            keep -= 1
        file = self.log.get()
        file.truncate(position)
        file.fdatasync()
        self.size = position
        self.damage = tuple(known for known in self.damage if known.end <= position)
        if self.transactions.cut(offset):
            self.transactions.file.get().fdatasync()
        # The kept entries may name a maximum after the cut or miss one before it: replay from the last valid offset
        # entry.
        try:
            self.resume(keep, index_interval)
        except CorruptBatch as error:
            # The remaining part is damaged. Its readers will get an error; the truncation is still right.
            logger.error("%s: %s", self.log.path, error)

    def close(self) -> None:
        """Release the file descriptors."""
        self.log.close()
        self.offsets.file.close()
        self.times.file.close()
        self.transactions.file.close()
        self.filters.file.close()

    # --- Taking up what is on disk -------------------------------------------------------------

    def ready(self, index_interval: int) -> None:
        """Make the indexes cover the segment, and find the highest timestamp. Raises :class:`CorruptBatch`."""
        if not self._ready:
            self.resume(self.undoubted(), index_interval)
            self.seal()

    def resume(self, keep: int, index_interval: int) -> Offset:
        """Load the segment's state from its files; return its end offset.

        Trusts the first ``keep`` entries of the offset index after comparing the last of them, and the last matching
        entry of the time index, with the log; otherwise rebuilds both. Raises :class:`CorruptBatch` if the log holds an
        invalid batch.
        """
        start, end_offset = self.trusted_start(keep)
        for position, batch in self.walk(start):
            end_offset = batch.next_offset
            self.note_batch(position, batch.last_offset, batch.size, batch.max_timestamp, index_interval)
        return end_offset

    def undoubted(self) -> int:
        """Return the number of offset entries up to which the time index is certainly complete.

        The two files are written separately, so after a kill either may lack entries that the other has.
        """
        last = self._trusted_times(self.base_offset + RELATIVE_MAX)
        if last is None:
            return 0
        return self.offsets.floor(last[1] - self.base_offset) + 1

    def trusted_start(self, keep: int) -> tuple[int, Offset]:
        """Cut both indexes to a common point, at most ``keep`` entries, that the log confirms.

        Returns position and offset after that point: the caller walks the rest.
        """
        if keep > len(self.offsets):
            keep = len(self.offsets)
        while keep:
            relative, position = self.offsets.entry(keep - 1)
            batch = _header_at(self.log, position, self.size)
            if batch is not None and batch.last_offset - self.base_offset == relative:
                found = self._trusted_times(batch.last_offset)
                if found is None:
                    break
                self.offsets.cut(keep)
                self.bytes_since_index = batch.size
                self.first_timestamp = None
                self.max_timestamp, self.max_timestamp_offset = found
                self._ready = True
                if batch.max_timestamp > self.max_timestamp:
                    self.max_timestamp, self.max_timestamp_offset = batch.max_timestamp, batch.last_offset
                self._learn_first_timestamp()
                return position + batch.size, batch.next_offset
            if keep == 1 or (len(self.offsets) - keep) >= ENTRIES_TRIED:
                break
            keep -= 1
        self.forget_indexes()
        return 0, Offset(self.base_offset)

    def _trusted_times(self, last_offset: int) -> tuple[int, int] | None:
        """Cut the time index to entries up to ``last_offset``; return the last one, None if it is wrong."""
        keep = len(self.times)
        while keep and self.times.entry(keep - 1)[1] > last_offset - self.base_offset:
            keep -= 1
        self.times.cut(keep)
        last = self.times.last()
        if last is None:
            return None
        timestamp, relative = last
        try:
            for _, batch in self.walk(self._indexed_position(self.base_offset + relative)):
                if batch.last_offset >= self.base_offset + relative:
                    right = batch.last_offset == self.base_offset + relative and batch.max_timestamp == timestamp
                    return (timestamp, batch.last_offset) if right else None
        except (CorruptBatch, StaleIndex):
            pass
        return None

    def _learn_first_timestamp(self) -> None:
        batch = _header_at(self.log, 0, self.size)
        if batch is not None:
            self.first_timestamp = batch.max_timestamp

    # --- Damage --------------------------------------------------------------------------------

    def examined(self, start: int, end: int, found: Sequence[DamagedRange]) -> None:
        """Note all damage between two positions."""
        kept = [known for known in self.damage if known.end <= start or known.position >= end]
        damage = tuple(sorted((*kept, *found)))
        if damage != self.damage:
            self.damage = damage
            # The indexes may have been built from the damage.
            self._ready = False

    def refuse_damaged(self, offset: int) -> None:
        """Raise :class:`CorruptBatch` if an offset is in a damaged range."""
        for known in self.damage:
            if known.first_offset <= offset < known.next_offset:
                raise CorruptBatch(f"damaged in {self.log.path}: {known}")

    def refuse_damaged_at(self, position: int) -> None:
        """Raise :class:`CorruptBatch` if damage begins at a position."""
        for known in self.damage:
            if known.position == position:
                raise CorruptBatch(f"damaged in {self.log.path}: {known}")

    def whole_until(self, position: int, end_offset: int) -> tuple[int, int]:
        """Return the end of the undamaged part that continues from a batch's position, and its offset: ``end_offset``
        at the segment's end."""
        for known in self.damage:
            if known.position >= position:
                return known.position, known.first_offset
        return self.size, end_offset

    def walk(self, position: int) -> Iterator[tuple[int, Batch]]:
        """Yield the headers from a position on, skipping damage. Raises :class:`CorruptBatch`, also for offsets, which
        no CRC covers, that are impossible in this segment."""
        due = self.base_offset
        for start, end in self._between_damage(position):
            for found, batch in walk_headers(self.log, start, end):
                last = batch.last_offset
                if batch.base_offset < due or last < batch.base_offset or last - self.base_offset > RELATIVE_MAX:
                    raise CorruptBatch(
                        f"expected offset {due} or a little later at {found} of {self.log.path}, found "
                        f"{batch.base_offset}..{last}"
                    )
                due = last + 1
                yield found, batch

    def _between_damage(self, position: int) -> Iterator[tuple[int, int]]:
        for known in self.damage:
            if known.end > position:
                yield position, known.position
                position = known.end
        yield position, self.size

    # --- Lookups -------------------------------------------------------------------------------

    def position_of(self, offset: int, index_interval: int) -> int:
        """Return the position of the first batch that ends at ``offset`` or later; ``size`` if there is none.

        Raises :class:`CorruptBatch` if the log is not readable on the way.
        """
        if not self._ready:
            self.ready(index_interval)
        try:
            start = self._indexed_position(offset)
        except StaleIndex:
            self.rebuild(index_interval)
            start = self._indexed_position(offset)
        self.refuse_damaged(offset)
        for position, batch in self.walk(start):
            if batch.last_offset >= offset:
                return position
        return self.size

    def indexed_position(self, offset: int) -> tuple[int, int]:
        """Return position and first offset of a batch at or before the one that holds ``offset``, verified by the
        index; the segment's start if no nearby entry is valid."""
        number = self.offsets.floor(offset - self.base_offset)
        for tried in range(number, max(number - ENTRIES_TRIED, -1), -1):
            relative, position = self.offsets.entry(tried)
            batch = _header_at(self.log, position, self.size)
            if batch is not None and batch.last_offset - self.base_offset == relative:
                return position, batch.base_offset
        return 0, self.base_offset

    def place_of(self, offset: int, index_interval: int) -> tuple[int, int]:
        """Return position and first offset of the batch, or of the damage, that holds ``offset``.

        If nothing holds it: the position of what follows, and ``offset``. Raises :class:`CorruptBatch` for unknown
        damage on the way.
        """
        for known in self.damage:
            if known.first_offset <= offset < known.next_offset:
                return known.position, known.first_offset
        position = self.position_of(offset, index_interval)
        return position, offset if position >= self.size else min(offset, self.first_offset_at(position))

    def _indexed_position(self, offset: int) -> int:
        number = self.offsets.floor(offset - self.base_offset)
        if number < 0:
            return 0
        relative, position = self.offsets.entry(number)
        batch = _header_at(self.log, position, self.size)
        if batch is None or batch.last_offset - self.base_offset != relative:
            raise StaleIndex
        return position

    def end_of_whole(self, position: int, size_max: int, offset_end: int) -> tuple[int, int]:
        """Return the end of the last whole batch within ``size_max`` bytes from ``position`` and below ``offset_end``,
        and the offset after it; (``position``, -1) if there is none.

        ``position`` must be a batch's, found with :meth:`position_of`. Raises :class:`CorruptBatch`.
        """
        # The index names batches: skip to the last one that begins within the bounds, if the entry is right.
        start, next_offset = position, -1
        entry = self.offsets.last_up_to(position + size_max)
        if entry is not None and self.base_offset + entry[0] >= offset_end:
            number = self.offsets.floor(offset_end - 1 - self.base_offset)
            entry = self.offsets.entry(number) if number >= 0 else None
        if entry is not None and position < entry[1] <= position + size_max:
            batch = _header_at(self.log, entry[1], self.size)
            if batch is not None and batch.last_offset - self.base_offset == entry[0]:
                start, next_offset = entry[1], batch.base_offset
        limit = min(position + size_max, self.size)
        chunk, chunk_at = memoryview(b""), start
        while start + HEADER_SIZE <= limit:
            at = start - chunk_at
            if at + HEADER_SIZE > len(chunk):
                chunk = memoryview(self.log.get().pread(min(HEADER_CHUNK, self.size - start), start))
                chunk_at, at = start, 0
                if len(chunk) < HEADER_SIZE:
                    raise CorruptBatch(f"expected a batch header at {start}, found {len(chunk)} bytes")
            size = batch_size_at(chunk, at, self.size - start)
            base, _, _, _, _, _, last_delta, *_ = HEADER.unpack_from(chunk, at)
            if start + size > limit or base + last_delta >= offset_end:
                break
            start, next_offset = start + size, base + last_delta + 1
        return start, next_offset

    def rebuild(self, index_interval: int) -> None:
        """Rebuild both indexes from the log. Raises :class:`CorruptBatch`."""
        self.offsets.cut(0)
        self.times.cut(0)
        self.start_empty()
        for position, batch in self.walk(0):
            self.note_batch(position, batch.last_offset, batch.size, batch.max_timestamp, index_interval)
        if self.max_timestamp >= 0:
            self.times.add_if_later(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self.offsets.write_out(create=True)
        self.times.write_out(create=True)

    def batches_from(self, timestamp: int, index_interval: int) -> Iterator[Batch]:
        """Yield all whole batches that may hold records at or after ``timestamp``. Raises :class:`CorruptBatch`."""
        self.ready(index_interval)
        try:
            start = self._timed_position(timestamp, index_interval)
        except StaleIndex:
            self.rebuild(index_interval)
            start = self._timed_position(timestamp, index_interval)
        due = start
        for position, batch in self.walk(start):
            if position != due:
                # A damaged record may have that time: a later record would be the wrong answer.
                self.refuse_damaged_at(due)
            if batch.max_timestamp >= timestamp:
                yield self.read_batch(position, batch.size)
            due = position + batch.size
        self.refuse_damaged_at(due)

    def _timed_position(self, timestamp: int, index_interval: int) -> int:
        """Return a position before which all records are older than ``timestamp``, by the time index."""
        number = self.times.floor(timestamp - 1)
        if number < 0:
            return 0
        highest, relative = self.times.entry(number)
        position = self.position_of(self.base_offset + relative, index_interval)
        batch = _header_at(self.log, position, self.size)
        if batch is None or batch.last_offset - self.base_offset != relative or batch.max_timestamp != highest:
            raise StaleIndex
        return position

    def offset_behind(self, position: int, end_offset: int) -> int:
        """Return an upper bound (exclusive) of the offsets before a position: its batch's base offset, or
        ``end_offset`` at the end. Raises :class:`CorruptBatch`."""
        end, offset = self.whole_until(position, end_offset)
        return offset if position >= end else self.first_offset_at(position)

    def first_offset_at(self, position: int) -> int:
        """Return the base offset of the batch at ``position``. Raises :class:`CorruptBatch`."""
        batch = _header_at(self.log, position, self.size)
        if batch is None:
            raise CorruptBatch(f"expected a batch at {position} of {self.log.path}, found none")
        return batch.base_offset

    def read_batch(self, position: int, size: int) -> Batch:
        return split_batches(self.log.get().pread(size, position))[0]


def _header_at(file: PooledFile, position: int, end: int) -> Batch | None:
    """Return the header at a position that may be wrong; None if there is none."""
    if position < 0 or position + HEADER_SIZE > end:
        return None
    view = memoryview(file.get().pread(HEADER_SIZE, position))
    if len(view) < HEADER_SIZE:
        return None
    try:
        size = batch_size_at(view, 0, end - position)
    except CorruptBatch:
        return None
    batch = Batch(view)
    batch.size = size
    return batch
