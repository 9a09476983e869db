"""Bounds of what a decoder makes of hostile bytes, and how it says that it cannot."""

from __future__ import annotations

import json
from typing import Any, Final

BYTES_MAX: Final = 1 << 20
"""A larger key or value is not decoded; the default of max.message.bytes is about as much."""
ITEMS_MAX: Final = 200_000
"""Values in one record: a few bytes of Avro may claim 2**60 nulls."""
DEPTH_MAX: Final = 64


class Undecodable(Exception):
    """Why bytes are not what the schema says, or why the schema cannot be had. The text is for the page."""


class SchemaWrong(Undecodable):
    """A schema that cannot be used."""


class Source:
    """Bytes that are read from the front, with the budget of one record."""

    __slots__ = ("_data", "_items", "depth", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self.depth = 0
        self._items = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > len(self._data):
            raise Undecodable(f"expected {size:,} bytes at byte {self.position:,}, found {self.left:,}")
        found = self._data[self.position : end]
        self.position = end
        return found

    @property
    def left(self) -> int:
        return len(self._data) - self.position

    def item(self) -> None:
        """One more value."""
        self._items += 1
        if self._items > ITEMS_MAX:
            raise Undecodable(f"expected at most {ITEMS_MAX:,} values in a record, found more")

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise Undecodable(f"expected at most {DEPTH_MAX} levels, found more")

    def varint(self) -> int:
        """Seven bits a byte, the lowest first; at most 64 bits."""
        found = shift = 0
        while True:
            byte = self.take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                if found >= 1 << 64:
                    raise Undecodable(f"expected a number of 64 bits before byte {self.position:,}")
                return found
            shift += 7
            if shift > 63:
                raise Undecodable(f"expected a number of at most 10 bytes at byte {self.position - 10:,}")

    def zigzag(self) -> int:
        found = self.varint()
        return (found >> 1) ^ -(found & 1)

    def end(self) -> None:
        if self.left:
            raise Undecodable(f"expected the end at byte {self.position:,}, found {self.left:,} bytes more")


def as_json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def of_json(data: bytes) -> Any:
    """Raises :class:`Undecodable`."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"expected JSON: {str(error)[:100]}") from None


def bytes_text(data: bytes) -> str:
    """Bytes within JSON: as text where they are some, else as hex."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else f"0x{data.hex()}"
