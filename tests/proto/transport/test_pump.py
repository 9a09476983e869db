"""The serving end of a frame stream, over a pipe that misbehaves."""

from __future__ import annotations

import asyncio

from tidelog.proto.transport.network import Frame
from tidelog.proto.transport.pump import serve_stream


class BrokenPipe:
    """Hands out one frame, cannot write its answer, and stays open."""

    def __init__(self) -> None:
        self.frames = [memoryview(b"asked")]
        self.ended = asyncio.Event()

    async def read(self) -> memoryview | None:
        if self.frames:
            return self.frames.pop()
        await self.ended.wait()
        return None

    async def write(self, frame: Frame) -> None:
        raise RuntimeError("a carrier with a bug")


class Echo:
    def on_frame(self, frame: memoryview) -> Frame:
        return (bytes(frame),)

    def on_close(self) -> None: ...


async def test_an_error_of_the_carrier_while_writing_is_told_and_not_swallowed() -> None:
    bugs: list[BaseException] = []
    told = asyncio.Event()

    def on_bug(bug: BaseException) -> None:
        bugs.append(bug)
        told.set()

    pipe = BrokenPipe()
    serving = asyncio.ensure_future(serve_stream(pipe, Echo(), unanswered_max=1, on_bug=on_bug))
    async with asyncio.timeout(5):
        await told.wait()
        pipe.ended.set()
        await serving
    assert [str(bug) for bug in bugs] == ["a carrier with a bug"]
