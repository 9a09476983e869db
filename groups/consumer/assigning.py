"""Target assignments: ``uniform`` and ``range``, based on the algorithms of clients' assignors. Pure.

Source: ``UniformAssignor``, ``RangeAssignor`` and ``TargetAssignmentBuilder`` of Kafka's group coordinator. Equal input
gives equal output, whatever its order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from tidelog.groups.state.consumer_group import ConsumerGroup
from tidelog.groups.state.topics import Topics
from tidelog.model.assignors import RangeAssignor, Subscription
from tidelog.model.assignors.assignor import subscribed_topics
from tidelog.model.assignors.equal_subscriptions import divide_equally
from tidelog.model.assignors.unequal_subscriptions import divide_unequally
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.proto.logs.consumer_group_records import Partitions

Divide = Callable[[Mapping[str, int], Mapping[str, Subscription]], Mapping[str, "list[TopicPartition]"]]
"""Takes the number of partitions by topic, and members with their current target (``owned``); returns all members'
shares."""


def uniform(partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[str, list[TopicPartition]]:
    """Assign as evenly as subscriptions allow, with few moves: if all want the same topics, shares differ by one at
    most."""
    counts = subscribed_topics(partitions_of, members)
    taken: set[TopicPartition] = set()
    owned: dict[str, list[TopicPartition]] = {}
    for member in sorted(members):
        mine = [at for at in members[member].owned if at.partition < counts.get(at.topic, 0) and at not in taken]
        taken.update(mine)
        owned[member] = mine
    topics_of = {member: frozenset(said.topics) for member, said in members.items()}
    if len(set(topics_of.values())) <= 1:
        return divide_equally(counts, owned)
    return divide_unequally(counts, topics_of, owned, {})


def ranges(partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[str, list[TopicPartition]]:
    """Assign neighbouring partitions, topic by topic: topics of equal size and equal members are divided in the same
    way."""
    found = RangeAssignor().assign(partitions_of, members)
    return {member: list(share.partitions) for member, share in found.items()}


ASSIGNORS: Final[Mapping[str, Divide]] = MappingProxyType({"uniform": uniform, "range": ranges})
"""The assignors that ``group.consumer.assignors`` may name."""


def preferred(group: ConsumerGroup, offered: tuple[str, ...]) -> str:
    """Return the assignor that most members request; the first offered one if none does, or on a tie the one offered
    first."""
    votes = Counter(member.assignor for member in group.members.values() if member.assignor in offered)
    return max(offered, key=lambda name: (votes[name], -offered.index(name)))


def new_target(group: ConsumerGroup, topics: Topics, assignor: str) -> dict[str, Partitions]:
    """Return each member's target, by topic id. Static members that left temporarily keep their share."""
    ids: dict[str, TopicId] = {}
    partitions_of: dict[str, int] = {}
    members: dict[str, Subscription] = {}
    names: dict[TopicId, str | None] = {}
    for member_id, member in group.members.items():
        wanted = group.topics_of(member)
        for topic in wanted - ids.keys():
            shape = topics.shape(topic)
            if shape is not None:
                ids[topic], partitions_of[topic] = shape
        owned: list[TopicPartition] = []
        for topic_id, partitions in group.target_of(member_id).items():
            if topic_id not in names:
                names[topic_id] = topics.name_of(topic_id)
            name = names[topic_id]
            if name is not None and name in wanted:
                owned += [TopicPartition(name, partition) for partition in sorted(partitions)]
        members[member_id] = Subscription(
            tuple(sorted(wanted)), owned=tuple(owned), group_instance_id=member.instance_id
        )
    target: dict[str, Partitions] = {}
    for member_id, share in ASSIGNORS[assignor](partitions_of, members).items():
        by_topic: dict[TopicId, set[int]] = {}
        for topic, partition in share:
            by_topic.setdefault(ids[topic], set()).add(partition)
        target[member_id] = {topic_id: frozenset(found) for topic_id, found in by_topic.items()}
    return target
