"""A query's offsets in its checkpoint, and what follows from them: the next batch's end and ranges.

Pure. Source: Spark's ``KafkaMicroBatchStream.rateLimit`` and ``KafkaOffsetRangeCalculator``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from tidelog.model.ids import TopicPartition

OFFSET_MAX: Final = (1 << 63) - 1
CHECKPOINT_VERSION: Final = 1
"""Version of the text in checkpoints; a release that changes its meaning increments it."""


class BadOffsets(ValueError):
    """A checkpoint's text is not in our format."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """How far a query has come: the next offset per partition, and the id of each topic.

    As text (the offset's JSON in Spark's terms; compared as text, so everything in it is sorted)::

        {"offsets": {"orders": {"0": 23, "1": 7}}, "topicIds": {"orders": "3f2a…"}, "version": 1}

    ``leader_epochs``: the leader by which each partition was known to reach this offset or beyond; in the text as
    ``"leaderEpochs"``, if known. They expose a leader that was replaced and has not learned of it.

    Spark does not keep where the first batch began, and would ask for it again after a failure, when "latest" has
    moved. So the end of the first batch holds it, as ``begin``; ``initial`` marks a beginning.
    """

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    initial: bool = False
    begin: SourceOffset | None = None
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        by_topic = _by_topic(self.offsets)
        found: dict[str, Any] = {}
        if self.begin is not None:
            found["begin"] = replace(self.begin, initial=False).to_json()
        if self.initial:
            found["initial"] = True
        if epochs := {at: epoch for at, epoch in self.leader_epochs.items() if at in self.offsets and epoch >= 0}:
            found["leaderEpochs"] = _by_topic(epochs)
        ids = {topic: self.topic_ids[topic] for topic in sorted(by_topic) if topic in self.topic_ids}
        return found | {"offsets": by_topic, "topicIds": ids, "version": CHECKPOINT_VERSION}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> SourceOffset:
        """Read the text. Raises :class:`BadOffsets`."""
        try:
            version = found.get("version", CHECKPOINT_VERSION)
            if version != CHECKPOINT_VERSION:
                raise ValueError(f"version {version}, this release of tidelog knows {CHECKPOINT_VERSION}")
            begin = found.get("begin")
            return cls(
                _by_partition(found["offsets"]),
                {str(topic): str(one) for topic, one in found["topicIds"].items()},
                bool(found.get("initial", False)),
                None if begin is None else cls.from_json(begin),
                _by_partition(found.get("leaderEpochs", {})),
            )
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise BadOffsets(
                f"expected offsets that the Tidelog source has written, found {found!r}: {error}. Start the query with "
                "the release that wrote its checkpoint, or give it a new checkpoint and startingOffsets"
            ) from None

    def no_older_than(self, before: SourceOffset) -> SourceOffset:
        """Return the same offsets with the newest leader epochs that either knows."""
        epochs = dict(self.leader_epochs)
        for at, epoch in before.leader_epochs.items():
            if at in self.offsets and self.is_of(before, at.topic):
                epochs[at] = max(epoch, epochs.get(at, -1))
        return replace(self, leader_epochs=epochs)

    def of_those_in(self, there: SourceOffset) -> SourceOffset:
        """Return these offsets without topics that ``there`` does not have, or has only under another id."""
        return replace(self, offsets={at: n for at, n in self.offsets.items() if self.is_of(there, at.topic)})

    def is_of(self, other: SourceOffset, topic: str) -> bool:
        """Return whether the topic is the same in both, as far as is known."""
        ours, theirs = self.topic_ids.get(topic), other.topic_ids.get(topic)
        return ours is None or theirs is None or ours == theirs


def _by_topic(numbers: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for at in sorted(numbers):
        found.setdefault(at.topic, {})[str(at.partition)] = numbers[at]
    return found


def _by_partition(numbers: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(number)
        for topic, by_number in numbers.items()
        for partition, number in by_number.items()
    }


def fallen(begin: SourceOffset, latest: SourceOffset) -> list[str]:
    """Report, one sentence each, the partitions that end before the offset already read."""
    return [
        _fell(at, offset, latest.offsets[at])
        for at, offset in sorted(begin.offsets.items())
        if latest.offsets.get(at, offset) < offset and begin.is_of(latest, at.topic)
    ]


def _fell(at: TopicPartition, begin: int, until: int) -> str:
    return (
        f"Partition {at} offset was changed from {begin} to {until}. This could either be a user error that the start "
        "offset is set too high and this is the first batch, or the topic-partition was cut."
    )


class Range(NamedTuple):
    """Offsets of one partition from ``start`` to before ``end``."""

    at: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Offsets; some may not belong to a record."""
        return self.end - self.start


@dataclass(slots=True)
class Pace:
    """How much a trigger may or must read. ``last_ms`` is when the last batch began."""

    at_least: int | None
    at_most: int | None
    delay_ms_max: float
    last_ms: float | None = field(default=None)

    def end(
        self,
        start: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
        now_ms: float,
        *,
        wait: bool = True,
    ) -> Mapping[TopicPartition, int] | None:
        """Return where a batch from ``start`` ends, None if it should wait for more.

        ``start`` has an offset for every partition of ``latest``. ``wait``: whether ``at_least`` counts.
        """
        if self.at_least is not None and wait:
            there = sum(end - start[at] for at, end in latest.items())
            late = self.last_ms is None or now_ms - self.last_ms >= self.delay_ms_max
            if there < self.at_least and not late:
                return None
            self.last_ms = now_ms
        return latest if self.at_most is None else limited(self.at_most, start, latest)


def limited(
    at_most: int, start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Share ``at_most`` offsets among partitions in proportion to what each has, at least one to each that has any."""
    sizes = {at: end - start[at] for at, end in latest.items() if end > start[at]}
    total = sum(sizes.values())
    ends = dict(latest)
    for at, size in sizes.items():
        share = at_most * (size / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        ends[at] = min(latest[at], start[at] + whole, OFFSET_MAX)
    return ends


def byte_shares(
    at_most: int, start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """Share ``at_most`` bytes among partitions by how many offsets each may give: start and bytes of each that has
    any."""
    sizes = {at: end - start[at] for at, end in ends.items() if end > start[at]}
    total = sum(sizes.values())
    return {at: (start[at], max(at_most * size // total, 1)) for at, size in sizes.items()}


def split(ranges: Iterable[Range], min_partitions: int | None, max_records: int | None) -> list[Range]:
    """Cut ranges into about ``min_partitions`` tasks, none larger than ``max_records``; the largest are cut into the
    most. Empty ranges are left out."""
    found = [one for one in ranges if one.size > 0]
    if max_records is not None:
        found = [part for one in found for part in _parts(one, math.ceil(one.size / max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(one.size for one in found)
    whole = {one for one in found if _share(one.size, total, min_partitions) == 1}
    rest = total - sum(one.size for one in whole)
    wanted = max(min_partitions - len(whole), 1)
    return [part for one in found for part in _parts(one, 1 if one in whole else _share(one.size, rest, wanted))]


def _share(size: int, total: int, parts: int) -> int:
    return max(math.floor(size / total * parts + 0.5), 1)


def _parts(one: Range, count: int) -> list[Range]:
    found = []
    start, left = one.start, one.size
    for number in range(count):
        size = left // (count - number)
        left -= size
        if size:
            found.append(Range(one.at, start, start + size))
            start += size
    return found


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges of a batch, before they are cut into tasks, and what is missing, one sentence each."""

    ranges: tuple[Range, ...]
    losses: tuple[str, ...]


def plan(
    start: SourceOffset,
    end: SourceOffset,
    earliest: Mapping[TopicPartition, int],
    readable: Mapping[TopicPartition, int],
    present: SourceOffset,
) -> Plan:
    """Return what a batch from ``start`` to ``end`` has to read, and what it can no longer read.

    ``earliest`` and ``readable`` are the first and the last stable offset of each existing partition, ``present`` has
    the ids of the existing topics. A new partition begins at its first offset.
    """
    ranges: list[Range] = []
    losses: list[str] = []
    gone = sorted(at for at in {*start.offsets, *end.offsets} if at not in earliest or at not in end.offsets)
    if gone:
        losses.append(f"Partitions {_names(gone)} have been deleted.")
    losses += [
        f"Topic {topic} has been deleted and created again."
        for topic in sorted({at.topic for at in end.offsets})
        if not (start.is_of(end, topic) and end.is_of(present, topic))
    ]
    for at in sorted(end.offsets):
        if at not in earliest or not end.is_of(present, at.topic):
            continue
        until, first = end.offsets[at], earliest[at]
        known = start.is_of(end, at.topic)
        begin = start.offsets.get(at) if known else first
        if begin is None:
            begin = first
            if first > 0:
                losses.append(f"Added partition {at} starts from {first} instead of 0.")
        if until < begin:
            losses.append(_fell(at, begin, until))
            continue
        if until > readable[at]:
            losses.append(f"Partition {at} ends at offset {readable[at]}, before the batch's end {until}.")
            until = readable[at]
        if begin < first and begin < until:
            losses.append(f"Starting offset for {at} was {begin} but the log starts at {first}.")
            begin = first
        if begin < until:
            ranges.append(Range(at, begin, until))
    return Plan(tuple(ranges), tuple(losses))


def _names(partitions: Iterable[TopicPartition]) -> str:
    return "[" + ", ".join(map(str, partitions)) + "]"
