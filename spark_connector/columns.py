"""The columns that a query sees (the same as in Spark's Kafka source), and the Arrow batches that carry them.

Source: Spark's ``KafkaRecordToRowConverter``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.proto.records.columns import Blobs, Columns, HeaderColumns

_HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_WITHOUT_HEADERS: Final = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]


def schema(include_headers: bool) -> StructType:
    """The columns as Spark's types."""
    return StructType(_WITHOUT_HEADERS + ([StructField("headers", _HEADERS)] if include_headers else []))


def chosen(given: StructType, include_headers: bool) -> tuple[str, ...] | None:
    """Return the columns that a schema names, or None if one of them is not the source's, or of another type."""
    there = {field.name: field.dataType.simpleString() for field in schema(include_headers)}
    fits = all(there.get(field.name) == field.dataType.simpleString() for field in given)
    return tuple(given.names) if fits and len(set(given.names)) == len(given.names) > 0 else None


def arrow_schema(include_headers: bool, columns: Sequence[str] = ()) -> pa.Schema:
    """Return these columns, by default all, as Arrow's types, exactly as Spark expects them back."""
    every = schema(include_headers)
    return to_arrow_schema(StructType([every[name] for name in columns or every.names]), timezone="UTC")


def record_batch(columns: Columns, topic: str, partition: int, to: pa.Schema) -> pa.RecordBatch:
    """Return the records of one partition as an Arrow batch of the schema ``to``, over their own buffers.

    A record without headers has null for them.
    """
    arrays = [_array(field, columns, topic, partition) for field in to]
    return pa.RecordBatch.from_arrays(arrays, schema=to)


def _array(field: pa.Field, columns: Columns, topic: str, partition: int) -> pa.Array:
    kind, rows = field.type, columns.rows
    match field.name:
        case "key":
            return _blobs(columns.keys, kind)
        case "value":
            return _blobs(columns.values, kind)
        case "topic":
            return pa.repeat(pa.scalar(topic, kind), rows)
        case "partition":
            return pa.repeat(pa.scalar(partition, kind), rows)
        case "offset":
            return _numbers(columns.offsets, rows, kind)
        case "timestamp":
            return _numbers(columns.timestamps, rows, kind)
        case "timestampType":
            return _numbers(columns.kinds, rows, kind)
    assert columns.headers is not None
    return _headers(columns.headers, rows, kind)


def sliced(batch: pa.RecordBatch, size: int, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch whose rows have ``size`` bytes into pieces of about these bounds at most, without a copy."""
    rows = batch.num_rows
    pieces = max(-(-rows // rows_max), -(-size // bytes_max), 1)
    step = max(-(-rows // pieces), 1)
    for start in range(0, rows, step):
        yield batch.slice(start, step)


def _buffer(data: bytes | None) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)


def _numbers(data: bytes, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, _buffer(data)], null_count=0)


def _blobs(column: Blobs, kind: pa.DataType) -> pa.Array:
    buffers = [_buffer(column.valid), _buffer(column.ends), _buffer(column.data)]
    return pa.Array.from_buffers(kind, column.length, buffers, null_count=column.nulls)


def _headers(headers: HeaderColumns, rows: int, kind: pa.ListType) -> pa.Array:
    item = kind.value_type
    pairs = pa.Array.from_buffers(
        item,
        headers.names.length,
        [None],
        null_count=0,
        children=[_blobs(headers.names, item.field("key").type), _blobs(headers.contents, item.field("value").type)],
    )
    return pa.Array.from_buffers(
        kind, rows, [_buffer(headers.valid), _buffer(headers.ends)], null_count=headers.without, children=[pairs]
    )
