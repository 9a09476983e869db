"""Producers and consumers under random faults in real time, and the history of what they were told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidelog.chaos.checkers.history import NO_OFFSET, History, Outcome, Polled, Positioned, Sent
from tidelog.chaos.checkers.replication import VisibleMarkJudge
from tidelog.client.errors import OffsetOutOfRangeError, TidelogError
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.aio import Consumer, Producer

POLL_S: Final = 0.5
_ASKS_ENDS: Final = 0.1
"""How often a consumer asks for the ends of its partitions after a poll."""

Violated = Callable[[str], None]


def partitions_of(counts: Mapping[str, int]) -> list[TopicPartition]:
    """Every partition of topics with so many partitions each."""
    return [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]


class Sending:
    """One idempotent producer that sends bursts of up to 30 records to any partition until it is stopped.

    ``counts`` says how many partitions each topic has, and may grow. ``acknowledged`` is told of each record
    that the cluster took for good.
    """

    def __init__(
        self,
        name: str,
        producer: Producer,
        counts: Mapping[str, int],
        history: History,
        rng: random.Random,
        acknowledged: Callable[[TopicPartition, int], None],
        violated: Violated,
    ) -> None:
        self.name = name
        self.producer = producer
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.stop = False
        self._counts = counts
        self._history = history
        self._rng = rng
        self._acknowledged = acknowledged
        self._violated = violated
        self._under_way: dict[int, tuple[TopicPartition, bytes, float]] = {}
        self._sent = 0

    @property
    def sent(self) -> int:
        return self._sent

    @property
    def acknowledged(self) -> int:
        return self.outcomes[Outcome.OK]

    @property
    def undecided(self) -> int:
        return len(self._under_way)

    async def run(self) -> None:
        """Send until told to stop."""
        rng = self._rng
        while not self.stop:
            for _ in range(rng.randint(1, 30)):
                topic = rng.choice(list(self._counts))
                await self._send(TopicPartition(topic, rng.randrange(self._counts[topic])))
            await asyncio.sleep(rng.uniform(0.0, 0.03))

    async def _send(self, at: TopicPartition) -> None:
        number, self._sent = self._sent, self._sent + 1
        value = b"%s:%d:%s" % (self.name.encode(), number, b"x" * self._rng.randint(0, 200))
        self._under_way[number] = (at, value, asyncio.get_running_loop().time())
        try:
            await self.producer.send(at.topic, value, partition=at.partition, on_delivery=self._heard(number))
        except (TidelogError, ValueError):
            # Raised before the record was taken: it will never be sent.
            self._ended(number, Outcome.FAILED)

    def _heard(self, number: int) -> Callable[[Any, BaseException | None], None]:
        def heard(metadata: Any, error: BaseException | None) -> None:
            if number not in self._under_way:
                self._violated(f"{self.name}:{number} had its outcome already, and now {error or metadata}")
                return
            at = self._under_way[number][0]
            if error is not None:
                self._ended(number, Outcome.UNKNOWN)
                return
            if (metadata.topic, metadata.partition) != at:
                self._violated(f"{self.name}:{number} was sent to {at} and acknowledged at {metadata}")
            self._ended(number, Outcome.OK, metadata.offset)
            self._acknowledged(at, metadata.offset)

        return heard

    def _ended(self, number: int, outcome: Outcome, offset: int = NO_OFFSET) -> None:
        at, value, began = self._under_way.pop(number)
        self.outcomes[outcome] += 1
        ended = asyncio.get_running_loop().time()
        self._history.sends.append(Sent(self.name, number, at, value, outcome, offset, began, ended))

    def leave(self) -> None:
        """Nobody waits any longer: what has no outcome yet is unknown."""
        for number in list(self._under_way):
            self._ended(number, Outcome.UNKNOWN)

    def standing(self) -> list[str]:
        """How the producer stands, for a violation's text."""
        core = self.producer._core
        lines = [f"{self.name}: {self.undecided} undecided, identity {core.sender._identity}"]
        lines += [
            f"{self.name} {queue.topic}-{queue.partition}: pending {len(queue.pending)} in flight "
            f"{len(queue.in_flight)} to {queue.node} (leader "
            f"{core.cluster.cache.leader_of(queue.topic, queue.partition)}) window {len(queue.window)} "
            f"needs epoch {queue.needs_epoch} recovering {queue.recovering} as {queue.producer}"
            for topic in core.accumulator.topics.values()
            for queue in topic.queues.values()
            if queue.pending or queue.in_flight
        ]
        return lines + [f"{self.name} to {node}: {len(link.sent)} sent" for node, link in core.sender._links.items()]


class Reading:
    """One consumer that reads partitions from offset 0 on, and asks for their ends now and then.

    ``seeks``: it says itself where to begin; otherwise its ``auto_offset_reset`` must take it there.
    """

    def __init__(
        self,
        name: str,
        consumer: Consumer,
        partitions: list[TopicPartition],
        history: History,
        rng: random.Random,
        violated: Violated,
        *,
        seeks: bool = True,
    ) -> None:
        self.name = name
        self.consumer = consumer
        self.positions = dict.fromkeys(partitions, 0)
        self.refused = False
        self._history = history
        self._rng = rng
        self._violated = violated
        self._seeks = seeks
        self._marks = VisibleMarkJudge()

    def is_at(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether everything below these ends was read, or can never be."""
        return self.refused or all(position >= ends.get(at, 0) for at, position in self.positions.items())

    async def run(self) -> None:
        """Read until cancelled."""
        loop = asyncio.get_running_loop()
        self.consumer.assign(list(self.positions))
        for at in self.positions:
            if self._seeks:
                self.consumer.seek(at, 0)
            self._history.reads.append(Positioned(self.name, at, 0))
        while True:
            began = loop.time()
            try:
                records = await self.consumer.poll(POLL_S)
            except OffsetOutOfRangeError as error:
                self.refused = True
                self._violated(f"{self.name}: its position was refused: {error}")
                return
            ended = loop.time()
            got: dict[TopicPartition, list[tuple[int, bytes]]] = {}
            for record in records:
                at = TopicPartition(record.topic, record.partition)
                got.setdefault(at, []).append((record.offset, record.value or b""))
            for at, found in got.items():
                self.positions[at] = found[-1][0] + 1
                self._history.reads.append(Polled(self.name, at, found, began, ended))
            if self._rng.random() < _ASKS_ENDS:
                await self._ask_ends()

    async def _ask_ends(self) -> None:
        try:
            ends = await self.consumer.end_offsets(list(self.positions), timeout=POLL_S)
        except TidelogError:
            return
        for at, end in ends.items():
            for text in self._marks.observe(self.name, at, end):
                self._violated(text)
