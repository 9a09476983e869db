"""The files of one log: segments in order, producer snapshots, and which of them are unsynced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidelog.model.ids import Offset
from tidelog.proto.records.batches import CorruptBatch
from tidelog.storage.disk.checkpoints import LEADER_EPOCHS, PARTITION_METADATA
from tidelog.storage.disk.files import write_file
from tidelog.storage.disk.handles import HandlePool, PooledFile
from tidelog.storage.segments.log_read import segment_of
from tidelog.storage.segments.retention import SegmentAge
from tidelog.storage.segments.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    FILTER_INDEX_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from tidelog.storage.segments.transaction_index import AbortedTransaction, aborted_within

_FILES_BESIDE_LOG: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, FILTER_INDEX_SUFFIX)
_FILES_OF_SEGMENT: Final = (LOG_SUFFIX, *_FILES_BESIDE_LOG)
_FILES_OF_COPY: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)
"""The log comes last: its name identifies a swap. A transaction index goes before them all, durably."""


class SegmentChain:
    """At least one segment; the last one, :attr:`active`, takes appends. Everything raises ``OSError``.

    ``snapshots``: rising offsets of the producer snapshots on disk: one at the base of each segment (except the first
    ones) and perhaps one later. ``unsynced``: files that are complete but not durable. ``names_changed``: a file was
    created, renamed or removed since the last sync of the directory.
    """

    __slots__ = (
        "_pool",
        "active",
        "delete_later",
        "directory",
        "names_changed",
        "on_disk",
        "segments",
        "size",
        "snapshot_size",
        "snapshots",
        "unsynced",
    )

    def __init__(
        self,
        pool: HandlePool,
        directory: str,
        segments: list[Segment],
        snapshots: list[int],
        recovery_point: int,
        delete_later: Callable[[str], None],
        *,
        on_disk: bool = True,
    ) -> None:
        """``on_disk``: false if neither files nor a directory exist yet (:meth:`make_files`)."""
        self.on_disk = on_disk
        self._pool = pool
        self.delete_later = delete_later
        self.directory = directory
        self.segments = segments
        self.active = segments[-1]
        self.snapshots = snapshots
        self.size = sum(segment.size for segment in segments)
        self.snapshot_size = self.size
        """The value of ``size`` when the newest snapshot was taken."""
        self.names_changed = False
        self.unsynced: list[PooledFile] = []
        for number, segment in enumerate(segments[:-1]):
            if segments[number + 1].base_offset > recovery_point:
                # Rebuilt by recovery: the recovery point must not pass them before they are durable.
                self.unsynced += (segment.offsets.file, segment.times.file)
                self.names_changed = True

    def make_files(self, metadata: bytes, reserve: int = 0) -> None:
        """Create the directory and its first files. ``metadata``: the content of ``partition.metadata``, which must
        exist before any record: records in a directory without it belong to no topic. ``reserve``: see :meth:`roll`."""
        files = self._pool.files
        files.makedirs(self.directory)
        write_file(files, f"{self.directory}/{PARTITION_METADATA}", metadata)
        self.active.create(reserve)
        self.names_changed = True
        self.on_disk = True

    def roll(self, base_offset: int, snapshot: bytes | None, now_ms: int, reserve: int = 0) -> None:
        """Seal the active segment and start one at ``base_offset``, with a snapshot of the producers there, if given.

        ``reserve``: bytes to preallocate for the new one; the old one's unused bytes are released.
        """
        full = self.active
        full.seal()
        if reserve:
            full.log.get().truncate(full.size)
        self.unsynced += (full.offsets.file, full.times.file)
        self.store_snapshot(base_offset, snapshot)
        self._begin(base_offset, now_ms, reserve)

    def store_snapshot(self, offset: int, content: bytes | None) -> None:
        """Write a producer snapshot, unless it exists; it replaces an earlier one between two segments' bases."""
        if content is None or (self.snapshots and self.snapshots[-1] >= offset):
            return
        path = f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        write_file(self._pool.files, path, content)
        self.unsynced.append(PooledFile(self._pool, path))
        self.names_changed = True
        self.snapshot_size = self.size
        if self.snapshots and all(segment.base_offset != self.snapshots[-1] for segment in self.segments):
            self.remove_snapshot(self.snapshots.pop())
        self.snapshots.append(offset)

    def write_indexes(self) -> None:
        """Complete the active segment's indexes and write them out; they are synced with the rest."""
        self.active.complete_times()
        for index in (self.active.offsets, self.active.times):
            if index.waiting:
                index.write_out()
                self.unsynced.append(index.file)
                self.names_changed = True

    def store_epochs(self, content: bytes) -> None:
        """Replace the leader-epoch file. Until it is synced, a power loss may spoil it; the log can restore it."""
        path = f"{self.directory}/{LEADER_EPOCHS}"
        self._forget(path)
        write_file(self._pool.files, path + ".tmp", content)
        self._pool.files.rename(path + ".tmp", path)
        self.unsynced.append(PooledFile(self._pool, path))
        self.names_changed = True

    def synced(self, files: Sequence[PooledFile]) -> None:
        """Note that these files are durable in the state in which :meth:`files_from` returned them."""
        for file in files:
            if file in self.unsynced:
                self.unsynced.remove(file)
                file.close()

    def cut_at(
        self, offset: int, index_interval: int, before: Callable[[int], None], examine: Callable[[Segment], None]
    ) -> Offset:
        """Truncate the batch that holds ``offset`` and everything after it; return the new end.

        ``before`` is called with the new end before any change: a removed segment that comes back then lies after the
        recovery point, where recovery accepts no gap. It may still fit after records appended later, so the caller must
        sync the names. If the log is unreadable on the way to ``offset``, ``examine`` finds the damage: undamaged
        batches before ``offset`` stay.
        """
        number = segment_of(self.segments, offset)
        segment = self.segments[number]
        try:
            position, end = segment.place_of(offset, index_interval)
        except CorruptBatch:
            examine(segment)
            position, end = segment.place_of(offset, index_interval)
        before(end)
        self.remove_from(number + 1)
        self.active = segment
        self._drop_filters(segment)
        if position < segment.size:
            self.size -= segment.size - position
            segment.cut(position, end, index_interval)
        self.unsynced = [file for file in self.unsynced if file not in (segment.offsets.file, segment.times.file)]
        return Offset(end)

    def store_filters(self, segment: Segment, content: bytes) -> None:
        """Write a full segment's index for filters. Whatever a power loss leaves, its pages tell."""
        path = segment.filters.file.path
        write_file(self._pool.files, path + ".tmp", content)
        self._pool.files.rename(path + ".tmp", path)
        segment.filters.forget()

    def _drop_filters(self, segment: Segment) -> None:
        """Remove the index for filters, durably, before its segment takes other batches."""
        if segment.filters.pages:
            self.remove_file(file_name(segment.base_offset, FILTER_INDEX_SUFFIX))
            self.sync_names()
        segment.filters.forget()

    def restart_at(self, offset: int) -> None:
        """Drop everything and start an empty segment at ``offset``, durably."""
        now_ms = self.active.created_ms
        self.remove_from(0)
        while self.snapshots:
            self.remove_snapshot(self.snapshots.pop())
        self.sync_names()
        self._begin(offset, now_ms)
        self.sync_names()

    def drop_before(self, offset: int) -> int:
        """Delete segments that end at or before ``offset``, the oldest first; return how many."""
        count = 0
        if len(self.segments) > 1 and self.segments[1].base_offset <= offset:
            self._secure_snapshot(self.segments[segment_of(self.segments, offset)].base_offset)
        while len(self.segments) > 1 and self.segments[1].base_offset <= offset:
            self._delete(self.segments.pop(0))
            count += 1
        if count:
            first = self.segments[0].base_offset
            while len(self.snapshots) > 1 and self.snapshots[0] < first:
                self.remove_snapshot(self.snapshots.pop(0))
        return count

    def note_aborted(self, entry: AbortedTransaction) -> None:
        """Add an aborted transaction after its marker was appended to the active segment."""
        if self.active.transactions.append(entry):
            self.names_changed = True

    def aborted_within(self, start: int, end: int) -> list[AbortedTransaction]:
        """See :func:`tidelog.storage.segments.transaction_index.aborted_within`."""
        return aborted_within(self.segments[segment_of(self.segments, start) :], start, end)

    def replace(self, old: Sequence[Segment], size: int, suffix: str = CLEANED_SUFFIX) -> Segment:
        """Replace some segments, none of them active, by their copy, and return it; ``size``: its log's size.

        The copy's files are in the same directory, with ``suffix`` after their names; their contents are durable. A
        kill or a power loss at any point leaves the old segments or the new one: before the first sync of names,
        recovery drops the copy; after it, recovery finishes the swap; and the new one gets its name when the old names
        are durably gone.

        Neither the copy's names nor those of the last swap need be durable: the first sync covers them. A power loss
        before it may leave the log of one copy with indexes of the other, which is harmless: sparse index entries are
        checked against the log, and the later transaction index names every aborted transaction that has data in the
        earlier log.
        """
        number = self.segments.index(old[0])
        first = old[0]
        stem = f"{self.directory}/{file_name(first.base_offset, '')}"
        rename = self._pool.files.rename
        transactions = stem + TXN_INDEX_SUFFIX
        has_transactions = self._pool.files.exists(transactions + suffix)
        if has_transactions:
            # Unlike the other indexes it is never rebuilt: if the log has its name, this one has it as well.
            rename(transactions + suffix, transactions + SWAP_SUFFIX)
            self.sync_names()
        for kind in _FILES_OF_COPY:
            rename(stem + kind + suffix, stem + kind + SWAP_SUFFIX)
        self.sync_names()
        for segment in reversed(old):
            self.size -= segment.size
            segment.close()
            self._retire(segment, _FILES_OF_SEGMENT if segment is not first else _FILES_BESIDE_LOG)
        self.sync_names()
        if has_transactions:
            rename(transactions + SWAP_SUFFIX, transactions)
            self.sync_names()
        for kind in _FILES_OF_COPY:
            rename(stem + kind + SWAP_SUFFIX, stem + kind)
        self.names_changed = True
        made = Segment(self._pool, self.directory, first.base_offset, size, old[-1].created_ms)
        self.segments[number : number + len(old)] = [made]
        self.size += size
        gone = {segment.base_offset for segment in old[1:]}
        for offset in [offset for offset in self.snapshots if offset in gone]:
            self.snapshots.remove(offset)
            self.remove_snapshot(offset)
        return made

    def remove_from(self, number: int) -> None:
        """Delete segments from ``number`` on, the newest first, so that the rest is always a log."""
        while len(self.segments) > number:
            self._delete(self.segments.pop())

    def remove_file(self, name: str) -> None:
        """Remove a file of the directory by name."""
        path = f"{self.directory}/{name}"
        self._forget(path)
        self._pool.files.unlink(path)
        self.names_changed = True

    def remove_snapshot(self, offset: int) -> None:
        self.remove_file(file_name(offset, SNAPSHOT_SUFFIX))

    def sync_names(self) -> None:
        self._pool.files.fsync_dir(self.directory)
        self.names_changed = False

    def files_from(self, offset: int) -> list[PooledFile]:
        """Return the files to sync so that everything from ``offset`` on is durable."""
        segments = self.segments[segment_of(self.segments, offset) :]
        # A transaction index holds only its segment's markers, so it needs no list of its own.
        indexes = [segment.transactions.file for segment in segments if len(segment.transactions)]
        return [segment.log for segment in segments] + indexes + self.unsynced

    def ages(self, log_end_offset: int, index_interval: int) -> list[SegmentAge]:
        """Return the facts about each segment that retention needs. Raises :class:`CorruptBatch`."""
        found = []
        for number, segment in enumerate(self.segments):
            is_last = number == len(self.segments) - 1
            if segment.size:
                segment.ready(index_interval)
            last_ms = segment.max_timestamp
            if last_ms < 0:
                last_ms = self._pool.files.modified_ms(segment.log.path)
            end = log_end_offset if is_last else self.segments[number + 1].base_offset
            found.append(SegmentAge(end, segment.size, last_ms))
        return found

    def renamed_to(self, directory: str) -> None:
        """Note that the directory was renamed; all files are in it as before."""
        self.directory = directory
        for segment in self.segments:
            segment.renamed_to(directory)
        for file in self.unsynced:
            file.renamed_to(directory)

    def close(self) -> None:
        """Release all file descriptors."""
        for segment in self.segments:
            segment.close()
        for file in self.unsynced:
            file.close()

    def _begin(self, base_offset: int, now_ms: int, reserve: int = 0) -> None:
        segment = Segment(self._pool, self.directory, base_offset, 0, now_ms)
        segment.create(reserve)
        self.segments.append(segment)
        self.active = segment
        self.names_changed = True

    def _delete(self, segment: Segment) -> None:
        """Rename a segment's files, the log first: without it the others mean nothing."""
        self.size -= segment.size
        segment.close()
        self._retire(segment, _FILES_OF_SEGMENT)

    def _retire(self, segment: Segment, suffixes: Sequence[str]) -> None:
        for suffix in suffixes:
            path = f"{self.directory}/{file_name(segment.base_offset, suffix)}"
            self._forget(path)
            if suffix == LOG_SUFFIX or self._pool.files.exists(path):
                self._pool.files.rename(path, path + DELETED_SUFFIX)
                self.delete_later(path + DELETED_SUFFIX)
        self.names_changed = True

    def _secure_snapshot(self, offset: int) -> None:
        """Make the snapshot at ``offset`` durable: the producers' records in earlier segments will soon go."""
        path = f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        for file in self.unsynced:
            if file.path == path:
                file.get().fdatasync()
                self.sync_names()
                return

    def _forget(self, path: str) -> None:
        for file in [file for file in self.unsynced if file.path == path]:
            file.close()
            self.unsynced.remove(file)
