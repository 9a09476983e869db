"""The client side of a frame stream: many frames in flight, matched to answers by correlation id."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tidelog.proto.transport.frames import CORRELATION_MAX, correlation_of
from tidelog.proto.transport.network import BadFrame, Connection, ConnectionLost, Frame, FrameStream, StreamKind

Encode = Callable[[int], Frame]
"""Makes a frame with the given correlation id."""


class FrameCaller:
    """Sends frames in the order of :meth:`submit` and returns their answers.

    The stream opens at first use. When it breaks, every unanswered frame fails with :class:`ConnectionLost` (sent or
    not: the outcome is unknown), and the next ``submit`` opens a new one. ``in_flight_max`` bounds unanswered frames;
    beyond it ``submit`` raises ``RuntimeError``, since callers must keep a lower limit of their own.
    """

    def __init__(
        self, connection: Connection, kind: StreamKind, *, in_flight_max: int = 256, open_timeout_s: float = 10.0
    ) -> None:
        self._connection = connection
        self._kind = kind
        self._in_flight_max = in_flight_max
        self._open_timeout_s = open_timeout_s
        self._pending: dict[int, asyncio.Future[memoryview]] = {}
        self._outgoing: deque[tuple[int, Encode]] = deque()
        self._wake = asyncio.Event()
        self._run: asyncio.Task[None] | None = None
        self._next_correlation = 0
        self._closed = False

    @property
    def in_flight(self) -> int:
        """Submitted frames without an answer yet."""
        return len(self._pending)

    def submit(self, encode: Encode) -> asyncio.Future[memoryview]:
        """Queue one frame; the future yields its answer. Cancelling it drops the answer, not the frame."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[memoryview] = loop.create_future()
        if self._closed:
            future.set_exception(ConnectionLost(f"{self._connection.address}: closed by us"))
            return future
        if len(self._pending) >= self._in_flight_max:
            raise RuntimeError(f"expected at most {self._in_flight_max} frames in flight to {self._connection.address}")
        correlation = self._next_correlation
        self._next_correlation = 0 if correlation == CORRELATION_MAX else correlation + 1
        self._pending[correlation] = future
        self._outgoing.append((correlation, encode))
        self._wake.set()
        if self._run is None:
            self._run = loop.create_task(self._serve())
        return future

    def reset(self, reason: str) -> None:
        """Drop the stream: unanswered frames fail with ``ConnectionLost(reason)``."""
        if self._run is not None:
            self._run.cancel()
            self._run = None
        self._fail(ConnectionLost(f"{self._connection.address}: {reason}"))

    async def close(self) -> None:
        """Drop the stream for good and wait for its tasks to end."""
        self._closed = True
        run = self._run
        self.reset("closed by us")
        if run is not None:
            await asyncio.wait([run])

    async def _serve(self) -> None:
        me = asyncio.current_task()
        stream: FrameStream | None = None
        reader: asyncio.Task[None] | None = None
        error = ConnectionLost(f"{self._connection.address}: stream ended")
        try:
            stream = await self._connection.open(self._kind, timeout_s=self._open_timeout_s)
            reader = asyncio.ensure_future(self._receive(stream))
            reader.add_done_callback(lambda _: self._wake.set())
            while not reader.done():
                while self._outgoing:
                    correlation, encode = self._outgoing.popleft()
                    await stream.send(encode(correlation))
                self._wake.clear()
                if not reader.done():
                    await self._wake.wait()
            reader.result()
        except ConnectionLost as lost:
            error = lost
        except BadFrame as bad:
            error = ConnectionLost(f"{self._connection.address}: {bad}")
        finally:
            if stream is not None:
                stream.close()
            if reader is not None:
                reader.cancel()
            if self._run is me:
                self._run = None
                self._fail(error)

    async def _receive(self, stream: FrameStream) -> None:
        while True:
            frame = await stream.receive()
            future = self._pending.pop(correlation_of(frame), None)
            if future is not None and not future.done():
                future.set_result(frame)

    def _fail(self, error: ConnectionLost) -> None:
        pending = list(self._pending.values())
        self._pending.clear()
        self._outgoing.clear()
        for future in pending:
            if not future.done():
                future.set_exception(error)
