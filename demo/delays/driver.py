"""The demo's Spark driver, a process that gets killed: a stream from topic ``flights`` to topic ``delays``.

Run by :mod:`tidelog.demo.delays.half`: ``python -m tidelog.demo.delays.driver BOOTSTRAP CHECKPOINT WORK ROWS``. It
starts, or continues from the checkpoint, with ``ROWS`` flights per micro-batch, and stops when it has processed
everything that the topic held at its start. Then it computes the same from the source's files, with ``flights.csv`` in
``WORK``, into ``WORK/expected``. It reports its progress in lines of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.demo.delays import query
from tidelog.demo.log.flights import find_files
from tidelog.spark_connector import runtime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS_TOPIC: Final = "flights"
DELAYS_TOPIC: Final = "delays"
FLIGHTS_FILE: Final = "flights.csv"
EXPECTED: Final = "expected"
"""File names in the directory ``WORK``."""
PARALLEL: Final = 2
"""Tasks per stage, and so partitions of the state and transactions per micro-batch."""
DRIVER_MEMORY: Final = "1g"
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""In a JVM that lives for a minute on two cores, the second compiler does not pay off: it costs nearly half of
everything."""
_POLL_S: Final = 0.2


def start(spark: SparkSession, bootstrap: str, checkpoint: str, rows: int) -> StreamingQuery:
    """Start the stream, or continue it."""
    flights = query.flights_in_log(
        spark.readStream.format("tidelog")
        .option("tidelog.bootstrap.servers", bootstrap)
        .option("subscribe", FLIGHTS_TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows)
        .load()
    ).withWatermark("time_hour", f"{query.WATERMARK_DAYS} days")
    return (
        query.delays(flights, *reference(spark))
        .writeStream.format("tidelog")
        .option("tidelog.bootstrap.servers", bootstrap)
        .option("topic", DELAYS_TOPIC)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )


def recompute(spark: SparkSession, work: Path) -> None:
    """Compute the same rows in one batch query from the source's files; none of its input has been in a topic."""
    flights = query.flights_in_file(spark, str(work / FLIGHTS_FILE))
    query.delays(flights, *reference(spark)).write.mode("overwrite").json(str(work / EXPECTED))


def reference(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Read weather and airlines. Spark keeps them in memory after first use."""
    files = find_files()
    return (
        query.weather(spark, str(files["weather.csv"])).cache(),
        query.airlines(spark, str(files["airlines.csv"])).cache(),
    )


def say(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def main(bootstrap: str, checkpoint: str, work: Path, rows: int) -> None:
    started = time.monotonic()
    spark = runtime.session(
        "delays",
        master=f"local[{PARALLEL}]",
        config={
            "spark.sql.shuffle.partitions": str(PARALLEL),
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": str(work / "spark-local"),
            "spark.sql.warehouse.dir": str(work / "warehouse"),
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    say("session", seconds=time.monotonic() - started)
    running = start(spark, bootstrap, checkpoint, rows)
    say("query", id=str(running.id))
    told = -1
    active = True
    while active:
        active = running.isActive
        for progress in running.recentProgress:
            if progress["batchId"] > told:
                told = int(progress["batchId"])
                say(
                    "batch",
                    batch=told,
                    rows=progress["numInputRows"],
                    milliseconds=progress["durationMs"]["triggerExecution"],
                    watermark=progress["eventTime"].get("watermark"),
                )
        time.sleep(_POLL_S if active else 0)
    running.awaitTermination()  # raises the error that ended it
    said = time.monotonic()
    say("streamed", seconds=said - started)
    recompute(spark, work)
    say("recomputed", seconds=time.monotonic() - said)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
