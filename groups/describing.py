"""Answers to administrators about groups. Source: ``GroupMetadataManager.describeGroups`` and ``listGroups``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tidelog.groups.consumer.assigning import preferred
from tidelog.groups.state.consumer_group import only
from tidelog.groups.state.group import CONSUMER, Group
from tidelog.groups.state.settings import GroupSettings
from tidelog.groups.state.topics import Topics
from tidelog.groups.state.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.consumer_group_api import ConsumerGroupMember, DescribedConsumerGroup, NamedPartitions
from tidelog.proto.calls.group_api import DescribedGroup, ListedGroup
from tidelog.proto.logs.consumer_group_records import Partitions

CLASSIC: Final = "classic"


def describe(group_id: str, group: Group | None) -> DescribedGroup:
    """Describe members, with their metadata under the protocol once that is chosen; KIP-1043 for a missing group. A
    group of the consumer protocol is missing too, except for its protocol type."""
    if group is None or group.consumer is not None:
        return DescribedGroup(
            group_id,
            ErrorCode.GROUP_ID_NOT_FOUND,
            GroupState.DEAD.value,
            "" if group is None else CONSUMER,
            error_message=f"expected a group of the classic protocol, found none called {group_id!r}",
        )
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return DescribedGroup(
        group_id,
        ErrorCode.NONE,
        group.state.value,
        group.protocol_type or "",
        protocol or "",
        tuple(member.described(protocol) for member in group.members.values()),
    )


def describe_consumer(
    group_id: str, group: Group | None, topics: Topics, settings: GroupSettings
) -> DescribedConsumerGroup:
    """Describe a group of the consumer protocol with its members (``ConsumerGroup.asDescribedGroup``)."""
    consumer = None if group is None else group.consumer
    if consumer is None:
        return DescribedConsumerGroup(
            group_id,
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"expected a group of the consumer protocol, found none called {group_id!r}",
            GroupState.DEAD.value,
        )
    return DescribedConsumerGroup(
        group_id,
        ErrorCode.NONE,
        "",
        consumer.state.value,
        consumer.epoch,
        consumer.assignment_epoch,
        preferred(consumer, settings.consumer_assignors),
        tuple(
            ConsumerGroupMember(
                member_id,
                member.instance_id,
                member.rack_id,
                consumer.current_of(member_id).epoch,
                member.client_id,
                member.client_host,
                member.topics,
                member.regex,
                _named(only(consumer.current_of(member_id).assigned), topics),
                _named(consumer.target_of(member_id), topics),
                member.classic is not None,
            )
            for member_id, member in consumer.members.items()
        ),
    )


def _named(partitions: Partitions, topics: Topics) -> tuple[NamedPartitions, ...]:
    """Return partitions of existing topics, by name."""
    named = ((topics.name_of(topic_id), topic_id, found) for topic_id, found in partitions.items())
    return tuple(
        NamedPartitions(topic_id, name, tuple(sorted(found)))
        for name, topic_id, found in sorted(each for each in named if each[0] is not None)
        if name is not None
    )


def listed(groups: Collection[Group], states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
    """Return the groups in one of ``states`` and of one of ``types``; empty means all. Case is ignored (KIP-518,
    KIP-848)."""
    wanted_types = {name.lower() for name in types}
    wanted = {name.lower() for name in states}
    found: list[ListedGroup] = []
    for group in groups:
        kind = CLASSIC if group.consumer is None else CONSUMER
        protocol_type = (group.protocol_type or "") if group.consumer is None else CONSUMER
        state = group.shown_state.value
        if (not wanted or state.lower() in wanted) and (not wanted_types or kind in wanted_types):
            found.append(ListedGroup(group.group_id, protocol_type, state, kind))
    return found
