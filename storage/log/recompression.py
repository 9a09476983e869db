"""Stores batches in the topic's codec if it names one (``compression.type`` other than ``producer``)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.settings.topic_config import PRODUCER_COMPRESSION, TopicConfig
from tidelog.proto.records.batches import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    SIGNED_FROM,
    Batch,
    CorruptBatch,
    sign,
)
from tidelog.proto.records.compression import Compression, compress
from tidelog.proto.records.decoder import record_bytes

KEEP: Final = PRODUCER_COMPRESSION
UNCOMPRESSED: Final = "uncompressed"

_LENGTH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_LENGTH_AT = 8


def in_topics_codec(config: TopicConfig, batches: Sequence[Batch]) -> Sequence[Batch] | Refusal:
    """Return the batches in the topic's codec; those that already use it are unchanged.

    Records stay the same, byte for byte. Refusals: CORRUPT_MESSAGE if decompression fails, MESSAGE_TOO_LARGE if a batch
    is too large in the new codec (Kafka's ``UnifiedLog.append``).
    """
    name = config.compression_type
    kind = Compression.NONE if name == UNCOMPRESSED else Compression.from_name(name)
    try:
        found = [batch if batch.compression is kind else _recompressed(batch, kind) for batch in batches]
    except CorruptBatch as error:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    for batch in found:
        if batch.size > config.max_message_bytes:
            return Refusal(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"expected a batch of at most {config.max_message_bytes} bytes as {name}, found {batch.size}",
            )
    return found


def _recompressed(batch: Batch, kind: Compression) -> Batch:
    body = record_bytes(batch)
    out = bytearray(batch.view[:HEADER_SIZE])
    out += body if kind is Compression.NONE else compress(kind, body)
    _LENGTH.pack_into(out, _LENGTH_AT, len(out) - LENGTH_OVERHEAD)
    _ATTRIBUTES.pack_into(out, SIGNED_FROM, batch.attributes & ~COMPRESSION_MASK | kind)
    sign(out)
    return Batch(memoryview(out))
