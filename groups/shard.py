"""The group coordinator of one partition of ``__consumer_offsets``: only decisions, without IO.

Requests, time and the outcomes of appends go in; effects come out, to be performed in order. A request comes with a
``waiter``, a number that the caller chooses. Exactly one :class:`~tidelog.groups.state.effects.Answer` will name it,
among this call's effects or a later one's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from tidelog.groups.classic.joining import Joining
from tidelog.groups.classic.rebalancing import Rebalancing
from tidelog.groups.classic.syncing import Syncing
from tidelog.groups.consumer.asking import leaving_heartbeat
from tidelog.groups.consumer.decided import refuse_waiting
from tidelog.groups.consumer.heartbeating import Heartbeating
from tidelog.groups.describing import describe, describe_consumer, listed
from tidelog.groups.offsets.committing import Committing
from tidelog.groups.offsets.expiring import Expiring
from tidelog.groups.offsets.transactional import Transactional
from tidelog.groups.replaying import Replaying
from tidelog.groups.state.counters import GroupCounters
from tidelog.groups.state.effects import Effect
from tidelog.groups.state.settings import GroupSettings
from tidelog.groups.state.shard_state import PendingAppend, ShardState, TimerKey, TimerKind
from tidelog.groups.state.topics import NoTopics, Topics
from tidelog.groups.state.transitions import Cause, GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, ProducerEpoch, ProducerId
from tidelog.model.moment import Moment
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatRequest, DescribedConsumerGroup
from tidelog.proto.calls.group_api import (
    DescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchResult,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.proto.calls.transaction_api import TransactionMarker, TxnOffsetCommitRequest
from tidelog.replication.coordinators.coordinator_core import BATCH_BYTES_MAX, CoordinatorCore


class Shard(CoordinatorCore[TimerKey, Effect, PendingAppend]):
    """State machine of one partition under one leader epoch. ``client_host`` is in the form that records hold
    (``/127.0.0.1``)."""

    __slots__ = ("_committing", "_expiring", "_heartbeating", "_joining", "_rebalancing", "_syncing", "_transactional")

    _state: ShardState
    _replaying: Replaying

    def __init__(
        self,
        leader_epoch: LeaderEpoch,
        settings: GroupSettings,
        rng: random.Random,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        *,
        counters: GroupCounters | None = None,
        topics: Callable[[], Topics] = NoTopics,
    ) -> None:
        self._state = ShardState(leader_epoch, settings, rng, batch_bytes_max, counters or GroupCounters(), topics)
        self._rebalancing = Rebalancing(self._state)
        self._heartbeating = Heartbeating(self._state, self._rebalancing)
        self._joining = Joining(self._state, self._rebalancing, self._heartbeating.join)
        self._syncing = Syncing(self._state, self._rebalancing, self._heartbeating)
        self._committing = Committing(self._state)
        self._transactional = Transactional(self._state, self._committing)
        self._expiring = Expiring(self._state)
        self._replaying = Replaying(self._state)

    @property
    def state(self) -> ShardState:
        """For reading by tests and gauges."""
        return self._state

    # --- Loading ------------------------------------------------------------------------------------

    def loaded(self, now: Moment) -> list[Effect]:
        """Start after the whole log is replayed: sessions restart. A group over its maximum size rebalances
        (``onLoaded``)."""
        for group in self._replaying.finish(now):
            if group.consumer is not None:
                self._heartbeating.loaded(group, now)
            for member in group.members.values():
                self._state.restart_session(group, member, now)
            if group.is_unled:
                self._rebalancing.converted(group, now)
            elif len(group.members) > self._state.settings.max_size:
                self._rebalancing.prepare(group, Cause.OVER_CAPACITY, now)
        self._expiring.schedule(now)
        return self._effects()

    # --- Membership ---------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, waiter: int, now: Moment, client_host: str) -> list[Effect]:
        self._joining.join(request, client_host, waiter, now)
        return self._effects()

    def sync(self, request: SyncGroupRequest, waiter: int, now: Moment) -> list[Effect]:
        self._syncing.sync(request, waiter, now)
        return self._effects()

    def heartbeat(self, request: HeartbeatRequest, now: Moment) -> HeartbeatResponse:
        """Answer immediately, without effects; the next deadline may come earlier."""
        return self._syncing.heartbeat(request, now)

    def leave(self, request: LeaveGroupRequest, now: Moment) -> tuple[LeaveGroupResponse, list[Effect]]:
        """Answer immediately; the effects concern others."""
        response = self._syncing.leave(request, now)
        return response, self._effects()

    def leaving_heartbeats(self, request: LeaveGroupRequest) -> list[ConsumerGroupHeartbeatRequest] | None:
        """Return what its members would send themselves, if it is a group of the consumer protocol."""
        group = self._state.groups.get(request.group_id)
        if group is None or group.consumer is None:
            return None
        return [leaving_heartbeat(group.consumer, leaving) for leaving in request.members]

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        waiter: int,
        now: Moment,
        client_host: str,
        may_see: Callable[[str], bool],
    ) -> list[Effect]:
        """``may_see``: the topics that the member may describe."""
        self._heartbeating.heartbeat(request, waiter, now, client_host, may_see)
        return self._effects()

    # --- Offsets ------------------------------------------------------------------------------------

    def commit_offsets(self, request: OffsetCommitRequest, waiter: int, now: Moment) -> list[Effect]:
        self._committing.commit(request, waiter, now)
        return self._effects()

    def fetch_offsets(self, request: OffsetFetchGroup, *, require_stable: bool) -> OffsetFetchResult:
        return self._committing.fetch(request, require_stable=require_stable)

    def delete_offsets(self, request: OffsetDeleteRequest, waiter: int, now: Moment) -> list[Effect]:
        self._committing.delete(request, waiter, now)
        return self._effects()

    def topics_deleted(self, topics: Iterable[str], now: Moment) -> list[Effect]:
        """Delete the committed offsets of deleted topics."""
        self._expiring.topics_deleted(topics, now)
        return self._effects()

    # --- Transactions -------------------------------------------------------------------------------

    def has_open(self, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        """Return whether this transaction already has offsets here, and is not ending."""
        return self._transactional.has_open(producer_id, epoch)

    def commit_transactional(self, request: TxnOffsetCommitRequest, waiter: int, now: Moment) -> list[Effect]:
        """Commit a transaction's offsets; the transaction already includes the partition."""
        self._transactional.commit(request, waiter, now)
        return self._effects()

    def complete(self, marker: TransactionMarker, waiter: int, now: Moment) -> list[Effect]:
        """Write the marker that ends a transaction here; the answer is an error code."""
        self._transactional.complete(marker, waiter, now)
        return self._effects()

    # --- Administration -----------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribedGroup:
        return describe(group_id, self._state.groups.get(group_id))

    def describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        state = self._state
        return describe_consumer(group_id, state.groups.get(group_id), state.topics(), state.settings)

    def list_groups(self, states: tuple[str, ...], types: tuple[str, ...]) -> list[ListedGroup]:
        return listed(self._state.groups.values(), states, types)

    def delete_group(self, group_id: str, waiter: int, now: Moment) -> list[Effect]:
        """The answer is a :class:`~tidelog.proto.calls.group_api.DeletedGroup`."""
        self._expiring.delete_group(group_id, waiter, now)
        return self._effects()

    # --- Time and log -------------------------------------------------------------------------------

    def resign(self, now: Moment) -> list[Effect]:
        state = self._state
        error = ErrorCode.NOT_COORDINATOR
        for pending in state.appends.values():
            pending.abandoned(error)
        state.appends.clear()
        for group in state.groups.values():
            if group.consumer is not None:
                refuse_waiting(state, group.consumer, error)
            for member, waiter, is_joining in group.waiters():
                if is_joining:
                    state.answer(waiter, JoinGroupResponse(error, member_id=member.member_id))
                else:
                    state.answer(waiter, SyncGroupResponse(error))
            group.move(GroupState.DEAD, Cause.UNLOADED, now.wall_ms)
        state.groups.clear()
        state.transactions.clear()
        state.timers.clear()
        return self._effects()

    def _due(self, key: TimerKey, now: Moment) -> None:
        match key.kind:
            case TimerKind.SESSION:
                self._rebalancing.session_timer(key.group_id, key.member_id, now)
            case TimerKind.JOIN:
                self._rebalancing.join_timer(key.group_id, now)
            case TimerKind.SYNC:
                self._rebalancing.sync_timer(key.group_id, now)
            case TimerKind.MEMBER_SESSION | TimerKind.REVOCATION | TimerKind.MEMBER_JOIN | TimerKind.MEMBER_SYNC:
                self._heartbeating.timer(key, now)
            case TimerKind.WORK:
                self._heartbeating.work_timer(key.group_id, now)
            case TimerKind.EXPIRY:
                self._expiring.check(now)

    def _append_ended(self, pending: PendingAppend, number: int, error: ErrorCode, now: Moment) -> None:
        pending.ended(number, error, now)

    def _append_late(self, pending: PendingAppend, now: Moment) -> None:
        pending.timed_out(now)
