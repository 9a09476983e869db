"""Doors that damaged logins reach without a socket: the HTTP listener with logins, and a controller's Raft streams."""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import random
import re
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.http_login import HttpLogin
from tidelog.broker.node.http import READ_BYTES, HttpServer, text_page
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.raft.transport import RaftLinks
from tidelog.metadata_quorum.raft.types import QuorumIdentity, QuorumTiming
from tidelog.model.clock import SystemClock
from tidelog.model.ids import UNASSIGNED_DIRECTORY, DirectoryId, NodeId
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.transport import raft_messages as rm
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.network import Address

FIGURES: Final = b"figures for those who logged in"
REQUEST_MOST: Final = 4 * READ_BYTES
"""Bytes of the longest damaged request: the bound on a request's head lies below."""
WIDE: Final = (
    b"\r\n", b"\n", b"a:b\r\n", b" a\r\n", b" ", b"a", b"\0", b",", b"%41", b"\xff", b"1\r\na\r\n", b"/?",
    b"GET / HTTP/1.1\r\n\r\n", b"GET /metrics HTTP/1.1\r\nHost:a\r\nAuthorization: Basic YTpi\r\n\r\n",
    b"Authorization: Basic YTpi\r\n", b"Transfer-Encoding: chunked\r\n",
)  # fmt: skip
"""Fillings for a request."""
_PATHS: Final = ("/metrics", "/metrics", "/health", "/ready", "/metrics?a=b", "/", "/nothing", "*", "http://a/metrics")
_METHODS: Final = ("GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "x" * 20)
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]{4,}={0,2}")


class HttpDoor:
    """The HTTP listener of a node with this configuration. ``/metrics`` shows :data:`FIGURES` to those who log in."""

    def __init__(self, config: NodeConfig, image: MetadataImage) -> None:
        assert config.http_listener is not None
        control = AccessControl(config)
        self.scheme: Final = config.http_auth
        self._login = HttpLogin(config, config.http_listener.name, None, lambda: control, lambda: image, SystemClock())
        pages = {
            "/metrics": lambda: text_page(200, f"{FIGURES.decode()}\n"),
            "/health": lambda: text_page(200, "a reason\n", "alive"),
            "/ready": lambda: text_page(200, "a reason\n", "ready"),
        }
        self._server = HttpServer(pages, "brokers speak Kafka elsewhere", self._login)

    def close(self) -> None:
        self._login.close()

    async def visit(self, pieces: list[bytes], note: Callable[[float], None]) -> bytes:
        """Serve a connection that sends these pieces, and return the answers. ``note`` gets the processor time of each
        turn of the event loop that the server took."""
        loop = asyncio.get_running_loop()
        reader, transport = asyncio.StreamReader(), _Kept()
        writer = asyncio.StreamWriter(transport, asyncio.StreamReaderProtocol(reader), reader, loop)
        serving = loop.create_task(_timed(self._server._serve(reader, writer), note))
        for piece in pieces:
            reader.feed_data(piece)
            await asyncio.sleep(0)
        reader.feed_eof()
        await serving
        writer.close()
        return bytes(transport.sent)


class _Kept(asyncio.Transport):
    """The near end of a connection; keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 5000)})
        self.sent = bytearray()
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True


@types.coroutine
def _timed(work: Coroutine[Any, Any, None], note: Callable[[float], None]) -> Generator[Any, Any, None]:
    """Run a coroutine; note the processor time of each of its turns."""
    go_on = functools.partial(work.send, None)
    step: Callable[[], Any] = go_on
    while True:
        began_s = time.thread_time()
        try:
            waits_for = step()
        except StopIteration:
            return
        finally:
            note(time.thread_time() - began_s)
        step = go_on
        try:
            yield waits_for
        except BaseException as error:
            step = functools.partial(work.throw, error)


def http_request(rng: random.Random, scheme: str, shown: bytes, *, plain: bool) -> bytes:
    """Return a request that shows this. ``plain``: as a client asks for metrics, without anything odd."""
    import h11  # as the listener does

    word = base64.b64encode(shown) if scheme == "basic" else shown
    login = (b"Authorization", b"%s %s" % (scheme.title().encode(), word))
    headers = [(b"Host", b"a"), login]
    if plain:
        return _sent(h11, h11.Request(method="GET", target="/metrics", headers=headers), b"")
    headers += [
        (b"X-%d" % number, b"a" * int(rng.expovariate(0.1))) for number in range(rng.choice((0, 0, 1, 5, 150, 300)))
    ]
    if rng.random() < 0.1:
        headers += [login] * rng.choice((1, 20))
    body = rng.randbytes(int(rng.expovariate(0.01))) if rng.random() < 0.2 else b""
    if body:
        known = rng.random() < 0.5
        headers.append((b"Content-Length", b"%d" % len(body)) if known else (b"Transfer-Encoding", b"chunked"))
    rng.shuffle(headers)
    asked = h11.Request(method=rng.choice(_METHODS), target=rng.choice(_PATHS), headers=headers)
    return _sent(h11, asked, body)


def _sent(h11: Any, request: Any, body: bytes) -> bytes:
    connection = h11.Connection(h11.CLIENT)
    out: bytes = connection.send(request)
    if body:
        out += connection.send(h11.Data(body))
    out += connection.send(h11.EndOfMessage())
    return out


def in_pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """Return the data as it may arrive: at once, in a few pieces, or in many small ones."""
    size = rng.choice((len(data), len(data), 1 + len(data) // 3, 100)) or 1
    size = max(size, len(data) // 300 + 1)
    return [data[at : at + size] for at in range(0, len(data), size)]


def in_base64(data: bytes) -> set[bytes]:
    """Return everything in the data that base64 may mean."""
    found = set()
    for each in _BASE64.findall(data):
        try:
            found.add(base64.b64decode(each, validate=True))
        except binascii.Error:
            continue
    return found


class RaftDoor:
    """A controller that judges the first frames of Raft streams."""

    MINE: Final = NodeId(1)
    VOTERS: Final = (NodeId(1), NodeId(2), NodeId(3))
    CLUSTER: Final = "fuzzed"

    def __init__(self) -> None:
        def ignore(*_: object) -> None:
            raise AssertionError("no stream begins")

        self._links = RaftLinks(
            QuorumIdentity(self.CLUSTER, self.MINE, self.VOTERS, UNASSIGNED_DIRECTORY),
            lambda: (UNASSIGNED_DIRECTORY, rm.VoterStanding.FRESH),
            dict.fromkeys(self.VOTERS, Address("127.0.0.1", 1)),
            GrpcNetwork().connect,
            QuorumTiming(),
            random.Random(1),
            ignore,
            lambda: 0,
        )

    def hello(self, rng: random.Random) -> rm.Hello:
        """Return a hello that is accepted, or one of another node, cluster or time."""
        strange = rng.random() < 0.3
        voters = tuple(map(NodeId, range(1, rng.choice((2, 4, 5_000))))) if strange else self.VOTERS
        return rm.Hello(
            rng.choice((rm.PROTOCOL_VERSION, rm.UNBOUND_VERSION, 9)) if strange else rm.PROTOCOL_VERSION,
            rng.choice((self.CLUSTER, "", "c" * 9_000)) if strange else self.CLUSTER,
            NodeId(rng.choice((1, 2, 3, 7)) if strange else 2),
            NodeId(rng.choice((0, 1, 2)) if strange else self.MINE),
            voters,
            DirectoryId(rng.randbytes(rng.choice((0, 15, 16, 1_000)) if strange else 16)),
        )

    def judge(self, frame: bytes) -> str:
        """Return "" if the hello is accepted, or why it is refused. Raises :class:`BadFrame`, or ``ValueError`` if one
        is accepted that does not belong here."""
        hello = rm.decode_hello(frame)
        refusal = self._links.refusal_of(hello)
        rm.encode_hello_answer(rm.HelloAnswer(refusal))
        fits = (hello.cluster_id, hello.peer_id, hello.voters) == (self.CLUSTER, self.MINE, self.VOTERS)
        if not refusal and not (fits and hello.node_id in self.VOTERS[1:]):
            raise ValueError(f"accepted {hello}")
        return refusal
