"""Tracks the records returned since a consumer's last transaction, so that the next one can commit them or an abort can
return them again. Pure; at most one entry per partition that was ever assigned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.client.fetching.positions import Assignment, PartitionState
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.model.ids import TopicPartition


@dataclass(slots=True)
class _Start:
    """The start of a transaction's records in a partition. ``taken``: some were returned."""

    offset: int
    epoch: int
    taken: bool = True


class Uncommitted:
    """A partition that returns after it was given up counts as a new one: others may have read its records."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._starts: dict[PartitionState, _Start] = {}
        self._given_up: dict[TopicPartition, None] = {}

    def begin_with(self, state: PartitionState) -> None:
        """Note that a poll is about to take from this partition."""
        start = self._starts.get(state)
        if start is not None:
            start.taken = True
            return
        self._sort_out()
        self._starts[state] = _Start(state.position, state.position_epoch)

    def sought(self, state: PartitionState) -> None:
        """Note that the user seeks elsewhere: the next transaction starts there."""
        self._starts.pop(state, None)

    def given_up(self) -> list[TopicPartition]:
        """Return partitions that were lost after some of their records were returned."""
        self._sort_out()
        return list(self._given_up)

    def starts(self) -> dict[TopicPartition, int]:
        """Return the first returned offset per partition."""
        return {state.at: start.offset for state, start in self._starts.items() if start.taken}

    def settle(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, iterating: bool) -> None:
        """Note that everything returned before these offsets is committed. ``iterating``: more records of the same poll
        will follow."""
        self._starts = {
            state: _Start(offsets[at].offset, offsets[at].leader_epoch, taken=iterating)
            for at, state in self._assignment.partitions.items()
            if at in offsets
        }
        self._given_up.clear()

    def iteration_ended(self) -> None:
        """Note that positions show the user's progress; committed records before them need no undo."""
        for state, start in self._starts.items():
            if state.position == start.offset:
                start.taken = False

    def undo(self) -> None:
        """Go back to the start."""
        self._sort_out()
        for state, start in self._starts.items():
            if start.taken:
                state.seek(start.offset, start.epoch)
        self._starts.clear()
        self._given_up.clear()

    def _sort_out(self) -> None:
        for state in [s for s in self._starts if self._assignment.partitions.get(s.at) is not s]:
            if self._starts.pop(state).taken:
                self._given_up[state.at] = None
