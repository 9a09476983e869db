"""What the scenarios of sinks share: programs whose drivers follow one another, and the faults that befall them."""

from __future__ import annotations

import contextvars
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.chaos.sim.lives import Attempt, Driver, Life
from tidelog.chaos.sim.scenario import Fault
from tidelog.chaos.sim.transaction_watch import TransactionWatch
from tidelog.client.transaction_errors import FENCED
from tidelog.model.ids import NodeId
from tidelog.proto.sink_api import AbortJobRequest, BeginSinkTransactionRequest, CommitBatchRequest

if TYPE_CHECKING:
    from tidelog.chaos.sim.simulation import Simulation


class Programs:
    """Programs, each with a sink of its own: one driver after another, now and then two at a time.

    ``places``: topics that transactions write to, and their partitions; ``bounds_s``: for how long one may be open in
    each; ``place``: the topic whose leader is a target.
    """

    def __init__(
        self,
        sim: Simulation,
        sinks: Sequence[str],
        places: Mapping[str, int],
        bounds_s: Mapping[str, float],
        place: str,
    ) -> None:
        self.sim = sim
        self.events: Counter[str] = Counter()
        self.watch = TransactionWatch(sim.world, places, bounds_s, lambda: sim.observer.quiet_since_s)
        self._sinks = tuple(sinks)
        self._lives = 0
        self._drivers: dict[str, Driver] = {}
        self._everyone: list[Life] = []
        self._stopping = False
        self._rng = random.Random(f"programs-{sim.world.seed}")
        self._outside = contextvars.Context()
        """Of no process: what happens in it waits for none that stands still."""
        self._deciding: dict[str, None] = {}
        """Sinks whose drivers have asked for a decision, until somebody takes them out."""
        self._told_s: dict[tuple[str, int], float] = {}
        """When a driver was first told that a batch is decided."""
        sim.cluster.fabric.sent.append(self._sent)
        sim.cluster.fabric.answered.append(self._judge_refusal)
        hand = sim.hand
        hand.roles |= {
            "sink": lambda: self.watch.coordinator(self._sinks[0]),
            "place": lambda: sim.cluster.leader_of(place, 0),
        }
        hand.acts |= {
            "kill-producer": lambda number, seconds: self._kill(int(number), seconds),
            "pause-producer": self._pause,
            "second-producer": self._second,
            "at-step": partial(self.watch.at_step, hand),
            "at-commit": self._at_commit,
            "kill-later": self._kill_later,
        }

    def _driver(self, sink: str, name: str) -> Driver:
        raise AssertionError(f"{sink} has no program")

    # --- what coordinators say --------------------------------------------------------------------------

    def told(self, sink: str, batch: int) -> None:
        """A driver was told that a batch is decided."""
        self._told_s.setdefault((sink, batch), self.sim.cluster.loop.now)

    def _judge_refusal(self, server: str, request: Any, response: Any, asked_s: float) -> None:
        """That a batch is decided goes before everything else, also when a fenced job asks."""
        if not isinstance(request, CommitBatchRequest | BeginSinkTransactionRequest | AbortJobRequest):
            return
        if response.error not in FENCED or not self.watch.is_up_to_date(server, request.sink):
            return
        known = [batch for (sink, batch), told_s in self._told_s.items() if sink == request.sink and told_s <= asked_s]
        if request.batch <= max(known, default=-1):
            what = type(request).__name__.removesuffix("Request")
            self.sim.world.violated(
                f"decided: {what} of batch {request.batch} of {request.sink} by job {request.job} is refused with "
                f"{response.error.name}, though batch {max(known)} was told to be decided before"
            )

    # --- lives ------------------------------------------------------------------------------------------

    def fill(self, sink: str) -> None:
        """Start a driver; who was there before goes on, if it does."""
        self._lives += 1
        driver = self._driver(sink, f"{sink}.{self._lives}")
        driver.stopping = self._stopping
        self._everyone.append(driver)
        self._drivers[sink] = driver
        driver.task.add_done_callback(lambda _: self._gone(sink, driver), context=self._outside)

    def _gone(self, sink: str, driver: Driver) -> None:
        if not self._stopping and self._drivers.get(sink) is driver and not driver.killed:
            self._later(sink, driver, self._rng.choice((0.05, 0.5, 2.0)))

    def _later(self, sink: str, driver: Driver, seconds: float) -> None:
        def again() -> None:
            if self._drivers.get(sink) is driver and not self._stopping:
                self.fill(sink)

        loop = self.sim.cluster.loop
        loop.at(loop.now + seconds, again, context=self._outside)

    def stop(self) -> None:
        """No driver follows another one any more, and each ends when its batch is done."""
        self._stopping = True
        for life in self._everyone:
            life.stopping = True

    async def finish(self) -> None:
        for life in self._everyone:
            if not life.task.done() and not life.killed:
                life.kill()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [(life.name, life.failure()) for life in self._everyone]

    # --- faults -----------------------------------------------------------------------------------------

    def _at(self, number: int) -> Life | None:
        """A driver, or a task that is at work."""
        if number % 2:
            attempts = [life for life in self._everyone if isinstance(life, Attempt) and life.at_work]
            return attempts[number % len(attempts)] if attempts else None
        driver = self._drivers.get(self._sinks[number // 2 % len(self._sinks)])
        return driver if driver is not None and driver.at_work else None

    def _kill(self, number: int, seconds: float) -> bool:
        found = self._at(number)
        if found is None:
            return False
        self._end(found, seconds)
        return True

    def _end(self, life: Life, seconds: float) -> None:
        life.kill()
        if isinstance(life, Driver):
            self._later(life.sink, life, seconds)

    def _pause(self, number: int, seconds: float) -> bool:
        found = self._at(number)
        if found is None:
            return False
        self._freeze(found, seconds)
        return True

    def _freeze(self, life: Life, seconds: float) -> None:
        self.sim.cluster.loop.pause(life.process)

        def resume() -> None:
            if life.process.paused and not life.killed:
                self.sim.cluster.loop.resume(life.process)

        # Of no process: a driver may freeze itself.
        contextvars.Context().run(self.sim.hand.later, seconds, resume)

    def _second(self, number: int, seconds: float) -> bool:
        """Start another driver of a sink while the first runs, or stands still for a while."""
        driver = self._drivers.get(self._sinks[number % len(self._sinks)])
        if driver is None or not driver.at_work:
            return False
        if seconds > 0.5:
            self._freeze(driver, seconds)
        self.fill(driver.sink)
        return True

    def _sent(self, client: str, request: Any) -> None:
        if isinstance(request, CommitBatchRequest):
            self._deciding[request.sink] = None

    def _at_commit(self, number: int, within_s: float, *acts: str | float) -> bool:
        """When a driver next asks for a decision, do something to the sink's coordinator, ``u``."""
        sink = self._sinks[number]
        self._deciding.pop(sink, None)

        def involved() -> dict[str, NodeId | None]:
            node = self.watch.coordinator(sink) if sink in self._deciding else None
            return {} if node is None else {"u": node}

        self.sim.hand.wait_for("at-commit", involved, within_s, acts)
        return True

    def _kill_later(self, target: str, seconds: float) -> bool:
        """After a moment, end a node, which comes back."""
        hand = self.sim.hand
        hand.later(seconds, lambda: hand.act(Fault(0.0, "kill", (target, 1.0))))
        return True
