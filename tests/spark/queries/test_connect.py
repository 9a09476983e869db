"""Spark Connect: reading, writing, streams, and exactly once out of ``foreachBatch``, by its own server."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.client.record import ConsumerRecord
from tidelog.spark_connector.foreach_batch import exactly_once
from tidelog.testing import Cluster

BROKERS = {"tidelog.bootstrap.servers": "127.0.0.1:9092"}
CLIENT = """
import os, sys, threading
from pathlib import Path
from tidelog.spark_connector import runtime
from tidelog.spark_connector.foreach_batch import exactly_once, write_once

runtime.prepare()
from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").remote("local[2]").getOrCreate()
brokers = {"tidelog.bootstrap.servers": sys.argv[1]}
runtime.activate(spark)

def stream(function, name, checkpoint):
    rows = spark.readStream.format("tidelog").options(**brokers).option("subscribe", "in")
    rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "4").load().select("value")
    writer = rows.writeStream.foreachBatch(function).option("checkpointLocation", f"{sys.argv[2]}/{checkpoint}")
    query = writer.queryName(name).trigger(availableNow=True).start()
    assert query.awaitTermination(120)

def two(frame, number):
    write_once(frame, number, brokers | {"topic": "two"}, query="q")
    write_once(frame, number, brokers | {"topic": "two"}, query="q", name="again")

def refused(words, function):
    try:
        stream(function, "q", "refused")
    except Exception as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)

refused("under Spark Connect, expected the name of the query", exactly_once(brokers | {"topic": "one"}))
refused("expected an active query named 'p', found ['q']", exactly_once(brokers | {"topic": "one"}, query="p"))
for _ in range(2):
    stream(exactly_once(brokers | {"topic": "one"}, query="q"), "q", "one")
    for last in ("2", ".2.crc"):  # as after a death between the decision and Spark's note
        Path(sys.argv[2], "one", "commits", last).unlink()
stream(two, "q", "two")
write = spark.range(1).selectExpr("'batch' value").write.format("tidelog").options(**brokers).option("topic", "three")
thread = threading.Thread(target=lambda: write.mode("append").save())
thread.start()
thread.join()
assert spark.read.format("tidelog").options(**brokers).option("subscribe", "one").load().count() == 10
spark.stop()
"""

pytestmark = pytest.mark.timeout(600)


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("grpc_status", "pandas")),
    reason="comes back with pip install 'pyspark[connect]': pandas and grpcio-status are not among our packages",
)
def test_a_client_of_spark_connect_writes_each_batch_once(
    cluster: Cluster, fill: Callable[..., None], committed: Callable[[str], list[ConsumerRecord]], tmp_path: Path
) -> None:
    for topic in ("in", "one", "two", "three"):
        cluster.create_topic(topic)
    fill("in", *"0123456789")
    client = tmp_path / "client.py"
    client.write_text(CLIENT)
    done = subprocess.run(
        [sys.executable, str(client), cluster.bootstrap, str(tmp_path)],
        capture_output=True, text=True, timeout=500, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for topic, rows in (("one", [*"0123456789"]), ("two", [*"00112233445566778899"]), ("three", ["batch"])):
        assert sorted((record.value or b"").decode() for record in committed(topic)) == rows


class RemoteFrame:
    """As much of Spark Connect's DataFrame as is looked at."""

    def __init__(self) -> None:
        self.written: list[dict[str, str]] = []
        kind = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
        self.sparkSession = kind()
        kept: dict[str, str] = {}
        self.sparkSession.conf = SimpleNamespace(get=kept.get, set=kept.__setitem__)

    write = property(lambda self: self)

    def format(self, _: str) -> RemoteFrame:
        return self

    def options(self, **given: str) -> RemoteFrame:
        self.written.append(given)
        return self

    def mode(self, _: str) -> RemoteFrame:
        return self

    def save(self) -> None:
        return None


def worker(active: dict[str, str], work: Callable[[], None], run: int = 1) -> None:
    """Call it as Spark's worker for foreachBatch does, which has the session of the query in a variable."""
    queries = [SimpleNamespace(name=name, id=number, runId=f"run-{run}") for name, number in active.items()]
    spark_connect_session = SimpleNamespace(streams=SimpleNamespace(active=queries))
    work()
    del spark_connect_session


def call(function: Any, frame: RemoteFrame, number: int = 3) -> None:
    function(frame, number)


def test_the_query_is_known_by_its_name_only() -> None:
    frame = RemoteFrame()
    function = exactly_once(BROKERS | {"topic": "t"}, query="q")
    without = exactly_once(BROKERS | {"topic": "t"})
    worker({"q": "id-of-q", "other": "another"}, lambda: call(function, frame))
    assert [one["appId"] for one in frame.written] == ["id-of-q/"]
    with pytest.raises(RuntimeError, match=r"expected an active query named 'q', found \['other'\]"):
        worker({"other": "another"}, lambda: call(function, frame))
    with pytest.raises(RuntimeError, match="expected the name of the query: give it one by queryName"):
        worker({"q": "id-of-q"}, lambda: call(without, frame))
    with pytest.raises(RuntimeError, match="found no query"):
        call(function, frame)
    assert len(frame.written) == 1


def test_a_run_that_repeats_a_batch_is_no_second_write_of_it_in_a_session_that_runs_share() -> None:
    """Before 4.3, all runs of a query have the session of the client."""
    frame = RemoteFrame()
    function = exactly_once(BROKERS | {"topic": "t"}, query="q")
    for run in (1, 2):
        worker({"q": "id-of-q"}, lambda: call(function, frame), run)
    assert [one["version"] for one in frame.written] == ["3", "3"]
    with pytest.raises(ValueError, match="batch 3 was written under the name '' to this topic already"):
        worker({"q": "id-of-q"}, lambda: call(function, frame), 2)
