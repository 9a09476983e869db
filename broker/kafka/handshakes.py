"""TLS handshakes of a listener with sockets of its own, off the event loop: they are costly, and there may be many.

Each step of a handshake runs on one of a few threads; OpenSSL releases the interpreter while it computes. Between
steps, the loop waits for the client. Silent connections cost as little as on a plaintext listener, and hold no place.
Kafka listeners and the HTTP listener use it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tidelog.broker.kafka.fair_places import FairPlaces
from tidelog.broker.kafka.wire.junk import HTTP2, known_stranger
from tidelog.broker.kafka.wire.tls_socket import TlsSocket, until_ready
from tidelog.proto.transport.http2_referral import Referral
from tidelog.security.session import Session
from tidelog.security.tls_store import NotAuthenticated, TlsStore

THREADS: Final = 2
UNDER_WAY_MAX: Final = 256
"""Maximum concurrent handshakes; further connections wait, and one address gets at most half."""
TIMEOUT_S: Final = 10.0
"""Timeout for the first byte, and again for the handshake."""
_TLS_HANDSHAKE: Final = 0x16
_PEEK_BYTES: Final = 12


class HandshakeFailed(Exception):
    """The text is for the log."""


class Handshakes:
    """See the module."""

    def __init__(self, store: TlsStore, needs: str = "") -> None:
        """``needs``: what clients in plaintext lack, by default Kafka's setting."""
        self._store = store
        self._needs = needs or f"security.protocol={store.rules.protocol}"
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, "tls")
        self._places = FairPlaces(UNDER_WAY_MAX)
        self.under_way: set[asyncio.Task[None]] = set()
        """Includes those that wait."""

    async def shake(self, sock: socket.socket, host: str) -> tuple[TlsSocket, Session]:
        """Perform the handshake on a fresh socket from ``host``, and find the session of the client's certificate.
        Raises :class:`HandshakeFailed`, after closing the socket."""
        found = await self.encrypt(sock, host)
        try:
            return found, self._store.session_of(found.certificate)
        except NotAuthenticated as nobody:
            found.close()
            raise HandshakeFailed(str(nobody)) from None

    async def encrypt(self, sock: socket.socket, host: str) -> TlsSocket:
        """Perform the handshake. Raises :class:`HandshakeFailed`, after closing the socket."""
        found: socket.socket | ssl.SSLSocket = sock
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._expect_tls(sock)
            async with self._places.place(host), asyncio.timeout(TIMEOUT_S):
                found = self._store.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                await self._steps(found)
            return TlsSocket(found)
        except TimeoutError:
            found.close()
            raise HandshakeFailed(f"expected a TLS handshake within {TIMEOUT_S:g} s") from None
        except ssl.SSLError as error:
            found.close()
            raise HandshakeFailed(_told(error)) from None
        except OSError as error:
            found.close()
            raise HandshakeFailed(f"the TLS handshake was aborted: {error.strerror or error}") from None
        except (HandshakeFailed, asyncio.CancelledError):
            found.close()
            raise

    async def close(self) -> None:
        """Abandon handshakes in progress."""
        for task in list(self.under_way):
            task.cancel()
        if self.under_way:
            await asyncio.wait(self.under_way)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _steps(self, found: ssl.SSLSocket) -> None:
        while True:
            try:
                step = self._loop.run_in_executor(self._threads, found.do_handshake)
                try:
                    await asyncio.shield(step)
                except asyncio.CancelledError:
                    await asyncio.wait((step,))  # the thread must release the socket first
                    step.exception()  # nobody else retrieves it
                    raise
                return
            except ssl.SSLWantReadError:
                await until_ready(found, writing=False)
            except ssl.SSLWantWriteError:
                await until_ready(found, writing=True)

    async def _expect_tls(self, sock: socket.socket) -> None:
        """Raise :class:`HandshakeFailed` if the client starts with something else."""
        await until_ready(sock, writing=False)
        first = sock.recv(_PEEK_BYTES, socket.MSG_PEEK)
        if first[:1] == bytes((_TLS_HANDSHAKE,)):
            return
        if not first:
            raise HandshakeFailed("the client left before the TLS handshake")
        if first[:4] == HTTP2:
            await self._tell_grpc(sock)
        what = known_stranger(first) or "something else"
        raise HandshakeFailed(f"expected TLS, found {what} in plaintext: the client needs {self._needs}")

    async def _tell_grpc(self, sock: socket.socket) -> None:
        referral = Referral(
            f"{self._store.rules.name} expects TLS: set security_protocol={self._store.rules.protocol}", None
        )
        while not referral.over:
            data = sock.recv(64 * 1024)
            out = referral.receive(data)
            if out:
                sock.send(out)
            if not data or referral.answered:
                return
            await until_ready(sock, writing=False)


def _told(error: ssl.SSLError) -> str:
    """Describe an OpenSSL error, in plain words for the most common ones."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"expected a client certificate from an authority in the truststore: {error.verify_message}"
    known = {
        "PEER_DID_NOT_RETURN_A_CERTIFICATE": "expected a client certificate (ssl.client.auth), found none",
        "UNSUPPORTED_PROTOCOL": "expected one of ssl.enabled.protocols, found another TLS version",
        "NO_SHARED_CIPHER": "expected a cipher in common, found none",
    }
    alert = reason.partition("_ALERT_")[2].lower().replace("_", " ")
    if alert or reason == "UNEXPECTED_EOF_WHILE_READING":
        said = f" ({alert})" if alert else ""
        return f"the client aborted the TLS handshake{said}: does it accept this node's certificate?"
    return f"the TLS handshake failed: {known.get(reason, reason)}"
