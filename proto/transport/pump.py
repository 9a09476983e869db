"""The server side of a frame stream, the same for every carrier: reads, answers, bounds unanswered frames."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from tidelog.proto.transport.network import BadFrame, ConnectionLost, Frame, FrameSession, PacedSession


class FramePipe(Protocol):
    """A carrier's methods for :func:`serve_stream`. Both raise ``ConnectionLost``."""

    async def read(self) -> memoryview | None:
        """Return the next frame; ``None`` once the peer has ended the stream."""

    async def write(self, frame: Frame) -> None: ...


@runtime_checkable
class ReadyPipe(FramePipe, Protocol):
    """A pipe that usually takes a frame without waiting."""

    def write_now(self, frame: Frame) -> bool:
        """Return whether it took the frame; if not, ``write`` waits. Raises ``ConnectionLost``."""


async def serve_stream(
    pipe: FramePipe, session: FrameSession, *, unanswered_max: int, on_bug: Callable[[BaseException], None]
) -> None:
    """Feed a session until the stream ends.

    The session has at most ``unanswered_max`` frames; then reading stops, and the carrier's flow control stops the
    peer. Answers leave in the order in which they become ready. Raises :class:`BadFrame` if the session refused a
    frame, so that the carrier can report it.
    """
    paced = session if isinstance(session, PacedSession) else None
    state = _Answers(pipe, unanswered_max, on_bug, paced.on_written if paced is not None else None)
    try:
        while True:
            if paced is not None:
                while (room := paced.hold()) is not None:
                    await room
            if (frame := await pipe.read()) is None:
                break
            answer = session.on_frame(frame)
            del frame
            if answer is None:
                continue
            await state.take(answer)
    except ConnectionLost:
        pass
    finally:
        state.abandon()
        session.on_close()


class _Answers:
    def __init__(
        self,
        pipe: FramePipe,
        unanswered_max: int,
        on_bug: Callable[[BaseException], None],
        on_written: Callable[[Frame], None] | None,
    ) -> None:
        self._pipe = pipe
        self._ready_pipe = pipe if isinstance(pipe, ReadyPipe) else None
        self._on_written = on_written
        self._unanswered_max = unanswered_max
        self._on_bug = on_bug
        self._waiting: set[asyncio.Future[Frame]] = set()
        self._ready: deque[Frame] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    async def take(self, answer: Awaitable[Frame] | Frame) -> None:
        if inspect.isawaitable(answer):
            future = asyncio.ensure_future(answer)
            if future.done():
                self._finish(future)
            else:
                self._waiting.add(future)
                future.add_done_callback(self._finish)
        else:
            self._push(answer)
        while len(self._waiting) + len(self._ready) >= self._unanswered_max:
            self._room.clear()
            await self._room.wait()

    def abandon(self) -> None:
        for future in self._waiting:
            future.remove_done_callback(self._finish)
            future.cancel()
        if self._writer is not None:
            self._writer.cancel()

    def _finish(self, future: asyncio.Future[Frame]) -> None:
        self._waiting.discard(future)
        if future.cancelled():
            self._room.set()
            return
        error = future.exception()
        if error is not None:
            self._room.set()
            self._on_bug(error)
            return
        self._push(future.result())

    def _push(self, frame: Frame) -> None:
        if self._writer is None and self._ready_pipe is not None and self._written_now(self._ready_pipe, frame):
            return
        self._ready.append(frame)
        if self._writer is None:
            self._writer = asyncio.ensure_future(self._write())

    def _written_now(self, pipe: ReadyPipe, frame: Frame) -> bool:
        try:
            if not pipe.write_now(frame):
                return False
        except ConnectionLost:
            return True  # nobody reads it; serve_stream detects the end itself
        if self._on_written is not None:
            self._on_written(frame)
        self._room.set()
        return True

    async def _write(self) -> None:
        try:
            while self._ready:
                frame = self._ready.popleft()
                await self._pipe.write(frame)
                if self._on_written is not None:
                    self._on_written(frame)
                del frame
                self._room.set()
        except ConnectionLost:
            self._ready.clear()
            self._room.set()
        except Exception as bug:
            self._ready.clear()
            self._room.set()
            self._on_bug(bug)
        finally:
            self._writer = None


__all__ = ["BadFrame", "FramePipe", "serve_stream"]
