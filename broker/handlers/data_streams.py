"""Clients' produce and fetch streams: frames in, frames out, over the replicas.

A produce frame is appended when it arrives, before the next one is examined, so the order of a stream is the order of
the log. While an answer waits (for the high watermark, or a long poll), it delays neither later frames nor their
answers. Frames do not create tasks: an answer is a future's callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from tidelog.broker.futures import follow, then
from tidelog.broker.memory_budget import MemoryBudget
from tidelog.broker.quotas.usage import StreamUsage
from tidelog.broker.traffic import Traffic
from tidelog.model.ids import NO_NODE
from tidelog.proto.transport.frames import (
    ANY_REPLICA,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProduceRequest,
    decode_fetch_request,
    decode_produce_request,
    encode_fetch_response,
    encode_produce_response,
)
from tidelog.proto.transport.network import BadFrame, Frame
from tidelog.replication.partition.waiters import Produced

CARRIER_GRACE_S: Final = 0.1
"""How long the transport may still hold what it received for an ended stream. Without this, if forty consumers leave
simultaneously, each would make room for an answer to the next one about to leave."""
FETCH_WAIT_MS_MAX: Final = 60_000
"""Maximum long poll; longer ones are cut to it."""


class DataReplicas(Protocol):
    """The methods that the streams need of the replica manager."""

    def produce(self, request: ProduceRequest) -> Produced:
        """Append now, in order; the answer waits as ``acks`` requires."""

    def fetch(self, request: FetchRequest) -> asyncio.Future[FetchResponse]: ...


class ProduceSession:
    """One producer's stream. ``bytes_max`` bounds its unanswered bytes, the budget those of the node.

    Nothing is read before ``ready``: a starting node would deny partitions that it is about to lead.
    """

    def __init__(
        self,
        replicas: DataReplicas,
        budget: MemoryBudget,
        traffic: Traffic,
        bytes_max: int,
        ready: asyncio.Event,
        usage: StreamUsage,
    ) -> None:
        self._usage = usage
        self._replicas = replicas
        self._ready = ready
        self._budget = budget
        self._traffic = traffic
        self._bytes_max = bytes_max
        self._bytes_held = 0
        self._room: asyncio.Future[None] | None = None
        self._open = True
        self._time = asyncio.get_running_loop().time
        traffic.produce_streams += 1

    def hold(self) -> Awaitable[object] | None:
        if not self._ready.is_set():
            return self._ready.wait()
        if self._bytes_held >= self._bytes_max:
            if self._room is None or self._room.done():
                self._room = asyncio.get_running_loop().create_future()
            return self._room
        return self._budget.pause() or self._usage.hold()

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame:
        correlation, request = decode_produce_request(frame)
        size = len(frame)
        self._traffic.produce_requests += 1
        started = self._time()
        produced = self._replicas.produce(request)
        self._usage.produced(size, self._time() - started)
        if isinstance(produced, list):
            return self._answer(correlation, started, produced)
        self._bytes_held += size
        self._budget.use(size)

        def finish(done: asyncio.Future[list[ProducedPartition]]) -> Frame:
            self._give(size)
            return self._answer(correlation, started, done.result())

        return then(produced, finish)

    def on_written(self, frame: Frame) -> None:
        """Do nothing: a small answer holds no memory."""

    def on_close(self) -> None:
        # Return what the stream still held: a cancelled answer never finishes.
        if self._open:
            self._open = False
            self._traffic.produce_streams -= 1
            self._budget.give(self._bytes_held)

    def _answer(self, correlation: int, started: float, produced: list[ProducedPartition]) -> Frame:
        self._traffic.produced(produced, self._time() - started)
        return encode_produce_response(correlation, produced)

    def _give(self, size: int) -> None:
        if not self._open:
            return
        self._bytes_held -= size
        self._budget.give(size)
        if self._room is not None and not self._room.done() and self._bytes_held < self._bytes_max:
            self._room.set_result(None)


class _Waiting(NamedTuple):
    """A queued fetch: what starts it, and a future that completes once it has started."""

    start: Callable[[], None]
    started: asyncio.Future[None]


class FetchSession:
    """One consumer's stream. Bytes count from reading until the transport has taken the answer."""

    def __init__(
        self,
        replicas: DataReplicas,
        budget: MemoryBudget,
        traffic: Traffic,
        response_bytes_max: int,
        ready: asyncio.Event,
        usage: StreamUsage,
    ) -> None:
        self._usage = usage
        self._time = asyncio.get_running_loop().time
        self._ready = ready
        self._replicas = replicas
        self._budget = budget
        self._traffic = traffic
        self._response_bytes_max = response_bytes_max
        self._unwritten: dict[int, int] = {}
        self._in_line: _Waiting | None = None
        self._open = True
        traffic.fetch_streams += 1

    def hold(self) -> Awaitable[object] | None:
        if not self._ready.is_set():
            return self._ready.wait()
        return self._usage.hold() if self._in_line is None else self._in_line.started

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame:
        correlation, request = decode_fetch_request(frame)
        self._traffic.fetch_requests += 1
        if request.replica_id not in (NO_NODE, ANY_REPLICA):
            # A follower's fetch moves high watermarks: it has its own kind of stream.
            raise BadFrame(f"expected a consumer's fetch (replica id -1), found replica id {request.replica_id}")
        bytes_max = self._response_bytes_max
        if (at_once := self._usage.fetches_at_once()) is not None:
            bytes_max = min(bytes_max, int(at_once))
        if request.bytes_max > bytes_max or request.wait_ms_max > FETCH_WAIT_MS_MAX:
            request = replace(
                request,
                bytes_max=min(request.bytes_max, bytes_max),
                bytes_min=min(request.bytes_min, bytes_max),
                wait_ms_max=min(request.wait_ms_max, FETCH_WAIT_MS_MAX),
            )
        started = self._time()
        if self._budget.full:
            return self._wait(correlation, started, request)
        fetched = self._replicas.fetch(request)
        self._usage.fetched(0, self._time() - started)
        if fetched.done():
            return self._answer(correlation, started, fetched)
        return then(fetched, lambda done: self._answer(correlation, started, done))

    def _wait(self, correlation: int, began: float, request: FetchRequest) -> asyncio.Future[Frame]:
        """Read the log only once there is room for the result."""
        out: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

        def start() -> None:
            self._in_line = None
            if not waiting.started.done():
                waiting.started.set_result(None)
            if out.done():
                return
            fetched = self._replicas.fetch(request)
            if fetched.done():
                out.set_result(self._answer(correlation, began, fetched))
            else:
                follow(out, fetched, lambda done: self._answer(correlation, began, done))

        waiting = self._in_line = _Waiting(start, asyncio.get_running_loop().create_future())
        self._budget.line_up(start)
        return out

    def on_written(self, frame: Frame) -> None:
        size = self._unwritten.pop(id(frame), None)
        if size is not None:
            self._budget.give(size)

    def on_close(self) -> None:
        if self._open:
            self._open = False
            self._traffic.fetch_streams -= 1
            if self._in_line is not None:
                self._budget.leave(self._in_line.start)
            held, self._unwritten = sum(self._unwritten.values()), {}
            if held:
                asyncio.get_running_loop().call_later(CARRIER_GRACE_S, self._budget.give, held)

    def _answer(self, correlation: int, began: float, done: asyncio.Future[FetchResponse]) -> Frame:
        started = self._time()
        response = done.result()
        frame = encode_fetch_response(correlation, response)
        now = self._time()
        self._traffic.fetched(response, now - began)
        if self._open:
            size = sum(map(len, frame))
            self._usage.fetched(size, now - started)
            self._unwritten[id(frame)] = size
            self._budget.use(size)
        return frame
