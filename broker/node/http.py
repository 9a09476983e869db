"""The node's HTTP listener: ``/metrics`` for Prometheus, ``/client-metrics`` for metrics that clients push to a broker,
``/health`` (alive), ``/cluster/health`` and ``/ready`` (serving).

Small on purpose: GET and HEAD, one request at a time per connection, bounded in size, time and number of connections.
Kafka has no such listener; it exports metrics through JMX.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.access.http_login import Admission, HttpLogin
from tidelog.broker.kafka.handshakes import HandshakeFailed, Handshakes
from tidelog.broker.kafka.wire.junk import stranger
from tidelog.broker.node import http_tls
from tidelog.broker.notices import Notices
from tidelog.model.classes.frozen import dataclass
from tidelog.proto.transport.http2_referral import Referral
from tidelog.proto.transport.network import Address
from tidelog.security.tls_store import TlsStore

if TYPE_CHECKING:  # a node pays for it with the first request only
    import h11

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
"""Beyond this, a new connection replaces the one whose last complete request is oldest. So a request that arrives
promptly is answered, however many connections hold half a request."""
REQUEST_TIMEOUT_S: Final = 10.0
"""How long a connection may take to send a request, and may stay idle between requests."""
READ_BYTES: Final = 16 * 1024
LINES_MAX: Final = 200
"""Of one request, whoever sends it: each line costs time on the event loop."""
FOR_STRANGERS: Final = ("/health", "/ready")
"""Pages that tell everybody one word."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer. ``word``: what unknown clients get instead of the body."""

    status: int
    content_type: str
    body: bytes
    word: str = ""


def text_page(status: int, text: str, word: str = "") -> Page:
    return Page(status, "text/plain; charset=utf-8", text.encode(), word)


Make = Callable[[], Page | Awaitable[Page]]
Reader = asyncio.StreamReader | http_tls.TlsStream
Writer = asyncio.StreamWriter | http_tls.TlsStream


class HttpServer:
    """Serves ``pages``: a path's function makes its answer on demand, perhaps in steps."""

    def __init__(
        self,
        pages: Mapping[str, Make],
        elsewhere: str = "",
        login: HttpLogin | None = None,
    ) -> None:
        """``elsewhere`` refers clients of other protocols; ``login`` identifies clients, without it all may see
        everything."""
        self._login = login
        self._pages = dict(pages)
        self._elsewhere = elsewhere
        self._notices = Notices()
        self._server: asyncio.Server | None = None
        self._handshakes: Handshakes | None = None
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        """One per connection, the one with the oldest last request first."""

    def add(self, path: str, make: Make) -> None:
        self._pages[path] = make

    async def start(self, address: Address, tls: TlsStore | None = None) -> Address:
        """Bind and return the real address. Raises ``OSError`` naming it."""
        try:
            if tls is None:
                self._server = await asyncio.start_server(self._connected, address.host, address.port)
                bound = list(self._server.sockets)
            else:
                bound = self._listening = await http_tls.listen(address)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot listen on {address} (http.listener): {error.strerror or error}"
            ) from None
        if tls is not None:
            self._handshakes = Handshakes(tls, "https://")
            loop = asyncio.get_running_loop()
            self._accepting = [loop.create_task(http_tls.accept(sock, self._accepted)) for sock in self._listening]
        host, port = bound[0].getsockname()[:2]
        return Address(host, port)

    async def close(self) -> None:
        if self._login is not None:
            self._login.close()
        if self._server is not None:
            self._server.close()
        tasks = [*self._accepting, *self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for sock in self._listening:
            sock.close()
        if self._handshakes is not None:
            await self._handshakes.close()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begin(self._serve(reader, writer), writer.close)

    def _accepted(self, sock: socket.socket, peer: Address) -> None:
        self._begin(self._serve_tls(sock, peer), sock.close)

    def _begin(self, serving: Coroutine[Any, Any, None], close: Callable[[], None]) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX:
            oldest = next(iter(self._tasks))
            del self._tasks[oldest]
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(serving)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._ended(done, close))

    def _ended(self, task: asyncio.Task[None], close: Callable[[], None]) -> None:
        self._tasks.pop(task, None)
        close()

    async def _serve_tls(self, sock: socket.socket, peer: Address) -> None:
        assert self._handshakes is not None
        try:
            encrypted = await self._handshakes.encrypt(sock, peer.host)
        except HandshakeFailed as failed:
            self._notices.say(asyncio.get_running_loop().time(), "HTTPS", str(peer), str(failed))
            return
        stream = http_tls.TlsStream(encrypted, peer)
        try:
            await self._serve(stream, stream)
            await stream.linger()
        finally:
            stream.close()

    def _came_last(self) -> None:
        """Note that a request came on the current connection."""
        task = asyncio.current_task()
        if task is not None and self._tasks.pop(task, self) is None:
            self._tasks[task] = None

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        import h11

        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=READ_BYTES)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                first = await reader.read(READ_BYTES)
                if not first:
                    return
                if (what := stranger(first)) is not None:
                    await self._turn_away(what, first, reader, writer)
                    return
            while True:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    request = await _next_request(connection, reader, first)
                    if request is None:
                        return
                    self._came_last()
                    await self._answer(connection, writer, request)
                    if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                        return
                    connection.start_next_cycle()
                first = b""
                await asyncio.sleep(0)  # what came with this request waits for others' turns
        except h11.RemoteProtocolError as error:
            await _refuse(connection, writer, error)
        except (TimeoutError, OSError):
            pass

    async def _turn_away(self, what: str, data: bytes, reader: Reader, writer: Writer) -> None:
        """Log, and tell a gRPC client, that this is the wrong port. Others are just disconnected."""
        text = f"expected HTTP (http.listener: metrics and health), found {what}; {self._elsewhere}"
        host, port = writer.get_extra_info("peername")[:2]
        self._notices.say(asyncio.get_running_loop().time(), "HTTP", str(Address(host, port)), text)
        if what != "gRPC":
            return
        referral = Referral(f"this port speaks HTTP (http.listener: metrics and health); {self._elsewhere}", None)
        while data and not referral.over:
            writer.write(referral.receive(data))
            await writer.drain()
            data = await reader.read(READ_BYTES)

    async def _answer(self, connection: h11.Connection, writer: Writer, request: h11.Request) -> None:
        import h11

        path = request.target.split(b"?", 1)[0].decode("ascii", "replace")
        if request.method not in (b"GET", b"HEAD"):
            page = text_page(405, f"expected GET, found {request.method.decode('ascii', 'replace')}\n")
        elif (make := self._pages.get(path)) is None:
            page = text_page(404, f"no such page: {path}; available: {', '.join(sorted(self._pages))}\n")
        else:
            page = await self._page(path, make, writer, request)
        headers = [("Content-Type", page.content_type), ("Content-Length", str(len(page.body)))]
        if page.status == 401 and self._login is not None and self._login.challenge:
            headers.append(("WWW-Authenticate", self._login.challenge))
        head = h11.Response(status_code=page.status, headers=headers)
        out = connection.send(head)
        if request.method != b"HEAD":
            out += connection.send(h11.Data(page.body))
        out += connection.send(h11.EndOfMessage())
        writer.write(out)
        await writer.drain()

    async def _page(self, path: str, make: Make, writer: Writer, request: h11.Request) -> Page:
        login = self._login
        if login is None:
            return await _made(make)
        shown = next((value for name, value in request.headers if name == b"authorization"), b"")
        certificate = writer.get_extra_info("certificate")
        peer = Address(*writer.get_extra_info("peername")[:2])
        found = await login.admit(peer, shown.decode("latin-1"), certificate)
        if found is Admission.ALL:
            return await _made(make)
        if path in FOR_STRANGERS:
            page = await _made(make)
            return replace(page, body=f"{page.word}\n".encode(), content_type="text/plain; charset=utf-8")
        if found is Admission.DENIED:
            return text_page(403, "expected DESCRIBE on the cluster (tidelog acls), found none\n")
        return text_page(401, f"expected http.auth={login.auth}, found no valid identity\n")


async def _made(make: Make) -> Page:
    page = make()
    return page if isinstance(page, Page) else await page


async def _next_request(connection: h11.Connection, reader: Reader, data: bytes) -> h11.Request | None:
    """Read one request, which begins with ``data``; ``None`` at the end of the connection. A body is left unread, and
    with it the connection cannot continue."""
    import h11

    lines = 0
    while True:
        if data:
            lines += data.count(b"\n")
            if lines > LINES_MAX:
                raise h11.RemoteProtocolError(f"expected at most {LINES_MAX} lines in a request", 431)
            connection.receive_data(data)
        event = connection.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(READ_BYTES)
            if not data and connection.their_state is h11.IDLE:
                return None
            if not data:
                connection.receive_data(data)
        elif isinstance(event, h11.Request):
            connection.next_event()  # its end, if it has no body
            return event
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            return None


async def _refuse(connection: h11.Connection, writer: Writer, error: h11.ProtocolError) -> None:
    import h11

    if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    body = f"bad request: {error}\n".encode()
    head = h11.Response(
        status_code=error.error_status_hint,
        headers=[("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("Connection", "close")],
    )
    out = connection.send(head)
    with suppress(h11.LocalProtocolError):  # an answer to HEAD has no body
        out += connection.send(h11.Data(body)) + connection.send(h11.EndOfMessage())
    with suppress(OSError):
        writer.write(out)
        await writer.drain()
