"""The world that clients need: time, processes, randomness, and a recorder.

The simulation's world has virtual time and processes that the loop can hold (:mod:`tidelog.chaos.simulated.simulation
.client_world`). The laboratory's has real time, and processes that are separate networks in one real process
(:mod:`tidelog.chaos.laboratory.workloads.client_world`). Clients cannot tell which one they are in: they wait by
``asyncio.sleep``, make the SDK's clients by their process, and use the random source that they are given.
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
    """Records what clients did and learned."""

    def send(self, sent: Sent) -> None: ...

    def poll(self, polled: Polled) -> None: ...

    def position(self, positioned: Positioned) -> None: ...


class ClientProcess(Protocol):
    """A process of one client, which ends, stops and continues as processes do."""

    @property
    def name(self) -> str: ...

    @property
    def paused(self) -> bool: ...

    def seams(self) -> dict[str, Any]:
        """Return arguments that make an SDK client belong to the process."""

    def has(self, client: L) -> L:
        """Let an SDK client made with :meth:`seams` end with the process."""

    def producer(self, **settings: Any) -> Producer: ...

    def consumer(self, **settings: Any) -> Consumer: ...

    def admin(self, **settings: Any) -> Admin: ...

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a task of the process."""

    def pause(self) -> None:
        """Stop it, as SIGSTOP does."""

    def resume(self) -> None:
        """Resume it if it is paused."""

    def kill(self) -> None:
        """Kill it, as SIGKILL does: none of it runs, sends or receives any more."""

    async def unpaused(self) -> None:
        """Wait while the process is paused, if its tasks keep running."""

    async def close(self) -> None:
        """Close the SDK's clients in good order."""

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
        """Events of clients, counted by name."""

    @property
    def damaged(self) -> bool:
        """Whether readers may be refused corrupted data."""

    def now(self) -> float:
        """Return seconds, the time base of the history."""

    def wall_ms(self) -> int:
        """Return the time of day: milliseconds since the Unix epoch."""

    def rng(self, name: str) -> random.Random:
        """Return the random source of one client."""

    def process(self, name: str) -> ClientProcess: ...

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something after a while, in no process; never after the end of the run."""

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Undo a fault after a while; the end of the run waits for that."""

    def when_done(self, task: asyncio.Task[Any], action: Callable[[], object]) -> None:
        """Do something once a task has ended, in no process."""

    def pause_s(self, rng: random.Random, records: int, by_chance: Callable[[], float]) -> float:
        """Return how long a client waits after sending this many records: by chance, or as its rate requires."""

    def may_send(self) -> bool:
        """Return whether another record may be sent; takes it off the run's budget."""

    def note(self, text: str) -> None: ...

    def violated(self, text: str) -> None:
        """Report a violation."""


def partitions_of(topics: Mapping[str, int]) -> list[TopicPartition]:
    """Return every partition of topics with these numbers of partitions."""
    return [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
