"""The common part of both ends of gRPC: names on the wire, options of channels and servers, frames as messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from tidelog.proto.calls.controller_api import BrokerHeartbeatRequest
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.transaction_api import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tidelog.proto.records.varint import write_uvarint
from tidelog.proto.transport.network import BadFrame, Frame

SERVICE: Final = "/tidelog.v1.Tidelog/"
CLIENT_ID: Final = "tidelog-client-id-bin"
"""Metadata of calls and streams: the name that a client gave itself, in UTF-8."""
LOGIN: Final = "tidelog-login-bin"
"""Metadata of SaslAuthenticate: its request. gRPC bounds metadata by itself, below the event loop, while a message may
be as large as the largest frame of those who have logged in; so the message of this call is left unread."""
LOGIN_METADATA_MAX: Final = 48 * 1024
"""Bytes of metadata that a listener with logins takes: the longest message of a login, in base64."""
ACCEPTED: Final = (("tidelog-stream", "accepted"),)
"""Tells a stream that is served from one that is refused: without it both look open until something is read."""
RECURRING: Final[frozenset[type[Request[Any]]]] = frozenset(
    (
        AddOffsetsToTxnRequest,
        AddPartitionsToTxnRequest,
        BrokerHeartbeatRequest,
        EndTxnRequest,
        TxnOffsetCommitRequest,
        WriteTxnMarkersRequest,
    )
)
"""Calls that go as frames of one stream. All of them are small: none makes another one wait."""
CONTROL_WINDOW: Final = 1024 * 1024
"""Bytes under way of one call or stream between controllers."""
STATUS_OF: Final = {code.value[0]: code for code in grpc.StatusCode}
NO_SUCH_METHOD: Final = "Method not found!"
"""gRPC's own message for a method without a handler."""
EOF: Final[Any] = vars(grpc.aio)["EOF"]
_FRAME_TAG: Final = 0x0A


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """The limits of each listener of a process for its peers. Beyond one it refuses or stops reading."""

    message_bytes_max: int = 128 * 1024 * 1024
    call_bytes_max: int = 16 * 1024 * 1024
    """Largest request of a call, which takes several times its size once it is read; frames may be larger."""
    client_call_bytes_max: int = 4 * 1024 * 1024
    """The same where clients call, but for those that bring records."""
    client_items_max: int = 20_000
    """Items in all lists of one request of a client's call, as at the Kafka listener."""
    controller_items_max: int = 40_000
    """The same where brokers call: what a client asked for, and what a broker says of it in its own words."""
    connections_max: int = 10_000
    """Connections to one listener; a further one is closed at once."""
    connection_idle_ms: int = 600_000
    """Time after which a connection without calls and streams is closed; below 0 never."""
    handshake_ms: int = 10_000
    """Time in which a new connection must show that it speaks HTTP/2."""
    streams_per_connection_max: int = 1_000
    """Calls and streams of one connection; the peer waits with further ones."""
    under_way_max: int = 20_000
    """Calls and streams of one listener; a further one is refused as RESOURCE_EXHAUSTED."""
    logins_max: int = 1_000
    """Calls of logins under way of one listener; a further one is refused as RESOURCE_EXHAUSTED."""
    logins_per_connection_max: int = 16
    """The same of one connection, whose client makes one login at a time."""
    unanswered_requests_max: int = 64
    """Frames of one produce or fetch stream without an answer; then it is not read."""
    unanswered_frames_max: int = 64
    """The same for the streams between nodes."""
    keepalive_ms: int = 20_000
    keepalive_timeout_ms: int = 10_000


def common_options(limits: GrpcLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", limits.keepalive_ms),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 0),
    ]


def window(size: int) -> list[tuple[str, int]]:
    """Without it, gRPC finds a window by probing: a ping with what is received. Control messages come a few times a
    second and would each be followed by one, for a window that they never fill. At a server, the window found grows
    with the time that the node takes to answer the ping: the less a node keeps up, the more it would hold unread."""
    return [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", size)]


def message(frame: Frame) -> bytes:
    """Return the frame as a protobuf ``Frame``: tag, length as varint, pieces."""
    size = sum(map(len, frame))
    head = bytearray((_FRAME_TAG,))
    write_uvarint(head, size)
    return b"".join((head, *frame))


def payload(message: bytes) -> memoryview:
    """Return the payload of a protobuf ``Frame`` without copying it. Raises :class:`BadFrame`."""
    if message[:1] != b"\x0a":
        raise BadFrame(f"expected a Frame message of one bytes field, found {message[:8]!r}")
    size = shift = 0
    for at in range(1, min(len(message), 7)):
        byte = message[at]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if size != len(message) - at - 1:
                break
            return memoryview(message)[at + 1 :]
    raise BadFrame(f"expected one field that fills the Frame message of {len(message)} bytes, found {message[:8]!r}")
