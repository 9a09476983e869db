"""A partition as its leader sees it under one leader epoch: followers' positions, high watermark, ISR.

Pure: time comes in as monotonic milliseconds, and nothing is sent from here. Rules and their sources:

- The high watermark is the smallest log end offset of the maximal ISR, never moves back, and does not advance while the
  committed ISR is smaller than min(``min.insync.replicas``, replicas) (KIP-966).
- If the ISR is not whole, the high watermark also waits for an eligible replica that keeps up, so that a replica can
  join the ISR of a busy leader that is alone in it (``Partition.maybeIncrementLeaderHW``).
- A replica leaves the ISR when it has not reached the leader's end for ``replica.lag.time.max.ms``
  (``Replica.isCaughtUp``), and joins when it has reached the high watermark and the start of the
  leader's epoch (``Partition.isFollowerInSync``) under a broker epoch that the metadata confirms
  and does not fence (KIP-841, KIP-903).
- If a fetch names an epoch in which the follower's log differs from ours, the answer says where that epoch ends here,
  and the fetch has no other effect (KIP-595's diverging epoch).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_NODE, NO_OFFSET, BrokerEpoch, LeaderEpoch, NodeId, Offset, PartitionEpoch
from tidelog.proto.calls.controller_api import IsrMember
from tidelog.proto.transport.frames import FetchPartition
from tidelog.replication.partition.isr import IsrProposal, IsrState
from tidelog.storage.log.log import Log

BrokerEpochOf = Callable[[NodeId], BrokerEpoch]
"""Returns the epoch of a live broker, that is, neither fenced nor shutting down by the metadata; else -1. For a
partition's leader also -1 if the broker's replica is on a failed directory."""

RackOf = Callable[[NodeId], str]
"""Returns a broker's ``broker.rack``; empty if it has none."""

NEVER_MS: Final = -(10**15)


@dataclass(slots=True, eq=False)
class FollowerContact:
    """The last time that a follower was heard from on its stream; shared by all partitions that it fetches there.

    Because of this, an idle partition costs nothing: a follower at the leader's end was caught up at its last fetch of
    *anything*, so its partitions need not be touched.
    """

    last_fetch_ms: int


@dataclass(frozen=True, slots=True)
class Diverging:
    """The follower's log differs from ours: our largest epoch not above its last one, and where our epoch ends."""

    epoch: LeaderEpoch
    end_offset: Offset


class FollowerProgress:
    """The position of one remote replica (``org.apache.kafka.server.replica.Replica``)."""

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
        """Whether its stream fetches this partition; a follower that stopped (its disk failed) is not joining."""

    def fetched(self, offset: Offset, log_start: Offset, leader_end: Offset, now_ms: int) -> None:
        """Note that the follower asked for ``offset``, so it holds everything before it."""
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
        """Start to lead: the epoch starts at the log's end, and the log records that.

        Members of the ISR get one full lag time before they count as lagging.
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
        """Keep the state of remaining replicas, forget the others, and add the new ones."""
        kept = self.followers
        self.followers = {
            node: kept.get(node) or FollowerProgress(node, now_ms if node in self.isr.committed else NEVER_MS)
            for node in replicas
            if node != self._node_id
        }

    # --- high watermark ---------------------------------------------------------------------------

    def reached(self, own_end: Offset, min_isr: int, now_ms: int) -> Offset:
        """Return the offset up to which everything is committed, by the followers' positions; -1: no advance now.

        ``own_end`` is the end that this replica itself acknowledges. ``min_isr`` is the effective one.
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
        """Note that a follower stopped fetching this partition, or its stream ended: the high watermark need not wait
        for it to join."""
        follower = self.followers.get(node)
        if follower is not None:
            follower.fetching = False

    def before_append(self) -> None:
        """Prepare for an append: followers at the old end were caught up when they were last heard from."""
        end = self._log.log_end_offset
        for follower in self.followers.values():
            if follower.log_end_offset == end and follower.contact.last_fetch_ms > follower.caught_up_ms:
                follower.caught_up_ms = follower.contact.last_fetch_ms

    def on_fetch(
        self, node: NodeId, broker_epoch: BrokerEpoch, item: FetchPartition, now_ms: int, contact: FollowerContact
    ) -> Diverging | Refusal | None:
        """Check a follower's fetch position and, if it agrees with our log, record it.

        ``None``: the position is valid, and everything before it counts as replicated there.
        """
        follower = self.followers.get(node)
        if follower is None:
            # Retriable: the follower may know a newer assignment than this leader.
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
        """Check whether a log that ends at ``fetch_offset`` with ``last_fetched_epoch`` is a prefix of ours.

        Source: ``Partition.readRecords`` and KIP-595. An offset outside the log is OFFSET_OUT_OF_RANGE.
        """
        log = self._log
        start, end = log.log_start_offset, log.log_end_offset
        if last_fetched_epoch > log.latest_epoch >= 0:
            # No record has an epoch after the leader's own: a bit flipped in a batch's header, which no CRC covers.
            # Records before that epoch may be shared.
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

    def nearest(self, rack: str, offset: Offset, rack_of: RackOf) -> NodeId:
        """Return the replica from which a consumer in ``rack`` should read ``offset``; ``NO_NODE``: from this leader.

        This is a follower in the consumer's rack, if the leader is not there: live, in sync, and with the offset as far
        as the leader knows; among several, the most advanced. A lagging one would keep sending the consumer back.
        Source: KIP-392, ``RackAwareReplicaSelector``.
        """
        if rack_of(self._node_id) == rack:
            return NO_NODE
        in_sync = self.isr.committed
        found = [
            follower
            for follower in self.followers.values()
            if rack_of(follower.node) == rack
            and follower.node in in_sync
            and follower.log_start_offset <= offset <= follower.log_end_offset
            and self._broker_epoch_of(follower.node) >= 0
        ]
        return max(found, key=lambda each: (each.log_end_offset, each.caught_up_ms)).node if found else NO_NODE

    def low_watermark(self, own_log_start: Offset) -> Offset:
        """Return the smallest log start offset of this and every live replica (``Partition.lowWatermarkIfLeader``)."""
        low = own_log_start
        for follower in self.followers.values():
            if follower.log_start_offset < low and self._broker_epoch_of(follower.node) >= 0:
                low = follower.log_start_offset
        return low

    # --- ISR ----------------------------------------------------------------------------------------

    def propose_expansion(self, node: NodeId, high_watermark: Offset) -> IsrProposal | None:
        """After a fetch from ``node``: ask to admit it if it is in sync and may join."""
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
        """Without a fetch: ask to admit a follower that keeps up, but could not be proposed when it was last heard
        from."""
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
        """Ask to drop the lagging members."""
        isr = self.isr
        if isr.proposal is not None:
            return None
        lagging = self.lagging(now_ms)
        if not lagging:
            return None
        return self.propose(tuple(node for node in isr.committed if node not in lagging))

    def propose(self, isr: tuple[NodeId, ...]) -> IsrProposal:
        """Propose ``isr``, each member with its currently known broker epoch."""
        return self.isr.propose(tuple(IsrMember(node, self._broker_epoch(node)) for node in isr))

    def lagging(self, now_ms: int) -> frozenset[NodeId]:
        """Return committed members, except the leader, that have been behind for longer than the lag time."""
        end = self._log.log_end_offset
        return frozenset(
            node
            for node in self.isr.committed
            if (follower := self.followers.get(node)) is not None
            and not follower.caught_up(end, now_ms, self._lag_time_max_ms)
        )

    def is_settled(self) -> bool:
        """Return whether every replica is in the ISR and at the leader's end, so that no lag check is needed."""
        end = self._log.log_end_offset
        return (
            self.isr.proposal is None
            and len(self.isr.committed) == len(self.followers) + 1
            and all(follower.log_end_offset == end for follower in self.followers.values())
        )

    def _broker_epoch(self, node: NodeId) -> BrokerEpoch:
        """Return the broker epoch to name for an ISR member: the one in its fetches, else the metadata's."""
        if node != self._node_id and (follower := self.followers.get(node)) is not None and follower.broker_epoch >= 0:
            return follower.broker_epoch
        return self._broker_epoch_of(node)

    def _is_eligible(self, follower: FollowerProgress) -> bool:
        return follower.broker_epoch >= 0 and self._broker_epoch_of(follower.node) == follower.broker_epoch
