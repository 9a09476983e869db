"""Judges a consumer group by its progress over a window, not by a limit on its lag. Pure.

Source: Burrow's evaluator (``core/internal/evaluator/caching.go``, ``calculatePartitionStatus``), in its order. Burrow
sees commits and their times. Here offsets are sampled, so a reader that commits the same offset again looks like one
that does not commit. *Stalled* and *stopped* are distinguished instead by whether the partition has a reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tidelog.broker.health.facts import Progress
from tidelog.model.ids import TopicPartition

SAMPLES: Final = 10
"""Samples per window; as many as Burrow's commits (``intervals``)."""


class Sample(NamedTuple):
    """One look at a group's partition: time, committed offset, log end."""

    time_ms: int
    committed: int
    log_end: int

    @property
    def lag(self) -> int:
        return max(0, self.log_end - self.committed)


def judge(samples: Sequence[Sample], has_reader: bool, wanted: int = SAMPLES) -> tuple[Progress, int | None]:
    """Return a group's progress in a partition, and since when, if that is known (ms since 1970).

    ``samples`` are ordered by time, at least one. With fewer than ``wanted``, a group with lag is not judged.
    """
    first, last = samples[0], samples[-1]
    if last.lag == 0:
        return Progress.OK, None
    if len(samples) < wanted:
        return Progress.UNSETTLED, None
    highest, went_back_ms = first.committed, None
    for sample in samples:
        if sample.committed < highest:
            went_back_ms = went_back_ms or sample.time_ms
        else:
            highest, went_back_ms = sample.committed, None
    if went_back_ms is not None:
        return Progress.REWOUND, went_back_ms
    if any(sample.lag == 0 for sample in samples):
        return Progress.OK, None
    if first.committed == last.committed:
        return (Progress.STALLED if has_reader else Progress.STOPPED), first.time_ms
    if all(before.lag <= after.lag for before, after in pairwise(samples)):
        return Progress.SLOW, first.time_ms
    return Progress.OK, None


class Windows:
    """The last samples of every group's partitions, at most ``wanted`` each. Partitions that a look leaves out are
    forgotten, so it never holds more than one look's partitions."""

    def __init__(self, wanted: int = SAMPLES) -> None:
        self.wanted = wanted
        self._kept: dict[tuple[str, TopicPartition], deque[Sample]] = {}

    def look(self, found: Mapping[tuple[str, TopicPartition], Sample]) -> None:
        """Add one look at all groups."""
        self._kept = {key: self._kept.get(key, deque(maxlen=self.wanted)) for key in found}
        for key, sample in found.items():
            self._kept[key].append(sample)

    def of(self, group: str, at: TopicPartition) -> Sequence[Sample]:
        return tuple(self._kept[group, at])

    @property
    def full(self) -> bool:
        return all(len(samples) == self.wanted for samples in self._kept.values())
