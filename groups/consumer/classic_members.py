"""Members of a consumer group that speak the classic protocol: JoinGroup, SyncGroup and Heartbeat.

Source: ``GroupMetadataManager.classicGroupJoinToConsumerGroup``, ``classicGroupSyncToConsumerGroup`` and
``classicGroupHeartbeatToConsumerGroup`` as of Kafka 4.3 (KAFKA-20272). To such a member its epoch is a generation, in
which nobody leads: JoinGroup moves it one step towards its target, SyncGroup says what it may have now, and a heartbeat
calls it back while there is more to do. Its subscription says what it still has.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.groups.consumer.asking import Fault, static_fault, wants_otherwise
from tidelog.groups.consumer.change import Change
from tidelog.groups.consumer.converting import assignment_of, by_id
from tidelog.groups.consumer.decided import Joining, Look, Syncing
from tidelog.groups.consumer.deciding import Deciding
from tidelog.groups.consumer.timing import Timing
from tidelog.groups.state.consumer_group import ConsumerGroup, MemberState
from tidelog.groups.state.group import CONSUMER
from tidelog.groups.state.member import new_member_id, rebalance_timeout_ms
from tidelog.groups.state.shard_state import ShardState
from tidelog.groups.state.topics import Topics
from tidelog.model.assignors.assignor import Subscription
from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.proto.calls.group_api import (
    NO_MEMBER,
    GroupProtocol,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupResponse,
)
from tidelog.proto.logs.consumer_group_records import MEMBER, ClassicMember, ConsumerKey, MemberSubscription
from tidelog.proto.logs.consumer_protocol import BadConsumerProtocol, decode_subscription


class ClassicMembers:
    """Decides about them for one partition of ``__consumer_offsets``."""

    __slots__ = ("_deciding", "_shard", "_timing")

    def __init__(self, shard: ShardState, deciding: Deciding, timing: Timing) -> None:
        self._shard = shard
        self._deciding = deciding
        self._timing = timing

    # --- JoinGroup ------------------------------------------------------------------------------------

    def join(self, change: Change, asked: Joining, topics: Topics, now: Moment) -> JoinGroupResponse:
        request, consumer = asked.request, change.group
        if not consumer.members:
            return asked.again()
        instance_id = request.group_instance_id
        member_id = request.member_id or new_member_id(instance_id or request.client_id, self._shard.rng)
        protocols = tuple({protocol.name: protocol for protocol in request.protocols}.values())
        fault = self._join_fault(consumer, request, member_id, protocols)
        if fault is not None:
            error, text = fault
            return JoinGroupResponse(error, member_id=request.member_id, error_message=text)
        if request.member_id == NO_MEMBER and instance_id is None and not request.admit_unknown:
            return JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        try:
            subscription = decode_subscription(protocols[0].metadata)
        except BadConsumerProtocol as bad:
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return JoinGroupResponse(error, member_id=request.member_id, error_message=str(bad))
        if instance_id is not None:
            self._deciding.take_over(change, instance_id, member_id)
        known = consumer.members.get(member_id)
        member = _updated(known, request, asked.client_host, protocols, subscription)
        if member != known:
            change.put(ConsumerKey(MEMBER, consumer.group_id, member_id), member)
        self._deciding.bump_if_needed(change, topics, is_wanted=wants_otherwise(known, member))
        self._deciding.assign_if_needed(change, topics, now)
        after = self._deciding.reconcile(change, member_id, member, by_id(subscription.owned, topics), topics)
        answer = JoinGroupResponse(ErrorCode.NONE, after.epoch, CONSUMER, protocols[0].name, member_id=member_id)
        if not self._deciding.downgrade_if_due(change, topics, now):
            self._timing.end_revocation(consumer, member_id)
            self._timing.restart_session(consumer, member_id, now)
            self._timing.joined(consumer, member_id, now)
        return answer

    def _join_fault(
        self,
        consumer: ConsumerGroup,
        request: JoinGroupRequest,
        member_id: str,
        protocols: tuple[GroupProtocol, ...],
    ) -> Fault | None:
        """Check whether the member may join, apart from its subscription."""
        if not _speaks(consumer, member_id, request.protocol_type, protocols):
            text = (
                f"expected protocol type {CONSUMER} and a protocol that all {consumer.classic_members} classic members"
                f" speak, found {request.protocol_type} with {', '.join(p.name for p in protocols) or 'none'}"
            )
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text
        holder = None
        if request.group_instance_id is not None:
            holder = consumer.static_members.get(request.group_instance_id)
            if request.member_id != NO_MEMBER:
                fault = static_fault(consumer, member_id, request.group_instance_id)
                if fault is not None:
                    return fault
        if holder is None and member_id not in consumer.members:
            return self._deciding.room_fault(consumer)
        return None

    # --- SyncGroup ------------------------------------------------------------------------------------

    def sync(self, change: Change, asked: Syncing, topics: Topics, now: Moment) -> SyncGroupResponse:
        request, consumer = asked.request, change.group
        fault = _member_fault(consumer, request.member_id, request.group_instance_id, request.generation_id)
        if fault is not None:
            return SyncGroupResponse(fault[0], error_message=fault[1])
        member_id = request.member_id
        classic, current = consumer.members[member_id].classic, consumer.current_of(member_id)
        assert classic is not None
        name = classic.protocols[0][0]
        if request.protocol_type not in ("", CONSUMER) or request.protocol_name not in ("", name):
            text = f"expected protocol {name} of type {CONSUMER}, as JoinGroup answered"
            return SyncGroupResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, error_message=text)
        if current.epoch < consumer.assignment_epoch and current.state != MemberState.UNREVOKED_PARTITIONS:
            self._timing.call_back(consumer, member_id, now)
            return SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS)
        self._timing.synced(consumer, member_id)
        self._timing.restart_session(consumer, member_id, now)
        return SyncGroupResponse(ErrorCode.NONE, CONSUMER, name, assignment_of(classic, current, topics))

    # --- Heartbeat ------------------------------------------------------------------------------------

    def heartbeat(self, consumer: ConsumerGroup, request: HeartbeatRequest, now: Moment) -> HeartbeatResponse:
        member_id = request.member_id
        fault = _member_fault(consumer, member_id, request.group_instance_id, request.generation_id)
        if fault is not None:
            return HeartbeatResponse(fault[0], error_message=fault[1])
        self._timing.restart_session(consumer, member_id, now)
        if not self._has_more_to_do(consumer, member_id):
            self._look(consumer, now)
            return HeartbeatResponse(ErrorCode.NONE)
        self._timing.call_back(consumer, member_id, now)
        return HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS)

    def _has_more_to_do(self, consumer: ConsumerGroup, member_id: str) -> bool:
        """Return whether another JoinGroup would bring the member further."""
        current = consumer.current_of(member_id)
        if current.epoch < consumer.assignment_epoch or current.state == MemberState.UNREVOKED_PARTITIONS:
            return True
        return current.state == MemberState.UNRELEASED_PARTITIONS and not any(
            consumer.owner.get((topic_id, partition), member_id) != member_id
            for topic_id, partitions in consumer.target_of(member_id).items()
            for partition in partitions
        )

    def _look(self, consumer: ConsumerGroup, now: Moment) -> None:
        """Have the group looked at if its topics may have changed, or it needs a target: if all its members are
        classic, nobody else's heartbeat does that."""
        is_behind = consumer.epoch > consumer.assignment_epoch and consumer.work is None
        is_new = self._shard.topics().version != consumer.metadata_version
        if (is_behind or is_new) and self._shard.can_append and not (consumer.busy or consumer.queue):
            consumer.queue.append(Look())
            self._timing.rest(consumer, now)


def _speaks(consumer: ConsumerGroup, member_id: str, protocol_type: str, protocols: Iterable[GroupProtocol]) -> bool:
    """Return whether a member with these protocols fits in: all classic members must share one of them."""
    known = consumer.members.get(member_id)
    mine = () if known is None or known.classic is None else known.classic.protocols
    own = {name for name, _ in mine}
    others = consumer.classic_members - bool(mine)
    return protocol_type == CONSUMER and any(
        consumer.speakers.get(protocol.name, 0) - (protocol.name in own) == others for protocol in protocols
    )


def _updated(
    known: MemberSubscription | None,
    request: JoinGroupRequest,
    client_host: str,
    protocols: tuple[GroupProtocol, ...],
    said: Subscription,
) -> MemberSubscription:
    return MemberSubscription(
        request.group_instance_id or (None if known is None else known.instance_id),
        said.rack_id or (None if known is None else known.rack_id),
        request.client_id,
        client_host,
        tuple(sorted(set(said.topics))),
        None,
        rebalance_timeout_ms(request),
        None if known is None else known.assignor,
        ClassicMember(request.session_timeout_ms, tuple((each.name, each.metadata) for each in protocols)),
    )


def _member_fault(consumer: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Fault | None:
    """Check whether it is a classic member in its generation."""
    fault = static_fault(consumer, member_id, instance_id)
    if fault is not None:
        return fault
    member = consumer.members.get(member_id)
    if member is None or member.classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID, f"expected a classic member of the group, found {member_id!r}"
    epoch = consumer.current_of(member_id).epoch
    if generation != epoch:
        return ErrorCode.ILLEGAL_GENERATION, f"expected generation {epoch} of member {member_id}, found {generation}"
    return None
