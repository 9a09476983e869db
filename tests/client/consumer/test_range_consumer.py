"""Reading from one offset to another: exact edges, no waiting where nothing is left to come, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from tidelog.client.consumer.range_consumer import RangeConsumer
from tidelog.client.errors import ConfigError, OffsetOutOfRangeError, RequestTimedOutError, TidelogError
from tidelog.client.fetching import fetcher
from tidelog.client.fetching.positions import PartitionState
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.proto.records.columns import column_buffer
from tidelog.proto.transport.frames import decode_fetch_response
from tidelog.testing import Cluster

AT = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Ten records in two batches, an aborted one, a marker."""
    with Cluster() as running:
        running.create_topic(AT.topic)
        with running.producer(linger_ms=1_000) as producer:
            for numbers in (range(7), range(7, 10)):
                for number in numbers:
                    producer.send(AT.topic, b"%d" % number, partition=0)
                producer.flush()
        with running.producer(transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(AT.topic, b"aborted", partition=0)
            producer.flush()
            producer.abort_transaction()
        yield running


@pytest.fixture
def consumer(cluster: Cluster) -> Iterator[RangeConsumer]:
    """A broker that has nothing to say is silent for a minute; the tests have not that long."""
    settings: dict[str, Any] = {"_network": cluster.client_network(), "_background": cluster._background}
    with RangeConsumer(cluster.bootstrap, fetch_max_wait_ms=60_000, **settings) as made:
        yield made


def read(consumer: RangeConsumer, start: int, end: int, **more: Any) -> list[int]:
    more.setdefault("idle_timeout", 20.0)
    return [
        record.offset
        for batch in consumer.batches(AT, start, end, **more)
        for record in batch
        if start <= record.offset < end
    ]


@pytest.mark.parametrize(
    ("start", "end"), [(0, 10), (0, 1), (3, 8), (6, 7), (9, 12), (10, 12), (0, 12), (4, 4), (5, 2)]
)
def test_a_range_is_read_to_its_edges(consumer: RangeConsumer, start: int, end: int) -> None:
    expected = list(range(start, min(end, 10)))
    assert read(consumer, start, end) == expected
    columns = column_buffer()
    for batch in consumer.batches(AT, start, end, idle_timeout=20.0):
        batch.add_to(columns, end)
    assert columns.count == len(expected)
    assert consumer.assignment() == set()


def test_a_range_that_is_left_early_gives_way_to_the_next(consumer: RangeConsumer) -> None:
    for _ in range(3):
        first = next(consumer.batches(AT, 0, 10))
        assert [record.offset for record in first] == list(range(7))
    assert read(consumer, 8, 10) == [8, 9]


def test_a_range_of_which_compaction_left_nothing_ends(
    consumer: RangeConsumer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's end is known, and two answers in a row had nothing before it."""
    decode = decode_fetch_response
    answers = []

    def without_records(data: memoryview) -> Any:
        correlation, response = decode(data)
        answers.append(response)
        emptied = [dataclasses.replace(one, records=[]) for one in response.partitions]
        return correlation, dataclasses.replace(response, partitions=emptied)

    monkeypatch.setattr(fetcher, "decode_fetch_response", without_records)
    assert read(consumer, 2, 12) == []
    assert len(answers) >= 2


def test_one_empty_answer_says_nothing_about_the_end() -> None:
    """The end that it names may have been reached after the log was looked into."""
    state = PartitionState(AT)
    state.seek(5)
    state.high_watermark = 5
    assert not state.found_nothing()
    assert state.empty_until == -1
    state.high_watermark = 9
    assert not state.found_nothing(), "the answer before knew of no more than 5"
    assert state.found_nothing()
    assert state.empty_until == 9
    assert not state.found_nothing(), "nothing new"
    state.high_watermark = 12
    assert not state.found_nothing()
    assert state.found_nothing()
    assert state.empty_until == 12
    state.seek(5)
    assert state.empty_until == -1
    assert not state.found_nothing()


def test_readers_of_what_is_committed_count_to_the_last_stable_offset() -> None:
    state = PartitionState(AT)
    state.seek(5)
    state.high_watermark, state.last_stable_offset, state.read_committed = 20, 8, True
    assert not state.found_nothing()
    assert state.found_nothing()
    assert state.empty_until == 8


def test_another_topic_of_the_name_is_not_read(consumer: RangeConsumer, cluster: Cluster) -> None:
    with cluster.admin() as admin:
        (topic,) = admin.describe_topics([AT.topic])
    assert read(consumer, 0, 10, topic_id=topic.topic_id) == list(range(10))
    with pytest.raises(TidelogError, match="the topic was deleted and created again") as raised:
        read(consumer, 0, 10, topic_id=TopicId(bytes(15) + b"x"))
    assert raised.value.code is ErrorCode.INCONSISTENT_TOPIC_ID


def test_what_the_log_does_not_have(consumer: RangeConsumer) -> None:
    with pytest.raises(OffsetOutOfRangeError):
        read(consumer, 50, 60)
    with pytest.raises(
        RequestTimedOutError, match=r"orders-0: nothing came within 0\.3 s at offset 12, expected to read"
    ):
        read(consumer, 8, 60, idle_timeout=0.3)
    assert read(consumer, 9, 10) == [9], "and it goes on"


def test_a_leader_that_is_known_to_be_there_is_waited_for(cluster: Cluster) -> None:
    """Longer than an answer may take: that the metadata is old says nothing about the log."""
    settings: dict[str, Any] = {"_network": cluster.client_network(), "_background": cluster._background}
    with RangeConsumer(cluster.bootstrap, request_timeout_ms=200, **settings) as made:
        with pytest.raises(RequestTimedOutError, match=r"orders-0: nothing came within 1\.0 s at offset 0"):
            read(made, 0, 10, leader_epoch=7, idle_timeout=1.0)
        assert read(made, 0, 10, leader_epoch=0) == list(range(10)), "and it goes on"


@pytest.mark.parametrize("name", ["isolation_level", "auto.offset.reset", "group_id", "allow_auto_create_topics"])
def test_some_settings_are_its_own(name: str) -> None:
    with pytest.raises(ConfigError, match="a RangeConsumer sets this itself"):
        RangeConsumer("127.0.0.1:1", **{name: "x"})
