"""The compiled shortest path of ``send`` does what the plain one does, or leaves it to that."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.config.partitioner import KeyPartitioner
from tidelog.client.delivery import Delivery, DeliveryFuture, Timestamps
from tidelog.client.errors import ClientClosedError
from tidelog.client.fast_path import COMPILED
from tidelog.client.producer.accumulator import TopicQueues
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.core import OpenTaking
from tidelog.model.hashes.key_partition import murmur2
from tidelog.proto.records.compression import Compression

pytestmark = pytest.mark.skipif(
    COMPILED is None and "TIDELOG_PURE_CODEC" not in os.environ, reason="the fast path is not compiled here"
)

PARTITIONS = 300
"""More than there are small numbers that are always there."""


class Desk:
    """One topic whose partitions each have an open batch, and a clock set by hand."""

    def __init__(self, *, sticky: bool = True) -> None:
        self.now_ns = 5_000_000
        self.lock = threading.Lock()
        self.topic = TopicQueues("orders", PARTITIONS)
        self.batches = [self._batch(partition) for partition in range(PARTITIONS)]
        self.topic.open = dict(enumerate(self.batches))
        self.topic.open_sticky = self.batches[0] if sticky else None
        self.taking = OpenTaking(self.lock, lambda: self.now_ns, KeyPartitioner())
        self.taking.plain_topics = self.taking.keyed_topics = {"orders": self.topic}

    @staticmethod
    def _batch(partition: int) -> ProducerBatch:
        compression = Compression.NONE
        return ProducerBatch("orders", partition, size_max=300, memory=300, created_ms=0, compression=compression)

    def state(self) -> list[object]:
        return [
            (one.partition, one.values, one.keys, one.count, one.room, one.tick_ns, one.keyed_tick_ns, one.timestamps)
            for one in self.batches
            if one.count
        ]


RECORDS = st.tuples(
    st.sampled_from(("orders", "orders", "orders", "others")),
    st.none() | st.binary(max_size=80) | st.just("text"),
    st.none() | st.binary(max_size=20) | st.integers(0, 1),
    st.sampled_from((0, 0, 0, 400_000, 1_000_000)),
)


@given(st.lists(RECORDS, max_size=60), st.booleans())
def test_it_does_what_the_plain_one_does(records: list[tuple[str, Any, Any, int]], sticky: bool) -> None:
    one, other = Desk(sticky=sticky), Desk(sticky=sticky)
    for topic, value, key, passed_ns in records:
        one.now_ns = other.now_ns = one.now_ns + passed_ns
        found = one.taking.take(topic, value, key)
        expected = other.taking.take_locked(topic, value, key)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert type(found) is DeliveryFuture
            assert found._index == expected._index
            assert found._delivery in [batch.delivery for batch in one.batches]
    assert one.state() == other.state()


@pytest.mark.skipif(COMPILED is None, reason="plain Python always takes the lock")
def test_it_leaves_a_batch_alone_that_another_thread_works_on() -> None:
    desk = Desk()
    assert desk.taking.take("orders", b"1", None)
    with desk.lock:
        before = desk.state()
        taken: list[object] = []
        other = threading.Thread(target=lambda: taken.append(desk.taking.take("orders", b"2", None)))
        other.start()
        other.join(0.05)
        assert desk.state() == before
    other.join(10)
    assert len(taken) == 1
    assert desk.batches[0].values == [b"1", b"2"]


@given(st.binary(max_size=70))
def test_keys_have_the_same_hash(key: bytes) -> None:
    assert COMPILED is None or COMPILED.murmur2(key) == murmur2(key)


def test_what_looks_like_bytes_is_left_to_the_slow_path() -> None:
    class Sub(bytes):
        pass

    desk = Desk()
    assert desk.taking.take("orders", b"1", b"k") is not None
    assert desk.taking.take("orders", Sub(b"2"), None) is None
    assert desk.taking.take("orders", b"3", Sub(b"k")) is None


def test_what_has_failed_is_freed_although_futures_are_unknown_to_the_collector() -> None:
    """An error refers to the frames that it passed, and these to the future."""

    class Witness:
        pass

    def fail() -> weakref.ref[Witness]:
        witness = Witness()
        delivery = Delivery("orders", Timestamps([0], [0]))
        delivery.expect(1)
        future = DeliveryFuture(delivery, 0)

        def called(metadata: object, error: object, held: Witness = witness) -> None:
            future.done()

        delivery.call_back(0, called)
        reason = ClientClosedError("closed")
        delivery.fail(0, 1, reason)
        with suppress(ClientClosedError):
            future.result()
        for error in (reason, future.exception(), delivery.first_error):
            with suppress(ClientClosedError):
                raise error or AssertionError
        return weakref.ref(witness)

    gone = fail()
    gc.collect()
    assert gone() is None
