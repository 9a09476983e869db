"""What clients do while faults happen: the interface of a workload, and appending and reading.

To write one: a class as :class:`Workload` describes, a row in :data:`tidelog.chaos.live.workloads.WORKLOADS`, and
what its history must hold in :mod:`tidelog.chaos.live.judgement` where the shared judges do not say it already.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tidelog.chaos.live.hand import Aims
from tidelog.chaos.live.history_file import HistoryFile
from tidelog.chaos.live.recording import Appender, Budget, Member, Reader
from tidelog.model.ids import TopicPartition

TOPIC: Final = "log"
PARTITIONS: Final = 4
APPENDERS: Final = 3
MEMBERS: Final = 2
GROUP: Final = "readers"


@dataclass(frozen=True, slots=True)
class Stage:
    """What a workload is given to work with."""

    bootstrap: str
    """Proxies of the nodes' own listeners."""
    kafka_bootstrap: str
    """Proxies of their Kafka listeners."""
    directory: Path
    """For what it leaves on disk; there is such a directory, which is removed after a run that held."""
    history: HistoryFile
    seed: int
    per_s: float
    """Records per second of all its clients together."""
    budget: Budget

    def rng(self, name: str) -> random.Random:
        """The chance of one client; the same for the same seed."""
        return random.Random(f"{name}-{self.seed}")


class Workload(Protocol):
    """Clients and what they are aimed by. Everything but the constructor runs on the clients' event loop."""

    topics: Mapping[str, int]
    """Topic → partitions; they exist before :meth:`begin`."""
    derived: Mapping[str, str]
    """Topic → the one that it is made of: each value of that one has one in it, which :func:`made_of` names. The
    history says nothing else of what is written to it, unless there are sends to it as well."""
    aims: Aims

    async def begin(self) -> None:
        """Start every client; returns at once."""

    def heard(self) -> Mapping[str, int]:
        """How much each client that must get on was told as done."""

    def calm(self) -> None:
        """Everything else is mended: disturb clients no more."""

    async def finish(self, bound_s: float) -> None:
        """Stop what changes the cluster's contents, once all of it has an outcome."""

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Readers that have not come to these ends."""

    async def close(self) -> None:
        """End every client. Also in the midst of a run: what is under way is written down as unknown."""


def derived_value(value: bytes, by: str) -> bytes:
    """What a workload makes of a value of a source: unlike whatever others make of it."""
    return b"%s|%s" % (value, by.encode())


def made_of(value: bytes) -> bytes:
    """The value of the source that a value of a derived topic was made of; itself where it was copied as it is."""
    source, bar, _ = value.rpartition(b"|")
    return source if bar else value


def partitions_of(topics: Mapping[str, int]) -> list[TopicPartition]:
    """Every partition of topics with so many partitions each."""
    return [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]


class ClientTasks:
    """Tasks of clients; what one raises is written down as wrong."""

    def __init__(self, history: HistoryFile) -> None:
        self._history = history
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guarded(name, work))
        self._tasks.append(task)
        return task

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _guarded(self, name: str, work: Awaitable[None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._history.wrong(f"{name} ended with {type(error).__name__}: {error}")


async def finish_sending(appenders: Iterable[Appender], sending: Iterable[asyncio.Task[None]], bound_s: float) -> None:
    """Stop appenders, whose tasks these are, and wait for every outcome."""
    for appender in appenders:
        appender.stopping = True
    if tasks := list(sending):
        await asyncio.wait(tasks, timeout=bound_s)
    for appender in appenders:
        await appender.finish(bound_s)


class AppendWork:
    """Idempotent producers that append unique values; readers by assignment, one of which goes back now and then; a
    group of readers."""

    topics: Mapping[str, int] = {TOPIC: PARTITIONS}
    derived: Mapping[str, str] = {}

    def __init__(self, stage: Stage) -> None:
        bootstrap, history = stage.bootstrap, stage.history
        self._places = places = partitions_of(self.topics)
        self.aims = Aims(places, GROUP)
        self._tasks = ClientTasks(history)
        self._sending: list[asyncio.Task[None]] = []

        def rng(name: str) -> random.Random:
            return stage.rng(f"append-{name}")

        names = [f"p{number}" for number in range(APPENDERS)]
        self._appenders = [
            Appender(name, bootstrap, places, history, rng(name), stage.per_s / APPENDERS, stage.budget)
            for name in names
        ]
        self._readers = [
            Reader("r0", bootstrap, places, history, rng("r0"), committed=False, seeks=False),
            Reader("r1", bootstrap, places, history, rng("r1"), committed=False, seeks=True),
        ]
        self._members = [
            Member(f"g{number}", bootstrap, GROUP, list(self.topics), history, rng(f"g{number}"))
            for number in range(MEMBERS)
        ]

    async def begin(self) -> None:
        for appender in self._appenders:
            self._sending.append(self._tasks.start(appender.name, appender.run()))
        for reader in self._readers:
            self._tasks.start(reader.name, reader.run())
        for member in self._members:
            self._tasks.start(member.name, member.run())

    def heard(self) -> Mapping[str, int]:
        return {appender.name: appender.acknowledged for appender in self._appenders}

    def calm(self) -> None:
        """Nobody is disturbed."""

    async def finish(self, bound_s: float) -> None:
        for reader in self._readers:
            reader.seeks = False
        await finish_sending(self._appenders, self._sending, bound_s)

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        return [reader.name for reader in self._readers if not reader.is_at(ends)]

    async def close(self) -> None:
        await self._tasks.end()
        for reader in self._readers:
            await reader.close()
        for member in self._members:
            await member.close()
        for appender in self._appenders:
            await appender.abandon()
