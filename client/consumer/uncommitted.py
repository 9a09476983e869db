"""Tracks the records handed out since a consumer's last transaction, so that the next one can commit them or an abort
can hand them out again. Pure; at most one entry for each partition that was ever assigned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.client.fetching.positions import Assignment, PartitionState
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.model.ids import TopicPartition


@dataclass(slots=True)
class _Start:
    """The start of a transaction's records in a partition. ``taken``: some were handed out."""

    offset: int
    epoch: int
    taken: bool = True


class Uncommitted:
    """A partition that comes back after it was given up counts as a new one: others may have read its records."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._starts: dict[PartitionState, _Start] = {}
        self._given_up: dict[TopicPartition, None] = {}

    def begin_with(self, state: PartitionState) -> None:
        """A poll is about to take from this partition."""
        start = self._starts.get(state)
        if start is not None:
            start.taken = True
            return
        self._sort_out()
        self._starts[state] = _Start(state.position, state.position_epoch)

    def sought(self, state: PartitionState) -> None:
        """The user seeks elsewhere: the next transaction begins there."""
        self._starts.pop(state, None)

    def given_up(self) -> list[TopicPartition]:
        """Partitions that we have lost after handing out some of their records."""
        self._sort_out()
        return list(self._given_up)

    def starts(self) -> dict[TopicPartition, int]:
        """The first offset handed out, per partition."""
        return {state.at: start.offset for state, start in self._starts.items() if start.taken}

    def settle(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, iterating: bool) -> None:
        """Everything handed out before these offsets is committed. ``iterating``: more records of the same poll will
        follow."""
        self._starts = {
            state: _Start(offsets[at].offset, offsets[at].leader_epoch, taken=iterating)
            for at, state in self._assignment.partitions.items()
            if at in offsets
        }
        self._given_up.clear()

    def iteration_ended(self) -> None:
        """Positions show the user's progress; committed records before them need no undo."""
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
