"""A way to a node that takes its time: a proxy on the loopback address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog.client.background import BackgroundLoop
from tidelog.testing.ports import LOOPBACK, free_ports

PIECE: int = 64 * 1024


class SlowLink:
    """Carries what arrives at ``port`` to the port that ``target`` returns, and the answers back. What goes to the node
    waits ``delay_s``, and ``None`` lets everything wait; answers take a second for each ``bytes_per_s``."""

    def __init__(self, target: Callable[[], int]) -> None:
        self.port = free_ports(1)[0]
        self.delay_s: float | None = 0.0
        self.bytes_per_s: float | None = None
        self._target = target
        self._background = BackgroundLoop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._background.run(asyncio.start_server(self._carry, LOOPBACK, self.port))

    def close(self) -> None:
        self._background.run(self._end())
        self._background.stop()

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            there, away = await asyncio.open_connection(LOOPBACK, self._target())
        except OSError:
            writer.close()
            return
        ways = [asyncio.ensure_future(self._send(reader, away)), asyncio.ensure_future(self._answer(there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, away):
                end.close()

    async def _send(self, reader: asyncio.StreamReader, away: asyncio.StreamWriter) -> None:
        """Later pieces do not wait for earlier ones longer than for themselves."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def forward() -> None:
            while True:
                came_s, data = await waiting.get()
                while self.delay_s is None or loop.time() < came_s + self.delay_s:
                    await asyncio.sleep(0.02)
                away.write(data)

        forwarding = asyncio.ensure_future(forward())
        try:
            while data := await reader.read(PIECE):
                waiting.put_nowait((loop.time(), data))
        except OSError:
            pass
        finally:
            forwarding.cancel()

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await there.read(PIECE if self.bytes_per_s is None else 1024):
                if self.bytes_per_s is not None:
                    await asyncio.sleep(len(data) / self.bytes_per_s)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
