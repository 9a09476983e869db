"""The committed offsets of one group, and those that are on their way into the log.

Reads return what the log has committed: a value counts once its append succeeded, a transaction's value once the commit
marker did. Appends may end in any order; the value later in the log wins, as in a replay. A tombstone is an append
without a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidelog.model.ids import Offset
from tidelog.proto.logs.coordinator_records import OffsetCommitValue

_NOTHING_APPLIED: Final = -(1 << 63)


def loaded_order(offset: Offset) -> int:
    """Return a loaded record's place in the log order: before all records appended from now on."""
    return offset - (1 << 62)


class Population:
    """Counts over all groups of a partition, for its limits."""

    __slots__ = ("members", "offsets")

    def __init__(self) -> None:
        self.members = 0
        """Members and pending members."""
        self.offsets = 0
        """Committed offsets and those being written."""


class PendingOffset(NamedTuple):
    """Appends of one partition in flight, including values of open transactions, and the order of the latest record
    that took effect in the meantime."""

    waits: int
    applied: int


class GroupOffsets:
    """``committed``: topic → partition → value."""

    __slots__ = ("_pending", "_population", "committed")

    def __init__(self, population: Population) -> None:
        self.committed: dict[str, dict[int, OffsetCommitValue]] = {}
        self._pending: dict[tuple[str, int], PendingOffset] = {}
        self._population = population

    def __bool__(self) -> bool:
        """Return whether it has anything, or will have."""
        return bool(self.committed or self._pending)

    def get(self, topic: str, partition: int) -> OffsetCommitValue | None:
        of_topic = self.committed.get(topic)
        return None if of_topic is None else of_topic.get(partition)

    def is_pending(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._pending

    def holds(self, topic: str, partition: int) -> bool:
        """Return whether there is a value, or an append in flight."""
        return (topic, partition) in self._pending or self.get(topic, partition) is not None

    def keys(self) -> list[tuple[str, int]]:
        """Return the partitions for which :meth:`holds` is true."""
        found = dict.fromkeys((topic, partition) for topic, partition, _ in self.items())
        found.update(dict.fromkeys(self._pending))
        return list(found)

    def items(self) -> Iterator[tuple[str, int, OffsetCommitValue]]:
        for topic, of_topic in self.committed.items():
            for partition, value in of_topic.items():
                yield topic, partition, value

    # --- Appends ------------------------------------------------------------------------------------

    def began(self, topic: str, partition: int) -> None:
        """Note that an append of a value or tombstone was requested, or a transaction has a value."""
        key = (topic, partition)
        pending = self._pending.get(key)
        if pending is None:
            if self.get(topic, partition) is None:
                self._population.offsets += 1
            self._pending[key] = PendingOffset(1, _NOTHING_APPLIED)
        else:
            self._pending[key] = PendingOffset(pending.waits + 1, pending.applied)

    def ended(self, topic: str, partition: int, order: int, value: OffsetCommitValue | None) -> None:
        """Note that the append is committed, and its value counts, unless a later one already does."""
        pending = self._pending[topic, partition]
        if order >= pending.applied:
            self._put(topic, partition, value)
            pending = PendingOffset(pending.waits, order)
        self._settle(topic, partition, pending)

    def failed(self, topic: str, partition: int) -> None:
        """Note that the append does not count: it was refused or aborted."""
        self._settle(topic, partition, self._pending[topic, partition])

    def _settle(self, topic: str, partition: int, pending: PendingOffset) -> None:
        if pending.waits > 1:
            self._pending[topic, partition] = PendingOffset(pending.waits - 1, pending.applied)
            return
        del self._pending[topic, partition]
        if self.get(topic, partition) is None:
            self._population.offsets -= 1

    # --- Loading ------------------------------------------------------------------------------------

    def load(self, topic: str, partition: int, value: OffsetCommitValue | None, offset: Offset) -> None:
        """Load a value or tombstone from the log."""
        before = self.holds(topic, partition)
        self._put(topic, partition, value)
        pending = self._pending.get((topic, partition))
        if pending is not None:
            self._pending[topic, partition] = PendingOffset(pending.waits, loaded_order(offset))
        self._population.offsets += self.holds(topic, partition) - before

    def _put(self, topic: str, partition: int, value: OffsetCommitValue | None) -> None:
        if value is not None:
            self.committed.setdefault(topic, {})[partition] = value
            return
        of_topic = self.committed.get(topic)
        if of_topic is not None and of_topic.pop(partition, None) is not None and not of_topic:
            del self.committed[topic]
