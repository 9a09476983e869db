"""Strangers at a gRPC listener with logins, over real sockets: hand-made HTTP/2 with our metadata, damaged on the way.

They may reach only gRPC's core and the code that judges a caller by its metadata. No call may begin.
"""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

from tidelog.chaos.fuzz.frames import damaged
from tidelog.proto.calls import api
from tidelog.proto.calls.user_api import SaslAuthenticateRequest
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.grpc_wire import LOGIN, LOGIN_METADATA_MAX, SERVICE
from tidelog.proto.transport.network import Address, CallContext, CallHandler, Server, Service, StreamKind
from tidelog.security.session import FindSession

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _CONTINUATION = 0, 1, 4, 9
_END_STREAM, _END_HEADERS = 1, 4
_ANSWER_S: Final = 0.02
"""How long a stranger listens before it leaves; most answers, and all connection ends, come sooner."""
_METHODS: Final = ("SaslAuthenticate", "Metadata", "Produce", "Fetch", "CallStream", "Nothing")


class Http2Door:
    """A listener that admits nobody without a login; ``begun`` counts calls and streams that were served all the
    same."""

    def __init__(self, authenticate: CallHandler, find: FindSession) -> None:
        self.begun = 0
        self._find = find
        self._authenticate = authenticate
        self._server: Server | None = None

    async def open(self) -> None:
        calls: Any = {api.MetadataRequest: self._called, SaslAuthenticateRequest: self._authenticate}
        streams = dict.fromkeys((StreamKind.PRODUCE, StreamKind.FETCH), self._streamed)
        service = Service(calls, streams, sessions=self._find)
        self._server = await GrpcNetwork().serve("CLIENT", Address("127.0.0.1", 0), service)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close(0)

    async def _called(self, _: object, __: CallContext) -> api.MetadataResponse:
        self.begun += 1
        return api.MetadataResponse("", 1, (), ())  # type: ignore[arg-type]

    def _streamed(self, _: CallContext) -> NoReturn:
        self.begun += 1
        raise AssertionError("a stream of a stranger was served")

    async def visit(self, rng: random.Random, login: bytes, others: list[bytes]) -> float:
        """Make one connection of a stranger; return the longest processor time of one turn of the loop meanwhile."""
        assert self._server is not None
        sent = conversation(rng, login)
        if rng.random() < 0.8:
            sent = damaged(rng, bytes(14) + sent, others)[14:]
            others[int(rng.random() * len(others))] = sent[:2_000]
        reader, writer = await asyncio.open_connection(*self._server.address)
        turns = asyncio.get_running_loop().create_task(longest_turn())
        try:
            with suppress(OSError, TimeoutError):
                writer.write(sent)
                async with asyncio.timeout(_ANSWER_S):
                    while await reader.read(2**16):
                        pass
        finally:
            writer.transport.abort()
            turns.cancel()
        return await turns


async def longest_turn() -> float:
    """Return, once cancelled, the longest processor time of a turn of the loop."""
    longest_s, before_s = 0.0, time.thread_time()
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
    return longest_s


def conversation(rng: random.Random, login: bytes) -> bytes:
    """Return a client's part: the preface, settings, and a few calls with the headers that gRPC and we set."""
    out = [PREFACE, _frame(_SETTINGS, 0, 0, b"")]
    for number in range(rng.choice((1, 1, 1, 2, 20))):
        stream = 2 * number + 1
        block = _headers(rng, SERVICE + rng.choice(_METHODS), login)
        cut = len(block) if rng.random() < 0.8 else int(rng.random() * len(block))
        out.append(_frame(_HEADERS, _END_HEADERS if cut == len(block) else 0, stream, block[:cut]))
        if cut < len(block):
            out.append(_frame(_CONTINUATION, _END_HEADERS, stream, block[cut:]))
        body = rng.randbytes(int(rng.expovariate(0.01)))
        message = b"\0" + len(body).to_bytes(4, "big") + body
        out.append(_frame(_DATA, _END_STREAM if rng.random() < 0.7 else 0, stream, message))
    return b"".join(out)


def _headers(rng: random.Random, path: str, login: bytes) -> bytes:
    pairs: Sequence[tuple[bytes, bytes]] = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (LOGIN.encode(), base64.b64encode(login[: LOGIN_METADATA_MAX // 2])),
        (b"authorization", b"Tidelog " + base64.urlsafe_b64encode(rng.randbytes(24))),
        (b"tidelog-client-id-bin", base64.b64encode(rng.randbytes(8))),
    )
    return b"".join(b"\x10" + _text(name) + _text(value) for name, value in pairs)


def _text(text: bytes) -> bytes:
    """Return a string in HPACK, without Huffman coding (RFC 7541, 5.2)."""
    if len(text) < 127:
        return bytes((len(text),)) + text
    rest, out = len(text) - 127, bytearray(b"\x7f")
    while rest >= 128:
        out.append(rest % 128 + 128)
        rest //= 128
    out.append(rest)
    return bytes(out) + text


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return HTTP/2 frames, cut at 16 KiB; the rest of a long one is left out (RFC 9113, 4.1)."""
    payload = payload[: 2**14]
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
