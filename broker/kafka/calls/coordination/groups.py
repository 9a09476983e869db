"""Membership of groups under the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Share groups are not served: their APIs are not advertised, and clients say so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tidelog.broker.kafka.calls.common.translation import answered, asked
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResponse,
)

_MEMBER_ID_REQUIRED: Final = 4
"""From this version of JoinGroup on, clients rejoin with the id that they are given (KIP-394)."""
_NO_PROTOCOL: Final = 7
"""From this version of JoinGroup on, an answer without a protocol has null instead of an empty one (KIP-559)."""
_SKIP_ASSIGNMENT: Final = 9
_PROTOCOL_NEEDED: Final = 5
"""From this version of SyncGroup on, a request names the group's protocol and its type (KIP-559)."""
_SEVERAL_LEAVE: Final = 3


async def join_group(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    client_id, admit_unknown = context.call_context.client_id, version < _MEMBER_ID_REQUIRED
    answer: JoinGroupResponse = await context.call(
        asked(JoinGroupRequest, request, client_id=client_id, admit_unknown=admit_unknown)
    )
    if answer.skip_assignment and version < _SKIP_ASSIGNMENT:
        # In these versions a leader has to assign, so the answer does not say that it leads, as in Kafka.
        answer = replace(answer, leader="", members=())
    absent = None if version >= _NO_PROTOCOL else ""
    protocol = {"protocol_type": answer.protocol_type or None, "protocol_name": answer.protocol_name or absent}
    return answered(answer) | protocol


async def sync_group(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    if version >= _PROTOCOL_NEEDED and None in (request.protocol_type, request.protocol_name):
        answer = SyncGroupResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    else:
        answer = await context.call(asked(SyncGroupRequest, request))
    protocol = {"protocol_type": answer.protocol_type or None, "protocol_name": answer.protocol_name or None}
    return answered(answer) | protocol


async def heartbeat(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    return answered(await context.call(asked(HeartbeatRequest, request)))


async def leave_group(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    """Leave the group. In the oldest versions, the only member's error is that of the answer."""
    if version >= _SEVERAL_LEAVE:
        return answered(await context.call(asked(LeaveGroupRequest, request)))
    answer = await context.call(LeaveGroupRequest(request.group_id, (LeavingMember(request.member_id),)))
    error = answer.error
    if error is ErrorCode.NONE and answer.members:
        error = answer.members[0].error
    return {"error_code": error}


APIS: Final = (
    Api(11, 2, 9, join_group),
    Api(14, 0, 5, sync_group),
    Api(12, 0, 4, heartbeat),
    Api(13, 0, 5, leave_group),
)
