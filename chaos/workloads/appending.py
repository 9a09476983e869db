"""Producers of single records, without transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidelog.aio import Producer
from tidelog.chaos.checkers.history import NO_OFFSET, Outcome, Sent
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.world import World
from tidelog.client.delivery import Callback, RecordMetadata
from tidelog.client.errors import TidelogError
from tidelog.model.ids import TopicPartition

BURSTS: Final = (1, 1, 2, 5)
PADDING: Final = (0, 10, 200, 1_500)
FLUSH_S: Final = 40.0
"""How long to wait for the last outcomes after a producer is asked to stop."""


class Appender(Incarnation):
    """Sends small bursts of unique values to any of its partitions until it is stopped or killed.

    ``pause_s``: between bursts, if no rate is set. ``acknowledged`` is called for each durable record.
    """

    def __init__(
        self,
        name: str,
        world: World,
        partitions: Sequence[TopicPartition],
        settings: Mapping[str, Any],
        *,
        pause_s: tuple[float, float] = (0.1, 1.5),
        bursts: Sequence[int] = BURSTS,
        padding: Sequence[int] = PADDING,
        acknowledged: Callable[[TopicPartition, int], None] = lambda at, offset: None,
    ) -> None:
        self.durable = settings.get("acks", -1) == -1
        self.partitions = partitions
        self.acknowledged = 0
        self.acknowledged_s = 0.0
        self.operations = 0
        self._settings = settings
        self._pause_s = pause_s
        self._bursts = bursts
        self._padding = padding
        self._acknowledged = acknowledged
        self._under_way: dict[int, tuple[TopicPartition, dict[str, Any], float]] = {}
        super().__init__(name, world)

    def _make(self) -> None:
        self.producer: Producer = self.process.producer(**self._settings)

    def _ended_by(self, error: TidelogError) -> None:
        self.world.violated(f"{self.name} ended by itself: {error!r}")

    async def _run(self) -> None:
        try:
            await self.producer.start()
            while not self.stopping:
                await self._burst()
            await self._flush()
        except asyncio.CancelledError:
            self._forget()
            raise

    async def _burst(self) -> None:
        rng = self._rng
        count = rng.choice(self._bursts)
        for _ in range(count):
            if not self.world.may_send():
                self.stopping = True
                return
            await self._send(rng.choice(self.partitions))
        await asyncio.sleep(self.world.pause_s(rng, count, lambda: rng.uniform(*self._pause_s)))

    async def _send(self, at: TopicPartition) -> None:
        number = self.operations
        self.operations += 1
        record = self._record(number)
        self._under_way[number] = (at, record, self.world.now())
        try:
            await self.producer.send(at.topic, **record, partition=at.partition, on_delivery=self._heard(number))
        except (TidelogError, ValueError):
            # Raised before the record was taken: it will never be sent. ValueError: the partition is new, and the
            # broker that was asked for metadata does not know it yet.
            self._ended(number, Outcome.FAILED)

    def _record(self, number: int) -> dict[str, Any]:
        """Return a record as arguments of ``send``."""
        return {"value": b"%s:%d:" % (self.name.encode(), number) + b"x" * self._rng.choice(self._padding)}

    def _heard(self, number: int) -> Callback:
        def heard(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            if number not in self._under_way:
                self.world.violated(f"{self.name}:{number} had its outcome already, and now {error or metadata}")
            elif error is not None:
                self._ended(number, Outcome.UNKNOWN)
            else:
                assert metadata is not None
                if (metadata.topic, metadata.partition) != (at := self._under_way[number][0]):
                    self.world.violated(f"{self.name}:{number} was sent to {at} and acknowledged at {metadata}")
                self.acknowledged += 1
                self.acknowledged_s = self.world.now()
                if self.durable:
                    self._acknowledged(at, metadata.offset)
                self._ended(number, Outcome.OK, metadata.offset)

        return heard

    def _ended(self, number: int, outcome: Outcome, offset: int = NO_OFFSET) -> None:
        at, record, began = self._under_way.pop(number)
        now, value = self.world.now(), record["value"]
        self.world.history.send(Sent(self.name, number, at, value, outcome, offset, began, now, durable=self.durable))

    async def _flush(self) -> None:
        """Wait for every outcome."""
        try:
            await self.producer.flush(FLUSH_S)
        except TidelogError as error:
            self.world.violated(f"{self.name} did not end: {error!r}")
        if self._under_way:
            self.world.violated(f"{self.name}: {len(self._under_way)} records have no outcome")
        await self.producer.close(FLUSH_S)

    def kill(self) -> None:
        super().kill()
        self._forget()

    def _forget(self) -> None:
        """Forget what is in flight: nobody will learn its outcome."""
        for number in list(self._under_way):
            self._ended(number, Outcome.UNKNOWN)


class VariedAppender(Appender):
    """One whose settings are drawn anew each time that it starts."""

    def _make(self) -> None:
        rng = self._rng
        self._settings = {
            "compression_type": rng.choice(("none", "lz4")),
            "linger_ms": rng.choice((0, 20)),
            "request_timeout_ms": rng.choice((1_000, 3_000)),
            "delivery_timeout_ms": rng.choice((4_000, 60_000)),
            "max_block_ms": 20_000,
        }
        super()._make()
