"""Places that no address may take for itself alone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from tidelog.broker.kafka.fair_places import FairPlaces


class Room:
    """``most`` places, and those who hold one, by address and number, in the order in which they came in."""

    def __init__(self, most: int) -> None:
        self.places = FairPlaces(most)
        self.inside: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def knock(self, *names: str) -> None:
        for name in names:
            self.tasks[name] = asyncio.create_task(self._hold(name))
            await asyncio.sleep(0)

    async def leave(self, *names: str) -> None:
        for name in names:
            task = self.tasks.pop(name)
            task.cancel()
            await asyncio.wait((task,))
            await asyncio.sleep(0)

    async def _hold(self, name: str) -> None:
        async with self.places.place(name[0]):
            self.inside.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                self.inside.remove(name)


async def test_half_are_for_one_address_and_the_rest_for_others() -> None:
    room = Room(4)
    await room.knock("a1", "a2", "a3", "b1")
    assert room.inside == ["a1", "a2", "b1"]
    await room.leave("b1")
    assert room.inside == ["a1", "a2"], "a has its half"
    await room.leave("a1")
    assert room.inside == ["a2", "a3"]
    await room.leave("a2", "a3")


async def test_a_free_place_goes_to_the_address_with_the_fewest() -> None:
    room = Room(4)
    await room.knock("a1", "a2", "b1", "b2", "a3", "b3", "c1")
    assert room.inside == ["a1", "a2", "b1", "b2"]
    await room.leave("a1")
    assert room.inside == ["a2", "b1", "b2", "c1"]
    await room.leave("a2")
    assert room.inside == ["b1", "b2", "c1", "a3"]
    await room.leave("b1", "b2", "c1", "a3", "b3")


async def test_nothing_is_lost_whatever_comes_and_goes() -> None:
    """Whoever may have a place has one, whoever gives up waiting, or is called off in the moment of its turn."""
    rng = random.Random(5)
    room, most = Room(6), 6
    for step in range(3_000):
        if rng.random() < 0.5 or not room.tasks:
            await room.knock(f"{rng.choice('abcd')}{step}")
        elif rng.random() < 0.2 and len(room.inside) > 1:
            first, second = rng.sample(room.inside, 2)
            waiting = [name for name in room.tasks if name not in room.inside]
            gone = [room.tasks.pop(name) for name in (first, second, *waiting[:2])]
            for task in gone:  # their turn comes while they are called off
                task.cancel()
            await asyncio.wait(gone)
            await asyncio.sleep(0)
        else:
            await room.leave(rng.choice(list(room.tasks)))
        held = Counter(name[0] for name in room.inside)
        assert len(room.inside) <= most
        assert all(count <= most // 2 for count in held.values())
        for name in set(room.tasks) - set(room.inside):
            assert len(room.inside) == most or held[name[0]] == most // 2, name
    await room.leave(*list(room.tasks))
    await room.knock("a1", "a2", "a3", "b1", "b2", "b3", "c1")
    assert len(room.inside) == most
    await room.leave(*list(room.tasks))
