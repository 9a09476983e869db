"""Partitions of keys as Java has them, and the sticky choice."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_aiokafka
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.config.partitioner import KEYS_REMEMBERED_MAX, KeyPartitioner, choose_sticky
from tidelog.model.hashes.key_partition import murmur2, partition_for_key


@pytest.mark.parametrize(
    ("data", "signed"),
    # org.apache.kafka.common.utils.UtilsTest.testMurmur2
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_of_javas_own_tests(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFF_FFFF


@given(st.binary(max_size=200))
def test_murmur2_is_that_of_another_client(data: bytes) -> None:
    assert murmur2(data) == murmur2_of_aiokafka(data) & 0xFFFF_FFFF


@given(st.lists(st.binary(max_size=8), max_size=50), st.integers(1, 50))
def test_remembering_keys_changes_nothing(keys: list[bytes], count: int) -> None:
    partitioner = KeyPartitioner()
    for key in keys * 2:
        assert partitioner.partition(key, count) == partition_for_key(key, count)


def test_the_memory_of_keys_is_bounded() -> None:
    partitioner = KeyPartitioner()
    for i in range(KEYS_REMEMBERED_MAX + 10):
        partitioner.partition(b"%d" % i, 3)
    assert len(partitioner._hashes) <= KEYS_REMEMBERED_MAX


def test_a_shorter_queue_is_chosen_more_often() -> None:
    rng = random.Random(1)
    found = Counter(choose_sticky([4, 5, 6], [0, 3, 1], rng) for _ in range(6_000))
    # weights 4, 1, 3
    assert found[4] == pytest.approx(3_000, rel=0.1)
    assert found[5] == pytest.approx(750, rel=0.15)
    assert found[6] == pytest.approx(2_250, rel=0.1)


def test_without_queues_all_are_alike() -> None:
    rng = random.Random(1)
    for queued in (None, [2, 2, 2]):
        found = Counter(choose_sticky([0, 1, 2], queued, rng) for _ in range(3_000))
        assert min(found.values()) > 900
