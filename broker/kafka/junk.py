"""Recognises the first bytes of those who took the Kafka port for another one."""

from __future__ import annotations

from typing import Final

_HTTP: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")
_KNOWN: Final = {
    b"PRI ": "HTTP/2; a gRPC client belongs on another listener of this broker",
    b"SSH-": "SSH",
}


def junk(first: bytes) -> str | None:
    """What a connection speaks that begins with these four bytes; ``None`` if it may be Kafka's protocol."""
    if first[0] == 0x16 and first[1] == 0x03:
        return "a TLS hello; this listener is plain text"
    if first in _HTTP:
        return "HTTP"
    return _KNOWN.get(first)
