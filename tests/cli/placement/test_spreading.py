"""The planner of replicas: racks hold, and no plan moves more than a search through all of them would."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidelog.bench.coordination.rebalance import MANY_PARTITIONS, PARTITIONS, TOLERANCE, uneven_cluster
from tidelog.cli.work.replicas.spreading import (
    REPLICA_WEIGHT,
    Assignment,
    NoRoom,
    Part,
    Target,
    cost_of,
    drained,
    rebalanced,
    resized,
    spread_topics,
)
from tidelog.model.ids import TopicPartition

Parts = dict[TopicPartition, Part]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Parts, list[Target]]:
    nodes = draw(st.integers(2, 7))
    racks = draw(st.integers(0, 3))
    machines = draw(st.sampled_from([0, 2, 3, 4]))
    targets = [
        Target(node, f"r{node % machines % racks if machines else node % racks}" if racks else None,
               f"m{node % machines}" if machines else None)
        for node in range(nodes)
    ]  # fmt: skip
    factor = draw(st.integers(1, min(3, nodes)))
    parts = {
        TopicPartition(f"t{number % 2}", number // 2): Part(
            tuple(draw(st.permutations(range(nodes)))[:factor]),
            draw(st.integers(0, 1 << 30)),
            draw(st.integers(0, 1 << 20)),
        )
        for number in range(draw(st.integers(1, 12)))
    }
    return parts, targets


def crowding(replicas: tuple[int, ...], racks: Mapping[int, str | None]) -> int:
    return sum(count * count for count in Counter(racks[node] for node in replicas).values())


def after(parts: Parts, changes: Assignment) -> Assignment:
    return {at: changes.get(at, part.replicas) for at, part in parts.items()}


@given(clusters(), st.sampled_from([0.0, 0.1, 0.5]))
def test_a_plan_keeps_factors_and_breaks_no_rack(found: tuple[Parts, list[Target]], tolerance: float) -> None:
    parts, targets = found
    racks = {target.node: target.rack for target in targets}
    for plan in (after(parts, rebalanced(parts, targets, tolerance)), after(parts, spread_topics(parts, targets))):
        for at, replicas in plan.items():
            assert len(set(replicas)) == len(replicas) == len(parts[at].replicas)
            assert crowding(replicas, racks) <= crowding(parts[at].replicas, racks)


EVEN_BUT_CROWDED = (
    {TopicPartition("t0", 0): Part((0, 2), 1), TopicPartition("t0", 1): Part((1, 3), 1)},
    [Target(node, None, f"m{node % 2}") for node in range(4)],
)
EMPTY_BUT_TAKEN = (
    {TopicPartition("t0", 0): Part((0, 1), 0), TopicPartition("t1", 0): Part((0, 1), 0)},
    [Target(node, None, f"m{node % 2}") for node in range(3)],
)
"""Broker 2 has no replica, but its machine has one of each partition."""


@example(EVEN_BUT_CROWDED, 0.5)
@example(EMPTY_BUT_TAKEN, 0.0)
@given(clusters(), st.sampled_from([0.0, 0.1, 0.5]))
def test_a_plan_crowds_no_machine_that_it_can_spare(found: tuple[Parts, list[Target]], tolerance: float) -> None:
    """Neither more than before, nor while a machine of the same rack has room."""
    parts, targets = found
    machines = {target.node: target.machine or str(target.node) for target in targets}
    racks = {target.node: target.rack for target in targets}
    for at, replicas in after(parts, rebalanced(parts, targets, tolerance)).items():
        assert crowding(replicas, machines) <= crowding(parts[at].replicas, machines)
        used = Counter(machines[node] for node in replicas)
        for node in replicas:
            for other in machines.keys() - set(replicas):
                better = used[machines[other]] + 1 < used[machines[node]]
                assert not (better and racks[other] == racks[node]), (replicas, node, other)


def test_what_leaves_or_comes_goes_to_another_machine_of_the_rack() -> None:
    targets = [Target(node, "a", f"m{node % 1000}") for node in (1, 1001, 2, 1002, 3, 1003)]
    at = TopicPartition("t", 0)
    parts = {at: Part((1, 2), 1), TopicPartition("u", 0): Part((3, 1003), 1 << 40)}
    assert {node % 1000 for node in drained(parts, targets, [2])[at]} == {1, 2}, "the other worker of machine 2"
    assert {node % 1000 for node in resized(parts, targets, "t", 3)[at]} == {1, 2, 3}, "though machine 3 is full"
    crowded = {at: Part((1, 1001, 2, 1002), 1)}
    assert {node % 1000 for node in resized(crowded, targets, "t", 2)[at]} == {1, 2}


def test_racks_come_before_bytes() -> None:
    """Rack a has broker 1 alone, so it keeps a replica of each partition, or gets one, though others have fewer."""
    targets = [Target(1, "a"), Target(2, "b"), Target(3, "b")]
    apart = {TopicPartition("t", number): Part((1, 2), 1 << 20) for number in range(8)}
    crowded = {TopicPartition("crowded", 0): Part((2, 3), 1)}
    plan = after(apart | crowded, rebalanced(apart | crowded, targets, 0.1))
    assert all(1 in replicas for replicas in plan.values())
    assert {2, 3} <= {node for replicas in plan.values() for node in replicas}, "bytes are evened out where they may"


def test_nothing_moves_within_the_tolerance() -> None:
    parts = {TopicPartition("t", number): Part((0 if number < 22 else 1,), 1 << 30) for number in range(42)}
    targets = [Target(0, None), Target(1, None)]
    assert rebalanced(parts, targets, 0.1) == {}
    assert len(rebalanced(parts, targets, 0.01)) == 1


@given(clusters(), st.data())
def test_a_drain_moves_what_is_there_and_nothing_else(found: tuple[Parts, list[Target]], data: st.DataObject) -> None:
    parts, targets = found
    gone = data.draw(st.sampled_from([target.node for target in targets]))
    racks = {target.node: target.rack for target in targets}
    factor = len(next(iter(parts.values())).replicas)
    if factor > len(targets) - 1:
        if any(gone in part.replicas for part in parts.values()):
            with pytest.raises(NoRoom, match="expected at most as many replicas as eligible brokers"):
                drained(parts, targets, [gone])
        return
    changes = drained(parts, targets, [gone])
    assert changes.keys() == {at for at, part in parts.items() if gone in part.replicas}
    for at, replicas in changes.items():
        stay = set(parts[at].replicas) - {gone}
        assert stay < set(replicas)
        ways = [(*stay, node) for node in racks if node != gone and node not in stay]
        assert crowding(replicas, racks) == min(crowding(way, racks) for way in ways)


@given(clusters(), st.integers(1, 4))
def test_another_factor_keeps_what_may_stay(found: tuple[Parts, list[Target]], factor: int) -> None:
    parts, targets = found
    racks = {target.node: target.rack for target in targets}
    if factor > len(targets):
        with pytest.raises(NoRoom, match=f"found {factor}"):
            resized(parts, targets, "t0", factor)
        return
    changes = resized(parts, targets, "t0", factor)
    assert {at.topic for at in changes} <= {"t0"}
    for at, replicas in after(parts, changes).items():
        old = parts[at].replicas
        if at.topic != "t0" or len(old) == factor:
            assert replicas == old
            continue
        assert len(set(replicas)) == len(replicas) == factor
        if factor > len(old):
            assert set(old) < set(replicas)
        else:
            assert old[0] in replicas
            assert set(replicas) < set(old)
        if factor == len(old) + 1:
            ways = [(*old, node) for node in racks if node not in old]
            assert crowding(replicas, racks) == min(crowding(way, racks) for way in ways)


def test_what_is_down_or_crowds_a_rack_goes_first() -> None:
    parts = {TopicPartition("t", 0): Part((1, 2, 3, 4), 1), TopicPartition("u", 0): Part((5,), 1 << 40)}
    targets = [Target(1, "a"), Target(2, "a"), Target(3, "b"), Target(5, "b")]
    assert set(resized(parts, targets, "t", 3)[TopicPartition("t", 0)]) == {1, 2, 3}
    assert set(resized(parts, targets, "t", 2)[TopicPartition("t", 0)]) == {1, 3}
    assert set(resized(parts, targets[1:], "t", 2)[TopicPartition("t", 0)]) == {2, 3}, "brokers 1 and 4 are down"


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 4), st.data())
def test_as_few_moves_as_the_best_of_all_plans(nodes: int, data: st.DataObject) -> None:
    """Equal sizes, two replicas, no racks: the best plan is found by trying all."""
    count = data.draw(st.integers(2, 4))
    choices = list(itertools.combinations(range(nodes), 2))
    parts = {TopicPartition("t", number): Part(data.draw(st.sampled_from(choices)), 1) for number in range(count)}
    targets = [Target(node, None) for node in range(nodes)]
    plan = spread_topics(parts, targets)

    def imbalance(replicas: tuple[tuple[int, ...], ...]) -> int:
        held = Counter(dict.fromkeys(range(nodes), 0))
        held.update(node for has in replicas for node in has)
        return max(held.values()) - min(held.values())

    every = itertools.product(choices, repeat=count)
    best = min(
        (imbalance(one), sum(len(set(new) - set(part.replicas)) for new, part in zip(one, parts.values(), strict=True)))
        for one in every
    )
    moved = cost_of(parts, {at: plan[at] for at in parts}).replicas
    assert (imbalance(tuple(plan[at] for at in parts)), moved) == best


def test_an_empty_broker_gets_its_share_for_little_more_than_the_least_bytes() -> None:
    parts = {
        TopicPartition("t", number): Part(tuple((number + step) % 5 for step in range(3)), (number % 7 + 1) << 24)
        for number in range(600)
    }
    targets = [Target(node, f"r{node % 3}") for node in range(6)]
    changes = rebalanced(parts, targets, 0.1)
    load: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    for at, replicas in after(parts, changes).items():
        leads[replicas[0]] += 1
        for node in replicas:
            load[node] += parts[at].size
    average = sum(load.values()) / 6
    assert all(0.89 * average <= load[node] <= 1.11 * average for node in range(6))
    assert max(leads.values()) - min(leads.values()) <= 1
    assert cost_of(parts, changes).size <= 1.2 * math.ceil(average)


def least_moved(parts: Mapping[TopicPartition, Part], targets: list[Target], tolerance: float) -> int:
    """The weight that any plan must move in that cluster, where each partition keeps one replica in each rack: by rack,
    what full brokers have too much, or empty ones too little."""
    load = dict.fromkeys(targets, 0)
    by_node = {target.node: target for target in targets}
    for part in parts.values():
        for node in part.replicas:
            load[by_node[node]] += part.size + REPLICA_WEIGHT
    average = sum(load.values()) / len(load)
    too_much: Counter[str | None] = Counter()
    too_little: Counter[str | None] = Counter()
    for target, held in load.items():
        too_much[target.rack] += max(0, math.floor(held - average * (1 + tolerance)))
        too_little[target.rack] += max(0, math.floor(average * (1 - tolerance) - held))
    return sum(max(too_much[rack], too_little[rack]) for rack in too_much.keys() | too_little.keys())


@pytest.mark.parametrize(
    ("seed", "empty", "partitions"),
    [(1, 0, PARTITIONS), (3, 0, PARTITIONS), (5, 1, PARTITIONS), (7, 3, PARTITIONS), (7, 3, MANY_PARTITIONS)],
)
def test_a_large_cluster_is_evened_out_for_little_more_than_any_plan_must_move(
    seed: int, empty: int, partitions: int
) -> None:
    parts, targets = uneven_cluster(seed, empty, partitions)
    changes = rebalanced(parts, targets, TOLERANCE)
    load: Counter[int] = Counter()
    for at, replicas in after(parts, changes).items():
        assert len({targets[node].rack for node in replicas}) == 3
        for node in replicas:
            load[node] += parts[at].size + REPLICA_WEIGHT
    average = sum(load.values()) / len(targets)
    assert all(0.9 * average - 1 <= load[target.node] <= 1.1 * average + 1 for target in targets)
    cost = cost_of(parts, changes)
    assert cost.size + cost.replicas * REPLICA_WEIGHT <= 1.2 * least_moved(parts, targets, TOLERANCE)


@pytest.mark.parametrize("seed", [0, 2, 3, 7])
def test_what_is_written_is_evened_out_and_so_are_leaders(seed: int) -> None:
    parts, targets = uneven_cluster(seed)
    rates: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    plan = after(parts, rebalanced(parts, targets, TOLERANCE))
    for at, replicas in plan.items():
        rates[replicas[0]] += parts[at].rate
        leads[replicas[0]] += 1
    average = sum(rates.values()) / len(targets)
    assert all(0.9 * average - 1 <= rates[target.node] <= 1.1 * average + 1 for target in targets)
    assert max(leads.values()) - min(leads.values()) <= 1
    silent = {at: part._replace(rate=0) for at, part in parts.items()}
    moved = after(parts, rebalanced(silent, targets, TOLERANCE))
    assert {at: set(nodes) for at, nodes in moved.items()} == {at: set(nodes) for at, nodes in plan.items()}, (
        "traffic alone moves no bytes"
    )


def test_a_busy_partition_leaves_its_leader_fewer_others() -> None:
    """Both orders of replicas are there, so that leaders can go either way; one is written as much as all others."""
    parts = {
        TopicPartition("t", number): Part(((number % 2), (number + 1) % 2), 0, 100 if number else 1_900)
        for number in range(20)
    }
    plan = after(parts, rebalanced(parts, [Target(0, None), Target(1, None)], 0.2))
    busy = plan[TopicPartition("t", 0)][0]
    assert sum(replicas[0] == busy for replicas in plan.values()) == 8, "20 % fewer than half of them, and no fewer"


@given(clusters(), st.data())
def test_fixed_partitions_count_and_stay(found: tuple[Parts, list[Target]], data: st.DataObject) -> None:
    parts, targets = found
    fixed = data.draw(st.sets(st.sampled_from(sorted(parts))))
    assert not fixed & rebalanced(parts, targets, 0.0, fixed).keys()


def test_what_stays_counts() -> None:
    """Broker 0 has one large partition, which must stay; so the small ones go."""
    large = TopicPartition("large", 0)
    parts = {large: Part((0,), 100 << 30)} | {TopicPartition("t", number): Part((0,), 1 << 30) for number in range(4)}
    changes = rebalanced(parts, [Target(0, None), Target(1, None)], 0.1, {large})
    assert changes == dict.fromkeys(parts.keys() - {large}, (1,))
