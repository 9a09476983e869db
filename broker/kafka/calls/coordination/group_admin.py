"""Administration of groups: DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.authorized_operations import operations_on
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import DeleteGroupsRequest, DescribedGroup, DescribeGroupsRequest, ListGroupsRequest
from tidelog.proto.kafka.messages import field
from tidelog.security.acls import ResourceType

_NOT_FOUND: Final = 6
"""From this version of DescribeGroups on, a missing group is an error (KIP-1043); before, it is reported as dead."""


async def describe_groups(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    answer = await context.call(DescribeGroupsRequest(tuple(dict.fromkeys(request.groups))))
    groups = [_described(group, version) for group in answer.groups]
    if field(request, "include_authorized_operations", False):
        for group in groups:
            if group["error_code"] is ErrorCode.NONE:
                group["authorized_operations"] = operations_on(context.access, ResourceType.GROUP, group["group_id"])
    return {"groups": groups}


def _described(group: DescribedGroup, version: int) -> dict[str, Any]:
    is_gone = group.error is ErrorCode.GROUP_ID_NOT_FOUND
    return {
        "error_code": ErrorCode.NONE if is_gone and version < _NOT_FOUND else group.error,
        "error_message": group.error_message or None,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": "" if is_gone else group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }


async def list_groups(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    states, types = field(request, "states_filter", ()), field(request, "types_filter", ())
    answer = await context.call(ListGroupsRequest(tuple(states), tuple(types)))
    return {
        "error_code": answer.error,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type.capitalize(),
            }
            for group in answer.groups
        ],
    }


async def delete_groups(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    answer = await context.call(DeleteGroupsRequest(tuple(request.groups_names)))
    return {"results": [{"group_id": result.group_id, "error_code": result.error} for result in answer.results]}


APIS: Final = (
    Api(15, 0, 6, describe_groups),
    Api(16, 0, 5, list_groups),
    Api(42, 0, 2, delete_groups),
)
