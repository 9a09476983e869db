"""The columns that a query's own schema chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, StringType, StructField, StructType

from tidelog.spark_connector.columns import arrow_schema, chosen
from tidelog.spark_connector.options import SourceOptions
from tidelog.spark_connector.source import BatchReader
from tidelog.testing import Cluster

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


@pytest.mark.parametrize(
    ("given", "include_headers", "expected"),
    [
        ([("value", BinaryType())], False, ("value",)),
        ([("offset", LongType()), ("key", BinaryType())], False, ("offset", "key")),
        ([("headers", HEADERS)], True, ("headers",)),
        ([("headers", HEADERS)], False, None),
        ([("value", StringType())], False, None),
        ([("value", BinaryType()), ("other", LongType())], False, None),
        ([("Value", BinaryType())], False, None),
        ([("value", BinaryType()), ("value", BinaryType())], False, None),
        ([], False, None),
    ],
)
def test_a_schema_chooses_among_the_columns_of_the_source(
    given: list[tuple[str, DataType]], include_headers: bool, expected: tuple[str, ...] | None
) -> None:
    assert chosen(StructType([StructField(name, kind) for name, kind in given]), include_headers) == expected


EVERY = {
    "headers": [{"key": "h", "value": b"\xff"}],
    "timestampType": 0,
    "timestamp": 5,
    "offset": 0,
    "partition": 0,
    "topic": "",
    "value": b"v",
    "key": b"k",
}


@pytest.mark.parametrize("columns", [tuple(EVERY), *((name,) for name in EVERY)])
def test_tasks_send_the_chosen_columns_in_their_order(
    cluster: Cluster, topic: str, options: Callable[..., dict[str, str]], columns: tuple[str, ...]
) -> None:
    cluster.create_topic(topic)
    with cluster.producer() as producer:
        producer.send(topic, b"v", key=b"k", headers=[("h", b"\xff")], timestamp_ms=5)
        producer.flush()
    given = SourceOptions.of(options(subscribe=topic, includeHeaders="true"), streaming=False)
    reader = BatchReader(replace(given, columns=columns))
    (task,) = reader.partitions()
    (batch,) = reader.read(task)
    assert batch.schema == arrow_schema(True, columns)
    (row,) = batch.to_pylist()
    assert tuple(row) == columns
    if "timestamp" in row:
        row["timestamp"] = row["timestamp"].microsecond // 1_000
    assert row == {name: topic if name == "topic" else EVERY[name] for name in columns}
