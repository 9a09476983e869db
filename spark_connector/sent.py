"""Arrow's columns as the producer takes them: views of their buffers, without a copy."""

from __future__ import annotations

import pyarrow as pa

from tidelog.proto.records.sent_columns import BlobView, HeaderView, NumberView, RecordColumns


def record_columns(
    rows: int,
    *,
    values: pa.Array | None = None,
    keys: pa.Array | None = None,
    headers: pa.Array | None = None,
    partitions: pa.Array | None = None,
    timestamps: pa.Array | None = None,
) -> RecordColumns:
    """Return views of these arrays of ``rows`` each: ``values`` and ``keys`` (large) binary or string, ``headers``
    (large) list of a struct of name and content, ``partitions`` int32, ``timestamps`` timestamp[us]. None for a missing
    column, or one of Arrow's type null. Raises ``TypeError`` for other types."""
    return RecordColumns(
        rows,
        None if _nothing(values) else _blobs(values),
        None if _nothing(keys) else _blobs(keys),
        None if _nothing(headers) else _headers(headers),
        None if _nothing(partitions) else _numbers(partitions, pa.types.is_int32),
        None if _nothing(timestamps) else _numbers(timestamps, _is_micros),
    )


def _nothing(array: pa.Array | None) -> bool:
    return array is None or pa.types.is_null(array.type)


def _blobs(array: pa.Array) -> BlobView:
    kind = array.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not (wide or pa.types.is_binary(kind) or pa.types.is_string(kind)):
        raise TypeError(f"expected a column of binary or string, found {kind}")
    valid, ends, data = array.buffers()
    return BlobView(_some(ends), data, valid, array.offset, wide)


def _headers(array: pa.Array) -> HeaderView:
    kind = array.type
    wide = pa.types.is_large_list(kind)
    item = kind.value_type if wide or pa.types.is_list(kind) else None
    if item is None or not pa.types.is_struct(item) or item.num_fields != 2:
        raise TypeError(f"expected a column of lists of pairs, found {kind}")
    valid, ends = array.buffers()[:2]
    pairs = array.values
    names, contents = _blobs(pairs.field(0)), _blobs(pairs.field(1))
    return HeaderView(_some(ends), names, contents, valid, array.offset, wide, pairs.buffers()[0], pairs.offset)


def _numbers(array: pa.Array, fits: object) -> NumberView:
    if not callable(fits) or not fits(array.type):
        raise TypeError(f"expected a column of int32 or timestamp[us], found {array.type}")
    valid, data = array.buffers()
    return NumberView(_some(data), valid, array.offset)


def _is_micros(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.unit == "us"


def _some(buffer: pa.Buffer | None) -> pa.Buffer | bytes:
    return b"" if buffer is None else buffer
