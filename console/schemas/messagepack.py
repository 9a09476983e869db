"""MessagePack. Source: its specification of 2017."""

from __future__ import annotations

import struct
from typing import Any, Final

from tidelog.console.schemas.structured import Source, Undecodable, bytes_text

_NUMBERS: Final = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_PLAIN: Final = {0xC0: None, 0xC2: False, 0xC3: True}


class MessagePack:
    kind: Final = "messagepack"
    name: Final = ""

    def decode(self, data: bytes) -> Any:
        """Values that JSON has. Raises :class:`Undecodable`."""
        source = Source(data)
        found = _value(source)
        source.end()
        return found


def _value(source: Source) -> Any:
    source.item()
    (kind,) = source.take(1)
    if kind < 0x80:
        return kind
    if kind >= 0xE0:
        return kind - 0x100
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _NUMBERS:
        form = _NUMBERS[kind]
        return struct.unpack(form, source.take(struct.calcsize(form)))[0]
    if kind < 0x90 or kind in (0xDE, 0xDF):
        return _map(source, kind & 0x0F if kind < 0x90 else _size(source, 2 << (kind - 0xDE)))
    if kind < 0xA0 or kind in (0xDC, 0xDD):
        return _array(source, kind & 0x0F if kind < 0xA0 else _size(source, 2 << (kind - 0xDC)))
    if kind < 0xC0 or 0xD9 <= kind <= 0xDB:
        return bytes_text(source.take(kind & 0x1F if kind < 0xC0 else _size(source, 1 << (kind - 0xD9))))
    if 0xC4 <= kind <= 0xC6:
        return bytes_text(source.take(_size(source, 1 << (kind - 0xC4))))
    if 0xC7 <= kind <= 0xC9:
        return _extension(source, _size(source, 1 << (kind - 0xC7)))
    if 0xD4 <= kind <= 0xD8:
        return _extension(source, 1 << (kind - 0xD4))
    raise Undecodable(f"expected a type of MessagePack at byte {source.position - 1:,}, found 0x{kind:02x}")


def _size(source: Source, width: int) -> int:
    return int.from_bytes(source.take(width), "big")


def _array(source: Source, count: int) -> list[Any]:
    source.deeper()
    found = [_value(source) for _ in range(count)]
    source.depth -= 1
    return found


def _map(source: Source, count: int) -> dict[str, Any]:
    source.deeper()
    found = {}
    for _ in range(count):
        key = _value(source)
        found[key if isinstance(key, str) else str(key)] = _value(source)
    source.depth -= 1
    return found


def _extension(source: Source, size: int) -> dict[str, Any]:
    (kind,) = struct.unpack(">b", source.take(1))
    return {"extension": kind, "bytes": f"0x{source.take(size).hex()}"}
