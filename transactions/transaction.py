"""A transactional id's state: the value in its record, and the operation in progress."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final, NamedTuple

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition
from tidelog.model.sinks import sink_attempt
from tidelog.proto.calls.request import Response
from tidelog.proto.calls.transaction_api import AddedTransaction
from tidelog.proto.logs.transaction_records import NO_TIMEOUT_MS, TransactionLogValue
from tidelog.transactions.transitions import TransactionState

EPOCH_MAX: Final = 32_767
"""No producer gets this epoch, so that the producer with the last one can still be fenced."""
NO_START: Final = -1

_STATUS: Final = {
    TransactionState.EMPTY: 0,
    TransactionState.ONGOING: 1,
    TransactionState.PREPARED: 1,
    TransactionState.PREPARE_COMMIT: 2,
    TransactionState.PREPARE_ABORT: 3,
    TransactionState.COMPLETE_COMMIT: 4,
    TransactionState.COMPLETE_ABORT: 5,
}
"""Kafka's ids of states. 6 (Dead) and 7 (PrepareEpochFence) are never written, not even by Kafka."""
_STATES: Final = {status: state for state, status in _STATUS.items() if state is not TransactionState.PREPARED}
_SECOND_PROTOCOL: Final = 2


class Identity(NamedTuple):
    """A producer's identity: its id and epoch."""

    producer_id: ProducerId
    epoch: ProducerEpoch

    @property
    def is_last(self) -> bool:
        """Whether no producer may get a later epoch (``isEpochExhausted``)."""
        return self.epoch >= EPOCH_MAX - 1

    @property
    def next(self) -> Identity:
        """The next epoch, at most the one that no producer gets."""
        return Identity(self.producer_id, ProducerEpoch(min(self.epoch + 1, EPOCH_MAX)))


NOBODY: Final = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
NO_PARTITIONS: Final[Mapping[TopicPartition, None]] = {}


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id as one record stores it.

    ``previous`` is the identity that the current one replaced at that producer's own request, so that we recognise a
    repeated request; NOBODY once the current identity was used. ``following`` is the identity after a decided or
    prepared transaction if it is a different one. ``kept``: ``following`` belongs to another producer, and so does
    ``identity`` after completion. ``partitions`` is never changed in place.
    """

    state: TransactionState
    identity: Identity
    timeout_ms: int
    updated_ms: int
    previous: Identity = NOBODY
    following: Identity = NOBODY
    partitions: Mapping[TopicPartition, None] = field(default_factory=lambda: NO_PARTITIONS)
    started_ms: int = NO_START
    two_phase: bool = False
    kept: bool = False
    client_version: int = 0

    @property
    def after(self) -> Identity:
        """The identity of the next transaction, once this one is completed."""
        return self.identity if self.following == NOBODY else self.following

    @property
    def told_after(self) -> Identity:
        """Like :attr:`after`, as its own producer may know it: without an identity that belongs to another producer."""
        return self.previous.next if self.kept else self.after

    def stored(self) -> TransactionLogValue:
        """Return the transaction as a record value."""
        return TransactionLogValue(
            self.identity.producer_id,
            self.identity.epoch,
            self.timeout_ms,
            _STATUS[self.state],
            tuple(self.partitions),
            self.updated_ms,
            self.started_ms,
            self.previous.producer_id,
            self.following.producer_id,
            self.following.epoch,
            self.previous.epoch,
            self.client_version,
            self.two_phase,
            self.state is TransactionState.PREPARED,
            self.kept,
        )


def loaded(value: TransactionLogValue) -> Transaction | None:
    """Return the value of a record; None for a state that is never written.

    Kafka's records lack the previous epoch: it follows from the second protocol, which takes one for each
    transaction. They also lack the epoch of the following identity, which is 0 (``prepareComplete``).
    """
    state = TransactionState.PREPARED if value.prepared else _STATES.get(value.status)
    if state is None or value.producer_id < 0 or value.producer_epoch < 0:
        return None
    identity = Identity(value.producer_id, value.producer_epoch)
    following = NOBODY
    if value.next_producer_id != NO_PRODUCER_ID and (state.is_decided or state is TransactionState.PREPARED):
        following = Identity(value.next_producer_id, ProducerEpoch(max(value.next_producer_epoch, 0)))
    previous = Identity(value.previous_producer_id, value.last_producer_epoch)
    if previous.epoch == NO_PRODUCER_EPOCH:
        previous = NOBODY
        ended = state.is_decided or state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
        if ended and value.client_version >= _SECOND_PROTOCOL and identity.epoch > 0:
            previous = Identity(identity.producer_id, ProducerEpoch(identity.epoch - 1))
    return Transaction(
        state,
        identity,
        value.timeout_ms,
        value.last_update_timestamp,
        previous,
        following,
        dict.fromkeys(value.partitions),
        value.start_timestamp,
        value.two_phase,
        value.kept,
        value.client_version,
    )


class Busy(enum.Enum):
    """The operation in progress on a transactional id. No other begins before it has ended."""

    ALLOCATING = enum.auto()
    """A producer id is being requested."""
    MOVING = enum.auto()
    """A record is being replicated."""
    COMPLETING = enum.auto()
    """The final record of a decided transaction is being replicated, or waits for a retry."""


class WaitingAdd(NamedTuple):
    """An AddPartitions or AddOffsets that waits for an operation in progress. ``deadline``: monotonic ms."""

    deadline: int
    waiter: int
    asker: Identity
    partitions: tuple[TopicPartition, ...]
    tell: Callable[[ErrorCode], Response | AddedTransaction]


class Entry:
    """A transactional id: ``value`` is its committed record, None before the first one."""

    __slots__ = ("adds", "attempt", "busy", "connection", "key", "sending", "transactional_id", "unmarked", "value")

    def __init__(self, transactional_id: str, key: bytes, value: Transaction | None) -> None:
        self.transactional_id = transactional_id
        self.key = key
        self.value = value
        self.attempt = sink_attempt(transactional_id)
        """The sink's transaction that this is; None: a producer's own."""
        self.busy: Busy | None = None
        self.adds: list[WaitingAdd] = []
        self.unmarked: dict[TopicPartition, None] = {}
        """Partitions whose marker is not written yet."""
        self.sending = -1
        """The number under which the markers were sent; -1: none are being sent."""
        self.connection = 0
        """No connection before this one may act for the producer any more. Not in the log."""

    @property
    def may_time_out(self) -> bool:
        """Whether a timeout may end its transaction: a producer's own unless it is prepared; a sink's even then,
        because the ledger decides about it and not an outsider."""
        state = None if self.value is None else self.value.state
        return state is TransactionState.ONGOING or (
            self.attempt is not None and state in (TransactionState.EMPTY, TransactionState.PREPARED)
        )

    def has_timed_out(self, wall_ms: int) -> bool:
        """Return whether it has been undecided for longer than its timeout, which restarts when a sink's transaction is
        prepared."""
        value = self.value
        if value is None or not self.may_time_out or value.timeout_ms == NO_TIMEOUT_MS:
            return False
        since_ms = value.updated_ms if value.state is TransactionState.PREPARED else value.started_ms
        return since_ms + value.timeout_ms < wall_ms

    def heard(self, asker: Identity, connection: int) -> bool:
        """Return whether ``connection`` (0: irrelevant) may still act for ``asker``: no later connection was used.

        In the first protocol all of a producer's transactions share one epoch, so a long-delayed request looks like one
        of the next transaction. But a client that gives up a request also closes its connection. This rule ignores
        every producer but the current one.
        """
        if connection == 0 or self.value is None or asker != self.value.identity:
            return True
        if connection < self.connection:
            return False
        self.connection = connection
        return True
