"""A plan in the form for programs and pages, and the nodes that multiples of the load need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from tidelog.cli.work.planner.coefficients import Coefficients
from tidelog.cli.work.planner.demand import LIMITS, Demand, DemandWrong, Machine
from tidelog.cli.work.planner.model import Plan, grown, plan, uses

CURVE: Final = (1, 2, 5, 10, 20, 50, 100)
"""Multiples of the load."""
MONTHS: Final = 24
"""For how long growth is shown."""


def volumes(demand: Demand, machine: Machine, costs: Coefficients) -> dict[int, int | None]:
    """Return the nodes that each multiple in :data:`CURVE` needs; ``None`` if no number is enough."""
    return {times: _nodes_at(demand, machine, costs, times) for times in CURVE}


def _nodes_at(demand: Demand, machine: Machine, costs: Coefficients, times: int) -> int | None:
    try:
        return plan(replace(demand, records_a_day=demand.records_a_day * times), machine, costs).nodes
    except DemandWrong:
        return None


def growth(found: Plan, costs: Coefficients) -> list[dict[str, float]]:
    """Return the shares of the limits that the plan's nodes use with some away: now, in a month, and so on. Empty
    without growth."""
    if found.demand.growth_a_year <= 0:
        return []
    months = []
    for month in range(MONTHS + 1):
        demand = grown(found.demand, month * 365 / 12)
        then = uses(demand, found.machine, costs, found.nodes, found.away)
        months.append({name: use.share / LIMITS[name] for name, use in then.items()})
    return months


def settings(found: Plan) -> dict[str, str]:
    """Return the settings for every node's configuration."""
    return {
        "num.partitions": str(found.partitions),
        "default.replication.factor": str(found.demand.copies),
        "min.insync.replicas": str(found.min_insync),
        "log.retention.ms": str(round(found.demand.retention_hours * 3_600_000)),
        "log.segment.bytes": str(found.segment_bytes),
    }


def as_object(
    found: Plan, costs: Coefficients, changes: Mapping[str, tuple[int, int]], at_volumes: Mapping[int, int | None]
) -> dict[str, Any]:
    return {
        "nodes": found.nodes,
        "machines": found.machines,
        "away": found.away,
        "binds": found.binds,
        "partitions": found.partitions,
        "files_a_node": found.files_a_node,
        "rebuild_hours": found.rebuild_hours,
        "price": found.machines * found.machine.price,
        "load": asdict(found.load),
        "uses": {
            name: {
                "unit": now.unit,
                "now": now.amount,
                "now_share": now.share,
                "away": found.then[name].amount,
                "away_share": found.then[name].share,
                "limit_share": LIMITS[name],
                "days_until": found.days_until[name],
            }
            for name, now in found.now.items()
        },
        "growth": growth(found, costs),
        "settings": settings(found),
        "demand": asdict(found.demand),
        "machine": asdict(found.machine),
        "what_if": {name: {"less": less, "more": more} for name, (less, more) in changes.items()},
        "load_times": {str(times): count for times, count in at_volumes.items()},
        "coefficients": asdict(costs),
    }
