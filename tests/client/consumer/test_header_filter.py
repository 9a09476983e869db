"""A consumer with a header filter on a cluster: what it gets, how far its group gets, and what it does not fetch."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tidelog import HeaderFilter, TopicPartition
from tidelog.client.consumer import core
from tidelog.client.errors import IllegalStateError
from tidelog.testing import Cluster

RARE = HeaderFilter("kind", ["rare"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = {"replica.high.watermark.checkpoint.interval.ms": "100"}
    with Cluster(1, transport="grpc", config=config) as made:
        yield made


def fill(cluster: Cluster, topic: str, count: int, value: bytes = b"") -> None:
    with cluster.producer() as producer:
        for number in range(count):
            kind = b"rare" if number in (100, count - 100) else b"often"
            if kind == b"rare":
                producer.flush()
            producer.send(topic, b"%d" % number + value, partition=0, headers=[("kind", kind)])
            if kind == b"rare":
                producer.flush()


def test_brokers_leave_out_what_nobody_wants(cluster: Cluster) -> None:
    topic = "indexed"
    cluster.create_topic(topic, config={"filter.header": "kind", "segment.bytes": str(1 << 20)})
    fill(cluster, topic, 4_500, b"x" * 1_000)
    at = TopicPartition(topic, 0)
    until = time.monotonic() + 60
    fetched = 1e9
    while fetched > 1.5e6:  # the last segment is sent in whole
        assert time.monotonic() < until, "the brokers leave out nothing"
        settings = {"group_id": f"group-{until - time.monotonic()}", "isolation_level": "read_committed"}
        with cluster.consumer(auto_offset_reset="earliest", header_filter=RARE, **settings) as consumer:
            consumer.subscribe([topic])
            found = []
            while not consumer.assignment() or consumer.position(at) < 4_500:
                assert time.monotonic() < until
                found += [record.offset for record in consumer.poll(0.1)]
            assert found == [100, 4_400]
            consumer.commit()
            committed = consumer.committed([at])[at]
            assert committed is not None
            assert committed.offset == 4_500
            fetched = consumer.metrics()["bytes-consumed-total"]
    with cluster.consumer(auto_offset_reset="earliest", header_filter=HeaderFilter("kind", ["nobody"])) as consumer:
        consumer.assign([at])
        while consumer.position(at) < 4_500:
            assert time.monotonic() < until
            assert consumer.poll(0.1) == []


def test_one_poll_looks_at_a_bounded_number_of_records_and_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "plain"
    cluster.create_topic(topic)
    fill(cluster, topic, 3_000)
    monkeypatch.setattr(core, "LOOKED_AT_MAX", 20)
    at = TopicPartition(topic, 0)
    with cluster.consumer(auto_offset_reset="earliest", header_filter=RARE, max_poll_records=1) as consumer:
        consumer.assign([at])
        assert [record.offset for record in consumer.poll(5.0)] == [100]
        position = consumer.position(at)
        assert consumer.poll(0.0) == []
        assert position < consumer.position(at) < 2_900
        assert [record.offset for record in consumer.poll(5.0)] == [2_900]
        with pytest.raises(IllegalStateError, match=r"use poll\(\) with header_filter"):
            consumer.poll_batches(1.0)
        with pytest.raises(IllegalStateError, match=r"use poll\(\) with header_filter"):
            consumer.poll_values(1.0)
