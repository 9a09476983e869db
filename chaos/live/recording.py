"""Clients that write down what they do: producers of single records, and consumers.

All run on one event loop; what they are told goes into the history at once. A client that raises what it must not
is written down too, and does not end the run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelog.aio import Consumer, Producer
from tidelog.chaos.checkers.history import NO_OFFSET, Outcome, Polled, Positioned, Sent
from tidelog.chaos.checkers.replication import VisibleMarkJudge
from tidelog.chaos.live.history_file import HistoryFile
from tidelog.client.errors import OffsetOutOfRangeError, TidelogError
from tidelog.client.group_types import ConsumerRebalanceListener
from tidelog.model.ids import TopicPartition

POLL_S: Final = 0.5
ASKS_ENDS: Final = 0.05
"""How often a reader asks where its partitions end, by polls."""
SEEKS: Final = 0.02
"""How often a reader that seeks does so, by polls that brought something."""
SEEK_BACK: Final = 1_000
"""It goes back by so many records at most: one that goes back anywhere, and reads five at a time, never comes to
the end of a long log."""
CLIENT_SETTINGS: Final[Mapping[str, Any]] = {
    "request_timeout_ms": 2_000,
    "retry_backoff_ms": 20,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 200,
}
MEMBER_SETTINGS: Final[Mapping[str, Any]] = {
    **CLIENT_SETTINGS,
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 1_000,
    "auto_commit_interval_ms": 500,
    "auto_offset_reset": "earliest",
}
PADDING: Final = (0, 0, 20, 100)


class Budget:
    """Operations that a run may still do, all its clients together; at 0 they stop sending."""

    def __init__(self, operations: int) -> None:
        self.left = operations

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


class Appender:
    """One idempotent producer that sends bursts of unique values to any partition, until it is stopped."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        partitions: Sequence[TopicPartition],
        history: HistoryFile,
        rng: random.Random,
        per_s: float,
        budget: Budget,
    ) -> None:
        self.name = name
        self.acknowledged = 0
        self.stopping = False
        self._producer = Producer(
            bootstrap,
            compression_type=rng.choice(["none", "lz4", "none"]),
            linger_ms=rng.choice([0, 5]),
            batch_size=rng.choice([500, 16_384]),
            delivery_timeout_ms=rng.choice([4_000, 120_000]),
            max_block_ms=60_000,
            **CLIENT_SETTINGS,
        )
        self._partitions = partitions
        self._history = history
        self._rng = rng
        self._per_s = per_s
        self._budget = budget
        self._number = 0
        self._under_way: dict[int, tuple[TopicPartition, bytes, float]] = {}

    async def run(self) -> None:
        """Send until told to stop, or until the run's budget is spent."""
        rng = self._rng
        await self._producer.start()
        while not self.stopping:
            burst = rng.choice((1, 1, 2, 5, 12))
            for _ in range(burst):
                if not self._budget.take():
                    return
                await self._send(rng.choice(self._partitions))
            await asyncio.sleep(burst / self._per_s * rng.uniform(0.5, 1.5))

    async def finish(self, bound_s: float) -> None:
        """Wait for every outcome, for so long at most; what has none then is unknown."""
        try:
            await self._producer.flush(bound_s)
        except TidelogError as error:
            self._history.wrong(f"{self.name}: flush after everything was mended: {type(error).__name__}: {error}")
        if self._under_way:
            self._history.wrong(f"{self.name}: {len(self._under_way)} records have no outcome after a flush")
        await self._producer.close(1.0)

    async def abandon(self) -> None:
        """End it as it is; what is under way is written down as unknown."""
        await self._producer.close(0.0)
        for number in list(self._under_way):
            self._ended(number, Outcome.UNKNOWN)
        for number in list(self._under_way):
            self._ended(number, Outcome.UNKNOWN)

    async def _send(self, at: TopicPartition) -> None:
        number, self._number = self._number, self._number + 1
        value = b"%s:%d:%s" % (self.name.encode(), number, b"x" * self._rng.choice(PADDING))
        self._under_way[number] = (at, value, self._history.now())
        try:
            await self._producer.send(at.topic, value, partition=at.partition, on_delivery=self._heard(number))
        except (TidelogError, ValueError):
            self._ended(number, Outcome.FAILED)  # raised before the record was taken: it will never be sent

    def _heard(self, number: int) -> Any:
        def heard(metadata: Any, error: BaseException | None) -> None:
            if number not in self._under_way:
                self._history.wrong(f"{self.name}:{number} had its outcome already, and now {error or metadata}")
            elif error is not None:
                self._ended(number, Outcome.UNKNOWN)
            else:
                self.acknowledged += 1
                self._ended(number, Outcome.OK, metadata.offset)

        return heard

    def _ended(self, number: int, outcome: Outcome, offset: int = NO_OFFSET) -> None:
        at, value, began = self._under_way.pop(number)
        self._history.send(Sent(self.name, number, at, value, outcome, offset, began, self._history.now()))


class Reader:
    """One consumer that reads partitions from their beginning on, and if ``seeks`` goes back now and then."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        partitions: Sequence[TopicPartition],
        history: HistoryFile,
        rng: random.Random,
        *,
        committed: bool,
        seeks: bool,
    ) -> None:
        self.name = name
        self._consumer = Consumer(
            bootstrap,
            auto_offset_reset="none",
            isolation_level="read_committed" if committed else "read_uncommitted",
            fetch_max_wait_ms=rng.choice([100, 500]),
            max_poll_records=rng.choice([5, 100, 500]),
            **CLIENT_SETTINGS,
        )
        self.positions = dict.fromkeys(partitions, 0)
        self.refused = False
        self._history = history
        self._rng = rng
        self._committed = committed
        self.seeks = seeks
        self._marks = VisibleMarkJudge()

    async def run(self) -> None:
        """Read until cancelled."""
        consumer = self._consumer
        await consumer.start()
        consumer.assign(list(self.positions))
        for at in self.positions:
            self._seek(at, 0)
        while True:
            began = self._history.now()
            try:
                records = await consumer.poll(POLL_S)
            except OffsetOutOfRangeError as error:
                self.refused = True
                self._history.wrong(f"{self.name}: its position was refused: {error}")
                return
            ended = self._history.now()
            got: dict[TopicPartition, list[tuple[int, bytes]]] = {}
            for record in records:
                got.setdefault(record.topic_partition, []).append((record.offset, record.value or b""))
            for at, found in got.items():
                self._history.poll(Polled(self.name, at, found, began, ended, read_committed=self._committed))
            await self._look_at_positions()
            if got and self.seeks and self._rng.random() < SEEKS:
                at = self._rng.choice(sorted(got))
                last = got[at][-1][0]
                self._seek(at, self._rng.randrange(max(0, last - SEEK_BACK), last + 1))
            if self._rng.random() < ASKS_ENDS:
                await self._ask_ends()

    def is_at(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether it has read up to the ends of its partitions, or never will."""
        return self.refused or all(position >= ends.get(at, 0) for at, position in self.positions.items())

    async def close(self) -> None:
        await self._consumer.close()

    async def _look_at_positions(self) -> None:
        for at in self.positions:
            try:
                self.positions[at] = await self._consumer.position(at, timeout=POLL_S)
            except TidelogError:
                return

    def _seek(self, at: TopicPartition, offset: int) -> None:
        self._consumer.seek(at, offset)
        self.positions[at] = offset
        self._history.position(Positioned(self.name, at, offset))

    async def _ask_ends(self) -> None:
        """What one leader has said of where a partition ends, the next may not take back."""
        try:
            ends = await self._consumer.end_offsets(list(self.positions), timeout=POLL_S)
        except TidelogError:
            return
        for at, end in ends.items():
            for text in self._marks.observe(self.name, at, end):
                self._history.wrong(text)


class Member(ConsumerRebalanceListener):
    """One member of a group, which commits by itself."""

    def __init__(
        self, name: str, bootstrap: str, group: str, topics: Sequence[str], history: HistoryFile, rng: random.Random
    ) -> None:
        self.name = name
        self.polls = 0
        self._consumer = Consumer(bootstrap, group_id=group, max_poll_records=rng.choice([20, 200]), **MEMBER_SETTINGS)
        self._topics = list(topics)
        self._history = history

    async def run(self) -> None:
        """Read until cancelled."""
        await self._consumer.start()
        self._consumer.subscribe(self._topics, listener=self)
        while True:
            began = self._history.now()
            records = await self._consumer.poll(POLL_S)
            ended = self._history.now()
            self.polls += bool(records)
            got: dict[TopicPartition, list[tuple[int, bytes]]] = {}
            for record in records:
                got.setdefault(record.topic_partition, []).append((record.offset, record.value or b""))
            for at, found in got.items():
                self._history.poll(Polled(self.name, at, found, began, ended))

    async def close(self) -> None:
        await self._consumer.close()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for at in partitions:
            self._history.position(Positioned(self.name, at))


async def read_final(
    bootstrap: str, partitions: Sequence[TopicPartition], history: HistoryFile, bound_s: float
) -> dict[TopicPartition, int]:
    """Read the partitions from their start to where they end now, as read_committed does, into the history; return
    their ends. Raises ``TimeoutError`` or the client's own error."""
    found, starts, ends = await read_through(bootstrap, partitions, bound_s)
    for at, records in found.items():
        history.final(at, starts[at], ends[at], records)
    return ends


async def read_through(
    bootstrap: str, partitions: Sequence[TopicPartition], bound_s: float
) -> tuple[dict[TopicPartition, list[tuple[int, bytes]]], dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Read the partitions from their start to where they end now, as read_committed does: offsets and values, the
    starts, the ends. Raises ``TimeoutError`` or the client's own error."""
    found: dict[TopicPartition, list[tuple[int, bytes]]] = {at: [] for at in partitions}
    async with asyncio.timeout(bound_s):
        async with Consumer(
            bootstrap, auto_offset_reset="none", isolation_level="read_committed", **CLIENT_SETTINGS
        ) as consumer:
            consumer.assign(list(partitions))
            starts = await consumer.beginning_offsets(list(partitions), timeout=bound_s)
            ends = await consumer.end_offsets(list(partitions), timeout=bound_s)
            for at in partitions:
                consumer.seek(at, starts[at])
            left = [at for at in partitions if ends[at] > starts[at]]
            while left:
                for record in await consumer.poll(POLL_S):
                    found[record.topic_partition].append((record.offset, record.value or b""))
                left = [at for at in left if await consumer.position(at, timeout=bound_s) < ends[at]]
    return found, {at: int(starts[at]) for at in partitions}, {at: int(ends[at]) for at in partitions}
