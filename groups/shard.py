"""The coordinator of the groups of one partition of ``__consumer_offsets``: decisions alone, without IO.

Requests, time and the ends of appends go in; effects come out, to be done in order. A request comes with a
``waiter``, a number of the caller's choice, which exactly one :class:`~tidelog.groups.effects.Answer` will
name, in this call's effects or a later one's. Life: ``replay`` and ``loaded``, then requests, at last ``resign``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from tidelog.groups.committing import Committing
from tidelog.groups.counters import GroupCounters
from tidelog.groups.describing import describe, listed
from tidelog.groups.effects import Effect
from tidelog.groups.expiring import Expiring
from tidelog.groups.joining import Joining
from tidelog.groups.rebalancing import Rebalancing
from tidelog.groups.replaying import Replaying
from tidelog.groups.settings import GroupSettings
from tidelog.groups.shard_state import ShardState, TimerKey, TimerKind
from tidelog.groups.syncing import Syncing
from tidelog.groups.transactional import Transactional
from tidelog.groups.transitions import Cause, GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, ProducerEpoch, ProducerId
from tidelog.model.moment import Moment
from tidelog.proto.group_api import (
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
from tidelog.proto.records import Batch
from tidelog.proto.transaction_api import TransactionMarker, TxnOffsetCommitRequest
from tidelog.replication.coordinator_log import Token


class Shard:
    """State machine of one partition under one leader epoch. ``client_host`` as records hold it (``/127.0.0.1``)."""

    __slots__ = (
        "_committing",
        "_expiring",
        "_joining",
        "_rebalancing",
        "_replaying",
        "_state",
        "_syncing",
        "_transactional",
    )

    def __init__(
        self,
        leader_epoch: LeaderEpoch,
        settings: GroupSettings,
        rng: random.Random,
        batch_bytes_max: int = 1_048_588,
        *,
        counters: GroupCounters | None = None,
    ) -> None:
        self._state = ShardState(leader_epoch, settings, rng, batch_bytes_max, counters or GroupCounters())
        self._rebalancing = Rebalancing(self._state)
        self._joining = Joining(self._state, self._rebalancing)
        self._syncing = Syncing(self._state, self._rebalancing)
        self._committing = Committing(self._state)
        self._transactional = Transactional(self._state, self._committing)
        self._expiring = Expiring(self._state)
        self._replaying = Replaying(self._state)

    @property
    def state(self) -> ShardState:
        """For reading: by tests and gauges."""
        return self._state

    @property
    def replayed(self) -> int:
        """Records of the log that were looked at."""
        return self._replaying.records

    @property
    def passed_over(self) -> int:
        """Records of the log that could not be used."""
        return self._replaying.passed_over

    # --- Loading ------------------------------------------------------------------------------------

    def replay(self, batch: Batch) -> None:
        """Take one batch of the log. Raises :class:`~tidelog.proto.corrupt_batch.CorruptBatch`."""
        self._replaying.batch(batch)

    def loaded(self, now: Moment) -> list[Effect]:
        """All of the log is replayed: sessions begin anew. A group over its size rebalances (``onLoaded``)."""
        for group in self._replaying.finish(now):
            for member in group.members.values():
                self._state.restart_session(group, member, now)
            if len(group.members) > self._state.settings.max_size:
                self._rebalancing.prepare(group, Cause.OVER_CAPACITY, now)
        self._expiring.schedule(now)
        return self._effects()

    # --- Membership ---------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, client_host: str, waiter: int, now: Moment) -> list[Effect]:
        self._joining.join(request, client_host, waiter, now)
        return self._effects()

    def sync(self, request: SyncGroupRequest, waiter: int, now: Moment) -> list[Effect]:
        self._syncing.sync(request, waiter, now)
        return self._effects()

    def heartbeat(self, request: HeartbeatRequest, now: Moment) -> HeartbeatResponse:
        """Answered at once, without effects."""
        return self._syncing.heartbeat(request, now)

    def leave(self, request: LeaveGroupRequest, now: Moment) -> tuple[LeaveGroupResponse, list[Effect]]:
        """Answered at once; the effects are others'."""
        response = self._syncing.leave(request, now)
        return response, self._effects()

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
        """Forget what is committed of topics that are no more."""
        self._expiring.topics_deleted(topics, now)
        return self._effects()

    # --- Transactions -------------------------------------------------------------------------------

    def has_open(self, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        """Whether this transaction has offsets here already, and is not just ending."""
        return self._transactional.has_open(producer_id, epoch)

    def commit_transactional(self, request: TxnOffsetCommitRequest, waiter: int, now: Moment) -> list[Effect]:
        """The partition is in the transaction already."""
        self._transactional.commit(request, waiter, now)
        return self._effects()

    def complete(self, marker: TransactionMarker, waiter: int, now: Moment) -> list[Effect]:
        """Write the marker that ends a transaction here; the answer is an error code."""
        self._transactional.complete(marker, waiter, now)
        return self._effects()

    # --- Administration -----------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribedGroup:
        return describe(group_id, self._state.groups.get(group_id))

    def list_groups(self, states: tuple[str, ...], types: tuple[str, ...]) -> list[ListedGroup]:
        return listed(self._state.groups.values(), states, types)

    def delete_group(self, group_id: str, waiter: int, now: Moment) -> list[Effect]:
        """The answer is a :class:`~tidelog.proto.group_api.DeletedGroup`."""
        self._expiring.delete_group(group_id, waiter, now)
        return self._effects()

    # --- Time and log -------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When :meth:`tick` is due, monotonic ms. It may find nothing then."""
        return self._state.timers.next_deadline()

    def tick(self, now: Moment) -> list[Effect]:
        """Do what has come due."""
        for key in self._state.timers.due(now.monotonic_ms):
            if key not in self._state.timers:  # else what came due before it set it anew
                self._due(key, now)
        return self._effects()

    def appended(self, token: Token, error: ErrorCode, now: Moment) -> list[Effect]:
        """An append ended: NONE, it is in the log for good; NOT_COORDINATOR, leadership ended, as does this;
        else nothing of it was written. A token of another epoch, or one that ended before, changes nothing."""
        state = self._state
        if token.leader_epoch != state.leader_epoch:
            return []
        if error is ErrorCode.NOT_COORDINATOR:
            return self.resign(now)
        pending = state.appends.pop(token.number, None)
        if pending is None:
            return []
        state.timers.cancel(TimerKey(TimerKind.APPEND, number=token.number))
        pending.ended(token.number, error, now)
        return self._effects()

    def resign(self, now: Moment) -> list[Effect]:
        """Leadership ended: everybody who waits is told to look for the new coordinator, and all is forgotten."""
        state = self._state
        error = ErrorCode.NOT_COORDINATOR
        for pending in state.appends.values():
            pending.abandoned(error)
        state.appends.clear()
        for group in state.groups.values():
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
            case TimerKind.APPEND:
                pending = self._state.appends.get(key.number)
                if pending is not None:
                    pending.timed_out(now)
            case TimerKind.EXPIRY:
                self._expiring.check(now)

    def _effects(self) -> list[Effect]:
        effects, self._state.effects = self._state.effects, []
        return effects
