"""The bound on bytes held for clients."""

from __future__ import annotations

from tidelog.broker.memory_budget import MemoryBudget


async def test_streams_wait_only_while_the_budget_is_used_up() -> None:
    budget = MemoryBudget(100)
    assert budget.room() is None
    budget.use(99)
    assert budget.room() is None
    budget.use(51)
    waiter = budget.room()
    assert waiter is not None
    assert budget.waiting == 1
    budget.give(50)
    assert not waiter.done(), "150 used, 50 returned: none free yet"
    budget.give(1)
    assert waiter.done()
    assert budget.room() is None
    assert budget.bytes_used_peak == 150


async def test_a_waiter_that_gave_up_does_no_harm() -> None:
    budget = MemoryBudget(1)
    budget.use(1)
    gone = budget.room()
    stays = budget.room()
    assert gone is not None
    assert stays is not None
    gone.cancel()
    assert budget.waiting == 1
    budget.give(1)
    assert stays.done()
    assert budget.bytes_used == 0
