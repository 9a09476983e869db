"""Queries a node's Kafka listener: one ApiVersions request (KIP-511), which needs no login."""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack
from typing import Any, Final

from tidelog import __version__
from tidelog.cli.failure import CommandFailed
from tidelog.proto.kafka.headers import API_VERSIONS
from tidelog.proto.kafka.messages import decode_response, request_frame
from tidelog.proto.kafka.wire import BadMessage
from tidelog.proto.transport.network import Address
from tidelog.security.tls_check import client_context
from tidelog.security.tls_store import TlsStore

VERSION: Final = 4
TIMEOUT_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 1 << 20
_SOFTWARE: Final = {"client_software_name": "tidelog", "client_software_version": __version__}
_ANSWER: Final = struct.Struct(">iih")
"""Length, correlation id, error."""


def ask_versions(address: Address, tls: TlsStore | None) -> Any:
    """Return the answer with kio's field names. ``tls``: how the client connects, ``None`` for plaintext. Raises
    :class:`CommandFailed`."""
    try:
        with ExitStack() as closing:
            plain = closing.enter_context(socket.create_connection((address.host, address.port), TIMEOUT_S))
            wire = plain
            if tls is not None:
                context = client_context(tls.material)
                wire = closing.enter_context(context.wrap_socket(plain, server_hostname=address.host))
            wire.sendall(request_frame(API_VERSIONS, VERSION, 1, _SOFTWARE))
            stream = closing.enter_context(wire.makefile("rb"))
            length, correlation, error = _ANSWER.unpack(_exactly(stream.read(_ANSWER.size), _ANSWER.size))
            if correlation != 1 or not _ANSWER.size - 4 <= length <= ANSWER_BYTES_MAX:
                raise BadMessage("expected a Kafka protocol answer")
            if error:
                raise BadMessage(f"expected version {VERSION} of ApiVersions to be served, found error {error}")
            rest = length - (_ANSWER.size - 4)
            return decode_response(API_VERSIONS, VERSION, bytes(2) + _exactly(stream.read(rest), rest))
    except BadMessage as wrong:
        raise CommandFailed(f"{address}: {wrong}") from None
    except OSError as trouble:
        raise CommandFailed(f"{address}: no answer to ApiVersions: {trouble.strerror or trouble}") from None


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) < size:
        raise BadMessage(f"expected {size} more bytes of an answer to ApiVersions, found {len(data)}")
    return data
