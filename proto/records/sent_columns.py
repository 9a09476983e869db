"""Columns of a table as records to be sent: read from its buffers, without a Python object per record.

The buffers have Arrow's columnar format, as the table's owner hands them out: variable-size values as
one run of bytes and where each ends, whether there is a value as a bitmap (lowest bit first), numbers in the machine's
byte order. A slice of a table shares its buffers and begins at ``first``. Source: "Arrow Columnar Format".

:mod:`tidelog.proto.records.row_writer` writes them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final, NamedTuple

from tidelog.model.buffer import Buffer

ROWS_MAX: Final = (1 << 31) - 1


class BlobView(NamedTuple):
    """A column of byte strings or texts. ``ends`` are numbers of 4 bytes, with ``wide`` of 8: the value of row ``n``
    is ``data`` from ``ends[first + n]`` to ``ends[first + n + 1]``. ``valid`` is None where nothing is null."""

    ends: Buffer
    data: Buffer | None
    valid: Buffer | None = None
    first: int = 0
    wide: bool = False


class NumberView(NamedTuple):
    """A column of numbers, of as many bytes as its place in :class:`RecordColumns` says."""

    data: Buffer
    valid: Buffer | None = None
    first: int = 0


class HeaderView(NamedTuple):
    """A column of lists of pairs. Row ``n`` has the pairs from ``ends[first + n]`` to ``ends[first + n + 1]``, counted
    from where ``names``, ``contents`` and ``pairs_valid`` (at ``pairs_first``) begin. A list that is null has none."""

    ends: Buffer
    names: BlobView
    contents: BlobView
    valid: Buffer | None = None
    first: int = 0
    wide: bool = False
    pairs_valid: Buffer | None = None
    pairs_first: int = 0


class RecordColumns(NamedTuple):
    """``rows`` records, at most 2^31 - 1; a column that is None is null everywhere.

    ``partitions`` are of 4 bytes, null where the key chooses; ``timestamps`` are microseconds of 8 bytes, null for the
    time of sending. The buffers are looked at only while a call that was given them runs; they must not change then.
    """

    rows: int
    values: BlobView | None = None
    keys: BlobView | None = None
    headers: HeaderView | None = None
    partitions: NumberView | None = None
    timestamps: NumberView | None = None


class Fault(enum.IntEnum):
    """The fault in a row."""

    NONE = 0
    LAYOUT = 1
    """Its place in a buffer is none."""
    NEGATIVE_PARTITION = 2
    UNKNOWN_PARTITION = 3
    """The partition is not among those that there are."""
    NAMELESS_HEADER = 4
    NEGATIVE_TIMESTAMP = 5
    TOO_LARGE = 6


def flattened(columns: RecordColumns) -> Iterator[object]:
    """The arguments of the compiled writer: the number of rows, then each column's buffers as plain bytes."""
    yield columns.rows
    for blobs in (columns.values, columns.keys):
        yield None if blobs is None else _flat_blobs(blobs)
    headers = columns.headers
    if headers is None:
        yield None
    else:
        yield (
            flat(headers.ends),
            None if headers.valid is None else flat(headers.valid),
            headers.first,
            headers.wide,
            _flat_blobs(headers.names),
            _flat_blobs(headers.contents),
            None if headers.pairs_valid is None else flat(headers.pairs_valid),
            headers.pairs_first,
        )
    for numbers in (columns.partitions, columns.timestamps):
        yield (
            None
            if numbers is None
            else (flat(numbers.data), None if numbers.valid is None else flat(numbers.valid), numbers.first)
        )


def _flat_blobs(view: BlobView) -> tuple[memoryview, memoryview, memoryview | None, int, bool]:
    valid = None if view.valid is None else flat(view.valid)
    return flat(view.ends), flat(view.data), valid, view.first, view.wide


def flat(buffer: Buffer | None) -> memoryview:
    """A buffer as plain bytes. Raises ``TypeError`` for what is none, or lies in pieces."""
    view = memoryview(b"" if buffer is None else buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")
