"""Loads a partition's directory, and decides which of its data is valid after a crash.

The rules, in the order of their application:

- files marked as deleted, unfinished files, indexes without a log, and segments that end at or before the log start
  offset are removed;
- a pending replacement of segments is finished (``….log.swap``: see ``SegmentChain.replace``);
- everything before the *recovery point* was synced and is trusted. After a clean shutdown that is the whole log;
- from there on the log is read batch by batch. It ends at the first data that is not a whole batch with the right CRC,
  the expected offset, and a leader epoch not below the previous one; the rest is removed, durably, so that it can never
  come back;
- valid data after the recovery point is written again, so that the next sync writes it;
- indexes are rebuilt after the recovery point; before it they are repaired on use;
- indexes for filters are trusted if their segment lies wholly before it, and dropped otherwise;
- leader epochs after the recovery point come from the batches, and all of them do if the file is missing;
- producers come from the newest readable snapshot within the log and from the batches after it;
- the index of aborted transactions is trusted up to the recovery point; from there on it is rebuilt from the log: the
  replay begins at a snapshot before that point, so it sees where transactions end.

Source: Kafka's ``LogLoader`` and ``LogSegment.recover``, except that a recovery point may lie within a segment here,
and that an unsynced epoch file is never trusted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.model.ids import Offset
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, CorruptBatch
from tidelog.storage.disk.checkpoints import LEADER_EPOCHS, CorruptCheckpoint, decode_epochs
from tidelog.storage.disk.files import FileLayer, read_file
from tidelog.storage.disk.handles import HandlePool
from tidelog.storage.producers.loading import load_producers
from tidelog.storage.producers.state import ProducerStates
from tidelog.storage.segments.batch_walk import walk_headers, walk_whole
from tidelog.storage.segments.examination import OFFSET_MAX, DamagedRange, Expected, examine
from tidelog.storage.segments.index import RELATIVE_MAX
from tidelog.storage.segments.leader_epochs import LeaderEpochs
from tidelog.storage.segments.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    FILTER_INDEX_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MENDED_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from tidelog.storage.segments.transaction_index import AbortedTransaction

WRITTEN_BYTES: Final = 1 << 20
"""Bytes rewritten at a time."""
SPARSE_MARK: Final = "sparse-offsets"
"""An empty file: this log has gaps between its offsets (a compacted log, or a copy of one)."""
_UNFINISHED: Final = (DELETED_SUFFIX, ".tmp", CLEANED_SUFFIX, MENDED_SUFFIX)
_INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, FILTER_INDEX_SUFFIX)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedLog:
    """A log as loaded.

    ``snapshots``: offsets of the producer snapshots on disk, rising. ``was_clean``: it was closed in this state.
    ``lost_end``: it ends before its durable end; the disk lost data. ``on_disk``: it has a directory and files.
    ``loaded_ms``: when that was.
    """

    segments: list[Segment]
    log_start_offset: Offset
    log_end_offset: Offset
    recovery_point: Offset
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshots: list[int]
    sparse: bool
    was_clean: bool
    lost_end: bool
    loaded_ms: int
    on_disk: bool = True


def new_log(pool: HandlePool, directory: str, offset: int, producers_max: int, now_ms: int) -> LoadedLog:
    """Return a log that begins at ``offset`` and has nothing on disk yet."""
    segment = Segment(pool, directory, offset, 0, now_ms)
    segment.transactions.start_empty()
    segment.start_empty()
    at = Offset(offset)
    return LoadedLog(
        segments=[segment],
        log_start_offset=at,
        log_end_offset=at,
        recovery_point=at,
        epochs=LeaderEpochs(),
        producers=ProducerStates(producers_max=producers_max),
        snapshots=[],
        sparse=False,
        was_clean=True,
        lost_end=False,
        loaded_ms=now_ms,
        on_disk=False,
    )


class _Loader:
    def __init__(self, pool: HandlePool, directory: str, config: TopicConfig, now_ms: int) -> None:
        self.files: FileLayer = pool.files
        self.pool = pool
        self.directory = directory
        self.config = config
        self.now_ms = now_ms
        self.segments: list[Segment] = []
        self.snapshots: list[int] = []
        self.filtered: set[int] = set()
        """Bases of the segments with an index for filters."""
        self.epochs = LeaderEpochs()
        self.epochs_known = False
        self.epochs_differ = False
        """A batch before the recovery point has a later epoch than the file says."""
        self.sparse = False
        self.names_changed = False
        self.has_markers = False
        """There are control batches after the recovery point."""

    # --- What is there ---------------------------------------------------------------------------

    def list_files(self, log_start_offset: int) -> None:
        names = set(self.files.listdir(self.directory))
        self.sparse = SPARSE_MARK in names
        for name in sorted(name for name in names if name.endswith(_UNFINISHED)):
            names.discard(name)
            self.remove(name)
        if any(name.endswith(SWAP_SUFFIX) for name in names):
            self.finish_swaps(names)
            names = set(self.files.listdir(self.directory))
        bases = sorted(_offsets(names, LOG_SUFFIX))
        while len(bases) > 1 and bases[1] <= log_start_offset:
            self.remove(file_name(bases.pop(0), LOG_SUFFIX))
        for suffix in _INDEX_SUFFIXES:
            for base in sorted(set(_offsets(names, suffix)).difference(bases)):
                self.remove(file_name(base, suffix))
        self.filtered = set(_offsets(names, FILTER_INDEX_SUFFIX))
        self.snapshots = sorted(_offsets(names, SNAPSHOT_SUFFIX))
        for base in bases:
            size = self.files.size(f"{self.directory}/{file_name(base, LOG_SUFFIX)}")
            self.segments.append(Segment(self.pool, self.directory, base, size, self.now_ms))
        if LEADER_EPOCHS in names:
            try:
                self.epochs = LeaderEpochs(decode_epochs(read_file(self.files, f"{self.directory}/{LEADER_EPOCHS}")))
                self.epochs_known = True
            except CorruptCheckpoint as error:
                logger.warning("%s: taking the leader epochs from the log: %s", self.directory, error)

    def finish_swaps(self, names: set[str]) -> None:
        """Finish pending replacements of segments by cleaned ones.

        A kill during this leaves the same state to finish: the segment gets its name last, when everything that it
        replaces is durably gone.
        """
        # A killed process's renames may not be durable yet, and removals must not become durable before them.
        self.files.fsync_dir(self.directory)
        for base in sorted(_offsets(names, LOG_SUFFIX + SWAP_SUFFIX), reverse=True):
            size = self.files.size(f"{self.directory}/{file_name(base, LOG_SUFFIX + SWAP_SUFFIX)}")
            copy = Segment(self.pool, self.directory, base, size, self.now_ms, suffix=SWAP_SUFFIX)
            try:
                end = copy.resume(copy.undoubted(), self.config.index_interval_bytes) if size else base
            except CorruptBatch as error:
                logger.error("%s: skipped, the disk has damaged it: %s", copy.log.path, error)
                continue
            finally:
                copy.close()
            logger.info("%s: %s replaces it, up to offset %d", self.directory, copy.log.path, end)
            for old in sorted(each for each in _offsets(names, LOG_SUFFIX) if base < each < end):
                for suffix in (*_INDEX_SUFFIXES, SNAPSHOT_SUFFIX, LOG_SUFFIX):
                    self._take_out(names, file_name(old, suffix))
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, FILTER_INDEX_SUFFIX):
                self._take_out(names, file_name(base, suffix))
            # The transaction index cannot be rebuilt: the existing one may already be the copy's.
            transactions = f"{self.directory}/{file_name(base, TXN_INDEX_SUFFIX)}"
            if file_name(base, TXN_INDEX_SUFFIX + SWAP_SUFFIX) in names:
                self.files.rename(transactions + SWAP_SUFFIX, transactions)
                names.discard(file_name(base, TXN_INDEX_SUFFIX + SWAP_SUFFIX))
            self.files.fsync_dir(self.directory)
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX):
                name = file_name(base, suffix)
                if name + SWAP_SUFFIX in names:
                    self.files.rename(f"{self.directory}/{name}{SWAP_SUFFIX}", f"{self.directory}/{name}")
                    names.discard(name + SWAP_SUFFIX)
            names.add(file_name(base, LOG_SUFFIX))
            self.names_changed = True
        for name in sorted(name for name in names if name.endswith(SWAP_SUFFIX)):
            self._take_out(names, name)

    def _take_out(self, names: set[str], name: str) -> None:
        if name in names:
            names.discard(name)
            self.remove(name)

    def remove(self, name: str) -> None:
        self.files.unlink(f"{self.directory}/{name}")
        self.names_changed = True

    # --- Where it ends -----------------------------------------------------------------------------

    def resume(self) -> int:
        """Return the end of a log that was closed cleanly. Raises :class:`CorruptBatch` if it was not."""
        last = self.segments[-1]
        if not last.size:
            last.start_empty()
            return last.base_offset
        return last.resume(last.undoubted(), self.config.index_interval_bytes)

    def recover(self, recovery_point: int) -> int:
        """Find the end of the valid data, truncate the log there, and return that offset."""
        segments = self.segments
        first = max((n for n, segment in enumerate(segments) if segment.base_offset <= recovery_point), default=0)
        self.epochs.truncate_from_end(recovery_point)
        if not self.epochs_known:
            self.epochs.clear()
            self._gather_epochs(segments[:first])
        end = segments[first].base_offset
        for number in range(first, len(segments)):
            segment = segments[number]
            if number > first and not self._continues(segment.base_offset, end, recovery_point):
                logger.warning(
                    "%s: expected a segment at %d, found one at %d", self.directory, end, segment.base_offset
                )
                self._drop_from(number)
                break
            position, end, problem = self._recover_segment(segment, recovery_point, end)
            self._write_again(segment, recovery_point, position)
            self._cut_transactions(segment, min(recovery_point, end))
            if problem is not None:
                logger.warning(
                    "%s: the log ends at offset %d, %d bytes behind it are dropped: %s",
                    segment.log.path,
                    end,
                    segment.size - position,
                    problem,
                )
                self._drop_from(number + 1)
                # In a log with gaps, a later segment that came back would fit after the truncation point.
                self.sync_names()
                file = segment.log.get()
                file.truncate(position)
                file.fdatasync()
                segment.size = position
                break
            if number < len(segments) - 1:
                segment.seal()
        return end

    def resume_damaged(self, end_offset: int) -> bool:
        """Like :meth:`resume`, for a log closed cleanly at ``end_offset`` whose last segment was damaged since: the
        damage is remembered, nothing is truncated. False if this does not apply."""
        last = self.segments[-1]
        if end_offset <= last.base_offset or not last.size:
            return False
        file = last.log.get()
        expected = Expected(last.base_offset, end_offset, not self.sparse, self.epochs)
        found = [each for each in examine(file.pread, 0, last.size, expected) if isinstance(each, DamagedRange)]
        self._damaged(last, found)
        return last.resume(last.undoubted(), self.config.index_interval_bytes) <= end_offset and bool(found)

    def _damage_before(self, segment: Segment, recovery_point: int, epochs: LeaderEpochs) -> list[DamagedRange]:
        """Return the damage in a segment's durable part, if valid data follows; otherwise the log ends there."""
        number = self.segments.index(segment)
        following = self.segments[number + 1].base_offset if number + 1 < len(self.segments) else OFFSET_MAX
        expected = Expected(segment.base_offset, following, not self.sparse, epochs, recovery_point)
        return [
            found
            for found in examine(segment.log.get().pread, 0, segment.size, expected)
            if isinstance(found, DamagedRange)
            and found.first_offset < recovery_point
            and (found.end < segment.size or following <= recovery_point)
        ]

    def _damaged(self, segment: Segment, found: Sequence[DamagedRange]) -> None:
        for each in found:
            logger.error("%s: damaged: %s", segment.log.path, each)
        segment.damage += tuple(found)

    def _recover_segment(self, segment: Segment, recovery_point: int, due: int) -> tuple[int, int, str | None]:
        """Return position and offset of the valid end, and why the log does not continue."""
        due = max(due, segment.base_offset)
        if segment.base_offset >= recovery_point:
            segment.forget_indexes()
            return self._walk_segment(segment, 0, segment.size, recovery_point, due)
        synced = segment.offsets.floor(recovery_point - 1 - segment.base_offset) + 1
        keep = min(segment.undoubted(), synced) if self.epochs_known else 0
        start, due = segment.trusted_start(keep)
        epochs = self.epochs.entries()
        position, end, problem = self._walk_segment(segment, start, segment.size, recovery_point, due)
        if problem is None or (end >= recovery_point and not self.epochs_differ):
            return position, end, problem
        damage = self._damage_before(segment, recovery_point, LeaderEpochs(epochs if self.epochs_known else ()))
        if not damage:
            return position, end, problem
        # The damage may be earlier than where it shows: a wrong header shows in the batch after it.
        self._damaged(segment, damage)
        self.epochs = LeaderEpochs(epochs)
        self.epochs.dirty = True
        segment.forget_indexes()
        start, due = 0, Offset(segment.base_offset)
        for known in damage:
            self._walk_segment(segment, start, known.position, recovery_point, due)
            start, due = known.end, Offset(known.next_offset)
        return self._walk_segment(segment, start, segment.size, recovery_point, due)

    def _write_again(self, segment: Segment, recovery_point: int, end: int) -> None:
        """Make the next sync write everything after the recovery point. If a sync failed and the machine kept running,
        these bytes may be only in the system's memory, and no later sync would write them (Linux marks such pages
        clean)."""
        entry = segment.offsets.floor(recovery_point - 1 - segment.base_offset)
        file, position = segment.log.get(), segment.offsets.entry(entry)[1] if entry >= 0 else 0
        while position < end:
            data = file.pread(min(WRITTEN_BYTES, end - position), position)
            position += file.pwritev([data], position)

    def _walk_segment(
        self, segment: Segment, start: int, stop: int, recovery_point: int, due: int
    ) -> tuple[int, int, str | None]:
        interval, position = self.config.index_interval_bytes, start
        epoch = -1
        try:
            for position, batch in self._walk(segment, start, stop, recovery_point):
                reach = batch.last_offset - segment.base_offset
                if not self._follows(batch.base_offset, due) or batch.last_offset_delta < 0 or reach > RELATIVE_MAX:
                    return position, due, f"expected offset {due}, found {batch.base_offset}"
                if batch.base_offset >= recovery_point and batch.leader_epoch < self.epochs.latest:
                    return position, due, f"expected epoch {self.epochs.latest} or later, found {batch.leader_epoch}"
                if batch.leader_epoch < epoch:
                    return position, due, f"expected epoch {epoch} or later, found {batch.leader_epoch}"
                epoch = batch.leader_epoch
                due = batch.next_offset
                if batch.is_control and batch.base_offset >= recovery_point:
                    self.has_markers = True
                segment.note_batch(position, batch.last_offset, batch.size, batch.max_timestamp, interval)
                if batch.leader_epoch > self.epochs.latest:
                    self.epochs.assign(batch.leader_epoch, batch.base_offset)
                    self.epochs_differ |= self.epochs_known and batch.base_offset < recovery_point
                position += batch.size
        except CorruptBatch as error:
            return position, due, str(error)
        return position, due, None

    def _cut_transactions(self, segment: Segment, offset: int) -> None:
        """Keep the durable part of the transaction index: the entries of markers before ``offset``.

        After a power loss anything may follow them, even part of an entry that looks valid.
        """
        index = segment.transactions
        changed = index.cut(offset)
        for last in index.entries(max(len(index) - 1, 0)):
            if not self._has_marker(segment, last):
                index.drop_last()
                changed = True
        if changed:
            # Durably: entries that came back later would lie before a recovery point.
            index.file.get().fdatasync()

    def _has_marker(self, segment: Segment, entry: AbortedTransaction) -> bool:
        try:
            position = segment.position_of(entry.last_offset, self.config.index_interval_bytes)
            for _, batch in walk_headers(segment.log, position, segment.size):
                return batch.is_control and batch.producer_id == entry.producer_id
        except CorruptBatch as error:
            logger.warning("%s: trusting the last aborted transaction unchecked: %s", segment.log.path, error)
            return True
        return False

    def _walk(self, segment: Segment, position: int, stop: int, recovery_point: int) -> Iterator[tuple[int, Batch]]:
        """Yield all batches between two positions; from the one that reaches the recovery point on, whole and
        checked."""
        if segment.base_offset < recovery_point:
            for found, batch in walk_headers(segment.log, position, stop):
                if batch.next_offset >= recovery_point:
                    break
                yield found, batch
                position = found + batch.size
        yield from walk_whole(segment.log, position, stop)

    def _continues(self, base_offset: int, end: int, recovery_point: int) -> bool:
        """Return whether a segment may follow one that ends at ``end``. A gap between the two is the lost tail of the
        first, unless that whole part was durable."""
        return base_offset == end or (self.sparse and end < base_offset <= recovery_point)

    def _follows(self, offset: int, due: int) -> bool:
        return offset == due or (self.sparse and offset > due)

    def _gather_epochs(self, segments: Sequence[Segment], end: int | None = None) -> None:
        """Take leader epochs from the batches before offset ``end``."""
        for segment in segments:
            try:
                for _, batch in walk_headers(segment.log, 0, segment.size):
                    if end is not None and batch.base_offset >= end:
                        return
                    if batch.leader_epoch > self.epochs.latest:
                        self.epochs.assign(batch.leader_epoch, batch.base_offset)
            except CorruptBatch as error:
                logger.warning("%s: leader epochs are incomplete: %s", segment.log.path, error)

    def complete_epochs(self, start: int) -> None:
        """Extend the epochs back to the log's start, if it has moved back past the first of them.

        That happens if the start had advanced and the machine lost power before it was stored.
        """
        entries = self.epochs.entries()
        if entries and entries[0][1] > start:
            self.epochs = LeaderEpochs()
            self._gather_epochs(self.segments, entries[0][1])
            for epoch, first in entries:
                if epoch > self.epochs.latest:
                    self.epochs.assign(epoch, first)
            self.epochs.dirty = True

    def _drop_from(self, number: int) -> None:
        """Remove segments from ``number`` on, the newest first, so that the rest is always a log."""
        while len(self.segments) > number:
            segment = self.segments.pop()
            segment.close()
            indexes = (segment.offsets.file, segment.times.file, segment.transactions.file, segment.filters.file)
            for index in (file.path for file in indexes):
                if self.files.exists(index):
                    self.files.unlink(index)
            self.remove(file_name(segment.base_offset, LOG_SUFFIX))

    def drop_filters(self, durable_end: int) -> None:
        """Remove the indexes for filters of segments that may have changed: those that were not wholly durable, and
        the last one, which takes appends."""
        for number, segment in enumerate(self.segments):
            is_last = number == len(self.segments) - 1
            if is_last or self.segments[number + 1].base_offset > durable_end:
                name = file_name(segment.base_offset, FILTER_INDEX_SUFFIX)
                if segment.base_offset in self.filtered and self.files.exists(f"{self.directory}/{name}"):
                    self.remove(name)

    def sync_names(self) -> None:
        if self.names_changed:
            self.files.fsync_dir(self.directory)
            self.names_changed = False

    def restart_at(self, offset: int) -> None:
        """Restart with an empty segment. Producers' state at that offset is unknown: a transaction that is open in an
        older snapshot may have ended in the lost part."""
        self._drop_from(0)
        while self.snapshots:
            self.remove(file_name(self.snapshots.pop(), SNAPSHOT_SUFFIX))
        self.sync_names()
        segment = Segment(self.pool, self.directory, offset, 0, self.now_ms)
        segment.create(self.config.segment_bytes if self.config.preallocate else 0)
        self.segments.append(segment)
        self.names_changed = True


def load_log(
    pool: HandlePool,
    directory: str,
    config: TopicConfig,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    producers_max: int,
    now_ms: int,
) -> LoadedLog:
    """Load a partition's directory, which must exist. Raises ``OSError``.

    ``recovery_point`` and ``log_start_offset`` are as checkpointed, 0 if they were not.
    """
    loader = _Loader(pool, directory, config, now_ms)
    loader.list_files(log_start_offset)
    if not loader.segments:
        loader.restart_at(log_start_offset)
    end = -1
    was_clean = False
    durable_end = recovery_point
    if clean and (loader.epochs_known or not any(segment.size for segment in loader.segments)):
        try:
            end = loader.resume()
            if end != recovery_point:
                # No CRC covers the offset of the last batch, but the stop stored where the log ended.
                found, end = end, -1
                raise CorruptBatch(f"expected the log to end at offset {recovery_point}, found {found}")
            was_clean = True
        except CorruptBatch as error:
            logger.warning("%s: the shutdown was clean, but the log is not: %s", directory, error)
            if loader.epochs_known and loader.resume_damaged(recovery_point):
                end, was_clean = recovery_point, True
    if end < 0:
        end = loader.recover(recovery_point)
    lost_end = end < durable_end
    if end < log_start_offset:
        logger.warning("%s: the log ends at %d, before its start %d: emptied", directory, end, log_start_offset)
        loader.restart_at(log_start_offset)
        end = log_start_offset
    loader.drop_filters(durable_end)
    start = max(log_start_offset, loader.segments[0].base_offset)
    loader.epochs.truncate_from_end(end)
    loader.complete_epochs(start)
    loader.epochs.truncate_from_start(start)
    producers = load_producers(
        pool.files,
        directory,
        loader.segments,
        loader.snapshots,
        end,
        producers_max=producers_max,
        epochs=loader.epochs,
        sparse=loader.sparse,
        now_ms=now_ms,
        remove=loader.remove,
        reindex_from=max(recovery_point, loader.segments[0].base_offset) if loader.has_markers else None,
    )
    loader.sync_names()
    return LoadedLog(
        loader.segments,
        Offset(start),
        Offset(end),
        Offset(max(min(recovery_point, end), loader.segments[0].base_offset)),
        loader.epochs,
        producers,
        loader.snapshots,
        loader.sparse,
        was_clean,
        lost_end,
        now_ms,
    )


def _offsets(names: set[str], suffix: str) -> list[int]:
    """Return the offsets of files with that suffix whose names have Kafka's 20 digits."""
    cut = len(suffix)
    stems = (name[:-cut] for name in names if name.endswith(suffix) and len(name) == 20 + cut)
    return [int(stem) for stem in stems if stem.isascii() and stem.isdigit()]
