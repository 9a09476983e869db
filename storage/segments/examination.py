"""Checks whether a range of a segment still holds the bytes that were written.

Every batch has a CRC over all but its offset, length, leader epoch and magic. Those are checked by other means: the
offset by the previous batch, the epoch by the epoch file, the length by the data that follows. Damage ends at the next
whole batch: the one that the damaged header's length leads to, or else the first that a search finds.

Pure, except for the read function. In a log with gaps (a compacted one), a wrong offset that still lies between its
neighbours goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple

from tidelog.model.classes.frozen import dataclass
from tidelog.model.hashes.crc32c import crc32c
from tidelog.proto.records.batches import HEADER_SIZE, MAGIC, SIGNED_FROM, Batch
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.storage.segments.batch_walk import batch_size_at
from tidelog.storage.segments.leader_epochs import LeaderEpochs

CHUNK: Final = 256 * 1024
"""Bytes read at a time; a larger batch is checked chunk by chunk."""
OFFSET_MAX: Final = 2**63 - 1
_MAGIC_AT: Final = 16
_MAGIC_BYTE: Final = bytes((MAGIC,))

Read = Callable[[int, int], bytes]
"""``pread``: size, position."""


class DamagedRange(NamedTuple):
    """Damaged bytes of a segment, and the offsets that they covered.

    ``position`` and ``end`` are positions in the file; ``first_offset`` follows the previous batch, and the next batch
    begins at ``next_offset`` or later. ``reason``: what was expected and found.
    """

    position: int
    end: int
    first_offset: int
    next_offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"offsets {self.first_offset}..{self.next_offset - 1}, bytes {self.position}..{self.end - 1}: {self.reason}"
        )


class PlacedBatch(NamedTuple):
    """A whole batch; for one larger than :data:`CHUNK`, the header only."""

    position: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Expected:
    """The rules for a range's batches: offsets from ``first_offset`` to ``end_offset``, without gaps if ``dense``, each
    with the epoch in ``epochs``, if known, which it is before ``epochs_end``."""

    first_offset: int
    end_offset: int
    dense: bool
    epochs: LeaderEpochs
    epochs_end: int = OFFSET_MAX

    def check(self, batch: Batch, due: int) -> None:
        """Raise :class:`CorruptBatch` for a batch that breaks the rules; ``due`` is the expected offset."""
        base = batch.base_offset
        if base < due or (self.dense and base != due):
            raise CorruptBatch(f"expected offset {due}{'' if self.dense else ' or later'}, found {base}")
        if batch.last_offset_delta < 0 or batch.last_offset >= self.end_offset:
            raise CorruptBatch(f"expected offsets below {self.end_offset}, found {base}..{batch.last_offset}")
        epoch = self.epochs.epoch_at(base) if base < self.epochs_end else -1
        if 0 <= epoch != batch.leader_epoch:
            raise CorruptBatch(f"expected leader epoch {epoch} at offset {base}, found {batch.leader_epoch}")


def examine(read: Read, start: int, end: int, expected: Expected) -> Iterator[PlacedBatch | DamagedRange | None]:
    """Yield the batches and damage between two positions, in order; ``start`` must be a batch's position.

    ``None``: a chunk was searched for the end of damage; more follows. In a log with gaps, the next batch may show that
    a batch already yielded is damaged: the range then begins with it. Raises what ``read`` raises.
    """
    window = _Window(read, end)
    position, due = start, expected.first_offset
    before = (position, due)
    while position < end:
        try:
            batch = window.batch_at(position)
            if not expected.dense and before[1] <= batch.base_offset < due:
                # Offsets have gaps, so an offset that is too high shows only here.
                expected.check(batch, before[1])
                yield DamagedRange(
                    before[0],
                    position,
                    before[1],
                    batch.base_offset,
                    f"expected offsets below {batch.base_offset}, found {due - 1}",
                )
                due = batch.base_offset
            expected.check(batch, due)
        except CorruptBatch as error:
            next_position, next_due = yield from _next_whole(window, position, due, expected)
            yield DamagedRange(position, next_position, due, next_due, str(error))
            position, due = next_position, next_due
            before = (position, due)
            continue
        yield PlacedBatch(position, batch)
        before = (position, due)
        position, due = position + batch.size, batch.next_offset


def _next_whole(window: _Window, position: int, due: int, expected: Expected) -> Generator[None, None, tuple[int, int]]:
    """Return the position and offset of the next whole batch after damage; the end if there is none."""
    end = window.end
    try:
        following = position + batch_size_at(window.view(position, HEADER_SIZE), 0, end - position)
        if following == end or _is_whole(window, following, due, expected):
            return following, expected.end_offset if following == end else window.base_at(following)
    except CorruptBatch:
        pass
    at = position + 1
    while at + HEADER_SIZE <= end:
        size = min(CHUNK, end - at)
        try:
            chunk = bytes(window.view(at, size))
        except CorruptBatch:
            break  # the file is shorter than before
        found = chunk.find(_MAGIC_BYTE, _MAGIC_AT)
        while 0 <= found <= size - (HEADER_SIZE - _MAGIC_AT):
            candidate = found - _MAGIC_AT
            base = int.from_bytes(chunk[candidate : candidate + 8], "big", signed=True)
            if due < base < expected.end_offset and _is_whole(window, at + candidate, due, expected):
                return at + candidate, base
            found = chunk.find(_MAGIC_BYTE, found + 1)
        if at + size >= end:
            break
        at += size - HEADER_SIZE + 1
        yield
    return end, expected.end_offset


def _is_whole(window: _Window, position: int, due: int, expected: Expected) -> bool:
    try:
        batch = window.batch_at(position)
        expected.check(batch, max(batch.base_offset, due + 1))
    except CorruptBatch:
        return False
    return True


class _Window:
    """The chunk under examination; nothing from ``end`` on is read."""

    def __init__(self, read: Read, end: int) -> None:
        self.end = end
        self._read = read
        self._chunk = memoryview(b"")
        self._start = 0

    def view(self, position: int, size: int) -> memoryview:
        """Return bytes of the file. Raises :class:`CorruptBatch` if the file is too short."""
        at = position - self._start
        if at < 0 or at + size > len(self._chunk):
            wanted = min(max(CHUNK, size), self.end - position)
            self._chunk, self._start, at = memoryview(self._read(wanted, position)), position, 0
            if len(self._chunk) < size:
                raise CorruptBatch(f"expected {size} bytes, found {len(self._chunk)}")
        return self._chunk[at : at + size]

    def base_at(self, position: int) -> int:
        return int.from_bytes(self.view(position, 8), "big", signed=True)

    def batch_at(self, position: int) -> Batch:
        """Return the batch at a position, its CRC checked. Raises :class:`CorruptBatch`."""
        room = self.end - position
        if room < HEADER_SIZE:
            raise CorruptBatch(f"expected a batch header of {HEADER_SIZE} bytes, found {room} bytes")
        header = self.view(position, HEADER_SIZE)
        size = batch_size_at(header, 0, room)
        if size <= CHUNK:
            batch = Batch(self.view(position, size))
            found = crc32c(batch.view[SIGNED_FROM:])
        else:
            batch = Batch(memoryview(bytes(header)))
            batch.size = size
            found = 0
            for at in range(SIGNED_FROM, size, CHUNK):
                found = crc32c(self.view(position + at, min(CHUNK, size - at)), found)
        if found != batch.crc:
            raise CorruptBatch(f"expected a batch that matches its CRC {batch.crc:#010x}, found {found:#010x}")
        return batch
