"""One look at a cluster: its facts, the findings of the rules, and their presentation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from tidelog.broker.health.cluster_rules import unreached, whole
from tidelog.broker.health.facts import Facts, Progress
from tidelog.broker.health.rule import Report, Severity, counted
from tidelog.broker.health.rules import report


class Asker(Protocol):
    """Whoever knows the cluster."""

    def facts(self) -> Facts: ...


class Look(NamedTuple):
    """One look at a cluster."""

    facts: Facts
    report: Report
    unsettled: int
    """Groups with lag that were not watched long enough."""


def look_at(asker: Asker) -> Look:
    """Query the cluster, then apply the rules."""
    facts = asker.facts()
    found = report(facts)
    findings = [one if one.since_ms is not None else replace(one, before_ms=facts.now_ms) for one in found.findings]
    return Look(facts, replace(found, findings=tuple(findings)), unsettled(facts))


def unsettled(facts: Facts) -> int:
    """Return the number of groups with lag that were not watched long enough to judge."""
    return sum(any(one.progress is Progress.UNSETTLED for one in group.partitions) for group in facts.groups or ())


class Watch:
    """Looks repeatedly. An undated finding gets the time of the look that found it: it began then or, if that was the
    first look, before."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._seen: dict[tuple[str, Severity], tuple[int | None, int | None]] | None = None
        """Since when and before when, by rule and severity, of the last look."""

    def look(self) -> Look:
        look = look_at(self._asker)
        now_ms = look.facts.now_ms
        fresh = (None, now_ms) if self._seen is None else (now_ms, None)
        seen = self._seen or {}
        self._seen = {
            (one.rule, one.severity): seen.get((one.rule, one.severity), fresh) for one in look.report.findings
        }
        dated = []
        for one in look.report.findings:
            if one.since_ms is None:
                since_ms, before_ms = self._seen[one.rule, one.severity]
                one = replace(one, since_ms=since_ms, before_ms=before_ms)
            dated.append(one)
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
        short = sum(not whole(one) for one in facts.partitions)
        state = f"{short:,} not whole" if short else "each with a leader and all its replicas in sync"
        parts.append(f"{counted(len(facts.partitions), 'partition')}, {state}")
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
                "before_ms": one.before_ms,
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
