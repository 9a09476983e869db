"""A timer for the earliest of many times, on the loop that nodes run on as well as on asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tidelog.replication.partition.due_timer import DueTimer

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param  # type: ignore[no-any-return]


def test_it_acts_once_at_the_earliest_time_that_it_was_set_to(run: Run) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        acted: list[float] = []
        came = asyncio.Event()

        def act() -> None:
            acted.append(loop.time())
            came.set()

        timer = DueTimer(act)
        now = loop.time()
        for due in (now + 60, now + 0.05, now + 30):
            timer.set(due)
        await asyncio.wait_for(came.wait(), 10)
        assert len(acted) == 1
        assert acted[0] >= now + 0.05 - 0.001
        came.clear()
        timer.set(loop.time() + 0.01)  # it has acted, and may be set anew
        await asyncio.wait_for(came.wait(), 10)
        assert len(acted) == 2

    run(work())


def test_a_time_that_has_come_already_may_be_followed_by_others(run: Run) -> None:
    """A node was ended by this: for such a time uvloop gives a handle that cannot say when it is due."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        timer = DueTimer(came.set)
        timer.set(loop.time() - 1)
        timer.set(loop.time() + 60)
        timer.set(loop.time() - 2)
        assert timer.is_set
        await asyncio.wait_for(came.wait(), 10)

    run(work())


def test_what_is_cancelled_does_not_come(run: Run) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        acted: list[str] = []
        timer = DueTimer(lambda: acted.append("x"))
        timer.set(loop.time() - 1)
        timer.cancel()
        timer.cancel()
        assert not timer.is_set
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert acted == []

    run(work())
