"""Reads a partition's batches as they are, below the high watermark: for backups, links and comparisons."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.errors import OffsetOutOfRangeError, exception_for
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    NO_LEADER_EPOCH,
    NO_NODE,
    NO_OFFSET,
    BrokerEpoch,
    LeaderEpoch,
    NodeId,
    Offset,
    TopicPartition,
)
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.frames import (
    ANY_REPLICA,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.proto.transport.network import Connection, Frame, StreamKind

_ANSWER_S: Final = 30.0


class RawFetcher:
    """Asks leaders, through a consumer's fetch, or any replica. One request per partition at a time."""

    def __init__(self, cluster: Cluster, bytes_max: int) -> None:
        """``bytes_max``: of one answer; a larger batch comes whole."""
        self._cluster = cluster
        self._bytes_max = bytes_max
        self._callers: dict[Connection, FrameCaller] = {}

    async def close(self) -> None:
        for caller in self._callers.values():
            await caller.close()

    async def fetch(
        self, at: TopicPartition, position: int, last_epoch: int, timeout_ms: int, *, read_committed: bool = False
    ) -> FetchedPartition:
        """Return what the leader has from ``position`` on; ``last_epoch``: the leader epoch of the batch before that,
        -1 if none was read. With ``read_committed``, only data below the last stable offset, and the aborted
        transactions by name. Raises ``OffsetOutOfRangeError`` also if the leader's log is not the one that was read,
        ``ConnectionLost``, ``TimeoutError`` and the leader's errors."""
        view = await self._cluster.topic(at.topic, timeout_ms)
        node = self._cluster.cache.leader_of(*at)
        connection = None if node == NO_NODE else self._cluster.connection(node)
        if connection is None:
            raise exception_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{at}: has no reachable leader")
        wanted = FetchPartition(
            view.topic_id,
            at.partition,
            view.partitions[at.partition].leader_epoch,
            Offset(position),
            LeaderEpoch(last_epoch),
            NO_OFFSET,
            self._bytes_max,
        )
        found = await self._ask(connection, NO_NODE, at, wanted, read_committed=read_committed)
        if found.error is ErrorCode.OFFSET_OUT_OF_RANGE or found.diverging_epoch >= 0:
            raise OffsetOutOfRangeError(f"{at}: the copied records are not in the leader's log")
        if found.error is not ErrorCode.NONE:
            raise exception_for(found.error, f"{at}: {found.error.name}")
        return found

    async def fetch_from(self, node: int, at: TopicPartition, position: int, timeout_ms: int) -> FetchedPartition:
        """Return what the replica on this broker has from ``position`` on, whether it leads or not, below the high
        watermark that it knows; its error is in the answer. Raises ``BrokerNotAvailableError``, ``ConnectionLost`` and
        ``TimeoutError``."""
        view = await self._cluster.topic(at.topic, timeout_ms)
        connection = self._cluster.connection(NodeId(node))
        if connection is None:
            raise exception_for(ErrorCode.BROKER_NOT_AVAILABLE, f"{at}: broker {node} is unreachable")
        wanted = FetchPartition(
            view.topic_id, at.partition, NO_LEADER_EPOCH, Offset(position), NO_LEADER_EPOCH, NO_OFFSET, self._bytes_max
        )
        return await self._ask(connection, ANY_REPLICA, at, wanted)

    async def _ask(
        self,
        connection: Connection,
        replica_id: NodeId,
        at: TopicPartition,
        wanted: FetchPartition,
        *,
        read_committed: bool = False,
    ) -> FetchedPartition:
        caller = self._callers.get(connection)
        if caller is None:
            caller = self._callers[connection] = FrameCaller(connection, StreamKind.FETCH)
        request = FetchRequest(replica_id, BrokerEpoch(-1), 0, 0, self._bytes_max, read_committed, [wanted])
        async with asyncio.timeout(_ANSWER_S):
            response = decode_fetch_response(await caller.submit(partial(_encode, request)))[1]
        if response.error is not ErrorCode.NONE:
            raise exception_for(response.error, f"{at}: {response.error.name}")
        (found,) = response.partitions
        return found


def _encode(request: FetchRequest, correlation: int) -> Frame:
    return encode_fetch_request(correlation, request)
