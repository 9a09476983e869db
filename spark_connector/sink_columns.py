"""The columns that a sink takes (the same as Spark's Kafka sink), and how their Arrow batches become records.

Source: Spark's ``KafkaWriter`` and ``KafkaRowWriter``: the columns, their types, the messages about others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from tidelog.proto.records.sent_columns import BlobView, HeaderView, NumberView, RecordColumns
from tidelog.spark_connector.options import OptionError

if TYPE_CHECKING:
    from tidelog.client.sink.blocking_writer import SinkWriter

_TYPES: Final = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("double", "timestamp"),
}
"""The types allowed for each column, by Spark's names, in the order of the checks."""
_MICROS_MAX: Final = 9.2e18
"""Just under the range of 64 bits: values beyond it are not times."""


class RowError(ValueError):
    """A row that cannot become a record."""


class SinkColumns(NamedTuple):
    """The column index of each part of a record; None without such a column. Other columns are ignored. Can be
    pickled."""

    topic_option: str | None
    topic: int | None
    key: int | None
    value: int
    headers: int | None
    partition: int | None
    timestamp: int | None

    @classmethod
    def of(cls, schema: StructType, topic_option: str | None) -> SinkColumns:
        """Find the columns. Raises :class:`OptionError` with Spark's words if one is missing or of another type."""
        found: dict[str, int | None] = {}
        names = schema.fieldNames()
        for name, types in _TYPES.items():
            found[name] = at = names.index(name) if name in names else None
            if name == "topic" and topic_option is not None:
                found[name] = None  # the option wins, whatever the column is
                continue
            if at is None:
                if name == "topic":
                    raise OptionError(
                        "topic option required when no 'topic' attribute is present. "
                        "Use the topic option for setting a topic."
                    )
                if name == "value":
                    raise OptionError("Required attribute 'value' not found")
                continue
            kind = schema.fields[at].dataType.simpleString()
            if kind not in types:
                raise OptionError(f"{name} attribute unsupported type {kind}. {name} must be a(n) {' or '.join(types)}")
        value = found["value"]
        assert value is not None
        return cls(
            topic_option, found["topic"], found["key"], value, found["headers"], found["partition"], found["timestamp"]
        )

    def send(self, writer: SinkWriter, batch: pa.RecordBatch) -> None:
        """Queue a batch's rows; rows of one partition keep their order.

        Raises :class:`RowError` for a null topic or an impossible row, and the errors of
        :meth:`~tidelog.client.producer.blocking.Producer.send_columns`.
        """
        for topic, rows in self._by_topic(batch):
            records = self._records(rows)
            try:
                writer.send_columns(topic, records)
            except ValueError as error:
                raise RowError(str(error)) from error

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self.topic is None:
            assert self.topic_option is not None
            yield self.topic_option, batch
            return
        column = batch.column(self.topic)
        if column.null_count:
            raise RowError("null topic present in the data. Use the topic option for setting a default topic.")
        named = column.dictionary_encode()
        topics = named.dictionary.to_pylist()
        if len(topics) == 1:
            yield topics[0], batch
            return
        import pyarrow.compute as pc  # rarely needed, and slow to import

        together = batch.take(pc.sort_indices(named.indices))  # a stable sort: equal ones keep their order
        start = 0
        for number, count in sorted((one["values"], one["counts"]) for one in named.indices.value_counts().to_pylist()):
            yield topics[number], together.slice(start, count)
            start += count

    def _records(self, rows: pa.RecordBatch) -> RecordColumns:
        def column(at: int | None) -> pa.Array | None:
            return None if at is None else rows.column(at)

        return record_columns(
            rows.num_rows,
            values=column(self.value),
            keys=column(self.key),
            headers=column(self.headers),
            partitions=column(self.partition),
            timestamps=_micros(column(self.timestamp)),
        )


def _micros(times: pa.Array | None) -> pa.Array | None:
    """Convert seconds to microseconds, rounding toward zero. Raises :class:`RowError` for a value that is not a time.
    Source: Spark's ``Cast`` of a double to a timestamp."""
    if times is None or not pa.types.is_floating(times.type):
        return times
    import pyarrow.compute as pc  # as above

    micros = pc.multiply(times, 1e6)
    wrong = pc.greater(pc.abs(micros), _MICROS_MAX)
    if pc.any(pc.or_(wrong, pc.is_nan(micros))).as_py():
        found = times.filter(pc.or_(wrong, pc.is_nan(micros)))[0].as_py()
        raise RowError(f"timestamp: expected seconds since the epoch, found {found}")
    return pc.trunc(micros).cast(pa.int64()).cast(pa.timestamp("us"))


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
