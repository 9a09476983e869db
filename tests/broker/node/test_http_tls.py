"""An HTTPS listener: handshakes beside the event loop, answers of any size, and clients that come the wrong way."""

from __future__ import annotations

import asyncio
import datetime
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from tidelog.broker.node.http import CONNECTIONS_MAX, HttpServer, text_page
from tidelog.chaos.fuzz.http2 import longest_turn
from tidelog.proto.transport.network import Address
from tidelog.security.pem import PemSource, PemSources
from tidelog.security.tls_store import TlsRules, TlsStore

TURN_S_MAX = 0.003
"""A signature with the key below takes 5 ms on the machines that we know."""
LARGE = 8 * 2**20
ASK = b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TlsStore:
    key = rsa.generate_private_key(65537, 4096)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, *form) + made.public_bytes(serialization.Encoding.PEM)
    path = tmp_path_factory.mktemp("keys") / "node.pem"
    path.write_bytes(pem)
    path.chmod(0o600)
    source = PemSource("ssl.keystore.location", str(Path(path)))
    return TlsStore(PemSources(source, source, None), TlsRules("listener HTTPS"))


@pytest.fixture
async def address(store: TlsStore) -> AsyncIterator[Address]:
    pages = {"/health": lambda: text_page(200, "alive\n"), "/large": lambda: text_page(200, "." * LARGE)}
    server = HttpServer(pages, "elsewhere")
    yield await server.start(Address("127.0.0.1", 0), store)
    await server.close()


def context() -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def asked(address: Address, sent: bytes = ASK) -> bytes:
    with socket.create_connection(address, 60) as plain, context().wrap_socket(plain) as encrypted:
        encrypted.sendall(sent)
        return b"".join(iter(lambda: encrypted.recv(2**16), b""))


async def test_a_handshake_with_a_large_key_does_not_hold_the_loop(address: Address) -> None:
    held = []
    for _ in range(5):
        turns = asyncio.create_task(longest_turn())
        answer = await asyncio.to_thread(asked, address)
        turns.cancel()
        held.append(await turns)
        assert answer.endswith(b"alive\n")
    assert min(held) < TURN_S_MAX, held


async def test_a_large_answer_and_several_requests(address: Address) -> None:
    large = await asyncio.to_thread(asked, address, ASK.replace(b"/health", b"/large"))
    assert large.count(b".") == LARGE + 1, "with the one in the head"
    two = await asyncio.to_thread(asked, address, ASK.replace(b"Connection: close\r\n", b"") + ASK)
    assert two.count(b"alive\n") == 2


async def test_an_answer_arrives_though_the_request_was_left_unread(address: Address) -> None:
    body = b"POST /health HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000
    assert (await asyncio.to_thread(asked, address, body)).startswith(b"HTTP/1.1 405 ")


async def test_who_speaks_plaintext_is_told_of_in_the_log(address: Address, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(ASK)
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    assert "expected TLS, found HTTP in plaintext: the client needs https://" in caplog.text


async def test_crowds_that_never_shake_hands_shut_nobody_out(address: Address) -> None:
    held = [await asyncio.open_connection(*address) for _ in range(2 * CONNECTIONS_MAX)]
    try:
        assert (await asyncio.to_thread(asked, address)).endswith(b"alive\n")
    finally:
        for _, writer in held:
            writer.close()


async def test_a_port_in_use_is_named(address: Address, store: TlsStore) -> None:
    with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{address.port} \(http\.listener\): "):
        await HttpServer({}).start(address, store)
