"""Clients of a simulated cluster, each in a process of its own, and the history of what they were told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidelog.chaos.checkers.history import NO_OFFSET, History, Outcome, Polled, Positioned, Sent
from tidelog.chaos.checkers.replication import VisibleMarkJudge
from tidelog.chaos.sim.cluster import SimulatedCluster
from tidelog.chaos.sim.loop import Process
from tidelog.client.errors import OffsetOutOfRangeError, TidelogError
from tidelog.client.metadata import MetadataCache
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.aio import Consumer, Producer

POLL_S: Final = 1.0
ASK_PAUSE_S: Final = (0.1, 0.5)


class SendingClient:
    """One life of one idempotent producer that sends small bursts until it is stopped or killed."""

    def __init__(
        self,
        name: str,
        cluster: SimulatedCluster,
        partitions: Mapping[str, int],
        history: History,
        rng: random.Random,
        pause_s: tuple[float, float],
        settings: Mapping[str, Any],
        acknowledged: Callable[[TopicPartition, int], None],
    ) -> None:
        self.name = name
        self.durable = settings.get("acks", -1) == -1
        self._acknowledged = acknowledged
        self.acknowledged = 0
        self.acknowledged_s = 0.0
        self.operations = 0
        self.process = cluster.client_process(name)
        self.producer: Producer = cluster.producer(self.process, **settings)
        self.stopping = False
        self._cluster = cluster
        self.write_to(partitions)
        self._history = history
        self._rng = rng
        self._pause_s = pause_s
        self._under_way: dict[int, tuple[TopicPartition, bytes, float]] = {}
        self._task = cluster.run_in(self.process, self._run())

    @property
    def known(self) -> MetadataCache:
        """What the client knows of the cluster."""
        return self.producer._core.cluster.cache

    def write_to(self, partitions: Mapping[str, int]) -> None:
        """Write to these topics from now on, which have so many partitions each."""
        self._partitions = [TopicPartition(topic, n) for topic, count in partitions.items() for n in range(count)]

    @property
    def undecided(self) -> int:
        return len(self._under_way)

    async def _run(self) -> None:
        rng = self._rng
        await self.producer.start()
        number = 0
        while not self.stopping:
            for _ in range(rng.choice((1, 1, 2, 5))):
                await self._send(number, rng.choice(self._partitions))
                number += 1
            await asyncio.sleep(rng.uniform(*self._pause_s))

    async def _send(self, number: int, at: TopicPartition) -> None:
        value = b"%s:%d:" % (self.name.encode(), number) + b"x" * self._rng.choice((0, 10, 200, 1_500))
        began = self._cluster.loop.now
        self.operations += 1
        self._under_way[number] = (at, value, began)
        try:
            await self.producer.send(at.topic, value, partition=at.partition, on_delivery=self._heard(number))
        except (TidelogError, ValueError):
            # Raised before the record was taken: it will never be sent. ValueError: the partition is new, and the
            # broker that was asked for metadata has not heard of it yet.
            self._ended(number, Outcome.FAILED)

    def _heard(self, number: int) -> Callable[[Any, BaseException | None], None]:
        def heard(metadata: Any, error: BaseException | None) -> None:
            if number not in self._under_way:
                raise AssertionError(f"{self.name}:{number} had its outcome already")
            if error is None:
                self.acknowledged += 1
                self.acknowledged_s = self._cluster.loop.now
                self._ended(number, Outcome.OK, metadata.offset)
            else:
                self._ended(number, Outcome.UNKNOWN)

        return heard

    def _ended(self, number: int, outcome: Outcome, offset: int = NO_OFFSET) -> None:
        at, value, began = self._under_way.pop(number)
        now = self._cluster.loop.now
        if outcome is Outcome.OK and self.durable:
            self._acknowledged(at, offset)
        sent = Sent(self.name, number, at, value, outcome, offset, began, now, durable=self.durable)
        self._history.sends.append(sent)

    async def finish(self, timeout_s: float) -> None:
        """Stop sending and wait for every outcome. Raises the client's own error, or a time-out."""
        self.stopping = True
        await self._task
        await self._cluster.run_in(self.process, self.producer.flush(timeout_s))
        await self._cluster.run_in(self.process, self.producer.close(timeout_s))

    def kill(self) -> None:
        """End the client's process: nobody will hear what becomes of what is under way."""
        self._task.cancel()
        self._cluster.fabric.drop_node(self.name)
        # A process that is gone for good: what is left of it never runs again.
        self._cluster.loop.pause(self.process)
        for number in list(self._under_way):
            self._ended(number, Outcome.UNKNOWN)

    def failure(self) -> BaseException | None:
        """What ended the client, if anything but us did."""
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None


class ReadingClient:
    """One consumer that reads partitions from their beginning, and now and then seeks back."""

    def __init__(
        self,
        name: str,
        cluster: SimulatedCluster,
        partitions: Mapping[str, int],
        history: History,
        rng: random.Random,
        settings: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.process: Process = cluster.client_process(name)
        self.consumer: Consumer = cluster.consumer(self.process, auto_offset_reset="none", **settings)
        self.positions = {TopicPartition(t, n): 0 for t, count in partitions.items() for n in range(count)}
        self.refused = ""
        self.marks_violated: list[str] = []
        self._marks = VisibleMarkJudge()
        self.operations = 0
        self._cluster = cluster
        self._history = history
        self._rng = rng
        self._asking: asyncio.Task[None] | None = None
        self._task = cluster.run_in(self.process, self._run())

    @property
    def known(self) -> MetadataCache:
        """What the client knows of the cluster."""
        return self.consumer._core.cluster.cache

    async def _run(self) -> None:
        await self.consumer.start()
        self.consumer.assign(list(self.positions))
        for at in self.positions:
            self._seek(at, 0)
        self._asking = self._cluster.run_in(self.process, self._ask())
        while True:
            self.operations += 1
            began = self._cluster.loop.now
            try:
                records = await self.consumer.poll(POLL_S)
            except OffsetOutOfRangeError as error:
                self.refused = str(error)
                return
            ended = self._cluster.loop.now
            got: dict[TopicPartition, list[tuple[int, bytes]]] = {}
            for record in records:
                at = TopicPartition(record.topic, record.partition)
                got.setdefault(at, []).append((record.offset, record.value or b""))
            for at, found in got.items():
                self.positions[at] = found[-1][0] + 1
                self._history.reads.append(Polled(self.name, at, found, began, ended))
            if got and self._rng.random() < 0.02:
                at = self._rng.choice(list(got))
                self._seek(at, self._rng.randrange(self.positions[at]))

    async def _ask(self) -> None:
        """Ask now and then where a partition ends: what one leader said, the next may not take back."""
        while True:
            await asyncio.sleep(self._rng.uniform(*ASK_PAUSE_S))
            at = self._rng.choice(list(self.positions))
            try:
                ends = await self.consumer.end_offsets([at], timeout=0.5)
            except TidelogError:
                continue
            self.operations += 1
            self.marks_violated += self._marks.observe(self.name, at, ends[at])

    def is_at(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether it has read everything up to the ends of its partitions."""
        return all(position >= ends.get(at, 0) for at, position in self.positions.items())

    def _seek(self, at: TopicPartition, offset: int) -> None:
        self.consumer.seek(at, offset)
        self.positions[at] = offset
        self._history.reads.append(Positioned(self.name, at, offset))

    async def finish(self) -> None:
        """End the client."""
        tasks = [task for task in (self._task, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self._cluster.run_in(self.process, self.consumer.close())

    def failure(self) -> BaseException | None:
        """What ended the client, if anything but us did."""
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None
