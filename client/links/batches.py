"""Batches on their way from one cluster into another. Pure.

A producer id identifies one producer in its cluster, and another one, or none yet, in the other cluster. A leader could
take a batch from its own cluster's producer for a duplicate of the other's. So a link changes the ids, with bits that
no cluster assigns. The same pair of clusters has the same bits in both directions, so a batch that comes back gets its
former id. Nothing else changes except the leader epoch, which is the target leader's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.proto.records.batches import MAGIC, Batch, CorruptBatch, set_producer_state, split_batches
from tidelog.proto.records.decoder import decode_records

IDS_BELOW: Final = 1 << 40
"""Producer ids assigned by a cluster itself are smaller."""
_BITS: Final = (1 << 22) - 1
_EPOCH: Final = slice(12, 16)
_MAGIC_AT: Final = 16


class OldFormat(ValueError):
    """Records in a format from before Kafka 0.11."""


def mask_of(one: str, other: str) -> int:
    """Return the bits in which the producer ids of one of these clusters differ in the other one."""
    digest = hashlib.sha256("\0".join(sorted((one, other))).encode()).digest()
    return ((int.from_bytes(digest[:8], "big") & _BITS) or 1) << 40


def batches_of(records: bytes | memoryview) -> list[Batch]:
    """Return the whole batches at the start of a fetch's data. Raises :class:`OldFormat` and :class:`CorruptBatch`."""
    if len(records) > _MAGIC_AT and records[_MAGIC_AT] < MAGIC:
        raise OldFormat(
            f"expected record batches of format {MAGIC}, found format {records[_MAGIC_AT]}, of before Kafka 0.11: "
            "copy the topic at the source to a new topic, and link that"
        )
    return split_batches(records, allow_partial_tail=True)


def relabelled(batches: Iterable[Batch], mask: int) -> bytes:
    """Return the batches' bytes, with their producer ids in the other cluster."""
    return b"".join(_relabelled(batch, mask) for batch in batches)


def same(ours: Batch, theirs: Batch, mask: int) -> bool:
    """Return whether a batch at the target is the source's."""
    mine, other = bytearray(ours.view), bytearray(_relabelled(theirs, mask))
    mine[_EPOCH] = other[_EPOCH] = bytes(4)
    return mine == other


def same_records(ours: Batch, theirs: Batch) -> bool:
    """Return whether the records that both have are the same: compaction may have removed some from either."""
    here, there = ({one.offset: one for one in decode_records(batch)} for batch in (ours, theirs))
    return all(here[offset] == there[offset] for offset in here.keys() & there.keys())


def fresh(batches: Sequence[Batch], position: int) -> list[Batch]:
    """Return the batches after ``position``. Raises :class:`CorruptBatch` if one spans it, or they are not in order."""
    found = []
    for batch in batches:
        if batch.next_offset <= position:
            continue
        if batch.base_offset < position or batch.last_offset_delta < 0 or not batch.crc_ok():
            raise CorruptBatch(f"expected a batch from offset {position} on that matches its CRC, found {batch!r}")
        found.append(batch)
        position = batch.next_offset
    return found


def _relabelled(batch: Batch, mask: int) -> bytes | memoryview:
    if batch.producer_id < 0:
        return batch.view
    out = bytearray(batch.view)
    set_producer_state(
        out,
        producer_id=batch.producer_id ^ mask,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )
    return bytes(out)
