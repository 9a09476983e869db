"""Controllers' messages on a Raft stream: types and encoding.

A stream is one-way: the controller that opened it sends :class:`Hello`, waits for the answer, and then sends frames,
each with all messages that were waiting for that peer. Terms and indexes are the quorum's epochs and metadata offsets.
Sources: the Raft paper (Ongaro & Ousterhout, 2014) and Ongaro's thesis for pre-vote (9.6); answers to an append carry
pysyncobj's ``next_node_idx``, and the term that it lacks.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import UNASSIGNED_DIRECTORY, DirectoryId, NodeId
from tidelog.model.voter_set import VoterSet
from tidelog.proto.calls.convert import OneOf, fill_message, read_message
from tidelog.proto.records.varint import write_uvarint
from tidelog.proto.transport.network import BadFrame
from tidelog.proto.v1 import raft_pb2 as pb

PROTOCOL_VERSION: Final = 2
UNBOUND_VERSION: Final = 1
"""The version of release 0.1, where a voter was only a node id. An :attr:`VoterStanding.OLD` directory also sends it,
and names itself in addition."""

HELLO_BYTES_MAX: Final = 16 * 1024
"""Most bytes of a stream's first frame, which anybody who reaches the listener may have sent."""
FRAME_BYTES_MAX: Final = 32 * 1024 * 1024
MESSAGES_MAX: Final = 2_000
"""Most messages in one frame."""
ENTRIES_MAX: Final = 100_000
"""Most entries in all messages of one frame. A sender's own bounds are below these three."""


class VoterStanding(enum.IntEnum):
    """A controller's directory's standing in its quorum."""

    FRESH = 0
    """Empty, as far as the quorum is concerned."""
    OLD = 1
    """It votes with a log that release 0.1 can read, and talks to controllers of that release."""
    FOUNDED = 2
    """It knows the voters."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The stream's opener, the peer that it expects to reach, and the quorum to which both must belong."""

    version: int
    cluster_id: str
    node_id: NodeId
    peer_id: NodeId
    voters: tuple[NodeId, ...]
    """The ids of all voters, from the sender's configuration."""
    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class HelloAnswer:
    """``refusal`` says what was expected and found; empty when the stream is accepted. The rest is the answerer's."""

    refusal: str
    directory_id: DirectoryId = UNASSIGNED_DIRECTORY
    standing: VoterStanding = VoterStanding.FRESH


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the replicated log; ``command`` is opaque here."""

    term: int
    command: bytes


@dataclass(frozen=True, slots=True)
class Append:
    """Entries that follow ``previous_index``; none of them for a heartbeat.

    A ``notice`` only carries a commit index: it is answered only if it does not fit.
    """

    term: int
    commit_index: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    notice: bool


@dataclass(frozen=True, slots=True)
class AppendResult:
    """``success``: everything before ``next_index`` matches. ``reset``: send from ``next_index`` on."""

    term: int
    next_index: int
    success: bool
    reset: bool


@dataclass(frozen=True, slots=True)
class VoteRequest:
    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class VoteGranted:
    term: int


@dataclass(frozen=True, slots=True)
class PreVoteRequest:
    """Would you vote for me in ``term``? Asking and answering change nothing."""

    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteResult:
    """``term`` is the requested one, ``current_term`` the answerer's."""

    term: int
    current_term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """``data`` of a snapshot at ``offset``; empty to ask how much the follower has.

    A snapshot is identified by the index and term of its last entry, the CRC-32C of its bytes and their size.
    """

    term: int
    commit_index: int
    snapshot_index: int
    snapshot_term: int
    snapshot_crc: int
    snapshot_size: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """The follower has the first ``offset`` bytes of that snapshot; ``gap``: a later part came too early."""

    term: int
    snapshot_index: int
    snapshot_term: int
    snapshot_crc: int
    offset: int
    gap: bool


@dataclass(frozen=True, slots=True)
class Voters:
    """The voters, for a controller that does not know them."""

    voters: VoterSet


RaftMessage: TypeAlias = (
    Append
    | AppendResult
    | VoteRequest
    | VoteGranted
    | PreVoteRequest
    | PreVoteResult
    | SnapshotPart
    | SnapshotResult
    | Voters
)


T = TypeVar("T")

BODY: Final = OneOf("body", RaftMessage)


def encode_hello(hello: Hello) -> bytes:
    return _bytes_of(pb.RaftHello(), hello)


def decode_hello(data: bytes | memoryview) -> Hello:
    """Raises :class:`BadFrame`."""
    if len(data) > HELLO_BYTES_MAX:
        raise BadFrame(f"expected a hello of at most {HELLO_BYTES_MAX} bytes, found {len(data)}")
    return _read(Hello, pb.RaftHello, data)


def encode_hello_answer(answer: HelloAnswer) -> bytes:
    return _bytes_of(pb.RaftHelloAnswer(), answer)


def decode_hello_answer(data: bytes | memoryview) -> HelloAnswer:
    """Raises :class:`BadFrame`."""
    return _read(HelloAnswer, pb.RaftHelloAnswer, data)


def encode_message(message: RaftMessage) -> bytes:
    """Encode one message; several, joined by :func:`join_messages`, make a frame."""
    encoded = pb.RaftMessage()
    BODY.fill(encoded, message)
    return encoded.SerializeToString()


def join_messages(messages: Sequence[bytes]) -> list[bytes]:
    """Return the pieces of a frame with the encoded messages: field 1, once for each."""
    pieces: list[bytes] = []
    for message in messages:
        head = bytearray(b"\x0a")
        write_uvarint(head, len(message))
        pieces += (bytes(head), message)
    return pieces


def decode_frame(data: bytes | memoryview) -> list[RaftMessage]:
    """Read a frame. Raises :class:`BadFrame` for anything but a frame of known messages within the bounds."""
    if len(data) > FRAME_BYTES_MAX:
        raise BadFrame(f"expected a Raft frame of at most {FRAME_BYTES_MAX} bytes, found {len(data)}")
    messages = _parse(pb.RaftFrame, data).messages
    if len(messages) > MESSAGES_MAX:
        raise BadFrame(f"expected at most {MESSAGES_MAX} Raft messages in a frame, found {len(messages)}")
    entries = sum(len(message.append.entries) for message in messages if message.HasField("append"))
    if entries > ENTRIES_MAX:
        raise BadFrame(f"expected at most {ENTRIES_MAX} entries in a Raft frame, found {entries}")
    try:
        decoded = list(map(BODY.read, messages))
    except ValueError as error:
        raise BadFrame(str(error)) from None
    for message in decoded:
        if message is None:
            raise BadFrame("expected a Raft message of a known kind, found none")
        if type(message) is Append:
            _check_terms(message)
    return decoded


def _check_terms(message: Append) -> None:
    term = message.previous_term
    for entry in message.entries:
        if not term <= entry.term <= message.term:
            raise BadFrame(f"expected terms that rise to at most {message.term}, found {entry.term} after {term}")
        term = entry.term


def _bytes_of(message: Message, value: object) -> bytes:
    fill_message(message, value)
    return message.SerializeToString()


def _read(cls: type[T], kind: type[Message], data: bytes | memoryview) -> T:
    message = _parse(kind, data)
    try:
        return read_message(cls, message)
    except ValueError as error:
        raise BadFrame(f"expected a {kind.DESCRIPTOR.name}, found {error}") from None


def _parse(kind: Any, data: bytes | memoryview) -> Any:
    try:
        return kind.FromString(bytes(data))
    except DecodeError as error:
        raise BadFrame(f"expected a {kind.DESCRIPTOR.name}, found {len(data)} bytes: {error}") from None
