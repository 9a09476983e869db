"""From topic to topic with state between: what a batch that is run again gives is in the sink once, and queries that
feed one another in one session lose and double nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from tidelog.client.record import ConsumerRecord
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Options = Callable[..., dict[str, str]]
Fill = Callable[..., None]
Committed = Callable[[str], list[ConsumerRecord]]

T = 1_700_000_000_000
BOUND_S = 120

pytestmark = pytest.mark.timeout(300)
"""The first test starts Spark, and the first query of each kind its Python workers."""


def texts(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    """A stream of a topic from its start: texts ``k`` and ``v``, and ``at``, the record's time."""
    frame = spark.readStream.format("tidelog").options(**given, startingOffsets="earliest").load()
    return frame.selectExpr("CAST(key AS STRING) k", "CAST(value AS STRING) v", "timestamp at")


def started(frame: DataFrame, checkpoint: str, given: dict[str, str], **trigger: str | bool) -> StreamingQuery:
    writer = frame.writeStream.format("tidelog").options(**given).option("checkpointLocation", checkpoint)
    return writer.trigger(**trigger).start()  # type: ignore[arg-type]


def found(records: list[ConsumerRecord]) -> Counter[tuple[str, str]]:
    return Counter(((one.key or b"").decode(), (one.value or b"").decode()) for one in records)


def test_windows_are_in_the_sink_once_though_their_batch_is_run_again_with_its_state(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, fill: Fill, committed: Committed,
    checkpoint: str,
) -> None:  # fmt: skip
    """The driver dies after the decision, before Spark notes it: the batch is computed from the same state again."""
    cluster.create_topic(topic, partitions=2)
    cluster.create_topic(f"{topic}-out", partitions=2)
    counts = (
        texts(spark, options(subscribe=topic))
        .withWatermark("at", "1 second")
        .groupBy(f.window("at", "10 seconds"), "k")
        .agg(f.sum(f.col("v").cast("int")).alias("total"))
        .selectExpr("concat(k, '@', unix_timestamp(window.start) - 1700000000) key", "CAST(total AS STRING) value")
    )

    def run() -> None:
        query = started(counts, checkpoint, options(topic=f"{topic}-out"), availableNow=True)
        assert query.awaitTermination(BOUND_S)

    fill(topic, "1", "2", partition=0, key=b"a", timestamp_ms=T)
    fill(topic, "3", partition=1, key=b"b", timestamp_ms=T + 1_000)
    run()
    fill(topic, "4", partition=0, key=b"a", timestamp_ms=T + 15_000)
    run()
    first = Counter({("a@0", "3"): 1, ("b@0", "3"): 1})
    assert found(committed(f"{topic}-out")) == first
    commits = Path(checkpoint) / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink()
    run()
    assert found(committed(f"{topic}-out")) == first
    fill(topic, "5", partition=1, key=b"b", timestamp_ms=T + 40_000)
    run()
    assert found(committed(f"{topic}-out")) == first + Counter({("a@10", "4"): 1})


def test_queries_of_one_session_that_feed_one_another(
    spark: SparkSession, cluster: Cluster, topic: str, options: Options, committed: Committed, checkpoint: str
) -> None:
    """Two sinks, running: one query takes out what came before, the other reads what the first has committed."""
    for name in ("in", "once", "big"):
        cluster.create_topic(f"{topic}-{name}", partitions=2)
    fast = {"processingTime": "200 milliseconds"}
    once = texts(spark, options(subscribe=f"{topic}-in", maxOffsetsPerTrigger=20)).dropDuplicates(["k"])
    big = texts(spark, options(subscribe=f"{topic}-once")).where("CAST(v AS INT) >= 30")
    queries = [
        started(frame.selectExpr("k key", "v value"), f"{checkpoint}-{name}", options(topic=f"{topic}-{name}"), **fast)
        for name, frame in (("once", once), ("big", big))
    ]
    for start in (0, 20):
        for even in (0, 1):  # those of 20 to 39 come twice
            numbers = [number for number in range(start, start + 40) if number % 2 == even]
            with cluster.producer() as producer:
                for number in numbers:
                    producer.send(f"{topic}-in", b"%d" % number, key=b"%d" % number, partition=even)
                producer.flush()
    expected = Counter((str(number), str(number)) for number in range(60))
    big_ones = Counter({one: 1 for one in expected if int(one[1]) >= 30})
    deadline = time.monotonic() + BOUND_S
    while found(committed(f"{topic}-once")) != expected or found(committed(f"{topic}-big")) != big_ones:
        assert time.monotonic() < deadline, (found(committed(f"{topic}-once")), found(committed(f"{topic}-big")))
        assert all(query.isActive for query in queries), [query.exception() for query in queries]
    for query in queries:
        query.stop()
    assert found(committed(f"{topic}-once")) == expected
    assert found(committed(f"{topic}-big")) == big_ones
