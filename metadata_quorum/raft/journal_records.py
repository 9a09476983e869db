"""How the quorum's journal frames what it writes::

u32 magic | u32 length of body | u32 CRC-32C of (u64 position in the file, body) | body
"""

from __future__ import annotations

import struct
from typing import Final

from tidelog.model.hashes.crc32c import crc32c

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
_MAGIC: Final = 0x544C514A
_HEAD: Final = struct.Struct("<III")
_POSITION: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size


def record(body: bytes, position: int) -> bytes:
    """Return the record that holds a body, to be written at a position."""
    return _HEAD.pack(_MAGIC, len(body), crc32c(body, crc32c(_POSITION.pack(position)))) + body


def body_at(data: bytes, position: int) -> bytes | None:
    """Return the body of the record that begins there; ``None`` if none does."""
    start = position + _HEAD.size
    if start > len(data):
        return None
    magic, size, crc = _HEAD.unpack_from(data, position)
    if magic != _MAGIC or not 0 < size <= RECORD_BYTES_MAX or start + size > len(data):
        return None
    body = data[start : start + size]
    return body if crc32c(body, crc32c(_POSITION.pack(position))) == crc else None


def next_record(data: bytes, position: int) -> int | None:
    """Return where the next valid record begins at or after a position."""
    magic = struct.pack("<I", _MAGIC)
    while (position := data.find(magic, position)) >= 0:
        if body_at(data, position) is not None:
            return position
        position += 1
    return None
