"""Varints: zigzag, as in record bodies (Kafka's ``ByteUtils.writeVarint``, Protocol Buffers' sint), and unsigned."""

from __future__ import annotations

from functools import cache
from typing import Final

TABLE_SIZE: Final = 16384


def encode_varint(number: int) -> bytes:
    """Return the zigzag varint of a number of at most 64 bits."""
    rest = (number << 1) ^ (number >> 63)
    if not 0 <= rest < 1 << 64:
        raise OverflowError(f"expected a number of 64 bits, found {number}")
    out = bytearray()
    write_uvarint(out, rest)
    return bytes(out)


def write_uvarint(out: bytearray, number: int) -> None:
    """Append an unsigned number in groups of seven bits."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


class _Varints(dict[int, bytes]):
    """Number → varint; keeps those of numbers below TABLE_SIZE, so it stays small."""

    def __missing__(self, number: int) -> bytes:
        found = encode_varint(number)
        if 0 <= number < TABLE_SIZE:
            self[number] = found
        return found


VARINTS: Final[dict[int, bytes]] = _Varints()
"""The varint of any number."""


@cache
def varint_list() -> list[bytes]:
    """Return the varints of 0 up to TABLE_SIZE, in order."""
    return [encode_varint(number) for number in range(TABLE_SIZE)]
