"""A member's heartbeat: errors in the request itself, and changes to the member's subscription. Pure.

Source: ``GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid``, ``ConsumerGroupMember.Builder``.
"""

from __future__ import annotations

from tidelog.groups.state.consumer_group import ConsumerGroup, covers
from tidelog.groups.state.settings import GroupSettings
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.model.regular_expressions import BadPattern, compiled
from tidelog.proto.calls.consumer_group_api import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    UNCHANGED_MS,
    ConsumerGroupHeartbeatRequest,
    IdAssignment,
    TopicIdPartitions,
)
from tidelog.proto.calls.group_api import NO_MEMBER, LeavingMember
from tidelog.proto.logs.consumer_group_records import (
    STRING_BYTES_MAX,
    CurrentAssignment,
    MemberSubscription,
    Owned,
    Partitions,
)

Fault = tuple[ErrorCode, str]


def leaving_heartbeat(consumer: ConsumerGroup, leaving: LeavingMember) -> ConsumerGroupHeartbeatRequest:
    """Return the heartbeat with which a member leaves for good, for one that a LeaveGroup removes. An administrator
    names a static member by its instance id only. Source: ``GroupMetadataManager.consumerGroupLeave``."""
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if member_id == NO_MEMBER and instance_id is not None:
        member_id = consumer.static_members.get(instance_id, NO_MEMBER)
    return ConsumerGroupHeartbeatRequest(consumer.group_id, member_id, LEAVE_EPOCH, instance_id if member_id else None)


def request_fault(request: ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> Fault | None:
    """Return the error in a request, whatever the group's state."""
    texts = {
        "member id": request.member_id or None if request.member_epoch == JOIN_EPOCH else request.member_id,
        "instance id": request.instance_id,
        "rack id": request.rack_id,
    }
    for what, text in texts.items():
        if text is not None and not 0 < len(text.encode()) <= STRING_BYTES_MAX:
            found = len(text.encode())
            return ErrorCode.INVALID_REQUEST, f"expected a {what} of 1 to {STRING_BYTES_MAX} bytes, found {found}"
    if request.member_epoch < LEAVE_STATIC_EPOCH:
        return ErrorCode.INVALID_REQUEST, f"expected a member epoch of -2 or more, found {request.member_epoch}"
    if request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        return ErrorCode.INVALID_REQUEST, "expected an instance id with member epoch -2, found none"
    if request.member_epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == UNCHANGED_MS:
            return ErrorCode.INVALID_REQUEST, "expected a rebalance timeout from a member that joins, found none"
        if request.owned is None or request.owned.topics:
            return ErrorCode.INVALID_REQUEST, "expected an empty list of owned partitions from a member that joins"
        if request.topics is None and request.regex is None:
            return ErrorCode.INVALID_REQUEST, "expected topics or a regular expression from a member that joins"
    if request.assignor is not None and request.assignor not in settings.consumer_assignors:
        offered = ", ".join(settings.consumer_assignors)
        return ErrorCode.UNSUPPORTED_ASSIGNOR, f"expected one of {offered}, found {request.assignor!r}"
    if request.regex:
        try:
            compiled(request.regex)
        except BadPattern as bad:
            return ErrorCode.INVALID_REGULAR_EXPRESSION, str(bad)
    return None


def epoch_fault(member_id: str, current: CurrentAssignment, request: ConsumerGroupHeartbeatRequest) -> Fault | None:
    """Check whether a known member may continue under the epoch that it reports. Epoch 0 may always join again
    (KAFKA-19233). The previous epoch is valid if the member has nothing that it was not given: the answer was lost
    (``throwIfConsumerGroupMemberEpochIsInvalid``)."""
    said, known = request.member_epoch, current.epoch
    if said in (JOIN_EPOCH, known):
        return None
    lost_answer = (
        said == current.previous_epoch
        and said < known
        and request.owned is not None
        and covers(current.assigned, owned_of(request.owned))
    )
    if lost_answer:
        return None
    text = f"expected epoch {known} of member {member_id}, found {said}: give up all partitions and join again"
    return ErrorCode.FENCED_MEMBER_EPOCH, text


def updated(
    known: MemberSubscription | None, request: ConsumerGroupHeartbeatRequest, client_host: str
) -> MemberSubscription:
    """Return the member's subscription after the request; fields that it omits are unchanged. A join has all fields."""
    old = None if request.member_epoch == JOIN_EPOCH else known
    topics = () if old is None else old.topics
    if request.topics is not None:
        topics = tuple(sorted(set(request.topics.names)))
    regex = old.regex if request.regex is None and old is not None else request.regex or None
    timeout = request.rebalance_timeout_ms
    return MemberSubscription(
        request.instance_id or (None if known is None else known.instance_id),
        old.rack_id if request.rack_id is None and old is not None else request.rack_id,
        request.client_id,
        client_host,
        topics,
        regex,
        old.rebalance_timeout_ms if timeout == UNCHANGED_MS and old is not None else timeout,
        old.assignor if request.assignor is None and old is not None else request.assignor,
    )


def wants_otherwise(known: MemberSubscription | None, new: MemberSubscription) -> bool:
    """Return whether the member may require another assignment."""
    return known is None or (known.topics, known.regex, known.assignor) != (new.topics, new.regex, new.assignor)


def owned_of(owned: IdAssignment) -> Partitions:
    found: dict[TopicId, frozenset[int]] = {}
    for topic_id, partitions in ((each.topic_id, each.partitions) for each in owned.topics):
        if partitions:
            found[topic_id] = found.get(topic_id, frozenset()).union(partitions)
    return found


def is_whole(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether the member reports everything: it joins, or has lost track and wants to get everything."""
    says_what = request.topics is not None or request.regex is not None
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != UNCHANGED_MS and says_what and request.owned is not None
    )


def answered(assigned: Owned) -> IdAssignment:
    """Return an assignment in the answer's form."""
    return IdAssignment(
        tuple(TopicIdPartitions(topic_id, tuple(sorted(assigned[topic_id]))) for topic_id in sorted(assigned))
    )


def static_fault(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Fault | None:
    """Check whether a member that is not new may use its instance id."""
    if instance_id is None:
        return None
    holder = group.static_members.get(instance_id)
    if holder is None:
        return ErrorCode.UNKNOWN_MEMBER_ID, f"expected a known instance id, found {instance_id!r}"
    if holder != member_id:
        text = f"expected member {holder} to use instance id {instance_id!r}, found {member_id}"
        return ErrorCode.FENCED_INSTANCE_ID, text
    return None
