"""What the admin client takes and tells about transactions: states, listings, descriptions, what to abort."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from tidelog.client.admin_group_types import CoordinatorNode
from tidelog.model.ids import NodeId, TopicPartition


class TransactionState(enum.StrEnum):
    """Kafka's ``TransactionState`` of its ``Admin``, and *Prepared*, which Kafka has not; the values are what a
    coordinator says."""

    EMPTY = "Empty"
    """The id is in use; it has no transaction."""
    ONGOING = "Ongoing"
    """A transaction is open."""
    PREPARED = "Prepared"
    """One waits for an outside decision; it never times out."""
    PREPARE_COMMIT = "PrepareCommit"
    """The commit is decided, markers are being written."""
    PREPARE_ABORT = "PrepareAbort"
    """The abort is decided, markers are being written."""
    COMPLETE_COMMIT = "CompleteCommit"
    """The last transaction was committed."""
    COMPLETE_ABORT = "CompleteAbort"
    """The last transaction was aborted."""
    UNKNOWN = "Unknown"

    @classmethod
    def of(cls, text: str) -> TransactionState:
        """Read a coordinator's word, in any case; ``UNKNOWN`` for one that a later version may have."""
        return _STATES.get(text.lower(), cls.UNKNOWN)


_STATES: Final = {state.value.lower(): state for state in TransactionState}


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id that is in use, and the node that coordinates it."""

    transactional_id: str
    producer_id: int
    state: TransactionState
    coordinator: NodeId


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and its transaction. ``transaction_start_time_ms`` (ms since 1970) is ``None`` without an
    open one; ``topic_partitions`` are those that still lack a marker, none without an open one."""

    transactional_id: str
    coordinator: CoordinatorNode
    state: TransactionState
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_start_time_ms: int | None
    topic_partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The identity that a transactional id was given when its producers were fenced: they have an older one."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition's leader knows of a producer. ``last_sequence`` is -1 if it has seen nothing but markers of
    this epoch, ``last_timestamp_ms`` is when it last heard of it (ms since 1970), ``coordinator_epoch`` is ``None``
    before the first marker, ``current_transaction_start_offset`` is ``None`` without an open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None
    current_transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class AbortTransactionSpec:
    """A transaction that is open in one partition, as ``describe_producers`` tells it. ``coordinator_epoch`` is 0 where
    that has none: no coordinator has spoken yet, and every real one is at least as new."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int

    @classmethod
    def of(cls, partition: TopicPartition, producer: ProducerState) -> AbortTransactionSpec:
        """What ends this producer's open transaction in ``partition``."""
        return cls(partition, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch or 0)
