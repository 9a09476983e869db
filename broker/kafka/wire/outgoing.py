"""Answers being written to a socket: scattered buffers, and ranges of files that the system sends."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from tidelog.broker.kafka.wire.tls_socket import AnySocket, TlsSocket
from tidelog.model.buffer import Buffer
from tidelog.proto.transport.frames import RecordsInFile


class Receipt:
    """Accounts for bytes in memory; ``release`` is called once they are sent or dropped."""

    __slots__ = ("release",)

    def __init__(self, release: Callable[[], None]) -> None:
        self.release = release


Piece = Buffer | RecordsInFile | Receipt

BUFFERS_MAX: Final = 64
"""Buffers per system call."""
TURN_BYTES_MAX: Final = 4 * 2**20
"""Bytes sent before other connections get their turn."""
_TAIL_MAX: Final = 64 * 1024
_JOINED_MAX: Final = 4 * 1024
_TLS_JOINED_MAX: Final = 16 * 1024
"""The capacity of one TLS record."""
SENDFILE_MIN: Final = 16 * 1024
"""A shorter range is read and sent together with its surroundings: one system call instead of two."""
_CHUNK: Final = 256 * 1024
"""Bytes to gather for one call at most, or to read at a time if the system cannot send from files."""
_HAS_SENDFILE: Final = hasattr(os, "sendfile")
_MORE: Final = getattr(socket, "MSG_MORE", 0)
_BUFFERS: Final = (bytes, bytearray, memoryview)


class FileCut(Exception):
    """A log's file ended before the range to send: an unclean election truncated it."""


class Outgoing:
    """Bytes that one connection has not sent yet. ``size`` counts those in memory.

    Ranges of files are released once they are sent or dropped.
    """

    __slots__ = ("_left", "_pieces", "_position", "_tail", "size")

    def __init__(self) -> None:
        self._pieces: deque[Piece] | None = None
        """Created on demand: an empty one takes as much memory as all else of an idle connection."""
        self._tail: bytearray | None = None
        """The last piece, into which small answers are joined: cheaper than a buffer for each."""
        self._position = 0
        """How far the first piece has been sent; for a file, where to continue in it."""
        self._left = 0
        """The rest of the file in the first piece."""
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add_answer(self, pieces: Sequence[Piece] | None) -> None:
        """Add one answer, prefixed with its length. Does nothing without pieces."""
        if not pieces:
            return
        if self._pieces is None:
            self._pieces = deque()
        tail = self._tail
        if tail is None or len(tail) >= _TAIL_MAX:
            tail = self._tail = bytearray()
            self._pieces.append(tail)
        only = pieces[0]
        if len(pieces) == 1 and isinstance(only, _BUFFERS) and len(only) <= _JOINED_MAX:
            size = len(only)
            tail += size.to_bytes(4, "big")
            tail += only
            self.size += 4 + size
            return
        size = 0
        for piece in pieces:
            if not isinstance(piece, Receipt):
                size += len(piece) if isinstance(piece, _BUFFERS) else piece.size
        tail += size.to_bytes(4, "big")
        self.size += 4
        for piece in pieces:
            if isinstance(piece, _BUFFERS):
                self.size += len(piece)
                if tail is not None and len(piece) <= _JOINED_MAX:
                    tail += piece
                    continue
            tail = self._tail = None
            self._pieces.append(piece)

    def clear(self) -> None:
        """Drop everything."""
        pieces, self._pieces = self._pieces, None
        self._tail = None
        self._position = self._left = self.size = 0
        for piece in pieces or ():
            if not isinstance(piece, _BUFFERS):
                piece.release()

    def send(self, sock: AnySocket) -> tuple[int, int]:
        """Send until everything is sent, the socket takes no more, or others get their turn.

        Returns the bytes sent, and how many of them the system sent from files. Raises ``OSError`` if the connection is
        gone or a file cannot be read, and :class:`FileCut`.
        """
        total = from_files = 0
        pieces = self._pieces
        if pieces is None:
            return 0, 0
        self._tail = None  # a buffer that is being sent must not grow
        try:
            while pieces and total < TURN_BYTES_MAX:
                first = pieces[0]
                if isinstance(first, Receipt):
                    pieces.popleft()
                    first.release()
                elif isinstance(sock, TlsSocket):
                    if isinstance(first, _BUFFERS):
                        total += self._send_joined(sock, pieces, first)
                    else:
                        self._read_file(pieces, first)
                elif isinstance(first, _BUFFERS) or first.size < SENDFILE_MIN:
                    total += self._send_buffers(sock, pieces)
                elif _HAS_SENDFILE:
                    sent = self._send_file(sock, pieces, first)
                    total += sent
                    from_files += sent
                else:
                    self._read_file(pieces, first)
        except BlockingIOError:
            pass
        if not pieces:
            self._pieces = None
        return total, from_files

    def _send_buffers(self, sock: socket.socket, pieces: deque[Piece]) -> int:
        buffers: list[Buffer] = []
        gathered = more = 0
        for number in range(min(len(pieces), BUFFERS_MAX)):
            piece = pieces[number]
            if isinstance(piece, Receipt):
                break
            if not isinstance(piece, _BUFFERS):
                if piece.size >= SENDFILE_MIN:
                    more = _MORE
                    break
                piece = pieces[number] = _read(piece)
                self.size += len(piece)
            buffers.append(piece)
            gathered += len(piece)
            if gathered >= _CHUNK:
                break
        if self._position:
            buffers[0] = memoryview(buffers[0])[self._position :]
        sent = sock.send(buffers[0], more) if len(buffers) == 1 else sock.sendmsg(buffers, (), more)
        self.size -= sent
        left = sent
        for buffer in buffers:
            if left < len(buffer):
                self._position += left
                break
            left -= len(buffer)
            pieces.popleft()
            self._position = 0
        return sent

    def _send_joined(self, sock: TlsSocket, pieces: deque[Piece], first: Buffer) -> int:
        """Send small buffers as one, because each send makes its own TLS record."""
        if not self._position and len(first) < _TLS_JOINED_MAX:
            buffers, gathered = [], 0
            while pieces and gathered < _TLS_JOINED_MAX and isinstance(piece := pieces[0], _BUFFERS):
                buffers.append(piece)
                gathered += len(piece)
                pieces.popleft()
            first = b"".join(buffers) if len(buffers) > 1 else buffers[0]
            pieces.appendleft(first)
        sent = sock.send(memoryview(first)[self._position :])
        self.size -= sent
        self._position += sent
        if self._position == len(first):
            pieces.popleft()
            self._position = 0
        return sent

    def _send_file(self, sock: socket.socket, pieces: deque[Piece], piece: RecordsInFile) -> int:
        if not self._left:
            self._position, self._left = piece.position, piece.size
        sent = os.sendfile(sock.fileno(), piece.fileno(), self._position, self._left)
        if not sent:
            raise FileCut
        self._position += sent
        self._left -= sent
        if not self._left:
            pieces.popleft()
            self._position = 0
            piece.release()
        return sent

    def _read_file(self, pieces: deque[Piece], piece: RecordsInFile) -> None:
        """Read the next part of a long range into memory, before the rest of it."""
        data = os.pread(piece.fileno(), _CHUNK, piece.position)
        if len(data) < min(_CHUNK, piece.size):
            raise FileCut
        pieces.popleft()
        data = data[: piece.size]
        if piece.size > len(data):
            pieces.appendleft(_Rest(piece, piece.position + len(data), piece.size - len(data)))
        else:
            piece.release()
        pieces.appendleft(data)
        self.size += len(data)


def _read(piece: RecordsInFile) -> bytes:
    """Read a short range. Raises :class:`FileCut`."""
    data = os.pread(piece.fileno(), piece.size, piece.position)
    if len(data) < piece.size:
        raise FileCut
    piece.release()
    return data


class _Rest:
    """The rest of a range of a file."""

    __slots__ = ("_whole", "position", "size")

    def __init__(self, whole: RecordsInFile, position: int, size: int) -> None:
        self._whole = whole
        self.position = position
        self.size = size

    def fileno(self) -> int:
        return self._whole.fileno()

    def release(self) -> None:
        self._whole.release()
