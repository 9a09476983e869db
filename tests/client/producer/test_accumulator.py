"""The accumulator against a plain model: every record once, in order, and memory that adds up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.config.producer import ProducerConfig
from tidelog.client.delivery import Delivery, Timestamps
from tidelog.client.producer.accumulator import Accumulator
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.partition_queue import Outcome
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.decoder import decode_records


class OneNode:
    """Partitions 0 to 2 have leaders 0, 1, 0; partition 3 has none."""

    def leader_of(self, topic: str, partition: int) -> int:
        return (0, 1, 0, -1)[partition]


def accumulator(**more: object) -> Accumulator:
    return Accumulator(ProducerConfig.of({"batch_size": 300, "buffer_memory": 2_000, **more}), random.Random(1))


Record = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...] | None, int]
RECORDS = st.tuples(
    st.integers(0, 2),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=150),
    st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
    st.integers(0, 3),
)
STEPS = st.lists(
    st.one_of(RECORDS, st.tuples(st.just("bulk"), st.integers(0, 2), st.integers(1, 9)), st.integers(0, 1)), max_size=60
)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_records_leave_once_and_in_order_and_memory_adds_up(steps: list[object]) -> None:
    acc = accumulator()
    topic = acc.topic("t", 3)
    expected: dict[int, list[object]] = {0: [], 1: [], 2: []}
    got: dict[int, list[object]] = {0: [], 1: [], 2: []}
    now = 0
    bulks = 0

    def drain(node: int) -> None:
        for batch in acc.drain(node, OneNode(), now, 1_000, (5, 0)):
            assert batch.sealed
            for r in decode_records(Batch(memoryview(batch.encode()))):
                got[batch.partition].append((r.key, r.value, r.headers, r.timestamp))
            assert acc.answer(batch, batch.attempt, Outcome.SUCCESS, now) is Outcome.SUCCESS
            acc.release(batch)

    for step in steps:
        now += 1
        if isinstance(step, int):
            drain(step)
        elif isinstance(step, tuple) and step[0] == "bulk":
            _, partition, count = step
            delivery = Delivery("t", Timestamps([0], [now]))
            delivery.expect(count)
            values: list[bytes | None] = [b"bulk%d-%d" % (bulks, i) for i in range(count)]
            bulks += 1
            if acc.append_bulk(topic, partition, delivery, 0, None, values, 40 * count, now, now):
                expected[partition] += [(None, value, (), now) for value in values]
        else:
            assert isinstance(step, tuple)
            partition, key, value, headers, timestamp = step
            batch = acc.append(topic, partition, key, value, headers, timestamp, now)
            if batch is not None:
                assert batch.count >= 1
                expected[partition].append((key, value, headers or (), timestamp))
        assert 0 <= acc.memory_free <= 2_000
    for _ in range(200):
        drain(0)
        drain(1)
    assert got == expected
    assert acc.memory_free == 2_000
    assert acc.batches == 0
    assert not list(acc.queues())


def fill(acc: Accumulator, partition: int, value: bytes = b"x", now: int = 0) -> ProducerBatch:
    found = acc.append(acc.topic("t", 4), partition, None, value, None, 0, now)
    assert found is not None
    return found


def test_an_open_batch_lingers_and_a_full_one_does_not() -> None:
    acc = accumulator(linger_ms=5)
    fill(acc, 0, now=100)
    ready = acc.ready(OneNode(), 103, exhausted=False)
    assert (ready.nodes, ready.look_again_ms) == ({}, 105)
    assert list(acc.ready(OneNode(), 105, exhausted=False).nodes) == [0]
    for _ in range(5):
        full = fill(acc, 1, b"x" * 50, now=105)
    assert full.full
    assert list(acc.ready(OneNode(), 106, exhausted=False).nodes) == [0, 1]


def test_a_full_batch_that_cannot_be_sent_grows_to_its_limit() -> None:
    acc = accumulator(linger_ms=0, batch_size_max=900)
    first = fill(acc, 0, b"x" * 100)
    while fill(acc, 0, b"x" * 100) is first:
        assert first.memory <= 900
    assert first.sealed
    assert 600 < first.memory <= 900
    assert first.count >= 6
    assert acc.memory_free == 2_000 - first.memory - 300


def test_a_batch_keeps_to_batch_size_where_that_is_the_limit() -> None:
    acc = accumulator(linger_ms=0, batch_size_max=300)
    batches = {id(b): b for b in (fill(acc, 0, b"x" * 100) for _ in range(9))}
    assert len(batches) == 5
    assert all(b.memory - b.room <= 300 for b in batches.values())


def test_nothing_lingers_while_flushing_closing_or_when_memory_is_wanted() -> None:
    acc = accumulator(linger_ms=1_000)
    fill(acc, 0)
    assert not acc.ready(OneNode(), 1, exhausted=False).nodes
    assert acc.ready(OneNode(), 1, exhausted=True).nodes
    acc.flushing = 1
    assert acc.ready(OneNode(), 1, exhausted=False).nodes
    acc.flushing = 0
    acc.closed = True
    assert acc.ready(OneNode(), 1, exhausted=False).nodes


def test_what_lingers_goes_along_when_its_node_is_sent_to_anyway() -> None:
    acc = accumulator(linger_ms=1_000)
    fill(acc, 0)
    fill(acc, 2)
    assert {b.partition for b in acc.drain(0, OneNode(), 1, 10_000, None)} == {0, 2}


def test_a_partition_without_a_leader_is_named() -> None:
    acc = accumulator(linger_ms=0)
    fill(acc, 3)
    ready = acc.ready(OneNode(), 1, exhausted=False)
    assert (ready.nodes, ready.without_leader) == ({}, {"t"})


def test_a_request_holds_one_batch_of_a_partition_and_every_partition_has_its_turn() -> None:
    acc = accumulator(linger_ms=0, buffer_memory=100_000)
    for _ in range(20):
        fill(acc, 0, b"x" * 200)
    fill(acc, 2, b"x" * 200)
    first = acc.drain(0, OneNode(), 1, 300, (5, 0))
    second = acc.drain(0, OneNode(), 1, 300, (5, 0))
    assert [b.partition for b in (*first, *second)] == [0, 2]


def test_a_batch_waits_out_its_backoff() -> None:
    acc = accumulator(linger_ms=0)
    fill(acc, 0)
    (batch,) = acc.drain(0, OneNode(), 10, 1_000, (5, 0))
    assert acc.answer(batch, 1, Outcome.RETRY, 60) is Outcome.RETRY
    ready = acc.ready(OneNode(), 11, exhausted=False)
    assert (ready.nodes, ready.look_again_ms) == ({}, 60)
    assert acc.drain(0, OneNode(), 59, 1_000, (5, 0)) == []
    assert acc.drain(0, OneNode(), 60, 1_000, (5, 0)) == [batch]


def test_without_idempotence_too_nothing_overtakes_a_batch_that_is_sent_again() -> None:
    acc = accumulator(linger_ms=0, enable_idempotence=False, batch_size=1)
    for i in range(4):
        fill(acc, 0, b"%d" % i)
    a, b = (acc.drain(0, OneNode(), 1, 1_000, None)[0] for _ in range(2))
    acc.answer(a, 1, Outcome.RETRY, 1)
    assert acc.drain(0, OneNode(), 2, 1_000, None) == [], "b is still under way"
    acc.answer(b, 1, Outcome.RETRY, 1)
    assert [acc.drain(0, OneNode(), 2, 1_000, None)[0] for _ in range(2)] == [a, b]


def test_expired_batches_fail_whether_sent_or_not() -> None:
    acc = accumulator(linger_ms=0)
    fill(acc, 0, now=0)
    (sent,) = acc.drain(0, OneNode(), 0, 1_000, (5, 0))
    waiting = fill(acc, 1, now=0)
    young = fill(acc, 2, now=50)
    gone, in_flight = acc.expire(10)
    assert (gone, in_flight) == ([waiting], [sent])
    sent.finished = True
    assert waiting.sealed
    assert not young.sealed
    assert acc.answer(sent, 1, Outcome.RETRY, 0) is Outcome.FATAL
    acc.release(sent)
    assert acc.give_up() == [young]
    assert acc.memory_free == 2_000
    assert acc.batches == 0


@pytest.mark.parametrize("wrap", [0x7FFF_FFFF, 0x7FFF_FFFD])
def test_sequences_start_again_after_the_highest(wrap: int) -> None:
    acc = accumulator(linger_ms=0, batch_size=1)
    queue = acc.queue(acc.topic("t", 4), 0)
    queue.producer, queue.next_sequence = (5, 0), wrap
    found = []
    for _ in range(4):
        fill(acc, 0)
        (batch,) = acc.drain(0, OneNode(), 1, 1_000, (5, 0))
        found.append(batch.sequence)
        assert Batch(memoryview(batch.encode())).base_sequence == batch.sequence
        acc.answer(batch, 1, Outcome.SUCCESS, 0)
    assert found == [(wrap + i) & 0x7FFF_FFFF for i in range(4)]
