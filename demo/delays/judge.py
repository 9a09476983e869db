"""Judges the demo's second half: is each row of the result in the topic once, and equal to the directly computed one?

Pure: it takes the computed rows and the topic's records, and returns the verdict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

EXAMPLES_MAX: Final = 5


class Found(NamedTuple):
    """A record of topic ``delays``."""

    partition: int
    offset: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class DelaysVerdict:
    """The judge's findings. Every count but the first two should be 0."""

    expected: int
    """Directly computed rows."""
    found: int
    """Records in the topic."""
    missing: int
    """Rows missing from the topic."""
    twice: int
    """Rows in the topic more than once, by key, whatever their content."""
    wrong: int
    """Records of a row that differ from the computed one."""
    foreign: int
    """Records without a row."""
    expected_digest: str
    found_digest: str
    """Digest of each row's first record: keys and values, by key; equal if all rows are."""
    examples: tuple[str, ...]
    """Some of the faults, in words."""

    @property
    def passed(self) -> bool:
        faults = (self.missing, self.twice, self.wrong, self.foreign)
        return self.expected > 0 and not any(faults) and self.expected_digest == self.found_digest


def judge(expected: Mapping[str, str], found: Iterable[Found]) -> DelaysVerdict:
    """Compare row by row. ``expected``: values by key; ``found`` in any order."""
    examples: list[str] = []
    noted: dict[str, int] = {}

    def note(kind: str, text: str) -> None:
        noted[kind] = noted.get(kind, 0) + 1
        if noted[kind] <= EXAMPLES_MAX:
            examples.append(f"{kind}: {text}")

    first: dict[str, Found] = {}
    again: set[str] = set()
    count = 0
    for record in found:
        count += 1
        where = f"partition {record.partition} offset {record.offset}"
        wanted = expected.get(record.key)
        if wanted is None:
            note("foreign", f"{record.key!r} at {where}")
        elif record.value != wanted:
            note("wrong", f"{record.key} at {where}: expected {wanted}, found {record.value}")
        if (before := first.get(record.key)) is None:
            first[record.key] = record
        elif wanted is not None:
            again.add(record.key)
            note("twice", f"{record.key} at partition {before.partition} offset {before.offset}, and at {where}")
    missing = 0
    for key in expected:
        if key not in first:
            missing += 1
            note("missing", key)
    return DelaysVerdict(
        expected=len(expected),
        found=count,
        missing=missing,
        twice=len(again),
        wrong=noted.get("wrong", 0),
        foreign=noted.get("foreign", 0),
        expected_digest=digest(expected),
        found_digest=digest({key: record.value for key, record in first.items()}),
        examples=tuple(examples),
    )


def digest(rows: Mapping[str, str]) -> str:
    """Return a digest of rows; two sets of rows are equal if their digests are."""
    total = hashlib.sha256()
    for key in sorted(rows):
        for text in (key, rows[key]):
            data = text.encode()
            total.update(len(data).to_bytes(4, "big"))
            total.update(data)
    return total.hexdigest()
