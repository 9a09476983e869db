"""Counters of a node's Kafka listeners, as plain integers; :mod:`tidelog.broker.node.metric_sources` reads them at a
scrape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.model.errors import ErrorCode

PRODUCE: Final = 0
FETCH: Final = 1


class KafkaTraffic:
    """The traffic through one node's Kafka listeners."""

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
        """Total of all listeners of the node; the number of the newest connection."""
        self.closed = 0
        self.refused = 0
        """Connections beyond ``max.connections`` or ``max.connections.per.ip``."""
        self.idle_closed = 0
        self.malformed = 0
        """Connections closed because of what they sent."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_from_files = 0
        """The part of them that the system sent directly from log files."""

    def failed(self, api_key: int, error: int) -> None:
        """Count one refusal."""
        key = (api_key, error)
        self.errors[key] = self.errors.get(key, 0) + 1


def error_name(code: int) -> str:
    """Return Kafka's name of an error code, or the number if we do not use it."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def count_errors(traffic: KafkaTraffic, api_key: int, answer: Mapping[str, Any]) -> None:
    """Count the error codes in an answer, including those of its items."""
    for name, value in answer.items():
        if name == "error_code":
            if value:
                traffic.failed(api_key, int(value))
        elif isinstance(value, Mapping):
            count_errors(traffic, api_key, value)
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
            for item in value:
                count_errors(traffic, api_key, item)
