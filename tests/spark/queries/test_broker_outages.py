"""Brokers that go away under a stream: it waits, says so, and goes on, or ends after the bound that it was given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.client.errors import BrokerNotAvailableError
from tidelog.model.ids import TopicPartition
from tidelog.spark_connector import connections, reading
from tidelog.spark_connector.options import SourceOptions
from tidelog.spark_connector.progress import offsets_behind_latest
from tidelog.spark_connector.sink_options import SinkOptions
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 120
"""Bound of every wait; most take a second or two."""
NOTHING: Mapping[str, str] = {}
SHORT = {"tidelog.default.api.timeout.ms": "1000", "tidelog.request.timeout.ms": "1000"}

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def one() -> Iterator[Cluster]:
    """A cluster of one node with the topics in and out, and a record in the first."""
    with Cluster(nodes=1, transport="grpc", config={"auto.create.topics.enable": "false"}) as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic)
        fill(cluster, "a")
        yield cluster
        reading.close_idle()
        connections.close()


def fill(cluster: Cluster, text: str) -> None:
    with cluster.producer() as producer:
        producer.send("in", text.encode()).result()


def source(cluster: Cluster, **given: str) -> dict[str, str]:
    to = {"tidelog.bootstrap.servers": cluster.bootstrap, "subscribe": "in", "startingOffsets": "earliest"}
    return to | SHORT | {"fetchOffset.retryIntervalMs": "20"} | given


def wait_for(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_stream_that_has_reached_its_brokers_waits_for_them_and_says_so(
    one: Cluster, stream: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    found = stream(source(one))
    assert found.trigger() == ["a"]
    one.kill(1)
    for _ in range(2):
        assert found.reader.latestOffset(found.at, found.reader.getDefaultReadLimit()) is found.at, "no batch to begin"
    reported = found.reader.reportLatestOffset()
    assert reported["brokersAway"]["seconds"] >= 1
    assert f"no broker of {one.bootstrap} answered within 1000 ms" in reported["brokersAway"]["reason"]
    assert offsets_behind_latest({"endOffset": found.at, "latestOffset": reported})["maxOffsetsBehindLatest"] == 0
    assert "the query waits, for at most 300 s (maxBrokerOutage)" in caplog.text
    one.restart(1)
    fill(one, "b")
    assert wait_for(found.trigger) == ["b"]
    assert "brokersAway" not in found.reader.reportLatestOffset()


def test_it_ends_with_one_error_after_its_bound(one: Cluster, stream: Callable[..., Any]) -> None:
    found = stream(source(one, maxBrokerOutage="3s"))
    assert found.trigger() == ["a"]
    end = found.at
    one.kill(1)
    limit = found.reader.getDefaultReadLimit()
    said = (
        rf"^no broker of {one.bootstrap} answered within 1000 ms: .*That has been so for \d+ s; the option "
        r"maxBrokerOutage bears 3 s\. Start the query again when the brokers are back"
    )

    def ask() -> None:
        for _ in range(60):
            assert found.reader.latestOffset(end, limit) is end

    with pytest.raises(BrokerNotAvailableError, match=said):
        ask()
    past = end | {"offsets": {"in": {"0": 0}}}
    with pytest.raises(BrokerNotAvailableError, match=said):
        found.reader.partitions(past, end)


def test_a_query_that_ends_when_nothing_is_left_does_not_take_an_outage_for_the_end(
    one: Cluster, stream: Callable[..., Any]
) -> None:
    found = stream(source(one, maxBrokerOutage="2s"))
    one.kill(1)
    for ask in (
        found.reader.prepareForTriggerAvailableNow,
        lambda: found.reader.latestOffset(found.at, found.reader.getDefaultReadLimit()),
    ):
        with pytest.raises(BrokerNotAvailableError, match="maxBrokerOutage bears 2 s"):
            ask()


def test_brokers_that_were_never_there_are_not_waited_for(stream: Callable[..., Any]) -> None:
    down = {"tidelog.bootstrap.servers": "127.0.0.1:1", "subscribe": "in"} | SHORT
    with pytest.raises(BrokerNotAvailableError, match=r"within 1000 ms: (?!.*maxBrokerOutage)"):
        stream(down)


def test_the_bound_sets_what_tasks_and_decisions_wait_where_the_options_do_not() -> None:
    to = {"tidelog.bootstrap.servers": "127.0.0.1:1", "topic": "out", "subscribe": "in"}

    def timeouts(streaming: bool, producers: Mapping[str, str] = NOTHING, **given: str) -> tuple[object, ...]:
        sink = SinkOptions.of(to | given | dict(producers), streaming=streaming)
        found = [sink.producer.get(name) for name in ("max_block_ms", "delivery_timeout_ms")]
        poll = SourceOptions.of(to | given, streaming=streaming).poll_timeout_ms
        return (poll, *found, sink.ledger.get("default_api_timeout_ms"))

    assert timeouts(True) == (300_000, "300000", "300000", "300000")
    assert timeouts(False) == (120_000, None, None, None), "a batch query fails as soon as it did"
    assert timeouts(True, maxBrokerOutage="10m") == (600_000, "600000", "600000", "600000")
    assert timeouts(True, maxBrokerOutage="10s") == (10_000, "10000", "30005", "10000"), "no less than a request"
    own = {"tidelog.max.block.ms": "7", "tidelog.delivery.timeout.ms": "70000"}
    assert timeouts(True, own, **{"consumer.pollTimeoutMs": "9"}) == (9, "7", "70000", "300000")


def test_a_query_goes_on_after_an_outage(one: Cluster, spark: SparkSession, checkpoint: str) -> None:
    rows = spark.readStream.format("tidelog").options(**source(one)).load().select("value")
    sink = {"tidelog.bootstrap.servers": one.bootstrap, "topic": "out"}
    query = rows.writeStream.format("tidelog").options(**sink).option("checkpointLocation", checkpoint).start()

    def away() -> bool:
        assert query.isActive, query.exception()
        last = query.lastProgress
        return last is not None and "brokersAway" in str(last["sources"][0]["latestOffset"])

    def written() -> int:
        assert query.isActive, query.exception()
        with one.consumer(isolation_level="read_committed") as consumer:
            return consumer.end_offsets([TopicPartition("out", 0)])[TopicPartition("out", 0)]

    try:
        before = wait_for(written)
        one.kill(1)
        wait_for(away)
        one.restart(1)
        fill(one, "b")
        wait_for(lambda: written() > before)
        with one.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("out", 0)])
            found: list[bytes | None] = []
            deadline = time.monotonic() + PATIENCE_S
            while len(found) < 2:
                assert time.monotonic() < deadline
                found += [record.value for record in consumer.poll(0.1)]
        assert found == [b"a", b"b"]
    finally:
        query.stop()
