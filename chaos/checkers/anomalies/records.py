"""Judges single records: is each where it was acknowledged, once, permanently, and was each really sent?"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.chaos.checkers.anomalies.evidence import FINAL_READ, LogEvidence
from tidelog.chaos.checkers.anomalies.kinds import Anomaly, AnomalyKind
from tidelog.chaos.checkers.history import NO_OFFSET, Outcome, Polled, Positioned, Sent
from tidelog.model.ids import TopicPartition


def record_anomalies(evidence: LogEvidence) -> Iterator[Anomaly]:
    """Find anomalies of single records."""
    yield from _inconsistent_offsets(evidence)
    yield from _duplicates(evidence)
    yield from _reads(evidence)
    yield from _sends(evidence)
    yield from _final_log(evidence)


def shown(value: bytes) -> str:
    """Print the start of a value: it names the record, the rest is padding."""
    return repr(value[:40].decode("utf-8", "backslashreplace"))


def _inconsistent_offsets(evidence: LogEvidence) -> Iterator[Anomaly]:
    for (partition, offset), others in evidence.conflicts.items():
        values = ", ".join(shown(value) for value in [evidence.at[partition][offset], *others])
        allowed = "a legal loss gave the offset anew" if evidence.loss_at(partition, offset) else ""
        yield Anomaly(AnomalyKind.INCONSISTENT_OFFSETS, f"{partition} has at offset {offset}: {values}", allowed)


def _duplicates(evidence: LogEvidence) -> Iterator[Anomaly]:
    for value, others in evidence.read_again_at.items():
        positions = [evidence.read_at[value], *others]
        sent = evidence.writer.get(value)
        allowed = ""
        if sent is not None and sent.producer in evidence.circumstances.without_idempotence:
            allowed = f"{sent.producer} is not idempotent"
        where = ", ".join(f"{partition} offset {offset}" for partition, offset in positions)
        yield Anomaly(AnomalyKind.DUPLICATE, f"{shown(value)} stands at {where}", allowed)


def _reads(evidence: LogEvidence) -> Iterator[Anomaly]:
    """Find reads of values that nobody sent, that failed, that were aborted or that were not sent yet."""
    for value, (partition, offset) in evidence.read_at.items():
        sent = evidence.writer.get(value)
        if sent is None:
            yield Anomaly(AnomalyKind.PHANTOM, f"{shown(value)} at {partition} offset {offset}: nobody sent it")
        elif any(position[0] != sent.partition for position in evidence.positions_of(value)):
            text = f"{shown(value)} at {partition} offset {offset} was sent to {sent.partition}"
            yield Anomaly(AnomalyKind.PHANTOM, text)
        elif sent.outcome is Outcome.FAILED:
            yield _aborted_read(evidence, sent, "whose send failed")
        elif sent.transaction is not None:
            transaction = evidence.transactions.get(sent.transaction)
            if transaction is not None and transaction.outcome is Outcome.FAILED:
                yield _aborted_read(evidence, sent, f"of transaction {transaction.key.number}, which was aborted")
    began_s = {sent.value: sent.began_s for sent in evidence.history.sends}
    last_began_s = max(began_s.values(), default=0.0)
    for poll in evidence.polls:
        if poll.ended_s >= last_began_s:
            continue
        for _, value in poll.records:
            if began_s.get(value, 0.0) > poll.ended_s:
                text = f"{poll.consumer} read {shown(value)} before {evidence.writer[value].producer} sent it"
                yield Anomaly(AnomalyKind.CIRCULAR_IN_REAL_TIME, text)


def _aborted_read(evidence: LogEvidence, sent: Sent, what: str) -> Anomaly:
    readers = list(evidence.readers(sent.value))
    poll, offset = next(((poll, offset) for poll, offset in readers if poll.read_committed), readers[0])
    allowed = ""
    if sent.outcome is not Outcome.FAILED and not poll.read_committed:
        allowed = f"{poll.consumer} reads uncommitted"
    text = f"{poll.consumer} read {shown(sent.value)} at {sent.partition} offset {offset}, {what}"
    return Anomaly(AnomalyKind.ABORTED_READ, text, allowed)


def _sends(evidence: LogEvidence) -> Iterator[Anomaly]:
    """Find acknowledged sends that nobody saw, or that are elsewhere."""
    ranges = _ranges_read(evidence)
    for sent in evidence.history.sends:
        if evidence.outcome_of(sent) is not Outcome.OK:
            continue
        offset, partition = sent.offset, sent.partition
        if sent.value in evidence.read_at:
            positions = evidence.positions_of(sent.value)
            if offset >= 0 and (partition, offset) not in positions and positions[0][0] == partition:
                text = f"{shown(sent.value)}, acknowledged at {partition} offset {offset}, stands at {positions[0][1]}"
                yield Anomaly(AnomalyKind.MISPLACED, text, _excuse(evidence, sent))
            continue
        text = f"{shown(sent.value)} of {sent.producer}, acknowledged at {partition} offset {offset}, "
        allowed = _excuse(evidence, sent)
        end = evidence.read_end.get(partition, NO_OFFSET)
        if NO_OFFSET < offset <= end:
            passed = any(begin <= offset <= last for begin, last in ranges.get(partition, ()))
            if not passed and partition not in evidence.final:
                allowed = allowed or "no consumer passed it, and the partition was not read at the end"
            yield Anomaly(AnomalyKind.LOST_WRITE, f"{text}was never read, though {end} was", allowed)
        else:
            if partition not in evidence.final:
                allowed = allowed or "the partition was not read at the end"
            yield Anomaly(AnomalyKind.UNSEEN, f"{text}was never read; the last that was is {end}", allowed)


def _ranges_read(evidence: LogEvidence) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Return for each partition the ranges of offsets, first and last, that somebody read through. A consumer without a
    sought position read from 0."""
    ranges: dict[TopicPartition, list[tuple[int, int]]] = {}
    under_way: dict[tuple[str, TopicPartition], tuple[int | None, int]] = {}

    def end(partition: TopicPartition, begin: int | None, last: int) -> None:
        if begin is not None and last >= begin:
            ranges.setdefault(partition, []).append((begin, last))

    for step in evidence.history.reads:
        reader = (step.consumer, step.partition)
        if isinstance(step, Positioned):
            end(step.partition, *under_way.get(reader, (None, NO_OFFSET)))
            under_way[reader] = (step.offset if step.offset >= 0 else None, NO_OFFSET)
        elif step.records:
            begin, last = under_way.get(reader, (0, NO_OFFSET))
            under_way[reader] = (step.records[0][0] if begin is None else begin, max(last, step.records[-1][0]))
    for (_, partition), range_read in under_way.items():
        end(partition, *range_read)
    return ranges


def _excuse(evidence: LogEvidence, sent: Sent) -> str:
    """Say why an acknowledged record may be missing; empty if it must be there."""
    if not sent.durable:
        return "its acknowledgement did not promise that it stays"
    if evidence.lost_legally(sent.partition, sent.offset, sent.began_s):
        return "it was lost legally"
    if sent.offset > NO_OFFSET and evidence.deleted(sent.partition, sent.offset):
        return "it is below log start"
    if sent.partition in evidence.circumstances.compacted:
        return "the partition was compacted"
    return ""


def _final_log(evidence: LogEvidence) -> Iterator[Anomaly]:
    """Find records that were read and are gone at the end, and holes."""
    marked = {sent.partition for sent in evidence.history.sends if sent.transaction is not None}
    for partition, records in evidence.final.items():
        yield from _holes(evidence, partition, [offset for offset, _ in records], marked=partition in marked)
    at_the_end = {partition: {value for _, value in records} for partition, records in evidence.final.items()}
    for value, (partition, _) in evidence.read_at.items():
        if partition in at_the_end and value not in at_the_end[partition]:
            anomaly = _vanished(evidence, value, partition)
            if anomaly is not None:
                yield anomaly


def _vanished(evidence: LogEvidence, value: bytes, partition: TopicPartition) -> Anomaly | None:
    sent = evidence.writer.get(value)
    found: tuple[Polled, int] | None = None
    for poll, offset in evidence.readers(value):
        if poll.consumer is FINAL_READ or poll.partition != partition:
            continue
        if poll.read_committed or sent is None or evidence.visible(value, read_committed=True):
            found = poll, offset
            break
    if found is None:
        return None
    poll, offset = found
    allowed = ""
    if evidence.deleted(partition, offset):
        allowed = "it is below log start"
    elif evidence.lost_legally(partition, offset, poll.began_s):
        allowed = "it was lost legally"
    elif partition in evidence.circumstances.compacted:
        allowed = "the partition was compacted"
    text = f"{poll.consumer} read {shown(value)} at {partition} offset {offset}; it is not in the log at the end"
    return Anomaly(AnomalyKind.VANISHED, text, allowed)


def _holes(evidence: LogEvidence, partition: TopicPartition, offsets: list[int], *, marked: bool) -> Iterator[Anomaly]:
    if not offsets:
        return
    expected = evidence.circumstances.log_starts.get(partition, 0)
    if offsets[-1] - expected + 1 == len(offsets):
        return
    allowed = ""
    if marked:
        allowed = "transactions leave markers"
    elif partition in evidence.circumstances.compacted:
        allowed = "the partition was compacted"
    for offset in offsets:
        if offset > expected:
            legal = allowed or ("it was lost legally" if evidence.loss_at(partition, offset - 1) else "")
            missing = f"offset {expected}" if offset == expected + 1 else f"offsets {expected} to {offset - 1}"
            yield Anomaly(AnomalyKind.HOLE, f"{partition} has nothing at {missing}", legal)
        expected = max(expected, offset + 1)
