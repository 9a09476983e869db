"""The Spark driver of the demo, a process that is killed: a stream from topic ``flights`` to topic ``delays``.

Run by :mod:`tidelog.demo.delays.half`: ``python -m tidelog.demo.delays.driver BOOTSTRAP CHECKPOINT WORK ROWS``. It
begins, or goes on from the checkpoint, takes ``ROWS`` flights to a micro-batch, and stops when it has processed what
the topic held at its start. Then it computes the same from the source's files, of which ``flights.csv`` lies in
``WORK``, into ``WORK/expected``. It says what it does in lines of JSON.
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
"""Names in the directory ``WORK``."""
PARALLEL: Final = 2
"""Tasks of a stage, and so parts of the state and transactions of a micro-batch."""
DRIVER_MEMORY: Final = "1g"
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for a minute on two cores does not earn back what its second compiler costs: nearly half of all."""
_POLL_S: Final = 0.2


def start(spark: SparkSession, bootstrap: str, checkpoint: str, rows: int) -> StreamingQuery:
    """Begin the stream, or go on with it."""
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
    """The same rows, as one batch query from the source's files; nothing of it has been in a topic."""
    flights = query.flights_in_file(spark, str(work / FLIGHTS_FILE))
    query.delays(flights, *reference(spark)).write.mode("overwrite").json(str(work / EXPECTED))


def reference(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Weather and airlines. Spark keeps them in memory from their first use on."""
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
    running.awaitTermination()  # raises what ended it
    said = time.monotonic()
    say("streamed", seconds=said - started)
    recompute(spark, work)
    say("recomputed", seconds=time.monotonic() - said)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
