"""Judges of consumer groups: owners in each generation, committed offsets, records handed out.

===================  ========================================================================================
one owner            in one generation a partition belongs to one member, and a generation's assignment to a
                     member does not change
owned only           a member hands out records of partitions that it owns as far as it knows
in order             the records that a member hands out while it owns a partition have no gap or repetition
fenced               a commit is acknowledged only to a member of the generation that it names, to none of a
                     generation older than one that was complete when the commit was asked for, and for no
                     partition that another one has in that generation; a static member that was replaced is
                     refused
no regress           the committed offset that a member of a generation reads is no less than any that was
                     acknowledged to, or read by, members of this and older generations before
forward only         the commits that a member sends in a generation never go back, nor behind what was
                     committed when the generation began
delivered            records below a committed offset were handed out and processed before, and at the end all
                     records were
===================  ========================================================================================

A group judge covers one group. Members are named by the member id that the coordinator gave; a static
member owns its partitions under its instance id, whichever process uses it. Times are those of the world,
in seconds, and never fall from one call to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.model.ids import TopicPartition


class CommitKey(NamedTuple):
    """A commit of one partition as a member requests it."""

    member_id: str
    instance_id: str | None
    generation: int
    partition: TopicPartition
    offset: int


@dataclass(slots=True)
class _Floor:
    """The highest offset of a partition that members up to some generation are known to have committed."""

    offset: int = 0
    generation: int = -1
    told_s: float = 0.0
    by: str = ""


@dataclass(slots=True)
class _Arrived:
    """A commit that reached a coordinator: it may take effect at any time from then on."""

    commit: CommitKey
    at_s: float


@dataclass(slots=True)
class _Held:
    """What a member is handing out, since it was assigned."""

    generation: int
    partitions: dict[TopicPartition, int | None] = field(default_factory=dict)
    """Partition → the next offset due, ``None`` while nothing was handed out."""


class GroupJudge:
    """Receives the answers of coordinators and the actions of members, and returns violations."""

    def __init__(self) -> None:
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._assigned: dict[tuple[int, str], frozenset[TopicPartition]] = {}
        self._members: dict[tuple[int, str], None] = {}
        """Generation and id of each admitted member."""
        self._complete_s: dict[int, float] = {}
        """Generation → when its assignment was first given out."""
        self._synced_s: dict[tuple[int, str], float] = {}
        """Generation and member id → when it first received its assignment."""
        self._instances: dict[str, list[tuple[str, float, int]]] = {}
        """Instance id → its successive member ids, since when, and from which generation on."""
        self._floors: dict[TopicPartition, list[_Floor]] = {}
        self._arrived: dict[TopicPartition, list[_Arrived]] = {}
        self._sent: dict[tuple[str, int, TopicPartition], int] = {}
        self._held: dict[str, _Held] = {}
        self._done: dict[TopicPartition, list[tuple[int, int]]] = {}
        """Partition → the ranges of offsets, end excluded, that members have processed."""
        self.redelivered = 0
        """Records that were processed more than once."""
        self.newest_generation = -1

    # --- what coordinators answer -----------------------------------------------------------------------

    def joined(
        self, generation: int, member_id: str, instance_id: str | None, at_s: float, *, deposed: bool = False
    ) -> list[str]:
        """Judge the answer to a JoinGroup: a member was admitted. ``deposed``: by a coordinator that another had
        replaced; whatever it makes of a generation's number, none of it is ever stored."""
        self._members[generation, member_id] = None
        if instance_id is not None and not deposed:
            ids = self._instances.setdefault(instance_id, [])
            if not ids or ids[-1][0] != member_id:
                ids.append((member_id, at_s, generation))
        return []

    def assigned(
        self,
        generation: int,
        member_id: str,
        instance_id: str | None,
        partitions: Iterable[TopicPartition],
        at_s: float,
    ) -> list[str]:
        """Judge the answer to a SyncGroup: a member received its assignment."""
        owner = instance_id or member_id
        given = frozenset(partitions)
        found = []
        known = self._assigned.setdefault((generation, owner), given)
        if known != given:
            found.append(
                f"one owner: {owner} was given {_listed(given)} in generation {generation} and {_listed(known)} before"
            )
        for partition in sorted(given):
            other = self._owners.setdefault((generation, partition), owner)
            if other != owner:
                found.append(f"one owner: {partition} belongs to {owner} and {other} in generation {generation}")
        self._complete_s.setdefault(generation, at_s)
        self._synced_s.setdefault((generation, member_id), at_s)
        self.newest_generation = max(self.newest_generation, generation)
        return found

    def commit_arrived(self, commit: CommitKey, at_s: float) -> None:
        """Note that a commit reached a coordinator."""
        self._arrived.setdefault(commit.partition, []).append(_Arrived(commit, at_s))

    def commit_acknowledged(self, commit: CommitKey, arrived_s: float, at_s: float) -> list[str]:
        """Judge a coordinator's confirmation of a commit. ``arrived_s``: when it was requested."""
        what = (
            f"the commit of {commit.offset} for {commit.partition} by {commit.member_id or 'nobody'} in generation "
            f"{commit.generation}"
        )
        if commit.generation < 0:
            return []
        found = []
        newer = [g for g, since_s in self._complete_s.items() if g > commit.generation and since_s < arrived_s]
        if newer:
            found.append(f"fenced: {what} was acknowledged; generation {max(newer)} was complete when it was asked for")
        if (commit.generation, commit.member_id) not in self._members:
            found.append(f"fenced: {what} was acknowledged; nobody of that name was let into that generation")
        found += [
            f"fenced: {what} was acknowledged; {commit.instance_id} was another member by then"
            for since_s in self._replaced_s(commit)
            if since_s < arrived_s
        ]
        owner = self._owners.get((commit.generation, commit.partition))
        if not found and owner not in (None, commit.instance_id, commit.member_id):
            found.append(f"fenced: {what} was acknowledged; the partition is {owner}'s in that generation")
        self._raise_floor(commit.partition, commit.offset, commit.generation, at_s, f"acknowledged to {commit[0]}")
        return found

    def committed_read(
        self, member: str, generation: int, partition: TopicPartition, offset: int, asked_s: float, at_s: float
    ) -> list[str]:
        """Judge the committed offset that a member of a generation was told; -1 for none."""
        floors = [f for f in self._floors.get(partition, ()) if f.generation <= generation and f.told_s < asked_s]
        floor = max(floors, key=lambda f: f.offset, default=None)
        if floor is not None and offset < floor.offset and not self._came_late(partition, offset, floor):
            return [
                f"no regress: {member} of generation {generation} was told that {offset} is committed for {partition}; "
                f"{floor.offset} was {floor.by} in generation {floor.generation}, {asked_s - floor.told_s:.3f} s before"
            ]
        if offset >= 0:
            self._raise_floor(partition, offset, generation, at_s, f"read by {member}")
        return []

    def _came_late(self, partition: TopicPartition, offset: int, floor: _Floor) -> bool:
        """Return whether a commit of this offset, delayed in transit, reached a coordinator after the higher one
        had."""
        arrivals = [a for a in self._arrived.get(partition, ()) if a.commit.generation == floor.generation]
        higher_s = min((a.at_s for a in arrivals if a.commit.offset == floor.offset), default=floor.told_s)
        return any(a.commit.offset == offset and a.at_s >= higher_s for a in arrivals)

    def _raise_floor(self, partition: TopicPartition, offset: int, generation: int, at_s: float, by: str) -> None:
        floors = self._floors.setdefault(partition, [])
        if not any(f.offset >= offset and f.generation <= generation for f in floors):
            floors.append(_Floor(offset, generation, at_s, by))

    def replaced(self) -> list[tuple[str, str]]:
        """Return the member ids of static members that were replaced for good, and their instance ids."""
        return [
            (member_id, instance_id)
            for instance_id, ids in self._instances.items()
            for member_id in dict.fromkeys(each[0] for each in ids)
            if self._successors_s(instance_id, member_id)
        ]

    def _replaced_s(self, commit: CommitKey) -> list[float]:
        """Return when the static member that a commit names was replaced by another for good; nothing if it was not."""
        return self._successors_s(commit.instance_id or "", commit.member_id)[:1]

    def _successors_s(self, instance_id: str, member_id: str) -> list[float]:
        """Return the times at which members took the place of another for good, rising.

        A coordinator that admitted a successor into a generation that was never complete may have died before storing
        it: the next one knows the older member, and reuses that generation's number. So the successor counts once it
        joined a generation that was complete, or has its assignment.
        """
        ids = self._instances.get(instance_id, [])
        places = [n for n, each in enumerate(ids) if each[0] == member_id]
        found = []
        for successor, since_s, generation in ids[places[-1] + 1 :] if places else ():
            if self._complete_s.get(generation, since_s) < since_s:
                found.append(since_s)
            elif (generation, successor) in self._synced_s:
                found.append(self._synced_s[generation, successor])
        return sorted(found)

    # --- what members do --------------------------------------------------------------------------------

    def commit_sent(self, commit: CommitKey, at_s: float) -> list[str]:
        """Judge a commit that a member sends, whatever its outcome."""
        found = []
        line = (commit.member_id, commit.generation, commit.partition)
        before = self._sent.get(line, -1)
        self._sent[line] = max(before, commit.offset)
        what = f"{commit.member_id} asks for {commit.offset} of {commit.partition} in generation {commit.generation}"
        if commit.offset < before:
            found.append(f"forward only: {what}, after {before}")
        floor = self._floor_at_begin(commit)
        if commit.offset < floor:
            found.append(f"forward only: {what}; {floor} was committed when that generation began")
        missing = self._not_done(commit.partition, commit.offset)
        if missing is not None:
            found.append(f"delivered: {what}; nobody has worked off {missing}")
        return found

    def _floor_at_begin(self, commit: CommitKey) -> int:
        """Return the position that older generations had committed for a partition when a member's generation was
        complete."""
        begun_s = self._complete_s.get(commit.generation)
        if begun_s is None:
            return 0
        floors = self._floors.get(commit.partition, ())
        return max((f.offset for f in floors if f.generation < commit.generation and f.told_s < begun_s), default=0)

    def owns(self, member: str, generation: int, partitions: Iterable[TopicPartition]) -> None:
        """Note a member's full assignment in a generation. Partitions that it keeps keep their positions."""
        before = self._held.get(member, _Held(generation)).partitions
        self._held[member] = _Held(generation, {at: before.get(at) for at in partitions})

    def gave_up(self, member: str, partitions: Iterable[TopicPartition]) -> None:
        """Note that a member learned that partitions were revoked or lost."""
        held = self._held.get(member)
        if held is not None:
            for partition in partitions:
                held.partitions.pop(partition, None)

    def gone(self, member: str) -> None:
        """Note that a member's process ended, or it closed."""
        self._held.pop(member, None)

    def handed_out(self, member: str, partition: TopicPartition, first: int, last: int) -> list[str]:
        """Judge a poll that returned the records from ``first`` to ``last`` to a member."""
        held = self._held.get(member)
        if held is None or partition not in held.partitions:
            generation = "no generation" if held is None else f"generation {held.generation}"
            return [
                f"owned only: {member} hands out {first} to {last} of {partition}, which it has not in {generation}"
            ]
        due = held.partitions[partition]
        held.partitions[partition] = last + 1
        if due is not None and first != due:
            return [
                f"in order: {member} hands out {first} of {partition} in generation {held.generation}; due was {due}"
            ]
        return []

    def worked_off(self, partition: TopicPartition, first: int, last: int) -> None:
        """Note that a member has processed the records from ``first`` to ``last``."""
        ranges = self._done.setdefault(partition, [])
        self.redelivered += sum(max(0, min(end, last + 1) - max(begin, first)) for begin, end in ranges)
        ranges.append((first, last + 1))
        self._done[partition] = _merged(ranges)

    def _not_done(self, partition: TopicPartition, end: int) -> int | None:
        """Return the first offset below ``end`` that nobody has processed."""
        following = 0
        for begin, done in self._done.get(partition, ()):
            if begin > following:
                break
            following = max(following, done)
        return following if following < end else None

    # --- the end ----------------------------------------------------------------------------------------

    def all_delivered(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Judge at the end that some member has processed every record below the ends."""
        found = []
        for partition, end in sorted(ends.items()):
            missing = self._not_done(partition, end)
            if missing is not None:
                found.append(f"delivered: nobody was given offset {missing} of {partition}, which ends at {end}")
        return found

    def settled(
        self, assignments: Mapping[str, Iterable[TopicPartition]], partitions: Iterable[TopicPartition]
    ) -> list[str]:
        """Judge after repair that each partition has exactly one member."""
        owners: dict[TopicPartition, list[str]] = {partition: [] for partition in partitions}
        for member, owned in assignments.items():
            for partition in owned:
                owners.setdefault(partition, []).append(member)
        return [
            f"one owner: when all was mended {partition} belonged to {', '.join(members) or 'nobody'}"
            for partition, members in sorted(owners.items())
            if len(members) != 1
        ]


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(each) for each in sorted(partitions)) or "nothing"
