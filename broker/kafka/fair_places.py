"""Places for work that strangers can hold up. No address gets all of them, and a free place goes to the address with
the fewest."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairPlaces:
    """``most`` places, at most half of them for one address."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._each_max = max(most // 2, 1)
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """Hold a place, after waiting for one."""
        if self._may_have(address):
            self._take(address)
        else:
            await self._wait(address)
        try:
            yield
        finally:
            self._give(address)

    def _may_have(self, address: str) -> bool:
        return self._free > 0 and self._held.get(address, 0) < self._each_max

    async def _wait(self, address: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(address, turn)
            else:  # it was granted at the same moment
                self._give(address)
            raise

    def _take(self, address: str) -> None:
        self._free -= 1
        self._held[address] += 1

    def _give(self, address: str) -> None:
        self._free += 1
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]
        while able := [each for each in self._waiting if self._held.get(each, 0) < self._each_max]:
            following = min(able, key=lambda each: self._held.get(each, 0))
            turn = self._waiting[following][0]
            self._forget(following, turn)
            if not turn.cancelled():  # its task has not noticed yet
                self._take(following)
                turn.set_result(None)
                return

    def _forget(self, address: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(address)
        if waiting is not None and turn in waiting:
            waiting.remove(turn)
            if not waiting:
                del self._waiting[address]
