"""Judges the order in which consumers received records and the order of producers' records in the log."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from tidelog.chaos.checkers.anomalies.evidence import FINAL_READ, LogEvidence
from tidelog.chaos.checkers.anomalies.kinds import Anomaly, AnomalyKind
from tidelog.chaos.checkers.anomalies.records import shown
from tidelog.chaos.checkers.history import ConsumerStep, Polled, Positioned, Sent, TransactionKey
from tidelog.model.ids import TopicPartition


class _Position(NamedTuple):
    """A consumer's position in a partition: after this offset."""

    offset: int
    by: str
    """``poll`` or ``seek``."""
    transaction: TransactionKey | None


def poll_anomalies(evidence: LogEvidence) -> Iterator[Anomaly]:
    """Find polls that go back or skip something."""
    positions: dict[tuple[str, TopicPartition], _Position] = {}
    final: list[ConsumerStep] = [poll for poll in evidence.polls if poll.consumer is FINAL_READ]
    for step in [*final, *evidence.history.reads]:
        reader = (step.consumer, step.partition)
        if isinstance(step, Positioned):
            if step.offset >= 0:
                positions[reader] = _Position(step.offset - 1, "seek", None)
            else:
                positions.pop(reader, None)
        elif step.records:
            position = positions.get(reader)
            if position is not None:
                yield from _across(evidence, position, step)
            yield from _within(evidence, step)
            positions[reader] = _Position(step.records[-1][0], "poll", step.transaction)


def _across(evidence: LogEvidence, position: _Position, poll: Polled) -> Iterator[Anomaly]:
    first = poll.records[0][0]
    if first == position.offset + 1:
        return
    internal = poll.transaction is not None and poll.transaction == position.transaction
    allowed = "its rebalances are not recorded" if poll.consumer in evidence.circumstances.rebalanced else ""
    stood = f"after offset {position.offset}" if position.by == "poll" else f"at position {position.offset + 1}"
    if first <= position.offset:
        kind = AnomalyKind.INT_NONMONOTONIC_POLL if internal else AnomalyKind.NONMONOTONIC_POLL
        text = f"{poll.consumer} stood {stood} of {poll.partition} and was given {first}"
        yield Anomaly(kind, text, allowed)
        return
    skipped = _skipped(evidence, poll, position.offset, first)
    if skipped:
        kind = AnomalyKind.INT_POLL_SKIP if internal else AnomalyKind.POLL_SKIP
        text = f"{poll.consumer} stood {stood} of {poll.partition} and was given {first}, without {skipped}"
        yield Anomaly(kind, text, allowed)


def _within(evidence: LogEvidence, poll: Polled) -> Iterator[Anomaly]:
    """Find anomalies within one poll. A value missing from the final read is lost or vanished; the judge of single
    records reports that."""
    last = poll.records[0][0]
    for offset, _ in poll.records[1:]:
        if offset <= last:
            text = f"{poll.consumer} was given {offset} after {last} of {poll.partition} in one poll"
            yield Anomaly(AnomalyKind.INT_NONMONOTONIC_POLL, text)
        elif offset != last + 1 and poll.consumer is not FINAL_READ:
            skipped = _skipped(evidence, poll, last, offset)
            if skipped:
                given = f"{offset} after {last} of {poll.partition}"
                text = f"{poll.consumer} was given {given} in one poll, without {skipped}"
                yield Anomaly(AnomalyKind.INT_POLL_SKIP, text)
        last = offset


def _skipped(evidence: LogEvidence, poll: Polled, after: int, before: int) -> str:
    """Describe what a consumer should have received between two offsets; empty if nothing is missing."""
    if poll.partition in evidence.circumstances.compacted:
        return ""
    missing = [
        (offset, value)
        for offset, value in evidence.between(poll.partition, after, before)
        if evidence.visible(value, read_committed=poll.read_committed)
        and not evidence.deleted(poll.partition, offset)
        and not evidence.loss_at(poll.partition, offset)
    ]
    if not missing:
        return ""
    offset, value = missing[0]
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"{shown(value)} at {offset}{more}"


def send_anomalies(evidence: LogEvidence) -> Iterator[Anomaly]:
    """Find records of a producer that are in another order than they were sent."""
    last: dict[tuple[str, TopicPartition], tuple[int, Sent]] = {}
    for sent in sorted(evidence.history.sends, key=attrgetter("producer", "number")):
        offset = evidence.offset_of(sent)
        if offset < 0:
            continue
        line = (sent.producer, sent.partition)
        before = last.get(line)
        last[line] = (offset, sent)
        if before is None or offset == before[0] + 1:
            continue
        internal = sent.transaction is not None and sent.transaction == before[1].transaction
        if offset <= before[0]:
            yield _nonmonotonic_send(evidence, before, sent, offset, internal=internal)
        else:
            others = [value for _, value in evidence.between(sent.partition, before[0], offset)]
            if others:
                kind = AnomalyKind.INT_SEND_SKIP if internal else AnomalyKind.SEND_SKIP
                text = f"between {shown(before[1].value)} and {shown(sent.value)} stand {len(others)} of others"
                yield Anomaly(kind, text, "always")


def _nonmonotonic_send(
    evidence: LogEvidence, before: tuple[int, Sent], sent: Sent, offset: int, *, internal: bool
) -> Anomaly:
    kind = AnomalyKind.INT_NONMONOTONIC_SEND if internal else AnomalyKind.NONMONOTONIC_SEND
    allowed = ""
    if sent.producer in evidence.circumstances.without_idempotence:
        allowed = f"{sent.producer} is not idempotent"
    elif evidence.lost_legally(sent.partition, before[0], before[1].began_s):
        allowed = "what stood there was lost legally"
    text = (
        f"{sent.producer} sent {shown(before[1].value)}, at {sent.partition} offset {before[0]}, "
        f"before {shown(sent.value)}, at {offset}"
    )
    return Anomaly(kind, text, allowed)
