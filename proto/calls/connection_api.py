"""The calls about a broker's connections: describe and close. Kafka has no such calls.

Conventions as in :mod:`tidelog.proto.calls.api`.
"""

from __future__ import annotations

from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.request import Request, Response

CONNECTIONS_SHOWN: Final = 1_000
CONNECTIONS_SHOWN_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """``idle_ms``, ``bytes_in`` and ``bytes_out``: -1 if the listener does not know, as with gRPC."""

    listener: str
    host: str
    port: int
    security_protocol: str
    principal: str
    client_id: str
    """As the client's last request that carried one said."""
    software: str
    """As the client reports it (KIP-511); "gRPC" at gRPC listeners."""
    age_ms: int
    idle_ms: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class DescribeConnectionsRequest(Request["DescribeConnectionsResponse"]):
    """The connections of this principal ("": any), from this host ("": any) and port (0: any)."""

    principal: str = ""
    host: str = ""
    port: int = 0
    connections_max: int = CONNECTIONS_SHOWN


@dataclass(frozen=True, slots=True)
class DescribeConnectionsResponse(Response):
    """``total``: how many match; at most ``connections_max`` are listed."""

    connections: tuple[OpenConnection, ...] = ()
    total: int = 0
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class CloseConnectionsRequest(Request["CloseConnectionsResponse"]):
    """As :class:`DescribeConnectionsRequest`, but a principal or a host must be given. The caller's own connection
    stays open."""

    principal: str = ""
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class CloseConnectionsResponse(Response):
    closed: int = 0
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""
