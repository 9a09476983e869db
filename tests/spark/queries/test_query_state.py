"""Queries that keep state, over the source, ended and started again in the middle: what they say in the end is what a
calculation over all of the input says.

A run takes what there is and ends (``Trigger.AvailableNow``); the next one has the checkpoint alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Options = Callable[..., dict[str, str]]
Land = Callable[..., list[tuple[Any, ...]]]

T = 1_700_000_000_000
"""A full hour, nearly: windows of ten seconds begin at it."""

pytestmark = pytest.mark.timeout(300)
"""The first test starts Spark, and the first query of each kind its Python workers."""


@pytest.fixture(autouse=True)
def one_partition_of_state(spark: SparkSession) -> Iterator[None]:
    """Each more is a task per batch and stateful operator, with files of its own."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", str(before))


@pytest.fixture
def stream_of(spark: SparkSession, options: Options) -> Callable[..., DataFrame]:
    """A stream of a topic from its start: texts ``k`` and ``v``, and ``at``, the record's time."""

    def read(topic: str, **given: Any) -> DataFrame:
        chosen = options(subscribe=topic, startingOffsets="earliest", **given)
        frame = spark.readStream.format("tidelog").options(**chosen).load()
        return frame.selectExpr("CAST(key AS STRING) k", "CAST(value AS STRING) v", "timestamp at")

    return read


@pytest.fixture
def say(cluster: Cluster) -> Callable[..., None]:
    """Write records ``(key, value, seconds after T)``, dealt to the partitions by turns."""

    def write(topic: str, *records: tuple[str, str, float], partitions: int = 2) -> None:
        with cluster.producer() as producer:
            for number, (key, value, after) in enumerate(records):
                producer.send(
                    topic,
                    value.encode(),
                    key=key.encode(),
                    partition=number % partitions,
                    timestamp_ms=T + int(after * 1_000),
                )
            producer.flush()

    return write


def test_counts_and_sums_go_on_from_their_state_whatever_ends_the_query(
    cluster: Cluster,
    topic: str,
    stream_of: Callable[..., DataFrame],
    say: Callable[..., None],
    land: Land,
    checkpoint: str,
) -> None:
    """Among the runs: one whose writing fails after its rows were given out, so that the batch is computed again."""
    cluster.create_topic(topic, partitions=3)
    rng = random.Random(7)
    records = [(rng.choice("abcd"), str(rng.randrange(100)), 0.0) for _ in range(120)]
    totals = stream_of(topic, maxOffsetsPerTrigger=30).groupBy("k").agg(f.count("*"), f.sum(f.col("v").cast("int")))
    held: dict[str, tuple[int, int]] = {}

    def run(**given: Any) -> None:
        held.update({key: (count, total) for key, count, total in land(totals, checkpoint, "update", **given)})

    say(topic, *records[:50], partitions=2)
    run()
    say(topic, *records[50:90], partitions=3)
    with pytest.raises(Exception, match="the sink is broken"):
        run(fail_at=3)
    say(topic, *records[90:], partitions=1)
    run()
    counts = Counter(key for key, _, _ in records)
    assert held == {key: (counts[key], sum(int(v) for k, v, _ in records if k == key)) for key in counts}


def test_windows_close_by_the_watermark_across_restarts_and_leave_out_what_is_late(
    cluster: Cluster,
    topic: str,
    stream_of: Callable[..., DataFrame],
    say: Callable[..., None],
    land: Land,
    checkpoint: str,
) -> None:
    cluster.create_topic(topic, partitions=2)
    counts = (
        stream_of(topic)
        .withWatermark("at", "5 seconds")
        .groupBy(f.window("at", "10 seconds"), "k")
        .agg(f.count("*").alias("n"))
        .select((f.unix_timestamp("window.start") - T // 1_000).alias("from"), "k", "n")
    )
    say(topic, ("a", "", 1), ("b", "", 2), ("a", "", 9), ("a", "", 12))
    assert land(counts, checkpoint) == [], "the watermark is at 7: no window is over"
    say(topic, ("a", "", 3), ("b", "", 16))
    assert land(counts, checkpoint) == [(0, "a", 3), (0, "b", 1)], "3 was not late yet; the watermark is at 11"
    say(topic, ("a", "", 5), ("a", "", 13), ("c", "", 40))
    assert land(counts, checkpoint) == [(10, "a", 2), (10, "b", 1)], "5 came too late"


def test_duplicates_are_dropped_across_batches_and_restarts(
    cluster: Cluster,
    topic: str,
    stream_of: Callable[..., DataFrame],
    say: Callable[..., None],
    land: Land,
    checkpoint: str,
) -> None:
    cluster.create_topic(topic, partitions=2)
    once = stream_of(topic, maxOffsetsPerTrigger=3).withWatermark("at", "1 hour").dropDuplicates(["k"]).select("k")
    say(topic, *((key, "", 0) for key in "aabbca"))
    assert sorted(land(once, checkpoint)) == [("a",), ("b",), ("c",)]
    say(topic, *((key, "", 1) for key in "cdaeed"))
    assert sorted(land(once, checkpoint)) == [("d",), ("e",)]


def test_two_streams_are_joined_across_restarts_and_what_finds_no_match_comes_by_itself(
    cluster: Cluster,
    topic: str,
    stream_of: Callable[..., DataFrame],
    say: Callable[..., None],
    land: Land,
    checkpoint: str,
) -> None:
    """A left outer join of two topics with watermarks; the two halves of a pair come in different runs."""
    orders, payments = f"{topic}-orders", f"{topic}-payments"
    for name in (orders, payments):
        cluster.create_topic(name, partitions=2)
    left = stream_of(orders).selectExpr("k", "v item", "at ordered").withWatermark("ordered", "5 seconds")
    right = stream_of(payments).selectExpr("k paid", "v sum", "at settled").withWatermark("settled", "5 seconds")
    joined = left.join(
        right, f.expr("k = paid AND settled BETWEEN ordered AND ordered + INTERVAL 10 SECONDS"), "left_outer"
    ).select("k", "item", "sum")
    say(orders, ("1", "tea", 0), ("2", "rum", 1), ("3", "ale", 2))
    say(payments, ("1", "10", 3))
    assert land(joined, checkpoint) == [("1", "tea", "10")]
    say(payments, ("3", "30", 4))
    assert land(joined, checkpoint) == [("3", "ale", "30")]
    say(orders, ("4", "gin", 30))
    say(payments, ("9", "0", 30))
    assert land(joined, checkpoint) == [("2", "rum", None)]


def test_a_stream_is_joined_with_a_table_that_is_read_from_a_topic(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options,
    stream_of: Callable[..., DataFrame], say: Callable[..., None], land: Land, checkpoint: str,
) -> None:  # fmt: skip
    """Batch and stream of the source in one plan. The table is what its topic had when the frame was first planned."""
    names = f"{topic}-names"
    for one in (topic, names):
        cluster.create_topic(one, partitions=2)

    def joined() -> DataFrame:
        table = spark.read.format("tidelog").options(**options(subscribe=names)).load()
        named = table.selectExpr("CAST(key AS STRING) k", "CAST(value AS STRING) name")
        return stream_of(topic).join(named, "k").select("v", "name")

    say(names, ("a", "Ann", 0), ("b", "Bob", 0))
    say(topic, ("a", "1", 0), ("z", "2", 0), ("b", "3", 0))
    frame = joined()
    assert sorted(land(frame, checkpoint)) == [("1", "Ann"), ("3", "Bob")]
    say(names, ("z", "Zoe", 0))
    say(topic, ("z", "4", 0), ("a", "5", 0))
    assert land(frame, checkpoint) == [("5", "Ann")]
    say(topic, ("z", "6", 0))
    assert land(joined(), checkpoint) == [("6", "Zoe")]
