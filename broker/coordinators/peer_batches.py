"""Sends small items to other brokers in batches: items of one turn of the event loop go out together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from tidelog.model.ids import NodeId

BATCH_ITEMS_MAX: Final = 1_000

Item = TypeVar("Item")


class PeerBatches(Generic[Item]):
    """``send`` sends a batch to a broker and handles every outcome; an exception from it is a bug.

    The callers that add work bound what waits.
    """

    def __init__(
        self,
        send: Callable[[NodeId, list[Item]], Awaitable[None]],
        on_fatal: Callable[[BaseException], None],
        *,
        under_way_max: int,
    ) -> None:
        """``under_way_max``: maximum batches in flight to one broker; items that arrive in the meantime go out
        together."""
        self._send = send
        self._under_way_max = under_way_max
        self._on_fatal = on_fatal
        self._waiting: dict[NodeId, deque[Item]] = {}
        self._under_way: dict[NodeId, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._flush: asyncio.Handle | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, node_id: NodeId, item: Item) -> None:
        """Send the item to a broker after this turn of the loop, in the order of calls."""
        self._waiting.setdefault(node_id, deque()).append(item)
        if self._flush is None and not self._closed:
            self._flush = asyncio.get_running_loop().call_soon(self._send_all)

    def close(self) -> None:
        """Drop what waits and what is in flight."""
        self._closed = True
        self._waiting.clear()
        for task in tuple(self._tasks):
            task.cancel()
        if self._flush is not None:
            self._flush.cancel()

    def _send_all(self) -> None:
        self._flush = None
        for node_id in list(self._waiting):
            self._send_some(node_id)

    def _send_some(self, node_id: NodeId) -> None:
        waiting = self._waiting.get(node_id)
        while waiting and self._under_way.get(node_id, 0) < self._under_way_max:
            items = [waiting.popleft() for _ in range(min(len(waiting), BATCH_ITEMS_MAX))]
            self._under_way[node_id] = self._under_way.get(node_id, 0) + 1
            task = asyncio.get_running_loop().create_task(self._one(node_id, items), name="batch for a broker")
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        if not waiting:
            self._waiting.pop(node_id, None)

    async def _one(self, node_id: NodeId, items: list[Item]) -> None:
        try:
            await self._send(node_id, items)
        finally:
            self._under_way[node_id] -= 1
            if not self._closed:
                self._send_some(node_id)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._on_fatal(bug)
