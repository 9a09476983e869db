"""A copy of a segment in which another replica's records replace damaged ones, by offset.

An epoch and an offset identify the same record on every replica, since only one leader wrote in an epoch; so records
from another replica are accepted if they match their CRC and have the expected epochs and offsets. The copy is written
beside the segment as ``….mended`` and replaces it as a compacted segment would (``SegmentChain.replace``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tidelog.proto.records.batches import Batch
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.storage.disk.files import File, FileLayer
from tidelog.storage.disk.handles import HandlePool
from tidelog.storage.segments.examination import CHUNK, DamagedRange, Expected, PlacedBatch, examine
from tidelog.storage.segments.segment import MENDED_SUFFIX, Segment

SLICE_BATCHES: Final = 500
"""Batches copied in one slice."""


class Mend:
    """One segment's copy in progress: for each range of ``damage``, call :meth:`copy_up_to` and then :meth:`take` or
    :meth:`leave`; at the end, :meth:`finish`. Every method raises ``OSError`` and may run in another thread, one call
    at a time.

    ``cuts``: how often the log had been truncated. ``kept``: damage that remains in the copy.
    """

    def __init__(
        self, files: FileLayer, directory: str, segment: Segment, expected: Expected, index_interval: int, cuts: int
    ) -> None:
        self.segment = segment
        self.cuts = cuts
        self.damage: Sequence[DamagedRange] = segment.damage
        self.kept: list[DamagedRange] = []
        self.due = expected.first_offset
        """The end offset of the copy."""
        self._aborted = list(segment.transactions.entries())
        self._files = files
        self._directory = directory
        self._expected = expected
        self._interval = index_interval
        self._position = 0
        self._file: File | None = None
        self._walk: Iterator[PlacedBatch | DamagedRange | None] | None = None
        self._copy = Segment(HandlePool(files), directory, segment.base_offset, 0, 0, suffix=MENDED_SUFFIX)

    @property
    def size(self) -> int:
        """Bytes of the copy's log so far."""
        return self._copy.size

    def copy_up_to(self, position: int) -> bool:
        """Copy a slice of undamaged batches; return whether it was the last before ``position``. Raises
        :class:`CorruptBatch` for unknown damage."""
        if self._file is None:
            self._file = self._files.open(self.segment.log.path)
            self._copy.create()
        if self._walk is None:
            expected = Expected(self.due, self._expected.end_offset, self._expected.dense, self._expected.epochs)
            self._walk = examine(self._file.pread_once, self._position, position, expected)
        batches: list[Batch] = []
        for found in self._walk:
            if not isinstance(found, PlacedBatch):
                raise CorruptBatch(f"expected whole batches, found damage: {found}")
            batch = found.batch
            if batch.size > CHUNK:
                batch = Batch(memoryview(self._file.pread_once(batch.size, found.position)))
            batches.append(batch)
            if len(batches) == SLICE_BATCHES or batch.size > CHUNK:
                self._append(batches)
                return False
        self._append(batches)
        self._walk, self._position = None, position
        return True

    def would_take(self, known: DamagedRange, batches: Sequence[Batch]) -> bool:
        """Return whether another replica's batches fit the beginning of a range."""
        return self._judge(known, batches, known.first_offset)[1] > known.first_offset

    def take(self, known: DamagedRange, batches: Sequence[Batch]) -> None:
        """Append another replica's batches to a range, from :attr:`due` on, as far as they are valid there. No batches
        mean that the other replica has no more, perhaps because of compaction."""
        taken, due = self._judge(known, batches, self.due)
        self._append(taken)
        self.due = due

    def _judge(self, known: DamagedRange, batches: Sequence[Batch], due: int) -> tuple[list[Batch], int]:
        """Return the batches that are valid in a range from an offset on, and the offset that is due then."""
        expected, taken = self._expected, list[Batch]()
        for batch in batches:
            if batch.base_offset >= known.next_offset:
                break
            try:
                expected.check(batch, due)
            except CorruptBatch:
                return taken, due
            if not batch.crc_ok() or batch.next_offset > known.next_offset:
                return taken, due
            taken.append(batch)
            due = batch.next_offset
        else:
            if batches:
                return taken, due
        # The batches continue after the range: missing ones were compacted away.
        return taken, due if expected.dense else known.next_offset

    def pass_over(self, known: DamagedRange) -> None:
        """Continue after a range that was replaced."""
        self._position, self.due = known.end, known.next_offset

    def leave(self, known: DamagedRange) -> None:
        """Copy an irreplaceable range unchanged, after the batches copied so far."""
        assert self._file is not None
        at = self._copy.size
        for position in range(known.position, known.end, CHUNK):
            data = self._file.pread_once(min(CHUNK, known.end - position), position)
            self._copy.log.get().pwritev((data,), self._copy.size)
            self._copy.size += len(data)
        self.kept.append(known._replace(position=at, end=self._copy.size, first_offset=self.due))
        self.pass_over(known)

    def finish(self) -> None:
        """Make the copy durable, with its indexes."""
        copy = self._copy
        copy.seal()
        files = [copy.log, copy.offsets.file, copy.times.file]
        if self._aborted:
            copy.transactions.write(self._aborted)
            files.append(copy.transactions.file)
        for file in files:
            file.get().fdatasync()
        # This also makes an earlier swap's names durable before the next one begins.
        self._files.fsync_dir(self._directory)
        self.close()

    def close(self) -> None:
        """Release the files."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self._copy.close()

    def drop(self) -> None:
        """Remove the copied files; the next start removes leftovers."""
        self.close()
        copy = self._copy
        for path in (copy.log.path, copy.offsets.file.path, copy.times.file.path, copy.transactions.file.path):
            if self._files.exists(path):
                self._files.unlink(path)

    def _append(self, batches: Sequence[Batch]) -> None:
        if batches:
            written = [(batch.last_offset, batch.size, batch.max_timestamp) for batch in batches]
            self._copy.append([batch.view for batch in batches], written, self._interval)
            self.due = batches[-1].next_offset
