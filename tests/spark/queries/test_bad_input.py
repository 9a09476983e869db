"""Mistakes that a data engineer has to understand from the driver's exception alone, and mend by it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tidelog.client.errors import SinkJobFencedError
from tidelog.spark_connector import same_release
from tidelog.spark_connector.options import OptionError, SourceOptions
from tidelog.spark_connector.sink import BatchSink, StreamSink
from tidelog.spark_connector.sink_columns import SinkColumns
from tidelog.spark_connector.sink_options import SinkOptions
from tidelog.spark_connector.source import BatchReader, StreamReader
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Options = Callable[..., dict[str, str]]
Fill = Callable[..., None]
Land = Callable[..., list[tuple[Any, ...]]]

DOWN = {"tidelog.bootstrap.servers": "127.0.0.1:1", "tidelog.default.api.timeout.ms": "1000"}
"""Nobody listens there."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def five(cluster: Cluster, topic: str, fill: Fill) -> str:
    """A topic of one partition with five records."""
    cluster.create_topic(topic)
    fill(topic, *"abcde")
    return topic


def stream(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    return spark.readStream.format("tidelog").options(**given).load()


def test_executors_with_another_release_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"tidelog.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "topic": "t"}
    columns = SinkColumns.of(StructType([StructField("value", StringType())]), "t")
    source, sink = SourceOptions.of(given, streaming=True), SinkOptions.of(given, streaming=True)
    travelling = [BatchReader(source), StreamReader(source), BatchSink(sink, columns), StreamSink(sink, columns)]
    packed = [pickle.dumps(one) for one in travelling]
    assert [type(pickle.loads(one)) for one in packed] == [type(one) for one in travelling]
    monkeypatch.setattr(same_release, "release", "0.9.9")
    for one in packed:
        with pytest.raises(
            OptionError, match=r"expected tidelog 0\.1\.0, as on the driver, found 0\.9\.9 on .*: install"
        ):
            pickle.loads(one)


def test_brokers_that_executors_cannot_reach(spark: SparkSession, five: str, options: Options) -> None:
    """As if they advertised a name that only the driver resolves: a task asks elsewhere than the driver."""
    reader = BatchReader(SourceOptions.of(options(subscribe=five), streaming=False))
    (planned,) = reader.partitions()
    elsewhere = SourceOptions.of(options(subscribe=five) | DOWN | {"consumer.pollTimeoutMs": "1500"}, streaming=False)

    def task(_: object) -> Iterator[int]:
        yield sum(batch.num_rows for batch in BatchReader(elsewhere).read(planned))

    with pytest.raises(Exception, match=r"A task on .* asked: every executor has to reach every broker") as raised:
        spark.sparkContext.parallelize([0], 1).mapPartitions(task).collect()
    assert "127.0.0.1:1" in str(raised.value)


def test_a_checkpoint_of_another_release_or_source(
    spark: SparkSession, five: str, options: Options, land: Land, checkpoint: str
) -> None:
    frame = stream(spark, options(subscribe=five, startingOffsets="earliest")).selectExpr("string(value)")
    assert len(land(frame, checkpoint)) == 5
    written = sorted(Path(checkpoint, "offsets").glob("[0-9]*"))[-1]
    text = written.read_text()
    (written.parent / f".{written.name}.crc").unlink()
    for found, why in (
        (text.replace('"version": 1', '"version": 2'), "version 2, this release of tidelog knows 1"),
        (text.rpartition("\n")[0] + f'\n{{"{five}":{{"0":3}}}}', "'offsets'"),  # as Spark's Kafka source writes them
    ):
        assert found != text
        written.write_text(found)
        with pytest.raises(Exception, match="BadOffsets: expected offsets that the Tidelog source has writ") as raised:
            land(frame, checkpoint)
        first = str(raised.value).splitlines()[0]
        for words in (why, "or give it a new checkpoint and startingOffsets"):
            assert words in first
    written.write_text(text)
    assert land(frame, checkpoint) == []


def test_another_number_of_shuffle_partitions_changes_nothing_for_a_checkpoint(
    spark: SparkSession, cluster: Cluster, five: str, options: Options, fill: Fill, land: Land, checkpoint: str
) -> None:
    counts = stream(spark, options(subscribe=five, startingOffsets="earliest")).groupBy("value").count()
    frame = counts.selectExpr("string(value)", "count")
    assert len(land(frame, checkpoint, "update")) == 5
    fill(five, "a")
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        assert land(frame, checkpoint, "update") == [("a", 2)]
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))


def test_a_sink_that_two_runs_write_to_at_once(cluster: Cluster, five: str, options: Options) -> None:
    sink = SinkOptions.of(options(topic=five, appId="twice", version="1"), streaming=False)
    columns = SinkColumns.of(StructType([StructField("value", StringType())]), five)
    first, second = BatchSink(sink, columns), BatchSink(sink, columns)
    rows = pa.RecordBatch.from_pydict({"value": ["x"]})
    told_first = first.write(iter([rows]))
    told_second = second.write(iter([rows]))
    with pytest.raises(SinkJobFencedError, match="two drivers share a checkpoint, or two jobs an appId"):
        first.commit([told_first])
    second.commit([told_second])


def test_a_version_that_is_written_already_is_warned_of(
    cluster: Cluster, five: str, options: Options, caplog: pytest.LogCaptureFixture
) -> None:
    columns = SinkColumns.of(StructType([StructField("value", StringType())]), five)
    for version, warned in (("2", 0), ("2", 1), ("1", 2), ("3", 2)):
        sink = BatchSink(SinkOptions.of(options(topic=five, appId="often", version=version), streaming=False), columns)
        sink.commit([sink.write(iter([pa.RecordBatch.from_pydict({"value": ["x"]})]))])
        assert caplog.text.count("of appId often, or a later one, was written to this topic before") == warned
