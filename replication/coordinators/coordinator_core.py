"""The common part of all coordinators' cores: log replay, pending appends, timers, effects. Pure."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset
from tidelog.model.moment import Moment
from tidelog.model.timers import Timers
from tidelog.proto.logs.coordinator_fields import BadCoordinatorRecord
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.decoder import decode_records
from tidelog.replication.coordinators.coordinator_log import Token

logger = logging.getLogger(__name__)

BATCH_BYTES_MAX: Final = 1_048_588
"""Kafka's default of ``max.message.bytes``."""

KeyT = TypeVar("KeyT")
EffectT = TypeVar("EffectT")
PendingT = TypeVar("PendingT")


class CoreState(Generic[KeyT, EffectT, PendingT]):
    """A partition's state under one leader epoch. A timer's key is the coordinator's own, or an append's token."""

    __slots__ = ("_next_number", "appends", "batch_bytes_max", "effects", "leader_epoch", "timers")

    def __init__(self, leader_epoch: LeaderEpoch, batch_bytes_max: int) -> None:
        self.leader_epoch = leader_epoch
        self.batch_bytes_max = batch_bytes_max
        self.timers: Timers[KeyT | Token] = Timers()
        self.effects: list[EffectT] = []
        self.appends: dict[int, PendingT] = {}
        """Pending appends, by number."""
        self._next_number = 0

    def number(self) -> int:
        """Return the next number for an effect's token."""
        self._next_number += 1
        return self._next_number - 1

    def token(self, number: int) -> Token:
        return Token(self.leader_epoch, number)

    def begin_append(self, pending: PendingT, deadline_ms: int | None) -> Token:
        """Register an append. ``deadline_ms``: when to tell its waiters that the outcome is unknown."""
        token = self.token(self.number())
        self.appends[token.number] = pending
        if deadline_ms is not None:
            self.timers.set(token, deadline_ms)
        return token


class CoreReplaying(ABC):
    """Takes batches in log order. Skips and counts records that only other software knows, or that are unreadable."""

    __slots__ = ("passed_over", "records")

    def __init__(self) -> None:
        self.records = 0
        self.passed_over = 0

    def batch(self, batch: Batch) -> None:
        """Replay one batch of the log. Raises :class:`~tidelog.proto.records.corrupt_batch.CorruptBatch`."""
        if batch.is_control:
            self._control(batch)
            return
        for offset, _, key, value, _ in decode_records(batch):
            self.records += 1
            try:
                used = self._record(batch, Offset(offset), b"" if key is None else key, value)
            except BadCoordinatorRecord as cause:
                used = False
                logger.warning("the record at offset %d is passed over: %s", offset, cause)
            self.passed_over += not used

    @abstractmethod
    def _record(self, batch: Batch, offset: Offset, key: bytes, value: bytes | None) -> bool:
        """Take one record; return False if it is of another kind."""

    @abstractmethod
    def _control(self, batch: Batch) -> None: ...


class CoordinatorCore(ABC, Generic[KeyT, EffectT, PendingT]):
    """State machine of one partition under one leader epoch. Life: ``replay`` and ``loaded``, then requests, finally
    ``resign``."""

    __slots__ = ("_replaying", "_state")

    _state: CoreState[KeyT, EffectT, PendingT]
    _replaying: CoreReplaying

    @property
    def replayed(self) -> int:
        """Number of log records replayed."""
        return self._replaying.records

    @property
    def passed_over(self) -> int:
        """Number of unusable log records."""
        return self._replaying.passed_over

    def replay(self, batch: Batch) -> None:
        """Replay one batch of the log. Raises :class:`~tidelog.proto.records.corrupt_batch.CorruptBatch`."""
        self._replaying.batch(batch)

    @abstractmethod
    def loaded(self, now: Moment) -> list[EffectT]:
        """Note that the whole log is replayed."""

    def next_deadline(self) -> int | None:
        """Return when :meth:`tick` is due, in monotonic ms. It may find nothing to do then."""
        return self._state.timers.next_deadline()

    def tick(self, now: Moment) -> list[EffectT]:
        """Do the work that is due."""
        state = self._state
        for key in state.timers.due(now.monotonic_ms):
            if key in state.timers:
                continue  # earlier due work has set it again
            if not isinstance(key, Token):
                self._due(key, now)
            elif (pending := state.appends.get(key.number)) is not None:
                self._append_late(pending, now)
        return self._effects()

    def appended(self, token: Token, error: ErrorCode, now: Moment) -> list[EffectT]:
        """Note the end of an append. NONE: it is committed. NOT_COORDINATOR: leadership ended, and so does this core.
        Otherwise nothing was written. Tokens of another epoch, or of finished appends, change nothing."""
        if token.leader_epoch != self._state.leader_epoch:
            return []
        if error is ErrorCode.NOT_COORDINATOR:
            return self.resign(now)
        pending = self._state.appends.pop(token.number, None)
        if pending is None:
            return []
        self._state.timers.cancel(token)
        self._append_ended(pending, token.number, error, now)
        return self._effects()

    @abstractmethod
    def resign(self, now: Moment) -> list[EffectT]:
        """End leadership: tell every waiter to look for the new coordinator, and forget everything. Pending records may
        or may not be in the log."""

    @abstractmethod
    def _due(self, key: KeyT, now: Moment) -> None: ...

    @abstractmethod
    def _append_ended(self, pending: PendingT, number: int, error: ErrorCode, now: Moment) -> None: ...

    @abstractmethod
    def _append_late(self, pending: PendingT, now: Moment) -> None:
        """Release the waiters of a late append; its end is still reported."""

    def _effects(self) -> list[EffectT]:
        effects, self._state.effects = self._state.effects, []
        return effects


def append_error(error: ErrorCode) -> ErrorCode:
    """Return the error for a record that could not be stored. Source:
    ``TransactionStateManager.appendTransactionToLog``, ``appendGroupMetadataErrorToResponseError``."""
    match error:
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION | ErrorCode.NOT_ENOUGH_REPLICAS | ErrorCode.REQUEST_TIMED_OUT:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        case _:
            return error
