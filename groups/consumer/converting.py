"""Groups that change their protocol while they have members. Pure.

Source: ``ConsumerGroup.fromClassicGroup``, ``ClassicGroup.fromConsumerGroup``, ``validateOnlineUpgrade`` and
``validateOnlineDowngradeWithFencedMembers`` as of Kafka 4.3. Three departures. Two keep a partition from getting a
second owner: on the way up, a classic member in the middle of a rebalance also counts as the owner of what it had when
it joined, which Kafka forgets; on the way down, the record holds what members have, not what the target would give
them, and names no leader, so that a coordinator that loads it knows that the group has yet to rebalance. The third:
data in an assignment refuses the upgrade only if the assignor is none of Kafka's own, since those never read it. Kafka
refuses always, and librdkafka's leader copies each member's data from its subscription into its assignment.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.groups.state.consumer_group import ConsumerGroup, ConsumerRecord, MemberState
from tidelog.groups.state.group import CONSUMER, Group
from tidelog.groups.state.group_offsets import Population
from tidelog.groups.state.member import Member
from tidelog.groups.state.settings import GroupSettings
from tidelog.groups.state.topics import Topics, metadata_hash
from tidelog.groups.state.transitions import GroupState
from tidelog.model.assignors import ASSIGNORS, Assignment, Subscription
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.model.moment import Moment
from tidelog.proto.calls.group_api import GroupProtocol
from tidelog.proto.logs.consumer_group_records import (
    CURRENT,
    GROUP,
    MEMBER,
    TARGET,
    TARGET_EPOCH,
    ClassicMember,
    ConsumerKey,
    CurrentAssignment,
    GroupEpoch,
    MemberSubscription,
    Owned,
    Target,
    TargetEpoch,
)
from tidelog.proto.logs.consumer_protocol import (
    VERSION_NEWEST,
    BadConsumerProtocol,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)


class NotUpgradable(Exception):
    """The text says why a classic group cannot take members of the consumer protocol."""


def upgraded(group: Group, settings: GroupSettings, topics: Topics) -> list[ConsumerRecord]:
    """Return the records that make a classic group with members one of the consumer protocol, in Kafka's order: its
    members keep what they have, in the generation that they are in. Raises :class:`NotUpgradable`."""
    name = group.group_id
    if not settings.migration_policy.allows_upgrade:
        policy = settings.migration_policy.value
        raise NotUpgradable(
            f"group {name} has members of the classic protocol, and group.consumer.migration.policy is {policy}: stop"
            " them first"
        )
    if group.protocol_type != CONSUMER:
        raise NotUpgradable(f"expected a group of protocol type {CONSUMER}, found {group.protocol_type}: stop it first")
    said: dict[str, tuple[Subscription, Assignment]] = {}
    for member in group.members.values():
        try:
            assignment = decode_assignment(member.assignment) if member.assignment else Assignment(())
            said[member.member_id] = decode_subscription(member.protocols[0].metadata), assignment
        except BadConsumerProtocol as bad:
            raise NotUpgradable(
                f"the subscription or assignment of member {member.member_id} is unreadable: {bad}"
            ) from bad
        if assignment.user_data and group.protocol not in ASSIGNORS:
            raise NotUpgradable(
                f"the assignment of member {member.member_id} has data of its assignor {group.protocol}, which would be"
                " lost: change the assignor first"
            )
    return _records(group, topics, said)


def _records(group: Group, topics: Topics, said: dict[str, tuple[Subscription, Assignment]]) -> list[ConsumerRecord]:
    name, epoch = group.group_id, group.generation
    subscribed = {topic for subscription, _ in said.values() for topic in subscription.topics}
    taken = {at for _, assignment in said.values() for at in assignment.partitions}
    members: list[ConsumerRecord] = []
    targets: list[ConsumerRecord] = []
    currents: list[ConsumerRecord] = []
    for member in group.members.values():
        subscription, assignment = said[member.member_id]
        kept = [at for at in subscription.owned if at not in taken]
        taken.update(kept)
        assigned, pending = _owned(assignment.partitions, topics, epoch), _owned(kept, topics, epoch)
        state = MemberState.UNREVOKED_PARTITIONS if pending else MemberState.STABLE
        members.append((ConsumerKey(MEMBER, name, member.member_id), _subscription_of(member, subscription)))
        target = Target({topic_id: frozenset(epochs) for topic_id, epochs in assigned.items()})
        targets.append((ConsumerKey(TARGET, name, member.member_id), target))
        current = CurrentAssignment(epoch, epoch, state, assigned, pending)
        currents.append((ConsumerKey(CURRENT, name, member.member_id), current))
    group_epoch = ConsumerKey(GROUP, name), GroupEpoch(epoch, metadata_hash(topics, subscribed))
    return [*members, group_epoch, *targets, (ConsumerKey(TARGET_EPOCH, name), TargetEpoch(epoch)), *currents]


def _subscription_of(member: Member, said: Subscription) -> MemberSubscription:
    return MemberSubscription(
        member.instance_id,
        said.rack_id,
        member.client_id,
        member.client_host,
        tuple(sorted(set(said.topics))),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicMember(member.session_timeout_ms, tuple((each.name, each.metadata) for each in member.protocols)),
    )


def _owned(partitions: Iterable[TopicPartition], topics: Topics, epoch: int) -> Owned:
    return {topic_id: dict.fromkeys(sorted(numbers), epoch) for topic_id, numbers in by_id(partitions, topics).items()}


def by_id(partitions: Iterable[TopicPartition], topics: Topics) -> dict[TopicId, frozenset[int]]:
    """Return partitions by the ids of their topics, without those of topics that do not exist."""
    found: dict[TopicId, frozenset[int]] = {}
    for topic, partition in partitions:
        shape = topics.shape(topic)
        if shape is not None:
            found[shape.topic_id] = found.get(shape.topic_id, frozenset()) | {partition}
    return found


def may_downgrade(consumer: ConsumerGroup, settings: GroupSettings) -> bool:
    """Return whether only classic members are left, and the group is to become classic with them."""
    found = len(consumer.members)
    if not found or found != consumer.classic_members or not settings.migration_policy.allows_downgrade:
        return False
    return found <= settings.max_size and found in consumer.speakers.values()


def downgraded(consumer: ConsumerGroup, topics: Topics, now: Moment) -> Group:
    """Return what the group is as a classic one. Each member has what it had."""
    group = Group(consumer.group_id, Population(), now.wall_ms)
    for member_id, member in consumer.members.items():
        classic = member.classic
        assert classic is not None
        group.add(
            Member(
                member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                classic.session_timeout_ms,
                tuple(GroupProtocol(*each) for each in classic.protocols),
                assignment_of(classic, consumer.current_of(member_id), topics, with_pending=True),
            )
        )
    group.generation = consumer.epoch
    group.protocol_type = CONSUMER
    group.protocol = group.chosen_protocol()
    group.state = GroupState.STABLE
    group.leader = None
    return group


def assignment_of(
    member: ClassicMember, current: CurrentAssignment, topics: Topics, *, with_pending: bool = False
) -> bytes:
    """Return a member's partitions in the form in which classic members get them, in the version of its metadata."""
    found: list[TopicPartition] = []
    for owned in (current.assigned, current.pending) if with_pending else (current.assigned,):
        for topic_id, epochs in owned.items():
            topic = topics.name_of(topic_id)
            if topic is not None:
                found += [TopicPartition(topic, partition) for partition in epochs]
    version = int.from_bytes(member.protocols[0][1][:2], signed=True)
    return encode_assignment(sorted(found), version=min(max(version, 0), VERSION_NEWEST))
