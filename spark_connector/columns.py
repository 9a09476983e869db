"""The columns that a query sees (the same as in Spark's Kafka source), and the Arrow batches that carry them.

Source: Spark's ``KafkaRecordToRowConverter``.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def arrow_schema(include_headers: bool) -> pa.Schema:
    """The same columns as Arrow's types, exactly as Spark expects them back."""
    return to_arrow_schema(schema(include_headers), timezone="UTC")


def record_batch(columns: Columns, topic: str, partition: int, to: pa.Schema) -> pa.RecordBatch:
    """Return the records of one partition as an Arrow batch of the schema ``to``, over their own buffers.

    A record without headers has null for them.
    """
    rows = columns.rows
    arrays = [
        _blobs(columns.keys, to.field("key").type),
        _blobs(columns.values, to.field("value").type),
        pa.repeat(pa.scalar(topic, to.field("topic").type), rows),
        pa.repeat(pa.scalar(partition, to.field("partition").type), rows),
        _numbers(columns.offsets, rows, to.field("offset").type),
        _numbers(columns.timestamps, rows, to.field("timestamp").type),
        _numbers(columns.kinds, rows, to.field("timestampType").type),
    ]
    if columns.headers is not None:
        arrays.append(_headers(columns.headers, rows, to.field("headers").type))
    return pa.RecordBatch.from_arrays(arrays, schema=to)


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
