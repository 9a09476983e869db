"""One replica of one partition on this node: its role, its high watermark, and its rights under each epoch.

Pure over a :class:`~tidelog.storage.log.log.Log`; the shell (:mod:`tidelog.replication.partition.replica`,
:mod:`tidelog.replication.manager`) passes in requests and time, and wakes the waiters.

Roles and transitions:

===========  =============================================================  =====================
from         news                                                           to
===========  =============================================================  =====================
any          partition epoch or leader epoch older than known               no change (*stale*)
any          newer leader epoch, leader is this node                        leader
any          newer leader epoch, leader is another node                     follower of it
any          newer leader epoch, no leader                                  idle
leader       same leader epoch, newer partition epoch                       leader, new ISR/replicas
leader       :meth:`Partition.resign` (the broker is fenced or stops)       idle, until newer epoch
any          :meth:`Partition.fail` (its directory failed)                  offline, until removed
===========  =============================================================  =====================

The high watermark survives role changes and only rises, except when records below it are truncated; that happens only
after an unclean election.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_NODE, BrokerEpoch, LeaderEpoch, NodeId, Offset, PartitionEpoch
from tidelog.model.replica_counts import effective_min_isr
from tidelog.proto.records.batches import Batch
from tidelog.proto.transport.frames import FetchedPartition, FetchPartition
from tidelog.replication.partition.follower import (
    FollowerState,
    KeepLog,
    StartAt,
    TruncateTo,
    out_of_range,
    truncation_point,
)
from tidelog.replication.partition.isr import IsrProposal
from tidelog.replication.partition.leader import BrokerEpochOf, Diverging, FollowerContact, LeaderState
from tidelog.replication.partition.partition_state import PartitionState
from tidelog.storage.log.log import Log
from tidelog.storage.producers.append_checks import LogAppend, Origin
from tidelog.storage.segments.log_read import LogRead

logger = logging.getLogger(__name__)


class RoleChange(enum.Enum):
    """The result of :meth:`Partition.update`."""

    STALE = "stale"
    SAME = "same"
    ISR = "isr"
    LEADER = "leader"
    FOLLOWER = "follower"
    IDLE = "idle"


class Fetched(enum.Enum):
    """The result of :meth:`Partition.take`, which tells the fetcher what to do next."""

    NOTHING_NEW = "nothing new"
    """The leader already knows the position."""
    MOVED = "moved"
    """The position, or the log start, changed: name it to the leader."""
    STALE = "stale"
    """Not an answer to a request under the current epoch: ask again."""
    DAMAGED = "damaged"
    """The data are not whole batches: ask again after a pause. The second time, the leader first checks its records."""
    RETRY = "retry"
    """Refused for now: ask again after a pause."""


@dataclass(slots=True)
class PartitionCounts:
    """Counts of one replica's events, for operators."""

    truncations: int = 0
    truncations_below_high_watermark: int = 0
    duplicates: int = 0
    """Appends already in the log, because a producer sent them again."""
    nearby_reads: int = 0
    """Consumers' fetches that this replica answered with records as a follower."""


class Partition:
    """See the module. ``high_watermark`` at creation is the checkpointed one, 0 if there is none."""

    __slots__ = (
        "_broker_epoch_of",
        "_damaged_at",
        "_lag_time_max_ms",
        "_refused",
        "counts",
        "following",
        "high_watermark",
        "leader_high_watermark",
        "leading",
        "log",
        "node_id",
        "offline",
        "state",
    )

    def __init__(
        self,
        node_id: NodeId,
        log: Log,
        state: PartitionState,
        *,
        high_watermark: Offset,
        lag_time_max_ms: int,
        broker_epoch_of: BrokerEpochOf,
    ) -> None:
        self.node_id = node_id
        self.log = log
        self._lag_time_max_ms = lag_time_max_ms
        self._broker_epoch_of = broker_epoch_of
        self.high_watermark = Offset(max(log.log_start_offset, min(high_watermark, log.log_end_offset)))
        self.leader_high_watermark = self.high_watermark
        """As of the leader's last answer to this follower."""
        self.leading: LeaderState | None = None
        self.following: FollowerState | None = None
        self._refused: tuple[Offset, Refusal] | None = None
        """The log's end when a leader's records were last refused, and the reason; in this role."""
        self._damaged_at = Offset(-1)
        """The log's end when a leader last sent damaged records for that position."""
        self.offline = False
        self.counts = PartitionCounts()
        self.state = state
        """The newest state applied; its ISR is the committed one."""

    # --- role -----------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> RoleChange:
        """Take the first state's role."""
        return self._take_role(now_ms)

    def update(self, state: PartitionState, now_ms: int) -> RoleChange:
        """Apply a newer state from the controller; older states change nothing."""
        known = self.state
        assert state.key == known.key
        if state.leader_epoch < known.leader_epoch or state.partition_epoch < known.partition_epoch:
            return RoleChange.STALE
        self.state = state
        if state.leader_epoch > known.leader_epoch:
            return self._take_role(now_ms)
        if self.leading is None:
            return RoleChange.SAME
        if state.replicas != known.replicas:
            self.leading.replicas_changed(state.replicas, now_ms)
        elif state.partition_epoch == known.partition_epoch and state.config is known.config:
            return RoleChange.SAME
        self.leading.isr.commit(state.isr, state.partition_epoch)
        return RoleChange.ISR

    def _take_role(self, now_ms: int) -> RoleChange:
        state = self.state
        self.leading = self.following = self._refused = None
        if self.offline or state.leader == NO_NODE or self.node_id not in state.replicas:
            return RoleChange.IDLE
        if state.leader != self.node_id:
            self.following = FollowerState(state.leader, state.leader_epoch)
            self.leader_high_watermark = self.high_watermark
            return RoleChange.FOLLOWER
        self.leading = LeaderState(
            self.node_id,
            self.log,
            state.leader_epoch,
            state.replicas,
            state.isr,
            state.partition_epoch,
            now_ms=now_ms,
            lag_time_max_ms=self._lag_time_max_ms,
            broker_epoch_of=self._broker_epoch_of,
        )
        return RoleChange.LEADER

    def resign(self) -> None:
        """Stop leading until a newer leader epoch says otherwise."""
        self.leading = None

    def leave(self) -> None:
        """Stop serving this replica."""
        self.leading = self.following = None

    def fail(self) -> None:
        """Note that the log's directory has failed."""
        self.offline = True
        self.leading = self.following = None

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.state.leader_epoch

    @property
    def lag(self) -> int:
        """Committed records that a follower lacks, by its leader's last answer; 0 in any other role."""
        return 0 if self.following is None else max(0, self.leader_high_watermark - self.log.log_end_offset)

    @property
    def min_isr(self) -> int:
        """Effective ``min.insync.replicas``: at most the number of replicas (KIP-966)."""
        state = self.state
        wanted, there = state.config.min_insync_replicas, len(state.replicas)
        if state.adding or state.removing:
            return effective_min_isr(wanted, state.replicas, state.adding, state.removing)
        return wanted if wanted < there else there

    @property
    def vouched_end(self) -> Offset:
        """The offset up to which this replica acknowledges its records: its log end, less records that
        ``flush.messages`` still wants on disk. So an acknowledged record is durable on each replica that acknowledged
        it."""
        return self.log.acknowledgeable_offset

    @property
    def needs_flush(self) -> bool:
        """Whether records wait for an fsync before they may count."""
        log = self.log
        return log.acknowledgeable_offset < log.log_end_offset

    def led(self, leader_epoch: LeaderEpoch) -> LeaderState | Refusal:
        """Return the leadership, if this node leads under the epoch in a request (-1: any).

        Source: ``Partition.getLocalLog`` and ``checkCurrentLeaderEpoch`` (KIP-320).
        """
        if self.offline:
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory {self.log.directory} has failed")
        known = self.state.leader_epoch
        if leader_epoch >= 0:
            if leader_epoch < known:
                return Refusal(ErrorCode.FENCED_LEADER_EPOCH, f"expected leader epoch {known}, found {leader_epoch}")
            if leader_epoch > known:
                return Refusal(
                    ErrorCode.UNKNOWN_LEADER_EPOCH, f"expected leader epoch {known} at most, found {leader_epoch}"
                )
        if self.leading is None:
            return Refusal(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self.node_id} does not lead; node {self.state.leader} does"
            )
        return self.leading

    def serves(self, leader_epoch: LeaderEpoch, *, nearby: bool) -> LeaderState | FollowerState | Refusal:
        """Like :meth:`led`, for a consumer's fetch; ``nearby``: a follower also serves, because the consumer asked for
        a replica in its rack (KIP-392)."""
        leading = self.led(leader_epoch)
        if nearby and isinstance(leading, Refusal) and leading.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return self.following or leading
        return leading

    # --- as leader --------------------------------------------------------------------------------

    def append(
        self, batches: Sequence[Batch], acks: int, now_ms: int, wall_ms: int, *, origin: Origin = Origin.CLIENT
    ) -> LogAppend | Refusal:
        """Append a producer's batches; with ``acks`` -1, only if the ISR has ``min.insync.replicas``."""
        leading = self.leading
        if leading is None:
            refusal = self.led(LeaderEpoch(-1))
            assert isinstance(refusal, Refusal)
            return refusal
        if self.state.config.link_name and origin is Origin.CLIENT:
            return Refusal(ErrorCode.INVALID_REQUEST, f"{self.state.topic}: {self.state.config.link_fault('')}")
        if self.state.config.delay_enable and origin is Origin.CLIENT and (fault := self._delay_fault()):
            return Refusal(ErrorCode.POLICY_VIOLATION, fault)
        if acks == -1 and (in_sync := len(leading.isr.committed)) < self.min_isr:
            return Refusal(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"expected min.insync.replicas ({self.min_isr}) in-sync replicas, found {in_sync}",
            )
        if leading.followers:
            leading.before_append()
        appended = self.log.append_as_leader(batches, leading.epoch, wall_ms, origin=origin)
        if isinstance(appended, LogAppend):
            if appended.duplicate:
                self.counts.duplicates += 1
            else:
                self.advance(now_ms)
        return appended

    def _delay_fault(self) -> str:
        """Why a delay topic takes no more; "" if it does. What is done is deleted from its log's start."""
        most, found = self.state.config.delay_pending_max, self.log.log_end_offset - self.log.log_start_offset
        if found < most:
            return ""
        return (
            f"expected fewer than delay.pending.max ({most}) records of {self.state.topic}-{self.state.partition} "
            f"from the oldest undelivered one on, found {found}: they go as they fall due"
        )

    def import_batches(
        self, data: Buffer, now_ms: int, wall_ms: int, *, bulk: bool = False, checked: bool = False
    ) -> LogAppend | Refusal:
        """Append a backup's or a link's batches at their existing offsets, which may have gaps; batches before the
        log's end are skipped. They get this leader's epoch. Only their CRCs are checked, unless they were
        (``checked``). ``bulk``: many of a backup, which only followers will read soon; the log may still be writing
        them (:attr:`~tidelog.storage.log.log_state.LogState.writing`)."""
        leading = self.leading
        assert leading is not None
        if (in_sync := len(leading.isr.committed)) < self.min_isr:
            return Refusal(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"expected min.insync.replicas ({self.min_isr}) in-sync replicas, found {in_sync}",
            )
        if leading.followers:
            leading.before_append()
        appended = self.log.append_as_follower(
            data,
            wall_ms,
            takes_gaps=True,
            leader_epoch=leading.epoch,
            once=bulk and not leading.followers,
            checked=checked,
        )
        if isinstance(appended, LogAppend):
            self.advance(now_ms)
        return appended

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, bears_next_epoch: bool
    ) -> Refusal | None:
        """Return why a transaction's marker must not be appended; see :mod:`tidelog.storage.producers.state`."""
        leading = self.led(LeaderEpoch(-1))
        if isinstance(leading, Refusal):
            return leading
        return self.log.producers.check_marker(producer_id, epoch, coordinator_epoch, bears_next_epoch=bears_next_epoch)

    def advance(self, now_ms: int) -> bool:
        """Raise the high watermark as far as the followers' positions allow. Returns whether it rose."""
        leading = self.leading
        if leading is None:
            return False
        reached = leading.reached(self.vouched_end, self.min_isr, now_ms)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        self.log.producers.committed(reached)
        return True

    def commit_error(self) -> ErrorCode:
        """Return the answer for a batch that the high watermark has passed (``checkEnoughReplicasReachOffset``)."""
        leading = self.leading
        if leading is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if len(leading.isr.maximal) < self.min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def follower_fetch(
        self, node: NodeId, broker_epoch: BrokerEpoch, item: FetchPartition, now_ms: int, contact: FollowerContact
    ) -> Diverging | Refusal | None:
        """Note the position that a follower names; ``None``: it is valid, and the high watermark may have risen."""
        leading = self.led(item.current_leader_epoch)
        if isinstance(leading, Refusal):
            return leading
        verdict = leading.on_fetch(node, broker_epoch, item, now_ms, contact)
        if verdict is None:
            self.advance(now_ms)
        return verdict

    def read_for_follower(self, offset: Offset, bytes_max: int, *, at_least_one: bool) -> LogRead | Refusal:
        """Read for replication: up to the log's end."""
        log = self.log
        return log.read(offset, bytes_max, offset_end=log.log_end_offset, at_least_one=at_least_one)

    def read_error(self, refusal: Refusal) -> ErrorCode:
        """Return the error for unreadable records: retriable if the damage may still be mended."""
        if refusal.code is ErrorCode.CORRUPT_MESSAGE and self.log.mendable:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return refusal.code

    def fetchable_end(self, read_committed: bool) -> Offset:
        """Return the offset before which a consumer may read."""
        return self.last_stable_offset if read_committed else self.high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """The high watermark, or the first record below it of a transaction without a committed marker."""
        return self.log.last_stable_offset(self.high_watermark)

    def latest_offset(self, read_committed: bool) -> Offset | Refusal:
        """Return the offset that "latest" means to a client; unknown until the high watermark has reached this epoch
        (KIP-207)."""
        leading = self.leading
        if leading is None:
            return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self.node_id} does not lead")
        if self.high_watermark < leading.epoch_start:
            return Refusal(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"the high watermark {self.high_watermark} has not reached this leader epoch's start "
                f"{leading.epoch_start} yet",
            )
        return self.fetchable_end(read_committed)

    # --- ISR as leader ----------------------------------------------------------------------------

    def propose_expansion(self, node: NodeId) -> IsrProposal | None:
        return None if self.leading is None else self.leading.propose_expansion(node, self.high_watermark)

    def propose_waiting(self, now_ms: int) -> IsrProposal | None:
        return None if self.leading is None else self.leading.propose_waiting(self.high_watermark, now_ms)

    def propose_shrink(self, now_ms: int) -> IsrProposal | None:
        return None if self.leading is None else self.leading.propose_shrink(now_ms)

    def propose_recovered(self) -> IsrProposal | None:
        """After an unclean election: report the recovery to the controller by naming the current ISR (KIP-704)."""
        leading = self.leading
        if leading is None or not self.state.leader_recovery or leading.isr.proposal is not None:
            return None
        return leading.propose(leading.isr.committed)

    def isr_committed(self, isr: tuple[NodeId, ...], leader_epoch: LeaderEpoch, epoch: PartitionEpoch) -> bool:
        """Apply the ISR in the controller's answer. Returns False if the answer is stale."""
        leading = self.leading
        if leading is None or leader_epoch != leading.epoch:
            return False
        return leading.isr.commit(isr, epoch)

    # --- as follower ------------------------------------------------------------------------------

    def take(self, item: FetchedPartition, wall_ms: int) -> Fetched:
        """Apply the leader's answer: append, truncate, or move the watermark and the log's start.

        Only answers under the current epoch count: late answers from a deposed leader are dropped unread. Raises the
        log's errors when its disk fails.
        """
        following = self.following
        if following is None:
            return Fetched.NOTHING_NEW
        if item.current_leader_epoch != following.epoch:
            return Fetched.RETRY if item.error is not ErrorCode.NONE else Fetched.STALE
        log = self.log
        if item.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._take_out_of_range(item)
        if item.error is not ErrorCode.NONE:
            return Fetched.RETRY
        if item.diverging_epoch >= 0:
            self._truncate(truncation_point(log, item.diverging_epoch, item.diverging_end_offset))
            return Fetched.MOVED
        end = log.log_end_offset
        for records in item.records:
            appended = log.append_as_follower(records, wall_ms, leader_epoch_max=following.epoch)
            if isinstance(appended, Refusal) and self._is_leaders_gap(appended):
                appended = log.append_as_follower(records, wall_ms, leader_epoch_max=following.epoch, takes_gaps=True)
            if isinstance(appended, Refusal):
                return self._not_taken(appended, following.leader)
        if item.records and log.log_end_offset == end:
            return Fetched.STALE
        moved = log.log_end_offset != end
        if item.log_start_offset > log.log_start_offset:
            log.advance_log_start(Offset(min(item.log_start_offset, log.log_end_offset)))
            moved = True
        self.high_watermark = Offset(
            max(self.high_watermark, log.log_start_offset, min(item.high_watermark, log.log_end_offset))
        )
        self.leader_high_watermark = item.high_watermark
        log.producers.committed(self.high_watermark)
        return Fetched.MOVED if moved else Fetched.NOTHING_NEW

    def _not_taken(self, refusal: Refusal, leader: NodeId) -> Fetched:
        """Handle records that the log refused."""
        if refusal.code is not ErrorCode.CORRUPT_MESSAGE:
            return Fetched.RETRY
        end = self.log.log_end_offset
        if end != self._damaged_at:
            self._damaged_at = end
            logger.error(
                "%s: expected whole batches from node %d for offset %d, found damage, which is not taken: %s",
                self.log.name,
                leader,
                end,
                refusal.message,
            )
        return Fetched.DAMAGED

    def forget_refusal(self) -> None:
        """Forget the last refusal on a new stream to the leader: its first answer there is unchecked, because leaders
        check only repeated requests."""
        self._refused = None

    def _is_leaders_gap(self, refusal: Refusal) -> bool:
        """Return whether the leader's own log lacks the next records: on the second request it checks what it sends,
        and it left out the same offsets again.

        That happens if a topic is no longer compacted. The first time it may be a stray answer, or damage.
        """
        refused = (self.log.log_end_offset, refusal)
        again = refused == self._refused
        self._refused = refused
        return again and refusal.code is ErrorCode.OFFSET_OUT_OF_RANGE

    def _take_out_of_range(self, item: FetchedPartition) -> Fetched:
        match out_of_range(self.log, item.log_start_offset, item.diverging_end_offset):
            case TruncateTo(offset):
                self._truncate(offset)
            case StartAt(offset):
                self.log.truncate_fully_and_start_at(offset)
                self.high_watermark = offset
                self.counts.truncations += 1
            case KeepLog():
                return Fetched.RETRY
        return Fetched.MOVED

    def _truncate(self, offset: Offset) -> None:
        self.counts.truncations += 1
        self.log.truncate_to(offset)
        if offset < self.high_watermark:
            self.counts.truncations_below_high_watermark += 1
            self.high_watermark = Offset(max(offset, self.log.log_start_offset))
