"""A history's evidence about the logs: the value at each offset, its writer, its readers.

This is the common ground of all judges of a history. It is built in one pass over everything that was read; details
that only an anomaly needs are looked up when there is one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from tidelog.chaos.checkers.history import (
    NO_OFFSET,
    Circumstances,
    FinalLog,
    History,
    Outcome,
    Polled,
    Sent,
    Transaction,
    TransactionKey,
)
from tidelog.model.ids import TopicPartition

FINAL_READ: Final = "the final read"
"""The name of the consumer that represents the final log."""


class LogEvidence:
    """A history and what follows from it, partition by partition.

    Evidence for a value at an offset is a read there, during the run or at the end, or a durable acknowledgement of a
    send that must have been committed (Jepsen's ``must-have-committed?``).
    """

    def __init__(self, history: History, final: FinalLog, circumstances: Circumstances) -> None:
        self.history = history
        self.final = final
        self.circumstances = circumstances
        self.writer: dict[bytes, Sent] = {sent.value: sent for sent in history.sends}
        self.transactions: dict[TransactionKey, Transaction] = {each.key: each for each in history.transactions}
        self.polls: list[Polled] = [
            Polled(FINAL_READ, partition, records, float("inf"), float("inf"), read_committed=True)
            for partition, records in final.items()
        ]
        self.polls += [step for step in history.reads if isinstance(step, Polled) and step.records]
        self.at: dict[TopicPartition, dict[int, bytes]] = {}
        """Partition and offset → the value that was seen there first."""
        self.conflicts: dict[tuple[TopicPartition, int], list[bytes]] = {}
        """Partition and offset → further values that were seen there."""
        self.read_at: dict[bytes, tuple[TopicPartition, int]] = {}
        """Value → where it was read first."""
        self.read_again_at: dict[bytes, list[tuple[TopicPartition, int]]] = {}
        """Value → further places where it was read."""
        self.read_end: dict[TopicPartition, int] = {}
        """Partition → the highest offset read."""
        self.committed_by_reading: dict[TransactionKey, None] = {}
        """Transactions with at least one record that a read_committed consumer saw."""
        self._read()
        self._acknowledgements()
        self._offsets: dict[TopicPartition, list[int]] = {}

    # --- questions -------------------------------------------------------------------------------------

    def outcome_of(self, sent: Sent) -> Outcome:
        """Return the known outcome of a send together with its transaction: ``OK`` must be visible, ``FAILED`` must
        not. An unknown transaction with a record that was read was committed."""
        if sent.transaction is None or sent.outcome is Outcome.FAILED:
            return sent.outcome
        transaction = self.transactions.get(sent.transaction)
        outcome = Outcome.UNKNOWN if transaction is None else transaction.outcome
        if outcome is Outcome.UNKNOWN and sent.transaction in self.committed_by_reading:
            outcome = Outcome.OK
        return sent.outcome if outcome is Outcome.OK else outcome

    def offset_of(self, sent: Sent) -> int:
        """Return the offset of a send's value if it is known, else :data:`NO_OFFSET`."""
        read_at = self.read_at.get(sent.value)
        if read_at is not None and read_at[0] == sent.partition:
            return read_at[1]
        return sent.offset if self._proves(sent) else NO_OFFSET

    def positions_of(self, value: bytes) -> list[tuple[TopicPartition, int]]:
        """Return every place where a value was read."""
        read_at = self.read_at.get(value)
        return [] if read_at is None else [read_at, *self.read_again_at.get(value, ())]

    def offsets(self, partition: TopicPartition) -> list[int]:
        """Return the offsets of a partition at which a value is known, ascending."""
        found = self._offsets.get(partition)
        if found is None:
            found = self._offsets[partition] = sorted(self.at.get(partition, ()))
        return found

    def between(self, partition: TopicPartition, after: int, before: int) -> Iterator[tuple[int, bytes]]:
        """Yield the known offsets and values between two offsets, both excluded."""
        offsets = self.offsets(partition)
        at = self.at.get(partition, {})
        for position in range(bisect_right(offsets, after), bisect_left(offsets, before)):
            yield offsets[position], at[offsets[position]]

    def visible(self, value: bytes, *, read_committed: bool) -> bool:
        """Return whether a consumer of this isolation level that passes a value must receive it."""
        sent = self.writer.get(value)
        if not read_committed or sent is None or sent.transaction is None:
            return True
        transaction = self.transactions.get(sent.transaction)
        committed = transaction is not None and transaction.outcome is Outcome.OK
        return committed or sent.transaction in self.committed_by_reading

    def lost_legally(self, partition: TopicPartition, offset: int, began_s: float) -> bool:
        """Return whether a legal loss accounts for the value that was at an offset at a given time."""
        return any(
            loss.partition == partition and offset >= loss.from_offset and began_s <= loss.at_s
            for loss in self.circumstances.losses
        )

    def loss_at(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether a legal loss at any time reached an offset."""
        return self.lost_legally(partition, offset, float("-inf"))

    def deleted(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether the value at an offset may have been deleted: it is below log start."""
        return offset < self.circumstances.log_starts.get(partition, 0)

    def readers(self, value: bytes) -> Iterator[tuple[Polled, int]]:
        """Yield the polls that returned a value, and its offset in each. Slow: for reports."""
        for poll in self.polls:
            for offset, found in poll.records:
                if found == value:
                    yield poll, offset

    # --- evidence --------------------------------------------------------------------------------------

    def _read(self) -> None:
        read_at, writer = self.read_at, self.writer
        for poll in self.polls:
            partition, records = poll.partition, poll.records
            at = self.at.setdefault(partition, {})
            for offset, value in records:
                if at.setdefault(offset, value) != value:
                    self._conflict(partition, offset, value)
                found = read_at.get(value)
                if found is None:
                    read_at[value] = (partition, offset)
                elif found != (partition, offset):
                    others = self.read_again_at.setdefault(value, [])
                    if (partition, offset) not in others:
                        others.append((partition, offset))
            if records:
                end = max(records)[0]
                self.read_end[partition] = max(end, self.read_end.get(partition, NO_OFFSET))
            if poll.read_committed and self.transactions:
                self._commits(records, writer)

    def _commits(self, records: Sequence[tuple[int, bytes]], writer: dict[bytes, Sent]) -> None:
        for _, value in records:
            sent = writer.get(value)
            if sent is not None and sent.transaction is not None:
                self.committed_by_reading[sent.transaction] = None

    def _acknowledgements(self) -> None:
        for sent in self.history.sends:
            if self._proves(sent):
                at = self.at.setdefault(sent.partition, {})
                if at.setdefault(sent.offset, sent.value) != sent.value:
                    self._conflict(sent.partition, sent.offset, sent.value)

    def _proves(self, sent: Sent) -> bool:
        return (
            sent.outcome is Outcome.OK
            and sent.durable
            and sent.offset >= 0
            and (sent.transaction is None or self.outcome_of(sent) is Outcome.OK)
        )

    def _conflict(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        others = self.conflicts.setdefault((partition, offset), [])
        if value not in others:
            others.append(value)
