"""Records that a decision wants to write to a consumer group: applied immediately, and undone if the log refuses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.groups.state.consumer_group import ConsumerGroup, ConsumerRecord, written
from tidelog.groups.state.group import Group
from tidelog.proto.logs.consumer_group_records import TARGET_EPOCH, ConsumerKey, ConsumerValue
from tidelog.proto.logs.coordinator_records import CoordinatorRecord

PUT_UNITS: Final = 16
"""Cost of a record (:data:`tidelog.groups.consumer.steps.Work`)."""
_RECORD_BYTES: Final = 32
"""Maximum bytes that a batch's record has besides its key and value."""
_HEADER_BYTES: Final = 256
"""More than a batch's header."""


class Change:
    """``bytes``: maximum size of its records that have not been taken; ``spent``: the units of work that it cost;
    ``has_target``: it has a target's epoch; ``classic``: what the group becomes with it, if it becomes classic."""

    __slots__ = ("_inverse", "_records", "bytes", "classic", "group", "has_target", "spent")

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.bytes = 0
        self.spent = 0
        self.has_target = False
        self.classic: Group | None = None
        self._records: list[CoordinatorRecord] = []
        self._inverse: list[ConsumerRecord] = []

    def put(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        self._inverse.append(self.group.apply(key, value))
        self.has_target = key.kind == TARGET_EPOCH or self.has_target
        record = written(key, value)
        self._records.append(record)
        self.bytes += _size(record)

    def has_room_for(self, records: Iterable[CoordinatorRecord], bytes_max: int) -> bool:
        """Return whether these records and those that it has fit into one batch."""
        return self.bytes + sum(map(_size, records)) <= bytes_max - _HEADER_BYTES

    def become_classic(self, group: Group, record: CoordinatorRecord) -> None:
        """Write the record of the classic group that this one becomes; its own records are gone by then."""
        self.classic = group
        self._records.append(record)
        self.bytes += _size(record)

    def undo(self) -> None:
        for key, value in reversed(self._inverse):
            self.group.apply(key, value)
        self._inverse.clear()

    def take(self, bytes_max: int) -> list[list[CoordinatorRecord]]:
        """Return the records since the last call, in order, in as few batches as their size allows. A batch's header
        is within the slack."""
        found: list[list[CoordinatorRecord]] = []
        size = 0
        for record in self._records:
            if not found or size + _size(record) > bytes_max - _HEADER_BYTES:
                found.append([])
                size = 0
            found[-1].append(record)
            size += _size(record)
        self._records.clear()
        self.bytes = 0
        return found


def _size(record: CoordinatorRecord) -> int:
    return len(record.key) + len(record.value or b"") + _RECORD_BYTES
