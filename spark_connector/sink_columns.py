"""The columns that a sink takes, those of Spark's Kafka sink, and how an Arrow batch of them becomes records.

Source: Spark's ``KafkaWriter`` and ``KafkaRowWriter``: which columns there are, their types, what is said of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from tidelog.client.sink_writer import SinkWriter
from tidelog.spark_connector.options import OptionError

_TYPES: Final = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("double", "timestamp"),
}
"""What a column may be, by Spark's names of types, in the order in which they are looked at."""


class SinkColumns(NamedTuple):
    """Where in a row each part of a record stands; None where there is no such column. Other columns are passed over.
    Can be pickled."""

    topic_option: str | None
    topic: int | None
    key: int | None
    value: int
    headers: int | None
    partition: int | None
    timestamp: int | None

    @classmethod
    def of(cls, schema: StructType, topic_option: str | None) -> SinkColumns:
        """Find them. Raises :class:`OptionError` with Spark's words where one is missing or of another type."""
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
        """Queue the rows of a batch, each partition's in their order."""
        for topic, rows in self._by_topic(batch):
            self._send(writer, topic, rows)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self.topic is None:
            assert self.topic_option is not None
            yield self.topic_option, batch
            return
        column = batch.column(self.topic)
        if column.null_count:
            raise ValueError("null topic present in the data. Use the topic option for setting a default topic.")
        topics = pc.unique(column).to_pylist()
        for topic in topics:
            yield topic, batch if len(topics) == 1 else batch.filter(pc.equal(column, topic))

    def _send(self, writer: SinkWriter, topic: str, rows: pa.RecordBatch) -> None:
        def listed(at: int | None) -> Sequence[object]:
            return [None] * rows.num_rows if at is None else rows.column(at).to_pylist()

        def raw(at: int | None) -> Sequence[bytes | None]:
            return [None] * rows.num_rows if at is None else rows.column(at).cast(pa.binary()).to_pylist()

        keys, values = raw(self.key), raw(self.value)
        if self.headers is None and self.partition is None and self.timestamp is None:
            writer.send_many(topic, values, keys=None if self.key is None else keys)
            return
        for key, value, headers, partition, when in zip(
            keys, values, listed(self.headers), listed(self.partition), listed(self.timestamp), strict=True
        ):
            writer.send(
                topic,
                value,
                key,
                headers=None if headers is None else [(one["key"], one["value"]) for one in headers],  # type: ignore[attr-defined]
                partition=partition,  # type: ignore[arg-type]
                timestamp_ms=None if when is None else int(when.timestamp() * 1_000),  # type: ignore[attr-defined]
            )
