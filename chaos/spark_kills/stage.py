"""The calls to the brokers during a case, and the crash points among them.

Everything here runs on the cluster's event loop. Each call runs in its own task: it continues even if the caller is
dead, like bytes in transit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tidelog.chaos.spark_kills.points import Action, Call, CrashPoint, When
from tidelog.chaos.spark_kills.processes import port_of
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.model.sinks import sink_attempt
from tidelog.proto.calls.sink_api import AbortJobRequest, BeginSinkTransactionRequest, CommitBatchRequest
from tidelog.proto.calls.transaction_api import EndTxnRequest, PrepareTransactionRequest, TransactionMarker
from tidelog.proto.transport.frames import (
    decode_fetch_request,
    decode_fetch_response,
    decode_produce_request,
    decode_produce_response,
)
from tidelog.proto.transport.network import CallContext, Frame

OK: Final = "ok"
ALREADY: Final = "already"
RECORDS: Final = "records"


class Victim(Protocol):
    """A driver, as far as it matters to crash points."""

    def owns(self, port: int) -> int | None:
        """Return the process of this driver that owns the end of a connection with this port."""

    def kill(self) -> None: ...

    async def kill_once_told(self, fault: Callable[[str], None]) -> None: ...

    def stop_jvm(self) -> None: ...

    def freeze(self) -> None: ...

    def orphan(self, pid: int) -> None: ...

    def kill_worker(self, pid: int) -> None: ...

    def kill_executor(self, pid: int) -> bool: ...

    def is_logged(self, batch: int) -> bool:
        """Return whether its query's commit log has the batch."""


@dataclass(slots=True)
class Seen:
    """A call as seen by a broker. ``outcome``: empty until it ran."""

    call: Call
    node: int
    port: int
    sink: str = ""
    batch: int | None = None
    job: str = ""
    attempt: str = ""
    at: float = 0.0
    begun: float | None = None
    """When its handler began; None: it was not passed on."""
    outcome: str = ""
    winners: tuple[str, ...] = ()
    """Attempts that are to be committed."""
    ended: float | None = None

    def begin(self) -> None:
        self.begun = time.monotonic()

    def end(self, outcome: str) -> None:
        self.outcome = outcome
        self.ended = time.monotonic()


class KillStage:
    """The stage of one case. ``kill_node`` ends a broker and makes sure that it returns; ``signs``: where queries look
    for signs."""

    def __init__(self, points: Sequence[CrashPoint], signs: Path, kill_node: Callable[[int], None]) -> None:
        self.points = points
        self.source: TopicId | None = None
        """The topic whose fetches count."""
        self.drivers: list[Victim] = []
        self.seen: list[Seen] = []
        self.faults: list[str] = []
        self.out: list[Victim] = []
        """Drivers that need a successor, in the order in which they failed."""
        self.frozen_attempts: list[str] = []
        self._signs = signs
        self._kill_node = kill_node
        self._met = [0] * len(points)
        self._jobs: dict[tuple[str, int], list[str]] = {}
        self._asked: dict[int, Seen] = {}
        """By producer id: the request to commit it."""
        self.winners: set[str] = set()
        """Attempts that were committed."""
        self._held: list[asyncio.Future[None]] = []
        self._released = False
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- what was fired -----------------------------------------------------------------------------

    def unfired(self) -> list[CrashPoint]:
        """Return the points that were never reached."""
        return [point for point, met in zip(self.points, self._met, strict=True) if met < point.nth]

    def fired(self, index: int) -> bool:
        return self._met[index] >= self.points[index].nth

    def release(self) -> None:
        """Release all held calls; none is held any more."""
        self._released = True
        held, self._held = self._held, []
        for one in held:
            if not one.done():
                one.set_result(None)

    async def end(self) -> None:
        """Drop everything in progress."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- carrying -----------------------------------------------------------------------------------

    def keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Run ``work`` to its end, whatever happens to its waiter."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)

    async def carry(self, seen: Seen, handle: Callable[[], Awaitable[Any]]) -> Any:
        """Process a call, including the crash points that it reaches."""
        await self.met(When.BEFORE, seen)
        seen.begin()
        running = asyncio.ensure_future(handle())
        await asyncio.sleep(0)
        await self.met(When.STARTED, seen)
        answer = await running
        seen.end(_outcome(answer))
        await self.met(When.RAN, seen)
        return answer

    def waits(self, when: When, seen: Seen) -> bool:
        """Return whether a crash point may match here."""
        return any(self._fits(point, when, seen) for point in self.points)

    async def met(self, when: When, seen: Seen) -> None:
        """Execute the matching points. Never returns if the message is lost."""
        through = True
        for point in self._due(when, seen):
            for action in point.do:
                through &= await self._do(action, seen)
        if not through:
            await asyncio.get_running_loop().create_future()

    def _due(self, when: When, seen: Seen) -> list[CrashPoint]:
        """Return the matching points; counts each."""
        found = []
        for index, point in enumerate(self.points):
            if self._fits(point, when, seen):
                self._met[index] += 1
                if point.nth <= self._met[index] < point.nth + point.times:
                    found.append(point)
        return found

    async def _do(self, action: Action, seen: Seen) -> bool:
        loop = asyncio.get_running_loop()
        match action:
            case Action.LOSE:
                return False
            case Action.HOLD if self._released:
                pass  # the caller asks again, because the answer to the released call was to do so
            case Action.HOLD:
                held: asyncio.Future[None] = loop.create_future()
                self._held.append(held)
                await held
            case Action.RELEASE:
                self.release()
            case Action.SIGN:
                (self._signs / str(seen.batch)).touch()
            case Action.KILL_NODE:
                self._kill_node(seen.node)
            case _:
                self._do_to_driver(action, seen)
        return True

    def _do_to_driver(self, action: Action, seen: Seen) -> None:
        found = next(((one, pid) for one in self.drivers if (pid := one.owns(seen.port)) is not None), None)
        if found is None:
            self.faults.append(f"{action.value}: nobody is there who made this call: {seen}")
            return
        driver, pid = found
        match action:
            case Action.KILL_DRIVER:
                self.out.append(driver)
                driver.kill()
            case Action.KILL_DRIVER_TOLD:
                self.out.append(driver)
                driver.stop_jvm()
                self.keep(driver.kill_once_told(self.faults.append))
            case Action.KILL_WORKER:
                driver.kill_worker(pid)
            case Action.KILL_EXECUTOR:
                if not driver.kill_executor(pid):
                    self.faults.append(f"{action.value}: no executor made this call: {seen}")
            case Action.FREEZE_DRIVER:
                self.out.append(driver)
                driver.freeze()
            case Action.ORPHAN_WORKER:
                self.frozen_attempts.append(seen.attempt)
                self.out.append(driver)
                driver.orphan(pid)
            case Action.ANOTHER_DRIVER:
                self.out.append(driver)
            case Action.CHECK_LOGGED | Action.CHECK_UNLOGGED:
                assert seen.batch is not None
                batch = seen.batch - 1 if action is Action.CHECK_LOGGED else seen.batch
                if driver.is_logged(batch) is not (action is Action.CHECK_LOGGED):
                    self.faults.append(f"{action.value}: it is not so for batch {batch}")
            case _:
                raise AssertionError(f"{action} is done elsewhere")

    # --- classification -----------------------------------------------------------------------------

    def saw_call(self, request: object, node: int, context: CallContext) -> Seen | None:
        """Return the kind of a call; None if it does not matter to cases."""
        match request:
            case BeginSinkTransactionRequest(sink, batch, job, attempt):
                return self._note(Call.BEGIN, node, context, sink, batch, job, attempt)
            case PrepareTransactionRequest(transactional_id):
                return self._of_attempt(Call.PREPARE, node, context, transactional_id)
            case EndTxnRequest(transactional_id):
                return self._of_attempt(Call.END, node, context, transactional_id)
            case CommitBatchRequest(sink, batch, job, winners):
                seen = self._note(Call.COMMIT, node, context, sink, batch, job, "")
                seen.winners = tuple(winner.attempt for winner in winners)
                self._asked.update(dict.fromkeys((winner.producer_id for winner in winners), seen))
                return seen
            case AbortJobRequest(sink, batch, job):
                return self._note(Call.ABORT, node, context, sink, batch, job, "")
            case _:
                return None

    def saw_produce(self, frame: memoryview, node: int, context: CallContext) -> Seen | None:
        transactional_id = decode_produce_request(frame)[1].transactional_id
        return self._of_attempt(Call.PRODUCE, node, context, transactional_id or "")

    def saw_fetch(self, frame: memoryview, node: int, context: CallContext) -> Seen | None:
        partitions = decode_fetch_request(frame)[1].partitions
        if all(one.topic_id != self.source for one in partitions):
            return None
        return self._note(Call.FETCH, node, context, "", None, "", "")

    def saw_marker(self, marker: TransactionMarker, node: int) -> Seen | None:
        """Note that the coordinator is about to send this. Points before it are executed immediately; return None if
        there are none."""
        commit = self._asked.get(marker.producer_id)
        if commit is None or not marker.committed:
            return None
        self.winners.update(commit.winners)
        seen = Seen(Call.MARKERS, node, 0, commit.sink, commit.batch, commit.job, at=time.monotonic())
        points = self._due(When.BEFORE, seen)
        for point in points:
            if point.do != (Action.KILL_NODE,):
                raise ValueError(f"before markers a broker can be killed, nothing else: {point}")
            self._kill_node(node)
        return seen if points else None

    def _of_attempt(self, call: Call, node: int, context: CallContext, transactional_id: str) -> Seen | None:
        found = sink_attempt(transactional_id)
        return None if found is None else self._note(call, node, context, *found)

    def _note(
        self, call: Call, node: int, context: CallContext, sink: str, batch: int | None, job: str, attempt: str
    ) -> Seen:
        seen = Seen(call, node, port_of(context.peer), sink, batch, job, attempt, time.monotonic())
        self.seen.append(seen)
        if batch is not None:
            jobs = self._jobs.setdefault((sink, batch), [])
            if job not in jobs:
                jobs.append(job)
        return seen

    def _fits(self, point: CrashPoint, when: When, seen: Seen) -> bool:
        if point.call is not seen.call or point.when is not when:
            return False
        if point.batch is not None and point.batch != seen.batch:
            return False
        if point.run is None or seen.batch is None:
            return point.run is None
        jobs = self._jobs[seen.sink, seen.batch]
        return seen.job in jobs and jobs.index(seen.job) + 1 == point.run


def outcome_of_produce(frame: Frame) -> str:
    """Return the answer to a produce frame: ok, or the errors."""
    found = decode_produce_response(memoryview(b"".join(frame)))[1]
    errors = sorted({one.error.name for one in found if one.error is not ErrorCode.NONE})
    return ", ".join(errors) or OK


def outcome_of_fetch(frame: Frame) -> str:
    found = decode_fetch_response(memoryview(b"".join(frame)))[1]
    return RECORDS if any(one.size for one in found.partitions) else OK


def _outcome(answer: Any) -> str:
    if answer.error is not ErrorCode.NONE:
        return str(answer.error.name)
    return ALREADY if getattr(answer, "already_committed", False) else OK
