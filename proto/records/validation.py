"""A leader's checks of a client's batch before the append, by the header and the CRC alone."""

from __future__ import annotations

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.proto.records.batches import COMPRESSION_MASK, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Batch
from tidelog.proto.records.compression import Compression

_COMPRESSIONS = frozenset(map(int, Compression))


def validate_for_append(
    batch: Batch,
    message_max_bytes: int,
    now_ms: int | None = None,
    timestamp_before_max_ms: int | None = None,
    timestamp_after_max_ms: int | None = None,
) -> Refusal | None:
    """Return why a leader must not append a client's batch; None if it may.

    Source of rules and codes: Kafka's ``UnifiedLog.analyzeAndValidateRecords`` and
    ``LogValidator.validateBatch`` for records of format 2 from clients. Checked: size
    (MESSAGE_TOO_LARGE), CRC (CORRUPT_MESSAGE), codec (UNSUPPORTED_COMPRESSION_TYPE), base offset 0, a
    record count over 0 that equals the range of offsets, no control batch, a producer id with epoch and
    sequence (INVALID_RECORD), the producer's own time rather than the leader's, and within the topic's
    bounds of ``now_ms`` if given (INVALID_TIMESTAMP): the first record's time against
    ``timestamp_before_max_ms``, the highest against ``timestamp_after_max_ms``.

    Not checked: that the records inside are as many as the header says, well-formed, of dense offsets, and none older
    than the bound. That would mean decompressing and reading every record, which Kafka does and this log does not. No
    broker, leader or follower, acts on more than the header (offsets advance by ``last_offset_delta``), so such a batch
    harms no log. A consumer that reads one gets ``CorruptBatch`` from the decoder, and can seek past it since the
    header says where it ends; only a client that puts a correct CRC on a faulty batch can write one.
    """
    if batch.size > message_max_bytes:
        return Refusal(
            ErrorCode.MESSAGE_TOO_LARGE, f"expected a batch of at most {message_max_bytes} bytes, found {batch.size}"
        )
    if not batch.crc_ok():
        return Refusal(
            ErrorCode.CORRUPT_MESSAGE, f"expected a batch that matches its CRC {batch.crc:#010x}, it does not"
        )
    attributes, count = batch.attributes, batch.record_count
    if attributes & COMPRESSION_MASK not in _COMPRESSIONS:
        found = attributes & COMPRESSION_MASK
        return Refusal(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"expected a compression number of 0 to 4, found {found}"
        )
    if batch.base_offset:
        return _invalid(f"expected base offset 0 in a client's batch, found {batch.base_offset}")
    if count <= 0:
        return _invalid(f"expected a record count over 0, found {count}")
    if batch.last_offset_delta != count - 1:
        return _invalid(f"expected a last offset delta of {count - 1}, found {batch.last_offset_delta}")
    if attributes & CONTROL:
        return _invalid("expected records of an application, found a control batch")
    if batch.producer_id >= 0:
        if batch.producer_epoch < 0 or batch.base_sequence < 0:
            return _invalid(
                f"expected an epoch and a sequence with producer id {batch.producer_id}, "
                f"found {batch.producer_epoch} and {batch.base_sequence}"
            )
    elif attributes & TRANSACTIONAL:
        return _invalid("expected a producer id in a transactional batch, found none")
    if attributes & LOG_APPEND_TIME:
        return _wrong_time("expected the producer's time in a client's batch, found the mark of log append time")
    if now_ms is None:
        return None
    if timestamp_after_max_ms is not None and batch.max_timestamp - now_ms > timestamp_after_max_ms:
        return _wrong_time(f"expected times up to {now_ms + timestamp_after_max_ms}, found {batch.max_timestamp}")
    if timestamp_before_max_ms is not None and 0 <= batch.base_timestamp < now_ms - timestamp_before_max_ms:
        return _wrong_time(f"expected times from {now_ms - timestamp_before_max_ms}, found {batch.base_timestamp}")
    return None


def _invalid(problem: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_RECORD, problem)


def _wrong_time(problem: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_TIMESTAMP, problem)
