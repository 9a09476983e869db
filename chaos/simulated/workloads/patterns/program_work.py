"""What the scenarios of patterns share: programs that come one after the other or two at a time, their transactions,
and a reader of what is committed."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from tidelog.chaos.simulated.watch.transactions import OFFSETS_TOPIC, TransactionWatch
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.chaos.workloads.incarnation import Incarnation, Roster
from tidelog.chaos.workloads.reading import Gatherer
from tidelog.chaos.workloads.world import partitions_of
from tidelog.client.record import ConsumerRecord

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

P = TypeVar("P", bound=Incarnation)


class ProgramWork(ABC, Generic[P]):
    """``topics``: what is read, and its partitions; ``open_s``: how long a program's transaction may be open.

    Subclasses start a program by :meth:`_program`, and take what is committed by :meth:`_got`.
    """

    def __init__(self, sim: Simulation, name: str, slots: Sequence[str], topics: Mapping[str, int], open_s: float):
        self.sim = sim
        self.rng = random.Random(f"{name}-{sim.world.seed}")
        self.roster: Roster[P] = Roster(sim.clients, self.rng, slots, self._program)
        self.watch = TransactionWatch(
            sim.world,
            {**topics, OFFSETS_TOPIC: int(sim.cluster.settings["offsets.topic.num.partitions"])},
            dict.fromkeys(topics, open_s + 2.5),
            lambda: sim.observer.quiet_since_s,
        )
        self._topics = topics
        self._others: list[Incarnation] = []
        """Clients besides the programs."""
        injector, leader_of = sim.injector, sim.cluster.leader_of
        injector.roles |= {
            "coordinator": lambda: leader_of(OFFSETS_TOPIC, 0),
            "transactions": lambda: leader_of("__transaction_state", 0),
            "partition-leader": lambda: leader_of(next(iter(topics)), 0),
        }
        injector.acts |= {
            "kill-producer": lambda number, seconds: self._kill(int(number), seconds),
            "pause-producer": lambda number, seconds: self._pause(int(number), seconds),
            "second-producer": self.roster.second,
            "at-step": partial(self.watch.at_step, injector),
            "kill-both": self._kill_both,
        }

    @property
    def events(self) -> Counter[str]:
        return self.sim.clients.events

    @abstractmethod
    def _program(self, slot: str, name: str) -> P: ...

    @abstractmethod
    def _got(self, record: ConsumerRecord) -> None: ...

    def _kill(self, number: int, seconds: float) -> bool:
        return self.roster.kill(number, seconds)

    def _pause(self, number: int, seconds: float) -> bool:
        return self.roster.pause(number, seconds)

    def _kill_both(self, number: str, target: str, seconds: float) -> bool:
        """Kill a program and a node after a moment; the node comes back."""

        def end() -> None:
            self._kill(int(number), 1.0)
            self.sim.injector.act(Fault(0.0, "kill", (target, 1.0)))

        self.sim.injector.later(seconds, end)
        return True

    def _begin(self) -> None:
        """Start the programs and the reader; the topics exist."""
        self.watch.begin()
        self.roster.begin()
        self._others.append(Gatherer("gatherer", self.sim.clients, partitions_of(self._topics), self._got))

    async def _over(self, missing: Callable[[], object], what: str, bound_s: float) -> None:
        """Wait until nothing is missing; then let the programs end."""
        cluster = self.sim.cluster
        try:
            await cluster.wait_for(lambda: not missing(), what, bound_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; missing: {missing()}") from None
        self.roster.stop()
        await self.roster.ended(bound_s)
        await cluster.wait_for(lambda: not self.watch.undecided(), "nothing undecided", bound_s)

    async def finish(self) -> None:
        self.roster.kill_all()
        for client in self._others:
            if not client.task.done():
                client.kill()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [*self.roster.failures(), *((client.name, client.failure()) for client in self._others)]
