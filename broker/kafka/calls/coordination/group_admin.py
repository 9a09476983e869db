"""Administration of groups: DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.authorized_operations import add_operations_on
from tidelog.broker.kafka.calls.common.translation import answered
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import DeleteGroupsRequest, DescribedGroup, DescribeGroupsRequest, ListGroupsRequest
from tidelog.proto.kafka.messages import field

_NOT_FOUND: Final = 6
"""From this version of DescribeGroups on, a missing group is an error (KIP-1043); before, it is reported as dead."""


async def describe_groups(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    answer = await context.call(DescribeGroupsRequest(tuple(dict.fromkeys(request.groups))))
    groups = [_described(group, version) for group in answer.groups]
    if field(request, "include_authorized_operations", False):
        add_operations_on(context.access, groups)
    return {"groups": groups}


def _described(group: DescribedGroup, version: int) -> dict[str, Any]:
    shown = answered(
        group,
        state="group_state",
        protocol="protocol_data",
        metadata="member_metadata",
        assignment="member_assignment",
    )
    if group.error is ErrorCode.GROUP_ID_NOT_FOUND:
        shown["protocol_type"] = ""
        if version < _NOT_FOUND:
            shown["error_code"] = ErrorCode.NONE
    return shown


async def list_groups(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    states, types = field(request, "states_filter", ()), field(request, "types_filter", ())
    answer = await context.call(ListGroupsRequest(tuple(states), tuple(types)))
    shown = answered(answer, state="group_state")
    for group in shown["groups"]:
        group["group_type"] = group["group_type"].capitalize()
    return shown


async def delete_groups(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    return answered(await context.call(DeleteGroupsRequest(tuple(request.groups_names))))


APIS: Final = (
    Api(15, 0, 6, describe_groups),
    Api(16, 0, 5, list_groups),
    Api(42, 0, 2, delete_groups),
)
