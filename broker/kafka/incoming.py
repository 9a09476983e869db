"""Bytes from a socket into frames.

Small frames are cut out of a buffer that all connections share; a large one gets memory of its own as it comes,
never much more than has arrived, so that a length alone costs nothing.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from tidelog.broker.kafka.junk import junk
from tidelog.proto.kafka.wire import BadMessage

SHARED_BYTES: Final = 64 * 1024
"""Read at once where no large frame is under way."""
_GROW_MIN: Final = 8 * 1024
"""Memory given to a large frame at first; beyond it, as much again as has arrived."""
_GROW_PROVEN: Final = 1024 * 1024
"""The same on a connection that has sent a large frame whole before: who only announces them gets less."""
FRAME_MIN: Final = 8
"""A request's header has at least API key, version and correlation id."""
_LENGTH: Final = struct.Struct(">i")
SHARED: Final = bytearray(SHARED_BYTES)
"""The buffer that all connections of a process share; a frame whose memory it is lasts until the next reading."""
_SHARED_VIEW: Final = memoryview(SHARED)


class Incoming:
    """What one connection has received and nobody has taken yet.

    :meth:`receive` reads; :meth:`next_frame` gives the frames that are whole. What is not taken until the next
    reading of *any* connection must be kept with :meth:`keep`: the buffer is shared.
    """

    __slots__ = ("_at", "_data", "_filled", "_first", "_frame", "_frame_bytes_max", "_grow", "_size")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._first = True
        self._data: memoryview | bytes = b""
        self._at = 0
        self._frame: bytearray | None = None
        self._grow = _GROW_MIN
        self._filled = 0
        self._size = 0

    @property
    def empty(self) -> bool:
        """Whether nothing has come that was not taken."""
        return self._frame is None and self._at >= len(self._data)

    @property
    def held(self) -> int:
        """Bytes of memory that are kept for this connection."""
        return (len(self._frame) if self._frame is not None else 0) + (
            len(self._data) if isinstance(self._data, bytes) else 0
        )

    def receive(self, sock: socket.socket) -> int:
        """Read what is there; returns the number of bytes, 0 at the end. Raises ``OSError``."""
        frame = self._frame
        if frame is not None:
            with memoryview(frame) as view, view[self._filled :] as room:
                count = sock.recv_into(room)
            self._filled += count
            if self._filled == len(frame) < self._size:
                frame += bytes(min(self._size - len(frame), len(frame)))
            return count
        kept = self._data[self._at :]
        count = sock.recv_into(_SHARED_VIEW)
        self._data = _SHARED_VIEW[:count] if not len(kept) else bytes(kept) + bytes(_SHARED_VIEW[:count])
        self._at = 0
        return count

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, ``None`` if there is none yet.

        Its memory is this frame's own, or :data:`SHARED`. Raises ``BadMessage`` where what comes is no frame.
        """
        if self._frame is not None:
            if self._filled < self._size:
                return None
            frame, self._frame = self._frame, None
            self._grow = _GROW_PROVEN
            return memoryview(frame).toreadonly()
        data, at = self._data, self._at
        there = len(data) - at
        if there < 4:
            return None
        (size,) = _LENGTH.unpack_from(data, at)
        if self._first:
            self._first = False
            if (what := junk(bytes(data[at : at + 4]))) is not None:
                raise BadMessage(f"expected Kafka's protocol, found {what}")
        if not FRAME_MIN <= size <= self._frame_bytes_max:
            raise BadMessage(
                f"expected a request of {FRAME_MIN} to {self._frame_bytes_max} bytes (socket.request.max.bytes), "
                f"found a length of {size}"
            )
        if there - 4 >= size:
            self._at = at + 4 + size
            return memoryview(data)[at + 4 : self._at]
        if size + 4 > SHARED_BYTES:
            self._begin_large(data, at + 4, size)
        return None

    def wants_room(self, api_key: int) -> bool:
        """Whether the next frame has begun to come and is large, or of this API: the frames that take memory for
        longer than a moment. One that has been given its memory wants none."""
        if self._frame is not None:
            return False
        data, at = self._data, self._at
        if len(data) - at < 6:
            return False
        (size,) = _LENGTH.unpack_from(data, at)
        return bool(size + 4 > SHARED_BYTES or data[at + 4] << 8 | data[at + 5] == api_key)

    def keep(self) -> None:
        """Take what is left of the shared buffer into memory of this connection's own."""
        if isinstance(self._data, memoryview) or self._at:
            self._data = bytes(self._data[self._at :])
            self._at = 0

    def drop(self) -> None:
        """Forget everything."""
        self._data, self._at, self._frame = b"", 0, None

    def _begin_large(self, data: memoryview | bytes, at: int, size: int) -> None:
        there = len(data) - at
        frame = bytearray(min(size, max(self._grow, 2 * there)))
        frame[:there] = data[at:]
        self._frame, self._filled, self._size = frame, there, size
        self._data, self._at = b"", 0
