"""Clients that work during faults: the interface of a workload, and appending and reading.

To write one: a class as :class:`Workload` describes, a row in
:data:`tidelog.chaos.laboratory.workloads.workloads.WORKLOADS`, and its requirements for a history in
:mod:`tidelog.chaos.laboratory.judge.judgement`, if the shared judges do not cover them already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from tidelog.chaos.laboratory.faults.injector import Targets
from tidelog.chaos.laboratory.history.recording import PADDING
from tidelog.chaos.laboratory.workloads.client_world import LaboratoryWorld, Surroundings
from tidelog.chaos.laboratory.workloads.recorded_group import RecordedGroup
from tidelog.chaos.workloads.appending import Appender
from tidelog.chaos.workloads.reading import Reader
from tidelog.chaos.workloads.world import partitions_of
from tidelog.model.ids import TopicPartition

TOPIC: Final = "log"
PARTITIONS: Final = 4
APPENDERS: Final = ("p0", "p1", "p2")
MEMBERS: Final = 2
GROUP: Final = "readers"
BURSTS: Final = (1, 1, 2, 5, 12)


class Workload(Protocol):
    """Clients, and the targets of faults. Everything but the constructor runs on the clients' event loop."""

    topics: Mapping[str, int]
    """Topic → partitions; they exist before :meth:`begin`."""
    configs: Mapping[str, Mapping[str, str]]
    """Topic → its own settings, if it has any."""
    derived: Mapping[str, str]
    """Topic → its source: each value of the source has one in it, which :func:`made_of` maps back. The history says
    nothing else about the topic's records, unless it has sends to it as well."""
    targets: Targets

    async def begin(self) -> None:
        """Start every client; return immediately."""

    def heard(self) -> Mapping[str, int]:
        """Return how much work each client that must make progress knows to be done."""

    def calm(self) -> None:
        """Stop disturbing clients: everything else is repaired."""

    async def finish(self, bound_s: float) -> None:
        """Stop the clients that change the cluster's contents, once every operation has an outcome."""

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Return the readers that have not reached these ends."""

    async def close(self) -> None:
        """End every client. Possible during a run: operations in progress are recorded as unknown."""


def derived_value(value: bytes, by: str) -> bytes:
    """Return the value that a workload makes from a source's value: other workloads make different ones."""
    return b"%s|%s" % (value, by.encode())


def made_of(value: bytes) -> bytes:
    """Return the source's value from which a value of a derived topic was made; the value itself if it was copied."""
    source, bar, _ = value.rpartition(b"|")
    return source if bar else value


class ClientWork:
    """Producers of unique values, readers, and the additions of a workload."""

    topics: Mapping[str, int]
    configs: Mapping[str, Mapping[str, str]] = {}
    derived: Mapping[str, str] = {}

    def __init__(
        self, surroundings: Surroundings, name: str, appenders: Sequence[str] = (), *, to: str = "", rates: float = 0.0
    ) -> None:
        """``to``: the topic that appenders write to, instead of any; ``rates``: how many equal parts the rate
        is split into, by default one per appender."""
        self.world = LaboratoryWorld(surroundings, name, rates or len(appenders))
        self.partitions = partitions_of(self.topics)
        self.targets = Targets(self.partitions)
        self.readers: list[Reader] = []
        self.groups: list[RecordedGroup] = []
        self._names = appenders
        self._appenders: list[Appender] = []
        self._to = [at for at in self.partitions if to in ("", at.topic)]

    async def begin(self) -> None:
        for name in self._names:
            rng = self.world.rng(f"{name}-settings")
            settings = {
                "compression_type": rng.choice(("none", "lz4", "none")),
                "linger_ms": rng.choice((0, 5)),
                "batch_size": rng.choice((500, 16_384)),
                "delivery_timeout_ms": rng.choice((4_000, 120_000)),
                "max_block_ms": 60_000,
            }
            self._appenders.append(Appender(name, self.world, self._to, settings, bursts=BURSTS, padding=PADDING))
        for group in self.groups:
            group.begin()

    def heard(self) -> Mapping[str, int]:
        return {
            **dict.fromkeys(self._names, 0),
            **{each.name: each.acknowledged for each in self._appenders},
            **{group.name: group.worked_off for group in self.groups},
        }

    def calm(self) -> None:
        for group in self.groups:
            group.calm()

    async def finish(self, bound_s: float) -> None:
        for appender in self._appenders:
            appender.stop()
        if self._appenders:
            _, late = await asyncio.wait([appender.task for appender in self._appenders], timeout=bound_s)
            if late:
                self.world.violated(f"{len(late)} producers have not ended {bound_s:g} s after they were asked to")

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        return [
            *(reader.name for reader in self.readers if not reader.is_at(ends)),
            *(group.name for group in self.groups if group.is_behind(ends)),
        ]

    async def close(self) -> None:
        for group in self.groups:
            await group.close()
        await self.world.close()


class AppendWork(ClientWork):
    """Idempotent producers that append unique values; readers by assignment, one of which goes back now and then; a
    group of readers."""

    topics: Mapping[str, int] = {TOPIC: PARTITIONS}

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings, "append", APPENDERS)
        self.targets = Targets(self.partitions, GROUP)
        self.groups.append(RecordedGroup(surroundings, GROUP, self.topics, MEMBERS, {}))

    async def begin(self) -> None:
        await super().begin()
        self.readers += [
            Reader(name, self.world, self.partitions, committed=False, seeks=seeks, asks=True)
            for name, seeks in (("r0", False), ("r1", True))
        ]

    async def finish(self, bound_s: float) -> None:
        for reader in self.readers:
            reader.seeks = False
        await super().finish(bound_s)
