"""What a rule of health is, what it finds, and how all of them are asked. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidelog.broker.health.facts import Facts

SHOWN_MAX: Final = 5
"""Most partitions, nodes or groups that a sentence names."""


class Severity(StrEnum):
    """How bad it is."""

    CRITICAL = "critical"
    """Records or requests are refused, lost, or about to be. Somebody should look now."""
    WARNING = "warning"
    """Nothing is lost yet; one failure more, or some days, and something will be."""
    NOTE = "note"
    """Worth knowing. The cluster is healthy."""

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule found, in one sentence. ``subjects``: all that it is about, by name. ``since_ms``: since when it has
    been so (ms since 1970), where the facts show it."""

    severity: Severity
    what: str
    subjects: tuple[str, ...] = ()
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """The rule as Prometheus asks it. ``expr``: true where it fires. ``for_``: for how long it must be. ``shows``: what
    a person reads, with Prometheus's templates."""

    name: str
    severity: Severity
    expr: str
    for_: str
    shows: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. ``needs``: the parts of :class:`Facts` without which ``look`` cannot tell. ``alerts`` is
    empty where no metric shows it."""

    name: str
    needs: tuple[str, ...]
    why: str
    do: str
    look: Callable[[Facts], Iterable[Found]]
    alerts: tuple[Alert, ...] = ()


def only_alerts(_: Facts) -> Iterable[Found]:
    """For rules about rates and other things that one look at a cluster does not show."""
    return ()


@dataclass(frozen=True, slots=True)
class Finding:
    """What is not as it should be: what, since when, why it matters, what to do."""

    rule: str
    severity: Severity
    what: str
    why: str
    do: str
    subjects: tuple[str, ...]
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, the worst first. ``unchecked``: the rules that lacked facts, each with the parts that it lacks."""

    findings: tuple[Finding, ...]
    unchecked: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def worst(self) -> Severity | None:
        return self.findings[0].severity if self.findings else None


def check(rules: Sequence[Rule], facts: Facts) -> Report:
    """Ask every rule."""
    findings, unchecked = [], []
    for rule in rules:
        missing = tuple(part for part in rule.needs if getattr(facts, part) is None)
        if missing:
            unchecked.append((rule.name, missing))
            continue
        findings += [
            Finding(rule.name, one.severity, one.what, rule.why, rule.do, one.subjects, one.since_ms)
            for one in rule.look(facts)
        ]
    findings.sort(key=lambda finding: finding.severity.rank)
    return Report(tuple(findings), tuple(unchecked))


def named(subjects: Sequence[str]) -> str:
    """``a, b and 7 more``."""
    shown, more = subjects[:SHOWN_MAX], len(subjects) - SHOWN_MAX
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def counted(number: int, noun: str) -> str:
    """``1 partition``, ``2 partitions``, ``2 directories``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"
