"""The sticky assignment for members with different subscriptions: balance as far as these allow.

Source: the general algorithm of Kafka's ``AbstractStickyAssignor``. Where Kafka follows the order of a hash map, this
follows the order of member ids and moves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from tidelog.model.ids import TopicPartition


def divide_unequally(
    counts: Mapping[str, int],
    topics_of: Mapping[str, frozenset[str]],
    owned: Mapping[str, list[TopicPartition]],
    last_holder_of: Mapping[TopicPartition, str],
) -> dict[str, list[TopicPartition]]:
    """Assign so that no member could take a partition from one with at least two more.

    ``counts``: number of partitions of each topic; ``topics_of``: each member's subscription; ``owned``: what each
    owns, no partition twice; ``last_holder_of``: the member that had a partition before its current owner, and is first
    to get it back if balance requires a move. Topics with the fewest subscribers come first.
    """
    division = _Division(counts, topics_of, owned)
    unassigned = division.unassigned()
    for partition in unassigned:
        division.give_to_least_loaded(partition)
    if not division.some_owner_lost_its_subscription:
        division.balance(unassigned, last_holder_of)
    division.balance(division.partitions, last_holder_of)
    return {member: list(part) for member, part in division.parts.items()}


class _Division:
    """Each member's current partitions and their number.

    ``loads`` holds (number of partitions, member id) in order, so the first entry is the least loaded member.
    """

    def __init__(
        self,
        counts: Mapping[str, int],
        topics_of: Mapping[str, frozenset[str]],
        owned: Mapping[str, list[TopicPartition]],
    ) -> None:
        self.topics_of = topics_of
        self.some_owner_lost_its_subscription = False
        self.parts: dict[str, dict[TopicPartition, None]] = {}
        self.owner_of: dict[TopicPartition, str] = {}
        for member in sorted(owned):
            part = self.parts[member] = {}
            for partition in owned[member]:
                if partition.topic in topics_of[member]:
                    part[partition] = None
                    self.owner_of[partition] = member
                else:
                    self.some_owner_lost_its_subscription = True
        self.loads = sorted((len(part), member) for member, part in self.parts.items())
        self._moves = _Moves()

        self._wanted_by = dict.fromkeys(counts, 0)
        for topics in topics_of.values():
            for topic in topics & counts.keys():
                self._wanted_by[topic] += 1
        rarest_first = sorted(counts, key=lambda topic: (self._wanted_by[topic], topic))
        self.partitions = [TopicPartition(topic, number) for topic in rarest_first for number in range(counts[topic])]

    def unassigned(self) -> list[TopicPartition]:
        return [partition for partition in self.partitions if partition not in self.owner_of]

    def least_loaded(self, topic: str) -> tuple[int, str]:
        """Return the topic's subscriber with the fewest partitions, and their number."""
        for load in self.loads:
            if topic in self.topics_of[load[1]]:
                return load
        raise AssertionError(f"a topic that nobody wants was to be divided: {topic!r}")

    def give_to_least_loaded(self, partition: TopicPartition) -> None:
        _, member = self.least_loaded(partition.topic)
        self._change_load(member, 1)
        self.parts[member][partition] = None
        self.owner_of[partition] = member

    def balance(self, partitions: Sequence[TopicPartition], last_holder_of: Mapping[TopicPartition, str]) -> None:
        """Move partitions to members with at least two fewer, until no move is left.

        It terminates: each move reduces the sum of the squared loads.
        """
        movable = [partition for partition in partitions if self._wanted_by[partition.topic] > 1]
        moved = True
        while moved:
            moved = False
            topic, fewest, least_loaded = "", 0, ""  # remembered from one partition to the next, until a move
            for partition in movable:
                if self.loads[-1][0] - self.loads[0][0] <= 1:
                    return
                load = len(self.parts[self.owner_of[partition]])
                last_holder = last_holder_of.get(partition)
                if (
                    last_holder is not None
                    and partition.topic in self.topics_of[last_holder]
                    and load > len(self.parts[last_holder]) + 1
                ):
                    target = last_holder
                else:
                    if partition.topic != topic:
                        topic = partition.topic
                        fewest, least_loaded = self.least_loaded(topic)
                    if load <= fewest + 1:
                        continue
                    target = least_loaded
                self._move(partition, target)
                moved = True
                topic = ""

    def _move(self, partition: TopicPartition, target: str) -> None:
        """Move load to ``target`` from this partition's owner, or from another member with at least two more
        partitions.

        If another partition of the topic has moved from ``target`` to this one's first owner, move that one back
        instead.
        """
        back = self._moves.undone_by(partition, self.owner_of[partition], target)
        if back is None:
            self._shift(partition, target)
            return
        first_owner = self.owner_of[back]
        if len(self.parts[first_owner]) <= len(self.parts[target]) + 1:
            self._shift(partition, first_owner)  # it lost one and gets one: both are back where they started
        self._shift(back, target)

    def _shift(self, partition: TopicPartition, target: str) -> None:
        source = self.owner_of[partition]
        self._moves.add(partition, source, target)
        self._change_load(source, -1)
        self._change_load(target, 1)
        del self.parts[source][partition]
        self.parts[target][partition] = None
        self.owner_of[partition] = target

    def _change_load(self, member: str, change: int) -> None:
        """Move the member in ``loads``. Call it before the member's partitions change."""
        load = len(self.parts[member])
        del self.loads[bisect_left(self.loads, (load, member))]
        insort(self.loads, (load + change, member))


class _Moves:
    """The moves of partitions between members; two moves of one partition count as one, a move there and back as
    none."""

    def __init__(self) -> None:
        self._move_of: dict[TopicPartition, tuple[str, str]] = {}
        self._partitions_of: dict[tuple[str, str, str], dict[TopicPartition, None]] = {}

    def undone_by(self, partition: TopicPartition, source: str, target: str) -> TopicPartition | None:
        """Return a partition of the same topic that moved the other way, so that moving it back saves a move."""
        first_source = self._move_of.get(partition, (source, target))[0]
        others = self._partitions_of.get((partition.topic, target, first_source))
        return next(iter(others)) if others else None

    def add(self, partition: TopicPartition, source: str, target: str) -> None:
        earlier = self._move_of.pop(partition, None)
        if earlier is not None:
            del self._partitions_of[(partition.topic, *earlier)][partition]
            source = earlier[0]
        if source != target:
            self._move_of[partition] = (source, target)
            self._partitions_of.setdefault((partition.topic, source, target), {})[partition] = None
