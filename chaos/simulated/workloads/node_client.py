"""A client that asks a node of its choice, leader or not, and sees that node's exact answer."""

from __future__ import annotations

import functools
from typing import Final, TypeVar

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_LEADER_EPOCH, NO_OFFSET, BrokerEpoch, NodeId, Offset, TopicId
from tidelog.proto.calls.api import EARLIEST_TIMESTAMP, ListOffsetsPartition, ListOffsetsRequest
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.frames import FetchPartition, FetchRequest, decode_fetch_response, encode_fetch_request
from tidelog.proto.transport.memory_transport import MemoryNetwork
from tidelog.proto.transport.network import Address, Connection, StreamKind

R = TypeVar("R", bound=Response)

TRY_S: Final = 1.5
CONSUMER: Final = NodeId(-1)


def address_of(node_id: NodeId) -> Address:
    """Return the address of a node for clients."""
    return Address(f"node{node_id}", 9092)


class NodeClient:
    """One connection to each node, and streams on it. Raises what connections raise."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self._connections: dict[NodeId, Connection] = {}
        self._callers: dict[tuple[NodeId, StreamKind], FrameCaller] = {}

    async def call(self, node_id: NodeId, request: Request[R]) -> R:
        return await self._connection(node_id).call(request, timeout_s=TRY_S)

    async def offsets(self, node_id: NodeId, topic: str) -> ErrorCode:
        asked = ListOffsetsRequest((ListOffsetsPartition(topic, 0, EARLIEST_TIMESTAMP),))
        return (await self.call(node_id, asked)).results[0].error

    async def fetch(self, node_id: NodeId, topic_id: TopicId) -> ErrorCode:
        wanted = FetchPartition(topic_id, 0, NO_LEADER_EPOCH, Offset(0), NO_LEADER_EPOCH, NO_OFFSET, 1)
        fetch = FetchRequest(CONSUMER, BrokerEpoch(-1), 0, 0, 1, False, (wanted,))
        encode = functools.partial(encode_fetch_request, request=fetch)
        answer = decode_fetch_response(await self.caller(node_id, StreamKind.FETCH).submit(encode))[1]
        return answer.error or answer.partitions[0].error

    def caller(self, node_id: NodeId, kind: StreamKind) -> FrameCaller:
        found = self._callers.get((node_id, kind))
        if found is None:
            found = FrameCaller(self._connection(node_id), kind, open_timeout_s=TRY_S)
            self._callers[node_id, kind] = found
        return found

    async def hang_up(self, node_id: NodeId) -> None:
        for key in [key for key in self._callers if key[0] == node_id]:
            self._callers.pop(key).reset("tried elsewhere")
        if (connection := self._connections.pop(node_id, None)) is not None:
            await connection.close()

    def _connection(self, node_id: NodeId) -> Connection:
        found = self._connections.get(node_id)
        if found is None:
            found = self._connections[node_id] = self.network.connect(address_of(node_id))
        return found
