"""The exceptions that users of the SDK see, under Kafka's names.

A protocol outcome without its own class here takes the class from
:data:`tidelog.model.errors.EXCEPTIONS`; :func:`exception_for` picks the right one. Each
is a :class:`TidelogError` with a ``code`` and a ``retriable`` property.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Final, Literal

from tidelog.model.errors import EXCEPTIONS, ErrorCode, TidelogError, error_for
from tidelog.model.ids import Offset, TopicPartition
from tidelog.model.settings.config_def import ConfigError
from tidelog.proto.records.walk import RecordHeaders

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
    "RecordDeserializationError",
    "RecordTooLargeError",
    "RequestTimedOutError",
    "RetriableCommitFailedError",
    "SaslAuthenticationError",
    "SerializationError",
    "SinkDecisionTooLargeError",
    "SinkJobFencedError",
    "SinkTransactionLostError",
    "SslAuthenticationError",
    "ThrottlingQuotaExceededError",
    "TidelogError",
    "TopicExistsError",
    "TransactionAbortedError",
    "UnknownTopicOrPartitionError",
    "WakeupError",
    "WrongAddressError",
    "exception_for",
]


class RequestTimedOutError(TidelogError, builtins.TimeoutError):
    """No answer, or no delivery, within a time bound (Kafka's ``TimeoutException``).

    The request may or may not have taken effect, unless the text says otherwise.
    """

    code = ErrorCode.REQUEST_TIMED_OUT


class BufferExhaustedError(RequestTimedOutError):
    """``buffer_memory`` stayed full for ``max_block_ms``; the producer did not accept the record."""


class RecordTooLargeError(TidelogError):
    """A record over ``max_request_size``, or a batch over the topic's ``max.message.bytes``."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class InvalidTopicError(TidelogError):
    """The topic name violates Kafka's rules."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class UnknownTopicOrPartitionError(TidelogError):
    """The topic or partition does not exist, or the broker does not know it yet."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicExistsError(TidelogError):
    """A topic of this name already exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class ThrottlingQuotaExceededError(TidelogError):
    """A quota on creating and deleting partitions delayed the change until the timeout. Nothing was changed (Kafka's
    ``ThrottlingQuotaExceededException``, KIP-599)."""

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class CorruptRecordError(TidelogError):
    """Records are unreadable or fail their checksum (Kafka's ``CorruptRecordException``)."""

    code = ErrorCode.CORRUPT_MESSAGE


class BrokerNotAvailableError(TidelogError):
    """No broker could be reached."""

    code = ErrorCode.BROKER_NOT_AVAILABLE

    @property
    def retriable(self) -> bool:
        return True


class WrongAddressError(TidelogError):
    """None of ``bootstrap_servers`` is a broker's listener; the text says what each address is."""

    code = ErrorCode.BROKER_NOT_AVAILABLE

    @property
    def retriable(self) -> bool:
        return False


class SslAuthenticationError(WrongAddressError):
    """TLS connection failed: a certificate was not accepted, or one end uses plaintext."""


class SaslAuthenticationError(WrongAddressError):
    """Login failed: a wrong user or password, a missing login, or a server that did not prove its identity."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class SerializationError(TidelogError):
    """A serializer or deserializer refused a key or a value."""


class RecordDeserializationError(SerializationError):
    """A deserializer refused a record; ``seek`` past ``offset`` to continue. ``origin`` is ``"key"`` or ``"value"``.
    ``key``, ``value``, ``headers`` and ``timestamp`` are the record as it was fetched, so that you can save it (Kafka's
    ``RecordDeserializationException``, KIP-334, KIP-1036)."""

    def __init__(
        self,
        message: str,
        origin: Literal["key", "value"],
        topic_partition: TopicPartition,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
    ) -> None:
        super().__init__(message)
        self.origin: Final = origin
        self.topic_partition: Final = topic_partition
        self.offset: Final = offset
        self.timestamp: Final = timestamp
        self.key: Final = key
        self.value: Final = value
        self.headers: Final = headers


class HandlerError(TidelogError):
    """A handler of :class:`tidelog.Workers` raised in another process; the text has its traceback."""


class IllegalStateError(TidelogError):
    """A call that does not fit the client's state, e.g. a poll without an assignment."""


class WakeupError(TidelogError):
    """``wakeup()`` was called, to end a wait (Kafka's ``WakeupException``). The consumer continues as before."""


class ClientClosedError(IllegalStateError):
    """The client was closed, or a fork left its process without the threads that served it."""


class CommitFailedError(TidelogError):
    """The commit failed for good: this consumer is not (or no longer) in the group, and its partitions may belong
    to others (Kafka's ``CommitFailedException``)."""

    code = ErrorCode.ILLEGAL_GENERATION


class RetriableCommitFailedError(TidelogError):
    """The commit failed, or its outcome is unknown; you may commit the same or later offsets again
    (Kafka's ``RetriableCommitFailedException``)."""

    @property
    def retriable(self) -> bool:
        return True


class TransactionAbortedError(TidelogError):
    """The record belongs to a transaction that was aborted, or can only be aborted. Readers of committed records
    never see it. ``__cause__`` is the error that spoilt the transaction, if there was one
    (Kafka's ``TransactionAbortedException``)."""


class SinkJobFencedError(TidelogError):
    """The sink's job is over: it was aborted, or another job has taken over its batch."""

    code = ErrorCode.PRODUCER_FENCED
    fatal = True


class SinkTransactionLostError(TidelogError):
    """A transaction of a sink's batch is not prepared, or is gone: it took too long, or was aborted. No part of the
    batch is committed; run it again, as another job."""

    code = ErrorCode.INVALID_TXN_STATE
    abortable = True


class SinkDecisionTooLargeError(TidelogError):
    """The decision about a sink's batch does not fit into one record batch: it has too many transactions, with too
    many partitions. No part of it is committed; run it again, as another job, with fewer."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE
    abortable = True


class RebalanceCallbackError(TidelogError):
    """The user's rebalance listener or assignor raised; ``__cause__`` is its exception.

    The rebalance still completed: the assignment is valid, and the next poll continues.
    """


class InvalidOffsetError(TidelogError):
    """Some partitions have no valid position. ``partitions`` names them and the requested positions."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, message: str, partitions: Mapping[TopicPartition, Offset] | None = None) -> None:
        super().__init__(message)
        self.partitions: Final = dict(partitions or {})


class OffsetOutOfRangeError(InvalidOffsetError):
    """A position outside the log, and ``auto_offset_reset`` is ``none``."""


class NoOffsetForPartitionError(InvalidOffsetError):
    """A partition without a position, and ``auto_offset_reset`` is ``none``."""


class LogTruncationError(OffsetOutOfRangeError):
    """The log was truncated below this consumer's position (by an unclean election; KIP-320).

    ``divergent`` maps each partition to the first offset known to differ from what the consumer read.
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
        ThrottlingQuotaExceededError,
        CorruptRecordError,
        BrokerNotAvailableError,
        OffsetOutOfRangeError,
    )
}


def exception_for(code: ErrorCode, message: str = "") -> TidelogError:
    """Return the exception for ``code``, which must not be ``NONE``."""
    ours = _OURS.get(code)
    return error_for(code, message) if ours is None else ours(message or code.name)


def __getattr__(name: str) -> type[TidelogError]:
    """Return Kafka's other errors by class name, e.g. ``NotEnoughReplicasError``."""
    for found in EXCEPTIONS.values():
        if found.__name__ == name:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
