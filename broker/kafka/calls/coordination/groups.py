"""Membership of groups under the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Share groups are not served: their APIs are not advertised, and clients say so.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import (
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
)
from tidelog.proto.kafka.messages import field

_MEMBER_ID_REQUIRED: Final = 4
"""From this version of JoinGroup on, clients rejoin with the id that they are given (KIP-394)."""
_NO_PROTOCOL: Final = 7
"""From this version of JoinGroup on, an answer without a protocol has null instead of an empty one (KIP-559)."""
_SKIP_ASSIGNMENT: Final = 9
_SEVERAL_LEAVE: Final = 3


async def join_group(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    answer: JoinGroupResponse = await context.call(
        JoinGroupRequest(
            request.group_id,
            request.session_timeout,
            request.rebalance_timeout,
            request.member_id,
            field(request, "group_instance_id", None),
            request.protocol_type,
            tuple(GroupProtocol(each.name, bytes(each.metadata)) for each in request.protocols),
            context.call_context.client_id,
            field(request, "reason", None) or "",
            admit_unknown=version < _MEMBER_ID_REQUIRED,
        )
    )
    leader, members = answer.leader, answer.members
    if answer.skip_assignment and version < _SKIP_ASSIGNMENT:
        # It cannot be told that it leads without having to assign, so it is not told that it leads, as in Kafka.
        leader, members = "", ()
    absent = None if version >= _NO_PROTOCOL else ""
    return {
        "error_code": answer.error,
        "generation_id": answer.generation_id,
        "protocol_type": answer.protocol_type or None,
        "protocol_name": answer.protocol_name or absent,
        "leader": leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.group_instance_id, "metadata": each.metadata}
            for each in members
        ],
    }


async def sync_group(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    answer = await context.call(
        SyncGroupRequest(
            request.group_id,
            request.generation_id,
            request.member_id,
            field(request, "group_instance_id", None),
            field(request, "protocol_type", None) or "",
            field(request, "protocol_name", None) or "",
            tuple(MemberAssignment(each.member_id, bytes(each.assignment)) for each in request.assignments),
        )
    )
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type or None,
        "protocol_name": answer.protocol_name or None,
        "assignment": answer.assignment,
    }


async def heartbeat(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    instance_id = field(request, "group_instance_id", None)
    answer = await context.call(
        HeartbeatRequest(request.group_id, request.generation_id, request.member_id, instance_id)
    )
    return {"error_code": answer.error}


async def leave_group(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    """Leave the group. In the oldest versions, the only member's error is that of the answer."""
    if version >= _SEVERAL_LEAVE:
        leaving = tuple(
            LeavingMember(each.member_id, each.group_instance_id, field(each, "reason", None) or "")
            for each in request.members
        )
    else:
        leaving = (LeavingMember(request.member_id),)
    answer = await context.call(LeaveGroupRequest(request.group_id, leaving))
    error = answer.error
    if version < _SEVERAL_LEAVE and error is ErrorCode.NONE and answer.members:
        error = answer.members[0].error
    return {
        "error_code": error,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.group_instance_id, "error_code": each.error}
            for each in answer.members
        ],
    }


APIS: Final = (
    Api(11, 2, 9, join_group),
    Api(14, 0, 5, sync_group),
    Api(12, 0, 4, heartbeat),
    Api(13, 0, 5, leave_group),
)
