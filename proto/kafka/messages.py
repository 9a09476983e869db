"""Every message of Kafka's protocol but the two that carry records: bytes to named fields, and back.

The fields of each version come from kio, which generates them from Kafka's own message definitions; names are kio's.
The bytes are read and written here, because a listener must tolerate what kio's readers do not: unknown tagged fields
and error codes, and false lengths. Values are plain: durations and times are ``int`` milliseconds, ids are 16 ``bytes``
(zeros for none), error codes ``int``, arrays tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.proto.kafka.headers import request_header
from tidelog.proto.kafka.message_reader import reader_of
from tidelog.proto.kafka.message_writer import writer_of
from tidelog.proto.kafka.schemas import schema_of
from tidelog.proto.kafka.wire import BadMessage, Budget, Data

RESPONSE_ITEMS_MAX: Final = 1_000_000
"""Most array items and tagged fields of one response: one request item may yield many."""


def decode_request(api_key: int, version: int, body: Data) -> Any:
    """Return the request's fields as a named tuple, unknown tagged fields left out. Raises :class:`BadMessage`.

    Bytes after the last field are ignored, as in Kafka: librdkafka sends three after a metadata request for all topics.
    """
    value, _ = reader_of(schema_of(api_key, version, "request"))(body, 0, Budget())
    return value


def decode_response(api_key: int, version: int, body: Data) -> Any:
    """Like :func:`decode_request`, for a response, which has to end with its last field."""
    value, position = reader_of(schema_of(api_key, version, "response"))(body, 0, Budget(RESPONSE_ITEMS_MAX))
    if position != len(body):
        raise BadMessage(
            f"expected a response of {position} bytes, found {len(body)} (API {api_key}, version {version})"
        )
    return value


def encode_response(api_key: int, version: int, values: Mapping[str, Any]) -> bytes:
    """Return the bytes of a response of this version.

    ``values`` may hold fields of any version: those that this one lacks are left out, and missing ones take Kafka's
    default. Structures are mappings, arrays sequences. Raises ``ValueError`` or ``struct.error`` for values that do not
    fit their fields: a bug in the caller.
    """
    return _encode(api_key, version, "response", values)


def encode_request(api_key: int, version: int, values: Mapping[str, Any]) -> bytes:
    """Like :func:`encode_response`, for a request."""
    return _encode(api_key, version, "request", values)


def request_frame(
    api_key: int, version: int, correlation_id: int, values: Mapping[str, Any], client_id: bytes = b""
) -> bytes:
    """Return a request ready for a socket: length, header, body."""
    frame = request_header(api_key, version, correlation_id, client_id) + encode_request(api_key, version, values)
    return len(frame).to_bytes(4, "big") + frame


def field(payload: object, name: str, default: object) -> Any:
    """A field that the payload's version may lack."""
    return getattr(payload, name, default)


def _encode(api_key: int, version: int, kind: str, values: Mapping[str, Any]) -> bytes:
    out = bytearray()
    try:
        writer_of(schema_of(api_key, version, kind))(out, values)
    except Exception as error:
        error.add_note(f"in a {kind} of API {api_key}, version {version}")
        raise
    return bytes(out)
