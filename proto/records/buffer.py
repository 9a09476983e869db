"""Records of one batch as they are appended, in plain Python.

:mod:`tidelog.proto.records._codec` has the same class, compiled; tests keep the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.model.buffer import Buffer
from tidelog.proto.records.batches import HEADER_SIZE
from tidelog.proto.records.varint import VARINTS

Headers = Iterable[tuple[str, Buffer | None]]

EMPTY_HEADER: Final = bytes(HEADER_SIZE)
TIME_MAX: Final = 1 << 62
"""The first record's time, and the others' distance to it, are strictly within plus or minus this many ms."""


class RecordBuffer:
    """Collects the records of one batch. Not thread-safe.

    ``bytes_max`` bounds the batch before compression, header included; a single record may exceed it (the caller
    enforces ``max_request_size`` itself).
    """

    __slots__ = ("_bytes_max", "_pieces", "base_timestamp", "count", "max_timestamp", "size")

    count: int
    """Records so far."""
    size: int
    """Bytes of the batch so far, uncompressed."""
    base_timestamp: int
    """The first record's timestamp, -1 without records."""
    max_timestamp: int
    """The highest timestamp, -1 without records."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self.count = 0
        self.size = HEADER_SIZE
        self.base_timestamp = -1
        self.max_timestamp = -1
        self._bytes_max = 1 << 62 if bytes_max is None else bytes_max
        self._pieces: list[bytes] = [EMPTY_HEADER]

    def append(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()) -> int:
        """Add a record; return :attr:`size`, or -1 if it does not fit and nothing changed.

        ``timestamp`` in ms, in any order. The bytes are copied now. The first record always fits. Raises, changing
        nothing, ``TypeError`` for a key or value that is not bytes or a header name that is not text, ``OverflowError``
        for a time beyond :data:`TIME_MAX`.
        """
        count = self.count
        if not count:
            if not -TIME_MAX < timestamp < TIME_MAX:
                raise OverflowError(f"expected a time within 2**62 ms, found {timestamp}")
            self.base_timestamp = self.max_timestamp = timestamp
        delta = timestamp - self.base_timestamp
        if not -TIME_MAX < delta < TIME_MAX:
            raise OverflowError(f"expected a time within 2**62 ms of the first record's, found {timestamp}")
        if key is None and value.__class__ is bytes and not headers:
            body = b"\0%b%b\x01%b%b\0" % (VARINTS[delta], VARINTS[count], VARINTS[len(value)], value)
        else:
            body = b"\0%b%b%b%b%b" % (
                VARINTS[delta],
                VARINTS[count],
                b"\x01" if key is None else _sized(key),
                b"\x01" if value is None else _sized(value),
                _encode_headers(headers) if headers else b"\0",
            )
        length = VARINTS[len(body)]
        size = self.size + len(length) + len(body)
        if size > self._bytes_max and count:
            return -1
        self._pieces += (length, body)
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count = count + 1
        self.size = size
        return size

    def taken(self) -> bytearray:
        """Return 61 zero bytes, reserved for the header, and the records."""
        return bytearray().join(self._pieces)


def _sized(data: Buffer) -> bytes:
    """Return the length and bytes of a key, a value or a header's value."""
    if data.__class__ is not bytes:
        data = bytes(memoryview(data))
    return VARINTS[len(data)] + data


def _encode_headers(headers: Headers) -> bytes:
    pieces = []
    count = 0
    for name, value in headers:
        raw = str.encode(name)
        pieces.append(VARINTS[len(raw)])
        pieces.append(raw)
        pieces.append(b"\x01" if value is None else _sized(value))
        count += 1
    return VARINTS[count] + b"".join(pieces)
