"""Admin client calls for brokers' connections. Kafka has no such calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidelog.client.admin.base import AdminBase
from tidelog.model.ids import NodeId
from tidelog.proto.calls.connection_api import (
    CONNECTIONS_SHOWN,
    CloseConnectionsRequest,
    DescribeConnectionsRequest,
    OpenConnection,
)


class OpenConnections(NamedTuple):
    """Connections of one broker, and how many there are with those that are not listed."""

    connections: tuple[OpenConnection, ...]
    total: int


class ConnectionAdmin(AdminBase):
    """The calls of :class:`tidelog.client.admin.admin.AsyncAdmin` for connections."""

    async def describe_connections(
        self,
        principal: str = "",
        host: str = "",
        port: int = 0,
        *,
        nodes: Iterable[int] = (),
        limit: int = CONNECTIONS_SHOWN,
        timeout: float | None = None,
    ) -> dict[NodeId, OpenConnections]:
        """Return the connections to these (or all live) brokers: of this principal, from this host and port, as far as
        given. At most ``limit``, and 10,000, of each broker. Connections to gRPC listeners are known while they have
        streams. Raises ``ClusterAuthorizationFailedError``, and ``BrokerNotAvailableError`` for a broker that was
        named."""
        request = DescribeConnectionsRequest(principal, host, port, limit)
        answers = await self._ask_brokers(request, nodes, timeout)
        return {node: OpenConnections(answer.connections, answer.total) for node, answer in answers.items()}

    async def close_connections(
        self,
        principal: str = "",
        host: str = "",
        port: int = 0,
        *,
        nodes: Iterable[int] = (),
        timeout: float | None = None,
    ) -> dict[NodeId, int]:
        """Close the connections that :meth:`describe_connections` would return, and return how many on each broker. A
        principal or a host must be given. This client's own connection stays open.

        A Kafka listener closes the connection. At a gRPC listener its streams end, and without a port all logins of the
        principal, or from the host, are forgotten. Clients may connect again. Raises ``InvalidRequestError``,
        ``ClusterAuthorizationFailedError``, and ``BrokerNotAvailableError`` for a broker that was named."""
        answers = await self._ask_brokers(CloseConnectionsRequest(principal, host, port), nodes, timeout)
        return {node: answer.closed for node, answer in answers.items()}
