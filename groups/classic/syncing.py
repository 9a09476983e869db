"""SyncGroup, Heartbeat and LeaveGroup. Source: ``GroupMetadataManager.classicGroupSync`` and its neighbours."""

from __future__ import annotations

from typing import Protocol

from tidelog.groups.classic.rebalancing import Rebalancing
from tidelog.groups.state.group import Group
from tidelog.groups.state.shard_state import ShardState
from tidelog.groups.state.transitions import Cause, GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.proto.calls.group_api import (
    NO_MEMBER,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.replication.coordinators.coordinator_core import append_error


class ConsumerGroups(Protocol):
    """Handles classic members of a consumer group."""

    def sync(self, group: Group, request: SyncGroupRequest, waiter: int, now: Moment) -> None: ...

    def classic_heartbeat(self, group: Group, request: HeartbeatRequest, now: Moment) -> HeartbeatResponse: ...


class Syncing:
    """Handles members of a generation."""

    __slots__ = ("_consumer_groups", "_rebalancing", "_shard")

    def __init__(self, shard: ShardState, rebalancing: Rebalancing, consumer_groups: ConsumerGroups) -> None:
        self._shard = shard
        self._rebalancing = rebalancing
        self._consumer_groups = consumer_groups

    # --- SyncGroup ----------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, waiter: int, now: Moment) -> None:
        """Answer now, or when the leader's assignment is stored."""
        shard = self._shard
        group = shard.groups.get(request.group_id)
        if group is None:
            shard.answer(waiter, SyncGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        if group.consumer is not None:
            self._consumer_groups.sync(group, request, waiter, now)
            return
        refusal = _sync_refusal(group, request)
        if refusal is not ErrorCode.NONE:
            shard.answer(waiter, SyncGroupResponse(refusal))
            return
        member = group.members[request.member_id]
        self._rebalancing.has_synced(group, request.member_id)
        if group.state is GroupState.STABLE:
            shard.answer(waiter, _assigned(group, member.assignment))
            return
        if member.sync_waiter is not None:
            # It asked again, but still waits only once.
            shard.answer(member.sync_waiter, SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_waiter = waiter
        if group.is_leader(request.member_id) and group.storing is None:
            self._store(group, request, now)

    def _store(self, group: Group, request: SyncGroupRequest, now: Moment) -> None:
        """Write the leader's assignment; nobody learns it before it is stored. The leader's first one counts."""
        given = {item.member_id: item.assignment for item in request.assignments}
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        pending = _AssignmentAppend(self._shard, self._rebalancing, group, assignments)
        number = self._shard.append(self._shard.group_records(group, assignments), pending, now)
        group.record_number = group.storing = number

    # --- Heartbeat ----------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest, now: Moment) -> HeartbeatResponse:
        group = self._shard.groups.get(request.group_id)
        if group is None:
            return HeartbeatResponse(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.consumer is not None:
            return self._consumer_groups.classic_heartbeat(group, request, now)
        refusal = group.refusal(request.member_id, request.group_instance_id)
        if refusal is not ErrorCode.NONE:
            return HeartbeatResponse(refusal)
        if request.generation_id != group.generation:
            return HeartbeatResponse(ErrorCode.ILLEGAL_GENERATION)
        self._shard.restart_session(group, group.members[request.member_id], now)
        # A member may send heartbeats as soon as it has joined: Completing is as good as Stable to it.
        is_joining = group.state is GroupState.PREPARING_REBALANCE
        return HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS if is_joining else ErrorCode.NONE)

    # --- LeaveGroup ---------------------------------------------------------------------------------

    def leave(self, request: LeaveGroupRequest, now: Moment) -> LeaveGroupResponse:
        """Remove members. Each gets its own result; the group rebalances once."""
        group = self._shard.groups.get(request.group_id)
        if group is None:
            unknown = (
                LeftMember(m.member_id, m.group_instance_id, ErrorCode.UNKNOWN_MEMBER_ID) for m in request.members
            )
            return LeaveGroupResponse(ErrorCode.NONE, tuple(unknown))
        left = tuple(
            LeftMember(leaving.member_id, leaving.group_instance_id, self._remove(group, leaving))
            for leaving in request.members
        )
        if any(member.error is ErrorCode.NONE for member in left):
            match group.state:
                case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
                    self._rebalancing.prepare(group, Cause.MEMBER_GONE, now)
                case GroupState.PREPARING_REBALANCE:
                    self._rebalancing.maybe_complete_join(group, now)
                case _:
                    self._shard.forget_if_idle(group, now)
        return LeaveGroupResponse(ErrorCode.NONE, left)

    def _remove(self, group: Group, leaving: LeavingMember) -> ErrorCode:
        member_id = leaving.member_id
        if member_id == NO_MEMBER:
            found = None if leaving.group_instance_id is None else group.static_members.get(leaving.group_instance_id)
            if found is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = found
        elif group.remove_pending(member_id):
            self._shard.end_session(group, member_id)
            return ErrorCode.NONE
        else:
            refusal = group.refusal(member_id, leaving.group_instance_id)
            if refusal is not ErrorCode.NONE:
                return refusal
        self._rebalancing.drop(group, group.members[member_id])
        return ErrorCode.NONE


class _AssignmentAppend:
    """The leader's assignment is being written. A rebalance that begins in the meantime voids it: then ``storing``
    names another append or none."""

    __slots__ = ("_assignments", "_group", "_rebalancing", "_shard")

    def __init__(
        self, shard: ShardState, rebalancing: Rebalancing, group: Group, assignments: dict[str, bytes]
    ) -> None:
        self._shard = shard
        self._rebalancing = rebalancing
        self._group = group
        self._assignments = assignments

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        group = self._group
        if group.storing != number:
            return
        if error is not ErrorCode.NONE:
            self._fail(append_error(error), now)
            return
        group.storing = None
        for member in group.members.values():
            member.assignment = self._assignments[member.member_id]
            if member.sync_waiter is not None:
                self._shard.answer(member.sync_waiter, _assigned(group, member.assignment))
                member.sync_waiter = None
                self._shard.restart_session(group, member, now)
        self._shard.counters.completed_rebalances += 1
        group.move(GroupState.STABLE, Cause.ASSIGNMENT_STORED, now.wall_ms)

    def timed_out(self, now: Moment) -> None:
        if self._group.storing is not None and self._is_mine():
            self._fail(append_error(ErrorCode.REQUEST_TIMED_OUT), now)

    def abandoned(self, error: ErrorCode) -> None:
        """Do nothing: the group's waiters are answered with the group."""

    def _is_mine(self) -> bool:
        return self._shard.appends.get(self._group.storing or 0) is self

    def _fail(self, error: ErrorCode, now: Moment) -> None:
        self._rebalancing.end_syncs(self._group, error, now)
        self._rebalancing.prepare(self._group, Cause.ASSIGNMENT_LOST, now)


def _assigned(group: Group, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(ErrorCode.NONE, group.protocol_type or "", group.protocol or "", assignment)


def _sync_refusal(group: Group, request: SyncGroupRequest) -> ErrorCode:
    """Return NONE if the request belongs to the current generation. Source: ``validateSyncGroup``, KIP-559."""
    refusal = group.refusal(request.member_id, request.group_instance_id)
    if refusal is not ErrorCode.NONE:
        return refusal
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type and request.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name and request.protocol_name != group.protocol:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE
