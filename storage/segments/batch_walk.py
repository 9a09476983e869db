"""Walks the batches of a segment's log file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidelog.proto.records.batches import HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, Batch, CorruptBatch
from tidelog.storage.disk.handles import PooledFile

HEADER_CHUNK: Final = 16 * 1024
"""Bytes read at a time if only headers are needed."""
WHOLE_CHUNK: Final = 1024 * 1024
"""Bytes read at a time if whole batches are checked; a larger batch is read in one piece."""
_LENGTH_AT = 8
_MAGIC_AT = 16


def batch_size_at(view: memoryview, at: int, room: int) -> int:
    """Return the size of the batch that begins at ``at``; at least its header must be in ``view``.

    Raises :class:`CorruptBatch` for a magic other than 2 or a size that does not fit into ``room`` bytes.
    """
    if view[at + _MAGIC_AT] != MAGIC:
        raise CorruptBatch(f"expected record batch magic {MAGIC}, found {view[at + _MAGIC_AT]}")
    size = int.from_bytes(view[at + _LENGTH_AT : at + _LENGTH_AT + 4], "big", signed=True) + LENGTH_OVERHEAD
    if size < HEADER_SIZE or size > room:
        raise CorruptBatch(f"expected a batch of {HEADER_SIZE} to {room} bytes, found a length of {size}")
    return size


def walk_headers(file: PooledFile, position: int, end: int) -> Iterator[tuple[int, Batch]]:
    """Yield (position, batch) for all batches from ``position`` to ``end``, reading only headers.

    A yielded batch's ``view`` is incomplete: use only its header's fields. Raises :class:`CorruptBatch` if the next
    data is not a whole batch.
    """
    chunk = memoryview(b"")
    start = position
    while position < end:
        at = position - start
        if at + HEADER_SIZE > len(chunk):
            chunk = memoryview(file.get().pread(min(HEADER_CHUNK, end - position), position))
            start, at = position, 0
            if len(chunk) < HEADER_SIZE:
                raise CorruptBatch(f"expected a batch header at {position}, found {len(chunk)} bytes")
        size = batch_size_at(chunk, at, end - position)
        batch = Batch(chunk[at : at + HEADER_SIZE])
        batch.size = size
        yield position, batch
        position += size


def walk_whole(file: PooledFile, position: int, end: int) -> Iterator[tuple[int, Batch]]:
    """Yield (position, batch) as :func:`walk_headers`, with each batch complete and its CRC checked.

    Raises :class:`CorruptBatch` if the next data is not a whole batch with the right CRC.
    """
    chunk = memoryview(b"")
    start = position
    while position < end:
        at = position - start
        size = 0
        if at + HEADER_SIZE <= len(chunk):
            size = batch_size_at(chunk, at, end - position)
        if not size or at + size > len(chunk):
            chunk = memoryview(file.get().pread(min(max(WHOLE_CHUNK, size), end - position), position))
            start, at = position, 0
            if len(chunk) < HEADER_SIZE:
                raise CorruptBatch(f"expected a batch header at {position}, found {len(chunk)} bytes")
            size = batch_size_at(chunk, 0, end - position)
            if size > len(chunk):
                chunk = memoryview(file.get().pread(size, position))
                if len(chunk) < size:
                    raise CorruptBatch(f"expected a batch of {size} bytes at {position}, found {len(chunk)}")
        batch = Batch(chunk[at : at + size])
        if not batch.crc_ok():
            raise CorruptBatch(f"expected a batch at {position} that matches its CRC {batch.crc:#010x}, it does not")
        yield position, batch
        position += size
