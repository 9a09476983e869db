"""A group of the consumer protocol (KIP-848): all state comes from records, indexed for quick answers.

:meth:`ConsumerGroup.apply` applies a record, from the log or from a decision, and returns the record that would undo
it. So memory never contains more than the log and what is being written to it. Source: ``ConsumerGroup``,
``ModernGroup``.

*Group epoch*: increases whenever another assignment may be needed. *Assignment epoch*: the group epoch of the target
assignment. *Member epoch*: the assignment epoch that the member has reached; -2 for a static member that left
temporarily.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidelog.groups.state.group_offsets import Population
from tidelog.model.ids import TopicId
from tidelog.proto.logs.consumer_group_records import (
    CURRENT,
    GROUP,
    MEMBER,
    REGEX,
    TARGET,
    TARGET_EPOCH,
    ConsumerKey,
    ConsumerValue,
    CurrentAssignment,
    GroupEpoch,
    MemberSubscription,
    Owned,
    Partitions,
    ResolvedRegex,
    Target,
    TargetEpoch,
    encode_consumer_key,
    encode_consumer_value,
)
from tidelog.proto.logs.coordinator_records import CoordinatorRecord

ConsumerRecord = tuple[ConsumerKey, ConsumerValue | None]
"""None: the tombstone."""
LEFT_FOR_A_WHILE: Final = -2
"""The member epoch of a static member that left and may come back."""


class MemberState(enum.IntEnum):
    """A member's progress towards its target; numbers as in Kafka's records."""

    STABLE = 0
    """It has everything that the target of its epoch gives it."""
    UNREVOKED_PARTITIONS = 1
    """It must give up partitions before it moves to the next epoch."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others have not given up."""


class ConsumerGroupState(enum.Enum):
    """The value is the name that administrators see, as in Kafka."""

    EMPTY = "Empty"
    """No members."""
    ASSIGNING = "Assigning"
    """The target assignment is older than the group."""
    RECONCILING = "Reconciling"
    """Some member has not reached its target."""
    STABLE = "Stable"
    """Every member has reached its target."""


NOTHING: Final = CurrentAssignment(0, 0, MemberState.STABLE, {}, {})
"""The current assignment of a new member."""


class ConsumerGroup:
    """``owner``: partition → the member that has it, or has yet to give it up. ``subscribers``, ``regex_users``,
    ``votes``: numbers of members by a topic, regular expression or assignor that they name; ``speakers``: numbers of
    classic members by a protocol that they speak, ``classic_members``: all of those. ``queue``, ``busy``,
    ``work`` and ``writing`` belong to the decisions: what waits for the append in flight, and what is done in
    portions."""

    __slots__ = (
        "_wanted",
        "assignment_epoch",
        "assignment_ms",
        "busy",
        "classic_members",
        "current",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "metadata_version",
        "owner",
        "population",
        "queue",
        "regex_ms",
        "regex_users",
        "regex_version",
        "regexes",
        "speakers",
        "static_members",
        "subscribers",
        "target",
        "votes",
        "whole_target",
        "work",
        "writing",
    )

    def __init__(self, group_id: str, population: Population) -> None:
        self.group_id = group_id
        self.population = population
        self.epoch = 0
        self.metadata_hash = 0
        self.metadata_version = -1
        """The version of the topics' metadata that the hash was compared with."""
        self.assignment_epoch = 0
        self.assignment_ms = 0
        """When the target was made, in ms of the wall clock; 0 unknown."""
        self.members: dict[str, MemberSubscription] = {}
        self.current: dict[str, CurrentAssignment] = {}
        self.target: dict[str, Partitions] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.regex_version = -1
        """The version of the topics' metadata that regular expressions were last matched with,"""
        self.regex_ms = -(1 << 62)
        """and when."""
        self.static_members: dict[str, str] = {}
        self.owner: dict[tuple[TopicId, int], str] = {}
        self.subscribers: dict[str, int] = {}
        self.regex_users: dict[str, int] = {}
        self.votes: dict[str, int] = {}
        self.speakers: dict[str, int] = {}
        self.classic_members = 0
        self._wanted: dict[tuple[tuple[str, ...], str | None], frozenset[str]] = {}
        """The topics of each subscription in use, as they were last asked for."""
        self.queue: deque[Any] = deque()
        self.busy = 0
        """Appends in flight with records of this group; one more while a result is being written."""
        self.work: Any = None
        """A target or regular expressions, being worked out."""
        self.writing: Any = None
        """A result of such work, being written."""
        self.whole_target = False
        """The log may contain part of a target without its epoch, so the next one is written completely."""

    # --- Records ------------------------------------------------------------------------------------

    def apply(self, key: ConsumerKey, value: ConsumerValue | None) -> ConsumerRecord:
        """Apply a record. Returns the one that would undo it."""
        before: ConsumerValue | None
        match key.kind:
            case 3:
                before = GroupEpoch(self.epoch, self.metadata_hash) if self.epoch else None
                self.epoch, self.metadata_hash = (
                    (value.epoch, value.metadata_hash) if isinstance(value, GroupEpoch) else (0, 0)
                )
            case 5:
                before = self.members.get(key.name)
                self._subscription(key.name, value if isinstance(value, MemberSubscription) else None)
            case 6:
                before = TargetEpoch(self.assignment_epoch, self.assignment_ms) if self.assignment_epoch else None
                self.assignment_epoch, self.assignment_ms = value if isinstance(value, TargetEpoch) else (0, 0)
            case 7:
                known = self.target.get(key.name)
                before = None if known is None else Target(known)
                if isinstance(value, Target):
                    self.target[key.name] = value.partitions
                else:
                    self.target.pop(key.name, None)
            case 8:
                before = self.current.get(key.name)
                self._current(key.name, value if isinstance(value, CurrentAssignment) else None)
            case _:
                before = self.regexes.get(key.name)
                self._wanted.clear()
                if isinstance(value, ResolvedRegex):
                    self.regexes[key.name] = value
                else:
                    self.regexes.pop(key.name, None)
        return key, before

    def _subscription(self, member_id: str, value: MemberSubscription | None) -> None:
        before = self.members.pop(member_id, None)
        self.population.members += (value is not None) - (before is not None)
        if before is not None:
            self._count(before, -1)
            if before.instance_id is not None and self.static_members.get(before.instance_id) == member_id:
                del self.static_members[before.instance_id]
        if value is not None:
            self.members[member_id] = value
            self._count(value, 1)
            if value.instance_id is not None:
                self.static_members[value.instance_id] = member_id

    def _count(self, member: MemberSubscription, by: int) -> None:
        _add(self.subscribers, member.topics, by)
        if member.regex:
            _add(self.regex_users, (member.regex,), by)
        if member.assignor is not None:
            _add(self.votes, (member.assignor,), by)
        if member.classic is not None:
            _add(self.speakers, (name for name, _ in member.classic.protocols), by)
            self.classic_members += by
        if len(self._wanted) > 2 * len(self.members) + 8:
            self._wanted.clear()

    def _current(self, member_id: str, value: CurrentAssignment | None) -> None:
        """Apply a current assignment. A compacted log may assign a partition to B before A gave it up, so what A no
        longer has is freed only if A still counts as its owner (KAFKA-19862)."""
        before = self.current.pop(member_id, None)
        if before is not None:
            for at in _each(before):
                if self.owner.get(at) == member_id:
                    del self.owner[at]
        if value is not None:
            self.current[member_id] = value
            for at in _each(value):
                self.owner[at] = member_id

    # --- Looking up ---------------------------------------------------------------------------------

    def current_of(self, member_id: str) -> CurrentAssignment:
        return self.current.get(member_id, NOTHING)

    def target_of(self, member_id: str) -> Partitions:
        return self.target.get(member_id, {})

    def topics_of(self, member: MemberSubscription) -> frozenset[str]:
        """Return a member's subscribed topics, by name and by its regular expression as far as that is resolved."""
        kind = member.topics, member.regex
        topics = self._wanted.get(kind)
        if topics is None:
            found = self.regexes.get(member.regex) if member.regex else None
            topics = self._wanted[kind] = frozenset(member.topics).union(() if found is None else found.topics)
        return topics

    def subscribed_topics(self) -> set[str]:
        """Return the topics that all members together are subscribed to."""
        return set(self.subscribers).union(
            *(found.topics for pattern, found in self.regexes.items() if pattern in self.regex_users)
        )

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.subscribers or any(
            topic in self.regexes[pattern].topics for pattern in self.regex_users if pattern in self.regexes
        )

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        for member_id in self.members:
            current = self.current_of(member_id)
            if current.state != MemberState.STABLE or current.epoch not in (self.assignment_epoch, LEFT_FOR_A_WHILE):
                return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    def record_keys(self) -> list[ConsumerKey]:
        """Return the keys of the group's records, members first."""
        group = self.group_id
        found = [ConsumerKey(CURRENT, group, name) for name in self.current]
        found += [ConsumerKey(TARGET, group, name) for name in self.target]
        found += [ConsumerKey(MEMBER, group, name) for name in self.members]
        found += [ConsumerKey(REGEX, group, name) for name in self.regexes]
        return [*found, ConsumerKey(TARGET_EPOCH, group), ConsumerKey(GROUP, group)]


def _add(counts: dict[str, int], names: Iterable[str], by: int) -> None:
    for name in names:
        count = counts.get(name, 0) + by
        if count:
            counts[name] = count
        else:
            del counts[name]


def _each(current: CurrentAssignment) -> Iterable[tuple[TopicId, int]]:
    for owned in (current.assigned, current.pending):
        for topic_id, epochs in owned.items():
            for partition in epochs:
                yield topic_id, partition


def only(owned: Owned) -> dict[TopicId, frozenset[int]]:
    """Return the partitions without their epochs."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in owned.items()}


def covers(whole: Owned, part: Mapping[TopicId, frozenset[int]]) -> bool:
    """Return whether ``part`` is a subset of ``whole``."""
    return all(partitions <= whole.get(topic_id, {}).keys() for topic_id, partitions in part.items())


def written(key: ConsumerKey, value: ConsumerValue | None) -> CoordinatorRecord:
    """Return the record in its form in the log."""
    return CoordinatorRecord(encode_consumer_key(key), None if value is None else encode_consumer_value(value))
