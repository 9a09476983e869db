"""Kafka's primitive types, read and written by position: the basis of every message.

Readers take ``(data, position)`` and return ``(value, position after it)``; a value that does not fit in ``data``
raises :class:`BadMessage`. Writers append to a ``bytearray``. Source: Kafka's protocol guide and KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from tidelog.model.buffer import Buffer
from tidelog.proto.records.varint import write_uvarint

Data = bytes | memoryview
Reader = Callable[[Data, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]

ITEMS_MAX: Final = 20_000
"""Most array items and tagged fields of one request. Reading and answering each costs up to 15 µs of the event loop,
however few bytes it has, so a request blocks the loop for about 0.3 s at most."""
TAGS_MAX: Final = 64
"""Most tagged fields of one structure. Kafka's own messages have at most five."""
_UVARINT_BYTES_MAX: Final = 5
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_STRING_MAX: Final = 0x7FFF


class BadMessage(ValueError):
    """A message that does not fit its API and version; the text says what was expected and found."""


class Budget:
    """How many more array items and tagged fields one message may have."""

    __slots__ = ("left", "most")

    def __init__(self, most: int = ITEMS_MAX) -> None:
        self.left = self.most = most

    def take(self, count: int) -> None:
        """Take from the budget. Raises :class:`BadMessage` if that exceeds the bound."""
        self.left -= count
        if self.left < 0:
            raise BadMessage(f"expected at most {self.most} array items and tagged fields in a message, found more")


def read_uvarint(data: Data, position: int) -> tuple[int, int]:
    """Read an unsigned number of at most 32 bits in groups of seven bits, lowest first."""
    value = shift = 0
    end = min(position + _UVARINT_BYTES_MAX, len(data))
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFF_FFFF:
                raise BadMessage(f"expected a number of at most 32 bits before position {position}, found {value}")
            return value, position
        shift += 7
    raise BadMessage(f"expected a number of at most 32 bits, found no end of it at position {position}")


def read_tag_count(data: Data, position: int, budget: Budget) -> tuple[int, int]:
    """Read the number of a structure's tagged fields and take it from ``budget``."""
    count, position = read_uvarint(data, position)
    if count > TAGS_MAX:
        raise BadMessage(f"expected at most {TAGS_MAX} tagged fields in a structure, found {count}")
    budget.take(count)
    return count, position


def read_tag(data: Data, position: int) -> tuple[int, int, int]:
    """Read a tagged field's tag and the range of its value."""
    tag, position = read_uvarint(data, position)
    size, position = read_uvarint(data, position)
    if position + size > len(data):
        raise BadMessage(f"expected tagged field {tag} within {len(data)} bytes, found it to end at {position + size}")
    return tag, position, position + size


def skip_tags(data: Data, position: int, budget: Budget) -> int:
    """Skip unknown tagged fields."""
    if position < len(data) and not data[position]:
        return position + 1
    count, position = read_tag_count(data, position, budget)
    for _ in range(count):
        _, _, position = read_tag(data, position)
    return position


def _slice(data: Data, position: int, size: int, what: str) -> Data:
    end = position + size
    if end > len(data):
        raise BadMessage(f"expected {what} within {len(data)} bytes, found it to end at {end}")
    return data[position:end]


def _text(data: Data, position: int, size: int) -> str:
    try:
        return str(_slice(data, position, size, "a string"), "utf-8")
    except UnicodeDecodeError as error:
        raise BadMessage(f"expected UTF-8 at position {position}, found {error.reason}") from None


def read_string(data: Data, position: int) -> tuple[str | None, int]:
    """Read a string with a 16-bit length; ``None`` for null."""
    if position + 2 > len(data):
        raise BadMessage(f"expected a string's length at position {position}, found the end")
    (size,) = _I16.unpack_from(data, position)
    position += 2
    if size < 0:
        if size != -1:
            raise BadMessage(f"expected a string's length before position {position}, found {size}")
        return None, position
    return _text(data, position, size), position + size


def read_compact_string(data: Data, position: int) -> tuple[str | None, int]:
    """Read a string with its length plus one as a varint; ``None`` for null."""
    size, position = read_uvarint(data, position)
    if not size:
        return None, position
    size -= 1
    if size > _STRING_MAX:
        raise BadMessage(f"expected a string of at most {_STRING_MAX} bytes at position {position}, found {size}")
    return _text(data, position, size), position + size


def read_bytes(data: Data, position: int) -> tuple[bytes | None, int]:
    """Read bytes with a 32-bit length, copied; ``None`` for null."""
    size, position = read_length(data, position)
    if size < 0:
        return None, position
    return bytes(_slice(data, position, size, "bytes")), position + size


def read_compact_bytes(data: Data, position: int) -> tuple[bytes | None, int]:
    """Read bytes with their length plus one as a varint, copied; ``None`` for null."""
    size, position = read_compact_length(data, position)
    if size < 0:
        return None, position
    return bytes(_slice(data, position, size, "bytes")), position + size


def read_length(data: Data, position: int) -> tuple[int, int]:
    """Read the 32-bit length of bytes or of an array; -1 for null."""
    if position + 4 > len(data):
        raise BadMessage(f"expected a length at position {position}, found the end")
    (size,) = _I32.unpack_from(data, position)
    if size < -1:
        raise BadMessage(f"expected a length at position {position}, found {size}")
    return size, position + 4


def read_compact_length(data: Data, position: int) -> tuple[int, int]:
    """Read the length of bytes or of an array from a varint of one more; -1 for null."""
    size, position = read_uvarint(data, position)
    return size - 1, position


def _cut(raw: bytes) -> bytes:
    """Return as much of a text as fits, in whole characters.

    A message that quotes a request, or a name from another protocol, may be longer than Kafka's format allows. It must
    not end a connection, let alone the node.
    """
    return raw[:_STRING_MAX].decode("utf-8", "ignore").encode("utf-8")


def write_string(out: bytearray, value: str | None) -> None:
    """What does not fit into Kafka's 32,767 bytes is cut off: see :func:`_cut`."""
    if value is None:
        out += b"\xff\xff"
        return
    raw = value.encode("utf-8", "replace")
    if len(raw) > _STRING_MAX:
        raw = _cut(raw)
    out += len(raw).to_bytes(2, "big")
    out += raw


def write_compact_string(out: bytearray, value: str | None) -> None:
    """What does not fit into Kafka's 32,767 bytes is cut off: see :func:`_cut`."""
    if value is None:
        out.append(0)
        return
    raw = value.encode("utf-8", "replace")
    if len(raw) > _STRING_MAX:
        raw = _cut(raw)
    write_uvarint(out, len(raw) + 1)
    out += raw


def write_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += len(value).to_bytes(4, "big")
    out += value


def write_compact_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out.append(0)
        return
    write_uvarint(out, len(value) + 1)
    out += value


def write_length(out: bytearray, size: int) -> None:
    """An array's length; -1 for null."""
    out += _I32.pack(size)


def write_compact_length(out: bytearray, size: int) -> None:
    """An array's length; -1 for null."""
    write_uvarint(out, size + 1)
