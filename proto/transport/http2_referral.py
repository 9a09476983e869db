"""Answers to a gRPC client at a listener without gRPC: refuse each call, with the address to use instead.

Just enough of HTTP/2 (RFC 9113) and gRPC (PROTOCOL-HTTP2.md) for that: settings are sent and acknowledged, and every
call is answered with trailers only, with literal fields, so that none of the client's fields need be read (HPACK, RFC
7541). Sans-IO: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from typing import Final
from urllib.parse import quote

from tidelog.proto.records.varint import write_uvarint
from tidelog.proto.transport.network import Address

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The HTTP/2 client preface."""
ELSEWHERE: Final = "tidelog-grpc-address"
"""The trailer that names the address of the gRPC listener, ``host:port``."""
FAILED_PRECONDITION: Final = 9
FRAME_BYTES_MAX: Final = 16 * 1024
"""Largest frame: HTTP/2's default, which we never raise."""
FRAMES_MAX: Final = 1024
"""Most frames of one connection; a client sends about three, and two more for each concurrent call."""

_HEAD: Final = struct.Struct(">BHBBI")
_HEADERS, _SETTINGS, _GOAWAY = 1, 4, 7
_ACK: Final = 0x1
_END_STREAM_AND_HEADERS: Final = 0x1 | 0x4
_STATUS_200: Final = b"\x88"
_STREAM_MASK: Final = 0x7FFF_FFFF


class Referral:
    """The server side of one connection. Feed :meth:`receive` until :attr:`over`."""

    def __init__(self, text: str, elsewhere: Address | None) -> None:
        self._text = text
        self._elsewhere = elsewhere
        self._data = b""
        self._begun = False
        self._frames = 0
        self._last = 0
        """The stream of the last answered call."""
        self.over = False
        """Whether to stop reading: the bytes are not HTTP/2, or too many."""

    def receive(self, data: bytes) -> bytes:
        """Take received bytes; return the bytes to send."""
        self._data += data
        out = b""
        if not self._begun:
            if len(self._data) < len(PREFACE):
                self.over = not PREFACE.startswith(self._data)
                return out
            if not self._data.startswith(PREFACE):
                self.over = True
                return out
            self._begun = True
            self._data = self._data[len(PREFACE) :]
            out += _frame(_SETTINGS, 0, 0, b"")
        while not self.over and len(self._data) >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(self._data)
            size = high << 16 | low
            self._frames += 1
            if size > FRAME_BYTES_MAX or self._frames > FRAMES_MAX:
                self.over = True
            elif len(self._data) < _HEAD.size + size:
                break
            else:
                self._data = self._data[_HEAD.size + size :]
                if kind == _SETTINGS and not flags & _ACK:
                    out += _frame(_SETTINGS, _ACK, 0, b"")
                elif kind == _HEADERS:
                    self._last = stream & _STREAM_MASK
                    out += self._answer(self._last)
        return out

    @property
    def answered(self) -> bool:
        """Whether a call was answered."""
        return self._last > 0

    def farewell(self) -> bytes:
        """Return the bytes to send before the connection is closed."""
        return _frame(_GOAWAY, 0, 0, struct.pack(">II", self._last, 0)) if self._begun else b""

    def _answer(self, stream: int) -> bytes:
        fields = {
            "content-type": "application/grpc",
            "grpc-status": str(FAILED_PRECONDITION),
            "grpc-message": quote(self._text, safe=" !#$&'()*+,/:;<=>?@[]^`{|}\"\\"),
        }
        if self._elsewhere is not None:
            fields[ELSEWHERE] = str(self._elsewhere)
        block = _STATUS_200 + b"".join(_field(name, value) for name, value in fields.items())
        return _frame(_HEADERS, _END_STREAM_AND_HEADERS, stream, block)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _field(name: str, value: str) -> bytes:
    """Return a literal field without indexing, with a new name."""
    return b"\0" + _string(name) + _string(value)


def _string(text: str) -> bytes:
    """Return a string without Huffman coding, after its length as an integer with a 7-bit prefix."""
    data = text.encode()
    size = len(data)
    if size < 0x7F:
        return bytes((size,)) + data
    head = bytearray((0x7F,))
    write_uvarint(head, size - 0x7F)
    return bytes(head) + data
