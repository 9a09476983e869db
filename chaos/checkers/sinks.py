"""Judges the output of a sink: each batch whole, once, from one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Row(NamedTuple):
    """A row that a task wrote: its number in the batch, and its writer."""

    sink: str
    batch: int
    job: str
    task: int
    number: int

    @property
    def encoded(self) -> bytes:
        return f"{self.sink}|{self.batch}|{self.job}|{self.task}|{self.number}".encode()

    @classmethod
    def decoded(cls, value: bytes) -> Row:
        sink, batch, job, task, number = value.decode().split("|")
        return cls(sink, int(batch), job, int(task), int(number))


@dataclass(slots=True)
class Batch:
    """The facts about a batch that are not in the log. ``rows``: how many each of its jobs writes; ``asked``: jobs
    whose commit was requested, and how many rows their messages report; ``told``: jobs for which drivers were told that
    the batch is decided; ``aborted``: jobs that they were told are aborted."""

    sink: str
    number: int
    rows: int
    asked: dict[str, int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)


def judge_batches(
    visible: Iterable[bytes], batches: Sequence[Batch], noted: Mapping[str, int], last: Mapping[str, int]
) -> list[str]:
    """Judge the batches. ``visible``: the rows that readers of committed data see at the end; ``noted``: the last batch
    that each sink's program has stored as done; ``last``: the last that its ledger says is decided."""
    found: list[str] = []
    by_batch: dict[tuple[str, int], list[Row]] = {}
    for value in visible:
        row = Row.decoded(value)
        by_batch.setdefault((row.sink, row.batch), []).append(row)
    known = {(batch.sink, batch.number): batch for batch in batches}
    for (sink, number), rows in sorted(by_batch.items()):
        name = f"batch {number} of {sink}"
        if number > last.get(sink, -1):
            found.append(f"decided: {name} is seen, but the last that is decided is {last.get(sink, -1)}")
        jobs = sorted({row.job for row in rows})
        if len(jobs) > 1:
            found.append(f"once: {name} is seen of jobs {', '.join(jobs)}")
        twice = [row for row, count in Counter(rows).items() if count > 1]
        if twice:
            found.append(f"once: {name}: {twice[0]} and {len(twice) - 1} others are seen twice")
        batch = known.get((sink, number))
        if batch is None or jobs[0] not in batch.asked:
            found.append(f"decided: {name} is seen of job {jobs[0]}, which nobody asked to be committed")
        elif len(set(rows)) != batch.rows:
            found.append(f"whole: {name}: {len(set(rows))} rows of {batch.rows} are seen of job {jobs[0]}")
    for (sink, number), batch in sorted(known.items()):
        name = f"batch {number} of {sink}"
        seen = {row.job for row in by_batch.get((sink, number), ())}
        told = sorted(set(batch.told))
        if len(told) > 1:
            found.append(f"one decision: {name} was told to be decided for {', '.join(told)}")
        if told and batch.rows and seen != {told[0]}:
            found.append(f"whole: {name} was decided for {told[0]}, but is seen of {sorted(seen) or 'nobody'}")
        if told and number > last.get(sink, -1):
            found.append(f"kept: {name} was decided, but the ledger's last is {last.get(sink, -1)}")
        found += [
            f"decided: {name} is seen of job {job}, which was told to be aborted"
            for job in sorted(seen & set(batch.aborted))
        ]
        if batch.rows and not seen and number <= last.get(sink, -1):
            found.append(f"whole: {name} is decided, but none of its {batch.rows} rows is seen")
    for sink, number in sorted(noted.items()):
        if number > last.get(sink, -1):
            found.append(f"kept: {sink} has noted batch {number}, but the ledger's last is {last.get(sink, -1)}")
    return found
