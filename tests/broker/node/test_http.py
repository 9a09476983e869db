"""The HTTP listener: pages, what it refuses, and garbage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tidelog.broker.node.http import CONNECTIONS_MAX, LINES_MAX, HttpServer, text_page
from tidelog.proto.transport.network import Address


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
        async with asyncio.timeout(100):
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
    with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{address.port} \(http\.listener\): "):
        await HttpServer({}).start(address)


async def test_health_is_answered_while_others_hold_half_a_request(address: Address) -> None:
    """As many as there may be, and more: the one that has asked for nothing for longest makes room."""
    held = [await asyncio.open_connection(address.host, address.port) for _ in range(CONNECTIONS_MAX)]
    try:
        for _, writer in held:
            writer.write(b"GET /health HTTP/1.1\r\nHost:")
            await writer.drain()
        for _ in range(3):
            health = await exchange(address, b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert health.startswith(b"HTTP/1.1 200 ")
        oldest, newest = held[0], held[-1]
        async with asyncio.timeout(5):
            assert await oldest[0].read() == b""
        newest[1].write(b" a\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(5):
            assert (await newest[0].read()).startswith(b"HTTP/1.1 200 ")
    finally:
        for _, writer in held:
            writer.close()


async def test_a_connection_that_asks_is_kept_before_one_that_does_not(address: Address) -> None:
    asking = await asyncio.open_connection(address.host, address.port)
    silent = [await asyncio.open_connection(address.host, address.port) for _ in range(CONNECTIONS_MAX - 1)]
    try:
        asking[1].write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await asking[0].readuntil(b"alive\n")).startswith(b"HTTP/1.1 200 ")
        await exchange(address, b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(5):
            assert await silent[0][0].read() == b""
        asking[1].write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await asking[0].readuntil(b"alive\n")).startswith(b"HTTP/1.1 200 ")
    finally:
        for _, writer in (asking, *silent):
            writer.close()


@pytest.mark.parametrize("pieces", [1, 40])
async def test_a_request_has_at_most_so_many_lines(address: Address, pieces: int) -> None:
    """Sixteen kilobytes of short lines took 6 ms of the event loop, from anybody."""
    lines = b"a:\r\n" * LINES_MAX + b"\r\n"
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n")
    step = len(lines) // pieces + 1
    for at in range(0, len(lines), step):
        writer.write(lines[at : at + step])
        await writer.drain()
    async with asyncio.timeout(60):
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
    writer.close()


async def test_a_bad_body_of_a_head_request_is_refused_without_one(address: Address) -> None:
    """Text after the refusal's head ended the connection with an exception; ``./dev fuzz login`` found it."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"HEAD /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n")
    async with asyncio.timeout(60):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"\r\n\r\n"), "the head alone"
    writer.close()


async def test_a_body_is_left_unread(address: Address) -> None:
    """Chunks of one byte took 1 ms of the event loop a kilobyte, without end."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    async with asyncio.timeout(60):
        assert (await reader.read()).startswith(b"HTTP/1.1 200 "), "the answer does not wait for the body"
    writer.close()


async def test_requests_that_come_at_once_take_turns_with_others(address: Address) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    request = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    task = asyncio.ensure_future(others())
    answer = await exchange(address, request * 50 + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    task.cancel()
    assert answer.count(b"HTTP/1.1 200 ") == 51
    assert turns > 51
