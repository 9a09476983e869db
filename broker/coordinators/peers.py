"""Connections to other brokers, by node id, at the addresses in the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.ids import NodeId
from tidelog.proto.transport.network import Address, Connection


class Peers:
    """One connection per broker, made on first use. It is kept until the broker's address changes or the broker is
    fenced: a fenced broker may hang, and requests waiting for it then belong elsewhere."""

    def __init__(self, listener: str, view: MetadataView, connect: Callable[[Address], Connection]) -> None:
        self._listener = listener
        self._view = view
        self._connect = connect
        self._connections: dict[NodeId, Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()
        view.subscribe(self._leave_fenced)

    def connection(self, node_id: NodeId) -> Connection | None:
        """Return the connection to a broker, ``None`` while the metadata has no address for it."""
        broker = self._view.image.broker(node_id)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        if endpoint is None:
            return None
        address = Address(endpoint.host, endpoint.port)
        known = self._connections.get(node_id)
        if known is not None:
            if known.address == address:
                return known
            self._close(known)
        made = self._connections[node_id] = self._connect(address)
        return made

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            self._close(connection)
        if self._closing:
            await asyncio.wait(self._closing)

    def _leave_fenced(self, image: MetadataImage, delta: MetadataDelta) -> Iterator[None]:
        for node_id in delta.brokers:
            broker = image.broker(node_id)
            if (broker is None or broker.fenced) and (connection := self._connections.pop(node_id, None)) is not None:
                self._close(connection)
        yield from ()

    def _close(self, connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
