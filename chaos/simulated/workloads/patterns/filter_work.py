"""Readers with a header filter in a simulated cluster: of a topic that stays, one that expires and one that is
compacted, whose segments roll and are indexed all the time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from tidelog.chaos.checkers.history import Sent
from tidelog.chaos.checkers.patterns.filters import TAG, FilteredReading, judge_filters
from tidelog.chaos.simulated.watch.transactions import led_logs
from tidelog.chaos.simulated.world.log_reading import Undisturbed
from tidelog.chaos.workloads.filtered import FilteredReader, TaggedWriter
from tidelog.chaos.workloads.world import partitions_of
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.records.header_filter import HeaderMask, header_sum

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

EXPIRING: Final = "expiring"
COMPACTED: Final = "compacted"
CONFIGS: Final = {
    EXPIRING: {"retention.ms": "4000"},
    COMPACTED: {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "500",
    },
}
NOTHING: Final = HeaderMask(header_sum(TAG), 0)
PAGES: Final = 8
WRITERS: Final = 2
WANTED: Final = ((b"rare",), (b"seldom", None), (b"nobody",))
"""Each of these is the filter of one reader."""


class FilterWork:
    """Writers of tagged records and readers with a filter. The topic that stays is the run's own."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._topics = {sim.topic: sim.setting.partitions, EXPIRING: 1, COMPACTED: 1}
        self._sends: list[Sent] = []
        self._writers: list[TaggedWriter] = []
        self._readers: list[FilteredReader] = []
        self._indexed = 0
        self._expired = 0
        sim.cluster.died.append(self._died)

    @property
    def operations(self) -> int:
        return sum(writer.operations for writer in self._writers) + sum(reader.polls for reader in self._readers)

    @property
    def events(self) -> Counter[str]:
        wanted = sum(len(reading.records) for reading in self._readings)
        return Counter({"indexed": self._indexed, "expired": self._expired, "wanted": wanted})

    @property
    def _readings(self) -> list[FilteredReading]:
        return [reading for reader in self._readers for reading in reader.readings]

    def _died(self, node_id: NodeId) -> None:
        """Count the indexes of a process before it is gone."""
        cluster = self._sim.cluster
        node = cluster.nodes.get(node_id)
        if node is None or node.broker is None:
            return
        for replica in node.broker.replicas.replicas.values():
            log = replica.partition.log
            if replica.partition.state.topic not in self._topics or log.closed:
                continue
            start = log.log_start_offset
            with Undisturbed(cluster.hosts[node_id].files):
                passed = log.next_wanted(start, log.log_end_offset, NOTHING, PAGES)
            self._indexed += passed.start > start
            self._expired += start > 0

    def _told(self, sent: Sent) -> None:
        self._sends.append(sent)
        if sent.partition.topic == self._sim.topic:
            self._sim.history.send(sent)

    async def begin(self) -> None:
        sim = self._sim
        for topic, config in CONFIGS.items():
            await sim.cluster.create_topic(
                topic, self._topics[topic], sim.replication_factor, {**sim.setting.topic_config, **config}
            )
        partitions = partitions_of(self._topics)
        for number in range(WRITERS):
            self._writers.append(
                TaggedWriter(f"t{number}", sim.clients, partitions, self._told, sim.observer.acknowledged)
            )
        for number in range(len(WANTED)):
            self._read(f"f{number}", number)

    def _read(self, name: str, number: int) -> None:
        sim = self._sim
        level = sim.rng.choice(("read_committed", "read_uncommitted"))
        settings = {"isolation_level": level}
        if sim.rng.random() < 0.5:
            settings["client_rack"] = sim.cluster.rack_of(number % sim.setting.nodes + 1)
        self._readers.append(FilteredReader(name, sim.clients, partitions_of(self._topics), WANTED[number], settings))

    async def settle(self, bound_s: float) -> None:
        cluster, began = self._sim.cluster, self._sim.cluster.loop.now
        await cluster.wait_for(lambda: all(w.acknowledged_s > began for w in self._writers), "writers heard", bound_s)
        for writer in self._writers:
            writer.stop()
            await asyncio.wait([writer.task])
        for number in range(len(WANTED)):
            self._read(f"last{number}", number)
        ends = {at: end for at, end in self._sim.observer.log_ends().items() if at.topic in self._topics}
        await cluster.wait_for(
            lambda: all(reader.is_at(ends) for reader in self._readers),
            "every reader with a filter at the end",
            bound_s,
        )

    def judge(self) -> None:
        sim = self._sim
        final = {
            at: [record for entry in log for record in entry.records]
            for at, log in led_logs(sim.cluster, self._topics).items()
        }
        sends = [*self._sends, *(each for each in sim.history.sends if not each.producer.startswith("t"))]
        found = judge_filters(sends, self._readings, final, (TopicPartition(COMPACTED, 0),))
        for _, text in zip(range(20), found, strict=False):
            sim.world.violated(text)

    async def finish(self) -> None:
        for reader in self._readers:
            await reader.finish()
        for node_id in self._sim.cluster.nodes:
            self._died(node_id)
        self._sim.cluster.died.remove(self._died)

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [(client.name, client.failure()) for client in (*self._writers, *self._readers)]
