"""One pass of the cleaner over one log, cut into slices that may run in another thread.

The pass first maps the keys of the dirty part to their latest offsets, as many as the map holds. Then it copies the
segments up to there, clean ones included, group by group into files named ``….cleaned``, without superseded records. A
durable group waits for the log's own thread to replace the originals with it (``Log.swap_in``).

A pass has its own file handles: it touches nothing that the log's thread uses.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Final, NamedTuple

from tidelog.model.buffer import Buffer
from tidelog.model.classes.frozen import dataclass
from tidelog.proto.records.batches import HEADER_SIZE, Batch, split_batches
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.decoder import record_bytes
from tidelog.proto.records.spans import record_spans
from tidelog.storage.cleaner.batch_filter import BatchFilter, FilterCounts, LastOfProducer
from tidelog.storage.cleaner.offset_map import ENTRY_BYTES, OffsetMap
from tidelog.storage.cleaner.plan import SegmentFacts, group_segments
from tidelog.storage.cleaner.transactions import CleanedTransactions
from tidelog.storage.disk.files import File, FileLayer
from tidelog.storage.disk.handles import HandlePool
from tidelog.storage.segments.batch_walk import batch_size_at
from tidelog.storage.segments.segment import CLEANED_SUFFIX, Segment
from tidelog.storage.segments.transaction_index import AbortedTransaction, OpenIndex, TransactionIndex, aborted_within

SLICE_WORK: Final = 500
"""Work per slice, roughly in records: a millisecond or two, to keep the event loop responsive."""
_BATCH_WORK: Final = 4
"""Work for a batch besides its records."""


class IndexPart(NamedTuple):
    """The first ``entries`` of a segment's transaction index, which lies at ``path``."""

    base_offset: int
    path: str
    entries: int


@dataclass(frozen=True, slots=True)
class CleaningLimits:
    """``dedupe_bytes`` and ``load_factor`` bound the map of keys; ``io_bytes`` are read at a time."""

    dedupe_bytes: int = 128 * 2**20
    load_factor: float = 0.9
    io_bytes: int = 512 * 1024


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """The range to clean, as it was when the pass began. ``segments`` are the log's own; the pass does not touch them.

    ``facts`` describes the same segments: all that begin before ``first_uncleanable_offset``.
    """

    directory: str
    segments: Sequence[Segment]
    facts: Sequence[SegmentFacts]
    first_dirty_offset: int
    first_uncleanable_offset: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    now_ms: int
    cuts: int
    """How often the log's end had been truncated; a truncation invalidates the pass."""


@dataclass(slots=True)
class CleaningCounts:
    """A pass's progress, in bytes and records; ``buffer_use`` is the used share of the map."""

    map_bytes_read: int = 0
    map_records_read: int = 0
    buffer_use: float = 0.0
    filtered: FilterCounts = field(default_factory=FilterCounts)

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written, for the throttle."""
        return self.map_bytes_read + self.filtered.bytes_read + self.filtered.bytes_kept


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """Segments and their replacement: durable files ``….cleaned`` with ``size`` bytes of log."""

    segments: Sequence[Segment]
    size: int


class Cleaning:
    """One pass; see the module. :meth:`step` does a slice. Call it until ``done``, and swap ``ready`` whenever it is
    set.

    Call :meth:`refresh` on the log's thread, between two slices.
    """

    def __init__(
        self, files: FileLayer, plan: CleaningPlan, limits: CleaningLimits, indexes: Sequence[IndexPart] = ()
    ) -> None:
        """``indexes``: the non-empty transaction indexes, also those of segments after the plan's: transactions that
        began before its end may have been aborted there."""
        self.plan = plan
        self.done = False
        self.ready: CleanedGroup | None = None
        self.end_offset = plan.first_dirty_offset
        """Keys are mapped up to here; the log is clean up to here once the pass is done."""
        self.counts = CleaningCounts()
        self.read_offset = plan.first_dirty_offset
        """Start of the batch, or segment, that the pass reads now."""
        self.running = False
        """True while a slice runs, perhaps in another thread."""
        self._files = files
        self._limits = limits
        self._indexes = indexes
        self._producers: Mapping[int, LastOfProducer] = {}
        self._work = self._run()

    def refresh(self, producers: Mapping[int, LastOfProducer]) -> None:
        """Update which producers the log knows. Call it before the first slice and before each group."""
        self._producers = producers

    def step(self) -> None:
        """Run one slice. Raises ``OSError``, and :class:`CorruptBatch` for an unreadable segment."""
        assert self.ready is None, "a group waits to be swapped"
        assert not self.done, "the pass has come to its end"
        self.running = True
        try:
            next(self._work)
        except StopIteration:
            self.done = True
        finally:
            self.running = False

    def swapped(self) -> None:
        """Note that the ready group has replaced its originals."""
        self.ready = None

    def close(self) -> None:
        """Release memory and handles. Files that were copied but not swapped stay on disk; see :meth:`leftovers`."""
        with suppress(ValueError):  # a slice whose owner was cancelled while it ran: it ends by itself
            self._work.close()

    def leftovers(self) -> list[str]:
        """Return paths that a pass may have left behind when it ended early."""
        found = []
        for segment in self.plan.segments:
            copy = self._copy_of(segment.base_offset, HandlePool(self._files))
            found += [copy.log.path, copy.offsets.file.path, copy.times.file.path, copy.transactions.file.path]
        return found

    # --- The work --------------------------------------------------------------------------------

    def _run(self) -> Generator[None, None, None]:
        plan = self.plan
        offsets = self._make_map()
        try:
            yield from self._map_keys(offsets)
            self.counts.buffer_use = offsets.size / offsets.slots
            facts = [segment for segment in plan.facts if segment.base_offset < self.end_offset]
            groups = group_segments(facts, segment_bytes=plan.segment_bytes, index_bytes=plan.segment_index_bytes)
            kept = BatchFilter(
                offsets,
                self.end_offset,
                now_ms=plan.now_ms,
                delete_retention_ms=plan.delete_retention_ms,
                producers=self._producers,
                transactions=CleanedTransactions(),
            )
            self.counts.filtered = kept.counts
            for numbers in groups:
                kept.producers = self._producers
                yield from self._copy([plan.segments[n] for n in numbers], [facts[n] for n in numbers], kept)
        finally:
            offsets.close()

    def _make_map(self) -> OffsetMap:
        """Make a map no larger than the dirty part can have keys."""
        limits, plan = self._limits, self.plan
        wanted = int((plan.first_uncleanable_offset - plan.first_dirty_offset) / limits.load_factor) + 2
        return OffsetMap(max(2, min(limits.dedupe_bytes // ENTRY_BYTES, wanted)))

    def _map_keys(self, offsets: OffsetMap) -> Generator[None, None, None]:
        plan, counts = self.plan, self.counts
        first_dirty = plan.first_dirty_offset
        keys_max = max(1, int(offsets.slots * self._limits.load_factor))
        transactions = CleanedTransactions()
        transactions.add_aborted(self._aborted_in(first_dirty, plan.first_uncleanable_offset))
        work = 0
        for segment, facts in zip(plan.segments, plan.facts, strict=True):
            if facts.end_offset <= first_dirty:
                continue
            for batch in self._batches(segment, facts.size):
                counts.map_bytes_read += batch.size
                counts.map_records_read += batch.record_count
                if batch.is_control:
                    transactions.on_control(batch)
                elif not transactions.on_batch(batch) and batch.last_offset >= first_dirty and batch.record_count:
                    work += batch.record_count
                    full_at = _map_batch(offsets, batch, first_dirty, keys_max)
                    if full_at is not None:
                        self.end_offset = full_at
                        return
                self.end_offset = max(self.end_offset, batch.next_offset)
                work += _BATCH_WORK
                if work >= SLICE_WORK:
                    work = 0
                    yield
            self.end_offset = facts.end_offset

    def _copy(
        self, segments: Sequence[Segment], facts: Sequence[SegmentFacts], kept: BatchFilter
    ) -> Generator[None, None, None]:
        """Copy the remaining records of some segments into one, and wait for the swap."""
        plan = self.plan
        pool = HandlePool(self._files)
        copy = self._copy_of(segments[0].base_offset, pool)
        last = max((n for n, each in enumerate(facts) if each.size), default=-1)
        buffers: list[Buffer] = []
        written: list[tuple[int, int, int]] = []
        size = work = 0
        try:
            copy.create()
            for number, (segment, each) in enumerate(zip(segments, facts, strict=True)):
                kept.transactions.add_aborted(self._aborted_in(each.base_offset, each.end_offset))
                left = each.size
                for batch in self._batches(segment, each.size):
                    left -= batch.size
                    found = kept.filter(batch, is_last=number == last and not left)
                    if found is not None:
                        buffers.append(found)
                        stored = batch if found is batch.view else Batch(memoryview(found))
                        written.append((stored.last_offset, stored.size, stored.max_timestamp))
                        size += len(found)
                    if size >= self._limits.io_bytes:
                        copy.append(buffers, written, plan.index_interval_bytes)
                        buffers, written, size = [], [], 0
                    work += batch.record_count + _BATCH_WORK
                    if work >= SLICE_WORK:
                        work = 0
                        yield
            if buffers:
                copy.append(buffers, written, plan.index_interval_bytes)
            copy.seal()
            written_files = [copy.log, copy.offsets.file, copy.times.file]
            retained = kept.transactions.take_retained()
            originals = {segment.base_offset for segment in segments}
            if any(index.base_offset in originals for index in self._indexes):
                # Even if it is empty: without it, the swap would leave the first original's.
                copy.transactions.write(retained)
                written_files.append(copy.transactions.file)
            yield
            for file in written_files:
                file.get().fdatasync()
        finally:
            copy.close()
        self.ready = CleanedGroup(segments, copy.size)
        yield

    def _aborted_in(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Return aborted transactions that overlap the offsets from ``start`` to ``end``."""
        # Earlier segments' markers lie before ``start``, and a swap may have taken their indexes away.
        first = max((each.base_offset for each in self.plan.segments if each.base_offset <= start), default=start)
        indexes = [index for index in self._indexes if index.base_offset >= first]
        pool = HandlePool(self._files)
        opened = [OpenIndex(TransactionIndex(pool, path, size)) for _, path, size in indexes]
        try:
            return aborted_within(opened, start, end)
        finally:
            for index in opened:
                index.transactions.file.close()

    def _copy_of(self, base_offset: int, pool: HandlePool) -> Segment:
        return Segment(pool, self.plan.directory, base_offset, 0, 0, suffix=CLEANED_SUFFIX)

    def _batches(self, segment: Segment, size: int) -> Iterator[Batch]:
        """Yield all batches of a segment, whole and with a valid CRC. Raises :class:`CorruptBatch`."""
        file = self._files.open(segment.log.path)
        try:
            position = 0
            self.read_offset = segment.base_offset
            while position < size:
                for batch in _read(file, position, size, self._limits.io_bytes):
                    if not batch.crc_ok():
                        raise CorruptBatch(
                            f"expected a batch at {position} of {segment.log.path} that matches its CRC, it does not"
                        )
                    position += batch.size
                    self.read_offset = batch.next_offset
                    yield batch
        finally:
            file.close()


def _read(file: File, position: int, end: int, bytes_max: int) -> list[Batch]:
    """Return at least one whole batch from a position on. Raises :class:`CorruptBatch`."""
    data = file.pread(min(bytes_max, end - position), position)
    found = split_batches(data, allow_partial_tail=True)
    if found:
        return found
    if len(data) < HEADER_SIZE:
        raise CorruptBatch(f"expected a batch header at {position}, found {len(data)} bytes")
    return split_batches(file.pread(batch_size_at(memoryview(data), 0, end - position), position))


def _map_batch(offsets: OffsetMap, batch: Batch, first_offset: int, keys_max: int) -> int | None:
    """Map a batch's keys from an offset on. Returns the first offset that does not fit, if any.

    Batches that cannot be decoded are skipped: they replace nothing.
    """
    try:
        spans = record_spans(record_bytes(batch), batch)
    except CorruptBatch:
        return None
    put = offsets.put
    for offset, _, key, _, _, _ in spans:
        if key is not None and offset >= first_offset:
            if offsets.size >= keys_max:
                return offset
            put(key, offset)
    return None
