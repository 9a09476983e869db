"""The available workloads, by name; and several of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tidelog.chaos.laboratory.faults.injector import Targets
from tidelog.chaos.laboratory.workloads.client_world import Surroundings
from tidelog.chaos.laboratory.workloads.group_work import GroupWork
from tidelog.chaos.laboratory.workloads.kafka_work import KafkaWork
from tidelog.chaos.laboratory.workloads.keyed_work import KeyedWork
from tidelog.chaos.laboratory.workloads.sink_work import SinkWork
from tidelog.chaos.laboratory.workloads.spark_work import SparkWork
from tidelog.chaos.laboratory.workloads.transaction_work import TransactionWork
from tidelog.chaos.laboratory.workloads.transform_work import TransformWork
from tidelog.chaos.laboratory.workloads.workload import AppendWork, Workload
from tidelog.cli.failure import CommandFailed
from tidelog.model.ids import TopicPartition

WORKLOADS: Final[Mapping[str, Callable[[Surroundings], Workload]]] = {
    "append": AppendWork,
    "transactions": TransactionWork,
    "groups": GroupWork,
    "transform": TransformWork,
    "keyed": KeyedWork,
    "sinks": SinkWork,
    "kafka": KafkaWork,
    "spark": SparkWork,
}
"""No two of them use the same topics, or the same names for clients: they may run side by side."""


def workloads_named(text: str) -> list[str]:
    """Return the workloads in a comma-separated text, each once. Raises :class:`CommandFailed`."""
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    if not names or (unknown := [name for name in names if name not in WORKLOADS]):
        found = ", ".join(unknown) if names else "nothing"
        raise CommandFailed(f"--workload: expected one or more of {', '.join(WORKLOADS)}, found {found}")
    return names


def workload(names: Sequence[str], surroundings: Surroundings) -> Workload:
    """Return one workload, or several together, which share the rate."""
    shared = replace(surroundings, per_s=surroundings.per_s / len(names))
    works = [WORKLOADS[name](shared) for name in names]
    return works[0] if len(works) == 1 else SideBySide(works)


class SideBySide:
    """Several workloads in one cluster."""

    def __init__(self, works: Sequence[Workload]) -> None:
        self._works = works
        self.topics: Mapping[str, int] = {topic: count for work in works for topic, count in work.topics.items()}
        self.configs: Mapping[str, Mapping[str, str]] = {
            topic: config for work in works for topic, config in work.configs.items()
        }
        self.derived: Mapping[str, str] = {made: source for work in works for made, source in work.derived.items()}
        every = [work.targets for work in works]
        self.targets = Targets(
            [at for targets in every for at in targets.partitions],
            next((targets.group for targets in every if targets.group), ""),
            [name for targets in every for name in targets.transactional_ids],
        )

    async def begin(self) -> None:
        for work in self._works:
            await work.begin()

    def heard(self) -> Mapping[str, int]:
        return {name: count for work in self._works for name, count in work.heard().items()}

    def calm(self) -> None:
        for work in self._works:
            work.calm()

    async def finish(self, bound_s: float) -> None:
        await asyncio.gather(*(work.finish(bound_s) for work in self._works))

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        return [name for work in self._works for name in work.behind(ends)]

    async def close(self) -> None:
        for work in self._works:
            await work.close()
