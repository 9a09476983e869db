"""The states of a transactional producer: which calls each allows, and where an error leads. Pure.

==================  =============================================================================
state               left by
==================  =============================================================================
UNINITIALIZED       ``initialize`` → INITIALIZING
INITIALIZING        an identity came → READY, or PREPARED where a transaction was left prepared;
                    an error → FATAL_ERROR
READY               ``begin`` → IN_TRANSACTION
IN_TRANSACTION      ``commit`` → COMMITTING; ``abort`` → ABORTING; ``prepare`` → PREPARING;
                    an error → ABORTABLE_ERROR
PREPARING           prepared → PREPARED; an error → ABORTABLE_ERROR
PREPARED            ``commit`` → COMMITTING; ``abort`` → ABORTING
COMMITTING          ended → READY; an error → ABORTABLE_ERROR
ABORTING            ended → READY; an error → FATAL_ERROR
ABORTABLE_ERROR     ``abort`` → ABORTING
FATAL_ERROR         never
==================  =============================================================================

A fatal error leads to FATAL_ERROR from everywhere. Once the coordinator has been asked to prepare or to end the
transaction, only its answer says what becomes of it: other errors come too late to spoil it, and an answer that comes
after a fatal error leaves that as it is. Each transaction has an identity (producer id, epoch) of its
own, which only the coordinator gives out: with the answer to InitProducerId, and with that to EndTxn for the
next transaction (the second protocol, KIP-890). Source: Kafka's ``TransactionManager``; KIP-939 for PREPARED.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tidelog.client.errors import IllegalStateError, TidelogError

Identity = tuple[int, int]
"""Producer id and epoch."""


class TransactionState(enum.Enum):
    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that can only be aborted"
    FATAL_ERROR = "failed for good"


_S = TransactionState
MOVES: Final[Mapping[TransactionState, frozenset[TransactionState]]] = MappingProxyType(
    {
        _S.UNINITIALIZED: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
        _S.INITIALIZING: frozenset({_S.READY, _S.PREPARED, _S.FATAL_ERROR}),
        _S.READY: frozenset({_S.IN_TRANSACTION, _S.FATAL_ERROR}),
        _S.IN_TRANSACTION: frozenset({_S.COMMITTING, _S.ABORTING, _S.PREPARING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
        _S.PREPARING: frozenset({_S.PREPARED, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
        _S.PREPARED: frozenset({_S.COMMITTING, _S.ABORTING, _S.FATAL_ERROR}),
        _S.COMMITTING: frozenset({_S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
        _S.ABORTING: frozenset({_S.READY, _S.FATAL_ERROR}),
        _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.FATAL_ERROR}),
        _S.FATAL_ERROR: frozenset(),
    }
)
"""Where each state may lead."""

_HINTS: Final = {
    _S.UNINITIALIZED: "call init_transactions() first",
    _S.INITIALIZING: "init_transactions() is in progress: call it again to wait for it",
    _S.READY: "call begin_transaction() first",
    _S.PREPARING: "prepare_transaction() is in progress: call it again to wait for it",
    _S.PREPARED: "the transaction is prepared: commit or abort it",
    _S.COMMITTING: "its commit is in progress: call commit_transaction() again to wait for it",
    _S.ABORTING: "its abort is in progress: call abort_transaction() again to wait for it",
}


class TransactionMachine:
    """One producer's state. A call that does not fit the state raises what :meth:`refusal` returns."""

    __slots__ = ("asked", "error", "identity", "ongoing", "started", "state")

    def __init__(self) -> None:
        self.state = _S.UNINITIALIZED
        self.identity: Identity | None = None
        self.ongoing: Identity | None = None
        """The identity under which the PREPARED transaction was prepared."""
        self.error: TidelogError | None = None
        """The error that led to an error state."""
        self.started = False
        """Whether the cluster may know this transaction, because part of it was sent."""
        self.asked = False
        """Whether the coordinator was asked to prepare or end it, and has not answered."""

    # --- calls: each raises what :meth:`refusal` gives -------------------------------------------------

    def initialize(self) -> None:
        self._leave({_S.UNINITIALIZED}, _S.INITIALIZING, "init_transactions()")

    def begin(self) -> None:
        self._leave({_S.READY}, _S.IN_TRANSACTION, "begin_transaction()")
        self.started = False

    def prepare(self) -> None:
        self._leave({_S.IN_TRANSACTION}, _S.PREPARING, "prepare_transaction()")

    def commit(self) -> None:
        self._leave({_S.IN_TRANSACTION, _S.PREPARED}, _S.COMMITTING, "commit_transaction()")

    def abort(self) -> None:
        self._leave({_S.IN_TRANSACTION, _S.PREPARED, _S.ABORTABLE_ERROR}, _S.ABORTING, "abort_transaction()")

    def check_open(self, call: str) -> None:
        """Check that a transaction is open, which records and offsets require."""
        if self.state is not _S.IN_TRANSACTION:
            raise self.refusal(call)

    def refusal(self, call: str) -> TidelogError:
        """Return why ``call`` is not possible: the error that failed the transaction, or the wrong state."""
        if self.error is not None and self.state in (_S.ABORTABLE_ERROR, _S.FATAL_ERROR):
            return self.error
        hint = _HINTS.get(self.state)
        return IllegalStateError(f"{call}: the producer is {self.state.value}" + (f"; {hint}" if hint else ""))

    # --- what happens ----------------------------------------------------------------------------------

    def sent(self) -> None:
        """Note that part of the transaction is sent."""
        self.started = True

    def ask(self, expected: TransactionState, call: str) -> None:
        """Note that the coordinator is asked to prepare or end it. Raises what :meth:`refusal` returns if the state has
        changed by now: the transaction to commit may have failed, and its abort may be in progress."""
        if self.state is not expected:
            raise self.refusal(call)
        self.asked = True

    def initialized(self, identity: Identity, ongoing: Identity | None) -> None:
        """Take a new identity; ``ongoing`` is that of a transaction that was left prepared."""
        self._move(_S.READY if ongoing is None else _S.PREPARED)
        self.identity = identity
        self.ongoing = ongoing
        self.started = ongoing is not None

    def prepared(self) -> None:
        self.asked = False
        if self.state is not _S.FATAL_ERROR:
            self._move(_S.PREPARED)
            self.ongoing = self.identity

    def ended(self, identity: Identity) -> None:
        """Note that the transaction is decided; ``identity`` is for the next one."""
        self.asked = False
        if self.state is _S.FATAL_ERROR:
            return
        self._move(_S.READY)
        self.identity = identity
        self.ongoing = None
        self.error = None
        self.started = False

    def failed(self, error: TidelogError, *, fatal: bool, answer: bool = False) -> bool:
        """Note an error that no retry fixes. Returns false if that changes nothing, because no transaction is open, or
        it has already failed, or is being decided. ``answer``: the error is the coordinator's answer to that
        decision."""
        state = self.state
        if answer:
            self.asked = False
        if state is _S.FATAL_ERROR or (not fatal and state in (_S.UNINITIALIZED, _S.READY, _S.PREPARED)):
            return False
        if not fatal and (state is _S.ABORTABLE_ERROR or self.asked):
            return False
        fatal = fatal or _S.ABORTABLE_ERROR not in MOVES[state]
        self.error = error
        error.fatal = fatal
        error.abortable = not fatal
        self._move(_S.FATAL_ERROR if fatal else _S.ABORTABLE_ERROR)
        return True

    # --- inside ----------------------------------------------------------------------------------------

    def _leave(self, expected: set[TransactionState], to: TransactionState, call: str) -> None:
        if self.state not in expected:
            raise self.refusal(call)
        self._move(to)

    def _move(self, to: TransactionState) -> None:
        assert to in MOVES[self.state], f"{self.state} → {to}"
        self.state = to
