"""Produce and fetch streams of clients: frames in, frames out, over the replicas.

A produce frame is appended when it arrives, before the next one is looked at: the order of a stream
is the order of the log. What an answer waits for (high watermark, long poll) holds back neither the
frames after it nor their answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Final, Protocol

from tidelog.broker.memory_budget import MemoryBudget
from tidelog.broker.traffic import Traffic
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE
from tidelog.proto.frames import (
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProduceRequest,
    decode_fetch_request,
    decode_produce_request,
    encode_fetch_response,
    encode_produce_response,
)
from tidelog.proto.network import BadFrame, Frame

FETCH_WAIT_MS_MAX: Final = 60_000
"""Longest long poll; a longer one asked for is cut to it."""


class DataReplicas(Protocol):
    """What the streams need of the replica manager."""

    def produce(self, request: ProduceRequest) -> Awaitable[list[ProducedPartition]]:
        """Append now, in order; the answer waits for what ``acks`` asks."""

    def fetch(self, request: FetchRequest) -> Awaitable[FetchResponse]: ...


class ProduceSession:
    """One producer's stream. ``bytes_max`` bounds what of it is unanswered, the budget the node's."""

    def __init__(self, replicas: DataReplicas, budget: MemoryBudget, traffic: Traffic, bytes_max: int) -> None:
        self._replicas = replicas
        self._budget = budget
        self._traffic = traffic
        self._bytes_max = bytes_max
        self._bytes_held = 0
        self._room: asyncio.Future[None] | None = None
        self._open = True
        traffic.produce_streams += 1

    def hold(self) -> Awaitable[None] | None:
        if self._bytes_held >= self._bytes_max:
            if self._room is None or self._room.done():
                self._room = asyncio.get_running_loop().create_future()
            return self._room
        return self._budget.room()

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame:
        correlation, request = decode_produce_request(frame)
        size = len(frame)
        self._traffic.produce_requests += 1
        refused = _refused(request)
        if refused is not None:
            return encode_produce_response(correlation, refused)
        started = asyncio.get_running_loop().time()
        answer = self._replicas.produce(request)
        self._bytes_held += size
        self._budget.use(size)
        return self._answer(correlation, size, started, answer)

    async def _answer(
        self, correlation: int, size: int, started: float, answer: Awaitable[list[ProducedPartition]]
    ) -> Frame:
        try:
            produced = await answer
        finally:
            self._give(size)
        self._traffic.produced(produced, asyncio.get_running_loop().time() - started)
        return encode_produce_response(correlation, produced)

    def on_written(self, frame: Frame) -> None:
        """Nothing is held for an answer: it is small."""

    def on_close(self) -> None:
        # What the stream still held goes back here: an answer that was cancelled early never ran.
        if self._open:
            self._open = False
            self._traffic.produce_streams -= 1
            self._budget.give(self._bytes_held)

    def _give(self, size: int) -> None:
        if not self._open:
            return
        self._bytes_held -= size
        self._budget.give(size)
        if self._room is not None and not self._room.done() and self._bytes_held < self._bytes_max:
            self._room.set_result(None)


def _refused(request: ProduceRequest) -> list[ProducedPartition] | None:
    """Refuse what no replica would take: Kafka's INVALID_REQUIRED_ACKS, and transactions, which are not built yet."""
    if request.acks not in (-1, 0, 1):
        code, text = ErrorCode.INVALID_REQUIRED_ACKS, f"acks: expected -1, 0 or 1, found {request.acks}"
    elif request.transactional_id is not None:
        code, text = ErrorCode.INVALID_REQUEST, "transactional produce: this version has no transactions"
    else:
        return None
    return [ProducedPartition(item.topic_id, item.partition, code, error_message=text) for item in request.partitions]


class FetchSession:
    """One consumer's stream. Bytes count from reading until the carrier took the answer."""

    def __init__(self, replicas: DataReplicas, budget: MemoryBudget, traffic: Traffic, response_bytes_max: int) -> None:
        self._replicas = replicas
        self._budget = budget
        self._traffic = traffic
        self._response_bytes_max = response_bytes_max
        self._unwritten: dict[int, int] = {}
        self._open = True
        traffic.fetch_streams += 1

    def hold(self) -> Awaitable[None] | None:
        return self._budget.room()

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame:
        correlation, request = decode_fetch_request(frame)
        self._traffic.fetch_requests += 1
        if request.replica_id != NO_NODE:
            # A follower's fetch moves high watermarks: it has a stream of its own, on another listener's table.
            raise BadFrame(f"expected a consumer's fetch (replica id -1), found replica id {request.replica_id}")
        if request.bytes_max > self._response_bytes_max or request.wait_ms_max > FETCH_WAIT_MS_MAX:
            request = replace(
                request,
                bytes_max=min(request.bytes_max, self._response_bytes_max),
                wait_ms_max=min(request.wait_ms_max, FETCH_WAIT_MS_MAX),
            )
        return self._answer(correlation, self._replicas.fetch(request))

    async def _answer(self, correlation: int, answer: Awaitable[FetchResponse]) -> Frame:
        response = await answer
        frame = encode_fetch_response(correlation, response)
        size = sum(map(len, frame))
        self._traffic.fetched(response)
        if self._open:
            self._unwritten[id(frame)] = size
            self._budget.use(size)
        return frame

    def on_written(self, frame: Frame) -> None:
        size = self._unwritten.pop(id(frame), None)
        if size is not None:
            self._budget.give(size)

    def on_close(self) -> None:
        if self._open:
            self._open = False
            self._traffic.fetch_streams -= 1
            self._budget.give(sum(self._unwritten.values()))
            self._unwritten.clear()
