"""An accepted socket under TLS, with as much of a socket's interface as a Kafka connection uses."""

from __future__ import annotations

import socket
import ssl

from tidelog.model.buffer import Buffer


class TlsSocket:
    """What would wait raises ``BlockingIOError``, as a socket does; everything else that fails is an ``OSError``.

    There is no sending from files: the system would send them as they are, not encrypted.
    """

    __slots__ = ("_ssl",)

    def __init__(self, shaken: ssl.SSLSocket) -> None:
        self._ssl = shaken

    def fileno(self) -> int:
        return self._ssl.fileno()

    @property
    def pending(self) -> bool:
        """Whether decrypted bytes wait here, of which the event loop, which watches the socket, hears nothing."""
        return self._ssl.pending() > 0

    def recv_into(self, view: memoryview) -> int:
        """Fill the view as far as records have come; TLS gives one record, at most 16 KiB, at a time."""
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
        """Send a part. What is not sent must be given again, at the same place of the same bytes."""
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
        """Send TLS's own end, so that the peer knows that nothing was cut off; its answer is not waited for."""
        try:
            self._ssl.unwrap()
        except (OSError, ValueError):
            pass


AnySocket = socket.socket | TlsSocket
