"""The source in real queries: Spark finds it by name, plans, reads, restarts, and passes on what it says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.model.ids import TopicPartition
from tidelog.spark_connector.progress import offsets_behind_latest
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Options = Callable[..., dict[str, str]]
Fill = Callable[..., None]

T = 1_700_000_000_000

pytestmark = pytest.mark.timeout(300)
"""The first test starts Spark, and the first query of each kind its Python workers."""


class Collected:
    """A query whose batches arrive here, in the driver, one list of values per batch."""

    def __init__(self, frame: DataFrame, checkpoint: str, **trigger: Any) -> None:
        self.batches: dict[int, list[str]] = {}
        self.fail_at = -1
        self._arrived = threading.Condition()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", checkpoint)
        self.query: StreamingQuery = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = frame.selectExpr("topic", "partition", "offset", "CAST(value AS STRING) v").collect()
        with self._arrived:
            self.batches[number] = [row["v"] for row in sorted(rows)]
            self._arrived.notify_all()
            if number == self.fail_at:
                raise RuntimeError("the sink is broken")

    @property
    def values(self) -> list[str]:
        return sorted(value for batch in self.batches.values() for value in batch)

    def wait_for(self, count: int) -> list[str]:
        """Wait until that many values are here; stop the query."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.values) >= count or not self.query.isActive, 60), self.values
        self.query.processAllAvailable()
        self.query.stop()
        return self.values


def test_a_batch_query_sees_the_columns_of_sparks_kafka_source(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, fill: Fill
) -> None:
    cluster.create_topic(topic, partitions=3)
    fill(topic, "one", partition=0, key=b"k", timestamp_ms=T, headers=[("h", b"\xff"), ("n", None)])
    fill(topic, "two", partition=2, timestamp_ms=T + 1_500)
    frame = spark.read.format("tidelog").options(**options(subscribe=topic, includeHeaders="true")).load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    one, two = sorted(frame.collect(), key=lambda row: row["partition"])
    assert (bytes(one["key"]), bytes(one["value"]), one["topic"], one["offset"]) == (b"k", b"one", topic, 0)
    assert [(header["key"], header["value"]) for header in one["headers"]] == [("h", b"\xff"), ("n", None)]
    assert (two["key"], two["headers"], two["timestampType"]) == (None, None, 0)
    assert two["timestamp"].astimezone(UTC) == datetime.fromtimestamp((T + 1_500) / 1_000, UTC)
    assert frame.where("partition = 1").count() == 0
    assert frame.limit(1).count() == 1
    narrow = spark.read.format("tidelog").schema("offset bigint, value binary").options(**options(subscribe=topic))
    assert sorted((row[0], bytes(row[1])) for row in narrow.load().collect()) == [(0, b"one"), (0, b"two")]


def test_a_stream_goes_on_from_its_checkpoint_and_reads_each_record_once(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, fill: Fill, checkpoint: str
) -> None:
    cluster.create_topic(topic, partitions=2)
    given = options(subscribe=topic, startingOffsets="earliest")
    frame = spark.readStream.format("tidelog").options(**given | {"maxOffsetsPerTrigger": "4"}).load()
    fill(topic, *"abcd", partition=0)
    first = Collected(frame, checkpoint)
    assert first.wait_for(4) == list("abcd")
    fill(topic, *"efgh", partition=1)
    broken = Collected(frame, checkpoint)
    broken.fail_at = max(first.batches) + 1
    with pytest.raises(Exception, match="the sink is broken"):
        broken.query.awaitTermination(60)
    lost = broken.batches[broken.fail_at]
    fill(topic, *"ij", partition=0)
    frame = spark.readStream.format("tidelog").options(**given | {"maxBytesPerTrigger": "1"}).load()
    last = Collected(frame, checkpoint)
    last.wait_for(len("efghij"))
    assert last.batches[broken.fail_at] == lost, "the batch that failed is the same again, whatever the limit is now"
    assert last.values == list("efghij")


def test_available_now_with_a_rate_limit(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, fill: Fill, checkpoint: str
) -> None:
    cluster.create_topic(topic)
    fill(topic, *"abcdefg")
    given = options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=3, minPartitions=3)
    some = "topic string, partition int, offset bigint, value binary"
    frame = spark.readStream.format("tidelog").schema(some).options(**given).load()
    assert frame.columns == ["topic", "partition", "offset", "value"]
    for expected in (["a", "b", "c"], ["d", "e", "f"], ["g"]), ([],), (["h"],):
        run = Collected(frame, checkpoint, availableNow=True)
        assert run.query.awaitTermination(60)
        assert [batch for batch in run.batches.values() if batch] == [batch for batch in expected if batch]
        if run.batches:
            progress = run.query.recentProgress[0]
            behind = offsets_behind_latest(progress["sources"][0])
            left = sum(len(batch) for batch in run.batches.values()) - len(next(iter(run.batches.values())))
            assert behind == {
                "minOffsetsBehindLatest": left,
                "maxOffsetsBehindLatest": left,
                "avgOffsetsBehindLatest": left,
            }
            assert progress["numInputRows"] == len(next(iter(run.batches.values())))
        if expected == ([],):
            fill(topic, "h")
        run.query.stop()


def test_topics_and_partitions_that_come_later_and_aborted_records(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, fill: Fill, checkpoint: str
) -> None:
    cluster.create_topic(f"{topic}-x")
    frame = spark.readStream.format("tidelog").options(**options(subscribePattern=f"^{topic}-")).load()
    run = Collected(frame, checkpoint)
    run.query.processAllAvailable()
    with cluster.producer(transactional_id=topic) as producer:
        producer.init_transactions()
        for text, commits in (("lost", False), ("kept", True)):
            producer.begin_transaction()
            producer.send(f"{topic}-x", text.encode(), partition=0)
            producer.flush()
            producer.commit_transaction() if commits else producer.abort_transaction()
    cluster.create_topic(f"{topic}-y", partitions=2)
    fill(f"{topic}-y", "later", partition=1)
    with cluster.admin() as admin:
        admin.create_partitions({f"{topic}-x": 2})
    cluster.wait_for_leader(f"{topic}-x", 1)
    fill(f"{topic}-x", "grown", partition=1)
    assert run.wait_for(3) == ["grown", "kept", "later"]


def test_what_a_query_loses_stops_it_or_is_passed_over(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, fill: Fill, checkpoint: str
) -> None:
    cluster.create_topic(topic)
    fill(topic, *"abc")
    given = options(subscribe=topic, startingOffsets="earliest")
    frame = spark.readStream.format("tidelog").options(**given).load()
    run = Collected(frame, checkpoint, availableNow=True)
    assert run.query.awaitTermination(60)
    fill(topic, *"defgh")
    with cluster.admin() as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    with pytest.raises(Exception, match=r"set the source option failOnDataLoss to false.*the log starts at 6"):
        Collected(frame, checkpoint, availableNow=True).query.awaitTermination(60)
    frame = spark.readStream.format("tidelog").options(**given, failOnDataLoss="false").load()
    run = Collected(frame, checkpoint, availableNow=True)
    assert run.query.awaitTermination(60)
    assert run.values == ["g", "h"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, r"One of the following options must be specified for Tidelog source"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "x"}, "maxOffsetsPerTrigger: expected a whole number, found 'x'"),
    ],
)
def test_wrong_options_are_told_when_the_frame_is_made(
    spark: SparkSession, options: Options, given: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        spark.readStream.format("tidelog").options(**options(**given)).load()


def test_a_schema_of_ones_own_and_a_topic_that_is_not_there(
    spark: SparkSession, options: Options, checkpoint: str
) -> None:
    given = options(subscribe="no-such-topic")
    with pytest.raises(Exception, match="Tidelog source has a fixed schema and cannot be set with a custom one"):
        spark.read.format("tidelog").schema("value string").options(**given).load().collect()
    with pytest.raises(Exception, match="no-such-topic: this cluster has no such topic"):
        spark.read.format("tidelog").options(**given).load().collect()
    frame = spark.readStream.format("tidelog").options(**given).load()
    with pytest.raises(Exception, match="no-such-topic: this cluster has no such topic"):
        Collected(frame, checkpoint).query.awaitTermination(60)
