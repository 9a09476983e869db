"""Reads a partition's files one entry at a time, without the node that owns them.

For inspection, not for serving: a file that is being written may end in a partial entry. Formats: Kafka's
``LogSegment`` (batches one after another), ``OffsetIndex`` (relative offset i32, position i32), ``TimeIndex``
(timestamp i64, relative offset i32), ``TransactionIndex`` (version i16, then producer id, first, last and last stable
offset, i64 each).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.proto.records.batches import HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, Batch
from tidelog.proto.records.corrupt_batch import CorruptBatch

BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""Larger lengths count as damage and are not read."""
_LENGTH: Final = struct.Struct(">qiib")
_INDEX: Final = struct.Struct(">ii")
_TIME_INDEX: Final = struct.Struct(">qi")
_TXN_INDEX: Final = struct.Struct(">hqqqq")


class Damage(NamedTuple):
    """Where a file becomes unreadable, and why."""

    position: int
    reason: str


class PlacedBatch(NamedTuple):
    position: int
    batch: Batch
    crc_ok: bool


def read_batches(path: Path) -> Iterator[PlacedBatch | Damage]:
    """Yield the batches of a ``.log`` file; a :class:`Damage`, if any, comes last."""
    size = path.stat().st_size
    position = 0
    with path.open("rb") as file:
        while position < size:
            file.seek(position)
            head = file.read(HEADER_SIZE)
            if len(head) < HEADER_SIZE:
                yield Damage(position, f"expected a header of {HEADER_SIZE} bytes, found {len(head)} to the end")
                return
            if not any(head):
                yield Damage(position, f"expected a batch, found zeros ({size - position} bytes to the end)")
                return
            _, length, _, magic = _LENGTH.unpack_from(head)
            whole = length + LENGTH_OVERHEAD
            if magic != MAGIC:
                yield Damage(position, f"expected magic {MAGIC}, found {magic}")
                return
            if not HEADER_SIZE <= whole <= BATCH_BYTES_MAX:
                yield Damage(position, f"expected a batch of {HEADER_SIZE} to {BATCH_BYTES_MAX} bytes, found {whole}")
                return
            data = head + file.read(whole - HEADER_SIZE)
            if len(data) < whole:
                yield Damage(position, f"expected a batch of {whole} bytes, found {len(data)} to the end")
                return
            try:
                batch = Batch(memoryview(data))
                yield PlacedBatch(position, batch, batch.crc_ok())
            except CorruptBatch as corrupt:
                yield Damage(position, str(corrupt))
                return
            position += whole


def base_offset(path: Path) -> int:
    """The offset in a segment's file name. Raises ``ValueError``."""
    stem = path.name.split(".")[0]
    if len(stem) != 20 or not stem.isdecimal():
        raise ValueError(f"expected a name of 20 digits, found {path.name}")
    return int(stem)


def read_offset_index(path: Path) -> Iterator[tuple[int, int]]:
    """Yield (offset, position)."""
    base = base_offset(path)
    for relative, position in _entries(path, _INDEX):
        yield base + relative, position


def read_time_index(path: Path) -> Iterator[tuple[int, int]]:
    """Yield (timestamp in ms, offset)."""
    base = base_offset(path)
    for timestamp, relative in _entries(path, _TIME_INDEX):
        yield timestamp, base + relative


def read_transaction_index(path: Path) -> Iterator[tuple[int, int, int, int]]:
    """Yield (producer id, first offset, last offset, last stable offset) of aborted transactions."""
    for _, producer_id, first, last, stable in _entries(path, _TXN_INDEX):
        yield producer_id, first, last, stable


def _entries(path: Path, entry: struct.Struct) -> Iterator[tuple[int, ...]]:
    data = path.read_bytes()
    whole = len(data) - len(data) % entry.size
    blank = bytes(entry.size)
    for at in range(0, whole, entry.size):
        if at and data[at : at + entry.size] == blank:
            return  # preallocated, not yet written
        yield entry.unpack_from(data, at)
