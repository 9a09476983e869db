from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RaftVoterStanding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RAFT_FRESH: _ClassVar[RaftVoterStanding]
    RAFT_OLD: _ClassVar[RaftVoterStanding]
    RAFT_FOUNDED: _ClassVar[RaftVoterStanding]
RAFT_FRESH: RaftVoterStanding
RAFT_OLD: RaftVoterStanding
RAFT_FOUNDED: RaftVoterStanding

class RaftHello(_message.Message):
    __slots__ = ("version", "cluster_id", "node_id", "peer_id", "voters", "directory_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster_id: str
    node_id: int
    peer_id: int
    voters: _containers.RepeatedScalarFieldContainer[int]
    directory_id: bytes
    def __init__(self, version: _Optional[int] = ..., cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., peer_id: _Optional[int] = ..., voters: _Optional[_Iterable[int]] = ..., directory_id: _Optional[bytes] = ...) -> None: ...

class RaftHelloAnswer(_message.Message):
    __slots__ = ("refusal", "directory_id", "standing")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    refusal: str
    directory_id: bytes
    standing: RaftVoterStanding
    def __init__(self, refusal: _Optional[str] = ..., directory_id: _Optional[bytes] = ..., standing: _Optional[_Union[RaftVoterStanding, str]] = ...) -> None: ...

class RaftEntry(_message.Message):
    __slots__ = ("term", "command")
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    term: int
    command: bytes
    def __init__(self, term: _Optional[int] = ..., command: _Optional[bytes] = ...) -> None: ...

class RaftAppend(_message.Message):
    __slots__ = ("term", "commit_index", "previous_index", "previous_term", "entries", "notice")
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_TERM_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    term: int
    commit_index: int
    previous_index: int
    previous_term: int
    entries: _containers.RepeatedCompositeFieldContainer[RaftEntry]
    notice: bool
    def __init__(self, term: _Optional[int] = ..., commit_index: _Optional[int] = ..., previous_index: _Optional[int] = ..., previous_term: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[RaftEntry, _Mapping]]] = ..., notice: _Optional[bool] = ...) -> None: ...

class RaftAppendResult(_message.Message):
    __slots__ = ("term", "next_index", "success", "reset")
    TERM_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    term: int
    next_index: int
    success: bool
    reset: bool
    def __init__(self, term: _Optional[int] = ..., next_index: _Optional[int] = ..., success: _Optional[bool] = ..., reset: _Optional[bool] = ...) -> None: ...

class RaftVoteRequest(_message.Message):
    __slots__ = ("term", "last_index", "last_term")
    TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    last_index: int
    last_term: int
    def __init__(self, term: _Optional[int] = ..., last_index: _Optional[int] = ..., last_term: _Optional[int] = ...) -> None: ...

class RaftVoteGranted(_message.Message):
    __slots__ = ("term",)
    TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    def __init__(self, term: _Optional[int] = ...) -> None: ...

class RaftPreVoteRequest(_message.Message):
    __slots__ = ("term", "last_index", "last_term")
    TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    last_index: int
    last_term: int
    def __init__(self, term: _Optional[int] = ..., last_index: _Optional[int] = ..., last_term: _Optional[int] = ...) -> None: ...

class RaftPreVoteResult(_message.Message):
    __slots__ = ("term", "current_term", "granted")
    TERM_FIELD_NUMBER: _ClassVar[int]
    CURRENT_TERM_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    term: int
    current_term: int
    granted: bool
    def __init__(self, term: _Optional[int] = ..., current_term: _Optional[int] = ..., granted: _Optional[bool] = ...) -> None: ...

class RaftSnapshotPart(_message.Message):
    __slots__ = ("term", "commit_index", "snapshot_index", "snapshot_term", "snapshot_crc", "snapshot_size", "offset", "data")
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TERM_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_CRC_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    term: int
    commit_index: int
    snapshot_index: int
    snapshot_term: int
    snapshot_crc: int
    snapshot_size: int
    offset: int
    data: bytes
    def __init__(self, term: _Optional[int] = ..., commit_index: _Optional[int] = ..., snapshot_index: _Optional[int] = ..., snapshot_term: _Optional[int] = ..., snapshot_crc: _Optional[int] = ..., snapshot_size: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class RaftSnapshotResult(_message.Message):
    __slots__ = ("term", "snapshot_index", "snapshot_term", "snapshot_crc", "offset", "gap")
    TERM_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TERM_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_CRC_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    term: int
    snapshot_index: int
    snapshot_term: int
    snapshot_crc: int
    offset: int
    gap: bool
    def __init__(self, term: _Optional[int] = ..., snapshot_index: _Optional[int] = ..., snapshot_term: _Optional[int] = ..., snapshot_crc: _Optional[int] = ..., offset: _Optional[int] = ..., gap: _Optional[bool] = ...) -> None: ...

class RaftVoters(_message.Message):
    __slots__ = ("voters",)
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    voters: bytes
    def __init__(self, voters: _Optional[bytes] = ...) -> None: ...

class RaftMessage(_message.Message):
    __slots__ = ("append", "append_result", "vote_request", "vote_granted", "pre_vote_request", "pre_vote_result", "snapshot_part", "snapshot_result", "voters")
    APPEND_FIELD_NUMBER: _ClassVar[int]
    APPEND_RESULT_FIELD_NUMBER: _ClassVar[int]
    VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    VOTE_GRANTED_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_RESULT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_PART_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_RESULT_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    append: RaftAppend
    append_result: RaftAppendResult
    vote_request: RaftVoteRequest
    vote_granted: RaftVoteGranted
    pre_vote_request: RaftPreVoteRequest
    pre_vote_result: RaftPreVoteResult
    snapshot_part: RaftSnapshotPart
    snapshot_result: RaftSnapshotResult
    voters: RaftVoters
    def __init__(self, append: _Optional[_Union[RaftAppend, _Mapping]] = ..., append_result: _Optional[_Union[RaftAppendResult, _Mapping]] = ..., vote_request: _Optional[_Union[RaftVoteRequest, _Mapping]] = ..., vote_granted: _Optional[_Union[RaftVoteGranted, _Mapping]] = ..., pre_vote_request: _Optional[_Union[RaftPreVoteRequest, _Mapping]] = ..., pre_vote_result: _Optional[_Union[RaftPreVoteResult, _Mapping]] = ..., snapshot_part: _Optional[_Union[RaftSnapshotPart, _Mapping]] = ..., snapshot_result: _Optional[_Union[RaftSnapshotResult, _Mapping]] = ..., voters: _Optional[_Union[RaftVoters, _Mapping]] = ...) -> None: ...

class RaftFrame(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[RaftMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[RaftMessage, _Mapping]]] = ...) -> None: ...
