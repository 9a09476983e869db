"""The observations of a drill's clients and watcher, and the figures from them. All times are seconds since the drill
began.

Pure: lists of events go in, figures come out. :mod:`tidelog.chaos.drill.traffic` writes the lists.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tidelog.chaos.laboratory.faults.observer import ClusterStanding
from tidelog.model.ids import TopicPartition

TROUBLES_MAX: Final = 1_000
"""Errors of clients that are kept; the rest is only counted."""

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A record from its send to its acknowledgement."""

    began_s: float
    ended_s: float
    partition: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A change of metadata from its request to its answer."""

    began_s: float
    ended_s: float

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error that a client's caller was given, after all that the client tried."""

    at_s: float
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class Seen:
    """How the cluster stood from this moment on, as far as it told."""

    at_s: float
    standing: ClusterStanding


@dataclass(slots=True)
class Evidence:
    """Written on the clients' event loop, read by anybody: everything is only ever appended."""

    sent: int = 0
    places: dict[int, Place] = field(default_factory=dict)
    """Number of a record → where it was acknowledged."""
    acknowledgements: list[Acknowledged] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    handed: list[tuple[float, int, int]] = field(default_factory=list)
    """When, of which partition, how many records the reader was handed."""
    troubles: list[Trouble] = field(default_factory=list)
    errors: int = 0
    seen: list[Seen] = field(default_factory=list)

    def trouble(self, at_s: float, who: str, error: BaseException) -> None:
        self.errors += 1
        if len(self.troubles) < TROUBLES_MAX:
            self.troubles.append(Trouble(at_s, who, f"{type(error).__name__}: {error}"))

    def acknowledged_since(self, from_s: float) -> list[Acknowledged]:
        """The acknowledgements from then on; the list is in that order."""
        return self.acknowledgements[bisect_left(self.acknowledgements, from_s, key=lambda one: one.ended_s) :]

    @property
    def standing(self) -> ClusterStanding:
        """The last one seen."""
        return self.seen[-1].standing if self.seen else ClusterStanding()


def resumed(
    acknowledgements: Iterable[Acknowledged], fault_s: float, partitions: Iterable[int]
) -> dict[int, float | None]:
    """Partition → seconds from the fault to the first acknowledgement of a record that was sent after it; ``None``
    where there is none. A record sent before the fault may have had its answer before."""
    found: dict[int, float | None] = dict.fromkeys(partitions)
    for one in acknowledgements:
        if one.began_s >= fault_s and one.partition in found:
            before = found[one.partition]
            found[one.partition] = min(one.ended_s - fault_s, before if before is not None else one.ended_s)
    return found


def committed_after(commits: Iterable[Committed], fault_s: float) -> float | None:
    """Seconds from the fault to the first answer to a change of metadata that was asked for after it."""
    return min((one.ended_s - fault_s for one in commits if one.began_s >= fault_s), default=None)


def longest_gap(times: Iterable[float], from_s: float, to_s: float) -> tuple[float, float]:
    """The longest time between two neighbours of ``times`` within the window, whose ends count as neighbours too: when
    it began, and how long it was."""
    inside = sorted(time for time in times if from_s < time < to_s)
    edges = [from_s, *inside, to_s]
    length, began = max(((later - earlier, earlier) for earlier, later in pairwise(edges)), key=lambda one: one[0])
    return began, length


def longest_silence(
    acknowledgements: Sequence[Acknowledged], partitions: Iterable[int], from_s: float, to_s: float
) -> tuple[int, float, float]:
    """The longest time that one of these partitions was without an acknowledgement: which one, from when, how long.
    Partition -1 and no time where there is no partition."""
    times: dict[int, list[float]] = {partition: [] for partition in partitions}
    for one in acknowledgements:
        if one.partition in times:
            times[one.partition].append(one.ended_s)
    found = [(partition, *longest_gap(at, from_s, to_s)) for partition, at in times.items()]
    return max(found, key=lambda one: one[2], default=(-1, from_s, 0.0))


def longest_commit(commits: Iterable[Committed], from_s: float, to_s: float) -> float | None:
    """The longest that a change of metadata took of those that were asked for in the window; ``None`` without any."""
    return max((one.took_s for one in commits if from_s <= one.began_s <= to_s), default=None)


def first_seen(seen: Iterable[Seen], from_s: float, fits: Callable[[ClusterStanding], bool]) -> float | None:
    """Seconds from a moment until the cluster was first seen to stand so; ``None`` if it never was."""
    return next((one.at_s - from_s for one in seen if one.at_s >= from_s and fits(one.standing)), None)


def longest_leaderless(seen: Sequence[Seen], from_s: float, to_s: float) -> float:
    """The longest that a partition was seen without a leader. What nobody tells about is as before."""
    longest, since = 0.0, dict[TopicPartition, float]()
    for one in seen:
        for at, held in one.standing.partitions.items():
            if held.leader < 0:
                since.setdefault(at, max(one.at_s, from_s))
            elif at in since:
                longest = max(longest, min(one.at_s, to_s) - since.pop(at))
    return max([longest, *(to_s - began_s for began_s in since.values())])


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The acknowledged records that the log holds at the end."""

    read: int
    lost: int
    """Records that do not stand where they were acknowledged."""
    duplicated: int
    """Records that stand in the log again."""


def compare(places: Mapping[int, Place], log: Iterable[tuple[int, int, int]]) -> ReadBack:
    """Hold the log, as (number, partition, offset) of every record, against what was acknowledged. A record that was
    not acknowledged may be there, once."""
    counts: Counter[int] = Counter()
    found: set[tuple[int, Place]] = set()
    for number, partition, offset in log:
        counts[number] += 1
        found.add((number, (partition, offset)))
    return ReadBack(
        read=counts.total(),
        lost=sum((number, place) not in found for number, place in places.items()),
        duplicated=counts.total() - len(counts),
    )
