"""A simulated world from start to end: loop, cluster, trace, and the violations on the way."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import random
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.chaos.simulated.world.loop import PROCESS, SimulatedLoop
from tidelog.chaos.simulated.world.scenario import Trace
from tidelog.proto.transport.memory_transport import Wire
from tidelog.storage.disk.memory_files import Killed

T = TypeVar("T")

BEGIN_S: Final = 1000.0
CLOSED_IN: Final = 20
"""How often an abandoned coroutine may wait while it is being closed."""
LOGGED: Final[Mapping[str, str]] = {
    "metadata snapshot at offset %d: %d bytes": "snapshot-written",
    "loaded the metadata snapshot at offset %d": "snapshot-loaded",
    "fencing broker %d: %d partitions change": "broker-fenced",
    "fencing broker %d: no heartbeat for %d ms; %d partitions change": "broker-fenced",  # release 0.1
    "%s: the log ends at offset %d, %d bytes behind it are dropped: %s": "torn-tail",
    "log directory %s is out of service": "log-directory-failed",
    "%s has moved from %s to %s": "log-moved",
    "%s goes on moving to %s": "move-resumed",
    "%s: a stream over TCP, at port %s": "tcp-stream",
    "the event loop of controller %d stood still for %d ms": "stall-forgiven",
}
"""Nodes' log messages → the events that they report."""


class World:
    """One run: its time, its cluster, the hash of what happened."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        controllers: int | None = None,
        config: Mapping[str, str] | None = None,
        log_dirs: int = 1,
        drift: float = 0.0,
        trace: Trace | None = None,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(f"world-{seed}")
        self.loop = SimulatedLoop(BEGIN_S)
        self.violations: list[str] = []
        self.logged: Counter[str] = Counter()
        """Events that nodes log."""
        self.arrived: Callable[[str], None] = lambda name: None
        """Called for each arriving message before it is received, with its receiver."""
        self.trace = trace
        self._others: list[World] = []
        """This world as other clusters in it see it."""
        self._over = False
        self._hash = hashlib.blake2b(digest_size=16)
        self.loop.set_exception_handler(self._loop_error)
        self.cluster = SimulatedCluster(
            self.loop,
            random.Random(self.rng.random()),
            nodes,
            controllers=controllers,
            config=config,
            log_dirs=log_dirs,
            drift=drift,
            heard=self._heard,
        )

    def beside(self, *, config: Mapping[str, str], log_dirs: int = 1, drift: float = 0.0) -> World:
        """Return another cluster of three nodes in the same time and on the same network: this world, as seen from
        there.

        Messages to its members go through :attr:`arrived` of both.
        """
        other = copy.copy(self)
        other.cluster = SimulatedCluster(
            self.loop,
            random.Random(self.rng.random()),
            config=config,
            log_dirs=log_dirs,
            drift=drift,
            beside=self.cluster,
        )
        other.arrived = lambda name: None
        self._others.append(other)
        return other

    @property
    def now_s(self) -> float:
        """Return virtual seconds since the start of the world."""
        return self.loop.now - BEGIN_S

    @property
    def digest(self) -> str:
        """Return the hash of everything that was noted and every message that arrived, with its time."""
        return self._hash.hexdigest()

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        line = f"{self.now_s:10.4f} {text}"
        self._hash.update(line.encode())
        if self.trace is not None:
            self.trace(line)

    def violated(self, text: str) -> None:
        """Report something that must never happen."""
        self.violations.append(f"at {self.now_s:.3f} s: {text}")
        self.note(f"VIOLATION {text}")

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine to its end in this world, then end the world. Raises what the coroutine raises."""
        asyncio.set_event_loop(self.loop)
        logger = logging.getLogger("tidelog")
        hearing = _Hearing(self)
        level, propagate = logger.level, logger.propagate
        logger.addHandler(hearing)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            return self.loop.run_until_complete(_awaited(main()))
        finally:
            self._end()
            logger.removeHandler(hearing)
            logger.setLevel(level)
            logger.propagate = propagate

    def _end(self) -> None:
        """Take everything down without leaving a task that complains when it is collected."""
        self._over = True  # the rest is taken down in any order, and is no part of the run
        self.loop.set_exception_handler(lambda loop, context: None)
        for world in (self, *self._others):
            for node_id in world.cluster.running:
                world.cluster.kill(node_id)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(1.0))
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for task in left:
                _close(task)
            self.loop.close()
        asyncio.set_event_loop(None)

    def _heard(self, wire: Wire, to_server: bool) -> None:
        if self._over:
            return
        client, server = wire.client.node, wire.server
        arrow = ">" if to_server else "<"
        line = f"{self.now_s:10.4f} {client} {arrow} {server} {wire.what}"
        self._hash.update(line.encode())
        if self.trace is not None:
            self.trace(line)
        for world in (self, *self._others):
            world.arrived(server if to_server else client)

    def _loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Killed):
            return
        where = context.get("task") or context.get("future") or context.get("handle") or ""
        self.violated(f"the event loop reports: {context.get('message')}: {error!r} {where}")


def _close(task: asyncio.Task[Any]) -> None:
    """Close the coroutine of a process that never resumes, though it may wait again on its way out."""
    work = task.get_coro()
    for _ in range(CLOSED_IN):
        try:
            work.close()
        except BaseException:  # as in a program whose loop is gone
            continue
        return


class _Hearing(logging.Handler):
    """Writes nodes' log messages to the trace, and counts them as events."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        event = LOGGED.get(str(record.msg))
        if event is not None:
            self._world.logged[event] += 1
        if self._world.trace is not None:
            process = PROCESS.get()
            who = "" if process is None else process.name
            self._world.trace(f"{self._world.now_s:10.4f}   {who} {record.levelname} {record.getMessage()}")


async def _awaited(work: Awaitable[T]) -> T:
    return await work
