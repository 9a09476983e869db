"""A group's progress: committed offsets, log ends, lag and readers. Queries the cluster; building the rows is pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.reset_plan import Bounds
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.group_types import GroupDescription, MemberDescription


class GroupStanding(NamedTuple):
    """One partition of a group, or a member without any (``topic`` and ``partition`` are then ``None``).

    ``current_offset`` is ``None`` if nothing is committed, ``log_end_offset`` if the partition is gone or has no
    leader, ``lag`` if either is; the rest is ``None`` if nobody reads the partition."""

    group: str
    topic: str | None
    partition: int | None
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    consumer_id: str | None
    host: str | None
    client_id: str | None


def standings(
    group: GroupDescription, committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[GroupStanding]:
    """Combine what is known about a group: partitions in order, then members without partitions."""
    readers: dict[TopicPartition, MemberDescription] = {}
    for member in group.members:
        for at in member.assignment or ():
            readers[at] = member
    found = []
    for at in sorted(committed.keys() | readers.keys()):
        current, end, reader = committed.get(at), ends.get(at), readers.get(at)
        found.append(
            GroupStanding(
                group.group_id,
                at.topic,
                at.partition,
                current,
                end,
                None if current is None or end is None else max(0, end - current),
                None if reader is None else reader.member_id,
                None if reader is None else reader.host,
                None if reader is None else reader.client_id,
            )
        )
    found += [
        GroupStanding(group.group_id, None, None, None, None, None, idle.member_id, idle.host, idle.client_id)
        for idle in group.members
        if not idle.assignment
    ]
    return found


def led_partitions(admin: Admin, topics: Iterable[str]) -> dict[TopicPartition, bool]:
    """Return the partitions of these topics, and whether each has a leader, without topics that do not exist."""
    there = {topic.name for topic in admin.list_topics(internal=True)}
    wanted = sorted(there & set(topics))
    if not wanted:
        return {}
    return {
        TopicPartition(topic.name, part.partition): part.leader >= 0
        for topic in admin.describe_topics(wanted)
        for part in topic.partitions
    }


def log_ends(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the log end offsets of these partitions, without those that do not exist or have no leader."""
    from tidelog import OffsetSpec

    wanted = set(partitions)
    led = [at for at, has_leader in led_partitions(admin, {at.topic for at in wanted}).items() if has_leader]
    asked = dict.fromkeys([at for at in led if at in wanted], OffsetSpec.latest())
    return {at: found.offset for at, found in admin.list_offsets(asked).items()} if asked else {}


def bounds_of(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
    """Return the first and end offset of partitions, which must have a leader. Raises :class:`CommandFailed`."""
    from tidelog import OffsetSpec

    wanted = sorted(set(partitions))
    led = led_partitions(admin, {at.topic for at in wanted})
    for at in wanted:
        if at not in led:
            count = sum(other.topic == at.topic for other in led)
            expected = f"a partition from 0 to {count - 1}" if count else "a topic that exists"
            raise CommandFailed(f"{at}: expected {expected}")
        if not led[at]:
            raise CommandFailed(f"{at} has no leader now; `tidelog topics describe --unhealthy` shows such partitions")
    if not wanted:
        return {}
    first = admin.list_offsets(dict.fromkeys(wanted, OffsetSpec.earliest()))
    last = admin.list_offsets(dict.fromkeys(wanted, OffsetSpec.latest()))
    return {at: Bounds(first[at].offset, last[at].offset) for at in wanted}
