"""An accepted socket under TLS, with the part of a socket's interface that connections use."""

from __future__ import annotations

import asyncio
import socket
import ssl

from tidelog.model.buffer import Buffer


class TlsSocket:
    """Operations that would wait raise ``BlockingIOError``, as with a socket; all other failures are ``OSError``.

    It cannot send from files: the system would send them unencrypted.
    """

    __slots__ = ("_ssl",)

    def __init__(self, shaken: ssl.SSLSocket) -> None:
        self._ssl = shaken

    def fileno(self) -> int:
        return self._ssl.fileno()

    @property
    def pending(self) -> bool:
        """Whether decrypted bytes wait here. The event loop, which watches the socket, does not notice them."""
        return self._ssl.pending() > 0

    @property
    def certificate(self) -> bytes | None:
        """The certificate that the client presented, as DER."""
        return self._ssl.getpeercert(binary_form=True)

    def recv_into(self, view: memoryview) -> int:
        """Fill the view as far as records have arrived; TLS yields one record, at most 16 KiB, at a time."""
        count = 0
        try:
            while count < len(view):
                more = self._ssl.recv_into(view[count:])
                if not more:
                    break
                count += more
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not count:
                raise BlockingIOError from None
        return count

    def recv(self, size: int) -> bytes:
        try:
            return self._ssl.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def send(self, data: Buffer) -> int:
        """Send a part. Unsent bytes must be passed again, from the same position of the same buffer."""
        try:
            return self._ssl.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def shutdown(self, how: int) -> None:
        self._say_end()
        self._ssl.shutdown(how)

    def close(self) -> None:
        self._say_end()
        self._ssl.close()

    def _say_end(self) -> None:
        """Send TLS's close notification, so that the peer knows that nothing was truncated; does not wait for its
        answer."""
        try:
            self._ssl.unwrap()
        except (OSError, ValueError):
            pass


AnySocket = socket.socket | TlsSocket


async def until_ready(sock: AnySocket, *, writing: bool) -> None:
    """Wait until the system can take bytes, or has some."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)

    def say() -> None:
        if not ready.done():
            ready.set_result(None)

    fd = sock.fileno()
    add(fd, say)
    try:
        await ready
    finally:
        remove(fd)
