"""Replays in a simulated cluster: programs copy a topic that is written in transactions all the while, and die, stand
still and come back, two at a time on one copy too."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Final

from tidelog.chaos.checkers.patterns.replays import Replayed, judge_replays
from tidelog.chaos.checkers.transactions import visible
from tidelog.chaos.simulated.watch.transactions import led_logs
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.replays import CopyReader, ReplayBooks, Replayer
from tidelog.chaos.workloads.transactions import MANY, PARTITIONS, TransactionClients, Writer
from tidelog.chaos.workloads.world import partitions_of
from tidelog.model.ids import TopicPartition
from tidelog.model.names import GROUP_OFFSETS_TOPIC

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

TARGETS: Final = {"copies": PARTITIONS, "gathered": 1}
SLOTS: Final = {"r0": "copies", "r1": "gathered"}


class ReplayWork(TransactionClients):
    """The writers of the source, the programs that copy it, and a reader of the copies."""

    def __init__(self, sim: Simulation) -> None:
        rng = random.Random(f"replays-{sim.world.seed}")
        self.books = ReplayBooks(MANY, SLOTS, random.Random(rng.random()))
        writers = dict.fromkeys(("w0", "w1"), Writer)
        super().__init__(sim.clients, rng, {**dict.fromkeys(SLOTS, self._replayer), **writers}, prepares=0.0)
        self._sim = sim
        self._ends: dict[str, dict[TopicPartition, int]] = {}
        leader_of, roster = sim.cluster.leader_of, self.roster
        sim.injector.roles |= {
            "coordinator": lambda: leader_of(GROUP_OFFSETS_TOPIC, 0),
            "source-leader": lambda: leader_of(MANY, 0),
            "target-leader": lambda: leader_of("copies", 0),
            "transactions": lambda: leader_of("__transaction_state", 0),
        }
        sim.injector.acts |= {
            "kill-producer": lambda number, seconds: roster.kill(int(number) % len(SLOTS), seconds),
            "pause-producer": lambda number, seconds: roster.pause(int(number) % len(SLOTS), seconds),
            "second-producer": lambda number, seconds: roster.second(int(number) % len(SLOTS), seconds),
        }

    def _replayer(self, slot: str, name: str, clients: TransactionClients) -> Incarnation:
        return Replayer(slot, name, self.world, self.books)

    @property
    def operations(self) -> int:
        return self.begun_count + self.events["copied"]

    @property
    def events(self) -> Counter[str]:
        return self.world.events

    async def begin(self) -> None:
        sim = self._sim
        for topic, count in {MANY: PARTITIONS, **TARGETS}.items():
            await sim.cluster.create_topic(topic, count, sim.replication_factor, {})
        self._reader = CopyReader("copies-reader", sim.clients, partitions_of(TARGETS))
        self.roster.begin()

    async def settle(self, bound_s: float) -> None:
        cluster, books = self._sim.cluster, self.books
        before = dict(books.numbers)
        await cluster.wait_for(
            lambda: all(books.numbers[slot] > before[slot] for slot in SLOTS), "another copy of each finished", bound_s
        )
        self.roster.stop()
        await self.roster.ended(bound_s)
        self.roster.kill_all()
        ends = {at: end for at, end in self._sim.observer.log_ends().items() if at.topic in TARGETS}
        await cluster.wait_for(lambda: self._reader.is_at(ends), "all copies read", bound_s)
        async with cluster.admin() as admin:
            for replay_id in books.finished:
                found = await admin.list_consumer_group_offsets(f"replay.{replay_id}", timeout=10)
                self._ends[replay_id] = {at: int(given.metadata.split()[0]) for at, given in found.items() if given}
                for at, given in found.items():
                    if given is not None and given.offset != self._ends[replay_id][at]:
                        self.world.violated(f"replay: {replay_id} was finished at {given} of {at}")

    def judge(self) -> None:
        source = {at: visible(log) for at, log in led_logs(self._sim.cluster, (MANY,)).items()}
        replays = [
            Replayed(replay_id, SLOTS[slot], self.books.starts[replay_id], self._ends[replay_id], slot == "r0")
            for replay_id, slot in self.books.finished.items()
        ]
        found = judge_replays(source, replays, self._reader.copies)
        for _, text in zip(range(20), found, strict=False):
            self.world.violated(text)

    async def finish(self) -> None:
        self.roster.kill_all()
        await self._reader.finish()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [*self.roster.failures(), (self._reader.name, self._reader.failure())]
