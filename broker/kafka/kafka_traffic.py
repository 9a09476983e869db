"""Plain counters of a node's Kafka listeners; :mod:`tidelog.broker.metric_sources` reads them at a scrape."""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)

LINES_A_SECOND: Final = 10
"""Log lines about what peers did wrong; whoever sends junk must not fill the disk with them."""


class KafkaTraffic:
    """What went through the connections of one node's Kafka listeners."""

    __slots__ = (
        "accepted",
        "bytes_from_files",
        "bytes_in",
        "bytes_out",
        "closed",
        "connections",
        "errors",
        "idle_closed",
        "malformed",
        "refused",
        "requests",
    )

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}
        """By API key."""
        self.errors: dict[tuple[int, int], int] = {}
        """By API key and error code."""
        self.connections = 0
        self.accepted = 0
        """So far, by all listeners of the node: the number of the newest connection."""
        self.closed = 0
        self.refused = 0
        """Connections beyond ``max.connections``."""
        self.idle_closed = 0
        self.malformed = 0
        """Connections closed for what they sent."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_from_files = 0
        """Of those, what the system sent from log files by itself."""

    def failed(self, api_key: int, error: int) -> None:
        """Count one refusal."""
        key = (api_key, error)
        self.errors[key] = self.errors.get(key, 0) + 1


class Notices:
    """Log lines about peers, at most :data:`LINES_A_SECOND`; the next one after a pause says how many there were."""

    __slots__ = ("_left", "_second", "_unsaid")

    def __init__(self) -> None:
        self._second = -1
        self._left = 0
        self._unsaid = 0

    def say(self, now_s: float, listener: str, peer: str, text: str) -> None:
        """Log who and why in one line."""
        if int(now_s) != self._second:
            self._second, self._left = int(now_s), LINES_A_SECOND
            if self._unsaid:
                log.warning("listener %s: %d more connections were closed for what they sent", listener, self._unsaid)
                self._unsaid = 0
        if self._left:
            self._left -= 1
            log.warning("listener %s: closing the connection of %s: %s", listener, peer, text)
        else:
            self._unsaid += 1
