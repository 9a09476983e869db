"""The world of the simulation's clients: virtual time, and processes that the loop can pause."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidelog.aio import Admin, Consumer, Producer, SinkLedger, SinkWriter
from tidelog.chaos.checkers.history import History
from tidelog.chaos.simulated.faults.cluster_faults import FaultInjector
from tidelog.chaos.simulated.watch.observer import Observer
from tidelog.chaos.simulated.world.clocks import EPOCH_MS
from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.chaos.simulated.world.world import World

T = TypeVar("T")
L = TypeVar("L", SinkLedger, SinkWriter)


class SimulatedProcess:
    """A :class:`~tidelog.chaos.workloads.world.ClientProcess` with its own clock, which may run fast or slow."""

    def __init__(self, name: str, cluster: SimulatedCluster, observer: Observer) -> None:
        self.name = name
        self._cluster = cluster
        self._observer = observer
        self._process = cluster.client_process(name)
        self._clients: list[Producer | Consumer] = []
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def paused(self) -> bool:
        return self._process.paused

    def seams(self) -> dict[str, Any]:
        return self._cluster.seams(self._process)

    def has(self, client: L) -> L:
        return client  # its tasks belong to the process

    def producer(self, **settings: Any) -> Producer:
        made = self._cluster.producer(self._process, **settings)
        self._has(made)
        return made

    def consumer(self, **settings: Any) -> Consumer:
        made = self._cluster.consumer(self._process, **settings)
        self._has(made)
        return made

    def admin(self, **settings: Any) -> Admin:
        return self._cluster.admin(self._process, **settings)

    def _has(self, client: Producer | Consumer) -> None:
        if not self._clients:  # messages do not say which client of a process they are meant for
            self._observer.client(self.name, client._core.cluster.cache)
        self._clients.append(client)

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._cluster.run_in(self._process, work)
        self._tasks.append(task)
        return task

    def pause(self) -> None:
        self._cluster.loop.pause(self._process)

    def resume(self) -> None:
        if self.paused:
            self._cluster.loop.resume(self._process)

    def kill(self) -> None:
        self._cluster.fabric.drop_node(self.name)
        self.pause()  # its remaining tasks never run again

    async def unpaused(self) -> None:
        """Do nothing: its tasks wait by themselves."""

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self.close()

    async def close(self) -> None:
        for client in self._clients:
            await self.run(client.close())


class SimulatedWorld:
    """The :class:`~tidelog.chaos.workloads.world.World` of a simulation's clients."""

    scale = 1

    def __init__(
        self, world: World, history: History, injector: FaultInjector, observer: Observer, rng: random.Random
    ) -> None:
        self.events: Counter[str] = Counter()
        self.history = history
        self.bootstrap = world.cluster.bootstrap
        self._world = world
        self._injector = injector
        self._observer = observer
        self._rng = rng
        self._loop = world.cluster.loop

    @property
    def damaged(self) -> bool:
        return bool(self._world.cluster.rotten)

    def now(self) -> float:
        return self._loop.now

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._world.now_s * 1000)

    def rng(self, name: str) -> random.Random:
        return random.Random(self._rng.random())

    def process(self, name: str) -> SimulatedProcess:
        return SimulatedProcess(name, self._world.cluster, self._observer)

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        self._loop.at(self._loop.now + seconds, action, context=contextvars.Context())

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        contextvars.Context().run(self._injector.later, seconds, action)

    def when_done(self, task: asyncio.Task[Any], action: Callable[[], object]) -> None:
        task.add_done_callback(lambda _: action(), context=contextvars.Context())

    def pause_s(self, rng: random.Random, records: int, by_chance: Callable[[], float]) -> float:
        return by_chance()

    def may_send(self) -> bool:
        return True

    def note(self, text: str) -> None:
        self._world.note(text)

    def violated(self, text: str) -> None:
        self._world.violated(text)
