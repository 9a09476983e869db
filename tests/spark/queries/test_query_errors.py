"""Errors as the user of a query sees them: the first line of the exception has the reason, and it comes in time."""

from __future__ import annotations

import json
import subprocess
import sys
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
    with told("OptionError: options that begin with 'kafka.'", "found 'kafka.bootstrap.servers': give 'tidelog.boot"):
        read(spark, {"subscribe": five, "kafka.bootstrap.servers": "127.0.0.1:9092"})
    with told("starting offset can't be latest for batch queries on Tidelog"):
        read(spark, options(subscribe=five, startingOffsets="latest")).collect()
    with told("OptionError: unknown option 'startingoffset'; did you mean 'startingOffsets'?"):
        stream(spark, options(subscribe=five, startingOffset="earliest"))
    with told("OptionError: unknown option 'topics'; did you mean 'topic'?"):
        spark.range(1).selectExpr("'a' value").write.format("tidelog").options(**options(topics=five)).mode(
            "append"
        ).save()
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


PROCESS_OF_SPARK = """
import importlib.machinery, sys
from tidelog.spark_connector.options import SourceOptions
from tidelog.spark_connector.source import StreamReader
from tidelog.spark_connector.worker_errors import told_in_a_line

sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
reader = StreamReader(SourceOptions.of({"tidelog.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}, streaming=True))
reader.stop()
print("a stop without an error goes on", flush=True)
try:
    try:
        raise ValueError("a bug")
    finally:
        reader.stop()
except ValueError:
    print("so does one with another error", flush=True)
"""
"""A process that is one of Spark's by its name."""


@pytest.mark.parametrize(
    "hung_up",
    [
        "try:\n    raise EOFError\nfinally:\n    reader.stop()",
        "with told_in_a_line():\n    raise EOFError",
    ],
)
def test_a_process_that_the_jvm_has_hung_up_on_ends_without_a_word(hung_up: str) -> None:
    """What Spark's own code says of a pipe that is gone, when a stream is stopped, helps nobody."""
    code = f"{PROCESS_OF_SPARK}\n{hung_up}\nprint('it goes on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    said = "a stop without an error goes on\nso does one with another error\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    ours = code.replace('"pyspark.daemon"', '"a.program"')
    done = subprocess.run([sys.executable, "-c", ours], capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert "EOFError" in done.stderr
