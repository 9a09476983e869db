"""What the scenarios of sinks share: programs with successive drivers, and the faults that affect them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidelog.chaos.checkers.transactions import all_stable
from tidelog.chaos.simulated.watch.transactions import TransactionWatch
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.sinks import Driver, SinkBooks, TaskAttempt
from tidelog.client.transaction_errors import FENCED
from tidelog.model.ids import NodeId
from tidelog.model.sinks import NO_BATCH
from tidelog.proto.calls.sink_api import (
    AbortJobRequest,
    AbortJobResponse,
    BeginSinkTransactionRequest,
    BeginSinkTransactionResponse,
    CommitBatchRequest,
    CommitBatchResponse,
)

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation


class Programs(SinkBooks):
    """The programs of a simulation, and the actions on them.

    ``topics``: those that transactions write to, and their partitions; ``bounds_s``: how long one may be open in each;
    ``target``: the topic whose leader is a target.
    """

    def __init__(
        self,
        sim: Simulation,
        sinks: Sequence[str],
        topics: Mapping[str, int],
        bounds_s: Mapping[str, float],
        target: str,
    ) -> None:
        super().__init__(sim.clients, random.Random(f"programs-{sim.world.seed}"), sinks, self._driver)
        self.sim = sim
        self.watch = TransactionWatch(sim.world, topics, bounds_s, lambda: sim.observer.quiet_since_s)
        self._deciding: dict[str, None] = {}
        """Sinks whose drivers have asked for a decision, until somebody removes them."""
        self._last: Mapping[str, int] = {}
        sim.cluster.fabric.sent.append(self._sent)
        sim.cluster.fabric.answered.append(self._judge_refusal)
        injector = sim.injector
        injector.roles |= {
            "sink": lambda: self.watch.coordinator(sinks[0]),
            "partition-leader": lambda: sim.cluster.leader_of(target, 0),
        }
        injector.acts |= {
            "kill-producer": lambda number, seconds: self._kill(int(number), seconds),
            "pause-producer": self._pause,
            "second-producer": self.roster.second,
            "at-step": partial(self.watch.at_step, injector),
            "at-commit": self._at_commit,
            "kill-later": self._kill_later,
        }

    @property
    def events(self) -> Counter[str]:
        return self.world.events

    def _driver(self, sink: str, name: str) -> Driver:
        raise AssertionError(f"{sink} has no program")

    # --- answers of coordinators --------------------------------------------------------------------------

    def _judge_refusal(self, server: str, request: object, response: object, asked_s: float) -> None:
        """Judge a refusal: that a batch is decided takes precedence over everything else, even if a fenced job asks."""
        if not isinstance(request, CommitBatchRequest | BeginSinkTransactionRequest | AbortJobRequest):
            return
        assert isinstance(response, CommitBatchResponse | BeginSinkTransactionResponse | AbortJobResponse)
        if response.error not in FENCED or not self.watch.is_up_to_date(server, request.sink):
            return
        known = [batch for (sink, batch), told_s in self.told_s.items() if sink == request.sink and told_s <= asked_s]
        if request.batch <= max(known, default=-1):
            what = type(request).__name__.removesuffix("Request")
            self.sim.world.violated(
                f"decided: {what} of batch {request.batch} of {request.sink} by job {request.job} is refused with "
                f"{response.error.name}, though batch {max(known)} was reported as decided before"
            )

    # --- faults -----------------------------------------------------------------------------------------

    def _at(self, number: int) -> Incarnation | None:
        """Return a driver, or a task that is working."""
        if number % 2:
            tasks = [each for each in self.roster.everyone if isinstance(each, TaskAttempt) and each.at_work]
            return tasks[number % len(tasks)] if tasks else None
        found = self.roster.at(number // 2)
        return None if found is None else found[1]

    def _kill(self, number: int, seconds: float) -> bool:
        found = self._at(number)
        if found is None:
            return False
        self._end(found, seconds)
        return True

    def _end(self, client: Incarnation, seconds: float) -> None:
        client.kill()
        if isinstance(client, Driver):
            self.roster.refill(client.sink, client, seconds)

    def _pause(self, number: int, seconds: float) -> bool:
        found = self._at(number)
        if found is not None:
            self.roster.freeze(found, seconds)
        return found is not None

    def _sent(self, client: str, request: object) -> None:
        if isinstance(request, CommitBatchRequest):
            self._deciding[request.sink] = None

    def _at_commit(self, number: int, within_s: float, *acts: str | float) -> bool:
        """When a driver next asks for a decision, act on the sink's coordinator, ``u``."""
        sink = self.roster.slots[number]
        self._deciding.pop(sink, None)

        def involved() -> dict[str, NodeId | None]:
            node = self.watch.coordinator(sink) if sink in self._deciding else None
            return {} if node is None else {"u": node}

        self.sim.injector.wait_for("at-commit", involved, within_s, acts)
        return True

    def _kill_later(self, target: str, seconds: float) -> bool:
        """Kill a node after a moment; it comes back."""
        injector = self.sim.injector
        injector.later(seconds, lambda: injector.act(Fault(0.0, "kill", (target, 1.0))))
        return True

    # --- the end ----------------------------------------------------------------------------------------

    async def _settle_sinks(self, stable_s: float) -> None:
        """Wait, with all writers ended, until nothing is undecided, and judge what the cluster says of its sinks."""
        cluster, violated = self.sim.cluster, self.world.violated
        await cluster.wait_for(lambda: not self.watch.undecided(), "nothing undecided", stable_s)
        for text in all_stable(self.watch.marks()):
            violated(text)
        async with cluster.admin() as admin:
            found = await admin.describe_sinks(self.roster.slots, timeout=10)
        self._last = {sink: NO_BATCH if one.last is None else one.last.batch for sink, one in found.items()}
        for sink, one in found.items():
            if one.transactions:
                violated(f"{sink} has transactions though nobody writes: {one.transactions[:3]}")

    async def finish(self) -> None:
        self.roster.kill_all()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return self.roster.failures()
