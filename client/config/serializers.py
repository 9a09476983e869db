"""Converts users' keys and values to bytes and back.

A serializer is any callable ``(topic, value) -> bytes | None``, a deserializer any callable
``(topic, bytes | None) -> value``; ``None`` stands for null on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from tidelog.client.errors import RecordDeserializationError, SerializationError
from tidelog.client.record import ConsumerRecord

Serializer = Callable[[str, Any], bytes | None]
Deserializer = Callable[[str, bytes | None], Any]


def string_serializer(_topic: str, value: str | None) -> bytes | None:
    """Encode as UTF-8, as Kafka's ``StringSerializer`` does."""
    return None if value is None else value.encode()


def string_deserializer(_topic: str, data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def json_serializer(_topic: str, value: object) -> bytes | None:
    """Encode as compact JSON in UTF-8; ``None`` becomes null (a tombstone), not the text ``null``."""
    return None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def json_deserializer(_topic: str, data: bytes | None) -> Any:
    return None if data is None else json.loads(data)


def int_serializer(_topic: str, value: int | None) -> bytes | None:
    """Encode as eight bytes, big-endian, signed, as Kafka's ``LongSerializer`` does."""
    return None if value is None else value.to_bytes(8, "big", signed=True)


def int_deserializer(_topic: str, data: bytes | None) -> int | None:
    return None if data is None else int.from_bytes(data, "big", signed=True)


def serialize(serializer: Serializer | None, topic: str, value: object, what: str) -> bytes | None:
    """Apply a serializer, or take bytes as they are. Raises :class:`SerializationError`."""
    if serializer is not None:
        try:
            value = serializer(topic, value)
        except Exception as error:
            raise SerializationError(f"{what} for topic {topic}: {type(error).__name__}: {error}") from error
    if value is None or value.__class__ is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    hint = "the serializer returned" if serializer is not None else f"without a {what}_serializer, found"
    raise SerializationError(f"{what} for topic {topic}: expected bytes or None; {hint} {type(value).__name__}")


def deserialize(deserializer: Deserializer, record: ConsumerRecord, origin: Literal["key", "value"]) -> Any:
    """Apply a deserializer to a record as fetched. Raises :class:`RecordDeserializationError`."""
    try:
        return deserializer(record.topic, record.key if origin == "key" else record.value)
    except Exception as error:
        at, offset = record.topic_partition, record.offset
        why = f"{origin} of {at} at offset {offset}: {type(error).__name__}: {error}; seek past it to continue"
        raise RecordDeserializationError(
            why, origin, at, offset, record.timestamp, record.key, record.value, record.headers
        ) from error
