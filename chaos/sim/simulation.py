"""One simulated run of a whole cluster with clients: from its start to its judgement."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.chaos.checkers.history import Circumstances, History
from tidelog.chaos.checkers.log_anomalies import violations as history_violations
from tidelog.chaos.sim.cluster_faults import FaultHand
from tidelog.chaos.sim.observer import Observer
from tidelog.chaos.sim.raw_producer import RawProducer
from tidelog.chaos.sim.scenario import Fault
from tidelog.chaos.sim.work import Work
from tidelog.chaos.sim.workload import ReadingClient, SendingClient
from tidelog.chaos.sim.world import World
from tidelog.client.errors import TidelogError

TOPIC: Final = "orders"
SETTLE_S: Final = 40.0
"""Bound of each wait after everything was mended."""


@dataclass(frozen=True)
class Setting:
    """What sets one cluster scenario apart from another."""

    name: str
    about: str
    kinds: Mapping[str, int]
    events: frozenset[str]
    nodes: int = 3
    controllers: int | None = None
    partitions: int = 2
    replication_factor: int = 3
    replication_factors: tuple[int, ...] = ()
    """Where given, each run takes one of them."""
    faults: int = 12
    seconds: float = 60.0
    log_dirs: int = 1
    drift: float = 0.02
    producers: int = 2
    hasty: int = 0
    """Producers with acks=1, who are promised nothing."""
    raw: int = 0
    """Producers that write their own frames."""
    consumers: int = 1
    victim_only: tuple[str, ...] = ()
    plots: tuple[str, ...] = ()
    """Names of :data:`~tidelog.chaos.sim.fault_plots.PLOTS`: more than half of all runs have some of one."""
    config: Mapping[str, str] = field(default_factory=dict)
    topic_config: Mapping[str, str] = field(default_factory=dict)
    producer_config: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Settings of producers; each run and producer chooses among the values."""
    work: Callable[[Simulation], Work] | None = None
    """Makes further clients, of another kind, and what judges them."""
    targets: tuple[str, ...] = ()
    """Further targets of faults, by role."""


Body = Callable[["Simulation"], Awaitable[None]]
"""What a scenario of its own does while clients work and faults happen."""


class Simulation:
    """A cluster with a topic, clients at work on it, a schedule of faults, and everything that judges them.

    ``cluster`` is what a scenario of its own acts on: ``kill``, ``cut``, ``wait_for_leader`` and the like.
    """

    def __init__(self, world: World, setting: Setting, schedule: Sequence[Fault]) -> None:
        self.world = world
        self.cluster = world.cluster
        self.setting = setting
        self.schedule = schedule
        self.rng = random.Random(world.rng.random())
        self.history = History()
        self.hand = FaultHand(self.cluster, TOPIC, world.note)
        self.hand.clients.append(self._client_fault)
        self.replication_factor = random.Random(f"factor-{world.seed}").choice(
            setting.replication_factors or (setting.replication_factor,)
        )
        self.topics = {TOPIC: setting.partitions}
        """Topics that producers write to, and their partitions as far as clients know of them."""
        self.observer = Observer(world, synced=setting.topic_config.get("flush.messages") == "1")
        self.observer.moment = self.hand.look
        self.observer.clients_stand = lambda: any(sender.process.paused for sender in self.senders)
        self.senders: list[SendingClient] = []
        self.raw: list[RawProducer] = []
        self.hasty: set[str] = set()
        self.readers: list[ReadingClient] = []
        self.ended_senders: list[SendingClient] = []
        self.ended_s = 0.0
        self._lives = 0
        self.work = None if setting.work is None else setting.work(self)

    @property
    def operations(self) -> int:
        senders = sum(client.operations for client in (*self.senders, *self.ended_senders))
        senders += sum(client.operations for client in self.raw)
        works = 0 if self.work is None else self.work.operations
        return senders + works + sum(client.operations for client in self.readers)

    @property
    def events(self) -> Counter[str]:
        """What the cluster and its clients went through."""
        return self.observer.events + (Counter() if self.work is None else self.work.events)

    @property
    def topic(self) -> str:
        """The topic that clients work on."""
        return TOPIC

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    async def run(self, body: Body | None = None) -> None:
        """Start everything, deal out the faults while ``body`` runs, mend everything and judge."""
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
            places = {TOPIC: setting.partitions}
            rng = random.Random(self.rng.random())
            reader = ReadingClient(f"c{number}", self.cluster, places, self.history, rng, {"fetch_max_wait_ms": 500})
            self.observer.client(reader.name, reader.known)
            self.readers.append(reader)
        if self.work is not None:
            await self.work.begin()
        began = self.cluster.loop.now
        dealing = asyncio.ensure_future(self.hand.deal(self.schedule, began))
        if body is not None:
            await body(self)
        await dealing
        if (left := began + setting.seconds - self.cluster.loop.now) > 0:
            await asyncio.sleep(left)
        if await self._settle():
            await self._judge()
        self.observer.end()
        self.ended_s = world.now_s
        for reader in self.readers:
            await reader.finish()
        if self.work is not None:
            await self.work.finish()

    def grow(self, topic: str, partitions: int) -> None:
        """Let producers write to a topic that is new, or has more partitions now."""
        self.topics[topic] = partitions
        for sender in self.senders:
            sender.write_to(self.topics)

    def _sender(self, *, hasty: bool) -> SendingClient:
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
        self._lives += 1
        name = f"p{self._lives}"
        if hasty:
            settings |= {"acks": 1, "enable_idempotence": False}
            self.hasty.add(name)
        pause = rng.choice(((0.1, 1.5), (0.5, 2.0)))
        sender = SendingClient(
            name,
            self.cluster,
            self.topics,
            self.history,
            random.Random(rng.random()),
            pause,
            settings,
            self.observer.acknowledged,
        )
        self.observer.client(name, sender.known)
        return sender

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
        self.cluster.loop.pause(sender.process)

        def resume() -> None:
            if sender in self.senders:
                self.cluster.loop.resume(sender.process)

        self.hand.later(arguments[1], resume)
        return True

    # --- the end ------------------------------------------------------------------------------------

    async def _settle(self) -> bool:
        """Undo every fault and wait until all is whole; whether it became so."""
        cluster, world = self.cluster, self.world
        world.note("mend everything")
        await self.hand.over()
        for node in cluster.node_ids:
            if not cluster.is_up(node) and cluster.hosts[node].starting is None:
                cluster.start_soon(node)
        began = cluster.loop.now
        steps = (
            (cluster.wait_ready(SETTLE_S), "all nodes ready"),
            (cluster.wait_for(self._isr_whole, "every ISR whole", SETTLE_S), "every ISR whole"),
            (cluster.wait_for(lambda: self._heard_since(began), "every producer heard again", SETTLE_S), "producers"),
        )
        for step, what in steps:
            try:
                await step
            except (TimeoutError, AssertionError) as error:
                world.violated(f"no progress after healing, {what}: {error}{self.observer.standing()}")
                for unused, _ in steps:
                    unused.close()
                return False
            world.note(what)
        for sender in self.senders:
            try:
                await sender.finish(SETTLE_S)
            except TidelogError as error:
                world.violated(f"{sender.name} did not end: {error!r}{self.observer.standing()}")
            if sender.undecided:
                world.violated(f"{sender.name}: {sender.undecided} records have no outcome")
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
        """Producers that are promised nothing of retries: none is for longer than leaders remember them."""
        if "producer.id.expiration.ms" not in self.setting.config:
            return frozenset(self.hasty)
        return frozenset(sender.name for sender in (*self.senders, *self.ended_senders))

    def _failures(self) -> list[tuple[str, BaseException | None]]:
        ends = [(client.name, client.failure()) for client in self.senders]
        ends += [(client.name, client.failure()) for client in self.readers]
        ends += [] if self.work is None else self.work.failures()
        return [(name, error) for name, error in ends if error is not None]

    def _isr_whole(self) -> bool:
        topic = self.cluster.image.topic(TOPIC)
        return topic is not None and all(
            len(found.isr) == len(found.replicas) and found.leader in self.cluster.nodes
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
            if reader.refused:
                world.violated(f"{reader.name}: its position was refused: {reader.refused}")
            for text in reader.marks_violated:
                world.violated(text)
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
