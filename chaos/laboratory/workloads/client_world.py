"""The world of the laboratory's clients: real time, and one process that all of them share.

A client's process is a network of its own (:mod:`tidelog.chaos.laboratory.links.client_network`). A killed one sends
nothing any more; a paused one neither sends nor receives.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from tidelog.aio import Admin, Consumer, Producer, SinkLedger, SinkWriter
from tidelog.chaos.laboratory.history.history_file import HistoryFile
from tidelog.chaos.laboratory.history.recording import CLIENT_SETTINGS, Budget
from tidelog.chaos.laboratory.links.client_network import Asked, ClientNetwork, secured_network
from tidelog.chaos.workloads.incarnation import Roster
from tidelog.client.config.security import SecuritySettings
from tidelog.proto.transport.network import ConnectionLost

T = TypeVar("T")
C = TypeVar("C", Producer, Consumer, Admin, SinkLedger, SinkWriter)

CLOSE_S: Final = 5.0
UNDISTURBED_S: Final = (5.0, 25.0)
"""From one disturbance of a client to its next, on average."""
STILL_S: Final = (0.5, 3.0, 9.0, 14.0)
"""How long it is paused: also longer than a session, and than a transaction may be open."""
AWAY_S: Final = (0.0, 0.1, 0.5, 3.0, 9.0)
"""How long its slot is empty: also longer than a session."""

ACTS: Final = ("kill", "pause", "second")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment of a workload."""

    bootstrap: str
    """Proxies of the nodes' own listeners."""
    kafka_bootstrap: str
    """Proxies of their Kafka listeners."""
    directory: Path
    """For files that it leaves; the directory exists, and is removed after a run that held."""
    history: HistoryFile
    seed: int
    per_s: float
    """Records per second for all its clients together."""
    budget: Budget
    security: SecuritySettings = field(default_factory=SecuritySettings)
    """How the clients connect and log in."""

    def rng(self, name: str) -> random.Random:
        """Return the randomness of one client; the same for the same seed."""
        return random.Random(f"{name}-{self.seed}")


class LaboratoryProcess:
    """A :class:`~tidelog.chaos.workloads.world.ClientProcess` that is a network. It ends with its first task."""

    def __init__(self, name: str, world: LaboratoryWorld, asked: Asked | None, security: SecuritySettings) -> None:
        self.name = name
        self.paused = False
        self._world = world
        self._network = ClientNetwork(secured_network(**security), asked)
        self._tasks: list[asyncio.Task[Any]] = []
        self._clients: list[Producer | Consumer | Admin | SinkLedger | SinkWriter] = []
        self._killed = False

    def seams(self) -> dict[str, Any]:
        return {"_network": self._network}

    def producer(self, **settings: Any) -> Producer:
        return self.has(Producer(self._world.bootstrap, **self._with(settings)))

    def consumer(self, **settings: Any) -> Consumer:
        return self.has(Consumer(self._world.bootstrap, **self._with(settings)))

    def admin(self, **settings: Any) -> Admin:
        return self.has(Admin(self._world.bootstrap, **self._with(settings)))

    def _with(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {**CLIENT_SETTINGS, **settings, **self.seams()}

    def has(self, client: C) -> C:
        self._clients.append(client)
        return client

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.violated(f"{self.name} ended with {type(error).__name__}: {error}")
        if task is self._tasks[0]:
            self._world.over(self)

    def pause(self) -> None:
        self.paused = True
        self._network.hold()

    def resume(self) -> None:
        self.paused = False
        self._network.resume()

    def kill(self) -> None:
        self._killed = True
        self._network.die()

    async def unpaused(self) -> None:
        try:
            await self._network.unpaused()
        except ConnectionLost:
            return

    async def end(self) -> None:
        """Cancel its remaining tasks, and close its clients: silently if it was killed."""
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        await self.close()

    async def close(self) -> None:
        while self._clients:
            client = self._clients.pop()
            if isinstance(client, Consumer) and self._killed:
                client._core.closing = True
                await client._core.close()
            elif isinstance(client, Admin | SinkLedger):
                await client.close()
            else:
                await client.close(0.0 if self._killed else CLOSE_S)


class LaboratoryWorld:
    """The :class:`~tidelog.chaos.workloads.world.World` of one workload's clients.

    ``clients``: how many share the rate equally. ``asked``: listener to the requests of a process.
    """

    scale = 2

    def __init__(
        self,
        surroundings: Surroundings,
        name: str,
        clients: float = 1,
        budget: Budget | None = None,
        asked: Callable[[str], Asked | None] = lambda process: None,
    ) -> None:
        self.events: Counter[str] = Counter()
        self.history = surroundings.history
        self.bootstrap = surroundings.bootstrap
        self.damaged = False
        self._surroundings = surroundings
        self._name = name
        self._per_s = surroundings.per_s / max(clients, 1)
        self._budget = budget or surroundings.budget
        self._asked = asked
        self._over = False
        self._processes: set[LaboratoryProcess] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._undone: dict[asyncio.TimerHandle, Callable[[], object]] = {}
        """Timers of acts that are still to be undone."""

    def now(self) -> float:
        return self.history.now()

    def wall_ms(self) -> int:
        return int(time.time() * 1000)

    def rng(self, name: str) -> random.Random:
        return self._surroundings.rng(f"{self._name}-{name}")

    def process(self, name: str) -> LaboratoryProcess:
        made = LaboratoryProcess(name, self, self._asked(name), self._surroundings.security)
        self._processes.add(made)
        return made

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(seconds, lambda: None if self._over else action())

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        def undo() -> None:
            del self._undone[handle]
            action()

        handle = asyncio.get_running_loop().call_later(seconds, undo)
        self._undone[handle] = action

    def when_done(self, task: asyncio.Task[Any], action: Callable[[], object]) -> None:
        task.add_done_callback(lambda _: None if self._over else action())

    def pause_s(self, rng: random.Random, records: int, by_chance: Callable[[], float]) -> float:
        return records / self._per_s * rng.uniform(0.5, 1.5)

    def may_send(self) -> bool:
        return self._budget.take()

    def note(self, text: str) -> None:
        self.history.note(text)

    def violated(self, text: str) -> None:
        self.history.wrong(text)

    def over(self, process: LaboratoryProcess) -> None:
        """Note that a process has ended; :meth:`close` waits for its remaining tasks."""
        self._processes.discard(process)
        task = asyncio.get_running_loop().create_task(process.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def calm(self) -> None:
        """Undo immediately what is still to be undone."""
        for handle, action in list(self._undone.items()):
            handle.cancel()
            del self._undone[handle]
            action()

    async def close(self) -> None:
        """End every client as it is."""
        self._over = True
        self.calm()
        await asyncio.gather(*(process.end() for process in self._processes))
        while self._ending:
            await asyncio.wait(set(self._ending))


class Churn:
    """Kills clients of a roster now and then, pauses them, or starts another one beside them."""

    def __init__(
        self, world: LaboratoryWorld, roster: Roster[Any], rng: random.Random, acts: Sequence[str] = ACTS
    ) -> None:
        """``acts``: the acts of the roster on its clients, by method name."""
        self._world = world
        self._roster = roster
        self._rng = rng
        self._acts = acts
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if self._acts:
            self._task = self._world.process("churn").run(self._run())

    def calm(self) -> None:
        """Stop disturbing clients; paused ones resume."""
        if self._task is not None:
            self._task.cancel()
        self._world.calm()

    async def _run(self) -> None:
        rng, roster = self._rng, self._roster
        while True:
            await asyncio.sleep(rng.uniform(*UNDISTURBED_S) / len(roster.slots))
            act, number = rng.choice(self._acts), rng.randrange(len(roster.slots))
            seconds = rng.choice(AWAY_S if act in ("kill", "leave") else STILL_S)
            found = roster.at(number)
            roster.forget()
            if getattr(roster, act)(number, seconds):
                self._world.note(f"{act} for {seconds:g} s: {found[1].name if found else 'nobody'}")


async def stopped(world: LaboratoryWorld, roster: Roster[Any], bound_s: float) -> None:
    """Let every client of a roster end by itself; report those that do not in time."""
    roster.stop()
    try:
        await roster.ended(bound_s)
    except TimeoutError as late:
        world.violated(f"after everything was mended: {late}")
