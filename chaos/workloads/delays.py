"""Clients of a delay topic: producers that write for later and cancel some of it, and a reader of the targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tidelog.chaos.checkers.delays import Arrival, DelayedSend
from tidelog.chaos.checkers.history import NO_OFFSET, Outcome
from tidelog.chaos.workloads.appending import VariedAppender
from tidelog.chaos.workloads.reading import Gatherer
from tidelog.chaos.workloads.world import World
from tidelog.client.record import ConsumerRecord
from tidelog.model.ids import TopicPartition
from tidelog.proto.records.message_headers import CANCEL, DELAY_DUE, DELAY_ID, DELAY_MS, DELIVER_AT, DELIVER_TO

DELAYS_MS: Final = (0, 1_000, 3_000, 8_000)
CANCELS: Final = 0.15
"""The share of sends that cancel an earlier one."""
CANCELLED: Final = "cancelled"


class DelayWriter(VariedAppender):
    """Writes records for later to the partitions of a delay topic. Nothing is cancelled that it does not know to be
    there."""

    def __init__(
        self,
        name: str,
        world: World,
        partitions: Sequence[TopicPartition],
        targets: Sequence[str],
        told: Callable[[DelayedSend], None],
    ) -> None:
        self._targets = targets
        self._told = told
        self._there: list[tuple[TopicPartition, int, bytes]] = []
        """Records that could be cancelled: where they are, and their marks."""
        self._cancels: tuple[TopicPartition, int, bytes] | None = None
        super().__init__(name, world, partitions, {}, pause_s=(0.2, 1.2), bursts=(1, 2, 10), padding=(0, 50))

    async def _send(self, at: TopicPartition) -> None:
        there = [each for each in self._there if each[0] == at]
        self._cancels = self._rng.choice(there) if there and self._rng.random() < CANCELS else None
        await super()._send(at)

    def _record(self, number: int) -> dict[str, Any]:
        rng = self._rng
        mark = b"%s:%d" % (self.name.encode(), number)
        if self._cancels is not None:
            _, offset, cancelled = self._cancels
            self._there.remove(self._cancels)
            return {"value": mark, "headers": [(CANCEL, b"%d" % offset), (CANCELLED, cancelled)]}
        delay_ms = rng.choice(DELAYS_MS)
        when = (DELAY_MS, delay_ms) if rng.random() < 0.7 else (DELIVER_AT, self.world.wall_ms() + delay_ms)
        headers = [(when[0], b"%d" % when[1]), (DELIVER_TO, rng.choice(self._targets).encode())]
        return {"value": mark, "key": b"k%d" % rng.randrange(5), "headers": headers}

    def _ended(self, number: int, outcome: Outcome, offset: int = NO_OFFSET) -> None:
        at, record, _ = self._under_way.pop(number)
        mark, cancels = record["value"], dict(record["headers"]).get(CANCELLED)
        self._told(DelayedSend(mark, outcome, self.world.wall_ms(), cancels))
        if outcome is Outcome.OK and cancels is None:
            self._there = [*self._there[-20:], (at, offset, mark)]


class DelayReader(Gatherer):
    """Reads targets, what is committed, and notes when it got each record."""

    def __init__(self, name: str, world: World, partitions: Sequence[TopicPartition]) -> None:
        self.arrivals: list[Arrival] = []
        super().__init__(name, world, partitions, self._got)

    def _got(self, record: ConsumerRecord) -> None:
        told = {name: (value or b"").decode() for name, value in record.headers}
        _, partition, offset = told.get(DELAY_ID, "?--1--1").rsplit("-", 2)
        self.arrivals.append(
            Arrival(
                record.value or b"",
                (record.topic, record.partition),
                record.offset,
                (int(partition or -1), int(offset or -1)),
                int(told.get(DELAY_DUE, 0)),
                record.timestamp,
                self.world.wall_ms(),
            )
        )
