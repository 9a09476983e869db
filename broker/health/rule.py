"""Health rules, what they find, and how to evaluate them. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final

from tidelog.broker.health.facts import Facts
from tidelog.model.classes.frozen import dataclass

SHOWN_MAX: Final = 5
"""Maximum partitions, nodes or groups named in a sentence."""


class Severity(StrEnum):
    """How bad it is."""

    CRITICAL = "critical"
    """Records or requests are being refused or lost, or are about to be. Act now."""
    WARNING = "warning"
    """Nothing is lost yet; one more failure, or some days, and something will be."""
    NOTE = "note"
    """Worth knowing. The cluster is healthy."""

    @property
    def rank(self) -> int:
        """0 for the most severe."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule found, in one sentence. ``subjects``: the names of everything it is about. ``since_ms``: since when
    (ms since 1970), if the facts show it."""

    severity: Severity
    what: str
    subjects: tuple[str, ...] = ()
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """The rule as a Prometheus alert. ``expr``: true when it fires. ``for_``: how long it must be true. ``shows``: the
    text for people, with Prometheus's templates."""

    name: str
    severity: Severity
    expr: str
    for_: str
    shows: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. ``needs``: the parts of :class:`Facts` that ``look`` requires. ``alerts`` is empty if no
    metric shows it."""

    name: str
    needs: tuple[str, ...]
    why: str
    do: str
    look: Callable[[Facts], Iterable[Found]]
    alerts: tuple[Alert, ...] = ()


def only_alerts(_: Facts) -> Iterable[Found]:
    """Find nothing. For rules about rates and other things that one look at a cluster does not show."""
    return ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem: what, since when, why it matters, what to do. ``since_ms``: when it began. Where nobody knows that,
    ``before_ms``: when it was seen first (both ms since 1970)."""

    rule: str
    severity: Severity
    what: str
    why: str
    do: str
    subjects: tuple[str, ...]
    since_ms: int | None
    before_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, the most severe first. ``unchecked``: the rules that lacked facts, each with the missing parts."""

    findings: tuple[Finding, ...]
    unchecked: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def worst(self) -> Severity | None:
        return self.findings[0].severity if self.findings else None


def check(rules: Sequence[Rule], facts: Facts) -> Report:
    """Evaluate every rule."""
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
    """Return ``a, b and 7 more``."""
    shown, more = subjects[:SHOWN_MAX], len(subjects) - SHOWN_MAX
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def counted(number: int, noun: str) -> str:
    """Return ``1 partition``, ``2 partitions``, ``2 directories``, ``2 days``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"
