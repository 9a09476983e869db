"""The sink's writers, called as Spark calls them, without a JVM: whatever dies, each batch is there once."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType

from tidelog.client.admin.transaction_types import TransactionState
from tidelog.client.errors import RequestTimedOutError, SinkJobFencedError, TidelogError
from tidelog.client.sink.blocking_writer import SinkWriter
from tidelog.client.sinks import SinkJob
from tidelog.spark_connector.datasource import TidelogDataSource
from tidelog.spark_connector.options import OptionError
from tidelog.spark_connector.sink import BATCH_ID, QUERY_ID, BatchSink, StreamSink, Written
from tidelog.testing import Cluster

SCHEMA = StructType([StructField("value", StringType())])
Batch = Callable[[dict[str, str]], list[str]]
_queries = (f"query-{number}" for number in itertools.count())


class Stream:
    """One query on one checkpoint; each :meth:`run` is Spark planning a micro-batch."""

    def __init__(self, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.source = TidelogDataSource(options)
        self.query = next(_queries)
        self._monkeypatch = monkeypatch

    def run(self) -> StreamSink:
        """A driver that plans a batch."""
        return self.source.streamWriter(SCHEMA, overwrite=False)

    def task(
        self, planned: StreamSink, batch: int, *values: str, rows: Iterator[pa.RecordBatch] | None = None
    ) -> Written:
        """A task of it, in a process of its own as far as what it knows goes."""
        properties = {QUERY_ID: self.query, BATCH_ID: str(batch)}
        context = type("Context", (), {"getLocalProperty": staticmethod(properties.get)})
        self._monkeypatch.setattr(TaskContext, "get", lambda: context)
        writer: StreamSink = pickle.loads(pickle.dumps(planned))
        told = writer.write(iter(arrow(*values)) if rows is None else rows)
        return pickle.loads(pickle.dumps(told))  # type: ignore[no-any-return]

    def commit(self, batch: int, *told: Written | None) -> None:
        """Spark makes a writer anew to commit."""
        self.source.streamWriter(SCHEMA, overwrite=False).commit(told, batch)

    def abort(self, batch: int, *told: Written | None) -> None:
        self.source.streamWriter(SCHEMA, overwrite=False).abort(told, batch)


def arrow(*values: str) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([{"value": value} for value in values], pa.schema([("value", pa.string())]))]


@pytest.fixture
def stream(
    cluster: Cluster, topic: str, options: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> Stream:
    cluster.create_topic(topic)
    return Stream(options(topic=topic), monkeypatch)


@pytest.fixture
def seen(batch: Batch, options: Callable[..., dict[str, str]], topic: str) -> Callable[[], list[str]]:
    """The committed records that a reader finds in the topic."""
    return lambda: batch(options(subscribe=topic))


Seen = Callable[[], list[str]]


def test_a_batch_is_seen_when_it_is_committed_and_the_next_one_after_it(stream: Stream, seen: Seen) -> None:
    for number, values in enumerate((("a", "b"), ("c",))):
        planned = stream.run()
        told = [stream.task(planned, number, value) for value in values]
        assert "abc"[: 2 * number] == "".join(seen())
        stream.commit(number, *told, None)
    assert seen() == ["a", "b", "c"]


def test_a_task_that_fails_is_superseded(stream: Stream, seen: Seen) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from arrow("half of it")
        raise RuntimeError("the query's function is broken")

    planned = stream.run()
    with pytest.raises(RuntimeError, match="the query's function is broken"):
        stream.task(planned, 0, rows=broken())
    stream.commit(0, stream.task(planned, 0, "whole"))
    assert seen() == ["whole"]


def test_a_task_whose_worker_died_is_superseded_prepared_or_not(
    cluster: Cluster, stream: Stream, seen: Seen, topic: str
) -> None:
    planned = stream.run()
    lost = stream.task(planned, 0, "prepared, and never heard of")
    with SinkWriter(cluster.bootstrap, lost.message.of) as dead:
        dead.send_many(topic, [b"not prepared"])
        stream.commit(0, stream.task(planned, 0, "a"), stream.task(planned, 0))
        with pytest.raises(TidelogError):
            dead.prepare()
    assert seen() == ["a"]


def test_a_driver_that_died_before_it_committed_is_superseded(stream: Stream, seen: Seen) -> None:
    dead = stream.run()
    told = stream.task(dead, 0, "first run")
    planned = stream.run()
    stream.commit(0, stream.task(planned, 0, "second run"))
    stream.commit(0, told)  # it thaws: the batch is decided, which is all it is told
    stream.abort(0, told)
    assert stream.task(dead, 0, "again").message.already_committed
    assert seen() == ["second run"]


def test_a_batch_that_was_decided_and_not_logged_is_drained_and_committed_in_name(stream: Stream, seen: Seen) -> None:
    stream.commit(0, stream.task(stream.run(), 0, "first run"))
    planned = stream.run()
    drained = []

    def rows() -> Iterator[pa.RecordBatch]:
        for one in ("second", "run"):
            drained.append(one)
            yield from arrow(one)

    told = stream.task(planned, 0, rows=rows())
    assert told.message.already_committed
    assert told.message.rows == 0
    assert drained == ["second", "run"]
    stream.commit(0, told)
    stream.commit(1, stream.task(stream.run(), 1, "next"))
    assert seen() == ["first run", "next"]


def test_of_two_drivers_the_later_takes_over(stream: Stream, seen: Seen) -> None:
    one, other = stream.run(), stream.run()
    told = stream.task(one, 0, "one")
    others = stream.task(other, 0, "other")
    with pytest.raises(SinkJobFencedError):
        stream.commit(0, told)
    with pytest.raises(SinkJobFencedError):
        stream.task(one, 0, "once more")
    stream.abort(0, told)
    stream.commit(0, others)
    assert seen() == ["other"]


def test_an_abort_is_of_its_own_job_and_not_of_a_decided_batch(stream: Stream, seen: Seen) -> None:
    failed = stream.run()
    told = stream.task(failed, 0, "failed")
    stream.abort(0, None)
    stream.abort(0, told, None)
    with pytest.raises(SinkJobFencedError):
        stream.commit(0, told)
    told = stream.task(stream.run(), 0, "a")
    stream.commit(0, told)
    stream.abort(0, told)  # the answer to the commit was lost
    assert seen() == ["a"]


def test_batches_without_rows_are_decided_too(cluster: Cluster, stream: Stream, seen: Seen) -> None:
    planned = stream.run()
    stream.commit(0, stream.task(planned, 0), stream.task(planned, 0, rows=iter(())))
    with cluster.admin() as admin:
        assert admin.describe_sinks([stream.query])[stream.query].last == SinkJob(stream.query, 0, planned._job)
    stream.commit(1)  # not even a message: there is nothing to say whose
    stream.commit(2, stream.task(stream.run(), 2, "a"))
    assert seen() == ["a"]


def test_what_a_dead_job_left_prepared_ends_with_a_batch_that_wrote_nothing(
    cluster: Cluster, stream: Stream, seen: Seen
) -> None:
    stream.task(stream.run(), 0, "prepared")
    stream.commit(0, stream.task(stream.run(), 0))
    with cluster.admin() as admin:
        left = admin.describe_sinks([stream.query])[stream.query].transactions
        assert all(one.state is TransactionState.PREPARE_ABORT for one in left)
    assert seen() == []


def test_planning_a_batch_touches_nothing() -> None:
    source = TidelogDataSource({"tidelog.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    writers = [source.streamWriter(SCHEMA, overwrite=True), source.streamWriter(SCHEMA, overwrite=False)]
    assert writers[0]._job != writers[1]._job
    assert pickle.loads(pickle.dumps(writers[0]))._job == writers[0]._job
    writers[0].commit([None], 0)
    writers[0].abort([None], 0)


def test_a_task_outside_a_micro_batch_says_so(stream: Stream) -> None:
    with pytest.raises(RuntimeError, match=r"expected a task of a micro-batch with sql.streaming.queryId"):
        stream.run().write(iter(arrow("a")))


def test_an_abort_that_reaches_nobody_is_left_to_the_next_job(
    stream: Stream, seen: Seen, options: Callable[..., dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    told = stream.task(stream.run(), 0, "a")
    nobody = {"tidelog.bootstrap.servers": "127.0.0.1:1", "topic": "t", "tidelog.default.api.timeout.ms": "100"}
    with caplog.at_level("WARNING"):
        TidelogDataSource(nobody).streamWriter(SCHEMA, overwrite=False).abort([told], 0)
    assert "the next job aborts it" in caplog.text
    stream.commit(0, stream.task(stream.run(), 0, "b"))
    assert seen() == ["b"]


def test_brokers_that_are_down_end_a_task_in_time_and_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"tidelog.max.block.ms": "300", "tidelog.default.api.timeout.ms": "100"}
    gone = Stream({"tidelog.bootstrap.servers": "127.0.0.1:1", "topic": "t"} | limits, monkeypatch)
    with pytest.raises(
        RequestTimedOutError, match=r"begin\(\): not done within 0.3 s.*no broker could be reached: 127"
    ) as found:
        gone.task(gone.run(), 0, "a")
    assert "\n" not in str(found.value)


def test_a_topic_that_vanishes_while_it_is_written_to_ends_the_task_and_says_what_is_missing(
    cluster: Cluster,
    topic: str,
    options: Callable[..., dict[str, str]],
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster.create_topic(topic)
    limits = {"tidelog.delivery.timeout.ms": "1500", "tidelog.request.timeout.ms": "1000", "tidelog.linger.ms": "0"}
    stream = Stream(options(topic=topic) | limits | {"tidelog.default.api.timeout.ms": "1000"}, monkeypatch)

    def rows() -> Iterator[pa.RecordBatch]:
        yield from arrow("a")
        with cluster.admin() as admin:
            admin.delete_topics([topic])
        yield from arrow("b")

    with pytest.raises(TidelogError, match=rf"{topic}-0: 1 records not acknowledged within .*\(topic"):
        stream.task(stream.run(), 0, rows=rows())
    cluster.create_topic(topic)
    stream.commit(0, stream.task(stream.run(), 0, "again"))
    assert seen() == ["again"]


# --- batch writes ---------------------------------------------------------------------------------------


def write(options: dict[str, str], *values: str) -> BatchSink:
    """All of a batch write: two tasks, and a driver that got the writer back as it was planned."""
    planned: BatchSink = TidelogDataSource(options).writer(SCHEMA, overwrite=False)
    told = [pickle.loads(pickle.dumps(planned)).write(iter(arrow(*some))) for some in (values[::2], values[1::2])]
    copy: BatchSink = pickle.loads(pickle.dumps(planned))
    copy.commit(told)
    return copy


def test_a_batch_write_is_seen_whole_and_leaves_no_ledger(
    cluster: Cluster, topic: str, options: Callable[..., dict[str, str]], seen: Seen
) -> None:
    cluster.create_topic(topic)
    for _ in range(2):
        sink = write(options(topic=topic), "a", "b")._job.sink
        with cluster.admin() as admin:
            assert sink not in [one.sink for one in admin.list_sinks()]
    assert sorted(seen()) == ["a", "a", "b", "b"]


def test_a_batch_write_that_fails_is_never_seen(
    cluster: Cluster, topic: str, options: Callable[..., dict[str, str]], seen: Seen
) -> None:
    cluster.create_topic(topic)
    planned = TidelogDataSource(options(topic=topic)).writer(SCHEMA, overwrite=False)
    told = planned.write(iter(arrow("a")))
    planned.abort([told, None])
    with pytest.raises(SinkJobFencedError):
        planned.commit([told])
    assert seen() == []


def test_a_version_is_written_once_and_those_before_it_no_more(
    cluster: Cluster, topic: str, options: Callable[..., dict[str, Any]], seen: Seen
) -> None:
    cluster.create_topic(topic)
    for version, value in ((3, "a"), (3, "again"), (2, "before"), (4, "b")):
        write(options(topic=topic, appId="nightly", version=version), value)
    write(options(topic=topic, appId="other", version=3), "c")
    assert seen() == ["a", "b", "c"]
    with cluster.admin() as admin:
        last = admin.describe_sinks([f"nightly/{topic}"])[f"nightly/{topic}"].last
    assert last is not None
    assert last.batch == 4


def test_a_batch_is_not_written_over_what_is_there(options: Callable[..., dict[str, str]]) -> None:
    with pytest.raises(OptionError, match=r"Save mode Overwrite not allowed for Tidelog. Allowed save mode is Append"):
        TidelogDataSource(options(topic="t")).writer(SCHEMA, overwrite=True)
