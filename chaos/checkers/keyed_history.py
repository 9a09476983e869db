"""Judges what clients wrote to compacted partitions against what readers of them end with.

===================  ========================================================================================
as written           a record that was read is one that was sent: same key, value, timestamp and, where it was
                     acknowledged, offset
latest value         who reads from log start to some position knows, of each key, the last acknowledged write
                     before that position or a later one; a deleted key's tombstone may be gone only where no
                     older value of the key was read, or delete.retention.ms passed meanwhile
===================  ========================================================================================

Writes are named by a mark that every record carries, so that a tombstone can be told from another.
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


class ReadRecord(NamedTuple):
    """A record as a consumer was given it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    mark: bytes


class Passage(NamedTuple):
    """One reading of a partition from log start up to ``end``, the position behind it."""

    reader: str
    partition: TopicPartition
    records: Sequence[ReadRecord]
    end: int
    seconds: float = 0.0
    """How long it took: tombstones may go meanwhile."""


class KeyedHistory:
    """All that was written to some partitions, and the judgement of passages through them.

    ``ends``: where the partitions ended when all was over.
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

    def judge(self, passage: Passage) -> list[str]:
        """Say what is wrong with what a reader was given."""
        return self._as_written(passage) or self._latest(passage)

    def _as_written(self, passage: Passage) -> list[str]:
        before = NO_OFFSET
        for record in passage.records:
            at = f"{passage.reader} read {record.mark!r} at {passage.partition} offset {record.offset}"
            write = self._by_mark.get(record.mark)
            if record.offset <= before:
                return [f"as written: {at} after {before}"]
            before = record.offset
            if write is None or write.outcome is Outcome.FAILED or write.partition != passage.partition:
                return [f"as written: {at}, which was never sent there"]
            if (record.key, record.value, record.timestamp) != (write.key, write.value, write.timestamp):
                sent = (write.timestamp, write.key, write.value)
                return [f"as written: {at} as {record[1:4]}; sent was {sent}"]
            if write.outcome is Outcome.OK and write.offset != record.offset:
                return [f"as written: {at}; acknowledged was {write.offset}"]
        return []

    def _latest(self, passage: Passage) -> list[str]:
        read: dict[bytes | None, int] = {record.key: record.offset for record in passage.records}
        seen = {record.mark for record in passage.records}
        slow = passage.seconds >= self._delete_retention_s
        for key, writes in self._acknowledged.get(passage.partition, {}).items():
            due = [write for write in writes if write.offset < passage.end]
            if not due:
                continue
            last, got = due[-1], read.get(key, NO_OFFSET)
            if got >= last.offset or writes[-1].offset >= passage.end:
                continue
            if last.value is None and (got == NO_OFFSET or slow):
                continue
            if self._later_unknown(passage, key, seen, slow=slow or got == NO_OFFSET):
                continue
            what = "a tombstone" if last.value is None else f"{last.mark!r}"
            ends = f"with offset {got}" if got >= 0 else "without the key"
            return [
                f"latest value: {passage.reader} read {passage.partition} up to {passage.end} and ends {ends} for key "
                f"{key!r}; {what} was acknowledged at {last.offset}"
            ]
        return []

    def _later_unknown(self, passage: Passage, key: bytes, seen: set[bytes], *, slow: bool) -> bool:
        """Whether a write of which nobody was told may have cost this passage the acknowledged one: it stands
        behind the passage, or was a tombstone and is gone."""
        at_end = passage.end >= self._ends[passage.partition]
        return any(
            write.mark not in seen and (not at_end or (write.value is None and slow))
            for write in self._unknown.get((passage.partition, key), ())
        )


def final_passages(
    final: Mapping[TopicPartition, Sequence[ReadRecord]], ends: Mapping[TopicPartition, int]
) -> list[Passage]:
    """What a reader of everything that is left at the end would be given, as passages."""
    return [Passage("the final read", at, records, ends[at]) for at, records in final.items()]
