"""Judges a query from one topic to another: each record that counts is copied once, by the batch with its range.

===================  ========================================================================================
each once            each row of the source that counts, from where the query began to where its last batch ends,
                     is in the sink once, unchanged, by the batch with its offset in range; no other is there
same rows            each read of a range finds the rows in it that count, at any time and however often
only decided         nobody sees a row before its job requested its batch's commit
===================  ========================================================================================
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.chaos.checkers.history import Polled
from tidelog.chaos.checkers.sinks import Row
from tidelog.chaos.checkers.transactions import Visible
from tidelog.model.ids import TopicPartition


class Copy(NamedTuple):
    """A row of the sink: its owner, and the record of the source it was copied from."""

    sink: str
    batch: int
    job: str
    partition: int
    offset: int
    value: bytes

    @property
    def encoded(self) -> bytes:
        return self.row.encoded + b"|" + self.value

    @classmethod
    def decoded(cls, text: bytes) -> Copy:
        row, _, value = text.rpartition(b"|")
        return cls(*Row.decoded(row), value)

    @property
    def row(self) -> Row:
        return Row(self.sink, self.batch, self.job, self.partition, self.offset)


class RangeRead(NamedTuple):
    """The rows that one attempt found in a range, ``end`` excluded: offset and value each."""

    who: str
    sink: str
    batch: int
    at: TopicPartition
    start: int
    end: int
    rows: Sequence[tuple[int, bytes]]


class Batches(NamedTuple):
    """A query's checkpoint for one partition: where it began, and where each batch ends."""

    sink: str
    at: TopicPartition
    begin: int
    ends: Sequence[int]

    def of(self, offset: int) -> int | None:
        """Return the batch that an offset belongs to."""
        batch = bisect_right(self.ends, offset)
        return batch if offset >= self.begin and batch < len(self.ends) else None


def each_once(source: Visible, queries: Iterable[Batches], copies: Iterable[Copy]) -> list[str]:
    """Judge the copies that are visible at the end."""
    found: list[str] = []
    by_offset: dict[tuple[str, int, int], list[Copy]] = {}
    for copy in copies:
        by_offset.setdefault((copy.sink, copy.partition, copy.offset), []).append(copy)
    for query in queries:
        for offset, value in source.get(query.at, ()):
            batch = query.of(offset)
            there = by_offset.pop((query.sink, query.at.partition, offset), [])
            name = f"{value!r}, {query.at} offset {offset}"
            if len(there) != (batch is not None):
                due = "no batch of its range" if batch is None else f"batch {batch}"
                seen = ", ".join(f"batch {one.batch} of job {one.job}" for one in there[:3])
                found.append(f"each once: {query.sink} has {len(there)} copies of {name}, due by {due}: {seen}")
                continue
            for one in there:
                if one.value != value:
                    found.append(f"each once: {query.sink} has {one.value!r} as its copy of {name}")
                if one.batch != batch:
                    found.append(f"each once: {query.sink} has copied {name} by batch {one.batch}; {batch} is due")
    for (sink, partition, offset), there in sorted(by_offset.items()):
        found.append(f"each once: {sink} has {there[0].value!r} of partition {partition} offset {offset}: no such row")
    return found


def same_rows(source: Visible, reads: Iterable[RangeRead]) -> list[str]:
    """Judge what attempts have read against what counts at the end."""
    found: list[str] = []
    offsets = {at: [offset for offset, _ in rows] for at, rows in source.items()}
    for read in reads:
        rows, places = source.get(read.at, ()), offsets.get(read.at, [])
        due = list(rows[bisect_right(places, read.start - 1) : bisect_right(places, read.end - 1)])
        if list(read.rows) != due:
            odd = sorted(set(due) ^ set(read.rows))[:3]
            found.append(
                f"same rows: {read.who} read {len(read.rows)} rows of {read.at} [{read.start}, {read.end}) in batch "
                f"{read.batch}; {len(due)} are due: {odd}"
            )
    return found


def only_decided(polls: Iterable[Polled], asked_s: Mapping[tuple[str, int, str], float]) -> list[str]:
    """Judge what readers of committed data saw. ``asked_s``: when a driver first requested the commit of a sink's batch
    by a job."""
    found: list[str] = []
    for poll in polls:
        for offset, value in poll.records:
            copy = Copy.decoded(value)
            if poll.ended_s < asked_s.get((copy.sink, copy.batch, copy.job), float("inf")):
                found.append(
                    f"only decided: {poll.consumer} was shown {copy.row} in {poll.partition} at {offset} before its "
                    "commit was asked for"
                )
    return found
