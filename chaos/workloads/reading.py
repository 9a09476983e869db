"""Readers of partitions by assignment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidelog.chaos.checkers.history import Polled, Positioned, by_partition
from tidelog.chaos.checkers.replication import VisibleMarkJudge
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.world import Records, World
from tidelog.client.errors import CorruptRecordError, OffsetOutOfRangeError, TidelogError
from tidelog.client.record import ConsumerRecord
from tidelog.model.ids import TopicPartition

POLL_S: Final = 0.5
ASK_PAUSE_S: Final = (0.1, 0.5)
SEEKS: Final = 0.02
"""How often a seeking reader seeks, per poll with records."""
SEEK_BACK: Final = 1_000
"""Maximum records to go back. A reader that goes back anywhere, and reads five at a time, never reaches the end of a
long log."""


class Reader(Incarnation):
    """Reads partitions from their start. With ``seeks`` it occasionally goes back, and with ``asks`` it asks for the
    end offsets: what one leader reported, the next may not take back."""

    def __init__(
        self,
        name: str,
        world: World,
        partitions: Sequence[TopicPartition],
        *,
        committed: bool,
        history: Records | None = None,
        seeks: bool = False,
        asks: bool = False,
        poll_s: float = POLL_S,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """``history``: where its polls are recorded, instead of the world's. ``settings``: of its consumer; random by
        default."""
        self._poll_s = poll_s
        self.positions = dict.fromkeys(partitions, 0)
        self.refused = False
        self.seeks = seeks
        self.operations = 0
        self._asks = asks
        self._committed = committed
        self._settings = settings
        self._history = history or world.history
        self._marks = VisibleMarkJudge()
        super().__init__(name, world)

    def _ended_by(self, error: TidelogError) -> None:
        self.world.violated(f"{self.name} ended by itself: {error!r}")

    def is_at(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether it has read up to the ends of its partitions, or never will."""
        return self.refused or all(position >= ends.get(at, 0) for at, position in self.positions.items())

    def _make(self) -> None:
        if self._settings is not None:
            self._consume(**self._settings)

    def _consume(self, **settings: Any) -> None:
        level = "read_committed" if self._committed else "read_uncommitted"
        self.consumer = self.process.consumer(isolation_level=level, **{"auto_offset_reset": "none", **settings})

    async def _run(self) -> None:
        if self._settings is None:
            wait_ms = self._rng.choice((100, 500))
            polls = self._rng.choice((2, 20, 500)) * self.world.scale
            self._consume(fetch_max_wait_ms=wait_ms, max_poll_records=polls)
        consumer = self.consumer
        await consumer.start()
        consumer.assign(list(self.positions))
        for at in self.positions:
            if self._settings is not None and "auto_offset_reset" in self._settings:
                self._history.position(Positioned(self.name, at, 0))  # the answer says where the log begins
            else:
                self._seek(at, 0)
        if self._asks:
            self.process.run(self._ask())
        while not self.stopping:
            try:
                await self._poll()
            except OffsetOutOfRangeError as error:
                self.refused = True
                self.world.violated(f"{self.name}: its position was refused: {error}")
                return
            except CorruptRecordError:
                if not self.world.damaged:
                    raise
                await asyncio.sleep(self._poll_s)
                for at, position in self.positions.items():
                    self._seek(at, position)  # what could not be read is requested again
        await consumer.close()

    async def _poll(self) -> None:
        self.operations += 1
        rng, began = self._rng, self.world.now()
        got = by_partition(await self.consumer.poll(self._poll_s))
        ended = self.world.now()
        for at, found in got.items():
            self._history.poll(Polled(self.name, at, found, began, ended, read_committed=self._committed))
        for at in self.positions:
            try:
                self.positions[at] = await self.consumer.position(at, timeout=1.0)
            except TidelogError:
                break
        if got and self.seeks and rng.random() < SEEKS:
            at = rng.choice(list(got))
            end = got[at][-1][0] + 1
            self._seek(at, rng.randrange(max(0, end - SEEK_BACK), end))

    async def _ask(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(*ASK_PAUSE_S) * self.world.scale)
            at = self._rng.choice(list(self.positions))
            try:
                ends = await self.consumer.end_offsets([at], timeout=0.5)
            except TidelogError:
                continue
            self.operations += 1
            for text in self._marks.observe(self.name, at, ends[at]):
                self.world.violated(text)

    def _seek(self, at: TopicPartition, offset: int) -> None:
        self.consumer.seek(at, offset)
        self.positions[at] = offset
        self._history.position(Positioned(self.name, at, offset))


class Gatherer(Incarnation):
    """Reads what is committed in partitions, from their start, and passes on each record."""

    def __init__(
        self, name: str, world: World, partitions: Sequence[TopicPartition], got: Callable[[ConsumerRecord], None]
    ) -> None:
        self._partitions = partitions
        self._pass_on = got
        super().__init__(name, world)

    def _make(self) -> None:
        self._consumer = self.process.consumer(
            isolation_level="read_committed", auto_offset_reset="earliest", fetch_max_wait_ms=200
        )

    def _ended_by(self, error: TidelogError) -> None:
        self.world.violated(f"{self.name} ended by itself: {error!r}")

    async def _run(self) -> None:
        consumer = self._consumer
        await consumer.start()
        consumer.assign(list(self._partitions))
        while not self.stopping:
            for record in await consumer.poll(0.2):
                self._pass_on(record)
            await asyncio.sleep(0)
        await consumer.close()
