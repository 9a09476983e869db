"""Incarnations of clients: each in its own process, which ends, pauses and is replaced."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from tidelog.chaos.workloads.world import World
from tidelog.client.errors import RequestTimedOutError, SinkJobFencedError, TidelogError

AGAIN_S: Final = 0.1
"""Pause between a time-out and the next try."""


class GivenUp(Exception):
    """A client ends by its own choice."""


class Incarnation:
    """One incarnation of a client; it starts when it is created."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.stopping = False
        self.killed = False
        self.world = world
        self._rng = world.rng(name)
        self.process = world.process(name)
        self._make()
        self.task = self.process.run(self._guarded())

    @property
    def at_work(self) -> bool:
        return not (self.killed or self.task.done() or self.process.paused)

    def _make(self) -> None:
        """Create the parts that the client has from its start."""

    async def _guarded(self) -> None:
        try:
            await self._run()
        except GivenUp as why:
            if str(why):
                self.world.note(f"{self.name} ends: {why}")
        except TidelogError as error:
            self.world.note(f"{self.name} ends: {type(error).__name__}: {error}")
            self.world.events[f"ended-{type(error).__name__}"] += 1
            self._ended_by(error)

    def _ended_by(self, error: TidelogError) -> None:
        """Judge the error that ended the client."""
        if not (error.retriable or error.abortable or isinstance(error, SinkJobFencedError)):
            self.world.violated(f"{self.name} was refused: {type(error).__name__}: {error}")

    async def _run(self) -> None:
        raise AssertionError(f"{self.name} has nothing to do")

    def stop(self) -> None:
        """Let it end once its current work is done."""
        self.stopping = True

    def kill(self) -> None:
        """Kill the client's process."""
        self.killed = True
        self.task.cancel()
        self.process.kill()

    async def finish(self) -> None:
        """Cancel it, and close its SDK clients gracefully."""
        await self.process.end()

    def failure(self) -> BaseException | None:
        """Return the exception that ended the client, unless we ended it."""
        return self.task.exception() if self.task.done() and not self.task.cancelled() else None


C = TypeVar("C", bound=Incarnation)
T = TypeVar("T")
AWAY_S: Final = (0.05, 0.5, 2.0)
"""How long a slot stays empty after its client has ended by itself."""


class Roster(Generic[C]):
    """Slots, and the clients that fill them: one incarnation after the other, occasionally two at a time.

    ``start`` creates an incarnation for a slot, with its own name.
    """

    def __init__(
        self,
        world: World,
        rng: random.Random,
        slots: Sequence[str],
        start: Callable[[str, str], C],
    ) -> None:
        self.slots = tuple(slots)
        self.current: dict[str, C] = {}
        self.everyone: list[Incarnation] = []
        self.held: dict[str, Any] = {}
        """Slots that must stay empty for now, and why."""
        self.stopping = False
        self.count = 0
        self.rng = rng
        self.world = world
        self._start = start

    @property
    def replaced(self) -> list[Incarnation]:
        """Incarnations that no longer have a slot, or never had one."""
        current = set(self.current.values())
        return [client for client in self.everyone if client not in current]

    def name_of(self, base: str) -> str:
        """Return an unused name."""
        self.count += 1
        return f"{base}{self.count}"

    def begin(self) -> None:
        for slot in self.slots:
            self.fill(slot)

    def fill(self, slot: str, start: Callable[[str, str], C] | None = None) -> None:
        """Start an incarnation in a slot; a previous one keeps running."""
        made = (start or self._start)(slot, self.name_of(f"{slot}."))
        made.stopping = self.stopping
        self.current[slot] = made
        self.everyone.append(made)
        self.world.when_done(made.task, lambda: self.gone(slot, made))

    def gone(self, slot: str, client: C) -> None:
        """Handle the end of a client: after a while, another one gets its slot."""
        if not (self.stopping or client.killed) and self.current.get(slot) is client and slot not in self.held:
            self.refill(slot, client, self.rng.choice(AWAY_S))

    def refill(self, slot: str, client: C, seconds: float, start: Callable[[str, str], C] | None = None) -> None:
        """Fill a slot later, unless somebody else has done so by then; ``start``: even when the run is ending."""
        self.world.at(seconds, lambda: self.follow(slot, client, start))

    def follow(self, slot: str, client: C, start: Callable[[str, str], C] | None = None) -> None:
        """Fill a client's slot, unless somebody else has done so."""
        if self.current.get(slot) is client and (start is not None or not self.stopping):
            self.fill(slot, start)

    def forget(self) -> None:
        """Drop clients that have ended and no longer have a slot."""
        current = set(self.current.values())
        self.everyone = [client for client in self.everyone if client in current or not client.task.done()]

    def is_current(self, client: Incarnation) -> bool:
        """Return whether nobody else has got its slot since."""
        return any(current is client for current in self.current.values())

    def at(self, number: int) -> tuple[str, C] | None:
        """Return a slot and the client that is working in it."""
        slot = self.slots[number % len(self.slots)]
        client = self.current.get(slot)
        return None if client is None or not client.at_work or slot in self.held else (slot, client)

    # --- faults -----------------------------------------------------------------------------------------

    def kill(self, number: int, seconds: float) -> bool:
        """Kill a client; after a while, another one gets its slot."""
        found = self.at(number)
        if found is None:
            return False
        slot, client = found
        client.kill()
        self.refill(slot, client, seconds)
        return True

    def pause(self, number: int, seconds: float) -> bool:
        """Pause a client for a while."""
        found = self.at(number)
        if found is not None:
            self.freeze(found[1], seconds)
        return found is not None

    def freeze(self, client: Incarnation, seconds: float) -> None:
        """Pause a client for a while."""

        def resume() -> None:
            if client.process.paused and not client.killed:
                client.process.resume()

        client.process.pause()
        self.world.later(seconds, resume)

    def second(self, number: int, seconds: float) -> bool:
        """Start another client in a slot while the first runs, or is paused for a while."""
        found = self.at(number)
        if found is None:
            return False
        if seconds > 0.5:
            self.freeze(found[1], seconds)
        self.fill(found[0])
        return True

    # --- the end ----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let each client end once its current work is done, without successors."""
        self.stopping = True
        for client in self.everyone:
            client.stop()

    async def ended(self, bound_s: float) -> None:
        """Wait until every client that is neither killed nor paused has ended. Raises ``TimeoutError``."""
        working = {each.task: each.name for each in self.everyone if not (each.killed or each.process.paused)}
        if working:
            _, late = await asyncio.wait(working, timeout=bound_s)
            if late:
                raise TimeoutError(f"expected within {bound_s:g} s: {', '.join(working[task] for task in late)} ended")

    def kill_all(self) -> None:
        for client in self.everyone:
            if not (client.task.done() or client.killed):
                client.kill()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [(client.name, client.failure()) for client in self.everyone]


async def patiently(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Ask until there is an answer. Raises all errors but time-outs."""
    while True:
        try:
            return await ask()
        except RequestTimedOutError:
            await asyncio.sleep(AGAIN_S)
