"""An asyncio event loop in virtual time, for many simulated processes together.

Nothing here waits: when nothing is ready, time jumps to the next timer. The same calls give the same run. Each callback
and task belongs to a :class:`Process` through its context (``contextvars``); a task inherits the context of its
creator. A process has its own clock, which may run fast or slow, and can be paused: its due callbacks are held until it
resumes, as after SIGSTOP.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from tidelog.proto.transport.network import Address

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

STEPS_WITHOUT_TIME_MAX: Final = 200_000
"""This many callbacks at one instant mean a loop that never ends."""


ROUNDING_S: Final = 1e-9
"""A timer fires this much late, so that no clock shows less than the awaited time."""


class Stuck(Exception):
    """The simulated world cannot continue: nothing will ever happen, or time stands still."""


class Process:
    """One simulated process, for the loop: its clock and whether it is paused.

    ``rate``: seconds of its monotonic clock per second of the world; fixed for its life.
    """

    __slots__ = ("_began", "_held", "_offset", "context", "name", "paused", "rate")

    def __init__(self, loop: SimulatedLoop, name: str, rate: float = 1.0, offset_s: float = 0.0) -> None:
        self.name = name
        self.rate = rate
        self.paused = False
        self._began = loop.now
        self._offset = loop.now + offset_s
        self._held: deque[Due] = deque()
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def local(self, now: float) -> float:
        """Return this process's monotonic time at a time of the world."""
        return self._offset + (now - self._began) * self.rate

    def world(self, local: float) -> float:
        """Return the time of the world at which this process's clock shows ``local``, or hardly more."""
        return self._began + (local - self._offset) / self.rate + ROUNDING_S


PROCESS: Final[contextvars.ContextVar[Process | None]] = contextvars.ContextVar("process", default=None)
"""The process that is running now; ``None`` for the world itself."""


COMPUTING_S: Final = 0.002
"""Half the time that the expensive step of a login takes."""


class Due:
    """A call that the loop has to make: has all that asyncio requires of its handles, and little else, since a run
    makes many."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when")

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context
    ):
        self._when = when
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        """Return the time of the world."""
        return self._when

    def __repr__(self) -> str:
        return f"<{self._callback!r} at {self._when:.4f}>"


class Accepting(Protocol):
    """A bound socket that does not block."""

    def fileno(self) -> int: ...
    def accept(self) -> tuple[object, tuple[str, int]]: ...


class LoopSockets(Protocol):
    """The loop's work for sockets; worlds without Kafka's protocol have none."""

    async def connect(self, protocol: asyncio.BaseProtocol, address: Address) -> asyncio.Transport: ...
    def served(self, protocol: asyncio.BaseProtocol, sock: object) -> asyncio.Transport: ...
    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None: ...
    def remove_reader(self, fd: int) -> bool: ...
    def add_writer(self, fd: int, callback: Callable[..., object], *args: Any) -> None: ...
    def remove_writer(self, fd: int) -> bool: ...


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop. ``now`` is the world's time in seconds; :meth:`time` is that of the calling process."""

    def __init__(self, now: float = 1000.0) -> None:
        super().__init__()
        self.now = now
        self.steps = 0
        self._ready: deque[Due] = deque()
        self._timers: list[tuple[float, int, Due]] = []
        self._numbers = itertools.count()
        self._steps_now = 0
        self.sockets: LoopSockets

    # --- time -------------------------------------------------------------------------------------

    def time(self) -> float:
        process = PROCESS.get()
        return self.now if process is None else process._offset + (self.now - process._began) * process.rate

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Due:
        process = PROCESS.get()
        return self.at(when if process is None else process.world(when), callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Due:
        process = PROCESS.get()
        return self.at(
            self.now + (delay if process is None else delay / process.rate), callback, *args, context=context
        )

    def at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Due:
        """Call at a time of the world, for the process of ``context`` (the caller's by default)."""
        due = Due(when, callback, args, contextvars.copy_context() if context is None else context)
        heapq.heappush(self._timers, (when, next(self._numbers), due))
        return due

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Due:
        due = Due(self.now, callback, args, contextvars.copy_context() if context is None else context)
        self._ready.append(due)
        return due

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    # --- sockets ----------------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], ProtocolT], host: str, port: int, *, ssl: object = None, **_: object
    ) -> tuple[asyncio.Transport, ProtocolT]:
        assert ssl is None, "the simulation has no TLS"
        protocol = protocol_factory()
        return await self.sockets.connect(protocol, Address(host, port)), protocol

    async def sock_accept(self, sock: Accepting) -> tuple[object, tuple[str, int]]:  # type: ignore[override]
        while True:
            try:
                return sock.accept()
            except BlockingIOError:
                knocked = self.create_future()
                self.add_reader(sock.fileno(), lambda future=knocked: future.done() or future.set_result(None))
                try:
                    await knocked
                finally:
                    self.remove_reader(sock.fileno())

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], ProtocolT], sock: object, *, ssl: object = None, **_: object
    ) -> tuple[asyncio.Transport, ProtocolT]:
        assert ssl is None, "the simulation has no TLS"
        protocol = protocol_factory()
        return self.sockets.served(protocol, sock), protocol

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self.sockets.add_reader(fd, callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        return self.sockets.remove_reader(fd)

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self.sockets.add_writer(fd, callback, *args)

    def remove_writer(self, fd: Any) -> bool:
        return self.sockets.remove_writer(fd)

    # --- processes --------------------------------------------------------------------------------

    def pause(self, process: Process) -> None:
        """Hold all due calls of a process."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """Let a paused process continue with the held calls, in order."""
        process.paused = False
        self._ready.extend(process._held)
        process._held.clear()

    # --- running ----------------------------------------------------------------------------------

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Stuck("nothing is due, and never will be")
            when = timers[0][0]
            if when > self.now:
                self.now = when
                self._steps_now = 0
            while timers and timers[0][0] <= when:
                ready.append(heapq.heappop(timers)[2])
        count = len(ready)
        self.steps += count
        self._steps_now += count
        if self._steps_now > STEPS_WITHOUT_TIME_MAX:
            raise Stuck(f"{self._steps_now} steps at one instant; the last ones: {list(ready)[-3:]}")
        for _ in range(count):
            due = ready.popleft()
            if due._cancelled:
                continue
            context = due._context
            process = context.get(PROCESS)
            if process is not None and process.paused:
                process._held.append(due)
                continue
            try:
                context.run(due._callback, *due._args)  # type: ignore[arg-type]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"Exception in {due!r}", "exception": error, "handle": due})

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers leave when they are due."""

    def _process_events(self, event_list: object) -> None:
        raise AssertionError("the simulation has no sockets")

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps, so nothing needs to wake it."""

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run a call of a login, the only kind allowed: it computes at some instant meanwhile, and its loop learns of
        the result later."""
        if getattr(executor, "_thread_name_prefix", "") != "login":
            raise AssertionError(f"a thread in the simulation: {func}")
        done = self.create_future()

        def tell(outcome: object) -> None:
            if not done.done():
                done.set_result(outcome)

        self.call_later(COMPUTING_S, lambda: self.call_later(COMPUTING_S, tell, func(*args)))
        return done
