"""The cluster overview: health, nodes, controllers, throughput, disks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.broker import metrics as m
from tidelog.broker.health.facts import Directory, Facts
from tidelog.broker.health.look import as_object
from tidelog.console.rates import RATES
from tidelog.console.routes import Call, Route

LIVE_S: Final = 2.0
FINDINGS_MAX: Final = 50
"""How many findings to show, the worst first. The others are only counted."""
SUBJECTS_MAX: Final = 20
RESIDENT: Final = "process_resident_memory_bytes"


def cluster(call: Call) -> dict[str, Any]:
    """Return the content of the first page."""
    look = call.desk.look()
    facts = look.facts
    rates = call.desk.rates.of(facts.nodes or {})
    health = as_object(look)
    del health["time_ms"]
    health["more_findings"] = max(0, len(health["findings"]) - FINDINGS_MAX)
    health["findings"] = [
        {**one, "subjects": one["subjects"][:SUBJECTS_MAX]} for one in health["findings"][:FINDINGS_MAX]
    ]
    return {
        "health": health,
        "nodes": _nodes(facts, rates),
        "controllers": None if facts.voters is None else sorted(map(int, facts.voters)),
        "active": facts.controller,
        "rates": {name: sum(one[name] for one in rates.values()) for name in RATES} if rates else None,
        "partitions": None if facts.partitions is None else len(facts.partitions),
        "leaderless": sum(one.leader < 0 for one in facts.partitions or ()),
        "out_of_sync": sum(len(one.isr) < len(one.replicas) for one in facts.partitions or ()),
        "groups": None if facts.groups is None else len(facts.groups),
    }


def _nodes(facts: Facts, rates: Mapping[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    found = []
    for node in sorted({*(facts.brokers or {}), *(facts.voters or ())}):
        broker, metrics = (facts.brokers or {}).get(node), (facts.nodes or {}).get(node)
        state = (
            "controller" if broker is None else "fenced" if broker.fenced else "stopping" if broker.stopping else "live"
        )
        found.append(
            {
                "node": node,
                "state": state,
                "rack": None if broker is None else broker.rack,
                "controller": node in (facts.voters or ()),
                "active": node == facts.controller,
                "busy": None if metrics is None else metrics.busy,
                "memory": None if metrics is None else sum(metrics.values.get(RESIDENT, {}).values()) or None,
                "leads": None if metrics is None else metrics.total(m.LEADER_COUNT),
                "replicas": None if metrics is None else metrics.total(m.PARTITION_COUNT),
                "disks": [_disk(one) for one in facts.directories or () if one.node == node],
                "rates": rates.get(node),
            }
        )
    return found


def _disk(one: Directory) -> dict[str, Any]:
    return {"path": one.path, "failed": one.failed, "total": one.total_bytes, "free": one.free_bytes}


ROUTES: Final = (Route("GET", "/api/cluster", cluster, live_s=LIVE_S),)
