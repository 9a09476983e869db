"""The admin client's types for transactions: states, listings, descriptions, and what to abort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tidelog.client.admin.group_types import CoordinatorNode, StateName
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.calls.transaction_api import LineageEdge


class TransactionState(StateName):
    """The ``TransactionState`` of Kafka's ``Admin``, plus *Prepared*, which Kafka lacks. The values are the
    coordinators' names."""

    EMPTY = "Empty"
    """The id is in use, without a transaction."""
    ONGOING = "Ongoing"
    """A transaction is open."""
    PREPARED = "Prepared"
    """A transaction waits for an external decision; it never times out."""
    PREPARE_COMMIT = "PrepareCommit"
    """The commit is decided, markers are being written."""
    PREPARE_ABORT = "PrepareAbort"
    """The abort is decided, markers are being written."""
    COMPLETE_COMMIT = "CompleteCommit"
    """The last transaction was committed."""
    COMPLETE_ABORT = "CompleteAbort"
    """The last transaction was aborted."""
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id that is in use, and the node that coordinates it."""

    transactional_id: str
    producer_id: int
    state: TransactionState
    coordinator: NodeId


class Lineage(NamedTuple):
    """What was read and written, by transactional id and topic, as far as all brokers remember since ``since_ms``;
    ``forgotten``: how many edges they had no room for."""

    edges: list[LineageEdge]
    since_ms: int
    forgotten: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and its transaction. ``transaction_start_time_ms`` (ms since 1970) is ``None`` without an open
    one; ``topic_partitions`` are those that still lack a marker, empty without an open one."""

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
    """The identity that a transactional id got when its producers were fenced; theirs are older."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition's leader knows about a producer. ``last_sequence`` is -1 if the leader has seen only markers of
    this epoch, ``last_timestamp_ms`` is when it last heard from the producer (ms since 1970), ``coordinator_epoch`` is
    ``None`` before the first marker, ``current_transaction_start_offset`` is ``None`` without an open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None
    current_transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class AbortTransactionSpec:
    """An open transaction in one partition, as ``describe_producers`` shows it. ``coordinator_epoch`` is 0 if that
    shows none: no coordinator has written a marker yet, and every real epoch is at least 0."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int

    @classmethod
    def of(cls, partition: TopicPartition, producer: ProducerState) -> AbortTransactionSpec:
        """Return the specification that ends this producer's open transaction in ``partition``."""
        return cls(partition, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch or 0)
