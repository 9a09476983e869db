"""Judges of one replica by itself, at any moment.

===================  ========================================================================================
marks within         a high watermark lies within the log; a leader's never falls while it leads and runs
producers known      a replica's producer state is the one that follows from its log, after a start, after a
                     truncation and as a leader: else a retry is written twice, or acknowledged without being
                     there
wishes end           a leader's request for other in-sync replicas ends with the partition epoch under which
                     it was made: a member of that time may have been out of them since (KIP-497)
===================  ========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.chaos.checkers.replication import PartitionName
from tidelog.model.ids import NodeId

NO_LEADERSHIP = -1


class MarkJudge:
    """Judges high watermarks. Feed it every replica whenever it may have moved."""

    def __init__(self) -> None:
        self._led: dict[tuple[PartitionName, NodeId], tuple[int, int]] = {}
        """Leader epoch in which a node leads, and its high watermark."""

    def restarted(self, node: NodeId) -> None:
        """Note that a node's process ended."""
        for key in [key for key in self._led if key[1] == node]:
            del self._led[key]

    def observe(
        self, partition: PartitionName, node: NodeId, leading_epoch: int, high_watermark: int, log_end: int
    ) -> list[str]:
        """Judge the current state of a replica. ``leading_epoch``: :data:`NO_LEADERSHIP` if it does not lead."""
        found = []
        if high_watermark > log_end:
            found.append(
                f"marks within: node {node}'s {partition} ends at {log_end}; its high watermark is {high_watermark}"
            )
        key = (partition, node)
        if leading_epoch == NO_LEADERSHIP:
            self._led.pop(key, None)
            return found
        epoch, mark = self._led.get(key, (leading_epoch, high_watermark))
        self._led[key] = (leading_epoch, high_watermark)
        if epoch == leading_epoch and high_watermark < mark:
            found.append(
                f"marks within: node {node} leads {partition} in leader epoch {epoch}; its high watermark fell from "
                f"{mark} to {high_watermark}"
            )
        return found


def wish_outlived(partition: PartitionName, node: NodeId, decided_under: int, partition_epoch: int) -> list[str]:
    """Judge a leader's coming request to the controller by the partition epoch that it knows now."""
    if decided_under == partition_epoch:
        return []
    return [
        f"wishes end: node {node} leads {partition} under partition epoch {partition_epoch} and wants what it decided "
        f"under {decided_under}"
    ]


class ProducedBatch(NamedTuple):
    """The producer fields of a stored batch."""

    producer_id: int
    epoch: int
    sequence: int
    """The sequence of its last record; -1 for a batch without, as coordinators write in transactions."""
    offset: int
    """The offset of its last record."""
    begin: int = -1
    """The offset of its first record, if it is part of a transaction."""
    is_marker: bool = False


class KnownProducer(NamedTuple):
    """The last known state of a producer. ``sequence`` and ``offset`` are -1 if only a marker of that epoch is known;
    ``open_since`` is the start of its open transaction."""

    epoch: int
    sequence: int
    offset: int
    open_since: int = -1


def producers_of(batches: Iterable[ProducedBatch]) -> dict[int, KnownProducer]:
    """Return the producer state that follows from a log with these batches. Batches without a producer id (-1) are
    skipped."""
    found: dict[int, KnownProducer] = {}
    for batch in batches:
        if batch.producer_id < 0:
            continue
        known = found.get(batch.producer_id)
        if not batch.is_marker:
            begin = batch.begin if known is None or known.open_since < 0 else known.open_since
            last = (batch.sequence, batch.offset)
            if batch.sequence < 0:
                is_same = known is not None and known.epoch == batch.epoch
                last = (known.sequence, known.offset) if known is not None and is_same else (-1, -1)
            found[batch.producer_id] = KnownProducer(batch.epoch, *last, begin)
        elif known is None or known.epoch != batch.epoch:
            found[batch.producer_id] = KnownProducer(batch.epoch, -1, -1)
        else:
            found[batch.producer_id] = known._replace(open_since=-1)
    return found


def producers_apart(
    partition: PartitionName,
    node: NodeId,
    known: Mapping[int, KnownProducer],
    stored: Mapping[int, KnownProducer],
    *,
    log_start: int = 0,
    may_expire: bool = False,
) -> list[str]:
    """Compare a replica's producer state with what its log says.

    ``log_start``: what was known from deleted records and markers below it may still be known.
    ``may_expire``: producers without an open transaction may be forgotten.
    """
    found = []
    for producer_id in sorted({*known, *stored}):
        has, due = known.get(producer_id), stored.get(producer_id)
        if may_expire and has is None and due is not None and due.open_since < 0:
            continue
        if has is not None and due is None and has.open_since < 0 and has.offset < log_start and log_start > 0:
            continue
        if has is not None and due == has._replace(sequence=-1, offset=-1) and 0 <= has.offset < log_start:
            continue
        if has != due:
            found.append(
                f"producers known: node {node} knows {_said(has)} of producer {producer_id} in {partition}; its log "
                f"says {_said(due)}"
            )
    return found


def _said(known: KnownProducer | None) -> str:
    if known is None:
        return "nothing"
    text = f"epoch {known.epoch}, sequence {known.sequence} at {known.offset}"
    return text if known.open_since < 0 else f"{text}, a transaction from {known.open_since}"
