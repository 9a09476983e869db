"""The sink's columns: types and messages are those of Spark's Kafka sink, and records match the columns."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidelog.client.errors import RecordTooLargeError
from tidelog.client.record import ConsumerRecord
from tidelog.client.sink.blocking_ledger import SinkLedger
from tidelog.client.sink.blocking_writer import SinkWriter
from tidelog.spark_connector.options import OptionError
from tidelog.spark_connector.sink_columns import SinkColumns
from tidelog.testing import Cluster

S, B, I, T = StringType(), BinaryType(), IntegerType(), TimestampType()  # noqa: E741
HEADERS = ArrayType(StructType([StructField("key", S), StructField("value", B)]))
_sinks = (f"columns-{number}" for number in itertools.count())


def struct(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    ("schema", "option", "words"),
    [
        (
            struct(value=S),
            None,
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic.",
        ),
        (struct(topic=B, value=S), None, "topic attribute unsupported type binary. topic must be a(n) string"),
        (struct(key=S), "t", "Required attribute 'value' not found"),
        (struct(Value=S), "t", "Required attribute 'value' not found"),
        (struct(value=I), "t", "value attribute unsupported type int. value must be a(n) string or binary"),
        (
            struct(value=S, key=LongType()),
            "t",
            "key attribute unsupported type bigint. key must be a(n) string or binary",
        ),
        (
            struct(value=S, headers=MapType(S, B)),
            "t",
            "headers attribute unsupported type map<string,binary>. "
            "headers must be a(n) array<struct<key:string,value:binary>>",
        ),
        (
            struct(value=S, partition=LongType()),
            "t",
            "partition attribute unsupported type bigint. partition must be a(n) int",
        ),
        (
            struct(value=S, timestamp=TimestampNTZType()),
            "t",
            "timestamp attribute unsupported type timestamp_ntz. timestamp must be a(n) double or timestamp",
        ),
    ],
)
def test_a_column_that_is_missing_or_of_another_type_is_named_in_sparks_words(
    schema: StructType, option: str | None, words: str
) -> None:
    with pytest.raises(OptionError) as found:
        SinkColumns.of(schema, option)
    assert str(found.value) == words


def test_the_option_wins_over_the_column_and_other_columns_are_passed_over() -> None:
    columns = SinkColumns.of(struct(offset=LongType(), topic=I, key=S, value=B, timestampType=I), "out")
    assert columns == SinkColumns("out", None, 2, 3, None, None, None)
    assert pickle.loads(pickle.dumps(columns)) == columns
    assert SinkColumns.of(struct(value=S, topic=S), None) == SinkColumns(None, 1, None, 0, None, None, None)


@pytest.fixture
def write(cluster: Cluster) -> Callable[..., None]:
    """Write rows of a schema as a sink of their own does, and commit them."""

    def run(schema: StructType, *batches: list[dict[str, Any]], option: str | None = None, **settings: Any) -> None:
        columns = SinkColumns.of(schema, option)
        to = to_arrow_schema(schema, timezone="UTC")
        with SinkLedger(cluster.bootstrap, next(_sinks)) as ledger:
            with SinkWriter(cluster.bootstrap, ledger.new_job(0), **settings) as writer:
                for rows in batches:
                    columns.send(writer, pa.RecordBatch.from_pylist(rows, to))
                message = writer.prepare()
            assert message.rows == sum(map(len, batches))
            ledger.commit_batch([message])

    return run


def test_each_part_of_a_record_comes_from_its_column(
    cluster: Cluster, topic: str, write: Callable[..., None], committed: Callable[[str], list[ConsumerRecord]]
) -> None:
    cluster.create_topic(topic, partitions=3)
    schema = struct(headers=HEADERS, topic=S, offset=LongType(), partition=I, value=S, key=B, timestamp=T)
    rows: list[dict[str, Any]] = [
        {"key": b"\xff\x00", "value": "größe", "partition": 2, "timestamp": 1_700_000_000_123_999, "headers": []},
        {"key": None, "value": None, "partition": 1, "timestamp": 1, "headers": [("h", b"1"), ("h", None), ("ö", b"")]},
        {"key": b"", "value": "", "partition": 2, "timestamp": 0, "headers": None},
        {"key": b"k", "value": "x" * 1_000_000, "partition": 0, "timestamp": None, "headers": None},
    ]
    for row in rows:
        row |= {"topic": topic, "offset": 77}
        if row["headers"] is not None:
            row["headers"] = [{"key": name, "value": content} for name, content in row["headers"]]
    write(schema, rows)
    late, tombstone, early, empty = committed(topic)
    assert (late.partition, late.key, late.value, late.headers) == (0, b"k", b"x" * 1_000_000, ())
    assert late.timestamp > 1_700_000_000_000
    assert (tombstone.partition, tombstone.key, tombstone.value, tombstone.timestamp) == (1, None, None, 0)
    assert list(tombstone.headers) == [("h", b"1"), ("h", None), ("ö", b"")]
    assert (early.partition, early.key, early.value, early.timestamp) == (
        2,
        b"\xff\x00",
        "größe".encode(),
        1_700_000_000_123,
    )
    assert (empty.partition, empty.key, empty.value, empty.timestamp, empty.offset) == (
        2,
        b"",
        b"",
        0,
        early.offset + 1,
    )


def test_keys_choose_the_partitions_that_kafkas_producers_choose(
    cluster: Cluster, topic: str, write: Callable[..., None], committed: Callable[[str], list[ConsumerRecord]]
) -> None:
    cluster.create_topic(topic, partitions=7)
    keys = [f"key {number}" for number in range(500)] + ["", "é", "x" * 1_000]
    write(struct(key=S, value=B), [{"key": key, "value": b"v"} for key in keys], option=topic)
    found = committed(topic)
    assert sorted(record.key for record in found if record.key is not None) == sorted(key.encode() for key in keys)
    for record in found:
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 7
    assert {record.partition for record in found} == set(range(7))


def test_rows_go_to_the_topics_that_they_name_each_in_its_order(
    cluster: Cluster, topic: str, write: Callable[..., None], committed: Callable[[str], list[ConsumerRecord]]
) -> None:
    topics = [f"{topic}-{number}" for number in range(5)]
    for name in topics:
        cluster.create_topic(name)
    rows = [{"topic": topics[number * number % 5], "value": str(number)} for number in range(200)]
    write(struct(topic=S, value=S), rows, [{"topic": topics[3], "value": "alone"}])
    for name in topics:
        wanted = [row["value"] for row in rows if row["topic"] == name] + ["alone"] * (name == topics[3])
        assert [record.value for record in committed(name)] == [value.encode() for value in wanted]
    write(struct(topic=S, value=S), [{"topic": topics[0], "value": "by option"}], option=topics[2])
    assert [record.value for record in committed(topics[2])] == [b"by option"]


def test_columns_may_have_offsets_of_8_bytes_and_be_slices(
    cluster: Cluster, topic: str, committed: Callable[[str], list[ConsumerRecord]]
) -> None:
    """As Spark hands them over with ``spark.sql.execution.arrow.useLargeVarTypes``."""
    cluster.create_topic(topic)
    columns = SinkColumns.of(struct(key=B, value=S, topic=S), None)
    kinds = (("key", pa.large_binary()), ("value", pa.large_string()), ("topic", pa.large_string()))
    rows = [{"key": b"k", "value": str(number), "topic": topic} for number in range(10)]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(kinds)).slice(3, 4)
    with SinkLedger(cluster.bootstrap, next(_sinks)) as ledger:
        with SinkWriter(cluster.bootstrap, ledger.new_job(0)) as writer:
            columns.send(writer, batch)
            message = writer.prepare()
        ledger.commit_batch([message])
    assert [record.value for record in committed(topic)] == [b"3", b"4", b"5", b"6"]


def test_times_may_be_given_in_seconds(
    cluster: Cluster, topic: str, write: Callable[..., None], committed: Callable[[str], list[ConsumerRecord]]
) -> None:
    cluster.create_topic(topic)
    schema = struct(timestamp=DoubleType(), value=S)
    write(schema, [{"timestamp": 1.7e9 + 0.1239, "value": "a"}, {"timestamp": None, "value": "b"}], option=topic)
    timed, now = committed(topic)
    assert timed.timestamp == 1_700_000_000_123
    assert now.timestamp > 1_700_000_000_123
    for wrong in (float("nan"), float("inf"), -1e300):
        with pytest.raises(ValueError, match="timestamp: expected seconds since the epoch, found"):
            write(schema, [{"timestamp": wrong, "value": "a"}], option=topic)


@pytest.mark.parametrize(
    ("schema", "row", "words"),
    [
        (struct(topic=S, value=S), {"value": "a"}, "null topic present in the data. Use the topic option"),
        (
            struct(value=S, partition=I),
            {"value": "a", "partition": -1},
            "row 1: partition: expected 0 or more, found -1",
        ),
        (struct(value=S, partition=I), {"value": "a", "partition": 9}, "row 1: partition: expected 0 to 0 of topic"),
        (struct(value=S, timestamp=T), {"value": "a", "timestamp": -1}, "row 1: timestamp: expected 0"),
        (
            struct(value=S, headers=HEADERS),
            {"value": "a", "headers": [{"key": None, "value": b""}]},
            "row 1: headers: expected a name for each, found null",
        ),
    ],
)
def test_a_row_that_can_be_no_record_is_named_and_nothing_of_it_is_seen(
    cluster: Cluster,
    topic: str,
    write: Callable[..., None],
    committed: Callable[[str], list[ConsumerRecord]],
    schema: StructType,
    row: dict[str, Any],
    words: str,
) -> None:
    cluster.create_topic(topic)
    by_column = "topic" in schema.names
    good = {"value": "good"} | ({"topic": topic} if by_column else {})
    with pytest.raises(ValueError, match=words):
        write(schema, [good], [good, row], option=None if by_column else topic)
    assert committed(topic) == []


def test_a_record_that_is_too_large_is_named(cluster: Cluster, topic: str, write: Callable[..., None]) -> None:
    cluster.create_topic(topic)
    with pytest.raises(RecordTooLargeError, match=r"row 1: expected a record of at most max_request_size = 1048576"):
        write(struct(value=S), [{"value": "a"}, {"value": "x" * 1_048_576}], option=topic)
