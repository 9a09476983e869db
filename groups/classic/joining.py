"""JoinGroup: which members may join, under which id, and whether that begins a rebalance.

Source: ``GroupMetadataManager.classicGroupJoinToClassicGroup`` and what it calls; KIP-394 (an id is given out
before the member counts), KIP-345 (static members), KIP-814 (a static leader that comes back while the group
is stable need not assign anew). A departure: if a static member's new id is not replicated in time, it is not taken
back, since the record is in the log and may still be committed; it has to ask again, and gets another id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from tidelog.groups.classic.rebalancing import Rebalancing
from tidelog.groups.state.group import Group
from tidelog.groups.state.member import Member, new_member_id, rebalance_timeout_ms
from tidelog.groups.state.shard_state import GroupRecordAppend, ShardState, TimerKey, TimerKind
from tidelog.groups.state.transitions import Cause, GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.proto.calls.group_api import NO_MEMBER, GroupProtocol, JoinGroupRequest, JoinGroupResponse
from tidelog.proto.logs.consumer_group_records import ConsumerKey
from tidelog.proto.logs.coordinator_records import STRING_BYTES_MAX
from tidelog.replication.coordinators.coordinator_core import append_error

logger = logging.getLogger(__name__)

_ID_BYTES: Final = 37
"""Length that a member id adds to the client id or instance id: a dash and a UUID."""


class Joining:
    """Handles JoinGroup for one partition of ``__consumer_offsets``."""

    __slots__ = ("_join_consumer", "_rebalancing", "_shard")

    def __init__(
        self,
        shard: ShardState,
        rebalancing: Rebalancing,
        join_consumer: Callable[[Group, JoinGroupRequest, int, Moment, str], None],
    ) -> None:
        self._shard = shard
        self._rebalancing = rebalancing
        self._join_consumer = join_consumer

    def join(self, request: JoinGroupRequest, client_host: str, waiter: int, now: Moment) -> None:
        """Answer now, or when the whole group has joined."""
        group = self._shard.groups.get(request.group_id)
        fault = self._fault(request, group)
        if fault is not None:
            self._shard.answer(waiter, fault)
            return
        if group is None:
            group = self._shard.new_group(request.group_id, now)
            if group is None:
                text = (
                    f"expected fewer than {self._shard.settings.groups_max} groups here (group.coordinator.groups.max)"
                )
                self._refuse(waiter, request.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
                return
        if group.consumer is not None:
            if not group.is_empty:
                self._join_consumer(group, request, waiter, now, client_host)
                return
            self._end_consumer(group, now)
        protocols = tuple({protocol.name: protocol for protocol in request.protocols}.values())
        if not self._has_room(group, request.member_id):
            self._refuse(waiter, NO_MEMBER, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._give_way(group, request.member_id, now)
        elif not group.supports(request.protocol_type, protocols):
            text = (
                f"expected protocol type {group.protocol_type} and a protocol that all {len(group.members)} members"
                f" speak, found {request.protocol_type} with {', '.join(p.name for p in protocols) or 'none'}"
            )
            self._refuse(waiter, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
        elif request.member_id == NO_MEMBER:
            self._join_new(group, request, protocols, client_host, waiter, now)
        else:
            self._join_known(group, request, protocols, client_host, waiter, now)
        self._shard.forget_if_idle(group, now)

    def _end_consumer(self, group: Group, now: Moment) -> None:
        """Convert an empty group of the consumer protocol to a classic one; its offsets are kept."""
        records = self._shard.tombstones(group)
        if records:
            assert group.consumer is not None
            pending = _ConsumerEnd(group, group.consumer.record_keys())
            group.record_number = self._shard.append(records, pending, now)
        group.consumer = None
        group.is_consumer_stored = False

    # --- Refusals -----------------------------------------------------------------------------------

    def _fault(self, request: JoinGroupRequest, group: Group | None) -> JoinGroupResponse | None:
        """Return the error in a request, whatever the group's state."""
        settings = self._shard.settings
        least, most = settings.min_session_timeout_ms, settings.max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            return JoinGroupResponse(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                member_id=request.member_id,
                error_message=f"expected a session timeout of {least} to {most} ms (group.min.session.timeout.ms,"
                f" group.max.session.timeout.ms), found {request.session_timeout_ms}",
            )
        texts = [request.client_id, request.group_instance_id or "", request.protocol_type]
        texts += [protocol.name for protocol in request.protocols]
        longest = max(len(text.encode()) for text in texts)
        if longest > STRING_BYTES_MAX - _ID_BYTES:
            return JoinGroupResponse(
                ErrorCode.INVALID_REQUEST,
                member_id=request.member_id,
                error_message=f"expected names of at most {STRING_BYTES_MAX - _ID_BYTES} bytes, found {longest}",
            )
        if group is None and request.member_id != NO_MEMBER:
            return JoinGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id)
        return None

    def _has_room(self, group: Group, member_id: str) -> bool:
        """Return whether ``group.max.size`` and this partition's limit allow it. While members join, only waiting ones
        count, so that the last to return must go if the size was lowered (``acceptJoiningMember``)."""
        settings = self._shard.settings
        member = group.members.get(member_id)
        is_in = member is not None or member_id in group.pending_joins
        if not is_in and self._shard.population.members >= settings.members_max:
            return False
        match group.state:
            case GroupState.PREPARING_REBALANCE:
                is_waiting = member is not None and member.join_waiter is not None
                return is_waiting or group.awaiting_join < settings.max_size
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member is not None or len(group.members) < settings.max_size
            case _:
                return True

    def _give_way(self, group: Group, member_id: str, now: Moment) -> None:
        """Remove a member that was refused because of the group's size."""
        if member_id in group.members:
            self._rebalancing.drop(group, group.members[member_id])
            self._rebalancing.maybe_complete_join(group, now)
        elif group.remove_pending(member_id):
            self._shard.end_session(group, member_id)
            self._rebalancing.maybe_complete_join(group, now)

    def _refuse(self, waiter: int, member_id: str, error: ErrorCode, text: str = "") -> None:
        self._shard.answer(waiter, JoinGroupResponse(error, member_id=member_id, error_message=text))

    # --- New members --------------------------------------------------------------------------------

    def _join_new(
        self,
        group: Group,
        request: JoinGroupRequest,
        protocols: tuple[GroupProtocol, ...],
        client_host: str,
        waiter: int,
        now: Moment,
    ) -> None:
        instance_id = request.group_instance_id
        member_id = new_member_id(request.client_id if instance_id is None else instance_id, self._shard.rng)
        if instance_id is None and request.admit_unknown:
            self._add(group, request, protocols, member_id, client_host, waiter, now)
        elif instance_id is None:
            group.add_pending(member_id)
            self._shard.timers.set(
                TimerKey(TimerKind.SESSION, group.group_id, member_id), now.monotonic_ms + request.session_timeout_ms
            )
            self._refuse(waiter, member_id, ErrorCode.MEMBER_ID_REQUIRED)
        elif instance_id in group.static_members:
            self._replace_static(group, request, protocols, member_id, waiter, now)
        else:
            self._add(group, request, protocols, member_id, client_host, waiter, now)

    def _add(
        self,
        group: Group,
        request: JoinGroupRequest,
        protocols: tuple[GroupProtocol, ...],
        member_id: str,
        client_host: str,
        waiter: int,
        now: Moment,
    ) -> None:
        if not group.members:
            group.protocol_type = request.protocol_type
        member = Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            client_host,
            rebalance_timeout_ms(request),
            request.session_timeout_ms,
            protocols,
        )
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_came = True
        group.add(member)
        group.set_join_waiter(member, waiter)
        # A new member sends no heartbeats before it learns about the group: it may wait this long, then asks again.
        self._shard.restart_session(group, member, now, self._shard.settings.new_member_join_timeout_ms)
        came = Cause.MEMBER_CAME if group.state is GroupState.EMPTY else Cause.MEMBER_CHANGED
        self._rebalancing.rebalance_or_complete(group, came, now)

    # --- Known members ------------------------------------------------------------------------------

    def _join_known(
        self,
        group: Group,
        request: JoinGroupRequest,
        protocols: tuple[GroupProtocol, ...],
        client_host: str,
        waiter: int,
        now: Moment,
    ) -> None:
        member_id = request.member_id
        if member_id in group.pending_joins and request.group_instance_id is None:
            self._add(group, request, protocols, member_id, client_host, waiter, now)
            return
        refusal = group.refusal(member_id, request.group_instance_id)
        if refusal is not ErrorCode.NONE:
            self._refuse(waiter, member_id, refusal)
            return
        member = group.members[member_id]
        is_unchanged = member.protocols == protocols
        match group.state:
            case GroupState.COMPLETING_REBALANCE if is_unchanged:
                # Perhaps the answer to its first JoinGroup was lost.
                self._shard.answer(waiter, self._rebalancing.joined(group, member))
            case GroupState.STABLE if is_unchanged and not group.is_leader(member_id):
                self._shard.answer(waiter, self._rebalancing.joined(group, member))
            case _:
                self._supersede_join(group, member)
                group.update(member, protocols, request.session_timeout_ms, rebalance_timeout_ms(request))
                group.set_join_waiter(member, waiter)
                self._rebalancing.rebalance_or_complete(group, Cause.MEMBER_CHANGED, now)

    def _supersede_join(self, group: Group, member: Member) -> None:
        """Let a member that asks again wait only once: its earlier request gets an answer that asks for a retry."""
        if member.join_waiter is not None:
            self._refuse(member.join_waiter, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)
            group.set_join_waiter(member, None)

    # --- Static members that come back --------------------------------------------------------------

    def _replace_static(
        self,
        group: Group,
        request: JoinGroupRequest,
        protocols: tuple[GroupProtocol, ...],
        member_id: str,
        waiter: int,
        now: Moment,
    ) -> None:
        """Give a static member that came back without its id a new one, which fences the holder of the old one."""
        shard = self._shard
        old = group.members[group.static_members[request.group_instance_id or ""]]
        self._rebalancing.answer_waiters(group, old, ErrorCode.FENCED_INSTANCE_ID)
        shard.end_session(group, old.member_id)
        former = _Former.of(old)
        member = group.replace(old, member_id)
        group.update(member, protocols, request.session_timeout_ms, rebalance_timeout_ms(request))
        group.set_join_waiter(member, waiter)
        shard.restart_session(group, member, now)
        logger.info("group %s: static member %s is now %s", group.group_id, request.group_instance_id, member_id)
        match group.state:
            case GroupState.STABLE if group.protocol == group.chosen_protocol():
                assignments = {other.member_id: other.assignment for other in group.members.values()}
                pending = _ReplacementAppend(shard, self._rebalancing, group, member, former, waiter)
                group.record_number = shard.append(shard.group_records(group, assignments), pending, now)
            case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
                # The leader may know the old id already.
                self._rebalancing.prepare(group, Cause.MEMBER_CHANGED, now)
            case _:
                self._rebalancing.maybe_complete_join(group, now)


class _ConsumerEnd(GroupRecordAppend):
    """The tombstones of an empty group of the consumer protocol that became classic. If the log refuses them, they go
    with the group's next record."""

    __slots__ = ("_group", "_keys")

    def __init__(self, group: Group, keys: list[ConsumerKey]) -> None:
        self._group = group
        self._keys = keys

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        if error is not ErrorCode.NONE and self._group.consumer is None:
            self._group.leftovers = self._keys


class _Former(NamedTuple):
    """A static member's state before it came back without its id."""

    member_id: str
    protocols: tuple[GroupProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int

    @classmethod
    def of(cls, member: Member) -> _Former:
        return cls(member.member_id, member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms)


class _ReplacementAppend:
    """The record that names a static member's new id is being written. The member gets its answer once the record is
    stored, unless a rebalance began in the meantime; then its JoinGroup counts for that. If the log refuses the record,
    the old id is valid again, because the next coordinator would know only that."""

    __slots__ = ("_former", "_group", "_member", "_rebalancing", "_shard", "_waiter")

    def __init__(
        self,
        shard: ShardState,
        rebalancing: Rebalancing,
        group: Group,
        member: Member,
        former: _Former,
        waiter: int,
    ) -> None:
        self._shard = shard
        self._rebalancing = rebalancing
        self._group = group
        self._member = member
        self._former = former
        self._waiter = waiter

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        if not self._is_current():
            return
        group, member = self._group, self._member
        if error is ErrorCode.NONE:
            self._rebalancing.answer_join(group, member, skip_assignment=True)
            self._shard.restart_session(group, member, now)
        else:
            self._fail(self._taken_back(), append_error(error), now)

    def timed_out(self, now: Moment) -> None:
        if self._is_current():
            self._fail(self._member, append_error(ErrorCode.REQUEST_TIMED_OUT), now)

    def abandoned(self, error: ErrorCode) -> None:
        """Do nothing: the group's waiters are answered with the group."""

    def _is_current(self) -> bool:
        """Return whether no rebalance began. A completed rebalance has answered the member's JoinGroup, and so has its
        removal."""
        return self._group.state is GroupState.STABLE and self._member.join_waiter == self._waiter

    def _taken_back(self) -> Member:
        """Return the member under its old id, as the log has it. Source:
        ``updateStaticMemberThenRebalanceOrCompleteJoin``."""
        group, former = self._group, self._former
        group.set_join_waiter(self._member, None)
        self._shard.end_session(group, self._member.member_id)
        member = group.replace(self._member, former.member_id)
        group.update(member, former.protocols, former.session_timeout_ms, former.rebalance_timeout_ms)
        return member

    def _fail(self, member: Member, error: ErrorCode, now: Moment) -> None:
        self._group.set_join_waiter(member, None)
        # Its session may have expired in the meantime, which was excused: it must come back, or it is removed.
        self._shard.restart_session(self._group, member, now)
        self._shard.answer(self._waiter, JoinGroupResponse(error))
