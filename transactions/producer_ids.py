"""Producer ids on a broker: blocks from the controller, assigned one by one (KIP-730).

The broker requests the next block when the current one runs low, so that an id is available without a wait if the
controller answers in time. Source: Kafka's ``RPCProducerIdManager``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import ProducerId

PREFETCH_BELOW: Final = 0.9
"""The used share of a block at which the next one is requested."""


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """``count`` ids from ``first`` on, reserved for this broker."""

    first: ProducerId
    count: int


AllocateBlock = Callable[[], Awaitable[ProducerIdBlock | None]]
"""Asks the controller; returns ``None`` if it does not answer in time. If the answer is lost, its block stays
unused."""


class ProducerIds:
    """Assigns ids that are unique in the cluster."""

    def __init__(self, allocate: AllocateBlock) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._prefetch_at = 0
        self._following: ProducerIdBlock | None = None
        self._asking: asyncio.Task[bool] | None = None

    async def next(self) -> ProducerId | None:
        """Return a fresh id; ``None`` if no block is left and the controller does not answer."""
        while self._next == self._end:
            if self._following is None:
                answered = await asyncio.shield(self._ask())
                if not answered:
                    return None
                continue  # other waiters may have used up the block: check again
            block, self._following = self._following, None
            self._next = block.first
            self._end = block.first + block.count
            self._prefetch_at = block.first + int(block.count * PREFETCH_BELOW)
        found = ProducerId(self._next)
        self._next += 1
        if self._next >= self._prefetch_at and self._following is None:
            self._ask()
        return found

    def close(self) -> None:
        """Stop requesting blocks."""
        if self._asking is not None:
            self._asking.cancel()

    def _ask(self) -> asyncio.Task[bool]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._fetch())
        return self._asking

    async def _fetch(self) -> bool:
        block = await self._allocate()
        if block is not None:
            self._following = block
        return block is not None
