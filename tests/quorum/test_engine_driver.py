"""The thread that runs the engine: inputs that wake it, and inputs that may wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import cast

from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.driver import QuietAnswers, ThreadDriver
from tidelog.metadata_quorum.raft.engine import RaftEngine
from tidelog.model.ids import DirectoryId, NodeId
from tidelog.proto.transport import raft_messages as rm

A, B = NodeId(2), NodeId(3)
DIRECTORY = DirectoryId(bytes(16))
FAR_S = 3600.0


def result(*, term: int = 4, next_index: int = 9, success: bool = True, reset: bool = False) -> rm.AppendResult:
    return rm.AppendResult(term, next_index, success, reset)


def answer(peer: NodeId, **fields: int) -> ev.Received:
    return ev.Received(peer, DIRECTORY, (result(**fields),))  # type: ignore[arg-type]


def test_an_answer_is_kept_if_the_peer_said_the_same_before() -> None:
    quiet = QuietAnswers()
    assert not quiet.keep(answer(A), 1.0)
    assert quiet.keep(answer(A), 2.0)
    assert quiet.keep(answer(A), 3.0)
    assert not quiet.keep(answer(B), 3.5)
    assert quiet.keep(answer(B), 4.0)
    kept = [ev.Received(A, DIRECTORY, (result(),), at=3.0), ev.Received(B, DIRECTORY, (result(),), at=4.0)]
    assert quiet.take() == kept
    assert quiet.take() == []
    assert quiet.keep(answer(A), 5.0)


def test_news_is_never_kept() -> None:
    quiet = QuietAnswers()
    assert not quiet.keep(answer(A), 1.0)
    assert not quiet.keep(answer(A, next_index=10), 2.0)
    assert not quiet.keep(answer(A, term=5, next_index=10), 3.0)
    for refusing in (answer(A, success=False), answer(A, reset=True)):
        assert not quiet.keep(refusing, 4.0)
        assert not quiet.keep(refusing, 5.0)
    for other in (
        ev.LinkDown(A),
        ev.LinkUp(A, DIRECTORY, rm.VoterStanding.FOUNDED),
        ev.PeerSuspected(A),
        ev.Received(A, DIRECTORY, (result(), result())),
    ):
        quiet = QuietAnswers()
        assert not quiet.keep(answer(A), 6.0)
        assert quiet.keep(answer(A), 7.0)
        assert not quiet.keep(other, 8.0)
        assert not quiet.keep(answer(A), 9.0), f"after {other} an answer is news"
    assert not quiet.keep(ev.Propose(1, 4, b"p"), 10.0)
    assert quiet.keep(answer(A), 11.0), "a proposal says nothing about a peer"


class Engine:
    """Notes what each step was given. ``due`` and ``silent_at`` are the test's to set, before a step."""

    def __init__(self) -> None:
        self.steps: list[list[ev.EngineInput]] = []
        self.stepped = threading.Semaphore(0)
        self.due = self.silent_at = float("inf")

    def step(self, inputs: list[ev.EngineInput], now: float) -> list[ev.Effect]:
        if inputs:
            self.steps.append(inputs)
        if now >= self.due:
            self.due = float("inf")
        self.stepped.release()
        return []

    def deadline(self) -> float:
        return self.due

    def silence_deadline(self) -> float:
        return self.silent_at

    def close(self, *, clean: bool) -> None:
        assert clean


class Driven:
    def __init__(self) -> None:
        self.engine = Engine()
        self.driver = ThreadDriver("engine", lambda _: cast(RaftEngine, self.engine), lambda _: None, self.fail)

    def fail(self, error: BaseException) -> None:
        raise error

    async def start(self) -> None:
        await self.driver.start()
        await self.wait_for_step()

    async def wait_for_step(self) -> None:
        assert await asyncio.to_thread(self.engine.stepped.acquire, timeout=20)


async def driven(arrange: Callable[[Engine], None] = lambda _: None) -> Driven:
    made = Driven()
    arrange(made.engine)
    await made.start()
    return made


async def test_a_quiet_answer_waits_for_the_next_input_and_goes_before_it() -> None:
    made = await driven()
    made.driver.submit(answer(A))
    await made.wait_for_step()
    before = time.monotonic()
    made.driver.submit(answer(A))
    after = time.monotonic()
    assert made.driver.backlog == 0
    assert not made.engine.stepped.acquire(timeout=0.1), "nothing woke the engine"
    made.driver.submit(ev.LinkDown(B))
    await made.wait_for_step()
    first, (kept, other) = made.engine.steps
    assert first == [answer(A)]
    assert other == ev.LinkDown(B)
    assert isinstance(kept, ev.Received)
    assert kept.messages == (result(),)
    assert kept.at is not None
    assert before <= kept.at <= after
    await made.driver.stop(clean=True)


async def test_a_quiet_answer_is_handed_over_when_the_engine_is_due() -> None:
    made = await driven()
    made.engine.due = time.monotonic() + 0.3  # read after the next step
    made.driver.submit(answer(A))
    await made.wait_for_step()
    made.driver.submit(answer(A))
    await made.wait_for_step()
    (kept,) = made.engine.steps[1]
    assert isinstance(kept, ev.Received)
    assert kept.at is not None
    assert kept.at < time.monotonic()
    await made.driver.stop(clean=True)


async def test_an_engine_that_would_miss_its_peers_is_woken_by_any_answer() -> None:
    made = await driven()
    made.engine.silent_at = made.engine.due = time.monotonic() + 0.05
    made.driver.submit(answer(A))
    await made.wait_for_step()
    # The loop is held up past the time at which the engine asks it; then answers come that say nothing new.
    time.sleep(0.3)  # noqa: ASYNC251 - a loop that stands still is what this is about
    loop = asyncio.get_running_loop()
    loop.call_later(0.02, made.driver.submit, answer(A))
    began = time.monotonic()
    await made.wait_for_step()
    assert time.monotonic() - began < 0.09, "it did not wait out the whole time for catching up"
    (kept,) = made.engine.steps[1]
    assert isinstance(kept, ev.Received)
    assert kept.at is not None
    await made.driver.stop(clean=True)
