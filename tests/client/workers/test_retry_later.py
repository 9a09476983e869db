"""Retries through a delay topic: a record that fails comes again later, and holds up nobody meanwhile."""

from __future__ import annotations

import threading

import pytest

from tests.delay_topics import create_delay_topic
from tidelog import ConsumerRecord, RetryPolicy
from tidelog.client.errors import ConfigError
from tidelog.testing import Cluster

from .test_workers import Running, cluster, letters, topic, workers

__all__ = ["cluster", "topic"]


def test_what_fails_comes_again_later_and_ends_as_a_dead_letter_of_its_first_place(
    cluster: Cluster, topic: str
) -> None:
    later, back, dead = f"later.{topic}", f"retry.{topic}", f"dlq.{topic}"
    create_delay_topic(cluster, later, dead, delay_targets=back)
    orders = [(name, b"0") for name in ("tidelog-deliver-at", "tidelog-cancel", "tidelog-delay-again", "own")]
    with cluster.producer() as producer:
        for number in range(6):
            producer.send(topic, b"%d" % number, b"0", headers=orders if number == 2 else ())
    with cluster.producer(transactional_id=topic) as moving:
        moving.init_transactions()
        moving.begin_transaction()
        moving.send(back, b"6").result(30)
        moving.abort_transaction()  # as if the delay topic's leader had died in a move
    handled: list[tuple[str, int]] = []
    mended, over = threading.Event(), threading.Event()

    def handler(record: ConsumerRecord) -> None:
        number = int(record.value or b"")
        handled.append((record.topic, number))
        if number == 1 and record.topic == topic:
            raise OSError("not now")
        if number == 2:
            assert ("own", b"0") in record.headers
            if sum(found == 2 for _, found in handled) == 3:
                over.set()
            raise OSError("never")
        if number == 1:
            mended.set()

    policy = RetryPolicy(attempts=3, backoff_ms=200, through=later, back=back)
    running = Running(workers(cluster, topic, handler, retry=policy, dead_letters=dead))
    while not (mended.is_set() and over.is_set() and running.of.counts.dead):
        running.check()
    running.of.stop()
    counts = running.ended()
    assert [number for at, number in handled if at == topic] == [0, 1, 2, 3, 4, 5], "nobody waited"
    assert (back, 6) not in handled, "it was aborted"
    assert (counts.handled, counts.retried, counts.dead) == (5, 3, 1)
    [letter] = letters(cluster, dead)
    told = {name: (value or b"").decode() for name, value in letter.headers}
    assert (told["__dlq.errors.topic"], told["__dlq.errors.delivery.count"]) == (topic, "3")
    assert not [name for name in told if name.startswith(("tidelog-retry-", "tidelog-delay-"))]


def test_half_a_way_is_none() -> None:
    with pytest.raises(ValueError, match="expected both topics or neither"):
        RetryPolicy(through="later")


def test_copies_of_moves_that_failed_are_not_to_be_read(cluster: Cluster, topic: str) -> None:
    policy = RetryPolicy(through="later", back="again")
    with pytest.raises(ConfigError, match="isolation_level: expected 'read_committed' with RetryPolicy"):
        workers(cluster, topic, print, retry=policy, consumer_settings={"isolation.level": "read_uncommitted"})
