"""Judges clients' writes to compacted partitions against the final state of their readers.

===================  ========================================================================================
as written           a record that was read is one that was sent: same key, value, timestamp and, if it was
                     acknowledged, offset
latest value         a reader from log start to some position has, for each key, the last acknowledged write
                     before that position or a later one; a deleted key's tombstone may be gone only if no
                     older value of the key was read, or delete.retention.ms passed meanwhile
===================  ========================================================================================

Writes are named by a mark that every record carries, so that tombstones can be distinguished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.chaos.checkers.history import NO_OFFSET, Outcome
from tidelog.model.ids import TopicPartition


class KeyedWrite(NamedTuple):
    """A record that was handed to a producer."""

    mark: bytes
    """Unique; in the record's headers."""
    partition: TopicPartition
    key: bytes
    value: bytes | None
    timestamp: int
    outcome: Outcome
    offset: int = NO_OFFSET
    began_s: float = 0.0
    """When it was handed over."""


class ReadRecord(NamedTuple):
    """A record as a consumer received it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    mark: bytes


class Scan(NamedTuple):
    """One read of a partition from log start up to ``end``, the position behind it."""

    reader: str
    partition: TopicPartition
    records: Sequence[ReadRecord]
    end: int
    seconds: float = 0.0
    """How long it took: tombstones may be removed meanwhile."""


class KeyedHistory:
    """All writes to some partitions, and the judgement of scans through them.

    ``ends``: the ends of the partitions when the run was over.
    """

    def __init__(
        self, writes: Iterable[KeyedWrite], delete_retention_s: float, ends: Mapping[TopicPartition, int]
    ) -> None:
        self._delete_retention_s = delete_retention_s
        self._ends = ends
        self._by_mark: dict[bytes, KeyedWrite] = {}
        self._acknowledged: dict[TopicPartition, dict[bytes, list[KeyedWrite]]] = {}
        self._unknown: dict[tuple[TopicPartition, bytes], list[KeyedWrite]] = {}
        for write in writes:
            self._by_mark[write.mark] = write
            if write.outcome is Outcome.OK:
                self._acknowledged.setdefault(write.partition, {}).setdefault(write.key, []).append(write)
            elif write.outcome is Outcome.UNKNOWN:
                self._unknown.setdefault((write.partition, write.key), []).append(write)
        for of_key in self._acknowledged.values():
            for each in of_key.values():
                each.sort(key=lambda write: write.offset)

    def judge(self, scan: Scan) -> list[str]:
        """Judge what a reader received."""
        return self._as_written(scan) or self._latest(scan)

    def _as_written(self, scan: Scan) -> list[str]:
        before = NO_OFFSET
        for record in scan.records:
            at = f"{scan.reader} read {record.mark!r} at {scan.partition} offset {record.offset}"
            write = self._by_mark.get(record.mark)
            if record.offset <= before:
                return [f"as written: {at} after {before}"]
            before = record.offset
            if write is None or write.outcome is Outcome.FAILED or write.partition != scan.partition:
                return [f"as written: {at}, which was never sent there"]
            if (record.key, record.value, record.timestamp) != (write.key, write.value, write.timestamp):
                sent = (write.timestamp, write.key, write.value)
                return [f"as written: {at} as {record[1:4]}; sent was {sent}"]
            if write.outcome is Outcome.OK and write.offset != record.offset:
                return [f"as written: {at}; acknowledged was {write.offset}"]
        return []

    def _latest(self, scan: Scan) -> list[str]:
        read: dict[bytes | None, int] = {record.key: record.offset for record in scan.records}
        seen = {record.mark for record in scan.records}
        slow = scan.seconds >= self._delete_retention_s
        for key, writes in self._acknowledged.get(scan.partition, {}).items():
            due = [write for write in writes if write.offset < scan.end]
            if not due:
                continue
            last, got = due[-1], read.get(key, NO_OFFSET)
            if got >= last.offset or writes[-1].offset >= scan.end:
                continue
            if last.value is None and (got == NO_OFFSET or slow):
                continue
            if self._later_unknown(scan, key, seen, slow=slow or got == NO_OFFSET):
                continue
            what = "a tombstone" if last.value is None else f"{last.mark!r}"
            ends = f"with offset {got}" if got >= 0 else "without the key"
            return [
                f"latest value: {scan.reader} read {scan.partition} up to {scan.end} and ends {ends} for key "
                f"{key!r}; {what} was acknowledged at {last.offset}"
            ]
        return []

    def _later_unknown(self, scan: Scan, key: bytes, seen: set[bytes], *, slow: bool) -> bool:
        """Return whether a write with an unknown outcome may have hidden the acknowledged one from this scan: it lies
        behind the scan, or was a tombstone and is gone."""
        at_end = scan.end >= self._ends[scan.partition]
        return any(
            write.mark not in seen and (not at_end or (write.value is None and slow))
            for write in self._unknown.get((scan.partition, key), ())
        )


def final_scans(final: Mapping[TopicPartition, Sequence[ReadRecord]], ends: Mapping[TopicPartition, int]) -> list[Scan]:
    """Return, as scans, what a reader of the remaining log would receive at the end."""
    return [Scan("the final read", at, records, ends[at]) for at, records in final.items()]


def mark_of(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Return the mark that identifies a record: the values of its headers."""
    return b"".join(value or b"" for _, value in headers)
