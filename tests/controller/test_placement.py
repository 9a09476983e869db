"""Placement. Cases: Kafka's ``StripedReplicaPlacerTest``; spread as a property."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.metadata_quorum.controller.placement import UsableBroker, place_replicas
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NodeId


def brokers(*live: int, fenced: tuple[int, ...] = (), racks: dict[int, str] | None = None) -> list[UsableBroker]:
    return [UsableBroker(NodeId(node), (racks or {}).get(node), node in fenced) for node in (*live, *fenced)]


def placed(found: list[UsableBroker], partitions: int, factor: int, seed: int = 1) -> list[tuple[NodeId, ...]]:
    result = place_replicas(found, partitions, factor, random.Random(seed))
    assert not isinstance(result, Refusal), result
    return result


@pytest.mark.parametrize(
    ("found", "factor", "text"),
    [
        (brokers(1, 2, 3), 4, "at most 3, the number of registered brokers (3 of them live) but for"),
        (brokers(1, fenced=(2,)), 3, "or cordoned, found 3"),
        (brokers(fenced=(1, 2)), 1, "expected a live broker, found none"),
        ([], 1, "expected a live broker, found none"),
        (brokers(1), 0, "expected a replication factor of 1 to 32767, found 0"),
    ],
)
def test_refused(found: list[UsableBroker], factor: int, text: str) -> None:
    result = place_replicas(found, 1, factor, random.Random(1))
    assert isinstance(result, Refusal)
    assert result.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert text in result.message


def test_fenced_brokers_are_taken_last_and_never_lead() -> None:
    found = brokers(1, 2, 3, fenced=(4, 5))
    for replicas in placed(found, 50, 3):
        assert set(replicas) == {1, 2, 3}
    for replicas in placed(found, 50, 5):
        assert replicas[0] in (1, 2, 3)
        assert set(replicas[3:]) == {4, 5}


def test_each_rack_gets_a_replica() -> None:
    racks = {node: "abc"[node % 3] for node in range(9)}
    for replicas in placed(brokers(*range(9), racks=racks), 90, 3):
        assert {racks[node] for node in replicas} == {"a", "b", "c"}


def test_a_small_rack_still_gets_its_share() -> None:
    """Racks come before even load (the class comment of ``StripedReplicaPlacer``)."""
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    for replicas in placed(brokers(1, 2, 3, 4, 5, racks=racks), 40, 3):
        assert 5 in replicas


def test_same_seed_same_placement() -> None:
    found = brokers(1, 2, 3, 4)
    assert placed(found, 20, 3, seed=5) == placed(found[::-1], 20, 3, seed=5)
    assert placed(found, 20, 3, seed=5) != placed(found, 20, 3, seed=6)


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 9), factor=st.integers(1, 9), partitions=st.integers(1, 120), seed=st.integers())
def test_replicas_and_leaders_are_spread_evenly(count: int, factor: int, partitions: int, seed: int) -> None:
    factor = min(factor, count)
    result = placed(brokers(*range(count)), partitions, factor, seed)
    assert len(result) == partitions
    assert all(len(set(replicas)) == factor for replicas in result)
    leaders = Counter(replicas[0] for replicas in result)
    held = Counter(node for replicas in result for node in replicas)
    # Within a stripe of `count` partitions everybody leads once and holds `factor`; only the last is cut short.
    assert max(leaders.values()) - min(leaders[NodeId(node)] for node in range(count)) <= 1
    assert max(held.values()) - min(held[NodeId(node)] for node in range(count)) <= factor


def test_leaders_that_take_over_are_spread() -> None:
    """When one broker of six fails, its partitions' second replicas stand on several others."""
    result = placed(brokers(*range(6)), 600, 3)
    heirs = Counter(replicas[1] for replicas in result if replicas[0] == 0)
    assert len(heirs) == 5
    assert max(heirs.values()) < 2 * sum(heirs.values()) / len(heirs)
