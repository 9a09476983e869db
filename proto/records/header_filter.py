"""Which records a reader wants, by one header, and the masks with which a log's index rules batches out. Pure.

A mask has 64 bits. Bit 0 stands for records without the header, each other one for about a 63rd of all values. So a
batch whose mask has no bit in common with the reader's has nothing for it; the converse is not true, and the reader
looks at each record again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from zlib import crc32

from tidelog.proto.records.batches import Batch
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.decoder import decode_fields
from tidelog.proto.records.walk import RecordHeaders

ALL: Final = (1 << 64) - 1
_WITHOUT: Final = 1
UNPACKED_MAX: Final = 8 * 1024 * 1024
"""Most bytes of an unpacked batch that is looked into."""


class HeaderMask(NamedTuple):
    """What a broker is told of a filter. ``header``: of its name, a checksum."""

    header: int
    mask: int


def header_sum(name: str) -> int:
    return crc32(name.encode())


def mask_of(values: Iterable[bytes | None]) -> int:
    """Return the mask of records that have one of these values; ``None``: that lack the header."""
    mask = 0
    for value in values:
        mask |= _WITHOUT if value is None else 2 << crc32(value) % 63
    return mask


def mask_of_batch(batch: Batch, header: str) -> int:
    """Return the mask of a whole batch. Readers need every control batch, and those that cannot be looked into."""
    if batch.is_control:
        return ALL
    mask = 0
    try:
        for _, _, _, _, headers in decode_fields(batch, bytes_max=UNPACKED_MAX):
            mask |= mask_of(values_of(headers, header))
    except CorruptBatch:
        return ALL
    return mask


def values_of(headers: RecordHeaders, header: str) -> tuple[bytes | None, ...]:
    """Return a record's values of a header, ``(None,)`` without it. A null value is an empty one."""
    return tuple([value or b"" for name, value in headers if name == header]) or (None,)


class HeaderFilter:
    """Wants the records whose ``header`` has one of ``values``; ``None`` among them: those without the header.

    For a consumer's ``header_filter``. Raises ``ValueError``.
    """

    __slots__ = ("header", "mask", "values")

    def __init__(self, header: str, values: Iterable[str | bytes | None]) -> None:
        if not header or isinstance(values, str | bytes):
            raise ValueError(f"expected a header's name and several values, found {header!r} and {values!r}")
        self.header: Final = header
        self.values: Final = frozenset(value.encode() if isinstance(value, str) else value for value in values)
        if not self.values:
            raise ValueError(f"expected values of the header {header}, found none")
        self.mask: Final = HeaderMask(header_sum(header), mask_of(self.values))

    def __repr__(self) -> str:
        return f"HeaderFilter({self.header!r}, {sorted(self.values, key=repr)!r})"

    def wants(self, headers: RecordHeaders) -> bool:
        """Return whether a record with these headers is wanted."""
        return not self.values.isdisjoint(values_of(headers, self.header))
