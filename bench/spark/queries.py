"""Spark's read and write speed, and the cost of a trigger; all processes on this machine, ``local[2]``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.bench.clusters import with_topics
from tidelog.bench.figures import median
from tidelog.cli.work.workload import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS: Final = 6_000_000
COPIED: Final = 3_000_000
VALUE: Final = b"x" * 100
TASKS: Final = 2
ROWS: Final = 50
"""Rows of each task in a small trigger."""
TRIGGERS: Final = 30
"""Small triggers to measure."""
WARM_UP: Final = 8
"""Small warm-up triggers before them: Java compiles frequently run code."""
TRIGGERS_MAX: Final = 2_000
"""Triggers for which there are rows; counting them takes a while, during which more triggers run."""
TRIGGERS_TIMEOUT_S: Final = 180.0
_TOPIC: Final = "bench"
_COPY: Final = "copy"


def source_to_noop(root: Path) -> Mapping[str, float]:
    """Measure reading from the page cache into a no-op sink, as a batch and as a stream that ends; the second run
    counts."""
    with with_topics(root, 1, _TOPIC) as cluster:
        fill(cluster.bootstrap, _TOPIC, 100, RECORDS, acks="1")
        options = {"tidelog.bootstrap.servers": cluster.bootstrap, "subscribe": _TOPIC}
        with session() as spark:
            batch = [_batch(spark, options) for _ in range(2)]
            streamed = [stream(_source(spark, options), root / f"to-noop-{number}", "noop", {}) for number in range(2)]
    return {"spark_source_batch": RECORDS / batch[-1], "spark_source_stream": RECORDS / streamed[-1]}


def source_to_sink(root: Path) -> Mapping[str, float]:
    """Measure copying a topic to another exactly once, as one large trigger of a stream; the second run counts.

    Three nodes, both topics with three replicas. Counts the records that a read_committed reader finds.
    """
    with with_topics(root, 3, _TOPIC, _COPY) as cluster:
        fill(cluster.bootstrap, _TOPIC, 100, COPIED, acks="all")
        to = {"tidelog.bootstrap.servers": cluster.bootstrap}
        with session() as spark:
            took = [
                stream(
                    _source(spark, to | {"subscribe": _TOPIC}).select("value"),
                    root / f"to-sink-{number}",
                    "tidelog",
                    to | {"topic": _COPY},
                    rows=COPIED,
                )
                for number in range(2)
            ]
            copied = spark.read.format("tidelog").options(**to, subscribe=_COPY).load().count()
    assert copied == len(took) * COPIED, copied
    return {"spark_source_to_sink": COPIED / took[-1]}


def trigger_overhead(root: Path) -> Mapping[str, float]:
    """Measure a small trigger from topic to topic (two tasks of 50 rows, three nodes, three replicas), and one of the
    same size with a no-op Python source and sink; medians, in turns within one session."""
    from tidelog import Producer

    with with_topics(root, 3, _TOPIC, _COPY, partitions=TASKS) as cluster:
        to = {"tidelog.bootstrap.servers": cluster.bootstrap}
        with Producer(cluster.bootstrap) as producer:
            for partition in range(TASKS):
                producer.send_many(_TOPIC, [VALUE] * (ROWS * TRIGGERS_MAX), partition=partition).result()
        few = to | {"subscribe": _TOPIC, "maxOffsetsPerTrigger": str(TASKS * ROWS)}
        with session() as spark:
            from tidelog.bench.spark.constants import Constants

            spark.dataSource.register(Constants)
            constants = {"tasks": str(TASKS), "rows": str(ROWS)}
            ours: list[float] = []
            spark_alone: list[float] = []
            for turn in range(2):
                frame = spark.readStream.format("constants").options(**constants).load()
                spark_alone += triggers(frame, root / f"alone-{turn}", "constants", constants)
                frame = _source(spark, few).select("value")
                ours += triggers(frame, root / f"ours-{turn}", "tidelog", to | {"topic": _COPY})
    return {
        "spark_trigger_overhead": median(ours) - median(spark_alone),
        "spark_trigger": median(ours),
        "spark_trigger_alone": median(spark_alone),
    }


@contextmanager
def session(config: Mapping[str, str] = {}) -> Iterator[SparkSession]:
    """Yield a quiet session on two cores, with these settings of Spark's."""
    from tidelog.spark_connector import runtime

    quiet = {"spark.ui.showConsoleProgress": "false", **config}
    spark = runtime.session("bench", master="local[2]", config=quiet)
    spark.sparkContext.setLogLevel("OFF")  # streams are stopped during a trigger, and Spark logs a lot about that
    try:
        yield spark
    finally:
        spark.stop()


def _source(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.readStream.format("tidelog").options(**options, startingOffsets="earliest").load()


def _batch(spark: SparkSession, options: Mapping[str, str]) -> float:
    """Return the seconds of a whole batch query, planning included."""
    started = time.perf_counter()
    spark.read.format("tidelog").options(**options).load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def stream(frame: DataFrame, checkpoint: Path, to: str, options: Mapping[str, str], *, rows: int = RECORDS) -> float:
    """Return the seconds of a stream's single large trigger, from planning to commit."""
    writer = frame.writeStream.format(to).options(**options).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    (progress,) = (found for found in query.recentProgress if found["numInputRows"])
    assert progress["numInputRows"] == rows, progress["numInputRows"]
    return _milliseconds(progress) / 1_000


def triggers(frame: DataFrame, checkpoint: Path, to: str, options: Mapping[str, str]) -> list[float]:
    """Return the milliseconds of a constantly busy stream's triggers, without the first ones."""
    query = frame.writeStream.format(to).options(**options).option("checkpointLocation", str(checkpoint)).start()
    found: dict[int, float] = {}
    until = time.monotonic() + TRIGGERS_TIMEOUT_S
    try:
        while len(found) < WARM_UP + TRIGGERS:
            if query.awaitTermination(1):
                raise RuntimeError("the stream has ended")  # the error that ended it was raised before
            assert time.monotonic() < until, f"{len(found)} triggers within {TRIGGERS_TIMEOUT_S} s"
            found |= {one["batchId"]: _milliseconds(one) for one in query.recentProgress if one["numInputRows"]}
    finally:
        query.stop()
    return [found[batch] for batch in sorted(found)][WARM_UP:]


def _milliseconds(progress: Any) -> float:
    return float(progress["durationMs"]["triggerExecution"])
