"""Clients of a compacted topic: producers that rewrite few keys, readers that begin at log start.

A reader repeatedly reads a partition from its start to the end offset at that time; each time it must end with the
latest value of every key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from tidelog.chaos.checkers.history import NO_OFFSET, Outcome
from tidelog.chaos.checkers.keyed_history import KeyedWrite, ReadRecord, Scan, mark_of
from tidelog.chaos.workloads.appending import Appender
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.world import World
from tidelog.client.errors import OffsetOutOfRangeError, TidelogError
from tidelog.model.ids import TopicPartition

TOMBSTONES: Final = 0.2
"""The share of writes that delete a key."""
STALLED_S: Final = 4.0
"""A scan that gets nothing for this long is abandoned and restarted."""


class KeyedWriter(Appender):
    """An idempotent producer that rewrites keys, and deletes some.

    ``written`` is called for each write that has its outcome.
    """

    def __init__(
        self,
        name: str,
        world: World,
        partitions: Sequence[TopicPartition],
        keys: Sequence[bytes],
        written: Callable[[KeyedWrite], None],
        acknowledged: Callable[[TopicPartition, int], None] = lambda at, offset: None,
    ) -> None:
        self._keys = keys
        self._written = written
        super().__init__(
            name,
            world,
            partitions,
            {},
            pause_s=(0.05, 0.8),
            bursts=(1, 2, 5),
            padding=(0, 20, 300),
            acknowledged=acknowledged,
        )

    def _make(self) -> None:
        rng = self._rng
        self._settings = {
            "compression_type": rng.choice(("none", "lz4", "gzip")),
            "linger_ms": rng.choice((0, 20, 100)),
            "request_timeout_ms": rng.choice((1_000, 3_000)),
            "delivery_timeout_ms": rng.choice((4_000, 60_000)),
            "max_block_ms": 20_000,
        }
        super()._make()

    def _record(self, number: int) -> dict[str, Any]:
        rng = self._rng
        mark = b"%s:%d" % (self.name.encode(), number)
        return {
            "value": None if rng.random() < TOMBSTONES else mark + b"x" * rng.choice(self._padding),
            "timestamp_ms": self.world.wall_ms(),
            "key": self._keys[int(len(self._keys) * rng.random() ** 3)],  # some are written often, others seldom
            "headers": [("mark", mark)],
        }

    def _ended(self, number: int, outcome: Outcome, offset: int = NO_OFFSET) -> None:
        at, record, began = self._under_way.pop(number)
        key, value, timestamp = record["key"], record["value"], record["timestamp_ms"]
        self._written(KeyedWrite(mark_of(record["headers"]), at, key, value, timestamp, outcome, offset, began))


class KeyedReader(Incarnation):
    """A consumer that reads one partition after the other from start to end."""

    def __init__(
        self, name: str, world: World, partitions: Sequence[TopicPartition], scanned: Callable[[Scan], None]
    ) -> None:
        """``scanned`` is called for each partition that was read to its end."""
        self._partitions = partitions
        self._scanned = scanned
        super().__init__(name, world)

    def _make(self) -> None:
        self._consumer = self.process.consumer(
            auto_offset_reset="none", fetch_max_wait_ms=300, max_poll_records=self._rng.choice((5, 500))
        )

    def _ended_by(self, error: TidelogError) -> None:
        self.world.violated(f"{self.name} ended by itself: {error!r}")

    async def _run(self) -> None:
        await self._consumer.start()
        while True:
            for at in self._partitions:
                try:
                    await self._scan(at)
                except OffsetOutOfRangeError:
                    continue  # the log was truncated, or begins later: restart from its start
                except TidelogError as error:
                    self.world.note(f"{self.name}: {type(error).__name__} at {at}")
            await asyncio.sleep(self._rng.uniform(0.2, 2.0))

    async def _scan(self, at: TopicPartition) -> None:
        consumer, now = self._consumer, self.world.now
        end = (await consumer.end_offsets([at], timeout=2.0))[at]
        consumer.assign([at])
        consumer.seek(at, 0)
        began = heard = now()
        records: list[ReadRecord] = []
        position = 0
        while position < end:
            got = await consumer.poll(0.5)
            records += [ReadRecord(r.offset, r.timestamp, r.key, r.value, mark_of(r.headers)) for r in got]
            behind = await consumer.position(at, timeout=2.0)
            if behind != position:
                position, heard = behind, now()
            elif now() - heard > STALLED_S:
                return
        self._scanned(Scan(self.name, at, records, position, now() - began))
