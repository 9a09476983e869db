"""Runs the Raft engine: in its own thread in a node, on the event loop in the simulation.

Both take inputs from the event loop and hand batches of effects back to it, in order. The thread sleeps until the
engine's next deadline or the next input; there is no tick. All input that arrives during an fsync goes into the next
step.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.engine import RaftEngine
from tidelog.model.ids import NodeId
from tidelog.proto.transport import raft_messages as rm

HELD_UP_S: Final = 0.05
"""An event loop that takes longer to answer was delayed."""
CATCH_UP_S: Final = 0.1
"""The time that it then gets to deliver the others' messages."""

Deliver = Callable[[list[ev.Effect]], None]
"""Called on the event loop with the effects of a step."""
Fail = Callable[[BaseException], None]
"""Called on the event loop, once, after the engine has failed; nothing is delivered afterwards."""


class EngineDriver(Protocol):
    """Runs one engine. All methods are called on the event loop."""

    async def start(self) -> None:
        """Open the engine and run its first step. Raises the errors of opening it."""

    def submit(self, given: ev.EngineInput) -> None:
        """Pass in an input. Ignored once the driver is stopping."""

    @property
    def backlog(self) -> int:
        """Frames from peers that no step has processed yet, except those that can wait."""

    async def stop(self, *, clean: bool) -> None:
        """End after the running step; unless ``clean``, as if killed: nothing more is written."""


def run_step(engine: RaftEngine, inputs: list[ev.EngineInput], now: float) -> Iterator[list[ev.Effect]]:
    """Run all inputs in one or two steps: proposals last.

    If an acknowledgement in the same batch completes a commit, that commit need not wait for the sync of new proposals.
    """
    proposals: list[ev.EngineInput] = [each for each in inputs if isinstance(each, ev.Propose)]
    if not proposals or len(proposals) == len(inputs):
        yield engine.step(inputs, now)
    else:
        yield engine.step([each for each in inputs if not isinstance(each, ev.Propose)], now)
        yield engine.step(proposals, now)


class QuietAnswers:
    """Answers to heartbeats that repeat the peer's last one. They can wait for the engine's next step.

    They tell a leader only that the peer was alive when they arrived. The leader checks that when it next sends
    heartbeats, long before it would miss the peer. So we keep each peer's latest answer, with its time. Any other input
    from or about a peer makes its next answer news again.
    """

    def __init__(self) -> None:
        self._last: dict[NodeId, rm.AppendResult] = {}
        self._kept: dict[NodeId, ev.Received] = {}

    def keep(self, given: ev.EngineInput, now: float) -> bool:
        """Keep ``given``, which arrived at ``now``, if it can wait; return False if the engine must process it
        immediately."""
        if isinstance(given, ev.Propose | ev.Compact | ev.Bind):
            return False
        before = self._last.pop(given.peer, None)
        if not isinstance(given, ev.Received) or len(given.messages) != 1:
            return False
        said = given.messages[0]
        if not isinstance(said, rm.AppendResult) or not said.success or said.reset:
            return False
        self._last[given.peer] = said
        if said != before:
            return False
        self._kept[given.peer] = dataclasses.replace(given, at=now)
        return True

    def take(self) -> list[ev.EngineInput]:
        """Return and clear the kept answers, oldest peer first."""
        kept: list[ev.EngineInput] = list(self._kept.values())
        self._kept.clear()
        return kept


class InlineDriver:
    """Runs steps on the event loop itself: deterministic under a virtual clock."""

    def __init__(self, open_engine: Callable[[float], RaftEngine], deliver: Deliver, fail: Fail) -> None:
        self._open_engine = open_engine
        self._deliver = deliver
        self._fail = fail
        self._engine: RaftEngine | None = None
        self._inputs: deque[ev.EngineInput] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None

    @property
    def backlog(self) -> int:
        return sum(isinstance(given, ev.Received) for given in self._inputs)

    async def start(self) -> None:
        self._engine = engine = self._open_engine(asyncio.get_running_loop().time())
        try:
            self._advance(engine)
        except BaseException:
            self._engine = None
            engine.close(clean=False)
            raise

    def submit(self, given: ev.EngineInput) -> None:
        if self._engine is None:
            return
        self._inputs.append(given)
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._step)

    async def stop(self, *, clean: bool) -> None:
        self._cancel()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close(clean=clean)

    def _cancel(self) -> None:
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        self._timer = self._soon = None

    def _step(self) -> None:
        self._cancel()
        engine = self._engine
        if engine is None:
            return
        try:
            self._advance(engine)
        except Exception as error:
            self._engine = None
            engine.close(clean=False)
            self._fail(error)

    def _advance(self, engine: RaftEngine) -> None:
        """Run a step and schedule the next one."""
        loop = asyncio.get_running_loop()
        inputs = list(self._inputs)
        self._inputs.clear()
        for effects in run_step(engine, inputs, loop.time()):
            self._deliver(effects)
        if self._engine is None or self._soon is not None:
            return
        due, now = engine.deadline(), loop.time()
        if due <= now:
            self._soon = loop.call_soon(self._step)
        elif due != float("inf"):
            self._timer = loop.call_at(due, self._step)


class ThreadDriver:
    """Runs steps in a thread, so that a slow disk never blocks the event loop.

    A thread can only wait in real time, so it uses the machine's clock; the event loop's may stop (uvloop's does) while
    the loop sleeps.

    A heartbeat answer without news does not wake it (:class:`QuietAnswers`).

    The others' messages come through the event loop. Before the engine treats their silence as a failure, the loop must
    answer a ping; if that took long, it gets time to deliver waiting messages. Otherwise a slow loop would cost this
    node or another its leadership.
    """

    def __init__(self, name: str, open_engine: Callable[[float], RaftEngine], deliver: Deliver, fail: Fail) -> None:
        self._open_engine = open_engine
        self._deliver = deliver
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._clock = time.monotonic
        self._condition = threading.Condition(threading.Lock())
        self._inputs: list[ev.EngineInput] = []
        self._received = 0
        self._quiet = QuietAnswers()
        self._listening = False
        """Whether the engine waits to hear from any peer: then every input wakes it."""
        self._ending: bool | None = None
        """``None`` while running, then whether to close cleanly."""
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._pinged = 0
        self._answered = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def backlog(self) -> int:
        return self._received

    async def start(self) -> None:
        self._thread.start()
        await asyncio.shield(self._opened)

    def submit(self, given: ev.EngineInput) -> None:
        with self._condition:
            if self._ending is not None:
                return
            quiet = self._quiet.keep(given, self._clock())
            if quiet and not self._listening:
                return
            self._inputs.extend(self._quiet.take())
            if not quiet:
                self._inputs.append(given)
                self._received += isinstance(given, ev.Received)
            self._condition.notify()

    async def stop(self, *, clean: bool) -> None:
        if self._thread.ident is None:
            return
        with self._condition:
            if self._ending is None:
                self._ending = clean
            self._condition.notify()
        await asyncio.shield(self._ended)
        self._thread.join()

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        engine: RaftEngine | None = None
        try:
            engine = self._open_engine(self._clock())
            self._steps(engine, [])
        except BaseException as error:
            if engine is not None:
                engine.close(clean=False)
            self._on_loop(_fail_future, self._opened, error)
            self._on_loop(_finish_future, self._ended)
            return
        self._on_loop(_finish_future, self._opened)
        failed = False
        try:
            while (inputs := self._next_inputs(engine)) is not None:
                self._steps(engine, inputs)
        except BaseException as error:
            failed = True
            self._on_loop(self._fail, error)
        try:
            engine.close(clean=bool(self._ending) and not failed)
        except Exception as error:
            self._on_loop(self._fail, error)
        self._on_loop(_finish_future, self._ended)

    def _steps(self, engine: RaftEngine, inputs: list[ev.EngineInput]) -> None:
        for effects in run_step(engine, inputs, self._clock()):
            if effects:
                self._on_loop(self._deliver, effects)

    def _next_inputs(self, engine: RaftEngine) -> list[ev.EngineInput] | None:
        """Wait for input or until the engine is due; ``None`` when the driver is ending."""
        due = engine.deadline()
        with self._condition:
            self._wait(due)
            if not self._inputs and self._clock() >= engine.silence_deadline():
                self._wait_for_loop()
            if self._ending is not None:
                return None
            inputs, self._inputs, self._received = self._inputs, [], 0
            return inputs + self._quiet.take()

    def _wait(self, due: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Wait until ``due``, for input, for the end, or until ``enough``."""
        while not self._inputs and self._ending is None and not enough():
            left = due - self._clock()
            if left <= 0:
                return
            self._condition.wait(min(left, threading.TIMEOUT_MAX))

    def _wait_for_loop(self) -> None:
        began = self._clock()
        self._listening = True
        self._pinged += 1
        self._on_loop(self._answer_ping, self._pinged)
        self._wait(float("inf"), lambda: self._answered == self._pinged)
        if self._clock() - began > HELD_UP_S:
            self._wait(self._clock() + CATCH_UP_S)
        self._listening = False

    def _answer_ping(self, number: int) -> None:
        """Answer a ping, on the event loop."""
        with self._condition:
            self._answered = number
            self._condition.notify()

    def _on_loop(self, action: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(action, *arguments)
        except RuntimeError:
            self._ending = False  # the loop is closed: there is no one left to notify


def _finish_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail_future(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
