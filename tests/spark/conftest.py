"""One Spark session and one cluster, over gRPC on the loopback address, for all tests of the connector."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.chaos.spark_kills.driver import ON_A_CLUSTER
from tidelog.chaos.spark_kills.suite import MASTER
from tidelog.client.record import ConsumerRecord
from tidelog.model.ids import TopicPartition
from tidelog.spark_connector import connections, reading, runtime
from tidelog.spark_connector.options import SourceOptions
from tidelog.spark_connector.source import BatchReader, StreamReader
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOG = "spark.log"
"""What the driver's JVM and the workers log, beside the events."""
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    settings = {
        "auto.create.topics.enable": "false",  # a topic that is gone stays so
        "log.cleaner.backoff.ms": "200",
        "log.retention.ms": "-1",  # tests write records that are years old
    }
    with Cluster(transport="grpc", config=settings) as running:
        yield running
        reading.close_idle()
        connections.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home = tmp_path_factory.mktemp("spark")
    with (home / LOG).open("ab") as log:
        own = os.dup(2)
        os.dup2(log.fileno(), 2)  # the driver's JVM inherits it, and Python workers write to the JVM's
        try:
            session = _session(home)
        finally:
            os.dup2(own, 2)
            os.close(own)
    session.sparkContext.setLogLevel("OFF")
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


def _session(home: Path) -> SparkSession:
    master = os.environ.get(MASTER, "")
    return runtime.session(
        "tests",
        master=master or "local[2]",
        config=(ON_A_CLUSTER if master else {})
        | {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.sql.streaming.noDataProgressEventInterval": "100",
            "spark.ui.showConsoleProgress": "false",
            "spark.eventLog.enabled": "true",  # what must not stand in it is looked for
            "spark.eventLog.dir": home.as_uri(),
            "spark.eventLog.compress": "false",
            # Nothing runs long enough here to pay for the second compiler, for code made for one query, or for checks
            # of Spark's own classes.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions "
            "-XX:-BytecodeVerificationRemote",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.codegen.wholeStage": "false",
        },
    )


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def fill(cluster: Cluster) -> Callable[..., None]:
    """Write texts to a partition, each as one record."""

    def write(topic: str, *texts: str, partition: int = 0, **record: Any) -> None:
        with cluster.producer() as producer:
            for text in texts:
                producer.send(topic, text.encode(), partition=partition, **record)
            producer.flush()

    return write


@pytest.fixture
def options(cluster: Cluster) -> Callable[..., dict[str, str]]:
    """Options of a query on the cluster; retries are quick."""

    def made(**given: Any) -> dict[str, str]:
        found = {"tidelog.bootstrap.servers": cluster.bootstrap, "fetchOffset.retryIntervalMs": "20"}
        return found | {name: str(value) for name, value in given.items()}

    return made


class Planned:
    """A stream's reader, asked as Spark asks it, without a JVM."""

    def __init__(self, options: dict[str, str], now_ms: Callable[[], float] | None = None) -> None:
        self.reader = StreamReader(SourceOptions.of(options, streaming=True), now_ms)
        self.at = self.reader.initialOffset()

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows of a batch between these two offsets."""
        found = []
        for partition in self.reader.partitions(start, end):
            for batch in self.reader.read(partition):
                found += batch.to_pylist()
        return found

    def trigger(self) -> list[str]:
        """Plan and read one batch; return its values in order of partition and offset."""
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        found = self.rows(self.at, end)
        self.at = end
        return texts(found)


def texts(rows: list[dict[str, Any]]) -> list[str]:
    rows.sort(key=lambda row: (row["topic"], row["partition"], row["offset"]))
    return [row["value"].decode() for row in rows]


@pytest.fixture
def stream() -> Iterator[Callable[..., Planned]]:
    """Make streams' readers; they are stopped at the end."""
    made: list[Planned] = []

    def make(options: dict[str, str], now_ms: Callable[[], float] | None = None) -> Planned:
        made.append(Planned(options, now_ms))
        return made[-1]

    yield make
    for one in made:
        one.reader.stop()


@pytest.fixture
def batch() -> Callable[[dict[str, str]], list[str]]:
    """Run a batch query's reader; return its values in order of partition and offset."""

    def run(options: dict[str, str]) -> list[str]:
        reader = BatchReader(SourceOptions.of(options, streaming=False))
        found = []
        for partition in reader.partitions():
            for piece in reader.read(partition):
                found += piece.to_pylist()
        return texts(found)

    return run


@pytest.fixture
def committed(cluster: Cluster) -> Callable[[str], list[ConsumerRecord]]:
    """Every record of a topic that is committed now, in order of partition and offset."""

    def read(topic: str) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        with cluster.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            ends = consumer.end_offsets(
                TopicPartition(topic, view.partition) for view in consumer.partitions_for(topic)
            )
            consumer.assign(ends)
            deadline = time.monotonic() + 30
            while any(consumer.position(at) < end for at, end in ends.items()):
                assert time.monotonic() < deadline, (ends, len(found))
                found += consumer.poll(1.0)
        return sorted(found, key=lambda record: (record.partition, record.offset))

    return read


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


class Landing:
    """A query whose batches land here, in the driver: by number, the rows of each as tuples in order.

    ``fail_at``: the number of the batch whose writing fails once its rows are here.
    """

    def __init__(
        self,
        frame: DataFrame,
        checkpoint: str,
        mode: str = "append",
        fail_at: int | None = None,
        name: str | None = None,
        **trigger: Any,
    ) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self._fail_at = fail_at
        self._arrived = threading.Condition()
        writer = frame.writeStream.outputMode(mode).foreachBatch(self._take).option("checkpointLocation", checkpoint)
        if name is not None:
            writer = writer.queryName(name)
        self.query: StreamingQuery = writer.trigger(**trigger).start()

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = sorted((tuple(row) for row in frame.collect()), key=repr)
        with self._arrived:
            self.batches[number] = rows
            self._arrived.notify_all()
        if number == self._fail_at:
            raise RuntimeError("the sink is broken")

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """All that landed, in order of batches."""
        with self._arrived:
            return [row for number in sorted(self.batches) for row in self.batches[number]]

    def wait_for(self, count: int, timeout_s: float = 120) -> list[tuple[Any, ...]]:
        """Wait until that many rows are here or the query has ended."""
        with self._arrived:
            self._arrived.wait_for(
                lambda: sum(map(len, self.batches.values())) >= count or not self.query.isActive, timeout_s
            )
        return self.rows


@pytest.fixture
def landing() -> Iterator[Callable[..., Landing]]:
    """Start queries that land in the driver; they are stopped at the end."""
    started: list[Landing] = []

    def start(frame: DataFrame, checkpoint: str, mode: str = "append", **given: Any) -> Landing:
        started.append(Landing(frame, checkpoint, mode, **given))
        return started[-1]

    yield start
    for one in started:
        one.query.stop()


@pytest.fixture
def land(landing: Callable[..., Landing]) -> Callable[..., list[tuple[Any, ...]]]:
    """Run a query over all that there is, from where its checkpoint says; return what landed. Raises what ended it."""

    def run(frame: DataFrame, checkpoint: str, mode: str = "append", **given: Any) -> list[tuple[Any, ...]]:
        one = landing(frame, checkpoint, mode, **given, availableNow=True)
        assert one.query.awaitTermination(120)
        return one.rows

    return run
