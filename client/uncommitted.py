"""What a consumer has handed out since its last transaction, so that it can be committed with the next or be handed
out again. Pure; at most one entry for each partition that was ever assigned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.positions import Assignment, PartitionState
from tidelog.model.ids import TopicPartition


@dataclass(slots=True)
class _Start:
    """Where a transaction's records of a partition begin. ``taken``: some were handed out."""

    offset: int
    epoch: int
    taken: bool = True


class Uncommitted:
    """A partition that is given up and comes back is another one: what was handed out before may be anybody's."""

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
        """The user goes elsewhere: that is where its next transaction begins."""
        self._starts.pop(state, None)

    def given_up(self) -> list[TopicPartition]:
        """Partitions of which something was handed out that are no longer ours."""
        self._sort_out()
        return list(self._given_up)

    def starts(self) -> dict[TopicPartition, int]:
        """Where what was handed out begins."""
        return {state.at: start.offset for state, start in self._starts.items() if start.taken}

    def settle(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, iterating: bool) -> None:
        """All that was handed out before these was committed. ``iterating``: more of the same poll is to come."""
        self._starts = {
            state: _Start(offsets[at].offset, offsets[at].leader_epoch, taken=iterating)
            for at, state in self._assignment.partitions.items()
            if at in offsets
        }
        self._given_up.clear()

    def iteration_ended(self) -> None:
        """Positions are where the user has come to; what was committed up to there has nothing to undo."""
        for state, start in self._starts.items():
            if state.position == start.offset:
                start.taken = False

    def undo(self) -> None:
        """Go back to where it begins."""
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
