"""Clients of a topic with ``filter.header``: producers that tag long stretches alike, and readers with a filter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from tidelog import HeaderFilter
from tidelog.chaos.checkers.history import NO_OFFSET, Outcome, Sent
from tidelog.chaos.checkers.patterns.filters import TAG, FilteredReading, key_of, tag_of
from tidelog.chaos.workloads.appending import VariedAppender
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.world import World
from tidelog.client.errors import OffsetOutOfRangeError, TidelogError
from tidelog.model.ids import TopicPartition

POLL_S: Final = 0.5
ASK_S: Final = 2.0
AGAIN: Final = 0.02
"""How often, per poll, a reader begins again at the log start of a partition."""


class TaggedWriter(VariedAppender):
    """Tags its records as :func:`~tidelog.chaos.checkers.patterns.filters.tag_of` says. ``told`` gets each once its
    outcome is known."""

    def __init__(
        self,
        name: str,
        world: World,
        partitions: Sequence[TopicPartition],
        told: Callable[[Sent], None],
        acknowledged: Callable[[TopicPartition, int], None],
    ) -> None:
        self._told = told
        super().__init__(
            name, world, partitions, {}, pause_s=(0.05, 0.4), padding=(0, 200, 2_500), acknowledged=acknowledged
        )

    def _record(self, number: int) -> dict[str, Any]:
        record = super()._record(number)
        value = record["value"]
        tag = tag_of(value)
        return {**record, "key": key_of(value), "headers": [] if tag is None else [(TAG, tag)]}

    def _ended(self, number: int, outcome: Outcome, offset: int = NO_OFFSET) -> None:
        at, record, began = self._under_way.pop(number)
        self._told(Sent(self.name, number, at, record["value"], outcome, offset, began, self.world.now()))


class FilteredReader(Incarnation):
    """Reads partitions on and on with a filter, and at times one of them from its start again."""

    def __init__(
        self,
        name: str,
        world: World,
        partitions: Sequence[TopicPartition],
        wanted: Collection[bytes | None],
        settings: Mapping[str, Any],
    ) -> None:
        self.readings: list[FilteredReading] = []
        self.polls = 0
        self._partitions = partitions
        self._wanted = wanted
        self._settings = settings
        self._now: dict[TopicPartition, FilteredReading] = {}
        super().__init__(name, world)

    def is_at(self, ends: Mapping[TopicPartition, int]) -> bool:
        return all(at in self._now and self._now[at].end >= ends[at] for at in self._partitions)

    def _make(self) -> None:
        self._consumer = self.process.consumer(
            auto_offset_reset="none",
            fetch_max_wait_ms=self._rng.choice((100, 500)),
            max_poll_records=self._rng.choice((5, 500)),
            header_filter=HeaderFilter(TAG, self._wanted),
            **self._settings,
        )

    def _ended_by(self, error: TidelogError) -> None:
        self.world.violated(f"{self.name} ended by itself: {error!r}")

    async def _run(self) -> None:
        consumer, rng = self._consumer, self._rng
        await consumer.start()
        consumer.assign(list(self._partitions))
        for at in self._partitions:
            await self._begin(at)
        while True:
            self.polls += 1
            try:
                found = await consumer.poll(POLL_S)
            except OffsetOutOfRangeError:  # retention was faster
                for at in self._partitions:
                    await self._begin(at)
                continue
            for record in found:
                self._now[record.topic_partition].records.append((record.offset, record.value or b""))
            for at, reading in self._now.items():
                reading.end = await consumer.position(at)
            if rng.random() < AGAIN:
                await self._begin(rng.choice(self._partitions))
            await asyncio.sleep(0)

    async def _begin(self, at: TopicPartition) -> None:
        while True:
            try:
                start = (await self._consumer.beginning_offsets([at], timeout=ASK_S))[at]
                break
            except TidelogError:
                await asyncio.sleep(POLL_S)
        self._consumer.seek(at, start)
        self._now[at] = FilteredReading(self.name, at, self._wanted, start, start)
        self.readings.append(self._now[at])
