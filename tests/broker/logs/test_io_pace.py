"""The pace of background tasks: what is owed is paid off by the rate as it is now."""

from __future__ import annotations

import asyncio
import math

import pytest

from tidelog.broker.logs.io_pace import IoPace


async def test_a_task_that_waits_hears_of_a_new_rate() -> None:
    rate = 1.0
    pace = IoPace(lambda: rate)
    waiting = asyncio.create_task(pace.keep(1_000_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert pace.ahead_s > 900_000
    rate = 1e9
    await asyncio.wait_for(waiting, 60)


async def test_without_a_bound_nobody_waits_and_nothing_is_saved_up() -> None:
    rate = math.inf
    pace = IoPace(lambda: rate)
    for _ in range(1_000):
        await pace.keep(1 << 30)
        assert pace.ahead_s == 0
    rate = 1_000.0
    pace.pay(0)
    pace.pay(500)
    assert pace.ahead_s > 0


async def test_rounding_leaves_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a task waits for so little that no clock shows it, again and again: in the simulation, time stands still."""
    loop, now = asyncio.get_running_loop(), 1004.1843
    monkeypatch.setattr(loop, "time", lambda: now)
    for rate in (3.0, 7_777.7, 1e6 / 3, 123_456_789.1, 1e19):
        pace = IoPace(lambda rate=rate: rate)  # type: ignore[misc]
        for size in range(1, 2_000, 37):
            pace.pay(size)
            waits = 0
            while (wait_s := pace.ahead_s) > 0:
                assert now + wait_s > now
                now += wait_s
                waits += 1
            assert waits <= 3
