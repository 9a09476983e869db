"""All sorts of topics in real queries: every kind of record, compacted, growing, many topics, many readers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.client.record import ConsumerRecord
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Options = Callable[..., dict[str, str]]
Fill = Callable[..., None]
Committed = Callable[[str], list[ConsumerRecord]]
Land = Callable[..., list[tuple[Any, ...]]]

LARGE = 3_000_000
"""Bytes of a large value: more than a fetch takes at once, and than an Arrow batch of Spark's other sources."""

pytestmark = pytest.mark.timeout(300)
"""The first test starts Spark, and the first query of each kind its Python workers."""


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Partition, offset, key, value and headers of each, in order."""
    return sorted(
        (
            row["partition"],
            row["offset"],
            None if row["key"] is None else bytes(row["key"]),
            None if row["value"] is None else bytes(row["value"]),
            tuple((one["key"], None if one["value"] is None else bytes(one["value"])) for one in row["headers"] or ()),
        )
        for row in frame.collect()
    )


def test_a_query_finds_just_what_a_consumer_finds(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, committed: Committed
) -> None:
    """Committed and aborted transactions between plain records, nulls, empty texts, headers, large values, partitions
    without a record, with nothing but aborted ones, and with a tombstone alone; cut into tasks at any offset."""
    cluster.create_topic(topic, partitions=5, config={"max.message.bytes": str(2 * LARGE)})
    rng = random.Random(11)
    with (
        cluster.producer(max_request_size=2 * LARGE, compression_type="lz4") as plain,
        cluster.producer(transactional_id=topic) as transactional,
    ):
        transactional.init_transactions()
        for number in range(60):
            key = rng.choice([None, b"", b"key %d" % number])
            value = rng.choice([None, b"", b"value %d" % number, rng.randbytes(300)])
            headers = [("h", rng.choice([None, b"", b"\xff"])) for _ in range(rng.choice([0, 0, 1, 3]))]
            if number % 7 == 3:
                transactional.begin_transaction()
                for _ in range(3):
                    transactional.send(topic, value, key=key, partition=rng.randrange(2), headers=headers)
                transactional.send(topic, b"of partition 3", partition=3)
                transactional.flush()
                transactional.abort_transaction() if number % 2 else transactional.commit_transaction()
            plain.send(topic, value, key=key, partition=rng.randrange(2), headers=headers)
        plain.send(topic, rng.randbytes(LARGE), partition=0)
        plain.send(topic, b"after the large one", partition=0)
        plain.send(topic, None, key=b"gone", partition=4)
        plain.flush()
    expected = [
        (one.partition, one.offset, one.key, one.value, tuple(map(tuple, one.headers))) for one in committed(topic)
    ]
    assert len(expected) > 60
    assert {one[0] for one in expected} == {0, 1, 3, 4}
    for given in ({}, {"minPartitions": 9}):
        frame = spark.read.format("tidelog").options(**options(subscribe=topic, includeHeaders="true", **given)).load()
        assert rows(frame) == expected
    assert frame.rdd.getNumPartitions() >= 9


def test_a_compacted_topic_while_it_is_cleaned(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, committed: Committed, land: Land,
    checkpoint: str,
) -> None:  # fmt: skip
    """Runs over a changelog, before and after the cleaner took what was overwritten: the last value of each key wins,
    and what is missing between offsets is no loss."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0",
                "segment.ms": "100", "min.compaction.lag.ms": "0"}  # fmt: skip
    cluster.create_topic(topic, config=settings)
    given = options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    frame = spark.readStream.format("tidelog").options(**given).load()
    frame = frame.selectExpr("offset", "CAST(key AS STRING)", "CAST(value AS STRING)")
    table: dict[str, str] = {}
    offsets: list[int] = []
    written = 0

    def write(count: int) -> None:
        nonlocal written
        with cluster.producer() as producer:
            for _ in range(count):
                producer.send(topic, b"%d" % written, key=b"%d" % (written % 3), partition=0).result(10)
                written += 1

    def run() -> None:
        for offset, key, value in land(frame, checkpoint):
            offsets.append(offset)
            table[key] = value

    write(30)
    run()
    write(60)
    deadline = time.monotonic() + 60
    while len(committed(topic)) > 80:
        assert time.monotonic() < deadline, "the cleaner takes what was overwritten"
    run()
    assert table == {str(key): str(max(n for n in range(90) if n % 3 == key)) for key in range(3)}
    assert offsets == sorted(set(offsets))
    assert len(offsets) < 90


def test_several_queries_on_one_topic_each_with_its_own_pace_while_it_grows(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, fill: Fill, landing: Callable[..., Any],
    checkpoint: str,
) -> None:  # fmt: skip
    """Three queries at once in one session. The topic gets partitions while they run; one of them counts."""
    cluster.create_topic(topic, partitions=2)
    frames = [
        spark.readStream.format("tidelog")
        .options(**options(subscribe=topic, startingOffsets="earliest", **given))
        .load()
        .selectExpr("CAST(value AS STRING) v", "partition")
        for given in ({}, {"maxOffsetsPerTrigger": 3}, {"minOffsetsPerTrigger": 4, "maxTriggerDelay": "300ms"})
    ]
    frames[1] = frames[1].groupBy("partition").count()
    queries = [
        landing(
            frame, f"{checkpoint}-{number}", "update" if number == 1 else "append", processingTime="100 milliseconds"
        )
        for number, frame in enumerate(frames)
    ]
    fill(topic, *"abcde", partition=0)
    queries[0].wait_for(5)
    with cluster.admin() as admin:
        admin.create_partitions({topic: 4})
    cluster.wait_for_leader(topic, 3)
    fill(topic, *"fgh", partition=3)
    fill(topic, *"ij", partition=1)
    everything = sorted([(v, 0) for v in "abcde"] + [(v, 3) for v in "fgh"] + [(v, 1) for v in "ij"])
    assert sorted(queries[0].wait_for(10)) == everything
    assert sorted(queries[2].wait_for(10)) == everything
    queries[1].query.processAllAvailable()
    assert dict(queries[1].rows) == {0: 5, 1: 2, 3: 3}


def test_a_pattern_takes_in_a_topic_that_came_between_two_runs(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, fill: Fill, land: Land, checkpoint: str
) -> None:
    """Counting goes on over the old topic and the new one; a topic of another name stays out."""
    for name in (f"{topic}.eu", f"other-{topic}"):
        cluster.create_topic(name)
        fill(name, "1", "2")
    given = options(subscribePattern=rf"^{topic}\.", startingOffsets="earliest")
    counts = spark.readStream.format("tidelog").options(**given).load().groupBy("topic").count()
    assert land(counts, checkpoint, "complete") == [(f"{topic}.eu", 2)]
    cluster.create_topic(f"{topic}.us", partitions=2)
    fill(f"{topic}.us", "1", "2", "3", partition=1)
    fill(f"{topic}.eu", "3")
    assert sorted(land(counts, checkpoint, "complete")[-2:]) == [(f"{topic}.eu", 3), (f"{topic}.us", 3)]


def test_the_source_in_sql(spark: SparkSession, cluster: Cluster, topic: str, options: Options, fill: Fill) -> None:
    """As a temporary view, joined with itself."""
    cluster.create_topic(topic, partitions=2)
    fill(topic, "1", "2", partition=0, key=b"a")
    fill(topic, "3", partition=1, key=b"b")
    given = ", ".join(f"`{name}` '{value}'" for name, value in options(subscribe=topic).items())
    view = topic.replace("-", "_")
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING tidelog OPTIONS ({given})")
    found = spark.sql(
        f"SELECT CAST(l.key AS STRING), count(*) FROM {view} l JOIN {view} r ON l.key = r.key GROUP BY l.key ORDER BY 1"
    ).collect()
    assert [tuple(row) for row in found] == [("a", 4), ("b", 1)]
