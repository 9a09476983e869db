"""Clients of a compacted topic: producers that write few keys over and over, readers that begin at log start.

A reader goes through a partition from its start to where it ended when the reader began, again and again;
each time it must end with the latest value of every key. When all is mended, cleaners must have taken what
they can within a bound.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.checkers.keyed_history import KeyedHistory, KeyedWrite, Passage, ReadRecord, final_passages
from tidelog.chaos.sim.clocks import EPOCH_MS
from tidelog.chaos.sim.compaction_watch import mark_of
from tidelog.chaos.sim.observer import SAMPLE_S
from tidelog.client.errors import OffsetOutOfRangeError, TidelogError
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.aio import Consumer, Producer
    from tidelog.chaos.sim.simulation import Simulation

WRITERS: Final = 2
READERS: Final = 2
TOMBSTONES: Final = 0.2
"""The share of writes that delete a key."""
STALLED_S: Final = 4.0
"""A passage that gets nothing for so long is given up, and begun anew."""


class KeyedWork:
    """Writers and readers of the run's topic, which is compacted."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        rng = random.Random(f"keys-{sim.world.seed}")
        self._keys = [b"k%d" % number for number in range(rng.choice((3, 12, 40)))]
        self._retention_s = int(sim.setting.topic_config["delete.retention.ms"]) / 1000
        self.writes: list[KeyedWrite] = []
        self.passages: list[Passage] = []
        self._writers: list[_Writer] = []
        self._readers: list[_Reader] = []

    @property
    def operations(self) -> int:
        return sum(writer.number for writer in self._writers) + len(self.passages)

    @property
    def events(self) -> Counter[str]:
        cleaned = sum(passage.records[0].offset > 0 for passage in self.passages if passage.records)
        return Counter({"passage": len(self.passages), "passage-of-what-is-left": cleaned})

    async def begin(self) -> None:
        for number in range(WRITERS):
            self._writers.append(_Writer(f"w{number}", self._sim, self._keys, self.writes))
        for number in range(READERS):
            self._readers.append(_Reader(f"r{number}", self._sim, self.passages))

    async def settle(self, bound_s: float) -> None:
        cluster, began = self._sim.cluster, self._sim.cluster.loop.now
        await cluster.wait_for(lambda: all(w.acknowledged_s > began for w in self._writers), "writers heard", bound_s)
        for writer in self._writers:
            await writer.finish(bound_s)
        seen = len(self.passages)
        places = self._sim.setting.partitions * READERS
        await cluster.wait_for(lambda: len(self.passages) >= seen + places, "readers through", bound_s)
        until = cluster.loop.now + bound_s
        while left := self._sim.observer.left_to_clean():
            if cluster.loop.now > until:
                raise TimeoutError(f"expected within {bound_s:g} s: every log cleaned; left are {left}")
            await asyncio.sleep(SAMPLE_S)

    def judge(self) -> None:
        sim = self._sim
        ends = {at: end for at, end in sim.observer.log_ends().items() if at.topic == sim.topic}
        topic = sim.cluster.image.topic(sim.topic)
        assert topic is not None
        history = KeyedHistory(self.writes, self._retention_s, ends)
        for key, replicas in sim.observer.compacted.kept.items():
            if key.topic_id != topic.topic_id:
                continue
            at = TopicPartition(sim.topic, key.partition)
            for records in replicas.values():
                read = [ReadRecord(each.offset, each.timestamp, each.key, each.value, each.mark) for each in records]
                self.passages += final_passages({at: read}, ends)
        for passage in self.passages:
            for text in history.judge(passage):
                sim.world.violated(text)

    async def finish(self) -> None:
        for reader in self._readers:
            await reader.finish()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        clients: list[_Writer | _Reader] = [*self._writers, *self._readers]
        return [(client.name, client.failure()) for client in clients]


class _Writer:
    """An idempotent producer that writes keys over and over, and deletes some."""

    def __init__(self, name: str, sim: Simulation, keys: list[bytes], writes: list[KeyedWrite]) -> None:
        self.name = name
        self.number = 0
        self.acknowledged_s = 0.0
        self._sim = sim
        self._cluster = sim.cluster
        self._keys = keys
        self._writes = writes
        self._rng = rng = random.Random(sim.rng.random())
        self._stopping = False
        self._process = sim.cluster.client_process(name)
        settings: dict[str, Any] = {
            "compression_type": rng.choice(("none", "lz4", "gzip")),
            "linger_ms": rng.choice((0, 20, 100)),
            "request_timeout_ms": rng.choice((1_000, 3_000)),
            "delivery_timeout_ms": rng.choice((4_000, 60_000)),
            "max_block_ms": 20_000,
        }
        self._producer: Producer = sim.cluster.producer(self._process, **settings)
        sim.observer.client(name, self._producer._core.cluster.cache)
        self._task = sim.cluster.run_in(self._process, self._run())

    async def _run(self) -> None:
        rng = self._rng
        await self._producer.start()
        while not self._stopping:
            for _ in range(rng.choice((1, 2, 5))):
                await self._write()
            await asyncio.sleep(rng.uniform(0.05, 0.8))

    async def _write(self) -> None:
        rng, sim = self._rng, self._sim
        at = TopicPartition(sim.topic, rng.randrange(sim.setting.partitions))
        mark = b"%s:%d" % (self.name.encode(), self.number)
        self.number += 1
        value = None if rng.random() < TOMBSTONES else mark + b"x" * rng.choice((0, 20, 300))
        timestamp = EPOCH_MS + int(sim.world.now_s * 1000)
        key = self._keys[int(len(self._keys) * rng.random() ** 3)]  # some are written often, others seldom
        write = KeyedWrite(mark, at, key, value, timestamp, Outcome.UNKNOWN)
        place = len(self._writes)
        self._writes.append(write)
        try:
            await self._producer.send(
                at.topic,
                value,
                write.key,
                headers=[("mark", mark)],
                partition=at.partition,
                timestamp_ms=timestamp,
                on_delivery=self._heard(place),
            )
        except TidelogError:
            # Raised before the record was taken: it will never be sent.
            self._writes[place] = write._replace(outcome=Outcome.FAILED)

    def _heard(self, place: int) -> Callable[[Any, BaseException | None], None]:
        def heard(metadata: Any, error: BaseException | None) -> None:
            if error is None:
                self.acknowledged_s = self._cluster.loop.now
                write = self._writes[place]
                self._sim.observer.acknowledged(write.partition, metadata.offset)
                self._writes[place] = write._replace(outcome=Outcome.OK, offset=metadata.offset)

        return heard

    async def finish(self, timeout_s: float) -> None:
        self._stopping = True
        await self._task
        await self._cluster.run_in(self._process, self._producer.flush(timeout_s))
        await self._cluster.run_in(self._process, self._producer.close(timeout_s))

    def failure(self) -> BaseException | None:
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None


class _Reader:
    """A consumer that reads one partition after the other from its start to its end."""

    def __init__(self, name: str, sim: Simulation, passages: list[Passage]) -> None:
        self.name = name
        self._sim = sim
        self._cluster = sim.cluster
        self._passages = passages
        self._rng = random.Random(sim.rng.random())
        self._process = sim.cluster.client_process(name)
        self._consumer: Consumer = sim.cluster.consumer(
            self._process, auto_offset_reset="none", fetch_max_wait_ms=300, max_poll_records=self._rng.choice((5, 500))
        )
        sim.observer.client(name, self._consumer._core.cluster.cache)
        self._task = sim.cluster.run_in(self._process, self._run())

    async def _run(self) -> None:
        await self._consumer.start()
        while True:
            for number in range(self._sim.setting.partitions):
                at = TopicPartition(self._sim.topic, number)
                try:
                    await self._pass(at)
                except OffsetOutOfRangeError:
                    continue  # the log was cut, or begins further on: from its start again
                except TidelogError as error:
                    self._sim.world.note(f"{self.name}: {type(error).__name__} at {at}")
            await asyncio.sleep(self._rng.uniform(0.2, 2.0))

    async def _pass(self, at: TopicPartition) -> None:
        consumer, loop = self._consumer, self._cluster.loop
        end = (await consumer.end_offsets([at], timeout=2.0))[at]
        consumer.assign([at])
        consumer.seek(at, 0)
        began = heard = loop.now
        records: list[ReadRecord] = []
        position = 0
        while position < end:
            got = await consumer.poll(0.5)
            records += [ReadRecord(r.offset, r.timestamp, r.key, r.value, mark_of(r.headers)) for r in got]
            behind = await consumer.position(at, timeout=2.0)
            if behind != position:
                position, heard = behind, loop.now
            elif loop.now - heard > STALLED_S:
                return
        self._passages.append(Passage(self.name, at, records, position, loop.now - began))

    async def finish(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._cluster.run_in(self._process, self._consumer.close())

    def failure(self) -> BaseException | None:
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None
