"""Lives of clients in a simulated cluster: each in a process of its own, that ends, stands still and is replaced."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidelog.client.errors import SinkJobFencedError, TidelogError
from tidelog.client.sinks import SinkMessage

if TYPE_CHECKING:
    from tidelog.chaos.sim.simulation import Simulation

NOTED_S: Final = 0.05
"""A driver that has heard of a decision has noted it so long after."""


class GivenUp(Exception):
    """A process of the scenario ends here by its own choice."""


class Employer(Protocol):
    """Whose clients they are."""

    sim: Simulation
    events: Counter[str]


class Life:
    """One life of one client."""

    def __init__(self, name: str, work: Employer) -> None:
        self.name = name
        self.stopping = False
        self.killed = False
        self._sim = work.sim
        self._events = work.events
        self._cluster = work.sim.cluster
        self._rng = random.Random(work.sim.rng.random())
        self.process = self._cluster.client_process(name)
        self.task = self._cluster.run_in(self.process, self._guarded())

    @property
    def at_work(self) -> bool:
        return not (self.killed or self.task.done() or self.process.paused)

    async def _guarded(self) -> None:
        try:
            await self._run()
        except GivenUp:
            return
        except TidelogError as error:
            self._sim.world.note(f"{self.name} ends: {type(error).__name__}: {error}")
            self._events[f"ended-{type(error).__name__}"] += 1
            self._ended_by(error)

    def _ended_by(self, error: TidelogError) -> None:
        """Judge what the client was told."""
        if not (error.retriable or error.abortable or isinstance(error, SinkJobFencedError)):
            self._sim.world.violated(f"{self.name} was refused: {type(error).__name__}: {error}")

    async def _run(self) -> None:
        raise AssertionError(f"{self.name} has nothing to do")

    def kill(self) -> None:
        """End the client's process."""
        self.killed = True
        self.task.cancel()
        self._cluster.fabric.drop_node(self.name)
        self._cluster.loop.pause(self.process)  # what is left of it never runs again

    def failure(self) -> BaseException | None:
        return self.task.exception() if self.task.done() and not self.task.cancelled() else None


class Driver(Life):
    """A life of the program that runs the batches of a sink. Another one follows it."""

    def __init__(self, sink: str, name: str, work: Employer) -> None:
        self.sink = sink
        super().__init__(name, work)


class Attempt(Life):
    """Writes some rows of a batch and prepares them; ``message`` is what its driver gets, if it gets anything."""

    def __init__(self, name: str, work: Employer) -> None:
        self.message: asyncio.Future[SinkMessage | Exception] = asyncio.get_running_loop().create_future()
        super().__init__(name, work)

    def _deliver(self, message: SinkMessage | Exception) -> None:
        if not self.message.done():
            self.message.set_result(message)


def writer_settings(rng: random.Random) -> dict[str, Any]:
    """Settings of a sink's writer, by chance."""
    return {
        "linger_ms": rng.choice((0, 5, 50)),
        "batch_size": rng.choice((100, 16_384)),
        "request_timeout_ms": rng.choice((500, 1_000, 3_000)),
        "delivery_timeout_ms": rng.choice((4_000, 20_000)),
        "max_block_ms": rng.choice((2_000, 8_000)),
    }


def ledger_settings(rng: random.Random) -> dict[str, Any]:
    """Settings of a driver's ledger, by chance."""
    return {
        "request_timeout_ms": rng.choice((200, 1_000, 3_000)),
        "default_api_timeout_ms": rng.choice((200, 1_000, 6_000)),
        "retry_backoff_ms": rng.choice((10, 100)),
    }
