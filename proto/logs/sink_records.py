"""The record of a sink's ledger in ``__transaction_state``, beside Kafka's records of transactional ids.

Key: version 10000 (int16), where Kafka's has 0, then the sink's name. Kafka 4's coordinator and tools skip keys of
unknown versions (``TransactionLog.readTxnRecordKey``). Value: version 0 (int16), then the fields of
:class:`SinkLedgerValue` in order, strings and arrays as in Kafka's non-flexible records; trailing bytes are ignored. A
null value is a tombstone.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tidelog.model.sinks import NO_BATCH
from tidelog.proto.logs.coordinator_fields import BadCoordinatorRecord, FieldReader

SINK_KEY_VERSION: Final = 10_000

_VALUE_VERSION: Final = 0
_FLEXIBLE_FROM: Final = 1
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")


class SinkLedgerValue(NamedTuple):
    """A ledger. ``last_batch`` was decided last, for ``last_job`` at ``decided_ms``; ``job`` is writing ``batch``;
    ``fenced`` are jobs that must not write, with their batches. Times in ms since the epoch; -1 and the empty string
    mean none."""

    last_batch: int = NO_BATCH
    last_job: str = ""
    decided_ms: int = -1
    batch: int = NO_BATCH
    job: str = ""
    updated_ms: int = -1
    fenced: tuple[tuple[str, int], ...] = ()


def encode_sink_key(sink: str) -> bytes:
    return _SHORT.pack(SINK_KEY_VERSION) + _string(sink)


def encode_sink_value(value: SinkLedgerValue) -> bytes:
    pieces = [
        _SHORT.pack(_VALUE_VERSION),
        _LONG.pack(value.last_batch),
        _string(value.last_job),
        _LONG.pack(value.decided_ms),
        _LONG.pack(value.batch),
        _string(value.job),
        _LONG.pack(value.updated_ms),
        _INT.pack(len(value.fenced)),
    ]
    for job, batch in value.fenced:
        pieces += (_string(job), _LONG.pack(batch))
    return b"".join(pieces)


def decode_sink_key(raw: bytes) -> str | None:
    """Read the sink's name; None for a key of another kind. Raises :class:`BadCoordinatorRecord`."""
    reader = FieldReader(raw, "key")
    if reader.int16() != SINK_KEY_VERSION:
        return None
    sink = reader.string()
    if not sink:
        raise BadCoordinatorRecord("expected a sink's name in the key, found an empty one")
    return sink


def decode_sink_value(raw: bytes) -> SinkLedgerValue:
    """Read a ledger. Raises :class:`BadCoordinatorRecord`."""
    reader = FieldReader(raw, "ledger value")
    reader.value_version(_VALUE_VERSION, _FLEXIBLE_FROM)
    last_batch, last_job, decided_ms = reader.int64(), reader.string(), reader.int64()
    batch, job, updated_ms = reader.int64(), reader.string(), reader.int64()
    fenced = tuple((reader.string(), reader.int64()) for _ in range(reader.count()))
    return SinkLedgerValue(last_batch, last_job, decided_ms, batch, job, updated_ms, fenced)


def _string(text: str) -> bytes:
    raw = text.encode()
    return _SHORT.pack(len(raw)) + raw
