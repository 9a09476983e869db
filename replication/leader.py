"""A partition as its leader sees it under one leader epoch: followers' positions, high watermark, ISR.

Pure: time comes in as monotonic milliseconds, nothing is sent from here. Rules and their sources:

- The high watermark is the smallest log end offset of the maximal ISR, never moves back, and stands
  still while the committed ISR is smaller than min(``min.insync.replicas``, replicas) (KIP-966).
- Where the ISR is not whole, the high watermark also waits for an eligible replica that keeps up, so
  that a busy leader alone in its ISR can be joined at all (``Partition.maybeIncrementLeaderHW``).
- A replica leaves the ISR when it has not reached the leader's end for ``replica.lag.time.max.ms``
  (``Replica.isCaughtUp``), and joins when it has reached the high watermark and the start of the
  leader's epoch (``Partition.isFollowerInSync``) under a broker epoch that the metadata confirms
  and does not fence (KIP-841, KIP-903).
- A fetch that names an epoch under which its log differs from ours is told where that epoch ends
  here and counts for nothing else (KIP-595's diverging epoch).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_OFFSET, BrokerEpoch, LeaderEpoch, NodeId, Offset, PartitionEpoch
from tidelog.proto.controller_api import IsrMember
from tidelog.proto.frames import FetchPartition
from tidelog.replication.isr import IsrProposal, IsrState
from tidelog.storage.log import Log

BrokerEpochOf = Callable[[NodeId], BrokerEpoch]
"""The epoch of a broker that the metadata knows as live: neither fenced nor shutting down; else -1."""

NEVER_MS: Final = -(10**15)


@dataclass(slots=True, eq=False)
class FollowerContact:
    """When one follower was last heard of on its stream; shared by all partitions it fetches there.

    It is what makes an idle partition cost nothing: a follower that stands at the leader's end was
    caught up at its last fetch of *anything*, so its partitions need not be touched.
    """

    last_fetch_ms: int


@dataclass(frozen=True, slots=True)
class Diverging:
    """The follower's log has left ours: our largest epoch not above its last one, and where that ends."""

    epoch: LeaderEpoch
    end_offset: Offset


class FollowerProgress:
    """Where one remote replica stands (``org.apache.kafka.server.replica.Replica``)."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "contact",
        "fetching",
        "last_fetch_leader_end",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "node",
    )

    def __init__(self, node: NodeId, caught_up_ms: int) -> None:
        self.node = node
        self.broker_epoch = BrokerEpoch(-1)
        self.log_end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.caught_up_ms = caught_up_ms
        self.last_fetch_ms = NEVER_MS
        self.last_fetch_leader_end = NO_OFFSET
        self.contact = FollowerContact(NEVER_MS)
        self.fetching = False
        """Whether its stream fetches this partition; one that let go of it (its disk failed) is not joining."""

    def fetched(self, offset: Offset, log_start: Offset, leader_end: Offset, now_ms: int) -> None:
        """The follower asked for ``offset``: it holds everything before it."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.last_fetch_leader_end and self.last_fetch_leader_end >= 0:
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.fetching = True
        self.log_end_offset = offset
        self.log_start_offset = log_start
        self.last_fetch_ms = now_ms
        self.last_fetch_leader_end = leader_end

    def caught_up(self, leader_end: Offset, now_ms: int, lag_time_max_ms: int) -> bool:
        return self.log_end_offset == leader_end or now_ms - self.caught_up_ms <= lag_time_max_ms


class LeaderState:
    """Leadership of one partition under one leader epoch."""

    __slots__ = (
        "_broker_epoch_of",
        "_lag_time_max_ms",
        "_log",
        "_node_id",
        "epoch",
        "epoch_start",
        "followers",
        "isr",
    )

    def __init__(
        self,
        node_id: NodeId,
        log: Log,
        epoch: LeaderEpoch,
        replicas: tuple[NodeId, ...],
        isr: tuple[NodeId, ...],
        partition_epoch: PartitionEpoch,
        *,
        now_ms: int,
        lag_time_max_ms: int,
        broker_epoch_of: BrokerEpochOf,
    ) -> None:
        """Begin to lead: the epoch starts at the log's end, and that is recorded in the log.

        Members of the ISR get a whole lag time before they may be called lagging.
        """
        self._node_id = node_id
        self._log = log
        self._lag_time_max_ms = lag_time_max_ms
        self._broker_epoch_of = broker_epoch_of
        self.epoch = epoch
        self.epoch_start = log.log_end_offset
        log.assign_epoch_start(epoch, self.epoch_start)
        self.isr = IsrState(isr, partition_epoch)
        self.followers: dict[NodeId, FollowerProgress] = {}
        self.replicas_changed(replicas, now_ms)

    def replicas_changed(self, replicas: tuple[NodeId, ...], now_ms: int) -> None:
        """Keep the state of replicas that stay, forget the others, start with the new ones."""
        kept = self.followers
        self.followers = {
            node: kept.get(node) or FollowerProgress(node, now_ms if node in self.isr.committed else NEVER_MS)
            for node in replicas
            if node != self._node_id
        }

    # --- high watermark ---------------------------------------------------------------------------

    def reached(self, own_end: Offset, min_isr: int, now_ms: int) -> Offset:
        """The offset up to which everything is committed as far as followers have told; -1: no advance now.

        ``own_end`` is what this replica itself vouches for. ``min_isr`` is the effective one.
        """
        isr = self.isr
        if len(isr.committed) < min_isr:
            return NO_OFFSET
        end = own_end
        maximal = isr.maximal
        for follower in self.followers.values():
            if follower.log_end_offset < end and (follower.node in maximal or self._is_joining(follower, now_ms)):
                end = follower.log_end_offset
        return end

    def _is_joining(self, follower: FollowerProgress, now_ms: int) -> bool:
        return (
            follower.fetching
            and follower.log_end_offset >= self.epoch_start
            and follower.caught_up(self._log.log_end_offset, now_ms, self._lag_time_max_ms)
            and self._is_eligible(follower)
        )

    # --- followers ----------------------------------------------------------------------------------

    def stopped_fetching(self, node: NodeId) -> None:
        """A follower let go of this partition, or its stream ended: the high watermark need not wait for it to join."""
        follower = self.followers.get(node)
        if follower is not None:
            follower.fetching = False

    def before_append(self) -> None:
        """The log's end is about to move: followers that stand at it were caught up when last heard of."""
        end = self._log.log_end_offset
        for follower in self.followers.values():
            if follower.log_end_offset == end and follower.contact.last_fetch_ms > follower.caught_up_ms:
                follower.caught_up_ms = follower.contact.last_fetch_ms

    def on_fetch(
        self, node: NodeId, broker_epoch: BrokerEpoch, item: FetchPartition, now_ms: int, contact: FollowerContact
    ) -> Diverging | Refusal | None:
        """Judge a follower's fetch position and, where it agrees with our log, record it.

        ``None``: the position stands and everything before it counts as replicated there.
        """
        follower = self.followers.get(node)
        if follower is None:
            # Retriable: the follower may know of a newer assignment than this leader.
            return Refusal(ErrorCode.UNKNOWN_LEADER_EPOCH, f"node {node} is not among this partition's replicas here")
        if broker_epoch < follower.broker_epoch:
            return Refusal(
                ErrorCode.STALE_BROKER_EPOCH,
                f"expected broker epoch {follower.broker_epoch} or later of node {node}, found {broker_epoch}",
            )
        verdict = self.agrees(item.fetch_offset, item.last_fetched_epoch)
        if verdict is not None:
            return verdict
        follower.broker_epoch = broker_epoch
        follower.contact = contact
        follower.fetched(item.fetch_offset, item.log_start_offset, self._log.log_end_offset, now_ms)
        return None

    def agrees(self, fetch_offset: Offset, last_fetched_epoch: LeaderEpoch) -> Diverging | Refusal | None:
        """Whether a log that ends at ``fetch_offset`` with ``last_fetched_epoch`` is a prefix of ours.

        Source: ``Partition.readRecords`` and KIP-595. An offset outside the log is OFFSET_OUT_OF_RANGE.
        """
        log = self._log
        start, end = log.log_start_offset, log.log_end_offset
        if last_fetched_epoch > log.latest_epoch >= 0:
            # Nobody wrote in an epoch after the leader's own: a bit of a batch's header has flipped, which no CRC
            # covers. What is before that epoch may be shared.
            return Diverging(log.latest_epoch, end)
        if last_fetched_epoch >= 0 and start <= fetch_offset:
            epoch, epoch_end = log.end_offset_for_epoch(last_fetched_epoch)
            if epoch < 0 or epoch_end < 0:
                return Refusal(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"the end of leader epoch {last_fetched_epoch} is not known here"
                )
            if epoch < last_fetched_epoch or epoch_end < fetch_offset:
                return Diverging(epoch, epoch_end)
        if not start <= fetch_offset <= end:
            return Refusal(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"expected an offset from {start} to {end}, found {fetch_offset}"
            )
        return None

    def low_watermark(self, own_log_start: Offset) -> Offset:
        """The smallest log start offset of this and every live replica (``Partition.lowWatermarkIfLeader``)."""
        low = own_log_start
        for follower in self.followers.values():
            if follower.log_start_offset < low and self._broker_epoch_of(follower.node) >= 0:
                low = follower.log_start_offset
        return low

    # --- ISR ----------------------------------------------------------------------------------------

    def propose_expansion(self, node: NodeId, high_watermark: Offset) -> IsrProposal | None:
        """After a fetch of ``node``: ask to take it in where it is in sync and may join."""
        isr = self.isr
        if isr.proposal is not None or node in isr.maximal:
            return None
        follower = self.followers.get(node)
        if (
            follower is None
            or follower.log_end_offset < high_watermark
            or follower.log_end_offset < self.epoch_start
            or not self._is_eligible(follower)
        ):
            return None
        return self.propose((*isr.committed, node))

    def propose_waiting(self, high_watermark: Offset, now_ms: int) -> IsrProposal | None:
        """Without a fetch: ask to take in a follower that keeps up and could not be asked for when it was heard."""
        isr = self.isr
        if isr.proposal is not None or len(isr.maximal) > len(self.followers):
            return None
        for follower in self.followers.values():
            if follower.node not in isr.maximal and self._is_joining(follower, now_ms):
                proposal = self.propose_expansion(follower.node, high_watermark)
                if proposal is not None:
                    return proposal
        return None

    def propose_shrink(self, now_ms: int) -> IsrProposal | None:
        """Ask to drop the members that lag."""
        isr = self.isr
        if isr.proposal is not None:
            return None
        lagging = self.lagging(now_ms)
        if not lagging:
            return None
        return self.propose(tuple(node for node in isr.committed if node not in lagging))

    def propose(self, isr: tuple[NodeId, ...]) -> IsrProposal:
        """Ask for ``isr``, each member under the broker epoch that it is known by now."""
        return self.isr.propose(tuple(IsrMember(node, self._broker_epoch(node)) for node in isr))

    def lagging(self, now_ms: int) -> frozenset[NodeId]:
        """Committed members, the leader apart, that have been behind for longer than the lag time."""
        end = self._log.log_end_offset
        return frozenset(
            node
            for node in self.isr.committed
            if (follower := self.followers.get(node)) is not None
            and not follower.caught_up(end, now_ms, self._lag_time_max_ms)
        )

    def is_settled(self) -> bool:
        """Whether every replica is in the ISR and stands at the leader's end: no look at lag is due."""
        end = self._log.log_end_offset
        return (
            self.isr.proposal is None
            and len(self.isr.committed) == len(self.followers) + 1
            and all(follower.log_end_offset == end for follower in self.followers.values())
        )

    def _broker_epoch(self, node: NodeId) -> BrokerEpoch:
        """The broker epoch to name for an ISR member: the one it fetched under, else the metadata's."""
        if node != self._node_id and (follower := self.followers.get(node)) is not None and follower.broker_epoch >= 0:
            return follower.broker_epoch
        return self._broker_epoch_of(node)

    def _is_eligible(self, follower: FollowerProgress) -> bool:
        return follower.broker_epoch >= 0 and self._broker_epoch_of(follower.node) == follower.broker_epoch
