"""Calls that backups, restores and links make: a pause of decisions, records at given offsets, ids beyond those in use.

Kafka has none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_OFFSET, NO_PRODUCER_ID, LeaderEpoch, Offset, ProducerId, TopicId
from tidelog.proto.calls.request import Change, Request, Response

HOLD_MS_MAX: Final = 10_000
"""Maximum time for which one request keeps transactions from being decided."""


@dataclass(frozen=True, slots=True)
class HoldTransactionsRequest(Request["HoldTransactionsResponse"]):
    """Stops the receiving node's coordinators from deciding for ``hold_ms`` (at most :data:`HOLD_MS_MAX`; 0 ends the
    hold immediately). Repeating it with the same ``hold_id`` prolongs the hold. While another hold is in force, the
    node answers CONCURRENT_TRANSACTIONS."""

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
    """Append whole record batches at the offsets that they have, as the leader under ``leader_epoch``. Offsets may be
    left out. The log must not end before ``log_end_offset``; batches that lie before its end are passed over, so a
    repeated request does no harm. ``link``: the link that the records come by, "" for a backup. A topic takes those of
    its own link alone, and only right at its log's end: what lies there has been compared with the source. Without
    records, the answer tells where the log ends."""

    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    log_end_offset: Offset
    records: bytes
    timeout_ms: int = 30_000
    link: str = ""


@dataclass(frozen=True, slots=True)
class ImportRecordsResponse(Response):
    """The answer comes once the in-sync replicas have the records. ``log_end_offset``: where the leader's log ends; -1
    if it is not known. The leader tells it at once if it refuses a link, or others than the link."""

    error: ErrorCode
    log_end_offset: Offset = NO_OFFSET
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class AdvanceProducerIdsRequest(Change["AdvanceProducerIdsResponse"]):
    """Give out no producer id below ``beyond`` from now on. Refused with INVALID_REQUEST if smaller ones were given
    out in this cluster before: their producers might get ids that records bear already. -1 only takes a block out of
    use; the broker's answer, and its metadata from then on, is at least as new as the question.

    ``give_back``: undo it. The next id is this one again, if it is ``beyond`` now: if nobody got one meanwhile."""

    beyond: ProducerId
    give_back: ProducerId | None = None


@dataclass(frozen=True, slots=True)
class AdvanceProducerIdsResponse(Response):
    """``first_producer_id``: the first of the block that was taken out of use. ``next_producer_id``: the next id to be
    given out from now on; ``former_producer_id``: what that was before."""

    error: ErrorCode
    first_producer_id: ProducerId = NO_PRODUCER_ID
    error_message: str = ""
    next_producer_id: ProducerId = ProducerId(0)  # noqa: RUF009 - a number
    former_producer_id: ProducerId = ProducerId(0)  # noqa: RUF009 - a number
