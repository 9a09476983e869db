"""What an error means for a transaction: retry, abort it, or give up the producer.

Source: KIP-1050 and the handlers of Kafka's ``TransactionManager``.
"""

from __future__ import annotations

import enum
from typing import Final

from tidelog.client.errors import CommitFailedError, TidelogError, exception_for
from tidelog.model.errors import ErrorCode


class Meaning(enum.Enum):
    DONE = enum.auto()
    RETRY = enum.auto()
    ABORT = enum.auto()
    """The transaction can only be aborted."""
    GIVE_UP = enum.auto()
    """The producer cannot start another transaction."""


FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
OVER: Final = FENCED | {ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
"""Answers of partitions and coordinators for a transaction that has already ended: it timed out, or another process
ended it."""
_NOT_IN_GROUP: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_ABORTABLE_OFFSETS: Final = _NOT_IN_GROUP | {
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_TXN_STATE,
}
_ABORTABLE_END: Final = frozenset({ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE})
"""The second: the transaction to commit is already aborted, for example because it timed out. The abort that follows
then gets the next identity, and the producer can continue; Kafka's would be lost (but see KIP-588)."""
_FATAL_OF_RECORDS: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING})


def of_coordinator(code: ErrorCode) -> Meaning:
    """Interpret an error in an answer to InitProducerId, PrepareTransaction or EndTxn."""
    if code is ErrorCode.NONE:
        return Meaning.DONE
    if code.retriable:
        return Meaning.RETRY
    return Meaning.ABORT if code in _ABORTABLE_END else Meaning.GIVE_UP


def of_offsets(code: ErrorCode) -> Meaning:
    """Interpret an error in an answer to TxnOffsetCommit."""
    if code is ErrorCode.NONE:
        return Meaning.DONE
    if code.retriable:
        return Meaning.RETRY
    return Meaning.ABORT if code in _ABORTABLE_OFFSETS else Meaning.GIVE_UP


def of_records(code: ErrorCode) -> Meaning:
    """Interpret the error of a batch that will not be sent again. A refusal because of its epoch is abortable, not
    fatal: only the coordinator knows whether the producer is fenced or its transaction took too long (KIP-588)."""
    return Meaning.GIVE_UP if code in _FATAL_OF_RECORDS else Meaning.ABORT


def error_of(code: ErrorCode, message: str) -> TidelogError:
    """Return the exception for a coordinator's refusal; an old epoch means the same as being fenced."""
    if code in FENCED:
        said = "another producer with the same transactional_id has taken over"
        return exception_for(ErrorCode.PRODUCER_FENCED, f"{message}: {said}")
    if code is ErrorCode.INVALID_TXN_STATE:
        message += ": the transaction is already over: it timed out, or another process decided it"
    if code in _NOT_IN_GROUP:
        return CommitFailedError(f"{message}: this consumer is no longer in the group in that generation")
    return exception_for(code, message)
