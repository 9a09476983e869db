"""Judges the records handed to a consumer group while one of its members was killed: was anything lost, or handed out
twice without need?

Pure. "Redelivered" is not "duplicated": the log holds a record once, and the group gets it again because the member
that had it died before its commit. The promise is at least once, and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.demo.log.row_judge import EXAMPLES_MAX, LogRecord


class Handed(NamedTuple):
    """A record as a member was handed it. ``row`` is -1 where the header that names it is missing or wrong."""

    partition: int
    offset: int
    row: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """The judge's findings. Every count from ``lost`` on should be 0, except ``redelivered`` and ``uncommitted``."""

    handed: int
    """Records that members were handed, all told."""
    handed_to_dead: int
    """Those that went to the killed member."""
    lost: int
    """Records of the log that no member was handed."""
    redelivered: int
    """Times that a record was handed out again."""
    uncommitted: int
    """Records that the dead member was handed and had not committed: these may be redelivered, once each."""
    stray: int
    """Redeliveries beyond that."""
    changed: int
    """Records handed out that differ from the log's, or that it does not have."""
    backwards: int
    """Records handed to a member behind a later one of the same partition."""
    examples: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        faults = (self.lost, self.stray, self.changed, self.backwards)
        return not any(faults) and self.redelivered <= self.uncommitted and self.handed_to_dead > 0


def judge_group(
    log: Sequence[LogRecord],
    handed: Mapping[str, Sequence[Handed]],
    dead: str,
    committed: Mapping[int, int],
) -> GroupVerdict:
    """Judge a whole read. ``handed`` is what each member was handed, in its order; ``dead`` was killed, and then
    ``committed`` was the group's offset of each partition (left out: nothing was committed)."""
    examples: list[str] = []

    def note(kind: str, text: str) -> None:
        if sum(example.startswith(kind) for example in examples) < EXAMPLES_MAX:
            examples.append(f"{kind}: {text}")

    there = {(record.partition, record.offset): record for record in log}
    times: Counter[tuple[int, int]] = Counter()
    changed = backwards = 0
    for member, records in handed.items():
        latest: dict[int, int] = {}
        for partition, offset, row, digest in records:
            times[partition, offset] += 1
            found = there.get((partition, offset))
            if found is None or found.row != row or found.digest != digest:
                changed += 1
                note("changed", f"{member} was handed row {row} as partition {partition} offset {offset}")
            if offset <= latest.get(partition, -1):
                backwards += 1
                note(
                    "backwards", f"{member} was handed partition {partition} offset {offset} after {latest[partition]}"
                )
            latest[partition] = max(offset, latest.get(partition, -1))
    left = {(one.partition, one.offset) for one in handed[dead] if one.offset >= committed.get(one.partition, 0)}
    lost = 0
    for place in there:
        if place not in times:
            lost += 1
            note("lost to the group", f"partition {place[0]} offset {place[1]} was handed to nobody")
    redelivered = stray = 0
    for place, count in times.items():
        redelivered += count - 1
        allowed = 2 if place in left else 1
        if count > allowed:
            stray += count - allowed
            note("redelivered", f"partition {place[0]} offset {place[1]}, {count} times, allowed {allowed}")
    return GroupVerdict(
        handed=sum(times.values()),
        handed_to_dead=len(handed[dead]),
        lost=lost,
        redelivered=redelivered,
        uncommitted=len(left),
        stray=stray,
        changed=changed,
        backwards=backwards,
        examples=tuple(examples),
    )
