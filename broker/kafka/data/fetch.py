"""Kafka's Fetch over the replicas: returns available data, or waits for it. Records stay in their files until they are
sent.

There are no fetch sessions: every answer has session 0, and every request is a full one (KIP-227 lets a broker do
that). As in Kafka's ``FetchManager``, the epoch alone determines whether a request is full; a session that it names is
then closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol

from tidelog.broker.access.access import Access
from tidelog.broker.handlers.data_streams import FETCH_WAIT_MS_MAX
from tidelog.broker.kafka.data.topic_names import TopicNames, text_of
from tidelog.broker.kafka.wire.kafka_traffic import KafkaTraffic
from tidelog.broker.kafka.wire.outgoing import Piece, Receipt
from tidelog.broker.kafka.wire.pending import CloseConnection, Pending, Pieces
from tidelog.broker.memory_budget import MemoryBudget
from tidelog.broker.quotas.usage import RequestUsage
from tidelog.broker.traffic import Traffic
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, ZERO_TOPIC_ID, BrokerEpoch, LeaderEpoch, NodeId, Offset, TopicId
from tidelog.proto.kafka.fetch_codec import (
    API_KEY,
    BY_ID,
    KafkaFetch,
    decode_fetch,
    encode_fetch_refused,
    encode_fetched,
)
from tidelog.proto.transport.frames import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from tidelog.security.acls import AclOperation

READ_COMMITTED: Final = 1
ZSTD_FROM: Final = 10
"""The first version whose clients know zstd (KIP-110)."""
_FULL_EPOCHS: Final = (-1, 0)
"""``FetchMetadata``: a full request without a session, and one that asks for a new session."""
_NO_EPOCH: Final = BrokerEpoch(-1)
_ENDPOINTS_FROM: Final = 16


class FetchReplicas(Protocol):
    def fetch(self, request: FetchRequest, *, in_files: bool = False) -> asyncio.Future[FetchResponse]: ...


class Fetch:
    """The Fetch API of one listener. ``bytes_max`` bounds an answer, whatever the request says."""

    def __init__(
        self,
        replicas: FetchReplicas,
        names: TopicNames,
        traffic: Traffic,
        kafka: KafkaTraffic,
        bytes_max: int,
        budget: MemoryBudget,
        crowded: Callable[[], bool],
    ) -> None:
        """``crowded``: whether so many log files are held open that records should be copied; copies count in
        ``budget``."""
        self._budget = budget
        self._crowded = crowded
        self._replicas = replicas
        self._names = names
        self._traffic = traffic
        self._kafka = kafka
        self._bytes_max = bytes_max
        self._time = asyncio.get_running_loop().time

    def handle(
        self,
        version: int,
        head: bytes,
        body: memoryview,
        access: Access | None = None,
        usage: RequestUsage | None = None,
    ) -> Pieces | Pending:
        """Answer within the limits of ``access``, or start to wait. ``usage``: set if there are quotas. Raises
        ``BadMessage`` and :class:`CloseConnection`."""
        request = decode_fetch(version, body)
        self._traffic.fetch_requests += 1
        started = self._time()
        if request.replica_id >= 0:
            raise CloseConnection(
                f"expected a consumer's fetch (replica id -1), found replica id {request.replica_id}: "
                "followers replicate by another protocol"
            )
        if request.session_epoch not in _FULL_EPOCHS:
            self._kafka.failed(API_KEY, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return (encode_fetch_refused(version, head, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),)
        refused: dict[int, FetchedPartition] = {}
        parts: list[FetchPartition] = []
        number = 0
        for name, count in request.topics:
            topic_id = TopicId(name) if version >= BY_ID else self._names.id_of(name)
            fault = ErrorCode.NONE if access is None else self._denied(name, access, by_id=version >= BY_ID)
            if fault:
                pass
            elif topic_id is None:
                fault = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif version < ZSTD_FROM and self._names.is_zstd(topic_id):
                fault = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE  # source: KafkaApis.handleFetchRequest
            for wanted in request.parts[number : number + count]:
                if fault or topic_id is None:
                    refused[number] = FetchedPartition(topic_id or ZERO_TOPIC_ID, wanted.partition, fault)
                else:
                    parts.append(
                        FetchPartition(
                            topic_id,
                            wanted.partition,
                            LeaderEpoch(wanted.current_leader_epoch),
                            Offset(wanted.fetch_offset),
                            LeaderEpoch(wanted.last_fetched_epoch),
                            Offset(-1),
                            max(wanted.bytes_max, 0),
                        )
                    )
                number += 1
        bytes_max = min(max(request.bytes_max, 0), self._bytes_max)
        if usage is not None and (at_once := usage.fetches_at_once()) is not None:
            bytes_max = min(bytes_max, int(at_once))
        whole = FetchRequest(
            NO_NODE,
            _NO_EPOCH,
            0 if refused else min(max(request.wait_ms_max, 0), FETCH_WAIT_MS_MAX),
            min(max(request.bytes_min, 0), bytes_max),
            bytes_max,
            request.isolation_level == READ_COMMITTED,
            parts,
            rack=request.rack,
        )
        copies = self._crowded()
        if copies and self._budget.full:
            fetched = self._in_line(whole)
        else:
            fetched = self._replicas.fetch(whole, in_files=not copies)

        def finish(done: asyncio.Future[FetchResponse]) -> Pieces:
            if usage is not None:
                usage.watch.start()
            return self._answer(version, head, request, refused, started, done.result(), usage)

        if usage is not None:
            usage.watch.stop()
        return finish(fetched) if fetched.done() else Pending(fetched, finish, 0)

    def _denied(self, name: bytes, access: Access, *, by_id: bool) -> ErrorCode:
        if by_id:
            return self._names.by_id(TopicId(name), access, AclOperation.READ)
        may = access.topic(AclOperation.READ, text_of(name))
        return ErrorCode.NONE if may else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def _in_line(self, request: FetchRequest) -> asyncio.Future[FetchResponse]:
        """Read the log only once there is room for the result."""
        out: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()

        def start() -> None:
            if out.done():
                return
            fetched = self._replicas.fetch(request)
            out.add_done_callback(lambda _: fetched.cancel())
            fetched.add_done_callback(lambda _: None if out.done() else out.set_result(fetched.result()))

        self._budget.line_up(start)
        out.add_done_callback(lambda _: self._budget.leave(start))
        return out

    def _answer(
        self,
        version: int,
        head: bytes,
        request: KafkaFetch,
        refused: dict[int, FetchedPartition],
        started: float,
        response: FetchResponse,
        usage: RequestUsage | None,
    ) -> Pieces:
        results = list(response.partitions)
        if refused:
            rest = iter(results)
            results = [refused[number] if number in refused else next(rest) for number in range(len(request.parts))]
        if usage is not None and not usage.fetched(sum([item.size for item in results])):
            return _throttled(version, head, results, usage.told_ms)
        self._traffic.fetched(response, self._time() - started)
        leaders: set[NodeId] = set()
        for number, item in enumerate(results):
            if item.error:
                if item.error is ErrorCode.UNKNOWN_TOPIC_ID and number not in refused:
                    results[number] = item = self._elsewhere(item, by_id=version >= BY_ID)
                self._kafka.failed(API_KEY, item.error)
                if item.current_leader != NO_NODE:
                    leaders.add(item.current_leader)
        endpoints = self._names.endpoints(leaders) if leaders and version >= _ENDPOINTS_FROM else ()
        pieces: list[Piece] = []
        copied = 0
        for piece in encode_fetched(version, head, request.topics, results, endpoints):
            if isinstance(piece, FetchedPartition):
                pieces += piece.records
                pieces += piece.in_files
                copied += sum(map(len, piece.records))
            else:
                pieces.append(piece)
        if copied:
            self._budget.use(copied)
            pieces.append(Receipt(lambda: self._budget.give(copied)))
        return pieces

    def _elsewhere(self, item: FetchedPartition, *, by_id: bool) -> FetchedPartition:
        error, leader, epoch = self._names.not_here(item.topic_id, item.partition, by_id=by_id)
        return replace(item, error=error, current_leader=leader, current_leader_epoch=epoch)


def _throttled(version: int, head: bytes, results: Iterable[FetchedPartition], throttle_ms: int) -> Pieces:
    """Return an answer without partitions instead of these. Source: ``FullFetchContext.getThrottledResponse``."""
    for item in results:
        for piece in item.in_files:
            piece.release()
    return [piece for piece in encode_fetched(version, head, (), (), (), throttle_ms) if isinstance(piece, bytearray)]
