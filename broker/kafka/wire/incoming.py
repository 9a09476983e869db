"""Splits bytes from a socket into frames.

Small frames are cut from a buffer that all connections share. A large one gets its own memory as it arrives, never much
more than has arrived, so that a mere length costs nothing.
"""

from __future__ import annotations

import struct
from typing import Final

from tidelog.broker.kafka.wire.junk import HTTP2, GrpcCaller, junk
from tidelog.broker.kafka.wire.tls_socket import AnySocket
from tidelog.proto.kafka.produce_codec import API_KEY as PRODUCE
from tidelog.proto.kafka.wire import BadMessage

SHARED_BYTES: Final = 64 * 1024
"""How much to read at a time, unless a large frame is arriving."""
_GROW_MIN: Final = 8 * 1024
"""Initial memory for a large frame; it grows by as much as has arrived."""
_GROW_PROVEN: Final = 1024 * 1024
"""The same on a connection that has sent a whole large frame before."""
FRAME_MIN: Final = 8
"""A request's header has at least API key, version and correlation id."""
_LENGTH: Final = struct.Struct(">i")


def shared_buffer() -> memoryview:
    """Return the buffer that all connections of a listener read into. A frame in it is valid until the next read."""
    return memoryview(bytearray(SHARED_BYTES))


class Incoming:
    """Bytes that one connection has received and nobody has taken yet.

    :meth:`receive` reads; :meth:`next_frame` returns complete frames. Data that is not taken before the next read of
    *any* connection of the listener must be saved with :meth:`keep`, because the buffer is shared.
    """

    __slots__ = (
        "_at",
        "_data",
        "_filled",
        "_first",
        "_first_bytes_max",
        "_frame",
        "_grow",
        "_shared",
        "_size",
        "bounded_by",
        "frame_bytes_max",
        "frame_bytes_min",
        "proven",
    )

    def __init__(self, frame_bytes_max: int, first_bytes_max: int, shared: memoryview) -> None:
        """``shared``: a :func:`shared_buffer`."""
        self._shared = shared
        self.frame_bytes_max = frame_bytes_max
        self.bounded_by = "socket.request.max.bytes"
        self.frame_bytes_min = FRAME_MIN
        self._first_bytes_max = first_bytes_max
        self.proven = False
        """Whether a request was well formed. Before that, only a produce may be large."""
        self._first = True
        self._data: memoryview | bytes = b""
        self._at = 0
        self._frame: bytearray | None = None
        self._grow = _GROW_MIN
        self._filled = 0
        self._size = 0

    @property
    def empty(self) -> bool:
        """Whether everything received has been taken."""
        return self._frame is None and self._at >= len(self._data)

    @property
    def in_large(self) -> bool:
        """Whether a large frame is arriving."""
        return self._frame is not None

    @property
    def held(self) -> int:
        """Bytes of memory held for this connection."""
        return (len(self._frame) if self._frame is not None else 0) + (
            len(self._data) if isinstance(self._data, bytes) else 0
        )

    def receive(self, sock: AnySocket) -> int:
        """Read what is available. Returns the number of bytes, 0 at the end. Raises ``OSError``."""
        frame = self._frame
        if frame is not None:
            with memoryview(frame) as view, view[self._filled :] as room:
                count = sock.recv_into(room)
            self._filled += count
            if self._filled == len(frame) < self._size:
                frame += bytes(min(self._size - len(frame), len(frame)))
            return count
        kept = self._data[self._at :]
        count = sock.recv_into(self._shared)
        self._data = self._shared[:count] if not len(kept) else bytes(kept) + bytes(self._shared[:count])
        self._at = 0
        return count

    def next_frame(self) -> memoryview | None:
        """Return the next complete frame without its length, ``None`` if there is none yet.

        Its memory belongs to this frame, or is the shared buffer. Raises ``BadMessage`` if the data is not a frame, and
        ``GrpcCaller`` if a gRPC client starts.
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
            if data[at : at + 4] == HTTP2:
                raise GrpcCaller
            if (what := junk(bytes(data[at : at + 4]))) is not None:
                raise BadMessage(f"expected the Kafka protocol, found {what}")
        if not self.frame_bytes_min <= size <= self.frame_bytes_max:
            raise BadMessage(
                f"expected a request of {self.frame_bytes_min} to {self.frame_bytes_max} bytes "
                f"({self.bounded_by}), found a length of {size}"
            )
        if size > self._first_bytes_max and not self.proven:
            if there < 6:
                return None
            if data[at + 4] << 8 | data[at + 5] != PRODUCE:
                raise BadMessage(
                    f"expected a first request of at most {self._first_bytes_max} bytes, found a length of {size}"
                )
        if there - 4 >= size:
            self._at = at + 4 + size
            return memoryview(data)[at + 4 : self._at]
        if size + 4 > SHARED_BYTES:
            self._begin_large(data, at + 4, size)
        return None

    def wants_room(self, api_key: int) -> bool:
        """Return whether a frame that takes memory for longer (a large one, or one of this API) has started to arrive
        and has no memory yet."""
        if self._frame is not None:
            return False
        data, at = self._data, self._at
        if len(data) - at < 6:
            return False
        (size,) = _LENGTH.unpack_from(data, at)
        return bool(size + 4 > SHARED_BYTES or data[at + 4] << 8 | data[at + 5] == api_key)

    def keep(self) -> None:
        """Copy the rest of the shared buffer to memory of this connection."""
        if isinstance(self._data, memoryview) or self._at:
            self._data = bytes(self._data[self._at :])
            self._at = 0

    def rest(self) -> bytes:
        """Return the untaken bytes of a connection that has sent no large frame."""
        return bytes(self._data[self._at :])

    def drop(self) -> None:
        """Forget everything."""
        self._data, self._at, self._frame = b"", 0, None

    def _begin_large(self, data: memoryview | bytes, at: int, size: int) -> None:
        there = len(data) - at
        frame = bytearray(min(size, max(self._grow, 2 * there)))
        frame[:there] = data[at:]
        self._frame, self._filled, self._size = frame, there, size
        self._data, self._at = b"", 0
