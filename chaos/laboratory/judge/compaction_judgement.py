"""The judgement of compacted topics, with the simulation's judges: the records that readers received, and the rest on
each disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.chaos.checkers.compaction import (
    CleanedReplica,
    CompactedLogJudge,
    CompactionRules,
    apart,
    sure_retention_ms,
)
from tidelog.chaos.checkers.keyed_history import KeyedHistory, ReadRecord, Scan
from tidelog.chaos.laboratory.history.history_file import Recorded, at_of
from tidelog.chaos.laboratory.history.keyed_lines import kept_of, scan_of, sent_of
from tidelog.model.ids import TopicPartition

AWAY_MS: Final = 60_000
"""No fault of a run, nor the catching up afterwards, keeps a replica away from the others for longer."""


def compacted(recorded: Recorded) -> dict[str, Mapping[str, str]]:
    """Return the compacted topics of a run, and their settings."""
    configs: Mapping[str, Mapping[str, str]] = recorded.run.get("configs", {})
    return {topic: config for topic, config in configs.items() if config.get("cleanup.policy") == "compact"}


def cleaned(recorded: Recorded) -> int:
    """Return how many records the cleaners have removed from the replicas on all disks. Every offset was a record's."""
    return sum(recorded.ends[at_of(row)] - len(row["records"]) for row in _rows(recorded, "kept"))


def judge_compaction(recorded: Recorded) -> list[str]:
    """Report readers and replicas that lack a key's latest value, replicas that differ, and whether nothing was
    cleaned."""
    topics = compacted(recorded)
    if not recorded.complete or not topics.keys() <= {at.topic for at in recorded.ends}:
        return []
    aheads = [0.0, *(fault["options"]["ahead_s"] for fault in recorded.faults if fault["act"] == "clock")]
    spread_ms = int(1000 * (max(aheads) - min(aheads)))
    found = []
    for topic, config in topics.items():
        rules = CompactionRules(int(config["min.compaction.lag.ms"]), int(config["delete.retention.ms"]), AWAY_MS)
        kept: dict[TopicPartition, list[tuple[CleanedReplica, int]]] = {}
        for row in _rows(recorded, "kept"):
            if row["topic"] == topic:
                at = at_of(row)
                latest_ms = row["wall_ms"] + int(1000 * max(aheads))
                kept.setdefault(at, []).append((kept_of(row, recorded.ends[at]), latest_ms))
        found += _judge_scans(recorded, topic, kept, sure_retention_ms(rules, spread_ms) / 1000)
        judge = CompactedLogJudge(rules)
        for _ in range(2):  # the second time it knows the content of the other replicas
            for at, copies in kept.items():
                for replica, latest_ms in copies:
                    found += judge.observe(at, replica, latest_ms, spread_ms=spread_ms)
        for at, copies in kept.items():
            found += apart(at, {replica.node: judge.lasting(at, replica.records) for replica, _ in copies})
    if topics and not cleaned(recorded):
        found.append("progress: no cleaner has taken anything")
    return list(dict.fromkeys(found))


def _judge_scans(
    recorded: Recorded, topic: str, kept: Mapping[TopicPartition, list[tuple[CleanedReplica, int]]], retention_s: float
) -> list[str]:
    writes = [sent_of(row) for row in _rows(recorded, "send") if row["topic"] == topic]
    history = KeyedHistory(writes, retention_s, recorded.ends)
    scans = [scan_of(row) for row in _rows(recorded, "scan") if row["topic"] == topic]
    for at, copies in kept.items():
        for copy, _ in copies:
            read = [ReadRecord(each.offset, each.timestamp, each.key, each.value, each.mark) for each in copy.records]
            scans.append(Scan(f"a reader of node {copy.node}'s copy", at, read, copy.log_end))
    return [text for scan in scans for text in history.judge(scan)]


def _rows(recorded: Recorded, kind: str) -> list[Mapping[str, Any]]:
    return [row for row in recorded.keyed if row["kind"] == kind]
