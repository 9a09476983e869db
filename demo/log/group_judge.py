"""Judges the records delivered to a consumer group while one of its members was killed: was anything lost, or delivered
twice without need?

Pure. "Redelivered" is not "duplicated": the log holds a record once, and the group gets it again because the member
that had it died before its commit. The guarantee is at-least-once, nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.demo.log.row_judge import EXAMPLES_MAX, LogRecord


class Handed(NamedTuple):
    """A record as delivered to a member. ``row`` is -1 if its header is missing or wrong."""

    partition: int
    offset: int
    row: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """The judge's findings. Every count from ``lost`` on should be 0, except ``redelivered`` and ``uncommitted``."""

    handed: int
    """All records delivered to members."""
    handed_to_dead: int
    """Records delivered to the killed member."""
    lost: int
    """Records of the log that were delivered to no member."""
    redelivered: int
    """Redeliveries of records."""
    uncommitted: int
    """Records that the dead member got and had not committed: these may be redelivered, once each."""
    stray: int
    """Redeliveries beyond those."""
    changed: int
    """Delivered records that differ from the log's, or are not in it."""
    backwards: int
    """Records delivered to a member after a later one of the same partition."""
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
    """Judge a whole read. ``handed`` has each member's records in order of delivery; ``dead`` was killed, and then
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
