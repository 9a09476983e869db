"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe, translated.

Both are offered once the feature ``group.version`` is at 1.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.authorized_operations import operations_on
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.proto.calls.consumer_group_api import (
    JOIN_EPOCH,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupMember,
    DescribedConsumerGroup,
    IdAssignment,
    NamedPartitions,
    TopicIdPartitions,
    TopicNames,
)
from tidelog.proto.kafka.messages import field
from tidelog.security.acls import ResourceType

_MEMBERS_OWN_ID: Final = 1
"""From this version on, a member makes its own id (KIP-1082), so that a lost answer leaves no member behind."""
_CONSUMER: Final = 1
"""``MemberType`` for a member of this protocol."""


async def heartbeat(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    if version >= _MEMBERS_OWN_ID and request.member_epoch == JOIN_EPOCH and not request.member_id:
        text = "expected a member id, which the member makes itself, found none"
        return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": text}
    names, owned = request.subscribed_topic_names, request.topic_partitions
    answer: ConsumerGroupHeartbeatResponse = await context.call(
        ConsumerGroupHeartbeatRequest(
            request.group_id,
            request.member_id,
            request.member_epoch,
            request.instance_id,
            request.rack_id,
            request.rebalance_timeout,
            None if names is None else TopicNames(tuple(names)),
            field(request, "subscribed_topic_regex", None),
            request.server_assignor,
            None
            if owned is None
            else IdAssignment(
                tuple(TopicIdPartitions(TopicId(bytes(each.topic_id)), tuple(each.partitions)) for each in owned)
            ),
            context.call_context.client_id,
        )
    )
    return {
        "error_code": answer.error,
        "error_message": answer.error_message or None,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval": answer.heartbeat_interval_ms,
        "assignment": None
        if answer.assignment is None
        else {
            "topic_partitions": [
                {"topic_id": each.topic_id, "partitions": each.partitions} for each in answer.assignment.topics
            ]
        },
    }


async def describe(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    answer = await context.call(ConsumerGroupDescribeRequest(tuple(dict.fromkeys(request.group_ids))))
    groups = [_described(group) for group in answer.groups]
    if request.include_authorized_operations:
        for group in groups:
            if group["error_code"] is ErrorCode.NONE:
                group["authorized_operations"] = operations_on(context.access, ResourceType.GROUP, group["group_id"])
    return {"groups": groups}


def _described(group: DescribedConsumerGroup) -> dict[str, Any]:
    return {
        "error_code": group.error,
        "error_message": group.error_message or None,
        "group_id": group.group_id,
        "group_state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_member(member) for member in group.members],
    }


def _member(member: ConsumerGroupMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topics,
        "subscribed_topic_regex": member.regex,
        "assignment": _assignment(member.assignment),
        "target_assignment": _assignment(member.target),
        "member_type": _CONSUMER,
    }


def _assignment(named: tuple[NamedPartitions, ...]) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": each.topic_id, "topic_name": each.topic, "partitions": each.partitions} for each in named
        ]
    }


APIS: Final = (
    Api(68, 0, 1, heartbeat),
    Api(69, 0, 1, describe),
)
