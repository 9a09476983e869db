"""Calls for transactions: identities, participants, the end, markers, administration.

Conventions as in :mod:`tidelog.proto.calls.api`. Fields and meanings: the newest version of the Kafka request of
the same name, that is the second transaction protocol (KIP-890) with two-phase commit (KIP-939).
"""

from __future__ import annotations

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    NO_NODE,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NodeId,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from tidelog.proto.calls.group_api import GroupPartition, OffsetCommitPartition, OffsetCommitResult
from tidelog.proto.calls.request import Request, Response

# --- Identity ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    """A new producer id, or the next epoch of the one given (KIP-360). With a ``transactional_id`` the same id
    under its next epoch, which fences its previous producer; that one's open transaction is aborted first.

    ``enable_two_phase_commit``: its transactions may be prepared, and then never time out (KIP-939);
    ``keep_prepared_transaction``: a prepared one is not aborted, and the answer names it.
    """

    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    enable_two_phase_commit: bool = False
    keep_prepared_transaction: bool = False


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse(Response):
    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    error_message: str = ""
    ongoing_producer_id: ProducerId = NO_PRODUCER_ID
    ongoing_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


# --- Participants -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddPartitionsTransaction:
    """``verify_only``: ask whether they are already in the transaction (the first transaction protocol)."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[GroupPartition, ...]
    verify_only: bool = False


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest(Request["AddPartitionsToTxnResponse"]):
    """From a client of the first protocol, or from a partition's leader on behalf of a client of the second."""

    transactions: tuple[AddPartitionsTransaction, ...]


@dataclass(frozen=True, slots=True)
class AddedPartition:
    topic: str
    partition: int
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class AddedTransaction:
    transactional_id: str
    results: tuple[AddedPartition, ...]


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResponse(Response):
    error: ErrorCode
    transactions: tuple[AddedTransaction, ...] = ()


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest(Request["AddOffsetsToTxnResponse"]):
    """Adds the group's partition of ``__consumer_offsets`` (the first protocol; in the second, the group's coordinator
    asks for it)."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    group_id: str


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnResponse(Response):
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest(Request["TxnOffsetCommitResponse"]):
    """Offsets that count if the transaction commits; to the group's coordinator, with the member's generation
    (KIP-447). ``verify_only``: the client itself has added the group to the transaction, with AddOffsetsToTxn (the
    first transaction protocol)."""

    transactional_id: str
    group_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    generation_id: int
    member_id: str
    group_instance_id: str | None
    partitions: tuple[OffsetCommitPartition, ...]
    verify_only: bool = False


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponse(Response):
    results: tuple[OffsetCommitResult, ...]


# --- The end ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareTransactionRequest(Request["PrepareTransactionResponse"]):
    """Freezes a transaction for an external decision: it accepts nothing more, does not time out, and anyone who knows
    its id and epoch ends it with EndTxn. Kafka has no such call (KIP-939 leaves the freezing to the client). Repeating
    it gets the same answer."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class PrepareTransactionResponse(Response):
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class EndTxnRequest(Request["EndTxnResponse"]):
    """``bump_epoch``: the second protocol, in which every transaction has its own epoch."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    committed: bool
    bump_epoch: bool = True


@dataclass(frozen=True, slots=True)
class EndTxnResponse(Response):
    """The identity of the next transaction."""

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """``transaction_version``: 2 if ``producer_epoch`` is the one after the transaction's, so that a late marker cannot
    end a later transaction (KIP-1228); 1 or 0 if it is the transaction's own."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    committed: bool
    coordinator_epoch: int
    partitions: tuple[GroupPartition, ...]
    transaction_version: int = 2


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersRequest(Request["WriteTxnMarkersResponse"]):
    """From a transaction's coordinator, or an administrator, to the leaders of its partitions."""

    markers: tuple[TransactionMarker, ...]


@dataclass(frozen=True, slots=True)
class WrittenMarker:
    producer_id: ProducerId
    results: tuple[AddedPartition, ...]


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersResponse(Response):
    markers: tuple[WrittenMarker, ...]


# --- Administration -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest(Request["DescribeTransactionsResponse"]):
    transactional_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """``start_time_ms`` is -1 without an open transaction."""

    transactional_id: str
    error: ErrorCode
    state: str = ""
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    transaction_timeout_ms: int = -1
    start_time_ms: int = -1
    partitions: tuple[GroupPartition, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeTransactionsResponse(Response):
    transactions: tuple[DescribedTransaction, ...]


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest(Request["ListTransactionsResponse"]):
    """The transactions that this broker coordinates; empty filters: all. ``duration_ms`` at least, -1 any (KIP-994).
    ``id_pattern``: a regular expression of RE2 that the whole transactional id must match (KIP-1152)."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[ProducerId, ...] = ()
    duration_ms: int = -1
    id_pattern: str = ""


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    transactional_id: str
    producer_id: ProducerId
    state: str


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse(Response):
    error: ErrorCode
    transactions: tuple[ListedTransaction, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeLineageRequest(Request["DescribeLineageResponse"]):
    """Asks what transactional ids have read and written, as this broker saw it. Kafka has no such call."""


@dataclass(frozen=True, slots=True)
class LineageEdge:
    """``reads``: offsets of the topic joined ``count`` times a transaction of this id, committed by ``group_id``; if
    not, ``count`` transactions with records in it were committed. A sink's transactions have the id ``__sink/NAME``."""

    transactional_id: str
    topic: str
    reads: bool
    group_id: str
    client_id: str
    count: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class DescribeLineageResponse(Response):
    """``forgotten``: how many edges there was no room for; ``since_ms``: since when the broker remembers."""

    error: ErrorCode
    edges: tuple[LineageEdge, ...] = ()
    forgotten: int = 0
    since_ms: int = -1
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    """Asks for the producers that a partition's leader knows or, with ``any_replica``, the receiving replica
    (KIP-664)."""

    partitions: tuple[GroupPartition, ...]
    any_replica: bool = False


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """``transaction_start_offset`` is -1 without an open transaction."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: Offset = NO_OFFSET


@dataclass(frozen=True, slots=True)
class PartitionProducers:
    topic: str
    partition: int
    error: ErrorCode
    leader: NodeId = NO_NODE
    producers: tuple[ProducerDescription, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeProducersResponse(Response):
    partitions: tuple[PartitionProducers, ...]
