"""Calls of backups, restores and links: a pause of decisions, records at given offsets, ids beyond those in use.

Kafka has none of them.
"""

from __future__ import annotations

from typing import Final

from tidelog.model.buffer import Buffer
from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_OFFSET, NO_PRODUCER_ID, LeaderEpoch, Offset, ProducerId, TopicId
from tidelog.proto.calls.request import Change, Request, Response

HOLD_MS_MAX: Final = 10_000
"""Longest pause of transaction decisions by one request."""


@dataclass(frozen=True, slots=True)
class HoldTransactionsRequest(Request["HoldTransactionsResponse"]):
    """Stops the receiving node's coordinators from deciding for ``hold_ms`` (at most :data:`HOLD_MS_MAX`; 0 ends the
    hold immediately). A repetition with the same ``hold_id`` extends the hold. While another hold is in force, the node
    answers CONCURRENT_TRANSACTIONS."""

    hold_id: str
    hold_ms: int


@dataclass(frozen=True, slots=True)
class HeldLedger:
    """The last batch that a sink's ledger has decided."""

    sink: str
    last_batch: int
    last_job: str


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition of ``__transaction_state``. ``settled``: every decided transaction has its markers, and nothing is
    being written. ``unbroken``: the hold was already in force before this request, and has been since it began."""

    partition: int
    leader_epoch: LeaderEpoch
    settled: bool
    unbroken: bool
    ledgers: tuple[HeldLedger, ...] = ()


@dataclass(frozen=True, slots=True)
class HoldTransactionsResponse(Response):
    """COORDINATOR_LOAD_IN_PROGRESS while a partition that the node leads is being loaded."""

    error: ErrorCode
    partitions: tuple[HeldPartition, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ImportRecordsRequest(Request["ImportRecordsResponse"]):
    """Append whole record batches at the offsets that they have, as the leader under ``leader_epoch``. Gaps in the
    offsets are allowed. The log must not end before ``log_end_offset``; batches before its end are skipped, so a
    repeated request does no harm. ``link``: the link that sends the records, "" for a backup. A topic accepts only its
    own link's records, and only exactly at its log's end, because everything before has been compared with the source.
    Without records, the answer reports the log's end.

    ``place``: instead of records, the backup's directory on the leader's machine. The leader reads the partition's file
    there and appends what follows its log's end. It must lie in one of the node's ``backup.dirs``, and its manifest
    must have ``manifest_sha256``; otherwise POLICY_VIOLATION. The first such request begins, further ones wait for the
    end, each for a few seconds; if they stop coming, so does the leader. CORRUPT_MESSAGE: the file is damaged."""

    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    log_end_offset: Offset
    records: Buffer
    timeout_ms: int = 30_000
    link: str = ""
    place: str = ""
    manifest_sha256: str = ""


@dataclass(frozen=True, slots=True)
class ImportRecordsResponse(Response):
    """Sent once the in-sync replicas have the records. ``log_end_offset``: the end of the leader's log, -1 if unknown.
    The leader reports it immediately if it refuses a link, or a sender other than the link. ``reads``: it reads the
    file itself, which an earlier release does not; it has read ``read_bytes`` so far, and is ``done``, or not yet."""

    error: ErrorCode
    log_end_offset: Offset = NO_OFFSET
    error_message: str = ""
    reads: bool = False
    read_bytes: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class AdvanceProducerIdsRequest(Change["AdvanceProducerIdsResponse"]):
    """Issue no producer id below ``beyond`` from now on. Refused with INVALID_REQUEST if this cluster has issued
    smaller ones before: their producers might get ids that records already have. -1 only takes a block out of use; the
    broker's answer, and its later metadata, are at least as new as the request.

    ``give_back``: undo it. The next id is this one again, if it is now ``beyond``, that is, if nobody got one in the
    meantime."""

    beyond: ProducerId
    give_back: ProducerId | None = None


@dataclass(frozen=True, slots=True)
class AdvanceProducerIdsResponse(Response):
    """``first_producer_id``: the first of the block that was taken out of use. ``next_producer_id``: the next id to be
    issued; ``former_producer_id``: its previous value."""

    error: ErrorCode
    first_producer_id: ProducerId = NO_PRODUCER_ID
    error_message: str = ""
    next_producer_id: ProducerId = ProducerId(0)
    former_producer_id: ProducerId = ProducerId(0)
