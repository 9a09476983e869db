"""Asks the hosts of brokers with overdue heartbeats whether the brokers still run.

A running host refuses connections to a killed process; the broker's session then need not run out. No guarantee depends
on that answer: a broker fenced by mistake loses its leaderships under newer epochs, as at the end of a session, and its
next heartbeat brings it back.
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
"""Shortest time between two rounds of requests."""

log = logging.getLogger(__name__)

Refuses = Callable[[Address], Awaitable[bool]]
"""Returns whether the host at an address says that the port is closed; false if it says nothing."""


class OverdueBrokers:
    """Asks, on the active controller, and ends the sessions of dead brokers. ``image``: the committed one."""

    def __init__(self, liveness: BrokerLiveness, image: Callable[[], MetadataImage], refuses: Refuses) -> None:
        self._liveness = liveness
        self._image = image
        self._refuses = refuses
        self._asked_ms = -ASK_AGAIN_MS
        self._asking = False

    def next_ms(self, now_ms: int) -> int | None:
        """Return when to check next for overdue brokers; ``None`` without an unfenced broker."""
        due_ms = self._liveness.next_overdue_ms()
        return None if due_ms is None else max(due_ms, now_ms + ASK_AGAIN_MS)

    def to_ask(self, now_ms: int) -> Mapping[NodeId, int]:
        """Return the brokers to :meth:`ask` about now, each with the time of its last contact."""
        if self._asking or now_ms < self._asked_ms + ASK_AGAIN_MS:
            return {}
        return self._liveness.overdue(now_ms)

    async def ask(self, overdue: Mapping[NodeId, int], now_ms: int) -> bool:
        """End the sessions of brokers whose hosts refuse connections to them; return whether there are any.

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
        """Return the brokers in ``asked`` that are unreachable at all their registered addresses."""
        answers = await asyncio.gather(*map(self._is_gone, asked))
        return {node_id: heard_ms for (node_id, heard_ms), gone in zip(asked.items(), answers, strict=True) if gone}

    async def _is_gone(self, node_id: NodeId) -> bool:
        found = self._image().broker(node_id)
        listeners = () if found is None else found.record.listeners
        for at in listeners:
            if not await self._refuses(Address(at.host, at.port)):
                return False
        return bool(listeners)
