"""A group coordinator for the SDK's tests: the classic protocol in memory, and errors where a test wants them.

It keeps Kafka's rules as far as a client can see them: MEMBER_ID_REQUIRED, a join that waits until all known
members have joined again, a sync that waits for the leader, generations, static members, session timeouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset
from tidelog.proto.calls.group_api import (
    TRANSACTION_COORDINATOR,
    CommittedOffset,
    Coordinator,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupMember,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResult,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResult,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.proto.transport.network import CallContext


@dataclass(eq=False)
class Member:
    member_id: str
    instance: str | None
    protocols: dict[str, bytes]
    session_ms: int
    rebalance_ms: int
    joining: asyncio.Future[JoinGroupResponse] | None = None
    syncing: asyncio.Future[SyncGroupResponse] | None = None
    assignment: bytes = b""
    session: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class Group:
    generation: int = 0
    state: str = "Empty"
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    promised: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, int], tuple[int, int, str]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


Judge = Callable[[Any], ErrorCode | None]
"""Given a request; an error is answered instead of the usual thing."""


class ScriptedGroups:
    def __init__(self, initial_delay_s: float = 0.0) -> None:
        self.node = 1
        self.transactions_node = 1
        """The named coordinator of transactions."""
        self.groups: dict[str, Group] = {}
        self.judge: Judge | None = None
        self.unstable: Callable[[str, tuple[str, int]], bool] = lambda group, at: False
        """Whether an offset of a transaction that is not over yet lies there."""
        self.seen: list[object] = []
        """Every request, in order of arrival."""
        self.hold: asyncio.Event | None = None
        """While set and clear, answers to commits wait."""
        self.initial_delay_s = initial_delay_s
        self._ids = 0

    def handlers(self, node: int) -> dict[type[Any], Any]:
        def on(handle: Callable[[Any], Any], refuse: Callable[[Any, ErrorCode], Any]) -> Any:
            async def handler(request: object, _: CallContext) -> Any:
                self.seen.append(request)
                verdict = self.judge(request) if self.judge is not None else None
                if verdict is None and node != self.node and not isinstance(request, FindCoordinatorRequest):
                    verdict = ErrorCode.NOT_COORDINATOR
                if verdict is not None:
                    return refuse(request, verdict)
                return await handle(request)

            return handler

        return {
            FindCoordinatorRequest: on(self._find, lambda r, e: FindCoordinatorResponse((Coordinator(r.keys[0], e),))),
            JoinGroupRequest: on(self._join, lambda r, e: JoinGroupResponse(e)),
            SyncGroupRequest: on(self._sync, lambda r, e: SyncGroupResponse(e)),
            HeartbeatRequest: on(self._heartbeat, lambda r, e: HeartbeatResponse(e)),
            DescribeGroupsRequest: on(self._describe, lambda r, e: DescribeGroupsResponse((DescribedGroup("", e),))),
            LeaveGroupRequest: on(self._leave, lambda r, e: LeaveGroupResponse(e)),
            OffsetCommitRequest: on(
                self._commit,
                lambda r, e: OffsetCommitResponse(
                    tuple(OffsetCommitResult(p.topic, p.partition, e) for p in r.partitions)
                ),
            ),
            OffsetFetchRequest: on(
                self._fetch,
                lambda r, e: OffsetFetchResponse((OffsetFetchResult(r.groups[0].group_id, e),)),
            ),
        }

    def group(self, group_id: str) -> Group:
        return self.groups.setdefault(group_id, Group())

    def requests(self, kind: type[Any]) -> list[Any]:
        return [request for request in self.seen if isinstance(request, kind)]

    def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        return {at: offset for at, (offset, _, _) in self.group(group_id).offsets.items()}

    # --- handlers -------------------------------------------------------------------------------------

    async def _find(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        node = self.transactions_node if request.key_type == TRANSACTION_COORDINATOR else self.node
        found = Coordinator(request.keys[0], ErrorCode.NONE, NodeId(node), "mem", 9000 + node)
        return FindCoordinatorResponse((found,))

    async def _join(self, request: JoinGroupRequest) -> JoinGroupResponse:
        group = self.group(request.group_id)
        member_id = request.member_id
        instance = request.group_instance_id
        if instance is not None and not member_id:
            self._ids += 1
            member_id = f"{instance}-{self._ids}"
            old = next((m for m in group.members.values() if m.instance == instance), None)
            if old is not None:  # a restart: takes over the place, and the group goes on if it is stable
                self._end(group, old, ErrorCode.FENCED_INSTANCE_ID)
                new = self._member(group, request, member_id)
                new.assignment = old.assignment
                if group.leader == old.member_id:
                    group.leader = member_id
                if group.state == "Stable":
                    return self._joined(group, new)
        elif not member_id:
            self._ids += 1
            member_id = f"{request.client_id}-{self._ids}"
            group.promised.add(member_id)
            return JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        elif member_id not in group.members and member_id not in group.promised:
            return JoinGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID)
        group.promised.discard(member_id)
        member = group.members.get(member_id) or self._member(group, request, member_id)
        member.protocols = {p.name: p.metadata for p in request.protocols}
        if member.joining is not None and not member.joining.done():
            member.joining.set_result(JoinGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        answer: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
        member.joining = answer
        if member.session is not None:
            member.session.cancel()
        self._rebalance(group, first=group.state == "Empty")
        return await answer

    def _member(self, group: Group, request: JoinGroupRequest, member_id: str) -> Member:
        member = Member(
            member_id,
            request.group_instance_id,
            {p.name: p.metadata for p in request.protocols},
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
        )
        group.members[member_id] = member
        return member

    def _rebalance(self, group: Group, *, first: bool = False) -> None:
        if group.state in ("Stable", "CompletingRebalance", "Empty"):
            group.state = "PreparingRebalance"
            for member in group.members.values():
                if member.syncing is not None and not member.syncing.done():
                    member.syncing.set_result(SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS))
            longest = max((m.rebalance_ms for m in group.members.values()), default=0) / 1_000
            wait = self.initial_delay_s if first else longest
            loop = asyncio.get_running_loop()
            group.timer = loop.call_later(wait, self._complete, group)
            if first:
                return
        if all(m.joining is not None for m in group.members.values()) and (
            group.timer is None or group.generation or not self.initial_delay_s
        ):
            self._complete(group)

    def _complete(self, group: Group) -> None:
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        for member in [m for m in group.members.values() if m.joining is None]:
            self._end(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.generation += 1
        if not group.members:
            group.state = "Empty"
            return
        group.state = "CompletingRebalance"
        common = [
            name
            for name in next(iter(group.members.values())).protocols
            if all(name in m.protocols for m in group.members.values())
        ]
        group.protocol = common[0]
        if group.leader not in group.members:
            group.leader = next(iter(group.members))
        for member in group.members.values():
            joining, member.joining, member.assignment = member.joining, None, b""
            self._touch(group, member)
            if joining is not None and not joining.done():
                joining.set_result(self._joined(group, member))

    def _joined(self, group: Group, member: Member) -> JoinGroupResponse:
        leads = group.leader == member.member_id
        return JoinGroupResponse(
            ErrorCode.NONE,
            group.generation,
            "consumer",
            group.protocol,
            group.leader,
            leads and group.state == "Stable",
            member.member_id,
            tuple(JoinedMember(m.member_id, m.instance, m.protocols[group.protocol]) for m in group.members.values())
            if leads
            else (),
        )

    async def _sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        group = self.group(request.group_id)
        code = self._check(group, request.member_id, request.group_instance_id, request.generation_id)
        if code is not ErrorCode.NONE:
            return SyncGroupResponse(code)
        member = group.members[request.member_id]
        self._touch(group, member)
        if group.state == "PreparingRebalance":
            return SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS)
        if group.state == "Stable":
            return SyncGroupResponse(ErrorCode.NONE, "consumer", group.protocol, member.assignment)
        answer: asyncio.Future[SyncGroupResponse] = asyncio.get_running_loop().create_future()
        member.syncing = answer
        if request.member_id == group.leader:
            parts = {a.member_id: a.assignment for a in request.assignments}
            group.state = "Stable"
            for one in group.members.values():
                one.assignment = parts.get(one.member_id, b"")
                if one.syncing is not None and not one.syncing.done():
                    one.syncing.set_result(
                        SyncGroupResponse(ErrorCode.NONE, "consumer", group.protocol, one.assignment)
                    )
        return await answer

    async def _heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        group = self.group(request.group_id)
        code = self._check(group, request.member_id, request.group_instance_id, request.generation_id)
        if code is ErrorCode.NONE:
            self._touch(group, group.members[request.member_id])
            if group.state == "PreparingRebalance":
                code = ErrorCode.REBALANCE_IN_PROGRESS
        return HeartbeatResponse(code)

    async def _describe(self, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        (group_id,) = request.group_ids
        members = tuple(
            GroupMember(one.member_id, one.instance, "", "", b"", one.assignment)
            for one in self.group(group_id).members.values()
        )
        return DescribeGroupsResponse((DescribedGroup(group_id, ErrorCode.NONE, "Stable", members=members),))

    async def _leave(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        group = self.group(request.group_id)
        left = []
        for item in request.members:
            member = group.members.get(item.member_id)
            if member is not None:
                self.remove(request.group_id, item.member_id)
            code = ErrorCode.NONE if member is not None else ErrorCode.UNKNOWN_MEMBER_ID
            left.append(LeftMember(item.member_id, item.group_instance_id, code))
        return LeaveGroupResponse(ErrorCode.NONE, tuple(left))

    async def _commit(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        if self.hold is not None:
            await self.hold.wait()
        group = self.group(request.group_id)
        code = ErrorCode.NONE
        if request.generation_id >= 0 or group.members:
            code = self._check(group, request.member_id, request.group_instance_id, request.generation_id)
            if code is ErrorCode.NONE and group.state == "CompletingRebalance":
                code = ErrorCode.REBALANCE_IN_PROGRESS
        results = []
        for p in request.partitions:
            one = code
            if one is ErrorCode.NONE and len(p.metadata) > 4_096:
                one = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if one is ErrorCode.NONE:
                group.offsets[p.topic, p.partition] = (p.offset, p.leader_epoch, p.metadata)
            results.append(OffsetCommitResult(p.topic, p.partition, one))
        return OffsetCommitResponse(tuple(results))

    async def _fetch(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        (asked,) = request.groups
        offsets = []
        for p in asked.partitions:
            offset, epoch, text = self.group(asked.group_id).offsets.get((p.topic, p.partition), (-1, -1, ""))
            unstable = request.require_stable and self.unstable(asked.group_id, (p.topic, p.partition))
            code = ErrorCode.UNSTABLE_OFFSET_COMMIT if unstable else ErrorCode.NONE
            offsets.append(CommittedOffset(p.topic, p.partition, code, Offset(offset), LeaderEpoch(epoch), text))
        return OffsetFetchResponse((OffsetFetchResult(asked.group_id, ErrorCode.NONE, tuple(offsets)),))

    # --- members ----------------------------------------------------------------------------------------

    def remove(self, group_id: str, member_id: str) -> None:
        """A member leaves, or its session is over."""
        group = self.group(group_id)
        member = group.members.get(member_id)
        if member is not None:
            self._end(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
            if group.members:
                self._rebalance(group)
            else:
                if group.timer is not None:
                    group.timer.cancel()
                    group.timer = None
                group.state = "Empty"

    def _end(self, group: Group, member: Member, code: ErrorCode) -> None:
        group.members.pop(member.member_id, None)
        if member.session is not None:
            member.session.cancel()
        if member.joining is not None and not member.joining.done():
            member.joining.set_result(JoinGroupResponse(code))
        if member.syncing is not None and not member.syncing.done():
            member.syncing.set_result(SyncGroupResponse(code))

    def _touch(self, group: Group, member: Member) -> None:
        if member.session is not None:
            member.session.cancel()
        group_id = next(name for name, one in self.groups.items() if one is group)
        loop = asyncio.get_running_loop()
        member.session = loop.call_later(member.session_ms / 1_000, self.remove, group_id, member.member_id)

    def _check(self, group: Group, member_id: str, instance: str | None, generation: int) -> ErrorCode:
        if member_id not in group.members:
            if instance is not None and any(m.instance == instance for m in group.members.values()):
                return ErrorCode.FENCED_INSTANCE_ID
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == group.generation else ErrorCode.ILLEGAL_GENERATION
