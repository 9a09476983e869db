"""The world as clients need it: time, processes, chance, and somebody to tell.

The simulation's world has virtual time and processes that the loop can hold (:mod:`tidelog.chaos.simulated.simulation
.client_world`). The laboratory's has real time, and processes that are networks of their own in one real process
(:mod:`tidelog.chaos.laboratory.workloads.client_world`). Clients cannot tell which one they are in: they wait by
``asyncio.sleep``, make the SDK's clients by their process, and draw from the chance that they are given.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from tidelog.aio import Admin, Consumer, Producer, SinkLedger, SinkWriter
from tidelog.chaos.checkers.history import Polled, Positioned, Sent
from tidelog.model.ids import TopicPartition

T = TypeVar("T")
L = TypeVar("L", SinkLedger, SinkWriter)


class Records(Protocol):
    """Where it is written down what clients did and were told."""

    def send(self, sent: Sent) -> None: ...

    def poll(self, polled: Polled) -> None: ...

    def position(self, positioned: Positioned) -> None: ...


class ClientProcess(Protocol):
    """A process of one client, which ends, stops and goes on as processes do."""

    @property
    def name(self) -> str: ...

    @property
    def paused(self) -> bool: ...

    def seams(self) -> dict[str, Any]:
        """Arguments by which a client of the SDK belongs to the process."""

    def has(self, client: L) -> L:
        """Let a client of the SDK that was made by :meth:`seams` end with the process."""

    def producer(self, **settings: Any) -> Producer: ...

    def consumer(self, **settings: Any) -> Consumer: ...

    def admin(self, **settings: Any) -> Admin: ...

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a task of the process."""

    def pause(self) -> None:
        """Stop it, as SIGSTOP does."""

    def resume(self) -> None:
        """Let it go on if it is paused."""

    def kill(self) -> None:
        """End it, as SIGKILL does: nothing of it runs, sends or hears anything any more."""

    async def unpaused(self) -> None:
        """Wait while the process is paused, where its tasks run on all the same."""

    async def close(self) -> None:
        """End the SDK's clients in good order."""

    async def end(self) -> None:
        """Cancel the tasks of the process, then close."""


class World(Protocol):
    """Where clients work."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def scale(self) -> int:
        """How much longer than in the simulation everything may take."""

    @property
    def history(self) -> Records: ...

    @property
    def events(self) -> Counter[str]:
        """What clients went through, by name."""

    @property
    def damaged(self) -> bool:
        """Whether readers may be refused what has rotted."""

    def now(self) -> float:
        """Seconds, as everything in the history is dated."""

    def wall_ms(self) -> int:
        """The time of day: milliseconds since the Unix epoch."""

    def rng(self, name: str) -> random.Random:
        """The chance of one client."""

    def process(self, name: str) -> ClientProcess: ...

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something after a while, in no process; never once the run is over."""

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Undo a fault after a while; what is mended waits for that."""

    def when_done(self, task: asyncio.Task[Any], action: Callable[[], object]) -> None:
        """Do something once a task is over, in no process."""

    def pause_s(self, rng: random.Random, records: int, by_chance: Callable[[], float]) -> float:
        """How long a client waits that has sent so many records: as chance has it, or as its rate asks for."""

    def may_send(self) -> bool:
        """Whether another record may be sent; takes it off the run's budget."""

    def note(self, text: str) -> None: ...

    def violated(self, text: str) -> None:
        """Say what must never happen and did."""


def partitions_of(topics: Mapping[str, int]) -> list[TopicPartition]:
    """Every partition of topics with so many partitions each."""
    return [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
