"""Searches a log in service for damage: one range at a time, mostly in another thread.

Segments remember the damage: they refuse reads of it and serve everything else. The idea comes from the scrubs of ext4
and ZFS; Kafka has none.
"""

from __future__ import annotations

import logging
from typing import Final

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import Offset
from tidelog.proto.records.batches import CorruptBatch, split_batches
from tidelog.storage.disk.files import File, FileLayer
from tidelog.storage.log.log_state import LogState
from tidelog.storage.log.mend import Mend
from tidelog.storage.segments.examination import DamagedRange, Expected, PlacedBatch, examine
from tidelog.storage.segments.leader_epochs import LeaderEpochs
from tidelog.storage.segments.log_read import LogRead, segment_of
from tidelog.storage.segments.segment import MENDED_SUFFIX, Segment

SUSPECTS_MAX: Final = 100
"""Suspect places remembered until they are examined; dropped ones return with the next complaint."""
STRETCH_BYTES: Final = 64 * 2**20
"""Most bytes of one examination: the work that a restart repeats."""
SLICE_BYTES: Final = 256 * 1024
SLICE_BATCHES: Final = 500
"""A slice ends after this many bytes: a millisecond or two, to keep the event loop responsive."""

logger = logging.getLogger(__name__)


class Examination:
    """An examination of one range in a segment. :meth:`step` may run in another thread, until ``done``."""

    def __init__(self, files: FileLayer, segment: Segment, start: int, end: int, expected: Expected, cuts: int) -> None:
        self.segment = segment
        self.start = start
        self.cuts = cuts
        """How often the log's end had been truncated: a truncation voids the findings."""
        self.end = end
        """Where the range ends; once done, where its last batch ends."""
        self.next_offset = expected.first_offset
        """The offset after the examined part."""
        self.found: list[DamagedRange] = []
        self.bytes_read = 0
        self.done = False
        self._files = files
        self._expected = expected
        self._file: File | None = None
        self._work = examine(self._read, start, end, expected)

    def step(self) -> None:
        """Examine the next few batches. Raises ``OSError``."""
        position = begun = self.bytes_read
        for _ in range(SLICE_BATCHES):
            found = next(self._work, self)
            if found is self:
                self._finish(self.end, self._expected.end_offset)
                return
            match found:
                case PlacedBatch(position, batch):
                    self.next_offset = batch.next_offset
                    position += batch.size
                case DamagedRange():
                    # A later range may reach back over the batch before it, never over another range.
                    self.found.append(found)
                    self.next_offset, position = Offset(found.next_offset), found.end
                case _:
                    return
            if position - self.start >= STRETCH_BYTES:
                self._finish(position, self.next_offset)
                return
            if self.bytes_read - begun >= SLICE_BYTES:
                return

    def close(self) -> None:
        """Release the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _finish(self, end: int, next_offset: int) -> None:
        self.end, self.next_offset, self.done = end, Offset(next_offset), True
        self.close()

    def _read(self, size: int, position: int) -> bytes:
        if self._file is None:
            self._file = self._files.open(self.segment.log.path)
        data = self._file.pread_once(size, position)
        self.bytes_read += len(data)
        return data


class ExaminedLog(LogState):
    """The part of :class:`tidelog.storage.log.log.Log` that a scrub uses, on the log's own thread."""

    __slots__ = ()

    @property
    def damage(self) -> list[tuple[Segment, DamagedRange]]:
        """The known damage, in the log's order."""
        start = self.log_start_offset
        return [
            (segment, known)
            for segment in self._chain.segments
            for known in segment.damage
            if known.next_offset > start
        ]

    def suspect(self, offset: int) -> None:
        """Note that the batch at an offset may be damaged: it is examined first."""
        if len(self._suspects) < SUSPECTS_MAX:
            self._suspects[offset] = None

    def checked(self, read: LogRead, offset: int, *, crcs: bool = True) -> LogRead | Refusal:
        """Return data read from ``offset`` on if all its batches are the expected ones; otherwise CORRUPT_MESSAGE, and
        they are examined.

        Without ``crcs``, check only the fields that no CRC covers and only this log can judge: offsets and leader
        epochs. The receiver checks the rest.
        """
        number = segment_of(self._chain.segments, read.segment_base)
        expected = self._expected(number, offset, self._epochs)
        before = due = offset
        try:
            for batch in split_batches(read.records):
                if due == offset:
                    due = min(due, batch.base_offset)  # it may have begun earlier
                before = due
                expected.check(batch, due)
                if (crcs and not batch.crc_ok()) or batch.last_offset < offset:
                    raise CorruptBatch(f"expected a whole batch with offset {max(due, offset)}, found another: {batch}")
                due = batch.next_offset
            if self._sparse and len(read.records):
                end = self._chain.segments[number].offset_behind(read.position + len(read.records), expected.end_offset)
                if due > end:
                    raise CorruptBatch(f"expected offsets below {end}, found {due - 1}")
        except CorruptBatch as error:
            self.suspect(max(before, offset))
            return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
        return read

    def take_suspect(self) -> Offset | None:
        """Return where to look first, once; None if nothing is suspect."""
        for offset in tuple(self._suspects):
            del self._suspects[offset]
            return Offset(max(offset, self.log_start_offset))
        return None

    def begin_examination(self, offset: int, after: Examination | None = None) -> Examination | None:
        """Start with the range that holds ``offset``, or the first one after it; None at the log's end.

        ``after``: the previous examination if it ended there; the range starts exactly at its end. Raises
        :class:`LogDirFailed`.
        """
        self._check_usable()
        segments = self._chain.segments
        number = segment_of(segments, offset)
        while number < len(segments) and not self._reaches(number, offset):
            number += 1
        if number == len(segments):
            return None
        segment = segments[number]
        if after is not None and after.segment is segment and after.next_offset == offset and self.is_examined(after):
            position, due = after.end, after.next_offset
        else:
            try:
                position, due = segment.indexed_position(offset)
            except OSError as error:
                raise self._failed(error) from error
        return Examination(self._pool.files, segment, position, segment.size, self._expected(number, due), self._cuts)

    def is_examined(self, examination: Examination) -> bool:
        """Return whether an examination's result is still valid: the log is in service, and nothing was truncated or
        replaced."""
        return (
            self._owner.failure is None
            and not self._closed
            and examination.cuts == self._cuts
            and examination.segment in self._chain.segments
        )

    def finish_examination(self, examination: Examination) -> list[DamagedRange] | None:
        """Note the findings, and return the new ones; None if the log has changed meanwhile, so that they mean
        nothing."""
        if not self.is_examined(examination):
            return None
        segment = examination.segment
        known = {each.position for each in segment.damage}
        before = segment.damage
        segment.examined(examination.start, examination.end, examination.found)
        if segment.damage != before:
            self._hints.clear()
            try:
                self._complete_producers()
            except OSError as error:
                raise self._failed(error) from error
        new = [found for found in examination.found if found.position not in known]
        for found in new:
            logger.error("%s: damage in %s: %s", self.name, segment.log.path, found)
        return new

    # --- Mending -------------------------------------------------------------------------------

    def is_active(self, segment: Segment) -> bool:
        """Return whether the segment takes appends: close it (``Log.roll``) before mending it."""
        return segment is self._chain.active

    def begin_mending(self, segment: Segment) -> Mend | None:
        """Start a copy of a segment without its damage; None if the segment is no longer in the log, or undamaged.

        Raises :class:`LogDirFailed`.
        """
        self._check_usable()
        segments = self._chain.segments
        if segment not in segments[:-1] or not segment.damage:
            return None
        try:
            expected = self._expected(segments.index(segment), segment.base_offset)
            return Mend(
                self._pool.files,
                self.directory,
                segment,
                expected,
                self.config.index_interval_bytes,
                self._cuts,
            )
        except OSError as error:
            raise self._failed(error) from error

    def swap_mended(self, mend: Mend) -> bool:
        """Replace a segment with its finished copy, durably; return False, and do nothing, if the log has changed
        meanwhile. Raises :class:`LogDirFailed`.
        """
        self._check_usable()
        segment = mend.segment
        if mend.cuts != self._cuts or segment not in self._chain.segments or mend.damage != segment.damage:
            return False
        self._hints.clear()
        try:
            # Records from another replica may not be compacted as far as this log.
            self._owner.lower_clean_offset(self.name, segment.base_offset)
            made = self._chain.replace([segment], mend.size, MENDED_SUFFIX)
            made.damage = tuple(mend.kept)
            self._complete_producers()
        except OSError as error:
            raise self._failed(error) from error
        return True

    def _expected(self, number: int, due: int, epochs: LeaderEpochs | None = None) -> Expected:
        """Return the expected content of a segment from ``due`` on. ``epochs``: by default a copy, for another
        thread."""
        segments = self._chain.segments
        last = number + 1 == len(segments)
        return Expected(
            due,
            self.log_end_offset if last else segments[number + 1].base_offset,
            not self._sparse,
            LeaderEpochs(self._epochs.entries()) if epochs is None else epochs,
        )

    def _examine_now(self, segment: Segment) -> None:
        """Examine a whole segment immediately, because a lookup in it failed and cannot wait. Raises ``OSError``."""
        number = self._chain.segments.index(segment)
        expected = self._expected(number, segment.base_offset)
        examination = Examination(self._pool.files, segment, 0, segment.size, expected, self._cuts)
        while not examination.done:
            examination.step()
        segment.examined(0, segment.size, examination.found)

    def _reaches(self, number: int, offset: int) -> bool:
        """Return whether a segment holds anything at or after an offset."""
        segments = self._chain.segments
        end = self.log_end_offset if number + 1 == len(segments) else segments[number + 1].base_offset
        return segments[number].size > 0 and end > offset
