from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginSinkTransactionRequest(_message.Message):
    __slots__ = ("sink", "batch", "job", "attempt")
    SINK_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    sink: str
    batch: int
    job: str
    attempt: str
    def __init__(self, sink: _Optional[str] = ..., batch: _Optional[int] = ..., job: _Optional[str] = ..., attempt: _Optional[str] = ...) -> None: ...

class BeginSinkTransactionResponse(_message.Message):
    __slots__ = ("error", "transactional_id", "producer_id", "producer_epoch", "already_committed", "last_batch", "last_job", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ALREADY_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    LAST_JOB_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    already_committed: bool
    last_batch: int
    last_job: str
    error_message: str
    def __init__(self, error: _Optional[int] = ..., transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., already_committed: _Optional[bool] = ..., last_batch: _Optional[int] = ..., last_job: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class SinkWinner(_message.Message):
    __slots__ = ("attempt", "producer_id", "producer_epoch")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    attempt: str
    producer_id: int
    producer_epoch: int
    def __init__(self, attempt: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class CommitBatchRequest(_message.Message):
    __slots__ = ("sink", "batch", "job", "winners")
    SINK_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WINNERS_FIELD_NUMBER: _ClassVar[int]
    sink: str
    batch: int
    job: str
    winners: _containers.RepeatedCompositeFieldContainer[SinkWinner]
    def __init__(self, sink: _Optional[str] = ..., batch: _Optional[int] = ..., job: _Optional[str] = ..., winners: _Optional[_Iterable[_Union[SinkWinner, _Mapping]]] = ...) -> None: ...

class CommitBatchResponse(_message.Message):
    __slots__ = ("error", "already_committed", "last_batch", "last_job", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ALREADY_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    LAST_JOB_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    already_committed: bool
    last_batch: int
    last_job: str
    error_message: str
    def __init__(self, error: _Optional[int] = ..., already_committed: _Optional[bool] = ..., last_batch: _Optional[int] = ..., last_job: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class AbortJobRequest(_message.Message):
    __slots__ = ("sink", "batch", "job")
    SINK_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    sink: str
    batch: int
    job: str
    def __init__(self, sink: _Optional[str] = ..., batch: _Optional[int] = ..., job: _Optional[str] = ...) -> None: ...

class AbortJobResponse(_message.Message):
    __slots__ = ("error", "already_committed", "last_batch", "last_job", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ALREADY_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    LAST_JOB_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    already_committed: bool
    last_batch: int
    last_job: str
    error_message: str
    def __init__(self, error: _Optional[int] = ..., already_committed: _Optional[bool] = ..., last_batch: _Optional[int] = ..., last_job: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class DescribeSinksRequest(_message.Message):
    __slots__ = ("sinks",)
    SINKS_FIELD_NUMBER: _ClassVar[int]
    sinks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sinks: _Optional[_Iterable[str]] = ...) -> None: ...

class SinkJob(_message.Message):
    __slots__ = ("batch", "job")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    batch: int
    job: str
    def __init__(self, batch: _Optional[int] = ..., job: _Optional[str] = ...) -> None: ...

class SinkTransaction(_message.Message):
    __slots__ = ("transactional_id", "state", "producer_id", "producer_epoch", "started_ms", "timeout_ms", "partition_count")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    timeout_ms: int
    partition_count: int
    def __init__(self, transactional_id: _Optional[str] = ..., state: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., started_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., partition_count: _Optional[int] = ...) -> None: ...

class DescribedSink(_message.Message):
    __slots__ = ("sink", "error", "last_batch", "last_job", "decided_ms", "batch", "job", "fenced", "transactions", "error_message")
    SINK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    LAST_JOB_FIELD_NUMBER: _ClassVar[int]
    DECIDED_MS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    sink: str
    error: int
    last_batch: int
    last_job: str
    decided_ms: int
    batch: int
    job: str
    fenced: _containers.RepeatedCompositeFieldContainer[SinkJob]
    transactions: _containers.RepeatedCompositeFieldContainer[SinkTransaction]
    error_message: str
    def __init__(self, sink: _Optional[str] = ..., error: _Optional[int] = ..., last_batch: _Optional[int] = ..., last_job: _Optional[str] = ..., decided_ms: _Optional[int] = ..., batch: _Optional[int] = ..., job: _Optional[str] = ..., fenced: _Optional[_Iterable[_Union[SinkJob, _Mapping]]] = ..., transactions: _Optional[_Iterable[_Union[SinkTransaction, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class DescribeSinksResponse(_message.Message):
    __slots__ = ("sinks",)
    SINKS_FIELD_NUMBER: _ClassVar[int]
    sinks: _containers.RepeatedCompositeFieldContainer[DescribedSink]
    def __init__(self, sinks: _Optional[_Iterable[_Union[DescribedSink, _Mapping]]] = ...) -> None: ...

class ListSinksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListedSink(_message.Message):
    __slots__ = ("sink", "last_batch", "batch", "transaction_count")
    SINK_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    sink: str
    last_batch: int
    batch: int
    transaction_count: int
    def __init__(self, sink: _Optional[str] = ..., last_batch: _Optional[int] = ..., batch: _Optional[int] = ..., transaction_count: _Optional[int] = ...) -> None: ...

class ListSinksResponse(_message.Message):
    __slots__ = ("error", "sinks", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SINKS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    sinks: _containers.RepeatedCompositeFieldContainer[ListedSink]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., sinks: _Optional[_Iterable[_Union[ListedSink, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class DeleteSinkRequest(_message.Message):
    __slots__ = ("sink",)
    SINK_FIELD_NUMBER: _ClassVar[int]
    sink: str
    def __init__(self, sink: _Optional[str] = ...) -> None: ...

class DeleteSinkResponse(_message.Message):
    __slots__ = ("error", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    error_message: str
    def __init__(self, error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...
