"""The call with which brokers send audit log lines to its topic. Kafka has no such log.

Conventions as in :mod:`tidelog.proto.calls.api`.
"""

from __future__ import annotations

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.request import Request, Response


@dataclass(frozen=True, slots=True)
class AppendAuditRequest(Request["AppendAuditResponse"]):
    """To the leader of the topic's one partition, which appends all lines as one batch, or none."""

    lines: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AppendAuditResponse(Response):
    """NONE: all in-sync replicas have the lines. NOT_COORDINATOR and REQUEST_TIMED_OUT leave that open."""

    error: ErrorCode
    error_message: str = ""
