"""Record batches in Kafka's format 2 as a broker sees them: a 61-byte header, the rest opaque.

Layout, big-endian (Kafka's ``DefaultRecordBatch``)::

    0 base offset i64       12 leader epoch i32     23 last offset delta i32   43 producer id i64
    8 batch length i32      16 magic i8 = 2         27 base timestamp i64      51 producer epoch i16
                            17 CRC-32C u32          35 max timestamp i64       53 base sequence i32
                            21 attributes i16                                  57 record count i32

The batch length counts from byte 12. The CRC covers everything from byte 21, so a broker stamps base offset and leader
epoch into a batch without touching the bytes under the producer's CRC. Records are read by
:mod:`tidelog.proto.records.decoder` and written by :mod:`tidelog.proto.records.encoder`.
"""

from __future__ import annotations

import struct
import sys
from typing import Final

from tidelog.model.buffer import Buffer
from tidelog.model.hashes.crc32c import crc32c
from tidelog.model.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.corrupt_batch import CorruptBatch

__all__ = [
    "HEADER",
    "HEADER_SIZE",
    "MAGIC",
    "Batch",
    "CorruptBatch",
    "patch_batch",
    "patched_header",
    "set_log_append_time",
    "set_producer_state",
    "split_batches",
]

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""All fields of a batch's header in order."""
HEADER_SIZE: Final = 61
MAGIC: Final = 2
LENGTH_OVERHEAD: Final = 12
"""Bytes of a batch that its length field does not count: base offset and the length itself."""
CRC_AT: Final = 17
SIGNED_FROM: Final = 21
"""Start of the bytes that the CRC covers."""
SEQUENCE_MAX: Final = 0x7FFF_FFFF

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
"""Set by compaction: the base timestamp is the time from which tombstones may be removed (KIP-534)."""

_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_LENGTH_AND_MAGIC = struct.Struct(">iib")
_STORED_HEAD = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")


class Batch:
    """The header of one whole batch over a view of its bytes; nothing is copied.

    Made by :func:`split_batches`, which has checked magic and length; only :meth:`crc_ok` checks the CRC. The fields
    are the header's at the time when the batch object was made.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size",
        "view",
    )

    base_offset: Offset
    size: int
    leader_epoch: LeaderEpoch
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int

    def __init__(self, view: memoryview) -> None:
        """Read the header. ``view`` holds exactly the batch; at least its header must be present."""
        self.view = view
        self.size = len(view)
        (
            self.base_offset,
            _,
            self.leader_epoch,
            _,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = HEADER.unpack_from(view)

    def __repr__(self) -> str:
        return (
            f"Batch(offsets {self.base_offset}..{self.last_offset}, epoch {self.leader_epoch}, "
            f"{self.record_count} records, {self.size} bytes)"
        )

    @property
    def last_offset(self) -> Offset:
        """Offset of the last record that the batch ever had (compaction may have removed that record)."""
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        """The offset after this batch."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, -1 without any; wraps to 0 after 2**31 - 1 (KIP-98)."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def compression(self) -> Compression:
        """The codec. Raises :class:`CorruptBatch` for the unassigned numbers (5 to 7)."""
        try:
            return Compression(self.attributes & COMPRESSION_MASK)
        except ValueError:
            found = self.attributes & COMPRESSION_MASK
            raise CorruptBatch(f"expected a compression number of 0 to 4, found {found}") from None

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records have ``max_timestamp``, the leader's time, instead of their own."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it holds a marker for brokers and SDKs, which applications never see."""
        return bool(self.attributes & CONTROL)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    def crc_ok(self) -> bool:
        """Return whether the CRC matches the bytes."""
        return bool(crc32c(self.view[SIGNED_FROM:]) == self.crc)


def split_batches(data: Buffer, *, allow_partial_tail: bool = False, most: int = sys.maxsize) -> list[Batch]:
    """Split concatenated batches by their headers, without copying or reading records.

    With ``allow_partial_tail`` an incomplete batch at the end is left out (from a read that was cut at a number of
    bytes). Raises :class:`CorruptBatch` for a magic other than 2, a length below the header's, more than ``most``
    batches, and an incomplete batch otherwise. Record counts and CRCs are not checked here.
    """
    view = memoryview(data).toreadonly()
    found: list[Batch] = []
    position = 0
    end = len(view)
    while position < end:
        left = end - position
        if left < HEADER_SIZE:
            if allow_partial_tail:
                break
            text = f"expected a batch header of {HEADER_SIZE} bytes at {position}, found {left} bytes"
            raise CorruptBatch(text, len(found))
        length, _, magic = _LENGTH_AND_MAGIC.unpack_from(view, position + 8)
        if magic != MAGIC:
            raise CorruptBatch(f"expected record batch magic {MAGIC} at {position}, found {magic}", len(found))
        size = length + LENGTH_OVERHEAD
        if size < HEADER_SIZE:
            text = f"expected a batch length of at least {HEADER_SIZE - LENGTH_OVERHEAD} at {position}, found {length}"
            raise CorruptBatch(text, len(found))
        if size > left:
            if allow_partial_tail:
                break
            text = f"expected a batch of {size} bytes at {position}, found {left} bytes"
            raise CorruptBatch(text, len(found))
        if len(found) >= most:
            raise CorruptBatch(f"expected at most {most} further batches, found more", len(found))
        found.append(Batch(view[position : position + size]))
        position += size
    return found


def patch_batch(buffer: bytearray | memoryview, at: int, *, base_offset: int, leader_epoch: int) -> None:
    """Write the two fields that the CRC does not cover into the batch at ``at`` of a writable buffer."""
    _OFFSET.pack_into(buffer, at, base_offset)
    _EPOCH.pack_into(buffer, at + 12, leader_epoch)


def patched_header(batch: Batch, *, base_offset: int, leader_epoch: int) -> bytes:
    """Return the first 16 bytes to store; the rest is ``batch.view[16:]``, untouched."""
    return _STORED_HEAD.pack(base_offset, batch.size - LENGTH_OVERHEAD, leader_epoch)


def set_log_append_time(batch: Batch, now_ms: int) -> bytearray:
    """Return a copy in which all records have the leader's time, with a new CRC (``message.timestamp.type``)."""
    out = bytearray(batch.view)
    _ATTRIBUTES.pack_into(out, 21, batch.attributes | LOG_APPEND_TIME)
    _OFFSET.pack_into(out, 35, now_ms)
    sign(out)
    return out


def set_producer_state(buffer: bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Stamp the idempotent producer's identity into a finished batch, in place, with a new CRC."""
    _PRODUCER.pack_into(buffer, 43, producer_id, producer_epoch, base_sequence)
    sign(buffer)


def sign(buffer: bytearray) -> None:
    """Write the CRC of the single batch in ``buffer``."""
    with memoryview(buffer) as view:
        _CRC.pack_into(buffer, CRC_AT, crc32c(view[SIGNED_FROM:]))
