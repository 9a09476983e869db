"""One simulated run of a whole cluster with clients, from start to judgement."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.chaos.checkers.anomalies.log import violations as history_violations
from tidelog.chaos.checkers.history import Circumstances, History
from tidelog.chaos.simulated.faults.cluster_faults import FaultInjector
from tidelog.chaos.simulated.faults.fault_mix import CLOCK_JUMPS_MS
from tidelog.chaos.simulated.simulation.client_world import SimulatedWorld
from tidelog.chaos.simulated.watch.observer import Observer
from tidelog.chaos.simulated.world.raw_producer import RawProducer
from tidelog.chaos.simulated.world.scenario import Fault, where
from tidelog.chaos.simulated.world.work import Work
from tidelog.chaos.simulated.world.world import World
from tidelog.chaos.workloads.appending import Appender
from tidelog.chaos.workloads.reading import Reader
from tidelog.chaos.workloads.world import partitions_of
from tidelog.client.errors import TidelogError
from tidelog.model.ids import TopicPartition

TOPIC: Final = "orders"
SETTLE_S: Final = 40.0
"""Bound of each wait after everything was repaired."""
WAITS_S: Final = 10.0
"""Bound after which brokers may hold nothing for clients that are gone."""


@dataclass(frozen=True)
class Setting:
    """The settings that distinguish one cluster scenario from another."""

    name: str
    about: str
    kinds: Mapping[str, int]
    events: frozenset[str]
    nodes: int = 3
    controllers: int | None = None
    partitions: int = 2
    replication_factor: int = 3
    replication_factors: tuple[int, ...] = ()
    """If given, each run uses one of them."""
    faults: int = 12
    seconds: float = 60.0
    log_dirs: int = 1
    drift: float = 0.02
    producers: int = 2
    hasty: int = 0
    """Producers with acks=1, which get no guarantee."""
    raw: int = 0
    """Producers that write their own frames."""
    consumers: int = 1
    victim_only: tuple[str, ...] = ()
    plots: tuple[str, ...] = ()
    """Names of :data:`~tidelog.chaos.simulated.faults.fault_plots.PLOTS`: more than half of all runs have some of
    one."""
    config: Mapping[str, str] = field(default_factory=dict)
    topic_config: Mapping[str, str] = field(default_factory=dict)
    producer_config: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Settings of producers; each producer in each run chooses among the values."""
    work: Callable[[Simulation], Work] | None = None
    """Makes further clients, of another kind, and their judges."""
    targets: tuple[str, ...] = ()
    """Further targets for faults, by role."""
    clock_jumps_ms: tuple[int, ...] = CLOCK_JUMPS_MS
    """By how much the wall clock of a node may jump at a time."""


Body = Callable[["Simulation"], Awaitable[None]]
"""A scenario's own actions while clients work and faults happen."""


class Simulation:
    """A cluster with a topic, clients that work on it, a schedule of faults, and everything that judges them.

    ``cluster`` is what a custom scenario acts on: ``kill``, ``cut``, ``wait_for_leader`` and the like.
    """

    def __init__(self, world: World, setting: Setting, schedule: Sequence[Fault]) -> None:
        self.world = world
        self.cluster = world.cluster
        self.setting = setting
        self.schedule = schedule
        self.rng = random.Random(world.rng.random())
        self.history = History()
        self.injector = FaultInjector(self.cluster, TOPIC, world.note)
        self.injector.clients.append(self._client_fault)
        self.replication_factor = random.Random(f"factor-{world.seed}").choice(
            setting.replication_factors or (setting.replication_factor,)
        )
        self.topics = {TOPIC: setting.partitions}
        """Topics that producers write to, and their partitions as far as clients know them."""
        self.observer = Observer(world, synced=setting.topic_config.get("flush.messages") == "1")
        self.observer.moment = self.injector.look
        self.observer.clients_stand = lambda: any(sender.process.paused for sender in self.senders)
        self.senders: list[Appender] = []
        self.raw: list[RawProducer] = []
        self.hasty: set[str] = set()
        self.readers: list[Reader] = []
        self.ended_senders: list[Appender] = []
        self.ended_s = 0.0
        self.raised: str | None = None
        """Class of the first exception that the scenario raised."""
        self._begun = 0
        self.clients = SimulatedWorld(world, self.history, self.injector, self.observer, self.rng)
        self.work = None if setting.work is None else setting.work(self)

    @property
    def operations(self) -> int:
        senders = sum(client.operations for client in (*self.senders, *self.ended_senders))
        senders += sum(client.operations for client in self.raw)
        works = 0 if self.work is None else self.work.operations
        return senders + works + sum(client.operations for client in self.readers)

    @property
    def events(self) -> Counter[str]:
        """Return the events of the cluster and its clients."""
        return self.observer.events + (Counter() if self.work is None else self.work.events)

    @property
    def topic(self) -> str:
        """Return the topic that clients work on."""
        return TOPIC

    @property
    def now_s(self) -> float:
        """Virtual seconds since the start of the run, as shown in the trace."""
        return self.world.now_s

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    def violation(self, text: str) -> None:
        """Report something that must never happen: the run continues, and counts as failed."""
        self.world.violated(text)

    async def run(self, body: Body | None = None) -> None:
        """Start everything, inject the faults while ``body`` runs, repair everything and judge.

        An exception is a violation. An exception of ``body`` ends only ``body``: its effects on the cluster are judged
        all the same.
        """
        try:
            await self._run(body)
        except Exception as error:
            self._raised("run", error)
        self.ended_s = self.world.now_s

    def _raised(self, what: str, error: Exception) -> None:
        self.raised = self.raised or type(error).__name__
        self.violation(f"{what} raised {where(error)}")

    async def _run(self, body: Body | None) -> None:
        setting, world = self.setting, self.world
        await self.cluster.start()
        await self.cluster.create_topic(TOPIC, setting.partitions, self.replication_factor, setting.topic_config)
        self.observer.begin()
        for number in range(setting.producers + setting.hasty):
            self.senders.append(self._sender(hasty=number >= setting.producers))
        for number in range(setting.raw):
            rng = random.Random(self.rng.random())
            self.raw.append(
                RawProducer(f"raw{number}", self.cluster, TOPIC, setting.partitions, self.history, rng, world.violated)
            )
        for number in range(setting.consumers):
            rack = {"client_rack": self.cluster.rack_of(number % setting.nodes + 1)} if self.cluster.in_racks else {}
            self._read(f"c{number}", fetch_max_wait_ms=500, **rack)
        if self.work is not None:
            await self.work.begin()
        began = self.cluster.loop.now
        dealing = asyncio.ensure_future(self.injector.deal(self.schedule, began))
        if body is not None:
            try:
                await body(self)
            except Exception as error:
                self._raised("scenario", error)
        await dealing
        if (left := began + setting.seconds - self.cluster.loop.now) > 0:
            await asyncio.sleep(left)
        if settled := await self._settle():
            await self._judge()
        self.observer.end()
        for reader in self.readers:
            await reader.finish()
        if self.work is not None:
            await self.work.finish()
        if settled:
            await self._nothing_waits()
        gc.collect()  # so that the loop learns of exceptions that nobody retrieved

    def grow(self, topic: str, partitions: int) -> None:
        """Let producers write to a new topic, or to partitions that were added."""
        self.topics[topic] = partitions
        for sender in self.senders:
            sender.partitions = partitions_of(self.topics)

    def _read(self, name: str, **settings: Any) -> None:
        partitions = partitions_of({TOPIC: self.setting.partitions})
        self.readers.append(
            Reader(
                name,
                self.clients,
                partitions,
                committed=False,
                seeks=True,
                asks=True,
                poll_s=1.0,
                settings=settings,
            )
        )

    def _sender(self, *, hasty: bool) -> Appender:
        rng = self.rng
        settings: dict[str, Any] = {
            "compression_type": rng.choice(("none", "lz4", "none")),
            "linger_ms": rng.choice((0, 5, 50)),
            "batch_size": rng.choice((300, 16_384)),
            "request_timeout_ms": rng.choice((1_000, 3_000)),
            "delivery_timeout_ms": rng.choice((4_000, 60_000, 60_000)),
            "max_block_ms": 20_000,
        }
        settings |= {name: rng.choice(values) for name, values in self.setting.producer_config.items()}
        self._begun += 1
        name = f"p{self._begun}"
        if hasty:
            settings |= {"acks": 1, "enable_idempotence": False}
            self.hasty.add(name)
        pause = rng.choice(((0.1, 1.5), (0.5, 2.0)))
        told = self.observer.acknowledged
        return Appender(name, self.clients, partitions_of(self.topics), settings, pause_s=pause, acknowledged=told)

    def _client_fault(self, kind: str, arguments: tuple[Any, ...]) -> bool:
        at = arguments[0] % len(self.senders)
        sender = self.senders[at]
        if sender.process.paused:
            return False
        if kind == "kill":
            sender.kill()
            self.ended_senders.append(sender)
            self.senders[at] = self._sender(hasty=not sender.durable)
            return True
        sender.process.pause()

        def resume() -> None:
            if sender in self.senders:
                sender.process.resume()

        self.injector.later(arguments[1], resume)
        return True

    # --- the end ------------------------------------------------------------------------------------

    async def _settle(self) -> bool:
        """Undo every fault and wait until everything is whole. Return whether it became so."""
        cluster, world = self.cluster, self.world
        world.note("mend everything")
        await self.injector.over()
        cluster.mend()
        began = cluster.loop.now
        steps = (
            ("every ISR whole", self._isr_whole),
            ("every producer heard again", lambda: self._heard_since(began)),
        )
        try:
            await cluster.wait_ready(SETTLE_S)
            world.note("all nodes ready")
            for what, condition in steps:
                await cluster.wait_for(condition, what, SETTLE_S)
                world.note(what)
        except (TimeoutError, AssertionError) as error:
            world.violated(f"no progress after healing: {error}{self.observer.standing()}")
            return False
        for sender in self.senders:
            sender.stop()
            await asyncio.wait([sender.task])
        for raw in self.raw:
            try:
                await raw.finish(SETTLE_S)
            except TimeoutError:
                world.violated(f"{raw.name} did not end{self.observer.standing()}")
        if self.work is not None:
            try:
                await self.work.settle(SETTLE_S)
            except (TimeoutError, AssertionError) as error:
                world.violated(f"no progress after healing: {error}{self.observer.standing()}")
                return False
        return True

    def _without_idempotence(self) -> frozenset[str]:
        """Return the producers without a guarantee for retries: none stays away for longer than leaders remember it."""
        if "producer.id.expiration.ms" not in self.setting.config:
            return frozenset(self.hasty)
        return frozenset(sender.name for sender in (*self.senders, *self.ended_senders))

    def _failures(self) -> list[tuple[str, BaseException | None]]:
        ends = [(client.name, client.failure()) for client in self.senders]
        ends += [(client.name, client.failure()) for client in self.readers]
        ends += [] if self.work is None else self.work.failures()
        return [(name, error) for name, error in ends if error is not None]

    def _isr_whole(self) -> bool:
        """Return whether all replicas are in sync, and no partition is without a leader."""
        cluster = self.cluster
        if TOPIC not in cluster.image.topic_ids or cluster.offline_replicas():
            return False
        return all(
            len(found.isr) == len(found.replicas) and found.leader in cluster.nodes
            for topic in cluster.image.topics.values()
            for found in topic.partitions.values()
        )

    def _heard_since(self, began: float) -> bool:
        return all(sender.acknowledged_s > began for sender in self.senders)

    async def _judge(self) -> None:
        cluster, world = self.cluster, self.world
        for name, error in self._failures():
            world.violated(f"{name} ended by itself: {error!r}")
        try:
            await cluster.wait_for(self.observer.replicas_level, "replicas level", SETTLE_S)
        except (TimeoutError, AssertionError) as error:
            world.violated(f"{error}{self.observer.standing()}")
            return
        ends = self.observer.log_ends()
        if self.readers:
            # A new observer that receives everything from the start, and learns from the cluster where that is.
            self._read("last", auto_offset_reset="earliest")
        try:
            await cluster.wait_for(
                lambda: all(r.refused or r.is_at(ends) for r in self.readers),
                "every consumer at the end",
                SETTLE_S,
            )
        except (TimeoutError, AssertionError) as error:
            positions = {reader.name: reader.positions for reader in self.readers}
            world.violated(f"{error}: positions {positions}, ends {ends}{self.observer.standing()}")
        for reader in self.readers:
            await self._judge_ends_told(reader, ends)
        self.observer.judge_progress(self.history)
        held = self.observer.judge_end()
        final = {at: records for at, records in held.items() if at.topic in self.topics}
        circumstances = Circumstances(without_idempotence=self._without_idempotence())
        for text in history_violations(self.history, final, circumstances):
            world.violated(text)
        if self.work is not None:
            self.work.judge()
        for node_id, text in cluster.refused:
            world.violated(f"node {node_id} refused to start: {text}")

    async def _judge_ends_told(self, reader: Reader, ends: Mapping[TopicPartition, int]) -> None:
        """Judge that each consumer gets the true log ends, now that everything is committed."""
        expected = {at: ends[at] for at in reader.positions}
        try:
            told = await reader.process.run(reader.consumer.end_offsets(list(expected), timeout=SETTLE_S))
        except TidelogError as error:
            self.world.violated(f"{reader.name}: asked for ends: {error!r}")
        else:
            if told != expected:
                self.world.violated(f"{reader.name} got the ends {told}, the logs hold {expected}")

    async def _nothing_waits(self) -> None:
        """Judge that brokers hold nothing for clients, now that the clients are gone."""
        try:
            await self.cluster.wait_for(lambda: not self.observer.waiting(), "nothing left", WAITS_S)
        except TimeoutError:
            for text in self.observer.waiting():
                self.world.violated(f"left after the clients: {text}")
