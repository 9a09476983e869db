"""The observations of a drill's clients and watcher, and the figures from them. All times are seconds since the start
of the drill.

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
"""Maximum number of client errors that are kept; the rest is only counted."""

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The time of a record from its send to its acknowledgement."""

    began_s: float
    ended_s: float
    partition: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The time of a metadata change from its request to its answer."""

    began_s: float
    ended_s: float

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error that a client's caller got, after all retries of the client."""

    at_s: float
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of the cluster from this moment on, as far as it reported."""

    at_s: float
    standing: ClusterStanding


@dataclass(slots=True)
class Evidence:
    """Written on the clients' event loop, readable from any thread: everything is append-only."""

    sent: int = 0
    places: dict[int, Place] = field(default_factory=dict)
    """Number of a record → where it was acknowledged."""
    acknowledgements: list[Acknowledged] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    handed: list[tuple[float, int, int]] = field(default_factory=list)
    """When the reader received records, of which partition, and how many."""
    troubles: list[Trouble] = field(default_factory=list)
    errors: int = 0
    seen: list[Seen] = field(default_factory=list)

    def trouble(self, at_s: float, who: str, error: BaseException) -> None:
        self.errors += 1
        if len(self.troubles) < TROUBLES_MAX:
            self.troubles.append(Trouble(at_s, who, f"{type(error).__name__}: {error}"))

    def acknowledged_since(self, from_s: float) -> list[Acknowledged]:
        """Return the acknowledgements from then on; the list is in that order."""
        return self.acknowledgements[bisect_left(self.acknowledgements, from_s, key=lambda one: one.ended_s) :]

    @property
    def standing(self) -> ClusterStanding:
        """Return the last one seen."""
        return self.seen[-1].standing if self.seen else ClusterStanding()


def resumed(
    acknowledgements: Iterable[Acknowledged], fault_s: float, partitions: Iterable[int]
) -> dict[int, float | None]:
    """Return partition → seconds from the fault to the first acknowledgement of a record that was sent after it;
    ``None`` if there is none. The answer to a record from before the fault may have been sent before it."""
    found: dict[int, float | None] = dict.fromkeys(partitions)
    for one in acknowledgements:
        if one.began_s >= fault_s and one.partition in found:
            before = found[one.partition]
            found[one.partition] = min(one.ended_s - fault_s, before if before is not None else one.ended_s)
    return found


def committed_after(commits: Iterable[Committed], fault_s: float) -> float | None:
    """Return the seconds from the fault to the first answer to a metadata change requested after it."""
    return min((one.ended_s - fault_s for one in commits if one.began_s >= fault_s), default=None)


def longest_gap(times: Iterable[float], from_s: float, to_s: float) -> tuple[float, float]:
    """Return the start and length of the longest time between two neighbours of ``times`` within the window; the ends
    of the window count as neighbours too."""
    inside = sorted(time for time in times if from_s < time < to_s)
    edges = [from_s, *inside, to_s]
    length, began = max(((later - earlier, earlier) for earlier, later in pairwise(edges)), key=lambda one: one[0])
    return began, length


def longest_silence(
    acknowledgements: Sequence[Acknowledged], partitions: Iterable[int], from_s: float, to_s: float
) -> tuple[int, float, float]:
    """Return the longest time without an acknowledgement on one of these partitions: which one, from when, how long.
    Partition -1 and no time if there is no partition."""
    times: dict[int, list[float]] = {partition: [] for partition in partitions}
    for one in acknowledgements:
        if one.partition in times:
            times[one.partition].append(one.ended_s)
    found = [(partition, *longest_gap(at, from_s, to_s)) for partition, at in times.items()]
    return max(found, key=lambda one: one[2], default=(-1, from_s, 0.0))


def longest_commit(commits: Iterable[Committed], from_s: float, to_s: float) -> float | None:
    """Return the longest duration of a metadata change requested in the window; ``None`` without any."""
    return max((one.took_s for one in commits if from_s <= one.began_s <= to_s), default=None)


def first_seen(seen: Iterable[Seen], from_s: float, fits: Callable[[ClusterStanding], bool]) -> float | None:
    """Return the seconds from a moment until the cluster was first seen in that state; ``None`` if it never was."""
    return next((one.at_s - from_s for one in seen if one.at_s >= from_s and fits(one.standing)), None)


def longest_leaderless(seen: Sequence[Seen], from_s: float, to_s: float) -> float:
    """Return the longest time that a partition was seen without a leader. Without new reports the state is
    unchanged."""
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
    """The acknowledged records that the log has at the end."""

    read: int
    lost: int
    """Records that are not where they were acknowledged."""
    duplicated: int
    """Records that are in the log more than once."""


def compare(places: Mapping[int, Place], log: Iterable[tuple[int, int, int]]) -> ReadBack:
    """Compare the log, as (number, partition, offset) of every record, with the acknowledgements. A record that was not
    acknowledged may be there, once."""
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
