"""``for record in consumer``: the user's progress through the records of a poll."""

from __future__ import annotations

from typing import Final

from tidelog.client.fetching.positions import PartitionState
from tidelog.client.record import ConsumerRecord


class Iteration:
    """``at`` is the index of the user's current record; later ones were not returned."""

    __slots__ = ("_generations", "at", "records", "states")

    def __init__(self, records: list[ConsumerRecord], states: list[PartitionState]) -> None:
        """``states``: the partitions of ``records`` that are still assigned."""
        self.records: Final = records
        self.states: Final = states
        self.at = 0
        self._generations = {state: state.generation for state in states}

    def position_of(self, state: PartitionState, in_hand: int) -> tuple[int, int]:
        """Return a partition's position and its leader epoch (-1 unknown), before the first record that was not
        returned, or (``in_hand`` 0) before the current one. A position that has moved since is kept."""
        if self._generations.get(state) == state.generation:
            epoch = -1
            first = self.at + in_hand
            for index, record in enumerate(self.records):
                if (record.topic, record.partition) == state.at:
                    if index >= first:
                        return record.offset, epoch
                    epoch = record.leader_epoch
        return state.position, state.position_epoch
