"""Recognizes, by its first bytes, a client that connected to the wrong port."""

from __future__ import annotations

import struct
from typing import Final

_HTTP: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")
_KNOWN: Final = {
    b"SSH-": "SSH",
}


KAFKA_BYTES_MAX: Final = 2**20
"""More than the first request of any Kafka client."""
_KAFKA_HEAD: Final = struct.Struct(">ihh")
HTTP2: Final = b"PRI "
"""How a gRPC client starts."""


class GrpcCaller(Exception):
    """A connection starts as gRPC does."""


def stranger(first: bytes) -> str | None:
    """Return the protocol of a client that starts with these bytes at an HTTP port; ``None`` if it may be HTTP."""
    if (found := _grpc_or_kafka(first)) is not None:
        return found
    return "a TLS hello" if first[0] == 0x16 and first[1:2] == b"\x03" else None


def known_stranger(first: bytes) -> str | None:
    """Return the protocol of a non-TLS client that starts with these bytes at a TLS port; ``None`` if unknown."""
    return _grpc_or_kafka(first) or ("HTTP" if first[:4] in _HTTP else _KNOWN.get(first[:4]))


def _grpc_or_kafka(first: bytes) -> str | None:
    if first[:4] == HTTP2:
        return "gRPC"
    if len(first) >= _KAFKA_HEAD.size:
        size, key, version = _KAFKA_HEAD.unpack_from(first)
        if 0 < size <= KAFKA_BYTES_MAX and 0 <= key < 0x80 and 0 <= version < 0x80:
            return "Kafka's protocol"
    return None


def junk(first: bytes) -> str | None:
    """Return the protocol of a connection that starts with these four bytes; ``None`` if it may be Kafka."""
    if first[0] == 0x16 and first[1] == 0x03:
        return "a TLS hello; this listener is plaintext"
    if first in _HTTP:
        return "HTTP"
    return _KNOWN.get(first)
