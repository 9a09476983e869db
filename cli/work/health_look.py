"""One look at a cluster: its facts, the findings of the rules, and their presentation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from tidelog.broker.health.cluster_rules import unreached
from tidelog.broker.health.facts import Facts
from tidelog.broker.health.rule import Report, Severity, counted
from tidelog.broker.health.rules import report
from tidelog.cli.work.health_facts import Asker, unsettled


class Look(NamedTuple):
    """One look at a cluster."""

    facts: Facts
    report: Report
    unsettled: int
    """Groups with lag that were not watched long enough."""


def look_at(asker: Asker) -> Look:
    """Query the cluster, then apply the rules."""
    facts = asker.facts()
    return Look(facts, report(facts), unsettled(facts))


class Watch:
    """Looks repeatedly. An undated finding that the first look lacked gets the time of the look that found it."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._seen: dict[tuple[str, Severity], int | None] | None = None

    def look(self) -> Look:
        look = look_at(self._asker)
        now_ms = None if self._seen is None else look.facts.now_ms
        seen = self._seen or {}
        self._seen = {
            (one.rule, one.severity): seen.get((one.rule, one.severity), now_ms) for one in look.report.findings
        }
        dated = [
            one if one.since_ms is not None else replace(one, since_ms=self._seen[one.rule, one.severity])
            for one in look.report.findings
        ]
        return look._replace(report=Report(tuple(dated), look.report.unchecked))


def sentence(look: Look) -> str:
    """Summarize the cluster in one sentence."""
    facts = look.facts
    parts = []
    if facts.brokers is not None:
        parts.append(f"{sum(one.live for one in facts.brokers.values())} of {counted(len(facts.brokers), 'broker')}")
    if facts.voters is not None:
        down = unreached(facts)
        reached = "" if down is None else f"{len(facts.voters) - down} of "
        parts.append(f"{reached}{counted(len(facts.voters), 'controller')}")
    if facts.partitions is not None:
        short = sum(len(one.isr) < len(one.replicas) - len(one.adding) or one.leader < 0 for one in facts.partitions)
        whole = f"{counted(len(facts.partitions), 'partition')}, "
        parts.append(whole + (f"{short:,} not whole" if short else "each with a leader and all its replicas in sync"))
    return "; ".join(parts) or "nothing is known about the cluster"


def as_object(look: Look) -> dict[str, Any]:
    """Return the look for programs. ``status``: "healthy", "warning" or "critical"."""
    worst = look.report.worst
    return {
        "status": "healthy" if worst in (None, Severity.NOTE) else worst.value if worst else "",
        "summary": sentence(look),
        "time_ms": look.facts.now_ms,
        "findings": [
            {
                "rule": one.rule,
                "severity": one.severity.value,
                "what": one.what,
                "since_ms": one.since_ms,
                "why": one.why,
                "do": one.do,
                "subjects": list(one.subjects),
            }
            for one in look.report.findings
        ],
        "groups_not_judged": look.unsettled,
        "not_checked": dict(look.facts.unknown),
        "rules_not_asked": {name: list(parts) for name, parts in look.report.unchecked},
    }
