"""How many rows a second Spark reads; all processes on this machine, ``local[2]``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.bench.clusters import create_topic, running
from tidelog.cli.workload import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS: Final = 6_000_000
_TOPIC: Final = "bench"


def source_to_noop(place: Path) -> Mapping[str, float]:
    """Read what lies in the page cache into nothing, as a batch and as a stream that ends; the second run counts."""
    from tidelog import Admin
    from tidelog.spark_connector import runtime

    with running(place, 1) as cluster, Admin(cluster.bootstrap) as admin:
        create_topic(admin, _TOPIC)
        fill(cluster.bootstrap, _TOPIC, 100, RECORDS, acks="1")
        spark = runtime.session("bench", master="local[2]", config={"spark.ui.showConsoleProgress": "false"})
        try:
            options = {"tidelog.bootstrap.servers": cluster.bootstrap, "subscribe": _TOPIC}
            batch = [_batch(spark, options) for _ in range(2)]
            stream = [_stream(spark, options, place / f"checkpoint-{number}") for number in range(2)]
        finally:
            spark.stop()
    return {"spark_source_batch": RECORDS / batch[-1], "spark_source_stream": RECORDS / stream[-1]}


def _batch(spark: SparkSession, options: Mapping[str, str]) -> float:
    """Seconds of a whole batch query, planning included."""
    started = time.perf_counter()
    spark.read.format("tidelog").options(**options).load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def _stream(spark: SparkSession, options: Mapping[str, str], checkpoint: Path) -> float:
    """Seconds of a stream's one large trigger."""
    frame = spark.readStream.format("tidelog").options(**options, startingOffsets="earliest").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    (progress,) = (found for found in query.recentProgress if found["numInputRows"])
    assert progress["numInputRows"] == RECORDS, progress["numInputRows"]
    return float(progress["durationMs"]["triggerExecution"]) / 1_000
