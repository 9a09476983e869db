"""Which partition poll takes records from next. Pure.

Partitions of one weight form a level; within it they take turns, batch by batch. Levels with data take turns too, and a
level's turn is as many records as its weight (deficit round robin, by Shreedhar and Varghese). So between two turns of
a level with data come at most as many records as the other levels' weights together: none starves. A level without
data costs the others nothing, and saves nothing up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

from tidelog.client.config.priorities import PriorityWeights, weight_of
from tidelog.model.ids import TopicPartition

_ALONE: Final = 1 << 62
"""The weight of the only level there is without priorities."""


class Readable(Protocol):
    """A partition that may have something for poll."""

    @property
    def at(self) -> TopicPartition: ...

    @property
    def is_ready(self) -> bool: ...


P = TypeVar("P", bound=Readable)


class Level(Generic[P]):
    """Partitions of one weight. ``credit``: how many records are left of its turn."""

    __slots__ = ("credit", "partitions", "weight")

    def __init__(self, weight: int) -> None:
        self.weight: Final = weight
        self.credit = 0
        self.partitions: deque[P] = deque()

    def next_ready(self) -> P | None:
        for _ in range(len(self.partitions)):
            if self.partitions[0].is_ready:
                return self.partitions[0]
            self.partitions.rotate(-1)
        return None

    def pass_turn(self, partition: P) -> None:
        """Give the next partition the turn of this one."""
        if self.partitions and self.partitions[0] is partition:
            self.partitions.rotate(-1)


class Turns(Generic[P]):
    """The partitions of one consumer, in the order in which poll visits them."""

    def __init__(self, weights: PriorityWeights | None) -> None:
        self._weights = weights
        self._levels: list[Level[P]] = []
        self._at = 0

    def assign(self, partitions: Iterable[P]) -> None:
        """Replace the partitions. The turn stays with its level."""
        by_weight = {level.weight: level for level in self._levels}
        turn = self._levels[self._at].weight if self._levels else 0
        for level in self._levels:
            level.partitions.clear()
        for partition in partitions:
            weight = _ALONE if self._weights is None else weight_of(self._weights, partition.at)
            by_weight.setdefault(weight, Level(weight)).partitions.append(partition)
        self._levels = [by_weight[weight] for weight in sorted(by_weight, reverse=True)]
        self._at = next((at for at, level in enumerate(self._levels) if level.weight == turn), 0)

    def next(self) -> tuple[P, Level[P]] | None:
        """Return the partition whose turn it is, with its level, whose credit bounds how many records to take."""
        levels = self._levels
        for _ in range(len(levels) + 1 if levels else 0):
            level = levels[self._at]
            ready = level.next_ready()
            if ready is not None and level.credit > 0:
                return ready, level
            self._at = (self._at + 1) % len(levels)
            levels[self._at].credit = levels[self._at].weight
        return None
