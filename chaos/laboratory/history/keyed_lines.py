"""The lines of a history about compacted topics, written and read.

=============  ======================================================================================================
``kind``       further fields
=============  ======================================================================================================
``send``       as every send, ``value`` being the mark that names the record; ``key``, ``content`` (null: a
               tombstone), ``timestamp``
``scan``       ``consumer``, ``topic``, ``partition``, ``records`` (offset, timestamp, key, value and mark each),
               ``began``, ``ended``, ``end``: a read of the partition from its start up to there
``kept``       ``topic``, ``partition``, ``node``, ``batches`` (base offset, last offset and leader epoch each),
               ``records`` (offset, timestamp, leader epoch, key, value and mark each), ``wall_ms``: the content of a
               node's disk at the end
=============  ======================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.chaos.checkers.compaction import CleanedReplica, KeyedRecord
from tidelog.chaos.checkers.history import Outcome, Sent
from tidelog.chaos.checkers.keyed_history import KeyedWrite, ReadRecord, Scan
from tidelog.chaos.laboratory.history.history_file import HistoryFile, at_of
from tidelog.model.ids import NodeId, TopicPartition


def write_sent(history: HistoryFile, write: KeyedWrite) -> None:
    producer, _, number = write.mark.decode().partition(":")
    at, mark, outcome, offset = write.partition, write.mark, write.outcome, write.offset
    history.send(
        Sent(producer, int(number), at, mark, outcome, offset, write.began_s, history.now()),
        key=write.key.decode(),
        content=_text(write.value),
        timestamp=write.timestamp,
    )


def write_scan(history: HistoryFile, scan: Scan) -> None:
    now = history.now()
    history.write(
        "scan",
        consumer=scan.reader,
        topic=scan.partition.topic,
        partition=scan.partition.partition,
        records=[[r.offset, r.timestamp, _text(r.key), _text(r.value), r.mark.decode()] for r in scan.records],
        began=round(now - scan.seconds, 6),
        ended=round(now, 6),
        end=scan.end,
    )


def write_kept(
    history: HistoryFile,
    at: TopicPartition,
    node: int,
    batches: Sequence[tuple[int, int, int]],
    records: Sequence[KeyedRecord],
    wall_ms: int,
) -> None:
    history.write(
        "kept",
        topic=at.topic,
        partition=at.partition,
        node=node,
        batches=batches,
        records=[
            [r.offset, r.timestamp, r.leader_epoch, _text(r.key), _text(r.value), r.mark.decode()] for r in records
        ],
        wall_ms=wall_ms,
    )


def sent_of(row: Mapping[str, Any]) -> KeyedWrite:
    return KeyedWrite(
        row["value"].encode(),
        at_of(row),
        row["key"].encode(),
        _bytes(row["content"]),
        row["timestamp"],
        Outcome(row["outcome"]),
        row["offset"],
        row["began"],
    )


def scan_of(row: Mapping[str, Any]) -> Scan:
    records = [
        ReadRecord(offset, timestamp, _bytes(key), _bytes(value), mark.encode())
        for offset, timestamp, key, value, mark in row["records"]
    ]
    return Scan(row["consumer"], at_of(row), records, row["end"], row["ended"] - row["began"])


def kept_of(row: Mapping[str, Any], end: int) -> CleanedReplica:
    """Return a copy of a partition that is committed up to ``end``."""
    records = [
        KeyedRecord(offset, timestamp, epoch, _bytes(key), _bytes(value), mark.encode())
        for offset, timestamp, epoch, key, value, mark in row["records"]
    ]
    batches = [(base, last, epoch) for base, last, epoch in row["batches"]]
    return CleanedReplica(NodeId(row["node"]), 0, end, end, batches, records)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
