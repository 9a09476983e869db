"""Handwritten Produce and Fetch requests: whole frames, ready for a socket, for clients that do little else; and a
login over a plain socket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Final

from tidelog.proto.kafka.messages import request_frame
from tidelog.proto.records.encoder import encode_values
from tidelog.security.scram import ScramClient, ScramMechanism

PRODUCE: Final = 0
PRODUCE_VERSION: Final = 9
FETCH: Final = 1
FETCH_VERSION: Final = 12
SASL_HANDSHAKE: Final = 17
_LENGTH: Final = struct.Struct(">i")
_CLIENT_ID: Final = b"chaos"
_TIMESTAMP_MS: Final = 1_700_000_000_000


def produce_request(
    topic: str, values: Sequence[bytes], correlation: int, *, partition: int = 0, acks: int = 1
) -> bytes:
    """Return a request that produces one batch of values to one partition, without a producer id."""
    records = bytes(encode_values(values, _TIMESTAMP_MS))
    return request_frame(
        PRODUCE,
        PRODUCE_VERSION,
        correlation,
        {
            "acks": acks,
            "timeout": 30_000,
            "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
        },
        _CLIENT_ID,
    )


def fetch_request(
    topic: str,
    bytes_max: int,
    correlation: int,
    *,
    partition: int = 0,
    offset: int = 0,
    wait_ms: int = 0,
    session_epoch: int = -1,
) -> bytes:
    """Return a request for at most ``bytes_max`` of one partition from ``offset`` on, outside any fetch session; epoch
    0 opens one."""
    wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": bytes_max}
    return request_frame(
        FETCH,
        FETCH_VERSION,
        correlation,
        {
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": bytes_max,
            "session_id": 0,
            "session_epoch": session_epoch,
            "topics": [{"topic": topic, "partitions": [wanted]}],
        },
        _CLIENT_ID,
    )


def exchange(plain: socket.socket, frame: bytes) -> bytes:
    """Send a frame and return the body of the next; empty if the peer closes the connection."""
    plain.sendall(frame)
    with plain.makefile("rb") as answers:
        head = answers.read(_LENGTH.size)
        return answers.read(*_LENGTH.unpack(head)) if len(head) == _LENGTH.size else b""


def log_in(plain: socket.socket, user: str, password: str) -> None:
    """Log in with SCRAM-SHA-512."""
    client = ScramClient(ScramMechanism.SCRAM_SHA_512, user, password, "nonce")
    exchange(plain, request_frame(SASL_HANDSHAKE, 0, 1, {"mechanism": client.name}))
    token: bytes | None = client.first()
    while token is not None:  # after version 0 of the handshake, tokens come and go bare
        token = client.step(exchange(plain, _LENGTH.pack(len(token)) + token))
