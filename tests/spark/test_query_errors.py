"""What whoever runs a query sees of what is wrong: the first line of the exception says it, and it comes in time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.model.ids import TopicPartition
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Options = Callable[..., dict[str, str]]
Fill = Callable[..., None]
Land = Callable[..., list[tuple[Any, ...]]]

DOWN = {
    "tidelog.bootstrap.servers": "127.0.0.1:1",
    "tidelog.default.api.timeout.ms": "1000",
}
"""Nobody listens there."""
SOON_S = 60
"""Bound of every failure here; most take a second, on a machine that does nothing else."""

pytestmark = pytest.mark.timeout(300)
"""The first test starts Spark, and the first query of each kind its Python workers."""


@contextmanager
def told(*words: str) -> Iterator[None]:
    """Expect an error whose first line has all of the words, and no traceback of Python's."""
    began = time.monotonic()
    with pytest.raises(Exception) as raised:  # noqa: PT011  # Spark's own classes differ by where it notices
        yield
    text = str(raised.value)
    first = text.splitlines()[0]
    for one in words:
        assert one in first, text
    assert "Traceback" not in text
    assert time.monotonic() - began < SOON_S


def read(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    return spark.read.format("tidelog").options(**given).load()


def stream(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    return spark.readStream.format("tidelog").options(**given).load()


def write(frame: DataFrame, checkpoint: str, given: dict[str, str]) -> None:
    """Write all there is, as a stream."""
    writer = frame.writeStream.format("tidelog").options(**given).option("checkpointLocation", checkpoint)
    assert writer.trigger(availableNow=True).start().awaitTermination(SOON_S)


@pytest.fixture
def five(cluster: Cluster, topic: str, fill: Fill) -> str:
    """A topic of one partition with five records."""
    cluster.create_topic(topic)
    fill(topic, *"abcde")
    return topic


def test_options_that_are_missing_conflict_or_make_no_sense(spark: SparkSession, five: str, options: Options) -> None:
    with told("OptionError: One of the following options must be specified for Tidelog source: subscribe, subscribep"):
        read(spark, options())
    with told("Only one of the following options can be specified for Tidelog source"):
        stream(spark, options(subscribe=five, assign=json.dumps({five: [0]})))
    with told("OptionError: Option 'tidelog.bootstrap.servers' must be specified", "found 'kafka.bootstrap.servers'"):
        read(spark, {"subscribe": five, "kafka.bootstrap.servers": "127.0.0.1:9092"})
    with told("starting offset can't be latest for batch queries on Tidelog"):
        read(spark, options(subscribe=five, startingOffsets="latest")).collect()
    with told("Tidelog source has a fixed schema and cannot be set with a custom one"):
        spark.read.format("tidelog").schema("value string").options(**options(subscribe=five)).load().collect()
    with told("Partitions specified for Tidelog start offsets don't match what are assigned.", f"[{five}-0]"):
        read(spark, options(subscribe=five, startingOffsets=json.dumps({five: {"0": 1, "1": 1}}))).collect()


def test_topics_and_offsets_that_are_not_there(
    spark: SparkSession, five: str, options: Options, land: Land, checkpoint: str
) -> None:
    """Only some of the offsets that a query is to begin at: it ends, or with ``failOnDataLoss`` false begins where the
    log ends."""
    with told("UnknownTopicOrPartitionError: nowhere: this cluster has no such topic"):
        read(spark, options(subscribe=f"{five},nowhere")).collect()
    with told("STREAM_FAILED", "UnknownTopicOrPartitionError: nowhere: this cluster has no such topic"):
        land(stream(spark, options(subscribe="nowhere")), checkpoint)
    too_high = options(subscribe=five, startingOffsets=json.dumps({five: {"0": 9}}))
    with told("STREAM_FAILED", "DataLoss: Some data may have been lost", f"Partition {five}-0 offset was changed from"):
        land(stream(spark, too_high), checkpoint + "-strict")
    assert land(stream(spark, too_high | {"failOnDataLoss": "false"}), checkpoint + "-lenient") == []


def test_records_that_are_gone_when_a_task_comes_to_read_them(
    spark: SparkSession, cluster: Cluster, five: str, options: Options
) -> None:
    """Retention does not wait for a query: the ranges are planned, then the log begins later."""
    strict = read(spark, options(subscribe=five))
    lenient = read(spark, options(subscribe=five, failOnDataLoss="false")).selectExpr("CAST(value AS STRING)")
    assert strict.rdd.getNumPartitions() == lenient.rdd.getNumPartitions() == 1
    with cluster.admin() as admin:
        admin.delete_records({TopicPartition(five, 0): 3})
    with pytest.raises(Exception, match=rf"DataLoss: Some data .* for topic partition {five}-0: the log starts at 3"):
        strict.collect()
    assert [row[0] for row in lenient.collect()] == ["d", "e"]


def test_brokers_that_are_down_when_a_query_starts(
    spark: SparkSession, five: str, options: Options, land: Land, checkpoint: str
) -> None:
    source = {"subscribe": five, "startingOffsets": "earliest", **DOWN}
    down = "BrokerNotAvailableError: no broker of 127.0.0.1:1 answered within 1000 ms"
    with told(down):
        read(spark, source).collect()
    with told("STREAM_FAILED", down):
        land(stream(spark, source), checkpoint)
    sink = DOWN | {"topic": "out", "tidelog.max.block.ms": "1000"}
    with pytest.raises(Exception, match=r"no broker could be reached: 127\.0\.0\.1:1"):
        spark.range(1).selectExpr("'a' value").write.format("tidelog").options(**sink).mode("append").save()
    with pytest.raises(Exception, match=r"no broker could be reached: 127\.0\.0\.1:1"):
        write(stream(spark, options(subscribe=five, startingOffsets="earliest")), checkpoint + "-sink", sink)


def test_a_sink_topic_that_vanishes_ends_the_query_and_its_return_lets_it_go_on(
    spark: SparkSession, cluster: Cluster, five: str, options: Options, fill: Fill,
    committed: Callable[..., Any], checkpoint: str,
) -> None:  # fmt: skip
    out = f"{five}-out"
    cluster.create_topic(out)
    frame = stream(spark, options(subscribe=five, startingOffsets="earliest")).select("value")
    sink = options(topic=out) | {"tidelog.max.block.ms": "1500", "tidelog.delivery.timeout.ms": "3000",
                                 "tidelog.request.timeout.ms": "1000"}  # fmt: skip
    write(frame, checkpoint, sink)
    assert len(committed(out)) == 5
    with cluster.admin() as admin:
        admin.delete_topics([out])
    fill(five, "f")
    with pytest.raises(Exception, match=out):
        write(frame, checkpoint, sink)
    cluster.create_topic(out)
    write(frame, checkpoint, sink)
    assert [one.value for one in committed(out)] == [b"f"]
