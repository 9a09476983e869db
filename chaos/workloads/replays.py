"""Programs that copy a topic by ``Replay``, one copy after the other, and a reader of the copies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from tidelog.aio import Consumer as AsyncConsumer
from tidelog.chaos.checkers.patterns.replays import Copied
from tidelog.chaos.workloads.aside import Aside, Blocking
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.reading import Gatherer
from tidelog.chaos.workloads.transactions import producer_settings
from tidelog.chaos.workloads.world import ClientProcess, World
from tidelog.client.consumer.blocking import Consumer
from tidelog.client.consumer.range_consumer import RANGE_SETTINGS, RangeConsumer
from tidelog.client.errors import InvalidProducerEpochError, ProducerFencedError, TidelogError
from tidelog.client.producer.blocking import Producer
from tidelog.client.record import ConsumerBatch, ConsumerRecord
from tidelog.client.workers.replay import Replay, ReplayCounts
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.proto.records.message_headers import REPLAY_ID, REPLAY_ORIGIN

AGAIN: Final = 0.3
"""How often a finished copy is asked for once more, in vain."""
DATA_S: Final = 0.3
PAUSES_S: Final = (0.0, 0.3, 1.0)
"""Between two chunks, so that most copies take seconds."""


class RangeReader(Blocking[ReplayCounts]):
    """A ``RangeConsumer`` on the asyncio consumer."""

    def batches(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        topic_id: TopicId | None = None,
        leader_epoch: int = -1,
    ) -> Iterator[ConsumerBatch]:
        reader = cast(RangeConsumer, self)
        return RangeConsumer.batches(reader, partition, start, end, topic_id=topic_id, leader_epoch=leader_epoch)

    def poll_batches(self) -> list[ConsumerBatch]:
        return cast(list[ConsumerBatch], self._aside.ask(lambda: self._consumer.poll_batches(DATA_S)))

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        if not self._aside.died:  # a generator that nobody will go on with ends by this call
            self._aside.ask(lambda: self._consumer.assign(partitions))

    @property
    def _consumer(self) -> AsyncConsumer:
        return cast(AsyncConsumer, self._inner)

    @property
    def _data(self) -> RangeReader:
        return self

    @property
    def _background(self) -> RangeReader:
        return self

    def wait(self, seconds: float) -> None:
        """The poll has waited."""

    def check(self) -> None:
        """There is no other thread that could have ended."""

    def _ask_from(self, partition: TopicPartition, leader_epoch: int) -> None:
        RangeConsumer._ask_from(cast(RangeConsumer, self), partition, leader_epoch)

    def _reached(self, partition: TopicPartition) -> int:
        return RangeConsumer._reached(cast(RangeConsumer, self), partition)

    def _check_topic(self, partition: TopicPartition, topic_id: TopicId | None) -> None:
        RangeConsumer._check_topic(cast(RangeConsumer, self), partition, topic_id)


class ReplayAside(Replay):
    """A ``Replay`` with clients of a process of the world."""

    _CHUNK = 10

    def __init__(
        self, aside: Aside[ReplayCounts], process: ClientProcess, rng: random.Random, topic: str, start: int
    ) -> None:
        super().__init__("", topic, start=start)
        self._aside = aside
        self._process = process
        self._rng = rng

    def _reader(self) -> RangeConsumer:
        made = self._aside.ask(lambda: self._process.consumer(**RANGE_SETTINGS))
        return cast(RangeConsumer, RangeReader(self._aside, made))

    def _group(self, name: str) -> Consumer:
        made = self._aside.ask(lambda: self._process.consumer(group_id=name, enable_auto_commit=False))
        return cast(Consumer, Blocking(self._aside, made))

    def _producer(self, settings: Mapping[str, Any]) -> Producer:
        made = self._aside.ask(lambda: self._process.producer(**settings))
        return cast(Producer, Blocking(self._aside, made))

    def _wait(self, seconds: float) -> None:
        self._aside.ask(lambda: asyncio.sleep(seconds))

    def _keep_rate(self, count: int, began: float) -> None:
        self._wait(self._rng.choice(PAUSES_S))


class ReplayBooks:
    """What is known of the copies under each slot: which one is being made, from where, and which are finished."""

    def __init__(self, source: str, targets: Mapping[str, str], rng: random.Random) -> None:
        self.source = source
        self.targets = targets
        """By slot."""
        self.starts: dict[str, int] = {}
        self.finished: dict[str, str] = {}
        """By replay: its slot."""
        self.numbers = dict.fromkeys(targets, 1)
        self._rng = rng

    def current(self, slot: str) -> str:
        """Return the id of the copy to be made now."""
        made = f"{slot}-{self.numbers[slot]}"
        self.starts.setdefault(made, self._rng.choice((0, 20, 60)))
        return made

    def finish(self, slot: str, replay_id: str) -> None:
        if self.current(slot) == replay_id:
            self.finished[replay_id] = slot
            self.numbers[slot] += 1


class Replayer(Incarnation):
    """Makes the copies of a slot, one after the other. A successor goes on with the one that was not finished."""

    def __init__(self, slot: str, name: str, world: World, books: ReplayBooks) -> None:
        self._slot = slot
        self._books = books
        self._aside: Aside[ReplayCounts] | None = None
        super().__init__(name, world)

    def _ended_by(self, error: TidelogError) -> None:
        if not isinstance(error, ProducerFencedError | InvalidProducerEpochError):
            super()._ended_by(error)

    async def _run(self) -> None:
        books, rng, events = self._books, self._rng, self.world.events
        while not self.stopping:
            replay_id = books.current(self._slot)
            counts = await self._copy(replay_id)
            events["resumed"] += counts.resumed and counts.done > 0
            events["copied"] += counts.done
            if rng.random() < AGAIN:
                counts = await self._copy(replay_id)
                if counts.done or not counts.resumed:
                    self.world.violated(f"{self.name}: {replay_id} was finished, and copied {counts.done} more")
            books.finish(self._slot, replay_id)
            await asyncio.sleep(rng.choice((0.1, 0.5)))

    async def _copy(self, replay_id: str) -> ReplayCounts:
        self._aside = Aside()
        books, settings = self._books, producer_settings(self._rng, self.world.scale)
        job = ReplayAside(self._aside, self.process, self._rng, books.source, books.starts[replay_id])
        target = books.targets[self._slot]
        return await self._aside.run(lambda: job.to_topic(target, replay_id=replay_id, producer_settings=settings))

    def kill(self) -> None:
        super().kill()
        if self._aside is not None:
            self._aside.kill()


class CopyReader(Gatherer):
    """Reads what is committed in the targets, from their starts."""

    def __init__(self, name: str, world: World, partitions: Sequence[TopicPartition]) -> None:
        self.copies: list[Copied] = []
        self.positions = dict.fromkeys(partitions, 0)
        super().__init__(name, world, partitions, self._took)

    def is_at(self, ends: Mapping[TopicPartition, int]) -> bool:
        return all(position >= ends[at] for at, position in self.positions.items())

    def _took(self, record: ConsumerRecord) -> None:
        told = {name: (value or b"").decode() for name, value in record.headers}
        topic, partition, offset = told[REPLAY_ORIGIN].rsplit("-", 2)
        origin = TopicPartition(topic, int(partition)), int(offset)
        self.copies.append(Copied(told[REPLAY_ID], record.topic_partition, record.offset, origin, record.value or b""))

    async def _run(self) -> None:
        consumer = self._consumer
        await consumer.start()
        consumer.assign(list(self._partitions))
        while True:
            for record in await consumer.poll(0.3):
                self._took(record)
            for at in self._partitions:
                try:
                    self.positions[at] = await consumer.position(at, timeout=1.0)
                except TidelogError:
                    break
            await asyncio.sleep(0)
