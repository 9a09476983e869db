"""The HTTP listener: pages, what it refuses, and garbage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tidelog.broker.http import HttpServer, text_page
from tidelog.proto.network import Address


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    server = HttpServer({"/health": lambda: text_page(200, "alive\n"), "/ready": lambda: text_page(503, "starting\n")})
    yield await server.start(Address("127.0.0.1", 0))
    await server.close()


async def exchange(address: Address, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(sent)
        await writer.drain()
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def test_pages_and_their_status(address: Address) -> None:
    health = await exchange(address, b"GET /health?x=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert health.startswith(b"HTTP/1.1 200 ")
    assert health.endswith(b"alive\n")
    ready = await exchange(address, b"GET /ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert ready.startswith(b"HTTP/1.1 503 ")


async def test_two_requests_on_one_connection(address: Address) -> None:
    answer = await exchange(
        address,
        b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nHEAD /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    )
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"alive") == 1, "HEAD has no body"


async def test_what_is_not_there_and_what_is_not_allowed(address: Address) -> None:
    missing = await exchange(address, b"GET /nope HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert missing.startswith(b"HTTP/1.1 404 ")
    assert b"/health" in missing
    post = await exchange(
        address, b"POST /health HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    )
    assert post.startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize(
    "garbage", [b"\x00\xff" * 40 + b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 9000]
)
async def test_garbage_is_refused_and_the_next_request_served(address: Address, garbage: bytes) -> None:
    answer = await exchange(address, garbage)
    assert answer.startswith(b"HTTP/1.1 4")
    good = await exchange(address, b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert good.startswith(b"HTTP/1.1 200 ")


async def test_a_taken_port_is_named(address: Address) -> None:
    with pytest.raises(OSError, match=f"{address.port}"):
        await HttpServer({}).start(address)
