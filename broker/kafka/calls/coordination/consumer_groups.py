"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe, translated.

Both are offered once the feature ``group.version`` is at 1.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.authorized_operations import add_operations_on
from tidelog.broker.kafka.calls.common.translation import answered, asked, asked_each
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.consumer_group_api import (
    JOIN_EPOCH,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DescribedConsumerGroup,
    IdAssignment,
    TopicIdPartitions,
    TopicNames,
)
from tidelog.proto.kafka.messages import field

_MEMBERS_OWN_ID: Final = 1
"""From this version on, a member makes its own id (KIP-1082), so that a lost answer leaves no member behind."""
_CLASSIC, _CONSUMER = 0, 1
"""``MemberType`` for a member of either protocol."""


async def heartbeat(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    if version >= _MEMBERS_OWN_ID and request.member_epoch == JOIN_EPOCH and not request.member_id:
        text = "expected a member id, which the member makes itself, found none"
        return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": text}
    names, owned = request.subscribed_topic_names, request.topic_partitions
    answer = await context.call(
        asked(
            ConsumerGroupHeartbeatRequest,
            request,
            topics=None if names is None else TopicNames(tuple(names)),
            regex=field(request, "subscribed_topic_regex", None),
            assignor=request.server_assignor,
            owned=None if owned is None else IdAssignment(asked_each(TopicIdPartitions, owned)),
            client_id=context.call_context.client_id,
        )
    )
    return answered(answer, topics="topic_partitions")


async def describe(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    answer = await context.call(ConsumerGroupDescribeRequest(tuple(dict.fromkeys(request.group_ids))))
    groups = [_described(group) for group in answer.groups]
    if request.include_authorized_operations:
        add_operations_on(context.access, groups)
    return {"groups": groups}


def _described(group: DescribedConsumerGroup) -> dict[str, Any]:
    shown = answered(
        group,
        state="group_state",
        assignor="assignor_name",
        topic="topic_name",
        topics="subscribed_topic_names",
        regex="subscribed_topic_regex",
        target="target_assignment",
    )
    for member in shown["members"]:
        member["member_type"] = _CLASSIC if member.pop("is_classic") else _CONSUMER
        for name in ("assignment", "target_assignment"):
            member[name] = {"topic_partitions": member[name]}
    return shown


APIS: Final = (
    Api(68, 0, 1, heartbeat),
    Api(69, 0, 1, describe),
)
