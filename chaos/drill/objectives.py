"""A drill's measures, their limits, and whether they were met. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LEADER_S: Final = 3.0
CONTROLLER_S: Final = 1.0
WHOLE_S: Final = 10.0
LEADERLESS_S: Final = 1.0
"""Limit while nodes shut down gracefully: they hand over their leaderships."""

WORDS: Final[Mapping[str, str]] = {
    "detection_s": "what was hit is fenced",
    "controller_s": "another controller is active",
    "election_s": "every partition that it led has another leader",
    "first_record_s": "first record acknowledged in a partition that it led",
    "every_partition_s": "records acknowledged in every partition that it led",
    "commit_s": "first metadata change committed",
    "commit_longest_s": "longest wait of a metadata change",
    "commits_meanwhile": "metadata changes committed without a majority",
    "acknowledged_meanwhile": "records acknowledged meanwhile",
    "partitions_meanwhile": "partitions that took records meanwhile",
    "handed_meanwhile": "records that a reader received meanwhile",
    "back_s": "metadata changes are committed again after the start",
    "shutdown_s": "longest controlled shutdown",
    "serving_s": "serving again after the start",
    "whole_s": "every replica in sync after the start",
    "leaderless_s": "longest that one partition had no leader",
    "silence_s": "longest that one partition took no record",
    "errors": "errors that clients got",
    "sent": "records sent",
    "acknowledged": "records acknowledged",
    "read": "records read back",
    "lost": "lost",
    "duplicated": "duplicated",
    "unhealthy": "left unhealthy",
}
"""Every measure, in display order. Those that end in ``_s`` are seconds, the others counts."""

Value = float | int | None
Measures = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in seconds: until a partition that lost its leader accepts records; until metadata changes are committed;
    from the start of the stopped nodes until every replica is in sync."""

    leader_s: float = LEADER_S
    controller_s: float = CONTROLLER_S
    whole_s: float = WHOLE_S


@dataclass(frozen=True, slots=True)
class Objective:
    """``measure`` must be at most ``limit``."""

    measure: str
    limit: float

    @property
    def words(self) -> str:
        return f"{WORDS[self.measure]}: {limit_words(self.measure, self.limit)}"


@dataclass(frozen=True, slots=True)
class Judgement:
    objective: Objective
    found: Value
    """``None``: the event did not happen."""

    @property
    def met(self) -> bool:
        return self.found is not None and self.found <= self.objective.limit


def judged(objectives: Sequence[Objective], measures: Measures) -> list[Judgement]:
    """Compare the objectives with the measurements."""
    return [Judgement(objective, measures.get(objective.measure)) for objective in objectives]


def limit_words(measure: str, limit: float) -> str:
    if measure.endswith("_s"):
        return f"at most {limit:g} s"
    return "none" if limit == 0 else f"at most {limit:g}"


def value_words(measure: str, value: Value) -> str:
    """Return a value as text."""
    if value is None:
        return "it did not happen"
    return f"{value:.2f} s" if measure.endswith("_s") else f"{value:,}"
