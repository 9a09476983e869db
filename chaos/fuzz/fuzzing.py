"""Sends batches of frames to a Kafka port over many connections and counts the outcomes.

A batch is sent in one go, with an ApiVersions request behind it: its answer shows that the port has processed the
batch. A frame at which the port closes the connection ends the batch's first part; the rest goes over a new connection,
so that every frame is seen. Only the port's liveness is judged here: a connection that is neither answered nor closed
within ``STALL_S`` is abandoned (some requests rightly wait), and a port that accepts nobody ends the run.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

from tidelog.chaos.fuzz.frames import API_VERSIONS, FrameSource

BATCH_FRAMES: Final = 32
CONNECTIONS: Final = 32
STALL_S: Final = 2.0
CONNECT_TIMEOUT_S: Final = 60.0
"""Long: on a busy machine a process may not run for seconds."""
_SENTINEL: Final = 0x7FFF_FFFF
_LAST_FRAME: Final = (
    b"\0\0\0\x0a" + API_VERSIONS.to_bytes(2, "big") + b"\0\0" + _SENTINEL.to_bytes(4, "big") + b"\xff\xff"
)


class StrangeAnswer(Exception):
    """An answer that does not match the request."""


class PortSilent(Exception):
    """The port accepts no connection any more; the text names the batches in flight."""


@dataclass(slots=True)
class Tally:
    """The outcomes of the inputs. ``inputs`` counts those that the port is known to have read."""

    inputs: int = 0
    answered: int = 0
    closed: int = 0
    stalled: int = 0
    rough_ends: int = 0
    batches: int = 0
    connections: int = 0
    under_way: dict[int, int] = field(default_factory=dict)
    """Batch by worker: together with the seed, enough to repeat them."""


async def fuzz(
    host: str,
    port: int,
    source: FrameSource,
    inputs: int,
    *,
    connections: int = CONNECTIONS,
    batch_frames: int = BATCH_FRAMES,
    first_batch: int = 0,
    tally: Tally | None = None,
    stall_s: float = STALL_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
) -> Tally:
    """Send at least ``inputs`` frames. Raises a group of :class:`PortSilent` and :class:`StrangeAnswer`."""
    found = tally if tally is not None else Tally()
    numbers = itertools.count(first_batch)
    async with asyncio.TaskGroup() as group:
        for worker in range(connections):
            sender = _Sender(host, port, source, found, stall_s, connect_timeout_s)
            group.create_task(sender.run(worker, numbers, batch_frames, lambda: found.inputs >= inputs))
    return found


class _Answers(asyncio.Protocol):
    """Counts the answers of one connection, and discards them."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answered = 0
        self.last = 0
        self.through = False
        self.lost = False
        self.strange: StrangeAnswer | None = None
        self.changed = asyncio.Event()
        self._head = bytearray()
        self._skip = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not one by class

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.changed.set()

    def data_received(self, data: bytes) -> None:
        position, size = 0, len(data)
        while position < size:
            if self._skip:
                passed = min(self._skip, size - position)
                self._skip -= passed
                position += passed
                continue
            wanted = 8 - len(self._head)
            self._head += data[position : position + wanted]
            position += wanted
            if len(self._head) < 8:
                break
            length = int.from_bytes(self._head[:4], "big", signed=True)
            correlation = int.from_bytes(self._head[4:], "big")
            self._head.clear()
            if length < 4:
                self._strange(f"expected an answer of at least 4 bytes, found {length}")
                return
            self._skip = length - 4
            if correlation == _SENTINEL:
                self.through = True
            else:
                if correlation <= self.last:
                    self._strange(f"expected an answer after {self.last}, found one to {correlation}")
                    return
                self.last = correlation
                self.answered += 1
        self.changed.set()

    def _strange(self, text: str) -> None:
        self.strange = StrangeAnswer(text)
        self.changed.set()


class _Sender:
    """One worker: sends batch after batch, and keeps its connection until the port closes it."""

    def __init__(
        self, host: str, port: int, source: FrameSource, tally: Tally, stall_s: float, connect_timeout_s: float
    ) -> None:
        self._host = host
        self._port = port
        self._source = source
        self._tally = tally
        self._stall_s = stall_s
        self._connect_timeout_s = connect_timeout_s
        self._answers: _Answers | None = None

    async def run(self, worker: int, numbers: itertools.count[int], size: int, enough: Callable[[], bool]) -> None:
        tally = self._tally
        try:
            while not enough():
                number = next(numbers)
                tally.under_way[worker] = number
                frames = self._source.batch(number, size).frames
                sent = 0
                while sent < len(frames):
                    sent = await self._send(frames, sent)
                await self._end_roughly(number)
                tally.batches += 1
                del tally.under_way[worker]
        finally:
            self._drop()

    async def _send(self, frames: tuple[bytes, ...], first: int) -> int:
        """Send the frames from ``first`` on; return the end of those that were processed."""
        answers = await self._connected()
        answers.last, answers.through, before = first, False, answers.answered
        assert answers.transport is not None
        answers.transport.write(b"".join((*frames[first:], _LAST_FRAME)))
        await self._wait(answers)
        tally = self._tally
        tally.answered += answers.answered - before
        if answers.through:
            tally.inputs += len(frames) - first
            return len(frames)
        if answers.lost:
            tally.closed += 1
        else:
            tally.stalled += 1
        done = min(answers.last + 1, len(frames))
        tally.inputs += done - first
        self._drop()
        return done

    async def _wait(self, answers: _Answers) -> None:
        """Wait until the batch is processed, the connection is lost, or nothing has come for a while."""
        while not (answers.through or answers.lost):
            if answers.strange is not None:
                raise answers.strange
            answers.changed.clear()
            try:
                async with asyncio.timeout(self._stall_s):
                    await answers.changed.wait()
            except TimeoutError:
                return

    async def _end_roughly(self, number: int) -> None:
        end = self._source.rough_end(number)
        if end is None:
            return
        answers = await self._connected()
        assert answers.transport is not None
        answers.transport.write(end)
        self._tally.rough_ends += 1
        self._tally.inputs += 1
        self._drop()

    async def _connected(self) -> _Answers:
        if self._answers is not None and not self._answers.lost:
            return self._answers
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._connect_timeout_s
        while True:
            try:
                async with asyncio.timeout(self._connect_timeout_s):
                    _, self._answers = await loop.create_connection(_Answers, self._host, self._port)
                break
            except (OSError, TimeoutError) as trouble:
                if loop.time() > deadline:
                    under_way = ", ".join(map(str, sorted(self._tally.under_way.values())))
                    raise PortSilent(
                        f"{self._host}:{self._port} accepts nobody ({trouble!r}); batches under way: {under_way}"
                    ) from trouble
                await asyncio.sleep(0.05)
        self._tally.connections += 1
        return self._answers

    def _drop(self) -> None:
        if self._answers is not None and self._answers.transport is not None:
            self._answers.transport.close()
        self._answers = None
