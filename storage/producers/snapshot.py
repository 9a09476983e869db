"""The content of ``.snapshot`` files: a partition's producers as of an offset.

Layout, big-endian: version i16 = 1, CRC-32C u32 of all that follows, count i32, then per producer id i64, epoch i16,
last sequence i32, last offset i64, offset delta i32 (records of the last run less one), timestamp i64, coordinator
epoch i32, first offset of the open transaction i64. This part is Kafka's ``ProducerSnapshot`` version 1, which keeps
one batch per producer. Kafka's reader skips the rest: the older runs, count i32, then per run producer id i64, sequence
i32, offset i64, count i32. Without them, only duplicates of the last run could be recognised after a restart.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from tidelog.model.hashes.crc32c import crc32c
from tidelog.storage.producers.state import SEQUENCE_MAX, Producer, Run

VERSION: Final = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhiqiqiq")
_RUN = struct.Struct(">qiqi")


class CorruptSnapshot(ValueError):
    """Bytes that are not a producer snapshot; the text says what was expected and found."""


def encode_snapshot(producers: Iterable[Producer]) -> bytes:
    entries: list[bytes] = []
    older: list[bytes] = []
    for producer in producers:
        *runs, last = producer.runs or (None,)
        entries.append(
            _PRODUCER.pack(
                producer.producer_id,
                producer.epoch,
                last.last_sequence if last else -1,
                last.last_offset if last else -1,
                last.length - 1 if last else 0,
                producer.last_used_ms,
                producer.coordinator_epoch,
                producer.transaction_offset,
            )
        )
        older.extend(_RUN.pack(producer.producer_id, *run) for run in runs if run)
    body = b"".join((_COUNT.pack(len(entries)), *entries, _COUNT.pack(len(older)), *older))
    return _HEAD.pack(VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[Producer]:
    """Decode a snapshot. Raises :class:`CorruptSnapshot`."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshot(f"expected a snapshot of at least {_HEAD.size + _COUNT.size} bytes, found {len(data)}")
    version, crc = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshot(f"expected snapshot version {VERSION}, found {version}")
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != crc:
        raise CorruptSnapshot(f"expected a snapshot that matches its CRC {crc:#010x}, it does not")
    try:
        return _decode_body(body)
    except struct.error as error:
        raise CorruptSnapshot(f"snapshot ends early: {error}") from None


def _decode_body(body: memoryview) -> list[Producer]:
    (count,) = _COUNT.unpack_from(body)
    position = _COUNT.size
    found: dict[int, Producer] = {}
    for _ in range(count):
        producer_id, epoch, sequence, offset, delta, used, coordinator_epoch, transaction = _PRODUCER.unpack_from(
            body, position
        )
        position += _PRODUCER.size
        producer = Producer(
            producer_id,
            epoch,
            coordinator_epoch=coordinator_epoch,
            last_used_ms=used,
            transaction_offset=transaction,
        )
        if offset >= 0:
            producer.runs.append(Run((sequence - delta) & SEQUENCE_MAX, offset - delta, delta + 1))
        found[producer_id] = producer
    if position < len(body):
        (count,) = _COUNT.unpack_from(body, position)
        position += _COUNT.size
        for _ in range(count):
            producer_id, *fields = _RUN.unpack_from(body, position)
            position += _RUN.size
            if producer_id in found:
                runs = found[producer_id].runs
                runs.insert(max(len(runs) - 1, 0), Run(*fields))
    return list(found.values())
