"""The exceptions that users of the SDK see, under Kafka's names.

A protocol outcome that has no class of its own here becomes the class that
:data:`tidelog.model.errors.EXCEPTIONS` makes of it; :func:`exception_for` knows which is which. Every
one of them is a :class:`TidelogError` with a ``code`` and a ``retriable`` property.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Final

from tidelog.model.config_def import ConfigError
from tidelog.model.errors import EXCEPTIONS, ErrorCode, TidelogError, error_for
from tidelog.model.ids import Offset, TopicPartition

__all__ = [
    "BrokerNotAvailableError",
    "BufferExhaustedError",
    "ClientClosedError",
    "CommitFailedError",
    "ConfigError",
    "CorruptRecordError",
    "ErrorCode",
    "IllegalStateError",
    "InvalidTopicError",
    "LogTruncationError",
    "NoOffsetForPartitionError",
    "OffsetOutOfRangeError",
    "RebalanceCallbackError",
    "RecordTooLargeError",
    "RequestTimedOutError",
    "RetriableCommitFailedError",
    "SerializationError",
    "SinkDecisionTooLargeError",
    "SinkJobFencedError",
    "SinkTransactionLostError",
    "TidelogError",
    "TopicExistsError",
    "TransactionAbortedError",
    "UnknownTopicOrPartitionError",
    "exception_for",
]


class RequestTimedOutError(TidelogError, builtins.TimeoutError):
    """No answer, or no delivery, within a time bound (Kafka's ``TimeoutException``).

    Whether what was asked for took effect is unknown unless the text says otherwise.
    """

    code = ErrorCode.REQUEST_TIMED_OUT


class BufferExhaustedError(RequestTimedOutError):
    """``buffer_memory`` stayed full for ``max_block_ms``; the record was not taken."""


class RecordTooLargeError(TidelogError):
    """A record over ``max_request_size``, or a batch over the topic's ``max.message.bytes``."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class InvalidTopicError(TidelogError):
    """A topic name that Kafka's rules do not allow."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class UnknownTopicOrPartitionError(TidelogError):
    """The topic or partition does not exist, or the broker does not know of it yet."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicExistsError(TidelogError):
    """A topic of this name exists already."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class CorruptRecordError(TidelogError):
    """Records that fail their checksum or cannot be read (Kafka's ``CorruptRecordException``)."""

    code = ErrorCode.CORRUPT_MESSAGE


class BrokerNotAvailableError(TidelogError):
    """No broker could be reached."""

    code = ErrorCode.BROKER_NOT_AVAILABLE

    @property
    def retriable(self) -> bool:
        return True


class SerializationError(TidelogError):
    """A serializer or deserializer refused a key or a value."""


class IllegalStateError(TidelogError):
    """A call that does not fit the client's state, e.g. a poll without an assignment."""


class ClientClosedError(IllegalStateError):
    """The client was closed, or its process was forked away from the threads that served it."""


class CommitFailedError(TidelogError):
    """Offsets could not be committed and never will be: this consumer is not (or no longer) in the group, and
    its partitions may belong to others (Kafka's ``CommitFailedException``)."""

    code = ErrorCode.ILLEGAL_GENERATION


class RetriableCommitFailedError(TidelogError):
    """Offsets were not committed, or whether they were is unknown; the same or later offsets may be committed
    again (Kafka's ``RetriableCommitFailedException``)."""

    @property
    def retriable(self) -> bool:
        return True


class TransactionAbortedError(TidelogError):
    """The record belongs to a transaction that was aborted, or can only be aborted: nobody who reads what is
    committed ever sees it. ``__cause__`` is what spoilt the transaction, if something did
    (Kafka's ``TransactionAbortedException``)."""


class SinkJobFencedError(TidelogError):
    """This job of a sink is over: it was aborted, or another job has taken over its batch."""

    code = ErrorCode.PRODUCER_FENCED
    fatal = True


class SinkTransactionLostError(TidelogError):
    """A transaction of a sink's batch is not prepared, or not there: it took too long, or was aborted. Nothing of the
    batch is committed; run it again, as another job."""

    code = ErrorCode.INVALID_TXN_STATE
    abortable = True


class SinkDecisionTooLargeError(TidelogError):
    """The decision about a sink's batch would not fit into one record batch: it has too many transactions, with too
    many partitions. Nothing of it is committed; run it again, as another job, with fewer."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE
    abortable = True


class RebalanceCallbackError(TidelogError):
    """A rebalance listener or an assignor of the user's raised; ``__cause__`` is what it raised.

    The rebalance was carried through all the same: the assignment holds, and the next poll goes on.
    """


class InvalidOffsetError(TidelogError):
    """No valid position for some partitions. ``partitions`` says which and what was asked for."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, message: str, partitions: Mapping[TopicPartition, Offset] | None = None) -> None:
        super().__init__(message)
        self.partitions: Final = dict(partitions or {})


class OffsetOutOfRangeError(InvalidOffsetError):
    """A position outside the log, and ``auto_offset_reset`` is ``none``."""


class NoOffsetForPartitionError(InvalidOffsetError):
    """A partition without a position, and ``auto_offset_reset`` is ``none``."""


class LogTruncationError(OffsetOutOfRangeError):
    """The log was cut below what this consumer had read (an unclean election; KIP-320).

    ``divergent`` is, per partition, the first offset known to differ from what was read.
    """

    def __init__(
        self,
        message: str,
        partitions: Mapping[TopicPartition, Offset] | None = None,
        divergent: Mapping[TopicPartition, Offset] | None = None,
    ) -> None:
        super().__init__(message, partitions)
        self.divergent: Final = dict(divergent or {})


_OURS: Final[dict[ErrorCode, type[TidelogError]]] = {
    cls.code: cls
    for cls in (
        RequestTimedOutError,
        RecordTooLargeError,
        InvalidTopicError,
        UnknownTopicOrPartitionError,
        TopicExistsError,
        CorruptRecordError,
        BrokerNotAvailableError,
        OffsetOutOfRangeError,
    )
}


def exception_for(code: ErrorCode, message: str = "") -> TidelogError:
    """Return the exception that stands for ``code``, which must not be ``NONE``."""
    ours = _OURS.get(code)
    return error_for(code, message) if ours is None else ours(message or code.name)


def __getattr__(name: str) -> type[TidelogError]:
    """The rest of Kafka's errors by their class names, e.g. ``NotEnoughReplicasError``."""
    for found in EXCEPTIONS.values():
        if found.__name__ == name:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
