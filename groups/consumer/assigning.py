"""Target assignments: what is divided among whom, in portions, and the records that follow. Pure.

Source: ``TargetAssignmentBuilder`` of Kafka's group coordinator. A target is made from the group as it was when the
work began. The group goes on meanwhile, with the target that it has. A result counts for the group epoch of its
beginning, and only for members that are still there; whatever changed later has raised the group epoch, so another
target follows.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.groups.consumer.change import PUT_UNITS, Change
from tidelog.groups.consumer.dividing import ASSIGNORS, Input
from tidelog.groups.consumer.steps import Steps, Work
from tidelog.groups.state.consumer_group import ConsumerGroup
from tidelog.groups.state.topics import Topics
from tidelog.model.ids import TopicId
from tidelog.proto.logs.consumer_group_records import (
    TARGET,
    TARGET_EPOCH,
    ConsumerKey,
    MemberSubscription,
    Partitions,
    ResolvedRegex,
    Target,
    TargetEpoch,
)


def preferred(group: ConsumerGroup, offered: tuple[str, ...]) -> str:
    """Return the assignor that most members request; the first offered one if none does, or on a tie the one offered
    first."""
    return max(offered, key=lambda name: (group.votes.get(name, 0), -offered.index(name)))


class TargetWork:
    """A target in the making. ``epoch``: the group epoch that it is for; ``members``: as of that epoch."""

    __slots__ = ("epoch", "members", "steps")

    def __init__(self, group: ConsumerGroup, topics: Topics, assignor: str) -> None:
        self.epoch = group.epoch
        self.members = dict(group.members)
        self.steps: Steps[dict[str, Partitions]] = Steps(
            new_target(self.members, dict(group.target), dict(group.regexes), topics, assignor)
        )


def new_target(
    members: Mapping[str, MemberSubscription],
    had: Mapping[str, Partitions],
    regexes: Mapping[str, ResolvedRegex],
    topics: Topics,
    assignor: str,
) -> Work[dict[str, Partitions]]:
    """Return the targets of members whose target changes. Static members that left temporarily keep their share."""
    names = sorted(members)
    if assignor == "range":
        static = sorted((instance_id, name) for name in names if (instance_id := members[name].instance_id) is not None)
        names = [name for _, name in static] + [name for name in names if members[name].instance_id is None]
    yield len(names) // 4
    ids: dict[str, TopicId] = {}
    partitions_of: dict[str, int] = {}
    wish_of: dict[tuple[tuple[str, ...], str | None], frozenset[TopicId]] = {}
    wishes: dict[str, frozenset[TopicId]] = {}
    for name in names:
        member = members[name]
        kind = member.topics, member.regex
        if kind not in wish_of:
            found = regexes.get(member.regex) if member.regex else None
            wanted = {*member.topics, *(() if found is None else found.topics)}
            for topic in wanted - ids.keys():
                shape = topics.shape(topic)
                if shape is not None:
                    ids[topic], partitions_of[topic] = shape
            wish_of[kind] = frozenset(ids[topic] for topic in wanted if topic in ids)
            yield len(wanted)
        wishes[name] = wish_of[kind]
        yield 1
    counts = {ids[topic]: partitions_of[topic] for topic in sorted(ids)}
    found_target = yield from ASSIGNORS[assignor](Input(counts, wishes, had))
    for share in found_target.values():
        yield _put_units(share)  # what is written within a heartbeat counts as part of it
    return found_target


def put_target(change: Change, work: TargetWork, timestamp_ms: int) -> Work[None]:
    """Write a target. Its epoch comes last, and activates it."""
    group, target = change.group, work.steps.result
    for name in work.members if group.whole_target else target:
        here = _successor(group, name, work.members)
        if here is None:
            yield 1
            continue
        partitions = target.get(name)
        if partitions is None:
            partitions = group.target_of(here)
        if group.whole_target or group.target.get(here) != partitions:
            change.put(ConsumerKey(TARGET, group.group_id, here), Target(partitions))
        yield _put_units(partitions)
    change.put(ConsumerKey(TARGET_EPOCH, group.group_id), TargetEpoch(work.epoch, timestamp_ms))


def _put_units(partitions: Partitions) -> int:
    return PUT_UNITS + 2 * len(partitions) + sum(map(len, partitions.values())) // 16


def _successor(group: ConsumerGroup, name: str, members: Mapping[str, MemberSubscription]) -> str | None:
    """Return the member that a share is for: whoever has taken a static member's place meanwhile; None if the member
    is gone."""
    if name in group.members:
        return name
    instance_id = members[name].instance_id
    found = None if instance_id is None else group.static_members.get(instance_id)
    return None if found in members else found
