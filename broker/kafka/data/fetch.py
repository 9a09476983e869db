"""Kafka's Fetch over the replicas: returns available data, or waits for it. Records stay in their files until they are
sent.

A request is a full one, or names only what is different in its session (:mod:`tidelog.broker.kafka.fetch_sessions`). As
in Kafka's ``FetchManager``, the epoch alone determines which; a full one closes the session that it names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol

from tidelog.broker.access.access import Access
from tidelog.broker.handlers.data_streams import FETCH_WAIT_MS_MAX
from tidelog.broker.kafka.data.topic_names import TopicNames, text_of
from tidelog.broker.kafka.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    FetchSessionCache,
    Stamp,
    next_epoch,
)
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
    encode_in_steps,
)
from tidelog.proto.transport.frames import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from tidelog.replication.serving.slices import SLICE, Sliced, Steps
from tidelog.replication.serving.standing import Standing
from tidelog.security.acls import AclOperation
from tidelog.security.principal import ANONYMOUS, Principal

READ_COMMITTED: Final = 1
ZSTD_FROM: Final = 10
"""The first version whose clients know zstd (KIP-110)."""
_FULL_EPOCHS: Final = (FINAL_EPOCH, INITIAL_EPOCH)
"""``FetchMetadata``: a full request without a session, and one that asks for a new session."""
_NO_EPOCH: Final = BrokerEpoch(-1)
_ENDPOINTS_FROM: Final = 16


class FetchReplicas(Protocol):
    def fetch(self, request: FetchRequest, *, in_files: bool = False) -> asyncio.Future[FetchResponse]: ...
    def fetch_standing(
        self, standing: Standing, request: FetchRequest, *, in_files: bool = False
    ) -> asyncio.Future[FetchResponse]: ...


class _Call(NamedTuple):
    """One request and its surroundings."""

    version: int
    head: bytes
    request: KafkaFetch
    access: Access | None
    usage: RequestUsage | None
    principal: Principal
    started_s: float

    @property
    def by_id(self) -> bool:
        return self.version >= BY_ID


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
        sessions: FetchSessionCache,
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
        self._sessions = sessions
        self._time = asyncio.get_running_loop().time

    def handle(
        self,
        version: int,
        head: bytes,
        body: memoryview,
        access: Access | None = None,
        usage: RequestUsage | None = None,
        principal: Principal = ANONYMOUS,
    ) -> Pieces | Pending:
        """Answer within the limits of ``access``, or start to wait. ``usage``: set if there are quotas. Raises
        ``BadMessage`` and :class:`CloseConnection`."""
        request = decode_fetch(version, body)
        self._traffic.fetch_requests += 1
        if request.replica_id >= 0:
            raise CloseConnection(
                f"expected a consumer's fetch (replica id -1), found replica id {request.replica_id}: "
                "followers replicate by another protocol"
            )
        call = _Call(version, head, request, access, usage, principal, self._time())
        if request.session_epoch in _FULL_EPOCHS:
            named = self._sessions.find(request.session_id, principal)
            if named is not None:
                self._sessions.remove(named)
            steps = self._whole(call)
        else:
            session = self._sessions.find(request.session_id, principal)
            fault = _session_fault(session, request, by_id=call.by_id)
            if fault or session is None:
                return self._refuse(call, fault)
            session.epoch = next_epoch(session.epoch)
            steps = self._incremental(call, session)
        if usage is not None:
            steps = _timed(steps, usage)
        future = Sliced(steps).begin()
        return future.result() if future.done() else Pending(future, asyncio.Future.result, 0)

    def _refuse(self, call: _Call, error: ErrorCode) -> Pieces:
        self._kafka.failed(API_KEY, error)
        return (encode_fetch_refused(call.version, call.head, error),)

    # --- Whole requests -------------------------------------------------------------------------------

    def _whole(self, call: _Call) -> Steps[Pieces]:
        """A request that stands alone, or opens a session."""
        request = call.request
        refused: dict[int, FetchedPartition] = {}
        parts: list[FetchPartition] = []
        number = 0
        for name, count in request.topics:
            topic_id, fault = self._judge(call, name)
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
                if not number % SLICE:
                    yield None
        response = yield from _awaited(self._begin(call, parts, self._replicas.fetch, waits=not refused))
        results = self._found(call, response)
        if refused:
            rest = iter(results)
            results = [refused[number] if number in refused else next(rest) for number in range(len(request.parts))]
        if call.usage is not None and not self._may_send(call.usage, results):
            return _throttled(call, results, NO_SESSION)
        session_id = NO_SESSION
        try:
            if request.session_epoch == INITIAL_EPOCH:
                session_id = yield from self._open(call, results)
            return (yield from self._answer(call, response, request.topics, results, session_id))
        except GeneratorExit:
            _release(results)
            raise

    def _open(self, call: _Call, results: Sequence[FetchedPartition]) -> Steps[int]:
        request = call.request
        session = self._sessions.open(call.principal, len(request.parts), call.by_id, self._now_ms())
        if session is None:
            return NO_SESSION
        judge = partial(self._judge, call)
        number = 0
        for name, count in request.topics:
            for wanted in request.parts[number : number + count]:
                session.put(name, wanted, judge).says(results[number])
                number += 1
                if not number % SLICE:
                    yield None
        return session.session_id if self._sessions.touch(session, self._now_ms()) else NO_SESSION

    # --- Sessions -------------------------------------------------------------------------------------

    def _incremental(self, call: _Call, session: FetchSession) -> Steps[Pieces]:
        request, epoch = call.request, session.epoch
        judge = partial(self._judge, call)
        session.judge(judge, self._stamp(call))
        number = 0
        for name, count in request.topics:
            for wanted in request.parts[number : number + count]:
                session.put(name, wanted, judge)
                number += 1
                if not number % SLICE:
                    yield None
        for name, partitions in request.forgotten:
            session.forget(name, partitions)
        if not session.size:
            self._sessions.remove(session)
            return (yield from self._whole(call))
        if not self._sessions.touch(session, self._now_ms()):
            return self._refuse(call, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        refused = list(session.refused())
        standing = partial(self._replicas.fetch_standing, session.standing)
        response = yield from _awaited(self._begin(call, (), standing, waits=not refused))
        if session.epoch != epoch:
            _release(response.partitions)
            return self._refuse(call, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        found: dict[bytes, list[FetchedPartition]] = {}
        names = {topic.topic_id: name for name, topic in session.topics.items()} if response.partitions else {}
        for item in self._found(call, response):
            found.setdefault(names[item.topic_id], []).append(item)
        if call.usage is not None and not self._may_send(call.usage, response.partitions):
            for name, items in found.items():
                for item in items:
                    session.untold(name, item)
            return _throttled(call, response.partitions, session.session_id)
        found.update(refused)
        topics = [(name, len(items)) for name, items in found.items()]
        results = [item for items in found.values() for item in items]
        try:
            return (yield from self._answer(call, response, topics, results, session.session_id))
        except GeneratorExit:
            _release(results)
            raise

    def _stamp(self, call: _Call) -> Stamp | None:
        """``None``: the audit log wants to hear of each question."""
        access = call.access
        if access is not None and access.trail is not None and (access.trail.allowed or access.trail.denied):
            return None
        rights = 0 if access is None else access.authorizer.version
        return Stamp(self._names.version, rights, call.version >= ZSTD_FROM)

    # --- Both -----------------------------------------------------------------------------------------

    def _judge(self, call: _Call, name: bytes) -> tuple[TopicId | None, ErrorCode]:
        """The topic's id, and why it may not be read."""
        topic_id = TopicId(name) if call.by_id else self._names.id_of(name)
        fault = ErrorCode.NONE if call.access is None else self._denied(name, call.access, by_id=call.by_id)
        if fault:
            pass
        elif topic_id is None:
            fault = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif call.version < ZSTD_FROM and self._names.is_zstd(topic_id):
            fault = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE  # source: KafkaApis.handleFetchRequest
        return topic_id, fault

    def _denied(self, name: bytes, access: Access, *, by_id: bool) -> ErrorCode:
        if by_id:
            return self._names.by_id(TopicId(name), access, AclOperation.READ)
        may = access.topic(AclOperation.READ, text_of(name))
        return ErrorCode.NONE if may else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def _begin(
        self, call: _Call, parts: Sequence[FetchPartition], fetch: _Begin, *, waits: bool
    ) -> asyncio.Future[FetchResponse]:
        """Read, or wait; ``waits``: nothing is refused, so that there is something to wait for."""
        request, bytes_max = call.request, min(max(call.request.bytes_max, 0), self._bytes_max)
        if call.usage is not None and (at_once := call.usage.fetches_at_once()) is not None:
            bytes_max = min(bytes_max, int(at_once))
        whole = FetchRequest(
            NO_NODE,
            _NO_EPOCH,
            min(max(request.wait_ms_max, 0), FETCH_WAIT_MS_MAX) if waits else 0,
            min(max(request.bytes_min, 0), bytes_max),
            bytes_max,
            request.isolation_level == READ_COMMITTED,
            parts,
            rack=request.rack,
        )
        copies = self._crowded()
        if copies and self._budget.full:
            return self._in_line(partial(fetch, whole))
        return fetch(whole, in_files=not copies)

    def _in_line(self, fetch: Callable[[], asyncio.Future[FetchResponse]]) -> asyncio.Future[FetchResponse]:
        """Read the log only once there is room for the result."""
        out: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()

        def start() -> None:
            if out.done():
                return
            fetched = fetch()
            out.add_done_callback(lambda _: fetched.cancel())
            fetched.add_done_callback(lambda _: None if out.done() else out.set_result(fetched.result()))

        self._budget.line_up(start)
        out.add_done_callback(lambda _: self._budget.leave(start))
        return out

    @staticmethod
    def _may_send(usage: RequestUsage, results: Sequence[FetchedPartition]) -> bool:
        return usage.fetched(sum([item.size for item in results]))

    def _answer(
        self,
        call: _Call,
        response: FetchResponse,
        topics: Sequence[tuple[bytes, int]],
        results: Sequence[FetchedPartition],
        session_id: int,
    ) -> Steps[Pieces]:
        self._traffic.fetched(response, self._time() - call.started_s)
        leaders: set[NodeId] = set()
        for item in results:
            if item.error:
                self._kafka.failed(API_KEY, item.error)
                if item.current_leader != NO_NODE:
                    leaders.add(item.current_leader)
        endpoints = self._names.endpoints(leaders) if leaders and call.version >= _ENDPOINTS_FROM else ()
        encoded = yield from encode_in_steps(
            call.version, call.head, topics, results, SLICE, endpoints, session_id=session_id
        )
        pieces: list[Piece] = []
        copied = 0
        for piece in encoded:
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

    def _found(self, call: _Call, response: FetchResponse) -> list[FetchedPartition]:
        """What the replicas said. A partition that is not here may be elsewhere."""
        found = list(response.partitions)
        for number, item in enumerate(found):
            if item.error is ErrorCode.UNKNOWN_TOPIC_ID:
                error, leader, epoch = self._names.not_here(item.topic_id, item.partition, by_id=call.by_id)
                found[number] = replace(item, error=error, current_leader=leader, current_leader_epoch=epoch)
        return found

    def _now_ms(self) -> int:
        return int(self._time() * 1000)


class _Begin(Protocol):
    def __call__(self, request: FetchRequest, *, in_files: bool = False) -> asyncio.Future[FetchResponse]: ...


def _session_fault(session: FetchSession | None, request: KafkaFetch, *, by_id: bool) -> ErrorCode:
    """Source: ``FetchManager.newContext``."""
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != request.session_epoch:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    if session.is_by_id != by_id:
        return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    return ErrorCode.NONE


def _throttled(call: _Call, results: Iterable[FetchedPartition], session_id: int) -> Pieces:
    """Return an answer without partitions instead of these. Source: ``FetchContext.getThrottledResponse``."""
    assert call.usage is not None
    _release(results)
    encoded = encode_fetched(call.version, call.head, (), (), (), call.usage.told_ms, session_id)
    return [piece for piece in encoded if isinstance(piece, bytearray)]


def _awaited(fetched: asyncio.Future[FetchResponse]) -> Steps[FetchResponse]:
    """The result; what nobody waits for any more is released."""
    if not fetched.done():
        try:
            yield fetched
        except GeneratorExit:
            if not fetched.cancel() and not fetched.cancelled():
                _release(fetched.result().partitions)
            raise
    return fetched.result()


def _release(results: Iterable[FetchedPartition]) -> None:
    for item in results:
        for piece in item.in_files:
            piece.release()


def _timed(steps: Steps[Pieces], usage: RequestUsage) -> Steps[Pieces]:
    """The same steps; the time between them is not the client's."""
    try:
        while True:
            try:
                waited = next(steps)
            except StopIteration as end:
                pieces: Pieces = end.value
                return pieces
            usage.watch.stop()
            yield waited
            usage.watch.start()
    finally:
        steps.close()
