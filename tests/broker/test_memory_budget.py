"""The bound on bytes held for clients."""

from __future__ import annotations

import asyncio

from tidelog.broker.memory_budget import MemoryBudget


async def test_streams_wait_only_while_the_budget_is_used_up() -> None:
    budget = MemoryBudget(100)
    assert budget.pause() is None
    budget.use(99)
    assert budget.pause() is None
    budget.use(51)
    waiter = budget.pause()
    assert waiter is not None
    assert budget.waiting == 1
    budget.give(50)
    assert not waiter.done(), "150 used, 50 returned: none free yet"
    budget.give(1)
    assert waiter.done()
    assert budget.pause() is None
    assert budget.bytes_used_peak == 150


async def test_a_waiter_that_gave_up_does_no_harm() -> None:
    budget = MemoryBudget(1)
    budget.use(1)
    gone = budget.pause()
    stays = budget.pause()
    assert gone is not None
    assert stays is not None
    gone.cancel()
    assert budget.waiting == 1
    budget.give(1)
    assert stays.done()
    assert budget.bytes_used == 0


def test_the_line_is_served_in_order_and_only_while_there_is_room() -> None:
    budget = MemoryBudget(100)
    budget.use(100)
    served: list[str] = []

    def take(name: str, size: int) -> None:
        served.append(name)
        budget.use(size)

    budget.line_up(lambda: take("first", 80))
    budget.line_up(lambda: take("second", 80))
    budget.line_up(lambda: take("third", 80))
    budget.give(50)
    assert served == ["first"], "130 used: the others stay in line"
    budget.give(20)
    assert served == ["first"]
    budget.give(80)
    assert served == ["first", "second"]
    assert budget.full
    assert budget.waiting == 1


async def test_who_stands_in_line_comes_before_who_pauses() -> None:
    budget = MemoryBudget(100)
    budget.use(100)
    pause = budget.pause()
    assert pause is not None
    budget.line_up(lambda: budget.use(100))
    budget.give(100)
    assert not pause.done()
    budget.give(100)
    assert pause.done()


def test_leaving_the_line() -> None:
    budget = MemoryBudget(1)
    budget.use(1)
    served: list[int] = []

    def start() -> None:
        served.append(1)

    budget.line_up(start)
    budget.leave(start)
    budget.leave(start)
    budget.give(1)
    assert served == []


async def test_streams_that_come_and_go_while_it_is_full_leave_nothing_behind() -> None:
    budget = MemoryBudget(1)
    budget.use(1)
    for _ in range(1000):
        waiter = budget.pause()
        assert waiter is not None
        waiter.cancel()
        await asyncio.sleep(0)
    assert len(budget._pauses) == 0
