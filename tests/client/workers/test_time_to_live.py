"""Expired records: left out by a consumer and by workers, or moved to the dead letters."""

from __future__ import annotations

import time

import pytest

from tidelog import Admin, ConfigResource, ConsumerRecord, TimeToLive, TopicPartition
from tidelog.proto.records.walk import RecordHeaders
from tidelog.testing import Cluster

from .test_workers import Running, cluster, letters, topic, workers

__all__ = ["cluster", "topic"]

NOW_MS = 1_000_000
RETRIED: RecordHeaders = tuple(
    (f"tidelog-retry-{name}", value)
    for name, value in {
        "topic": b"first", "partition": b"0", "offset": b"3", "timestamp": b"%d" % (NOW_MS - 100), "attempt": b"1",
        "first-failed-at": b"1",
    }.items()
)  # fmt: skip


class Standing:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return NOW_MS

    monotonic_ms = now_ms


def record(timestamp: int = NOW_MS - 10, headers: RecordHeaders = ()) -> ConsumerRecord:
    return ConsumerRecord(7, timestamp, None, b"v", headers, "t", 0, 1)


@pytest.mark.parametrize(
    ("ttl", "found", "wanted"),
    [
        (TimeToLive(), record(), True),
        (TimeToLive(), record(headers=(("tidelog-expires-at", b"%d" % NOW_MS),)), False),
        (TimeToLive(), record(headers=(("tidelog-expires-at", b"%d" % (NOW_MS + 1)),)), True),
        (TimeToLive(), record(headers=(("tidelog-expires-at", b"soon"), ("tidelog-expires-at", None))), True),
        (TimeToLive(11), record(), True),
        (TimeToLive(10), record(), False),
        (TimeToLive(10), record(timestamp=-1), True),
        (TimeToLive({"t": 10}), record(), False),
        (TimeToLive({"u": 10}), record(), True),
        (TimeToLive(50), record(headers=RETRIED), False),
        (TimeToLive({"first": 200, "t": 1}), record(headers=RETRIED), True),
    ],
)
def test_what_expires_when(ttl: TimeToLive, found: ConsumerRecord, wanted: bool) -> None:
    ttl._clock = Standing()
    assert ttl.on_consume([found]) == [found] * wanted
    assert ttl.skipped == (not wanted)


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 0 or more, found -1"):
        TimeToLive({"t": -1})


def fill(cluster: Cluster, topic: str) -> None:
    now_ms = int(time.time() * 1_000)
    with cluster.producer() as producer:
        for number in range(6):
            headers = [("tidelog-expires-at", b"1")] if number == 3 else []
            old_ms = 3_600_000 if number % 2 else 0
            producer.send(topic, b"%d" % number, partition=0, headers=headers, timestamp_ms=now_ms - old_ms)


def test_a_consumer_and_workers_leave_expired_ones_out(cluster: Cluster, topic: str) -> None:
    dead = f"dlq.{topic}"
    cluster.create_topic(dead)
    fill(cluster, topic)
    with Admin(cluster.bootstrap) as admin:
        resource = ConfigResource("topic", topic)
        admin.alter_configs({resource: {"message.ttl.ms": "600000"}})
        configs = admin.describe_configs([resource])
    ttl = TimeToLive.of(configs)
    read: list[bytes | None] = []
    with cluster.consumer(auto_offset_reset="earliest", interceptor_classes=[ttl]) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        until = time.monotonic() + 30.0
        while len(read) + ttl.skipped < 6:
            assert time.monotonic() < until
            read += [record.value for record in consumer.poll(0.2)]
    assert read == [b"0", b"2", b"4"]

    handled: list[bytes | None] = []
    running = Running(
        workers(
            cluster, topic, lambda record: handled.append(record.value), ordered_by="partition", dead_letters=dead,
            time_to_live=TimeToLive.of(configs, dead_letters=True),
        )
    )  # fmt: skip
    while running.of.counts.handled + running.of.counts.dead < 6:
        running.check()
    running.of.stop()
    counts = running.ended()
    assert handled == [b"0", b"2", b"4"]
    assert (counts.handled, counts.expired, counts.dead, counts.retried) == (3, 3, 3, 0)
    found = letters(cluster, dead)
    assert [letter.value for letter in found] == [b"1", b"3", b"5"]
    assert {dict(letter.headers)["tidelog-dlq-reason"] for letter in found} == {b"expired"}


def test_expired_ones_need_a_topic_if_they_are_to_be_kept(cluster: Cluster, topic: str) -> None:
    with pytest.raises(ValueError, match="expected dead_letters, a topic for expired records"):
        workers(cluster, topic, print, time_to_live=TimeToLive(1, dead_letters=True))
