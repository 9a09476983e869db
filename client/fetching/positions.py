"""A consumer's state per partition: position, data buffered ahead, and what it waits for. Pure.

====================  ===========================================================================
state                 what happens
====================  ===========================================================================
new, in a group       the group's committed offset is looked up; there is none: without a position
without a position    an offset is looked up by the reset policy (or the timestamp asked for)
ahead of its leader   the leader known is of an older epoch than the position: a newer one is waited for
to be validated       the leader is of a newer epoch than the position: does its log still hold the
                      records read before (KIP-320)? It is asked where their epoch ends
fetching              fetches go out from ``fetch_offset`` on, one at a time per partition
failed                the next poll raises the error; ``seek`` leaves the state
====================  ===========================================================================

``position`` is the offset of the next record to hand out, ``fetch_offset`` that of the next to fetch; buffered records
lie between them. ``generation`` rises with each seek; answers to requests of older generations are dropped. Source:
Kafka's ``SubscriptionState`` and ``OffsetsForLeaderEpochUtils``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.config.consumer import OffsetReset
from tidelog.client.config.priorities import PriorityWeights
from tidelog.client.errors import (
    IllegalStateError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from tidelog.client.fetching.turns import Turns
from tidelog.client.record import ConsumerBatch, ConsumerRecord
from tidelog.model.ids import NO_NODE, NodeId, Offset, TopicId, TopicPartition
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.committed_reads import Aborted, Passed, without_aborted

UNKNOWN: Final = -1


@dataclass(slots=True, eq=False)
class PartitionState:
    """One assigned partition."""

    at: TopicPartition
    position: int = UNKNOWN
    position_epoch: int = UNKNOWN
    """Leader epoch of the last record before ``position``; -1 unknown."""
    fetch_offset: int = UNKNOWN
    fetch_epoch: int = UNKNOWN
    validated_epoch: int = UNKNOWN
    """Leader epoch at which the position was last validated."""
    leader_epoch_min: int = UNKNOWN
    """Leaders with older epochs are not asked: the caller knows the range from a leader with this epoch."""
    topic_id: TopicId | None = None
    """Id of the topic that was asked for records from the position; in a later topic with its name, epochs start
    again."""
    behind_since_ms: int = UNKNOWN
    """Since when no leader of ``fetch_epoch`` or later is known."""
    reset: OffsetReset | None = None
    """How to find a position if there is none."""
    wants_committed: bool = False
    """The position is the group's committed offset, not looked up yet."""
    withheld: bool = False
    """About to be revoked: return and fetch nothing more."""
    buffered: deque[Batch | Passed] = field(default_factory=deque)
    buffered_bytes: int = 0
    leftover: list[ConsumerRecord] = field(default_factory=list)
    """Records of a decoded batch that did not fit into a poll, in reverse order."""
    leftover_end: int = UNKNOWN
    """Offset after the batch of ``leftover``."""
    paused: bool = False
    asking: bool = False
    """A request about this partition is in flight."""
    hold: bool = False
    """Fetch nothing ahead until the buffer is empty."""
    retry_at_ms: int = -1 << 62
    nearest: NodeId = NO_NODE
    """The follower that the leader suggested for reading, until ``nearest_until_ms`` (KIP-392)."""
    nearest_until_ms: int = -1 << 62
    leader_only_until_ms: int = -1 << 62
    """A follower failed: request the records themselves from the leader, not a nearby replica."""
    failures: int = 0
    generation: int = 0
    high_watermark: int = UNKNOWN
    last_stable_offset: int = UNKNOWN
    read_committed: bool = False
    """As of the last fetch: records from the last stable offset on are not returned yet."""
    log_start_offset: int = UNKNOWN
    empty_until: int = UNKNOWN
    """Compaction has left nothing from ``fetch_offset`` up to here, as :meth:`found_nothing` learned."""
    _empty_answer: tuple[int, int] = (UNKNOWN, UNKNOWN)
    """Start of the last empty fetch, and the end of the readable log at that time."""
    error: Exception | None = None

    def seek(self, offset: int, epoch: int = UNKNOWN) -> None:
        """Go to ``offset``; the record before it has leader epoch ``epoch``, if known."""
        self.drop_buffer()
        self.generation += 1
        self.position = self.fetch_offset = offset
        self.position_epoch = self.fetch_epoch = epoch
        self.validated_epoch = UNKNOWN
        self.topic_id = None
        self.behind_since_ms = UNKNOWN
        self.reset = None
        self.wants_committed = False
        self.error = None
        self.hold = False
        self.asking = False
        self.failures = 0
        self.retry_at_ms = -1 << 62

    def ask_reset(self, reset: OffsetReset) -> None:
        """Forget the position; find one by ``reset``."""
        self.seek(UNKNOWN)
        self.reset = reset

    def ask_committed(self) -> None:
        """Forget the position; take the committed offset."""
        self.seek(UNKNOWN)
        self.wants_committed = True

    def drop_buffer(self) -> None:
        """Forget prefetched data, and fetch from the position again."""
        self.buffered.clear()
        self.buffered_bytes = 0
        self.leftover.clear()
        self.empty_until = UNKNOWN
        self._empty_answer = (UNKNOWN, UNKNOWN)
        self.fetch_offset = self.position
        self.fetch_epoch = self.position_epoch

    @property
    def has_data(self) -> bool:
        return bool(self.leftover or self.buffered)

    @property
    def is_ready(self) -> bool:
        """Whether there is something for poll."""
        return self.has_data and not self.paused and not self.withheld

    @property
    def lag(self) -> int | None:
        """Records between the position and the end of the readable log as of the last fetch: the high watermark, or the
        last stable offset for readers of committed records. ``None`` before a fetch."""
        end = self.last_stable_offset if self.read_committed else self.high_watermark
        if self.position == UNKNOWN or end == UNKNOWN:
            return None
        return max(0, end - self.position)

    def needs_validation(self, leader_epoch: int) -> bool:
        return (
            self.position != UNKNOWN and self.fetch_epoch != UNKNOWN and UNKNOWN < self.validated_epoch < leader_epoch
        )

    def may_fetch(self, now_ms: int, bytes_ahead_max: int) -> bool:
        return (
            self.position != UNKNOWN
            and not self.paused
            and not self.withheld
            and not self.asking
            and self.error is None
            and now_ms >= self.retry_at_ms
            and self.buffered_bytes < bytes_ahead_max
            and not (self.hold and self.has_data)
        )

    def read_nearby(self, node: NodeId, until_ms: int) -> None:
        """Read from a replica that the leader suggested."""
        self.nearest, self.nearest_until_ms = node, until_ms

    def read_from_leader(self, until_ms: int) -> None:
        """Read from the leader, because the nearby replica does not serve; the leader decides whether the position is
        valid."""
        self.nearest, self.leader_only_until_ms = NO_NODE, until_ms

    def take_fetched(self, batches: Iterable[Batch], aborted: Aborted = ()) -> int:
        """Buffer the data of a fetch from ``fetch_offset``. Returns its bytes. Of aborted transactions, keeps only how
        far they reach."""
        total = 0
        for batch in without_aborted(batches, aborted) if aborted else batches:
            if batch.next_offset <= self.fetch_offset:
                continue
            self.fetch_offset = batch.next_offset
            self.fetch_epoch = batch.leader_epoch
            self.buffered.append(batch)
            if isinstance(batch, Batch):
                total += batch.size
        self.buffered_bytes += total
        return total

    def pass_until(self, offset: int) -> bool:
        """Note that there is nothing for the filter before ``offset``. Returns whether that is news. The leader epoch
        there is unknown."""
        if offset <= self.fetch_offset:
            return False
        self.fetch_offset, self.fetch_epoch = offset, UNKNOWN
        self.buffered.append(Passed(offset, UNKNOWN))
        return True

    def found_nothing(self) -> bool:
        """Handle an empty fetch of only this partition. Returns whether we learned something from it.

        If the log is readable beyond ``fetch_offset``, that need not mean that it is empty there: the end may have
        moved while the answer was being made. It had not if the previous answer was the same.
        """
        before, end = self._empty_answer
        self._empty_answer = (
            self.fetch_offset,
            self.last_stable_offset if self.read_committed else self.high_watermark,
        )
        if before != self.fetch_offset or end <= max(self.fetch_offset, self.empty_until):
            return False
        self.empty_until = end
        return True

    def next_batch(self) -> ConsumerBatch | None:
        """Take the next batch with records from the buffer, and move the position past it."""
        while self.buffered:
            batch = self.buffered.popleft()
            start = self.position
            self.position = batch.next_offset
            self.position_epoch = batch.leader_epoch
            if isinstance(batch, Passed):
                continue
            self.buffered_bytes -= batch.size
            if batch.record_count and not batch.is_control:
                return ConsumerBatch(self.at.topic, self.at.partition, batch, start)
        return None

    def out_of_range(self, policy: OffsetReset) -> None:
        """Handle that the leader's log does not contain ``fetch_offset``."""
        if self.has_data:
            self.hold = True
        elif policy.kind == "none":
            self.error = OffsetOutOfRangeError(
                f"{self.at}: expected a position within the log, found {self.position}, and auto_offset_reset is none",
                {self.at: Offset(self.position)},
            )
        else:
            self.ask_reset(policy)

    def without_position(self, policy: OffsetReset) -> None:
        """Handle a missing position: the reset policy decides, or the next poll raises."""
        if policy.kind == "none":
            self.error = NoOffsetForPartitionError(
                f"{self.at}: has no position, and auto_offset_reset is none: seek first", {self.at: Offset(UNKNOWN)}
            )
        else:
            self.ask_reset(policy)

    def made_anew(self, policy: OffsetReset) -> None:
        """Handle a position that belongs to an earlier topic with the same name. Source:
        ``Metadata.updateLatestMetadata`` and ``SubscriptionState.maybeCompleteValidation``, where such an epoch has no
        end."""
        if policy.kind == "none":
            self._truncated("the topic was deleted and created again", 0)
        else:
            self.ask_reset(policy)

    def without_such_an_epoch(self) -> None:
        """Handle that no broker knows the leader epoch of the seek."""
        self._truncated(f"no leader of epoch {self.fetch_epoch} or later is known: seek to continue", self.position)

    def _truncated(self, why: str, found: int) -> None:
        position = self.position
        self.drop_buffer()
        self.error = LogTruncationError(
            f"{self.at}: {why}; the position is {position}", {self.at: Offset(position)}, {self.at: Offset(found)}
        )

    def diverged(self, end_epoch: int, end_offset: int, policy: OffsetReset) -> bool:
        """The leader's log differs from the records read, from ``end_offset`` on (the end of ``end_epoch``).

        Drops data fetched ahead. Returns whether records that were handed out are gone: then the position moves to the
        first offset known to differ, or (policy none) the next poll raises ``LogTruncationError``. Source:
        ``SubscriptionState.maybeCompleteValidation``.
        """
        if end_offset == UNKNOWN or end_offset < self.position:
            found = end_offset if end_offset != UNKNOWN else max(0, self.log_start_offset)
            if policy.kind == "none":
                position = self.position
                self.drop_buffer()
                self.error = LogTruncationError(
                    f"{self.at}: the log was truncated at offset {found}, below the position {position}",
                    {self.at: Offset(position)},
                    {self.at: Offset(found)},
                )
            else:
                self.seek(found, end_epoch)
            return True
        self.drop_buffer()
        return False


class Assignment:
    """The partitions of one consumer."""

    def __init__(
        self, policy: OffsetReset, weights: PriorityWeights | None = None, *, from_committed: bool = False
    ) -> None:
        self.policy = policy
        self.from_committed = from_committed
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.turns: Final = Turns[PartitionState](weights)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment; a partition that stays keeps its position and buffer."""
        wanted = dict.fromkeys(TopicPartition(*p) for p in partitions)
        for at in wanted:
            if at.partition < 0 or not at.topic:
                raise ValueError(f"expected a topic's name and a partition from 0 on, found {at!r}")
        for gone in [at for at in self.partitions if at not in wanted]:
            self.partitions.pop(gone).generation += 1
        for at in wanted:
            if at not in self.partitions:
                state = self.partitions[at] = PartitionState(at)
                if self.from_committed:
                    state.ask_committed()
                else:
                    state.without_position(self.policy)
            self.partitions[at].withheld = False
        self.turns.assign(self.partitions[at] for at in wanted)

    def state(self, at: TopicPartition) -> PartitionState:
        """Return a partition's state. Raises ``IllegalStateError`` for one that is not assigned."""
        found = self.partitions.get(at)
        if found is None:
            raise IllegalStateError(f"{TopicPartition(*at)} is not assigned to this consumer")
        return found

    @property
    def buffered_bytes(self) -> int:
        return sum(state.buffered_bytes for state in self.partitions.values())

    def raise_error(self) -> None:
        """Raise the error of a failed partition; it stays until a seek."""
        for state in self.partitions.values():
            if state.error is not None and not state.has_data:
                raise state.error
