"""Plain counters of a node's Kafka listeners; :mod:`tidelog.broker.metric_sources` reads them at a scrape."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from tidelog.model.errors import ErrorCode

log = logging.getLogger(__name__)

PRODUCE: Final = 0
FETCH: Final = 1
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
        self.requests: dict[int, int] = {PRODUCE: 0, FETCH: 0}
        """By API key."""
        self.errors: dict[tuple[int, int], int] = {(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER): 0}
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


def error_name(code: int) -> str:
    """Kafka's name of an error code, or the number where we have no use for it."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def count_errors(traffic: KafkaTraffic, api_key: int, answer: Mapping[str, Any]) -> None:
    """Count the error codes of an answer, those of its items included."""
    for name, value in answer.items():
        if name == "error_code":
            if value:
                traffic.failed(api_key, int(value))
        elif isinstance(value, Mapping):
            count_errors(traffic, api_key, value)
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
            for item in value:
                count_errors(traffic, api_key, item)


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
