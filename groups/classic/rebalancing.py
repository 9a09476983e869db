"""A group's rounds: waiting for joins, beginning a generation, waiting for syncs, dropping late members.

Source: ``GroupMetadataManager``, its methods for classic groups. Where this differs from it:

- a member that is dropped while it waits for its assignment gets UNKNOWN_MEMBER_ID; Kafka sends no answer;
- a dropped member over ``group.max.size`` may complete the join phase immediately.
"""

from __future__ import annotations

import logging
from typing import Final

from tidelog.groups.state.group import Group
from tidelog.groups.state.member import Member
from tidelog.groups.state.shard_state import GroupRecordAppend, ShardState, TimerKey, TimerKind
from tidelog.groups.state.transitions import Cause, GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.proto.calls.group_api import JoinGroupResponse, SyncGroupResponse

logger = logging.getLogger(__name__)

_NOBODY_WAITS: Final = GroupRecordAppend()


class Rebalancing:
    """Steps that joining, syncing, leaving and the timers share."""

    __slots__ = ("_shard",)

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard

    # --- The join phase -----------------------------------------------------------------------------

    def rebalance_or_complete(self, group: Group, cause: Cause, now: Moment) -> None:
        """Begin a rebalance, or check whether the current one can continue, because a member came, changed or went."""
        if group.can_rebalance:
            self.prepare(group, cause, now)
        else:
            self.maybe_complete_join(group, now)

    def prepare(self, group: Group, cause: Cause, now: Moment) -> None:
        """Start to wait for the members' JoinGroup. An empty group gives others ``initial_rebalance_delay_ms``."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.end_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now)
        group.storing = None
        group.pending_syncs.clear()
        self._shard.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))
        self._shard.counters.begun_rebalances += 1
        is_initial = group.state is GroupState.EMPTY
        group.move(GroupState.PREPARING_REBALANCE, cause, now.wall_ms)
        logger.info("group %s: rebalance after generation %d: %s", group.group_id, group.generation, cause.value)
        if not is_initial:
            if group.has_all_joined:
                self.complete_join(group, now)
            else:
                self._wait_for_joins(group, group.rebalance_timeout_ms, now)
            return
        group.new_member_came = False
        group.initial_delay_ms = self._shard.settings.initial_rebalance_delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - group.initial_delay_ms, 0)
        self._wait_for_joins(group, group.initial_delay_ms, now)

    def maybe_complete_join(self, group: Group, now: Moment) -> None:
        """End the join phase if all have joined; an initial one ends only by its timer."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.has_all_joined
        ):
            self.complete_join(group, now)

    def join_timer(self, group_id: str, now: Moment) -> None:
        """End the join phase. If new members came during an initial one, it is extended instead, up to the rebalance
        timeout (``tryCompleteInitialRebalanceElseSchedule``)."""
        group = self._shard.groups.get(group_id)
        if group is None or group.consumer is not None or group.state is not GroupState.PREPARING_REBALANCE:
            return
        is_initial = group.previous_state is GroupState.EMPTY
        if is_initial and group.new_member_came and group.initial_remaining_ms:
            group.new_member_came = False
            delay_ms = min(self._shard.settings.initial_rebalance_delay_ms, group.initial_remaining_ms)
            group.initial_remaining_ms = max(group.initial_remaining_ms - group.initial_delay_ms, 0)
            group.initial_delay_ms = delay_ms
            self._wait_for_joins(group, delay_ms, now)
        else:
            self.complete_join(group, now)

    def complete_join(self, group: Group, now: Moment) -> None:
        """Drop members that have not joined, and begin the next generation with the others. Static members stay."""
        shard = self._shard
        shard.timers.cancel(TimerKey(TimerKind.JOIN, group.group_id))
        late = [m for m in group.members.values() if m.join_waiter is None and m.instance_id is None]
        for member in late:
            self.drop(group, member)
        if not group.elect_joined_leader() and group.members:
            # Only static members, and none of them came: their sessions end the wait.
            self._wait_for_joins(group, max(group.rebalance_timeout_ms, _WAIT_AGAIN_MS), now)
            return
        group.begin_generation(now.wall_ms)
        if group.state is GroupState.EMPTY:
            logger.info("group %s: empty with generation %d", group.group_id, group.generation)
            group.record_number = shard.append(shard.group_records(group, {}), _NOBODY_WAITS, now)
            return
        logger.info(
            "group %s: generation %d of %d members under %s",
            group.group_id,
            group.generation,
            len(group.members),
            group.protocol,
        )
        for member in group.members.values():
            group.pending_syncs[member.member_id] = None
            if member.join_waiter is not None:
                self.answer_join(group, member)
            member.is_new = False
            shard.restart_session(group, member, now)
        shard.timers.set(TimerKey(TimerKind.SYNC, group.group_id), now.monotonic_ms + group.rebalance_timeout_ms)

    def answer_join(self, group: Group, member: Member, *, skip_assignment: bool = False) -> None:
        """Tell a waiting member about the current generation; tell the leader about all members."""
        waiter = member.join_waiter
        assert waiter is not None
        group.set_join_waiter(member, None)
        self._shard.answer(waiter, self.joined(group, member, skip_assignment=skip_assignment))

    def joined(self, group: Group, member: Member, *, skip_assignment: bool = False) -> JoinGroupResponse:
        protocol = group.protocol
        assert protocol is not None
        is_leader = group.is_leader(member.member_id)
        return JoinGroupResponse(
            ErrorCode.NONE,
            group.generation,
            group.protocol_type or "",
            protocol,
            group.leader or "",
            skip_assignment and is_leader,
            member.member_id,
            tuple(other.joined(protocol) for other in group.members.values()) if is_leader else (),
        )

    def _wait_for_joins(self, group: Group, delay_ms: int, now: Moment) -> None:
        self._shard.timers.set(TimerKey(TimerKind.JOIN, group.group_id), now.monotonic_ms + delay_ms)

    # --- The sync phase -----------------------------------------------------------------------------

    def end_syncs(self, group: Group, error: ErrorCode, now: Moment) -> None:
        """Withdraw all assignments and answer the members that wait for one."""
        for member in group.members.values():
            member.assignment = b""
            if member.sync_waiter is not None:
                self._shard.answer(member.sync_waiter, SyncGroupResponse(error))
                member.sync_waiter = None
                self._shard.restart_session(group, member, now)

    def sync_timer(self, group_id: str, now: Moment) -> None:
        """Drop members that have not asked for their assignment (``expirePendingSync``)."""
        group = self._shard.groups.get(group_id)
        if group is None or group.consumer is not None or group.state not in _GENERATION or not group.pending_syncs:
            return
        for member_id in list(group.pending_syncs):
            self.drop(group, group.members[member_id])
        self.prepare(group, Cause.SYNC_MISSED, now)

    def has_synced(self, group: Group, member_id: str) -> None:
        group.pending_syncs.pop(member_id, None)
        if not group.pending_syncs:
            self._shard.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))

    # --- Members that go ----------------------------------------------------------------------------

    def session_timer(self, group_id: str, member_id: str, now: Moment) -> None:
        """Handle a member that was silent for its session timeout. Members that wait for the group are excused."""
        group = self._shard.groups.get(group_id)
        if group is None or group.consumer is not None:
            return
        if group.remove_pending(member_id):
            self.pending_member_gone(group, now)
            return
        member = group.members.get(member_id)
        if member is None or member.is_excused:
            return
        logger.info("group %s: member %s was silent for its session timeout", group_id, member_id)
        self._shard.counters.expired_sessions += 1
        self.drop(group, member)
        self.member_gone(group, now)

    def drop(self, group: Group, member: Member, error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """Remove a member from the group, and answer its waiters. The caller handles the consequences."""
        self.answer_waiters(group, member, error)
        group.remove(member.member_id)
        self._shard.end_session(group, member.member_id)

    def answer_waiters(self, group: Group, member: Member, error: ErrorCode) -> None:
        """Answer both of a member's waiters with an error. A fenced one gets the id that it came with."""
        if member.join_waiter is not None:
            told = member.member_id if error is ErrorCode.FENCED_INSTANCE_ID else ""
            self._shard.answer(member.join_waiter, JoinGroupResponse(error, member_id=told))
            group.set_join_waiter(member, None)
        if member.sync_waiter is not None:
            self._shard.answer(member.sync_waiter, SyncGroupResponse(error))
            member.sync_waiter = None

    def member_gone(self, group: Group, now: Moment) -> None:
        """Continue after members were dropped: the others rebalance, or need not wait for them."""
        if group.state in _GENERATION:
            self.prepare(group, Cause.MEMBER_GONE, now)
        elif group.state is GroupState.PREPARING_REBALANCE and group.has_all_joined:
            self.complete_join(group, now)

    def pending_member_gone(self, group: Group, now: Moment) -> None:
        """Continue after a pending member was dropped."""
        if group.state is GroupState.PREPARING_REBALANCE and group.has_all_joined:
            self.complete_join(group, now)
        else:
            self._shard.forget_if_idle(group, now)

    # --- Groups that change their protocol ----------------------------------------------------------

    def withdraw(self, group: Group) -> None:
        """Tell members that wait to rejoin, because the group gets members of the consumer protocol. An assignment on
        its way to the log no longer counts."""
        for member in group.members.values():
            if member.join_waiter is not None:
                response = JoinGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
                self._shard.answer(member.join_waiter, response)
                group.set_join_waiter(member, None)
            if member.sync_waiter is not None:
                self._shard.answer(member.sync_waiter, SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS))
                member.sync_waiter = None
        group.storing = None

    def resume(self, group: Group, now: Moment) -> None:
        """Go on as before :meth:`withdraw`, as the conversion was not stored: every member gets a whole session."""
        for member in group.members.values():
            self._shard.restart_session(group, member, now)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._wait_for_joins(group, group.rebalance_timeout_ms, now)
        elif group.state is GroupState.COMPLETING_REBALANCE:
            self.prepare(group, Cause.ASSIGNMENT_LOST, now)

    def end_timers(self, group: Group) -> None:
        """Cancel the timers of a group that is no longer classic."""
        for member_id in (*group.members, *group.pending_joins):
            self._shard.end_session(group, member_id)
        for kind in (TimerKind.JOIN, TimerKind.SYNC):
            self._shard.timers.cancel(TimerKey(kind, group.group_id))

    def converted(self, group: Group, now: Moment) -> None:
        """Rebalance a group that has just become classic, or was loaded before it could."""
        for member in group.members.values():
            self._shard.restart_session(group, member, now)
        self.prepare(group, Cause.CONVERTED, now)


_WAIT_AGAIN_MS: Final = 100
"""The shortest time until an absent group is checked again, if members gave no rebalance timeout."""
_GENERATION: Final = frozenset({GroupState.COMPLETING_REBALANCE, GroupState.STABLE})
