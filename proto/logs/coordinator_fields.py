"""A reader of a coordinator record's fields, which checks each length against the remaining bytes.

*Flexible* versions have compact lengths (KIP-482) and tagged fields, which a reader skips if it does not know them
(KIP-915).
"""

from __future__ import annotations

import struct
from typing import Final

_BYTE: Final = struct.Struct(">b")
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")


class BadCoordinatorRecord(ValueError):
    """An unreadable key or value; the text says what was expected and found."""


class FieldReader:
    """Reads one key or value, and checks each length against the remaining bytes."""

    __slots__ = ("_at", "_flexible", "_raw", "_what")

    def __init__(self, raw: bytes, what: str) -> None:
        self._raw = raw
        self._at = 0
        self._what = what
        self._flexible = False

    def value_version(self, highest: int, flexible_from: int) -> int:
        """Read a value's version; from ``flexible_from`` on it has compact lengths and tagged fields."""
        version = self.int16()
        if not 0 <= version <= highest:
            raise BadCoordinatorRecord(f"expected {self._what} version 0 to {highest}, found {version}")
        self._flexible = version >= flexible_from
        return version

    def be_flexible(self) -> None:
        """Switch to compact lengths for what follows."""
        self._flexible = True

    def raw(self, size: int) -> bytes:
        """Read a known number of bytes."""
        return self._take(size)

    def int8(self) -> int:
        found: int = _BYTE.unpack(self._take(1))[0]
        return found

    def int16(self) -> int:
        found: int = _SHORT.unpack(self._take(2))[0]
        return found

    def int32(self) -> int:
        found: int = _INT.unpack(self._take(4))[0]
        return found

    def int64(self) -> int:
        found: int = _LONG.unpack(self._take(8))[0]
        return found

    def string(self) -> str:
        found = self.nullable_string()
        if found is None:
            raise BadCoordinatorRecord(f"expected a string at byte {self._at} of the {self._what}, found null")
        return found

    def nullable_string(self) -> str | None:
        length = self.uvarint() - 1 if self._flexible else self.int16()
        if length == -1:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as cause:
            raise BadCoordinatorRecord(
                f"expected UTF-8 before byte {self._at} of the {self._what}, found {cause.reason}"
            ) from None

    def blob(self) -> bytes:
        return self._take(self.count())

    def nullable_count(self) -> int | None:
        """Read a count like :meth:`count`, None for null."""
        at, found = self._at, self._length()
        if found == -1:
            return None
        self._at = at
        return self.count()

    def count(self) -> int:
        """Read the length of bytes or of an array; null is not allowed. Each element has at least one byte."""
        found = self._length()
        if not 0 <= found <= len(self._raw) - self._at:
            raise BadCoordinatorRecord(
                f"expected a length of 0 to {len(self._raw) - self._at} at byte {self._at} of the {self._what},"
                f" found {found}"
            )
        return found

    def tagged_fields(self) -> dict[int, bytes]:
        """Read the tagged fields, by tag; none in a version that is not flexible."""
        found: dict[int, bytes] = {}
        if self._flexible:
            for _ in range(self.uvarint()):
                tag = self.uvarint()
                found[tag] = self._take(self.uvarint())
        return found

    def uvarint(self) -> int:
        found = shift = 0
        while True:
            byte = self._take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7
            if shift > 28:
                raise BadCoordinatorRecord(
                    f"expected a varint of 5 bytes at most in the {self._what}, found a longer one"
                )

    def _length(self) -> int:
        return self.uvarint() - 1 if self._flexible else self.int32()

    def _take(self, size: int) -> bytes:
        at = self._at
        end = at + size
        if size < 0 or end > len(self._raw):
            raise BadCoordinatorRecord(
                f"expected {size} more bytes at byte {at} of the {self._what}, found {len(self._raw) - at}"
            )
        self._at = end
        return self._raw[at:end]
