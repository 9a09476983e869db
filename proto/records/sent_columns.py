"""A table's columns as records to send: read from its buffers, without a Python object per record.

The buffers have Arrow's columnar format: variable-size values as one run of bytes with end offsets, nulls as a validity
bitmap (lowest bit first), numbers in the machine's byte order. A slice of a table shares its buffers and begins at
``first``. Source: "Arrow Columnar Format".

:mod:`tidelog.proto.records.row_writer` writes them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final, NamedTuple

from tidelog.model.buffer import Buffer

ROWS_MAX: Final = (1 << 31) - 1


class BlobView(NamedTuple):
    """A column of byte strings or texts. ``ends`` are 4-byte numbers, with ``wide`` 8-byte ones: the value of row ``n``
    is ``data`` from ``ends[first + n]`` to ``ends[first + n + 1]``. ``valid`` is None without nulls."""

    ends: Buffer
    data: Buffer | None
    valid: Buffer | None = None
    first: int = 0
    wide: bool = False


class NumberView(NamedTuple):
    """A column of numbers, of the size given in :class:`RecordColumns`."""

    data: Buffer
    valid: Buffer | None = None
    first: int = 0


class HeaderView(NamedTuple):
    """A column of lists of pairs. Row ``n`` has the pairs from ``ends[first + n]`` to ``ends[first + n + 1]``, counted
    from the beginning of ``names``, ``contents`` and ``pairs_valid`` (at ``pairs_first``). A null list has none."""

    ends: Buffer
    names: BlobView
    contents: BlobView
    valid: Buffer | None = None
    first: int = 0
    wide: bool = False
    pairs_valid: Buffer | None = None
    pairs_first: int = 0


class RecordColumns(NamedTuple):
    """``rows`` records, at most 2^31 - 1; a None column is null everywhere.

    ``partitions`` have 4 bytes, null if the key decides; ``timestamps`` are 8-byte microseconds, null for the time of
    sending. The buffers are read only during a call that gets them; they must not change then.
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
    """Its position in a buffer is out of range."""
    NEGATIVE_PARTITION = 2
    UNKNOWN_PARTITION = 3
    """The partition does not exist."""
    NAMELESS_HEADER = 4
    NEGATIVE_TIMESTAMP = 5
    TOO_LARGE = 6


def flattened(columns: RecordColumns) -> Iterator[object]:
    """Return the compiled writer's arguments: the number of rows, then each column's buffers as plain bytes."""
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
    """Return a buffer as plain bytes. Raises ``TypeError`` for anything else, or a non-contiguous buffer."""
    view = memoryview(b"" if buffer is None else buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")
