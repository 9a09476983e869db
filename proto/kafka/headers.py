"""Request and response headers of Kafka's protocol, without the length prefix of each frame.

Source: Kafka's ``RequestHeader.json``, ``ResponseHeader.json`` and ``ApiMessageType``.
"""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import Final, NamedTuple

from tidelog.proto.kafka.wire import BadMessage, Budget, skip_tags

API_VERSIONS: Final = 18
_HEAD: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")
_CORRELATION_AND_SIZE: Final = struct.Struct(">4sh")
_NEVER: Final = 1 << 15

FLEXIBLE_FROM: Final = MappingProxyType(
    {
        0: 9,
        1: 12,
        2: 6,
        3: 9,
        8: 8,
        9: 6,
        10: 3,
        11: 6,
        12: 4,
        13: 4,
        14: 4,
        15: 5,
        16: 3,
        17: _NEVER,
        18: 3,
        19: 5,
        20: 4,
        21: 2,
        22: 2,
        23: 4,
        24: 3,
        25: 3,
        26: 3,
        27: 1,
        28: 3,
        29: 2,
        30: 2,
        31: 2,
        32: 4,
        33: 2,
        34: 2,
        35: 2,
        36: 2,
        37: 2,
        38: 2,
        39: 2,
        40: 2,
        41: 2,
        42: 2,
        43: 2,
        44: 1,
        47: _NEVER,
        48: 1,
        49: 1,
        53: 1,
        54: 1,
    }
)
"""The first version of each API with compact strings and tagged fields (KIP-482); 0 for those not listed here."""


class RequestHeader(NamedTuple):
    """``end`` is where the request's body begins in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    end: int


def is_flexible(api_key: int, version: int) -> bool:
    """Return whether a message of this version has compact strings and tagged fields."""
    return version >= FLEXIBLE_FROM.get(api_key, 0)


def read_request_header(frame: memoryview) -> RequestHeader:
    """Read a request's header. Raises :class:`BadMessage`; ``client_id`` is "" if there is none."""
    if len(frame) < _HEAD.size:
        raise BadMessage(f"expected a request header of at least {_HEAD.size} bytes, found {len(frame)}")
    api_key, version, correlation, size = _HEAD.unpack_from(frame)
    end = _HEAD.size + max(size, 0)
    if size < -1 or end > len(frame):
        raise BadMessage(f"expected a client id within {len(frame)} bytes, found a length of {size}")
    client_id = str(frame[_HEAD.size : end], "utf-8", "replace") if size > 0 else ""
    if version >= FLEXIBLE_FROM.get(api_key, 0):
        end = skip_tags(frame, end, Budget())
    return RequestHeader(api_key, version, correlation, client_id, end)


def request_header(api_key: int, version: int, correlation_id: int, client_id: bytes = b"") -> bytes:
    """Return a request's header in the form that :func:`read_request_header` reads."""
    head = _HEAD.pack(api_key, version, correlation_id, len(client_id) or -1) + client_id
    return head + b"\0" if is_flexible(api_key, version) else head


def client_id_of(frame: memoryview) -> str:
    """Return the client id in a header that :func:`answered_body` has read."""
    size = int.from_bytes(frame[8:10], "big", signed=True)
    return str(frame[_HEAD.size : _HEAD.size + size], "utf-8", "replace") if size > 0 else ""


def answered_body(frame: memoryview, *, flexible: bool) -> tuple[bytes, memoryview]:
    """Return the response header for a request, and its body, for callers that need nothing else from its header.

    Raises :class:`BadMessage`.
    """
    there = len(frame)
    if there < _HEAD.size:
        raise BadMessage(f"expected a request header of at least {_HEAD.size} bytes, found {there}")
    correlation, size = _CORRELATION_AND_SIZE.unpack_from(frame, 4)
    end = _HEAD.size + size if size > 0 else _HEAD.size
    if size < -1 or end > there:
        raise BadMessage(f"expected a client id within {there} bytes, found a length of {size}")
    if not flexible:
        return correlation, frame[end:]
    end = end + 1 if end < there and not frame[end] else skip_tags(frame, end, Budget())
    return correlation + b"\0", frame[end:]


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """Return a response's header. The one of ApiVersions never has tagged fields: its reader does not know the version
    yet."""
    head = _CORRELATION.pack(correlation_id)
    return head + b"\0" if api_key != API_VERSIONS and version >= FLEXIBLE_FROM.get(api_key, 0) else head
