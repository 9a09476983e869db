"""HTTP/1.1 by h11: one request at a time per connection, bounded in size, time and number of connections.

Server-sent events end with their connection: the server notices that the browser has left, and stops working for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qsl

import h11

from tidelog.console.web.messages import EVENTS, Answer, Request, Stream

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 256
"""Beyond this, a new connection replaces the one without a stream whose last complete request is oldest."""
HEAD_BYTES_MAX: Final = 16 * 1024
BODY_BYTES_MAX: Final = 2 * 2**20
"""A record of 1 MiB in base64, with room to spare."""
REQUEST_TIMEOUT_S: Final = 15.0
"""How long a request may take to arrive."""
IDLE_TIMEOUT_S: Final = 60.0
"""How long a connection may stay open without a request."""
STALL_TIMEOUT_S: Final = 30.0
"""How long a browser may leave sent data unread."""
READ_BYTES: Final = 64 * 1024
QUERY_FIELDS_MAX: Final = 64

Handler = Callable[[Request], Awaitable[Answer | Stream]]


class Refused(Exception):
    """Answer the request with this status and close the connection."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class WebServer:
    """Serves ``handler``, which never raises."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], bool] = {}
        """One entry per connection, the one with the oldest last request first. The value: whether it carries a
        stream."""

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Bind and return the port. Raises ``OSError``."""
        self._server = await asyncio.start_server(self._connected, host, port, ssl=tls, limit=READ_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX:
            oldest = next((task for task, streams in self._tasks.items() if not streams), None)
            if oldest is None:
                writer.close()
                return
            del self._tasks[oldest]
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(_Connection(self, reader, writer).serve())
        self._tasks[task] = False
        task.add_done_callback(lambda done: self._ended(done, writer))

    def _ended(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._tasks.pop(task, None)
        writer.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection ended with %s: %s", type(error).__name__, error)

    def came_last(self, *, streams: bool = False) -> None:
        """Note that a request came on the current connection."""
        task = asyncio.current_task()
        if task is not None and self._tasks.pop(task, None) is not None:
            self._tasks[task] = streams

    async def answer(self, request: Request) -> Answer | Stream:
        return await self._handler(request)


class _Connection:
    def __init__(self, server: WebServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)

    async def serve(self) -> None:
        try:
            while await self._serve_one():
                self._h11.start_next_cycle()
        except Refused as refused:
            await self._refuse(refused.status, str(refused))
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, f"expected HTTP/1.1: {error}")
        except (TimeoutError, OSError):
            pass

    async def _serve_one(self) -> bool:
        """Answer one request. Returns whether another may follow."""
        request = await self._request()
        if request is None:
            return False
        self._server.came_last()
        answer = await self._server.answer(request)
        if isinstance(answer, Stream):
            self._server.came_last(streams=True)
            await self._stream(answer)
            return False
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            *answer.headers,
        ]
        body = b"" if request.method == "HEAD" else answer.body
        await self._send(h11.Response(status_code=answer.status, headers=headers), body)
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    async def _request(self) -> Request | None:
        """Read one request with its body; ``None`` at the end of the connection."""
        head: Any = None
        body = bytearray()
        timeout = asyncio.timeout(IDLE_TIMEOUT_S)
        async with timeout:
            while True:
                event = self._h11.next_event()
                if event is h11.NEED_DATA:
                    if self._h11.they_are_waiting_for_100_continue:
                        self._writer.write(self._h11.send(h11.InformationalResponse(status_code=100, headers=[])))
                    data = await self._reader.read(READ_BYTES)
                    if not data and self._h11.their_state is h11.IDLE:
                        return None
                    if head is None:
                        timeout.reschedule(asyncio.get_running_loop().time() + REQUEST_TIMEOUT_S)
                    self._h11.receive_data(data)
                elif isinstance(event, h11.Request):
                    head = event
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > BODY_BYTES_MAX:
                        raise Refused(413, f"expected a body of at most {BODY_BYTES_MAX:,} bytes")
                elif isinstance(event, h11.EndOfMessage):
                    return self._whole(head, bytes(body))
                elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                    return None

    def _whole(self, head: Any, body: bytes) -> Request:
        path, _, query = head.target.decode("ascii", "replace").partition("?")
        try:
            fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX))
        except ValueError as error:
            raise Refused(400, f"expected at most {QUERY_FIELDS_MAX} fields in the query: {error}") from None
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        peer = self._writer.get_extra_info("peername")
        return Request(head.method.decode("ascii"), path, fields, headers, body, str(peer[0]) if peer else "")

    async def _send(self, head: Any, body: bytes) -> None:
        out = self._h11.send(head) + self._h11.send(h11.Data(body)) + self._h11.send(h11.EndOfMessage())
        self._writer.write(out)
        async with asyncio.timeout(STALL_TIMEOUT_S):
            await self._writer.drain()

    async def _refuse(self, status: int, text: str) -> None:
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{text}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        with contextlib.suppress(OSError, TimeoutError, h11.LocalProtocolError):
            await self._send(h11.Response(status_code=status, headers=headers), body)

    async def _stream(self, stream: Stream) -> None:
        """Send events until there are no more or the browser has left."""
        headers = [("Content-Type", EVENTS), ("Cache-Control", "no-store"), ("Connection", "close"), *stream.headers]
        sending = asyncio.ensure_future(self._send_events(h11.Response(status_code=200, headers=headers), stream))
        leaving = asyncio.ensure_future(self._left())
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            for found in await asyncio.gather(sending, leaving, return_exceptions=True):
                if isinstance(found, Exception) and not isinstance(found, OSError | TimeoutError):
                    log.error("a stream ended with %s: %s", type(found).__name__, found)

    async def _send_events(self, head: Any, stream: Stream) -> None:
        self._writer.write(self._h11.send(head) + self._h11.send(h11.Data(b"retry: 3000\n\n")))
        async with contextlib.aclosing(_closable(stream.events)) as events:
            async for data in events:
                if not data:
                    continue
                self._writer.write(self._h11.send(h11.Data(data)))
                async with asyncio.timeout(STALL_TIMEOUT_S):
                    await self._writer.drain()
        self._writer.write(self._h11.send(h11.EndOfMessage()))

    async def _left(self) -> None:
        """Return when the browser has closed its end. Drops what it sends in the meantime."""
        while await self._reader.read(READ_BYTES):
            pass


async def _closable(events: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Wrap the events in a generator that closes them when it is closed."""
    try:
        async for one in events:
            yield one
    finally:
        if (close := getattr(events, "aclose", None)) is not None:
            await close()
