"""A compacted topic in a simulated cluster: its writers and readers, and the required work of its cleaners.

When all is repaired, cleaners must remove what they can within a bound.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Final

from tidelog.chaos.checkers.compaction import CompactionRules, sure_retention_ms
from tidelog.chaos.checkers.keyed_history import KeyedHistory, KeyedWrite, ReadRecord, Scan, final_scans
from tidelog.chaos.simulated.watch.compaction import AWAY_MS
from tidelog.chaos.simulated.watch.observer import SAMPLE_S
from tidelog.chaos.workloads.keyed import KeyedReader, KeyedWriter
from tidelog.chaos.workloads.world import partitions_of
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

WRITERS: Final = 2
READERS: Final = 2


class KeyedWork:
    """Writers and readers of the run's topic, which is compacted."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        rng = random.Random(f"keys-{sim.world.seed}")
        self._keys = [b"k%d" % number for number in range(rng.choice((3, 12, 40)))]
        self._rules = CompactionRules(
            delete_retention_ms=int(sim.setting.topic_config["delete.retention.ms"]), away_ms=AWAY_MS
        )
        self._partitions = partitions_of({sim.topic: sim.setting.partitions})
        self.writes: list[KeyedWrite] = []
        self.scans: list[Scan] = []
        self._writers: list[KeyedWriter] = []
        self._readers: list[KeyedReader] = []

    @property
    def operations(self) -> int:
        return sum(writer.operations for writer in self._writers) + len(self.scans)

    @property
    def events(self) -> Counter[str]:
        cleaned = sum(scan.records[0].offset > 0 for scan in self.scans if scan.records)
        return Counter({"scan": len(self.scans), "scan-of-a-cleaned-log": cleaned})

    async def begin(self) -> None:
        sim, partitions = self._sim, self._partitions
        for number in range(WRITERS):
            self._writers.append(
                KeyedWriter(
                    f"w{number}", sim.clients, partitions, self._keys, self.writes.append, sim.observer.acknowledged
                )
            )
        for number in range(READERS):
            self._readers.append(KeyedReader(f"r{number}", sim.clients, partitions, self.scans.append))

    async def settle(self, bound_s: float) -> None:
        cluster, began = self._sim.cluster, self._sim.cluster.loop.now
        await cluster.wait_for(lambda: all(w.acknowledged_s > began for w in self._writers), "writers heard", bound_s)
        for writer in self._writers:
            writer.stop()
            await asyncio.wait([writer.task])
        due = len(self.scans) + len(self._partitions) * READERS
        await cluster.wait_for(lambda: len(self.scans) >= due, "readers through", bound_s)
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
        retention_s = sure_retention_ms(self._rules, sim.cluster.clock_spread_ms) / 1000
        history = KeyedHistory(self.writes, retention_s, ends)
        for key, replicas in sim.observer.compacted.kept.items():
            if key.topic_id != topic.topic_id:
                continue
            at = TopicPartition(sim.topic, key.partition)
            for records in replicas.values():
                read = [ReadRecord(each.offset, each.timestamp, each.key, each.value, each.mark) for each in records]
                self.scans += final_scans({at: read}, ends)
        for scan in self.scans:
            for text in history.judge(scan):
                sim.world.violated(text)

    async def finish(self) -> None:
        for reader in self._readers:
            await reader.finish()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [(client.name, client.failure()) for client in (*self._writers, *self._readers)]
