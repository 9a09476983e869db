"""Shares one query among a person's streams that want it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

KEPT_S: Final = 30.0


class Shared:
    """See the module. Used from one event loop."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, key: tuple[str, str], fresh_s: float, take: Callable[[], asyncio.Future[Any]]) -> Any:
        now = asyncio.get_running_loop().time()
        self._taken = {known: one for known, one in self._taken.items() if not one[1].done() or now - one[0] < KEPT_S}
        at, future = self._taken.get(key, (0.0, None))
        if future is None or (future.done() and now - at >= fresh_s):
            future = take()
            self._taken[key] = (now, future)
        return await asyncio.shield(future)
