"""The socket pair between a machine's supervisor and a worker: questions and answers, either way.

A message is its kind, the question's number, its length, and its bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final

READY: Final = b"ready"
"""A worker says that it serves."""
METRICS: Final = b"metrics"
"""The supervisor asks for a worker's metrics page."""
MACHINE: Final = b"machine"
"""A worker asks for the pages of all of them, merged."""
MESSAGE_BYTES_MAX: Final = 1 << 30
_HEAD: Final = struct.Struct(">BII")
_QUESTION: Final = 0
_ANSWER: Final = 1

Answer = Callable[[bytes], Awaitable[bytes]]


class ChannelClosed(ConnectionError):
    """The other process is gone."""


class Channel:
    """One end. ``answer`` makes the answer to a question; each question has its own task."""

    def __init__(self, sock: socket.socket, answer: Answer) -> None:
        self._sock = sock
        self._answer = answer
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin; then :meth:`run`."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)

    async def run(self) -> None:
        """Read until the other process is gone."""
        reader = self._reader
        try:
            while True:
                kind, number, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                if size > MESSAGE_BYTES_MAX:
                    break
                body = await reader.readexactly(size)
                if kind == _QUESTION:
                    task = asyncio.create_task(self._reply(number, body))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                elif (asked := self._asked.get(number)) is not None and not asked.done():
                    asked.set_result(body)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close()
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(ChannelClosed("the other process is gone"))

    async def ask(self, question: bytes, timeout_s: float) -> bytes:
        """Return the other process's answer. Raises :class:`ChannelClosed` or ``TimeoutError``."""
        number = next(self._numbers)
        asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        try:
            self._send(_QUESTION, number, question)
            async with asyncio.timeout(timeout_s):
                return await asked
        finally:
            del self._asked[number]

    async def _reply(self, number: int, question: bytes) -> None:
        answer = await self._answer(question)
        if self._writer is not None:
            self._send(_ANSWER, number, answer)

    def _send(self, kind: int, number: int, body: bytes) -> None:
        if self._writer is None:
            raise ChannelClosed("the other process is gone")
        self._writer.write(_HEAD.pack(kind, number, len(body)) + body)
