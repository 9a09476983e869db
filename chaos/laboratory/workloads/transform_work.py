"""The workload of consume, transform, produce: members of groups make one record from each that they read, and commit
their position in the same transaction; they are killed and pause meanwhile.

Recorders record each of their transactions. Copiers do the same work with the SDK's own loop, which records nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tidelog.aio import Admin, Consumer
from tidelog.chaos.laboratory.faults.injector import Targets
from tidelog.chaos.laboratory.history.recording import CLIENT_SETTINGS, Budget
from tidelog.chaos.laboratory.workloads.client_world import Churn, LaboratoryWorld, Surroundings, stopped
from tidelog.chaos.laboratory.workloads.transaction_work import RecordedClients
from tidelog.chaos.laboratory.workloads.workload import ClientWork, derived_value
from tidelog.chaos.workloads.incarnation import Incarnation, patiently
from tidelog.chaos.workloads.reading import Reader
from tidelog.chaos.workloads.transactions import TransactionClients
from tidelog.chaos.workloads.transform import Copier, Copying, Recorder
from tidelog.model.ids import TopicPartition

INPUTS: Final = "inputs"
COPIES: Final = "copies"
MIRRORS: Final = "mirrors"
TOPICS: Final = {INPUTS: 4, COPIES: 3, MIRRORS: 3}
COPIERS_GROUP: Final = "copiers"
MIRRORS_GROUP: Final = "mirrors"
COPIERS: Final = ("copier-0", "copier-1", "copier-2")
STATIC: Final = COPIERS[0]
MIRRORING: Final = ("mirror-0", "mirror-1")
COPIES_MAX: Final = 10_000_000
"""Maximum copies that recorders make, including aborted transactions."""
ASK_S: Final = 0.3
_STRATEGIES: Final = ("range", "cooperative-sticky")


class TransformWork(ClientWork):
    """A producer of inputs, recorders and copiers of them, a reader of their outputs."""

    topics: Mapping[str, int] = TOPICS
    derived: Mapping[str, str] = {COPIES: INPUTS, MIRRORS: INPUTS}

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(
            surroundings, "transform", ("ip0",), to=INPUTS, rates=3
        )  # two thirds of the records are outputs
        self._inputs = [at for at in self.partitions if at.topic == INPUTS]
        self._made = [at for at in self.partitions if at.topic != INPUTS]
        settings = {"partition_assignment_strategy": surroundings.rng("transform-strategy").choice(_STRATEGIES)}
        copying = Copying(INPUTS, COPIES, TOPICS[COPIES], COPIERS_GROUP, 0.0, (20, 100, 500), derived_value, settings)
        static = replace(copying, settings={**settings, "group_instance_id": STATIC})
        mirroring = replace(copying, target=MIRRORS, partitions=TOPICS[MIRRORS], group=MIRRORS_GROUP, polls=(20, 200))

        def record(slot: str, name: str, clients: TransactionClients) -> Incarnation:
            return Recorder(slot, name, clients, static if slot == STATIC else copying)

        def copy(slot: str, name: str, clients: TransactionClients) -> Incarnation:
            return Copier(slot, name, clients.world, mirroring)

        self._mirrored: dict[str, int] = {}
        """Commits of each copier, as far as known."""
        self._programs = world = LaboratoryWorld(surroundings, "transform", budget=Budget(COPIES_MAX))
        slots = {**dict.fromkeys(COPIERS, record), **dict.fromkeys(MIRRORING, copy)}
        self._clients = RecordedClients(world, surroundings, "transform", slots)
        self._roster = self._clients.roster
        self._churn = Churn(world, self._roster, surroundings.rng("transform-churn"))
        self.targets = Targets(
            self.partitions, surroundings.rng("transform").choice((COPIERS_GROUP, MIRRORS_GROUP)), self._roster.slots
        )
        self._history = surroundings.history
        self._surroundings = surroundings

    async def begin(self) -> None:
        await super().begin()
        self._roster.begin()
        self.readers.append(Reader("ir0", self.world, self._made, committed=True))
        self._churn.begin()

    def heard(self) -> Mapping[str, int]:
        """Return the progress: a group progresses if any of its members does, since there may be nothing for one of
        them."""
        self._mirrored.update({each.name: each.commits for each in self._roster.everyone if isinstance(each, Copier)})
        return {
            **super().heard(),
            COPIERS_GROUP: self._clients.committed.total(),
            MIRRORS_GROUP: sum(self._mirrored.values()),
        }

    def calm(self) -> None:
        self._churn.calm()

    async def finish(self, bound_s: float) -> None:
        await super().finish(bound_s)
        late = await self._wait_for_groups(bound_s)
        if late:
            self._history.wrong(f"after everything was mended {', '.join(late)} read on, and had not come to the end")
        await stopped(self._programs, self._roster, bound_s / 2)

    async def _wait_for_groups(self, bound_s: float) -> list[str]:
        """Wait until both groups have committed the ends of the inputs; return those that have not, after ``bound_s``
        without progress or after twice that in any case. Records their offsets."""
        began = moved = self._history.now()
        bootstrap, security = self._surroundings.bootstrap, self._surroundings.security
        async with (
            Admin(bootstrap, **security) as admin,
            Consumer(bootstrap, **security, **CLIENT_SETTINGS) as consumer,
        ):
            ends = await consumer.end_offsets(self._inputs, timeout=bound_s)
            committed: dict[str, dict[TopicPartition, int]] = {}
            while True:
                before = dict(committed)
                for group in (COPIERS_GROUP, MIRRORS_GROUP):
                    found = await patiently(
                        lambda group=group: admin.list_consumer_group_offsets(group, self._inputs)  # type: ignore[misc]
                    )
                    committed[group] = {at: int(found[at].offset) if at in found else 0 for at in self._inputs}
                now = self._history.now()
                moved = now if committed != before else moved
                behind = [group for group, has in committed.items() if any(has[at] < ends[at] for at in ends)]
                if not behind or now > moved + bound_s or now > began + 2 * bound_s:
                    break
                await asyncio.sleep(ASK_S)
        for group, has in committed.items():
            self._history.write(
                "committed", group=group, offsets=[[at.topic, at.partition, offset] for at, offset in has.items()]
            )
        return behind

    async def close(self) -> None:
        await self._programs.close()
        await super().close()
