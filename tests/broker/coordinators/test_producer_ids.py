"""Blocks of producer ids: unique, in order, asked for ahead of need."""

from __future__ import annotations

import asyncio

from tidelog.model.ids import ProducerId
from tidelog.transactions.producer_ids import ProducerIdBlock, ProducerIds


class Controller:
    def __init__(self, size: int = 10) -> None:
        self.asked = 0
        self.size = size
        self.reachable = True

    async def allocate(self) -> ProducerIdBlock | None:
        self.asked += 1
        await asyncio.sleep(0)
        if not self.reachable:
            return None
        first = ProducerId((self.asked - 1) * self.size)
        return ProducerIdBlock(first, self.size)


async def test_ids_are_handed_out_once_each_also_to_many_at_once() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    found = await asyncio.gather(*(ids.next() for _ in range(95)))
    assert sorted(found) == list(range(95))  # type: ignore[type-var]
    assert controller.asked <= 11


async def test_the_next_block_is_there_before_it_is_needed() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    for _ in range(9):
        await ids.next()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert controller.asked == 2
    controller.reachable = False
    assert [await ids.next() for _ in range(11)] == list(range(9, 20))


async def test_without_a_controller_there_is_no_id_and_later_there_is_one() -> None:
    controller = Controller()
    controller.reachable = False
    ids = ProducerIds(controller.allocate)
    assert await ids.next() is None
    controller.reachable = True
    assert await ids.next() == 10
