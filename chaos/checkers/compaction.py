"""Judges of compacted partitions: the replicas' content while each node's cleaner works at its own time.

===================  ========================================================================================
as it was            a record that is still there has the offset, timestamp, key, value, headers and leader
                     epoch that it had when it was first seen below a high watermark, on every replica
latest stays         the last committed record of a key is in every replica whose high watermark is behind it (a
                     follower of a cleaned log may lack one that a record still to be copied supersedes)
superseded only      a removed record had a later committed one of its key, older than min.compaction.lag.ms
tombstones           a tombstone stays for delete.retention.ms, and as long as an older record of its key does
no holes             no uncommitted record is missing; offsets rise, leader epochs never fall
transactions         a transaction's record counts for its key once its marker says so; an aborted one does not
                     and may be removed at any time; until then none is removed
===================  ========================================================================================

Replicas need not have the same batches, nor the same records: only the final state of a reader is the same.

A cleaner uses the wall clock of its node, and a replica may have copied a log that another node's cleaner processed: a
record must still be there if it is too young by the latest time that any of these clocks ever showed. If clocks have
jumped, a tombstone may have got its time from a clock that was behind, and be removed by one that was ahead, so it is
sure to stay only for the rest of delete.retention.ms (:func:`sure_retention_ms`).

:mod:`tidelog.chaos.checkers.keyed_history` judges what clients wrote to and read from such partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.chaos.checkers.replication import PartitionName
from tidelog.model.ids import NodeId


class KeyedRecord(NamedTuple):
    """A record as a replica stores it. ``value`` ``None``: a tombstone."""

    offset: int
    timestamp: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    mark: bytes = b""
    """Represents its headers."""
    producer: int = -1
    """The producer in whose transaction it is."""


class Marker(NamedTuple):
    """The end of a producer's transaction."""

    offset: int
    producer: int
    committed: bool


class CleanedReplica(NamedTuple):
    """The state of a replica of a compacted partition at a moment."""

    node: NodeId
    log_start: int
    high_watermark: int
    log_end: int
    batches: Sequence[tuple[int, int, int]]
    """Base offset, last offset and leader epoch of each stored batch."""
    records: Sequence[KeyedRecord]
    markers: Sequence[Marker] = ()


class CompactionRules(NamedTuple):
    """The topic's settings that decide which records may be gone. ``away_ms``: how long a replica may be away from the
    others."""

    min_lag_ms: int = 0
    delete_retention_ms: int = 86_400_000
    away_ms: int = 0


def sure_retention_ms(rules: CompactionRules, spread_ms: int) -> int:
    """Return how long a tombstone is sure to stay if the clocks never differed by more than ``spread_ms``.

    0 if a replica, or a reader, may be away for that long: it misses the tombstone and keeps the deleted record, as
    after delete.retention.ms itself.
    """
    left_ms = rules.delete_retention_ms - spread_ms
    return left_ms if spread_ms == 0 or left_ms > rules.away_ms else 0


@dataclass(slots=True)
class _Known:
    """The records known to be committed in a partition."""

    records: dict[int, KeyedRecord] = field(default_factory=dict)
    of_key: dict[bytes | None, list[int]] = field(default_factory=dict)
    """Offsets of each key, rising, without aborted or undecided records."""
    waiting: dict[int, list[KeyedRecord]] = field(default_factory=dict)
    """The undecided records of each producer's transaction."""
    markers: dict[int, list[Marker]] = field(default_factory=dict)
    """The markers of each producer, rising."""
    end: int = 0

    def mark(self, marker: Marker) -> None:
        """Record a marker, and the outcome that it decides."""
        of_producer = self.markers.setdefault(marker.producer, [])
        if marker in of_producer:
            return
        of_producer.append(marker)
        of_producer.sort()
        for record in self.waiting.pop(marker.producer, ()):
            self.add(record)

    def add(self, record: KeyedRecord) -> None:
        """Record a new record, or one that is decided now."""
        if record.producer >= 0:
            markers = self.markers.get(record.producer, ())
            decided = next((marker for marker in markers if marker.offset > record.offset), None)
            if decided is None:
                self.waiting.setdefault(record.producer, []).append(record)
                return
            if not decided.committed:
                return
        _insert(self.of_key.setdefault(record.key, []), record.offset)


class CompactedLogJudge:
    """Judges a compacted partition. Feed it every replica, whenever its content may have changed."""

    def __init__(self, rules: CompactionRules) -> None:
        self._rules = rules
        self._known: dict[PartitionName, _Known] = {}
        self._retention_ms = rules.delete_retention_ms
        self.gone = 0
        """Committed records that were missing from some replica: shows whether anything was compacted at all."""

    def observe(
        self, partition: PartitionName, replica: CleanedReplica, now_ms: int, *, spread_ms: int = 0
    ) -> list[str]:
        """Judge the full content of a replica; ``now_ms``: the latest time that any cleaner may have used,
        ``spread_ms``: the largest difference that the cleaners' clocks ever had."""
        self._retention_ms = sure_retention_ms(self._rules, spread_ms)
        who = f"node {replica.node}'s {partition}"
        known = self._known.setdefault(partition, _Known())
        known.end = max(known.end, replica.high_watermark)
        for marker in replica.markers:
            if marker.offset < replica.high_watermark:
                known.mark(marker)
        return [
            *_unordered(who, replica, known.end),
            *self._changed(known, who, replica),
            *self._missing(known, who, replica, now_ms),
        ]

    def committed_end(self, partition: PartitionName) -> int:
        """Return the highest high watermark seen."""
        known = self._known.get(partition)
        return 0 if known is None else known.end

    def counted(self, partition: PartitionName, records: Iterable[KeyedRecord]) -> list[KeyedRecord]:
        """Leave out aborted and undecided records."""
        known = self._known.setdefault(partition, _Known())
        return [
            record for record in records if record.producer < 0 or record.offset in known.of_key.get(record.key, ())
        ]

    def lasting(self, partition: PartitionName, records: Iterable[KeyedRecord]) -> list[KeyedRecord]:
        """Return what counts, without the keys whose tombstone a replica may have missed."""
        counted = self.counted(partition, records)
        if self._retention_ms > 0:
            return counted
        known = self._known[partition]
        deleted = {key for key, offsets in known.of_key.items() if known.records[offsets[-1]].value is None}
        return [record for record in counted if record.key not in deleted]

    def _changed(self, known: _Known, who: str, replica: CleanedReplica) -> list[str]:
        for record in replica.records:
            if record.offset >= replica.high_watermark:
                break
            first = known.records.get(record.offset)
            if first is None:
                known.records[record.offset] = record
                known.add(record)
            elif first != record:
                return [f"as it was: {who} has {_shown(record)}; it was {_shown(first)}"]
        return []

    def _missing(self, known: _Known, who: str, replica: CleanedReplica, now_ms: int) -> list[str]:
        here: dict[bytes | None, list[int]] = {}
        for record in replica.records:
            here.setdefault(record.key, []).append(record.offset)
        end = min(known.end, replica.log_end)
        there = {record.offset for record in replica.records}
        for record in (record for waiting in known.waiting.values() for record in waiting):
            if replica.log_start <= record.offset < min(end, replica.high_watermark) and record.offset not in there:
                return [f"transactions: {who} has no {_shown(record)}, of which nothing is decided"]
        for key, offsets in known.of_key.items():
            held = {offset for offset in here.get(key, ()) if offset < end} & set(offsets)
            due = [offset for offset in offsets if replica.log_start <= offset < end]
            gone = [offset for offset in due if offset not in held and offset < replica.high_watermark]
            if not gone:
                continue
            self.gone += len(gone)
            latest = known.records[due[-1]]
            to_come = [offset for offset in offsets if offset >= replica.log_end]
            if latest.offset in gone:
                if to_come:
                    text = self._superseded_too_soon(known, who, latest.offset, to_come, now_ms)
                else:
                    text = self._latest_gone(who, latest, held, now_ms)
                if text:
                    return [text]
            elif (text := self._superseded_too_soon(known, who, gone[-1], due, now_ms)) != "":
                return [text]
        return []

    def _latest_gone(self, who: str, latest: KeyedRecord, held: set[int], now_ms: int) -> str:
        if latest.value is not None:
            return f"latest stays: {who} has no {_shown(latest)}, the last committed of its key"
        if held and self._retention_ms > 0:
            return f"tombstones: {who} has no {_shown(latest)}, but offset {max(held)} of its key, which it deletes"
        age_ms = now_ms - latest.timestamp
        if age_ms < self._retention_ms:
            kept = f"delete.retention.ms is {self._rules.delete_retention_ms}"
            if self._retention_ms != self._rules.delete_retention_ms:
                kept += f", of which {self._retention_ms} ms are sure with clocks so far apart"
            return f"tombstones: {who} has no {_shown(latest)} any more after {age_ms} ms; {kept}"
        return ""

    def _superseded_too_soon(self, known: _Known, who: str, gone: int, due: list[int], now_ms: int) -> str:
        record = known.records[gone]
        if record.value is None and now_ms - record.timestamp >= self._retention_ms:
            return ""  # it was removed when it was the last of its key
        by = min((known.records[offset].timestamp for offset in due if offset > gone), default=None)
        if by is None:
            return f"superseded only: {who} has no {_shown(record)}; nothing supersedes it"
        if by + self._rules.min_lag_ms > now_ms:
            return (
                f"superseded only: {who} has no {_shown(record)}; what supersedes it is {now_ms - by} ms "
                f"old and min.compaction.lag.ms is {self._rules.min_lag_ms}"
            )
        return ""


def _unordered(who: str, replica: CleanedReplica, committed_end: int) -> list[str]:
    following, epoch = replica.log_start, -1
    for base, last, leader_epoch in (*replica.batches, (replica.log_end, replica.log_end, 1 << 31)):
        if base < following and epoch >= 0:
            return [f"no holes: {who} has offset {base} after {following - 1}"]
        if base > max(following, committed_end):
            missing = max(following, committed_end)
            return [f"no holes: {who} has nothing from {missing} to {base - 1}; {committed_end} is committed"]
        if leader_epoch < epoch:
            return [f"no holes: {who} has leader epoch {leader_epoch} at {base} after {epoch}"]
        following, epoch = last + 1, leader_epoch
    before = -1
    for record in replica.records:
        if record.offset <= before:
            return [f"no holes: {who} has record {record.offset} after {before}"]
        before = record.offset
    return []


def _insert(offsets: list[int], offset: int) -> None:
    offsets.append(offset)
    if len(offsets) > 1 and offsets[-2] > offset:
        offsets.sort()


def _shown(record: KeyedRecord) -> str:
    value = "a tombstone" if record.value is None else repr(record.value[:40])
    return f"{value} of key {record.key!r} at {record.offset}, time {record.timestamp}, epoch {record.leader_epoch}"


def apart(
    partition: PartitionName, replicas: Mapping[NodeId, Sequence[KeyedRecord]], *, tombstones_equal: bool = False
) -> list[str]:
    """Compare the final state of a reader of each replica: the last record of every key.

    A key whose last record is a tombstone may be missing altogether, unless ``tombstones_equal``.
    """
    last: dict[NodeId, dict[bytes | None, KeyedRecord]] = {
        node: {
            key: record
            for key, record in {record.key: record for record in records}.items()
            if record.value is not None or tombstones_equal
        }
        for node, records in replicas.items()
    }
    found: list[str] = []
    reference_node, reference = next(iter(last.items()), (NodeId(-1), {}))
    for node, newest in last.items():
        keys = [key for key in {**reference, **newest} if reference.get(key) != newest.get(key)]
        if keys:
            found.append(
                f"latest stays: nodes {reference_node} and {node} differ in {partition}, in {len(keys)} keys, "
                f"{min(keys, key=repr)!r} for one"
            )
    return found
