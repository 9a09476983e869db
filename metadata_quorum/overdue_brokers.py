"""Asks the hosts of brokers whose heartbeats are overdue what became of them.

Nobody accepts connections for a process that was killed; if its host still runs, it says so, and the broker's session
need not run out. No promise rests on that word: a broker that was fenced by mistake loses its leaderships under newer
epochs, as at the end of a session, and its next heartbeat brings it back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tidelog.metadata_quorum.controller.broker_liveness import BrokerLiveness
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.ids import NodeId
from tidelog.proto.transport.network import Address

ASK_AGAIN_MS: Final = 100
"""Least time between two rounds of questions."""

log = logging.getLogger(__name__)

Refuses = Callable[[Address], Awaitable[bool]]
"""Whether the host at an address says that nobody listens there; false if it says nothing."""


class OverdueBrokers:
    """Asks, on the active controller, and ends the sessions of those that are gone. ``image``: the committed one."""

    def __init__(self, liveness: BrokerLiveness, image: Callable[[], MetadataImage], refuses: Refuses) -> None:
        self._liveness = liveness
        self._image = image
        self._refuses = refuses
        self._asked_ms = -ASK_AGAIN_MS
        self._asking = False

    def next_ms(self, now_ms: int) -> int | None:
        """When to look next whether somebody is overdue; ``None`` without an unfenced broker."""
        due_ms = self._liveness.next_overdue_ms()
        return None if due_ms is None else max(due_ms, now_ms + ASK_AGAIN_MS)

    def to_ask(self, now_ms: int) -> Mapping[NodeId, int]:
        """The brokers to :meth:`ask` about now, each with when it was last heard from."""
        if self._asking or now_ms < self._asked_ms + ASK_AGAIN_MS:
            return {}
        return self._liveness.overdue(now_ms)

    async def ask(self, overdue: Mapping[NodeId, int], now_ms: int) -> bool:
        """End the sessions of those whose hosts refuse connections to them; returns whether there are any.

        If there is one, ask about all brokers: its leaderships must not go to others that died with it.
        """
        self._asking, self._asked_ms = True, now_ms
        try:
            gone = await self._gone(overdue)
            if gone:
                others = {at: ms for at, ms in self._liveness.unfenced().items() if at not in overdue}
                gone |= await self._gone(others)
        finally:
            self._asking = False
        for node_id, heard_ms in gone.items():
            log.warning("broker %d is gone: its host refuses connections to it", node_id)
            self._liveness.lost(node_id, heard_ms)
        return bool(gone)

    async def _gone(self, asked: Mapping[NodeId, int]) -> dict[NodeId, int]:
        """Those of ``asked`` that none of their registered addresses leads to."""
        answers = await asyncio.gather(*map(self._is_gone, asked))
        return {node_id: heard_ms for (node_id, heard_ms), gone in zip(asked.items(), answers, strict=True) if gone}

    async def _is_gone(self, node_id: NodeId) -> bool:
        found = self._image().broker(node_id)
        listeners = () if found is None else found.record.listeners
        for at in listeners:
            if not await self._refuses(Address(at.host, at.port)):
                return False
        return bool(listeners)
