"""The event loop in virtual time: clocks of processes, pauses, order, and what it does when stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from tidelog.chaos.simulated.world.loop import PROCESS, Process, SimulatedLoop, Stuck

T = TypeVar("T")


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    made = SimulatedLoop(100.0)
    asyncio.set_event_loop(made)
    yield made
    asyncio.set_event_loop(None)
    made.close()


def run(loop: SimulatedLoop, work: Coroutine[Any, Any, T]) -> T:
    return loop.run_until_complete(work)


def test_time_passes_only_by_waiting(loop: SimulatedLoop) -> None:
    async def wait() -> tuple[float, float]:
        began = loop.time()
        await asyncio.sleep(3600.0)
        return began, loop.time()

    assert run(loop, wait()) == (100.0, 3700.0)


def test_callbacks_of_one_instant_run_in_the_order_they_were_made(loop: SimulatedLoop) -> None:
    heard: list[int] = []
    for number in range(50):
        loop.call_later(1.0, heard.append, number)
    run(loop, asyncio.sleep(2.0))
    assert heard == list(range(50))


def test_a_process_has_a_clock_of_its_own(loop: SimulatedLoop) -> None:
    fast = Process(loop, "fast", rate=1.25, offset_s=1000.0)

    async def wait() -> tuple[float, float]:
        began = loop.time()
        await asyncio.sleep(10.0)
        return began, loop.time()

    async def main() -> tuple[tuple[float, float], float]:
        seen = await loop.create_task(wait(), context=fast.context)
        return seen, loop.now

    (began, ended), world = run(loop, main())
    assert began == 1100.0
    assert ended == pytest.approx(1110.0)
    assert ended >= 1110.0  # never less than what was waited for
    assert world == pytest.approx(108.0)


def test_children_belong_to_the_process_of_their_parent(loop: SimulatedLoop) -> None:
    process = Process(loop, "one")

    async def name() -> str:
        found = PROCESS.get()
        return "" if found is None else found.name

    async def parent() -> list[str]:
        heard: list[str] = []
        asyncio.get_running_loop().call_soon(lambda: heard.append(PROCESS.get().name))  # type: ignore[union-attr]
        heard.append(await asyncio.create_task(name()))
        return heard

    async def main() -> tuple[list[str], str]:
        return await loop.create_task(parent(), context=process.context), await name()

    assert run(loop, main()) == (["one", "one"], "")


def test_a_paused_process_goes_on_where_it_was(loop: SimulatedLoop) -> None:
    process = Process(loop, "one")
    heard: list[tuple[int, float]] = []

    async def tick() -> None:
        for number in range(4):
            await asyncio.sleep(1.0)
            heard.append((number, loop.now))

    async def main() -> None:
        task = loop.create_task(tick(), context=process.context)
        await asyncio.sleep(1.5)
        loop.pause(process)
        await asyncio.sleep(10.0)
        assert [number for number, _ in heard] == [0]
        loop.resume(process)
        await task

    run(loop, main())
    assert [number for number, _ in heard] == [0, 1, 2, 3]
    assert heard[1][1] == pytest.approx(111.5)  # what was due while it stood still


def test_a_timer_that_was_cancelled_never_fires(loop: SimulatedLoop) -> None:
    heard: list[str] = []
    timer = loop.call_later(1.0, heard.append, "late")
    timer.cancel()
    run(loop, asyncio.sleep(2.0))
    assert heard == []
    assert timer.cancelled()


def test_timeouts_work(loop: SimulatedLoop) -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await asyncio.sleep(50.0)
        return loop.now

    assert run(loop, main()) == 105.0


def test_a_world_in_which_nothing_can_happen_is_stuck(loop: SimulatedLoop) -> None:
    async def main() -> None:
        await loop.create_future()

    task = loop.create_task(main())
    with pytest.raises(Stuck, match="never will be"):
        loop.run_until_complete(task)
    task.cancel()
    run(loop, asyncio.sleep(0))


def test_an_endless_loop_at_one_instant_is_stuck(loop: SimulatedLoop) -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    task = loop.create_task(main())
    with pytest.raises(Stuck, match="at one instant"):
        loop.run_until_complete(task)
    task.cancel()
    loop._steps_now = 0
    run(loop, asyncio.sleep(0))


def test_what_a_callback_raises_is_reported_and_the_loop_goes_on(loop: SimulatedLoop) -> None:
    heard: list[BaseException | None] = []
    loop.set_exception_handler(lambda _, context: heard.append(context.get("exception")))
    error = ValueError("of a callback")

    def fail() -> None:
        raise error

    loop.call_soon(fail)
    run(loop, asyncio.sleep(1.0))
    assert heard == [error]


def test_threads_are_refused(loop: SimulatedLoop) -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(AssertionError, match="a thread in the simulation"):
        run(loop, main())
