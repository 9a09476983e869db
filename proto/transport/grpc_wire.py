"""The common part of both gRPC sides: names on the wire, options of channels and servers, frames as messages."""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

from tidelog.model.classes.frozen import dataclass
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
"""Metadata key of calls and streams: the client's own name, in UTF-8."""
LOGIN: Final = "tidelog-login-bin"
"""Metadata key of SaslAuthenticate: its request. gRPC itself bounds metadata, below the event loop, while a message may
be as large as the largest frame of authenticated callers; so this call's message is not read."""
LOGIN_METADATA_MAX: Final = 48 * 1024
"""Bytes of metadata that a listener with logins accepts: the longest login message, in base64."""
ACCEPTED: Final = (("tidelog-stream", "accepted"),)
"""Distinguishes an accepted stream from a refused one: without it both look open until something is read."""
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
"""Calls that go as frames of one stream. All are small, so none delays another."""
CONTROL_WINDOW: Final = 1024 * 1024
"""Bytes in flight of one call or stream between controllers."""
STATUS_OF: Final = {code.value[0]: code for code in grpc.StatusCode}
NO_SUCH_METHOD: Final = "Method not found!"
"""gRPC's own message for a method without a handler."""
EOF: Final[Any] = vars(grpc.aio)["EOF"]
_FRAME_TAG: Final = 0x0A


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """The limits of each listener for its peers. Beyond a limit it refuses or stops reading."""

    message_bytes_max: int = 128 * 1024 * 1024
    call_bytes_max: int = 16 * 1024 * 1024
    """Largest request of a call, which takes several times its size once decoded; frames may be larger."""
    client_call_bytes_max: int = 4 * 1024 * 1024
    """The same for clients' calls, except those with records."""
    client_items_max: int = 20_000
    """Items in all lists of a client's request, as at the Kafka listener."""
    controller_items_max: int = 40_000
    """The same for brokers' calls: a client's items, and the broker's own additions to them."""
    connections_max: int = 10_000
    """Connections to one listener; a further one is closed immediately."""
    connection_idle_ms: int = 600_000
    """Time after which a connection without calls and streams is closed; never if below 0."""
    handshake_ms: int = 10_000
    """Time for a new connection to prove that it speaks HTTP/2."""
    streams_per_connection_max: int = 1_000
    """Calls and streams of one connection; the peer delays further ones."""
    under_way_max: int = 20_000
    """Calls and streams of one listener; a further one is refused with RESOURCE_EXHAUSTED."""
    logins_max: int = 1_000
    """Login calls in progress at one listener; a further one is refused with RESOURCE_EXHAUSTED."""
    logins_per_connection_max: int = 16
    """The same for one connection; its client makes one login at a time."""
    unanswered_requests_max: int = 64
    """Unanswered frames of one produce or fetch stream; beyond that, reading stops."""
    unanswered_frames_max: int = 64
    """The same for streams between nodes."""
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
    """Return the options for a window of fixed size, without gRPC's probing, which sends a ping with received data.
    Each control message, a few times a second, would cause a ping, for a window that it never fills. At a server, the
    probed window grows with the node's time to answer the ping: the less a node keeps up, the more it would hold
    unread."""
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
