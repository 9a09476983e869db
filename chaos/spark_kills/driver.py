"""A driver: one Spark in its own process, which runs queries on request.

It reads a line for each query from its standard input, and writes a line for each event to its standard output:
``ready`` when Spark runs, ``ended`` with the error or end of a query. :mod:`tidelog.chaos.spark_kills.drivers` starts
it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.chaos.spark_kills.processes import EXECUTES_FOR
from tidelog.chaos.spark_kills.query import Kind, Query
from tidelog.spark_connector import runtime
from tidelog.spark_connector.foreach_batch import exactly_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_OF_A_PIECE = 20
"""Rows per transfer from task to sink: a task that fails half-way has sent some of them."""
FAILS_AT_ROW = 130
SIGN_TIMEOUT_S = 20.0
CONFIG = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_OF_A_PIECE),
    "spark.sql.streaming.noDataProgressEventInterval": "100",
    "spark.sql.streaming.pollingDelay": "10",
    "spark.ui.showConsoleProgress": "false",
    "spark.buffer.size": "4096",  # rows travel between processes in small portions: a task has a middle
    "spark.python.worker.faulthandler.enabled": "false",
    # Nothing runs long enough here to pay for the second compiler, or for code generated for one query.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions "
    "-XX:-BytecodeVerificationRemote",
    "spark.driver.memory": "768m",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
ON_A_CLUSTER = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.task.maxFailures": "3",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.efficiency.enabled": "false",  # by a task's duration, not by its rows per second
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}
"""Two executors with one core each, so that a batch's two tasks are in two processes; and a slow task gets a second
attempt beside the first."""


def failing_first(signs: str) -> Callable[[bytes], bytes]:
    """Return a function that passes values through; the first attempt of a task raises at a later row, when some of its
    batch's rows are in the sink's log, as a file in ``signs`` says. (Values are transferred in hundreds: the first
    hundred has been passed on by then.)"""
    state = {"task": -1, "rows": 0}

    def value(given: bytes) -> bytes:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.taskAttemptId() != state["task"]:
            state.update(task=context.taskAttemptId(), rows=0)
        state["rows"] += 1
        if context.attemptNumber() == 0 and state["rows"] == FAILS_AT_ROW:
            sign = Path(signs) / str(context.getLocalProperty("streaming.sql.batchId"))
            deadline = time.monotonic() + SIGN_TIMEOUT_S
            while not sign.exists() and time.monotonic() < deadline:
                time.sleep(0.005)
            raise RuntimeError("the first attempt of this task fails, as asked")
        return given

    return value


def transformed(query: Query, rows: DataFrame) -> DataFrame:
    """Return the query's transformation of its source's rows: key and value."""
    from pyspark.sql import functions as f

    pairs = rows.select("key", "value")
    match query.kind:
        case Kind.COPY | Kind.FOREACH_BATCH:
            return pairs
        case Kind.FAIL_FIRST:
            late = f.udf(failing_first(query.signs), "binary", useArrow=False)
            return pairs.select("key", late("value").alias("value"))
        case Kind.COUNT:
            group = f.col("key").cast("string").alias("grp")
            text = f.concat_ws(":", f.col("grp"), f.col("count").cast("string"))
            return pairs.groupBy(group).count().select(f.col("grp").alias("key"), text.alias("value"))
        case Kind.APPEND_COUNT:
            timed = rows.select("timestamp").withWatermark("timestamp", "1 second")
            counted = timed.groupBy(f.window("timestamp", "1 second")).count()
            start = f.unix_seconds(f.col("window.start")).cast("string")
            return counted.select(
                start.alias("key"), f.concat_ws(":", start, f.col("count").cast("string")).alias("value")
            )


def run(spark: SparkSession, query: Query) -> None:
    """Run the query over everything in its source. Raises the query's error."""
    rows = (
        spark.readStream.format("tidelog")
        .option("tidelog.bootstrap.servers", query.bootstrap)
        .option("subscribe", query.source_topic)
        .option("startingOffsets", "earliest")
        .options(**query.source)
        .load()
    )
    writer = transformed(query, rows).writeStream.option("checkpointLocation", query.checkpoint)
    options = {"tidelog.bootstrap.servers": query.bootstrap, "topic": query.sink_topic, **query.sink}
    if query.kind is Kind.FOREACH_BATCH:
        writer = writer.foreachBatch(exactly_once(options))
    else:
        writer = writer.format("tidelog").options(**options)
    mode = "complete" if query.kind is Kind.COUNT else "append"
    running = writer.outputMode(mode).trigger(availableNow=True).start()
    try:
        running.awaitTermination()
    finally:
        running.stop()


def warm(spark: SparkSession) -> None:
    """Load everything that a query needs: the test is not about the cold start."""
    from pyspark.sql import functions as f

    spark.range(4, numPartitions=2).select(f.udf(lambda number: number, "bigint", useArrow=False)("id")).collect()


def tell(event: str, text: str | None = None) -> None:
    os.write(_told, (json.dumps([event, text]) + "\n").encode())


def main() -> None:
    """Run the driver. ``master``, the one argument: a cluster's; empty for a Spark within this process."""
    master = sys.argv[1] if len(sys.argv) > 1 else ""
    config = CONFIG
    if master:
        config = CONFIG | ON_A_CLUSTER | {f"spark.executorEnv.{EXECUTES_FOR}": str(os.getsid(0))}
    spark = runtime.session("kills", master=master or "local[2,3]", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    warm(spark)
    tell("ready")
    for line in sys.stdin:
        error: str | None = None
        try:
            run(spark, Query.from_json(line))
        except Exception as found:
            error = f"{type(found).__name__}: {found}"
        tell("ended", error)


if __name__ == "__main__":
    _told = os.dup(1)
    os.dup2(2, 1)  # Spark's output belongs in the log
    main()
