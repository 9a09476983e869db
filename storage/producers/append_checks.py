"""Checks batches before a log appends them. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_OFFSET, Offset
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, CorruptBatch, split_batches
from tidelog.proto.records.control_batches import decode_control
from tidelog.proto.records.decoder import record_bytes
from tidelog.proto.records.spans import keyless_record, keyless_records
from tidelog.proto.records.validation import validate_for_append
from tidelog.storage.producers.state import ProducerStates

KEYLESS_NAMED_MAX: Final = 10_000
"""Most records of a batch that a refusal names individually."""


class Origin(enum.Enum):
    """Where a leader's new batches come from."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """A coordinator of this node: its batches are not validated; markers are checked by their epochs."""


class LogAppend(NamedTuple):
    """An append's place in the log.

    ``base_offset`` is that of the first batch and ``last_offset`` the last record's of the last one. ``append_time_ms``
    is -1 unless the topic stamps its own time. ``duplicate``: nothing was written, and the offsets are those of the
    first append. If an append held both new batches and duplicates that are not adjacent, ``base_offset`` is -1:
    stored, but at offsets that one number cannot express.
    """

    base_offset: Offset
    last_offset: Offset
    append_time_ms: int
    log_start_offset: Offset
    size: int
    duplicate: bool


def refuse_client(config: TopicConfig, batches: Sequence[Batch], now_ms: int | None) -> Refusal | None:
    """Return why a leader must not append a client's batches; ``now_ms`` is None if their times do not count.

    Records are checked for compacted topics alone, which reject records without a key (Kafka's ``LogValidator``).
    """
    for batch in batches:
        refusal = validate_for_append(
            batch,
            config.max_message_bytes,
            now_ms,
            config.message_timestamp_before_max_ms,
            config.message_timestamp_after_max_ms,
        )
        if refusal is not None:
            return refusal
        if batch.size > config.segment_bytes:
            return Refusal(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"expected a batch of at most segment.bytes = {config.segment_bytes}, found {batch.size}",
            )
        if config.compacts:
            refusal = _refuse_keyless(batch)
            if refusal is not None:
                return refusal
    return None


def _refuse_keyless(batch: Batch) -> Refusal | None:
    try:
        body = record_bytes(batch)
        number = keyless_record(body, batch)
        if number < 0:
            return None
        keyless = keyless_records(body, batch, KEYLESS_NAMED_MAX)
    except CorruptBatch as error:
        return Refusal(ErrorCode.INVALID_RECORD, str(error))
    return Refusal(
        ErrorCode.INVALID_RECORD,
        f"expected a key in each record, as the topic is compacted, found none in record {number} of a batch",
        keyless,
    )


def refuse_coordinator(producers: ProducerStates, batches: Sequence[Batch]) -> Refusal | None:
    """Return why a leader must not append a coordinator's markers: a later epoch is known."""
    for batch in batches:
        if batch.is_control:
            marker = decode_control(batch)
            refusal = producers.check_marker(batch.producer_id, batch.producer_epoch, marker.coordinator_epoch)
            if refusal is not None:
                return refusal
    return None


class FollowerBatches(NamedTuple):
    """A leader's batches that a follower must append; ``has_gap``: their offsets are not dense."""

    batches: list[Batch]
    has_gap: bool


def select_for_follower(
    data: Buffer,
    *,
    due: int,
    epoch: int,
    epoch_max: int | None,
    is_empty: bool,
    gaps: bool,
    own_epoch: int | None = None,
    checked: bool = False,
) -> FollowerBatches | Refusal:
    """Select from a leader's data for a follower whose log ends at ``due`` in ``epoch``.

    Leaves out batches before ``due``, and everything from the first batch with an epoch above ``epoch_max`` on. In an
    empty log the first batch may begin before ``due``. ``gaps``: offsets may have gaps. ``own_epoch``: replaces
    those of all batches. ``checked``: their CRCs were compared in this process.
    """
    found: list[Batch] = []
    has_gap = False
    try:
        for batch in split_batches(data):
            if batch.last_offset < due and not found:
                continue
            leader_epoch = batch.leader_epoch if own_epoch is None else own_epoch
            if epoch_max is not None and leader_epoch > epoch_max:
                break
            if not (checked or batch.crc_ok()) or batch.last_offset_delta < 0:
                raise CorruptBatch(f"expected a batch at {batch.base_offset} that matches its CRC, it does not")
            if batch.is_control and batch.record_count:
                decode_control(batch)
            if batch.base_offset > due and gaps:
                has_gap = True
            elif batch.base_offset != due and (batch.base_offset > due or found or not is_empty):
                return Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, f"expected offset {due}, found {batch.base_offset}")
            if leader_epoch < epoch:
                return Refusal(ErrorCode.INVALID_REQUEST, f"expected epoch {epoch} or later, found {leader_epoch}")
            found.append(batch)
            due, epoch = batch.next_offset, leader_epoch
    except CorruptBatch as error:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    return FollowerBatches(found, has_gap)


def joint_base(batches: Sequence[Batch], known: Sequence[Offset], fresh: Offset) -> Offset:
    """Return the first batch's offset if the others follow it in the log; else -1. ``fresh``: where new ones begin."""
    first = due = -1
    for batch, found in zip(batches, known, strict=True):
        offset = int(found)
        if offset < 0:
            offset = fresh
            fresh = Offset(fresh + batch.last_offset_delta + 1)
        if first < 0:
            first = offset
        elif offset != due:
            return NO_OFFSET
        due = offset + batch.last_offset_delta + 1
    return Offset(first)
