"""``for record in consumer``: how far the user has come in what a poll returned."""

from __future__ import annotations

from typing import Final

from tidelog.client.positions import PartitionState
from tidelog.client.record import ConsumerRecord


class Iteration:
    """``at`` is the index of the record that the user has in hand; those behind it were not handed out."""

    __slots__ = ("_generations", "at", "records", "states")

    def __init__(self, records: list[ConsumerRecord], states: list[PartitionState]) -> None:
        """``states``: of the partitions that ``records`` are of, as far as they are still assigned."""
        self.records: Final = records
        self.states: Final = states
        self.at = 0
        self._generations = {state: state.generation for state in states}

    def position_of(self, state: PartitionState, in_hand: int) -> tuple[int, int]:
        """A partition's position and its leader epoch (-1 unknown), without what was not handed out, and
        (``in_hand`` 0) without the record in hand. A position that was moved since stays as it is."""
        if self._generations.get(state) == state.generation:
            epoch = -1
            first = self.at + in_hand
            for index, record in enumerate(self.records):
                if (record.topic, record.partition) == state.at:
                    if index >= first:
                        return record.offset, epoch
                    epoch = record.leader_epoch
        return state.position, state.position_epoch
