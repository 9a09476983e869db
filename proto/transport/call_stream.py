"""Calls as frames of one stream, for frequent calls: heartbeats, and those of each transaction.

A unary gRPC call wakes each side four or five times, a frame of an open stream twice; wake-ups are the main cost of an
idle cluster, and half of a small transaction's processor time. A frame holds::

    request   head | u32 timeout, ms | u8 length of the name | name of the method | protobuf
    answer    head | u8 status | protobuf, or for a status other than 0 a text

``head`` is the common frame head (:mod:`tidelog.proto.transport.frames`); the status is gRPC's number.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tidelog.proto.transport.frames import CORRELATION_MAX, VERSION, correlation_of
from tidelog.proto.transport.network import BadFrame, ConnectionLost, Frame, FrameStream
from tidelog.proto.transport.pump import FramePipe, serve_stream

METHOD: Final = "Calls"
"""The stream's method name on the wire."""
IN_FLIGHT_MAX: Final = 64
"""Most unanswered calls of one stream; further ones go as unary calls."""
OPENING_PAUSE_S: Final = 5.0
"""Time between attempts to open a stream; meanwhile calls are unary."""

OK: Final = 0
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16

_REQUEST: Final = struct.Struct(">BIIB")
_ANSWER: Final = struct.Struct(">BIB")
_TIMEOUT_MS_MAX: Final = 0xFFFF_FFFF

log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """The result of a call: a status and the response if that is :data:`OK`, else a text."""

    status: int
    body: bytes


Serve = Callable[[str, bytes], Awaitable[Answer]]
"""Answers one call, given its method's name and its request. Raises only ``CancelledError``."""


def encode_request(correlation: int, name: str, data: bytes, timeout_s: float) -> Frame:
    """Return the frame of a call. Raises ``ValueError`` if the name is longer than 255 bytes."""
    method = name.encode()
    if len(method) > 0xFF:
        raise ValueError(f"expected a method's name of at most 255 bytes, found {len(method)}")
    timeout_ms = min(max(0, round(timeout_s * 1000)), _TIMEOUT_MS_MAX)
    return (_REQUEST.pack(VERSION, correlation, timeout_ms, len(method)), method, data)


def decode_request(frame: memoryview) -> tuple[int, float, str, bytes]:
    """Return correlation id, timeout in seconds, method and request. Raises :class:`BadFrame`."""
    correlation = correlation_of(frame)
    if len(frame) < _REQUEST.size:
        raise BadFrame(f"expected a call of at least {_REQUEST.size} bytes, found {len(frame)}")
    _, _, timeout_ms, length = _REQUEST.unpack_from(frame)
    end = _REQUEST.size + length
    if len(frame) < end:
        raise BadFrame(f"expected a method's name of {length} bytes, found {len(frame) - _REQUEST.size}")
    try:
        name = str(frame[_REQUEST.size : end], "utf-8")
    except UnicodeDecodeError:
        raise BadFrame(f"expected a method's name in UTF-8, found {bytes(frame[_REQUEST.size : end])!r}") from None
    return correlation, timeout_ms / 1000, name, bytes(frame[end:])


def encode_answer(correlation: int, answer: Answer) -> Frame:
    return (_ANSWER.pack(VERSION, correlation, answer.status), answer.body)


def decode_answer(frame: memoryview) -> tuple[int, Answer]:
    """Return correlation id and answer. Raises :class:`BadFrame`."""
    correlation = correlation_of(frame)
    if len(frame) < _ANSWER.size:
        raise BadFrame(f"expected an answer of at least {_ANSWER.size} bytes, found {len(frame)}")
    return correlation, Answer(frame[_ANSWER.size - 1], bytes(frame[_ANSWER.size :]))


class CallSession:
    """The server side of one stream. A ``PacedSession``."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._under_way = 0
        self._ending = False
        self._drained = asyncio.Event()

    async def run(self, pipe: FramePipe, *, unanswered_max: int, on_bug: Callable[[BaseException], None]) -> None:
        """Answer until the stream ends, or until :meth:`end` is called and no call is in progress. Raises
        :class:`BadFrame`."""
        pumping = asyncio.ensure_future(serve_stream(pipe, self, unanswered_max=unanswered_max, on_bug=on_bug))
        draining = asyncio.ensure_future(self._drained.wait())
        try:
            await asyncio.wait((pumping, draining), return_when=asyncio.FIRST_COMPLETED)
            if pumping.done():
                pumping.result()
        finally:
            pumping.cancel()
            draining.cancel()

    def end(self) -> None:
        """Accept no further calls; those in progress are still answered."""
        self._ending = True
        self._look_whether_drained()

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame:
        correlation, timeout_s, name, data = decode_request(frame)
        self._under_way += 1
        if self._ending:
            return encode_answer(correlation, Answer(UNAVAILABLE, b"this listener is closing"))
        return self._answer(correlation, timeout_s, name, data)

    async def _answer(self, correlation: int, timeout_s: float, name: str, data: bytes) -> Frame:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                answer = await self._serve(name, data)
        except TimeoutError:
            assert limit.expired(), "serving a call raises nothing of its own"
            answer = Answer(DEADLINE_EXCEEDED, b"not answered in the time that the caller gave")
        return encode_answer(correlation, answer)

    def hold(self) -> None:
        """Hold nothing: only the carrier's bound on unanswered frames stops reading."""

    def on_written(self, frame: Frame) -> None:
        self._under_way -= 1
        self._look_whether_drained()

    def on_close(self) -> None:
        """Do nothing: no bytes are held."""

    def _look_whether_drained(self) -> None:
        if self._ending and self._under_way == 0:
            self._drained.set()


class CallStream:
    """The client side of an open stream. It cannot be reused after its end."""

    def __init__(self, stream: FrameStream) -> None:
        self._stream = stream
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._outgoing: deque[Frame] = deque()
        self._next_correlation = 0
        self._writer: asyncio.Task[None] | None = None
        self._reader = asyncio.ensure_future(self._read())
        self._lost: ConnectionLost | None = None

    @property
    def has_room(self) -> bool:
        """Whether it can carry another call now."""
        return self._lost is None and len(self._waiting) < IN_FLIGHT_MAX

    @property
    def ended(self) -> bool:
        """Whether it can carry no more calls."""
        return self._lost is not None

    async def call(self, name: str, data: bytes, timeout_s: float) -> Answer:
        """Send one call. Raises ``ConnectionLost`` or ``TimeoutError``; after both the outcome is unknown."""
        if self._lost is not None:
            raise ConnectionLost(str(self._lost))
        correlation = self._next_correlation
        self._next_correlation = 0 if correlation == CORRELATION_MAX else correlation + 1
        self._outgoing.append(encode_request(correlation, name, data, timeout_s))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = future
        if self._writer is None:
            self._writer = asyncio.ensure_future(self._write())
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            self._waiting.pop(correlation, None)

    async def close(self) -> None:
        """End the stream; calls in progress fail with ``ConnectionLost``."""
        self._end(ConnectionLost("closed by us"))
        tasks = [task for task in (self._reader, self._writer) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _write(self) -> None:
        try:
            while self._outgoing:
                await self._stream.send(self._outgoing.popleft())
        except ConnectionLost as lost:
            self._end(lost)
        finally:
            self._writer = None

    async def _read(self) -> None:
        try:
            while True:
                correlation, answer = decode_answer(await self._stream.receive())
                future = self._waiting.get(correlation)
                if future is not None and not future.done():
                    future.set_result(answer)
        except ConnectionLost as lost:
            self._end(lost)
        except BadFrame as bad:
            self._end(ConnectionLost(str(bad)))

    def _end(self, lost: ConnectionLost) -> None:
        if self._lost is not None:
            return
        self._lost = lost
        self._outgoing.clear()
        self._stream.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(str(lost)))


class RecurringCalls:
    """The call stream of one connection. While there is none, or it is full, calls are unary.

    It opens after the peer has answered a call, so that unreachable peers, and peers without such streams, are treated
    as before.
    """

    def __init__(self, open_stream: Callable[[], Awaitable[FrameStream]]) -> None:
        self._open_stream = open_stream
        self._stream: CallStream | None = None
        self._opening: asyncio.Task[None] | None = None
        self._next_opening_s = 0.0
        self._closed = False

    @property
    def stream(self) -> CallStream | None:
        """The stream, if it can carry a call now."""
        return self._stream if self._stream is not None and self._stream.has_room else None

    def peer_answered(self) -> None:
        """Note that a unary call was answered: open a stream for the next ones, unless there is one."""
        now = asyncio.get_running_loop().time()
        stands = self._stream is not None and not self._stream.ended
        if stands or self._opening is not None or self._closed or now < self._next_opening_s:
            return
        self._next_opening_s = now + OPENING_PAUSE_S
        self._opening = asyncio.ensure_future(self._open())

    async def close(self) -> None:
        """Drop the stream; calls in progress fail with ``ConnectionLost``."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        if self._stream is not None:
            await self._stream.close()

    async def _open(self) -> None:
        try:
            self._stream = CallStream(await self._open_stream())
        except ConnectionLost as lost:
            log.debug("calls go by themselves: %s", lost)
        finally:
            self._opening = None
