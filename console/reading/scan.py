"""Reads and filters a topic from a position, bounded by records, bytes and time, and reports how far it got.

Up to the last stable offset, the leader says which transactions were aborted; beyond it, a transactional record's
outcome is open. Newest first reads windows of offsets backwards from the end. Each window is read forwards, and counts
only when it was read whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

from tidelog.client.errors import OffsetOutOfRangeError
from tidelog.console.reading.filters import Filter
from tidelog.console.reading.rows import ABORTED, COMMITTED, OPEN, PREVIEW, Cut, control_row, row, unreadable_row
from tidelog.console.schemas.view import View
from tidelog.model.ids import TopicPartition
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.committed_reads import Passed, without_aborted
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.transport.frames import FetchedPartition

RECORDS_MAX: Final = 100_000
BYTES_MAX: Final = 64 * 2**20
SECONDS_MAX: Final = 20.0
ROWS_MAX: Final = 100
UNPACKED_BYTES_MAX: Final = 32 * 2**20
"""How large one batch may be when decompressed. Larger ones are reported, not shown."""
FETCH_MS: Final = 8_000
PROGRESS_S: Final = 1.0
WINDOW_FIRST: Final = 64
WINDOW_MAX: Final = 4_096
WINDOW_BYTES: Final = 1 << 20
"""The target size of a window when reading newest first. Each window is sized by the previous one."""
UNBOUNDED: Final = 2**62
Rows = list[dict[str, Any]]


class Fetches(Protocol):
    """Implemented by :class:`tidelog.client.fetching.raw_fetch.RawFetcher`."""

    async def fetch(
        self, at: TopicPartition, position: int, last_epoch: int, timeout_ms: int, *, read_committed: bool = False
    ) -> FetchedPartition: ...


@dataclass(frozen=True, slots=True)
class Limits:
    records: int = RECORDS_MAX
    bytes: int = BYTES_MAX
    seconds: float = SECONDS_MAX
    rows: int = ROWS_MAX


BOUNDS: Final = Limits()


@dataclass(slots=True)
class Scanned:
    """What was read so far. ``stopped``: the bound that was reached, or ``end``."""

    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    found: int = 0
    stopped: str = ""


class Chunk(NamedTuple):
    """What one answer of a leader contained. ``next_offset``: where to continue."""

    rows: list[dict[str, Any]]
    next_offset: int
    records: int
    bytes: int


class Part(NamedTuple):
    """An answer, and which of its batches belong to aborted or open transactions."""

    batches: list[Batch]
    outcomes: list[str | None]
    size: int


@dataclass(slots=True)
class Scan:
    """One search. ``positions``: where to continue, by partition. ``bounds``: where to end (forwards: the first offset
    not to read; backwards: the last offset to read). ``control``: show markers too."""

    fetches: Fetches
    topic: str
    positions: dict[int, int]
    bounds: Mapping[int, int]
    wanted: Filter
    view: View
    newest_first: bool = False
    control: bool = False
    limits: Limits = BOUNDS
    cut: Cut = PREVIEW
    scanned: Scanned = field(default_factory=Scanned)
    _began_s: float = 0.0

    @property
    def left(self) -> int:
        """Return how many offsets it has not looked at."""
        return sum(abs(self.bounds[at] - position) for at, position in self.positions.items())

    async def run(self) -> AsyncGenerator[Rows]:
        """Yield rows as they are found, and an empty list at least once a second to show progress."""
        self._began_s = told_s = time.monotonic()
        steps = self._backwards() if self.newest_first else self._forwards()
        try:
            async for rows in steps:
                self.scanned.found += len(rows)
                now = time.monotonic()
                if rows or now - told_s >= PROGRESS_S:
                    told_s = now
                    yield rows
        finally:
            await steps.aclose()
            self.scanned.seconds = time.monotonic() - self._began_s

    def _left(self) -> Limits:
        """Return what remains of the limits, and name the limit that is reached."""
        seen, most = self.scanned, self.limits
        seen.seconds = time.monotonic() - self._began_s
        for name in ("records", "bytes", "seconds"):
            if getattr(seen, name) >= getattr(most, name):
                seen.stopped = name
        if seen.found >= most.rows:
            seen.stopped = "rows"
        return Limits(most.records - seen.records, most.bytes - seen.bytes, 0, most.rows - seen.found)

    async def _forwards(self) -> AsyncGenerator[Rows]:
        going = sorted(at for at, position in self.positions.items() if position < self.bounds[at])
        while going:
            for partition in list(going):
                left = self._left()
                if self.scanned.stopped:
                    return
                chunk = await self._chunk(partition, self.positions[partition], self.bounds[partition], left)
                self._count(chunk)
                self.positions[partition] = chunk.next_offset
                if chunk.next_offset >= self.bounds[partition]:
                    going.remove(partition)
                yield chunk.rows
        self.scanned.stopped = "end"

    async def _backwards(self) -> AsyncGenerator[Rows]:
        first = -(-self.limits.rows // max(1, len(self.positions)))  # so that the newest rows come from every partition
        sizes = dict.fromkeys(self.positions, min(first, WINDOW_FIRST))
        going = sorted(at for at, position in self.positions.items() if position > self.bounds[at])
        while going:
            for partition in list(going):
                end = self.positions[partition]
                start = max(self.bounds[partition], end - sizes[partition])
                position, rows, size = start, [], 0
                while position < end:
                    left = self._left()
                    if self.scanned.stopped:
                        return
                    chunk = await self._chunk(partition, position, end, replace(left, rows=UNBOUNDED))
                    self._count(chunk)
                    rows += chunk.rows
                    size += chunk.bytes
                    position = chunk.next_offset
                sizes[partition] = _window(sizes[partition], size)
                room = self.limits.rows - self.scanned.found
                shown = rows[::-1][:room]
                self.positions[partition] = start if len(shown) == len(rows) else shown[-1]["offset"]
                if self.positions[partition] <= self.bounds[partition]:
                    going.remove(partition)
                yield shown
                self._left()
                if self.scanned.stopped:
                    return
        self.scanned.stopped = "end"

    def _count(self, chunk: Chunk) -> None:
        self.scanned.records += chunk.records
        self.scanned.bytes += chunk.bytes

    async def _chunk(self, partition: int, position: int, end: int, left: Limits) -> Chunk:
        part = await read_part(self.fetches, TopicPartition(self.topic, partition), position)
        if not part.batches:  # the records are gone: nothing is left before the end
            return Chunk([], end, 0, part.size)
        return await asyncio.to_thread(self._look, partition, part, position, end, left)

    def _look(self, partition: int, part: Part, position: int, end: int, left: Limits) -> Chunk:
        """Decompress, filter and make rows, up to ``end`` or until there are enough. Runs in a thread."""
        rows: list[dict[str, Any]] = []
        seen = 0
        reached = position
        for batch, outcome in zip(part.batches, part.outcomes, strict=True):
            if batch.base_offset >= end:
                reached = end
                break
            for offset, found, counts in self._rows(partition, batch, outcome, position, end):
                seen += counts
                reached = offset + 1
                if found is not None:
                    rows.append(found)
                if len(rows) >= left.rows or seen >= left.records:
                    return Chunk(rows, min(reached, end), seen, part.size)
            reached = max(reached, batch.next_offset)
        return Chunk(rows, min(reached, end), seen, part.size)

    def _rows(
        self, partition: int, batch: Batch, outcome: str | None, position: int, end: int
    ) -> Iterator[tuple[int, dict[str, Any] | None, int]]:
        """Yield offset, row if it matches, and the number of records that count as read."""
        if batch.is_control:
            if batch.base_offset >= position:
                yield batch.last_offset, control_row(partition, batch) if self.control else None, 0
            return
        try:
            if not batch.crc_ok():
                raise CorruptBatch("the records do not match their CRC")
            records = decode_records(batch, bytes_max=UNPACKED_BYTES_MAX)
        except CorruptBatch as error:
            yield batch.last_offset, unreadable_row(partition, batch, str(error)), 1
            return
        for record in records:
            if position <= record.offset < end:
                wanted = self.wanted.passes(self.view.searched(record))
                yield record.offset, row(partition, record, batch, outcome, self.view, self.cut) if wanted else None, 1


def _window(size: int, took: int) -> int:
    """Return the next window of offsets, sized for :data:`WINDOW_BYTES` but at most four times the last."""
    fitting = size * 4 if took * 4 <= WINDOW_BYTES else size * WINDOW_BYTES // max(1, took)
    return max(1, min(fitting, WINDOW_MAX))


async def read_part(fetches: Fetches, at: TopicPartition, position: int) -> Part:
    """Return the batches from ``position`` on, as many as one answer holds, with transaction outcomes. Returns none if
    retention has passed ``position``."""
    try:
        found = await fetches.fetch(at, position, -1, FETCH_MS, read_committed=True)
        stable = bool(found.size)
        if not stable:
            found = await fetches.fetch(at, position, -1, FETCH_MS)
    except OffsetOutOfRangeError:
        return Part([], [], 0)
    data = found.records[0] if len(found.records) == 1 else b"".join(found.records)
    batches = split_batches(data, allow_partial_tail=True)
    outcomes = [
        (OPEN if not stable else ABORTED if isinstance(seen, Passed) else COMMITTED) if batch.is_transactional else None
        for batch, seen in zip(batches, without_aborted(batches, found.aborted), strict=True)
    ]
    return Part(batches, outcomes, found.size)
