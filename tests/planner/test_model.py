"""The planner's model: the arithmetic of a known example, and what must hold for every demand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.cli.work.planner.answer import growth
from tidelog.cli.work.planner.demand import LIMITS, Demand, DemandWrong, Machine, check, peak_of
from tidelog.cli.work.planner.model import (
    away_of,
    fits,
    kept_bytes,
    partitions_of,
    plan,
    rates,
    segment_bytes,
    uses,
    what_if,
)
from tidelog.cli.work.planner.shipped import SHIPPED

BILLION = Demand(records_a_day=1e9, record_bytes=1_000, copies=2, readers=3)

DEMANDS = st.builds(
    Demand,
    records_a_day=st.floats(1e3, 1e11),
    record_bytes=st.floats(1, 1e5),
    peak_factor=st.floats(1, 50),
    compression_ratio=st.floats(1, 10),  # ten times as much is still within its bound
    batch_records=st.floats(1, 1e4),
    copies=st.integers(1, 5),
    readers=st.integers(2, 10),
    cold_readers=st.integers(0, 2),
    consumers=st.integers(1, 100),
    retention_hours=st.floats(0.5, 5_000),
    cached_minutes=st.floats(0, 60),
    connections=st.integers(0, 100_000),
    partitions=st.one_of(st.just(0), st.integers(1, 10_000)),
    tls_clients=st.booleans(),
    tls_nodes=st.booleans(),
)
MORE = (
    "records_a_day", "record_bytes", "peak_factor", "readers", "cold_readers", "consumers", "retention_hours",
    "cached_minutes", "connections", "copies", "tls_clients", "tls_nodes", "partitions",
)  # fmt: skip
LESS = ("compression_ratio", "batch_records")
QUICK = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def grown(demand: Any, name: str, factor: float) -> Any:
    value = getattr(demand, name)
    more = value * factor
    if isinstance(value, bool):
        more = True
    elif name == "partitions" and value == 0:
        more = 0  # as many as are needed
    elif isinstance(value, int):
        more = value + max(1, round(value * (factor - 1)))
    changed: dict[str, Any] = {name: more}
    return replace(demand, **changed)


@QUICK
@given(DEMANDS, st.sampled_from(MORE + LESS), st.floats(1.01, 10), st.integers(5, 200))
def test_more_of_anything_never_costs_less_on_the_same_nodes(
    demand: Demand, name: str, factor: float, nodes: int
) -> None:
    demand = replace(demand, readers=demand.readers + 2)  # as many as are cold, after one more
    other = grown(demand, name, factor)
    small, large = (other, demand) if name in LESS else (demand, other)
    before, after = (uses(one, Machine(), SHIPPED, nodes, 1) for one in (small, large))
    for resource, use in before.items():
        assert use.share <= after[resource].share * (1 + 1e-9) + 1e-12, resource


@QUICK
@given(DEMANDS, st.sampled_from(MORE + LESS), st.floats(1.01, 10))
def test_more_of_anything_never_needs_fewer_nodes(demand: Demand, name: str, factor: float) -> None:
    demand = replace(demand, readers=demand.readers + 2)
    other = grown(demand, name, factor)
    small, large = (other, demand) if name in LESS else (demand, other)
    try:
        enough = plan(large, Machine(), SHIPPED).nodes
    except DemandWrong:
        return  # beyond what any number of nodes bears
    assert plan(small, Machine(), SHIPPED).nodes <= enough


@QUICK
@given(DEMANDS, st.floats(0, 3), st.floats(0.01, 3))
def test_faster_growth_never_gives_more_days(demand: Demand, growth_a_year: float, more: float) -> None:
    try:
        slow, fast = (
            plan(replace(demand, growth_a_year=rate), Machine(), SHIPPED).days_until
            for rate in (growth_a_year, growth_a_year + more)
        )
    except DemandWrong:
        return
    for name, days in slow.items():
        soon = fast[name]
        assert days is None or (soon is not None and soon <= days + 1), name


@QUICK
@given(
    DEMANDS, st.sampled_from(("memory_bytes", "disk_bytes", "disk_mb_s", "network_mb_s", "away")), st.floats(1.01, 10)
)
def test_larger_machines_never_need_more_nodes_and_a_failure_more_never_fewer(
    demand: Demand, name: str, factor: float
) -> None:
    small, large = Machine(), grown(Machine(), name, factor)
    if name == "away":
        small, large = large, small
    try:
        nodes = plan(demand, small, SHIPPED).nodes
    except DemandWrong:
        return
    assert plan(demand, large, SHIPPED).nodes <= nodes


@QUICK
@given(DEMANDS)
def test_a_plan_bears_its_demand_with_nodes_away_and_one_node_fewer_does_not(demand: Demand) -> None:
    try:
        found = plan(demand, Machine(), SHIPPED)
    except DemandWrong:
        return
    assert all(use.share <= LIMITS[name] for name, use in found.then.items())
    assert all(found.now[name].share <= use.share * (1 + 1e-9) for name, use in found.then.items())
    if demand.copies < found.nodes < 1_000:
        assert not fits(demand, Machine(), SHIPPED, found.nodes - 1)


@QUICK
@given(DEMANDS, st.integers(4, 100))
def test_bytes_go_somewhere(demand: Demand, nodes: int) -> None:
    """What is written on all nodes is what producers send times the copies; it all arrives over the network."""
    found, load = uses(demand, Machine(), SHIPPED, nodes, 0), rates(demand, SHIPPED)
    assert found["disk writes"].amount * nodes == pytest.approx(load.peak_mb_s * demand.copies)
    assert found["network in"].amount == found["disk writes"].amount
    assert found["network out"].amount * nodes == pytest.approx(load.peak_mb_s * (demand.copies - 1 + demand.readers))
    partitions = partitions_of(demand, SHIPPED, nodes)
    extra = partitions * segment_bytes(demand, SHIPPED, partitions)
    assert found["disk"].amount * nodes == pytest.approx((kept_bytes(demand, SHIPPED) + extra) * demand.copies)


def test_a_billion_records_a_day() -> None:
    """80 % of 10^9 records in 16 hours, 80 % of these in 3: some 60,000 a second. Two copies of seven days: 14 TB."""
    load = rates(BILLION, SHIPPED)
    assert load.records_a_second == pytest.approx(0.64e9 / (3 * 3600))
    assert 59_000 < load.records_a_second < 60_000
    assert load.peak_mb_s == pytest.approx(59.3, rel=0.02), "MB/s; a gigabit port carries 125, not 1,000"
    assert kept_bytes(BILLION, SHIPPED) * 2 == pytest.approx(14e12, rel=0.02)

    # Three copies, three groups: on six nodes 30 MB/s in and 50 out on each; on three, 60 and 100.
    demand = replace(BILLION, copies=3)
    six, three = (uses(demand, Machine(), SHIPPED, nodes, 0) for nodes in (6, 3))
    assert six["network in"].amount == pytest.approx(30, rel=0.02)
    assert six["network out"].amount == pytest.approx(50, rel=0.02)
    assert three["network out"].amount == pytest.approx(100, rel=0.02)
    assert three["network out"].share > LIMITS["network out"], "three nodes with gigabit ports do not bear it"

    found = plan(BILLION, Machine(), SHIPPED)
    assert (found.binds, found.nodes) == ("disk", 10)
    assert found.partitions % found.nodes == 0
    assert found.then["processor"].share < 0.25


def test_growth_says_when_each_bound_is_reached() -> None:
    found = plan(replace(BILLION, growth_a_year=1.0), Machine(), SHIPPED)
    days = found.days_until
    first = min((value, name) for name, value in days.items() if value is not None)
    assert first[1] in (found.binds, "memory")
    grown_by = 2 ** (first[0] / 365)
    then = uses(replace(BILLION, records_a_day=1e9 * grown_by), Machine(), SHIPPED, found.nodes, found.away)
    assert then[first[1]].share == pytest.approx(LIMITS[first[1]], rel=0.01)
    assert all(value is None for value in plan(BILLION, Machine(), SHIPPED).days_until.values())
    months = growth(found, SHIPPED)
    for name, reached in days.items():
        over = next((month for month, shares in enumerate(months) if shares[name] > 1), len(months))
        assert reached is None or over == min(int(reached * 12 / 365) + 1, len(months)), name


def test_one_rack_away_takes_more_than_one_node_away() -> None:
    by_node, by_rack = (plan(BILLION, Machine(racks=racks), SHIPPED) for racks in (0, 3))
    assert by_rack.nodes > by_node.nodes
    assert by_rack.away == away_of(by_rack.machine, by_rack.nodes) == -(-by_rack.nodes // 3)
    packed = plan(BILLION, Machine(nodes_per_machine=2), SHIPPED)
    assert (packed.nodes % 2, packed.away, packed.machines) == (0, 2, packed.nodes // 2)


def test_tls_costs_processor_time_only() -> None:
    plain = uses(BILLION, Machine(), SHIPPED, 6, 0)
    for tls in ({"tls_clients": True}, {"tls_nodes": True}):
        found = uses(replace(BILLION, **tls), Machine(), SHIPPED, 6, 0)
        assert found["processor"].share > plain["processor"].share
        assert found["network out"] == plain["network out"]


def test_what_if_tells_what_matters() -> None:
    found = what_if(BILLION, Machine(), SHIPPED)
    nodes = plan(BILLION, Machine(), SHIPPED).nodes
    assert found["retention_hours"][0] < nodes < found["retention_hours"][1]
    assert found["compression_ratio"][1] < nodes == found["compression_ratio"][0]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"records_a_day": 0}, "--records-a-day: expected 1 to 1e"),
        ({"records_a_day": float("nan")}, "--records-a-day"),
        ({"record_bytes": float("inf")}, "--record-bytes"),
        ({"peak_factor": 0.5}, "--peak-factor: expected 1 to 1000, found 0.5"),
        ({"compression_ratio": 0}, "--compression-ratio"),
        ({"retention_hours": -1}, "--retention-hours"),
        ({"cold_readers": 9}, "--cold-readers: expected at most 3"),
        ({"copies": 0}, "--copies"),
    ],
)
def test_absurd_demands_are_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(DemandWrong) as caught:
        check(replace(BILLION, **changes), Machine())
    assert text in str(caught.value)


def test_what_no_number_of_nodes_bears_is_said_with_what_binds() -> None:
    with pytest.raises(DemandWrong, match=r"10,000 nodes are too few: each would use [\d,]+ % of its disk"):
        plan(replace(BILLION, records_a_day=1e14), Machine(), SHIPPED)
    with pytest.raises(DemandWrong, match="--racks: expected at least 2"):
        check(BILLION, Machine(racks=1))


def test_a_curve_of_hours() -> None:
    records, factor = peak_of([1.0] * 23 + [25.0])
    assert (records, factor) == (48.0, 12.5)
    for hours in ([1.0] * 23, [0.0] * 24, [-1.0] + [1.0] * 23):
        with pytest.raises(DemandWrong):
            peak_of(hours)
