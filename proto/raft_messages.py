"""What controllers say to one another on a Raft stream, as types and as bytes.

A stream is one way: the controller that opened it says :class:`Hello`, waits for the answer, and then
sends frames, each with every message that was waiting for that peer. Terms and indexes are the
quorum's epochs and metadata offsets. Sources: the Raft paper (Ongaro & Ousterhout, 2014) and Ongaro's
thesis for pre-vote (9.6); the answers to an append carry what pysyncobj's ``next_node_idx`` does, and
the term that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError

from tidelog.model.ids import NodeId
from tidelog.proto.network import BadFrame
from tidelog.proto.v1 import raft_pb2 as pb

PROTOCOL_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Hello:
    """Who opens the stream, whom it expects to reach, and the quorum both must belong to."""

    version: int
    cluster_id: str
    node_id: NodeId
    peer_id: NodeId
    voters: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class HelloAnswer:
    """``refusal`` says what was expected and found; empty when the stream is accepted."""

    refusal: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of the replicated log; ``command`` is opaque here."""

    index: int
    term: int
    command: bytes


@dataclass(frozen=True, slots=True)
class Append:
    """Entries that follow ``previous_index``; none of them for a heartbeat.

    A ``notice`` only tells a commit index: it is answered only if it does not fit.
    """

    term: int
    commit_index: int
    previous_index: int
    previous_term: int
    entries: tuple[LogEntry, ...]
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
    """Would you vote for me in ``term``? Nothing changes by asking or answering."""

    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteResult:
    """``term`` is the one that was asked for, ``current_term`` the answerer's."""

    term: int
    current_term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """``data`` of a snapshot at ``offset``; empty to ask how much the follower has.

    A snapshot is named by the index and term of its last entry, the CRC-32C of its bytes and their size.
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
    """The follower holds the first ``offset`` bytes of that snapshot; ``gap``: a later part came before its turn."""

    term: int
    snapshot_index: int
    snapshot_term: int
    snapshot_crc: int
    offset: int
    gap: bool


RaftMessage: TypeAlias = (
    Append | AppendResult | VoteRequest | VoteGranted | PreVoteRequest | PreVoteResult | SnapshotPart | SnapshotResult
)


def encode_hello(hello: Hello) -> bytes:
    return pb.RaftHello(
        version=hello.version,
        cluster_id=hello.cluster_id,
        node_id=hello.node_id,
        peer_id=hello.peer_id,
        voters=hello.voters,
    ).SerializeToString()


def decode_hello(data: bytes | memoryview) -> Hello:
    """Raises :class:`BadFrame`."""
    hello = _parse(pb.RaftHello, data)
    voters = tuple(NodeId(voter) for voter in hello.voters)
    return Hello(hello.version, hello.cluster_id, NodeId(hello.node_id), NodeId(hello.peer_id), voters)


def encode_hello_answer(answer: HelloAnswer) -> bytes:
    return pb.RaftHelloAnswer(refusal=answer.refusal).SerializeToString()


def decode_hello_answer(data: bytes | memoryview) -> HelloAnswer:
    """Raises :class:`BadFrame`."""
    return HelloAnswer(_parse(pb.RaftHelloAnswer, data).refusal)


def encode_message(message: RaftMessage) -> bytes:
    """Return one message; several of them, joined by :func:`join_messages`, make a frame."""
    return _ENCODERS[type(message)](message).SerializeToString()


def join_messages(messages: Sequence[bytes]) -> list[bytes]:
    """Return the pieces of a frame that holds the encoded messages: field 1, once for each."""
    pieces: list[bytes] = []
    for message in messages:
        pieces.append(b"\x0a" + _varint(len(message)))
        pieces.append(message)
    return pieces


def decode_frame(data: bytes | memoryview) -> list[RaftMessage]:
    """Raises :class:`BadFrame` for anything that is not a frame of known messages."""
    decoded: list[RaftMessage] = []
    for message in _parse(pb.RaftFrame, data).messages:
        kind = message.WhichOneof("body")
        if kind is None:
            raise BadFrame("expected a Raft message of a known kind, found none")
        decoded.append(_DECODERS[kind](getattr(message, kind)))
    return decoded


def _parse(kind: Any, data: bytes | memoryview) -> Any:
    try:
        return kind.FromString(bytes(data))
    except DecodeError as error:
        raise BadFrame(f"expected a {kind.DESCRIPTOR.name}, found {len(data)} bytes: {error}") from None


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _append_out(message: Append) -> pb.RaftMessage:
    return pb.RaftMessage(
        append=pb.RaftAppend(
            term=message.term,
            commit_index=message.commit_index,
            previous_index=message.previous_index,
            previous_term=message.previous_term,
            entries=[pb.RaftEntry(term=entry.term, command=entry.command) for entry in message.entries],
            notice=message.notice,
        )
    )


def _append_in(body: pb.RaftAppend) -> Append:
    entries: list[LogEntry] = []
    index, term = body.previous_index, body.previous_term
    for entry in body.entries:
        index += 1
        if not term <= entry.term <= body.term:
            raise BadFrame(f"expected terms that rise to at most {body.term}, found {entry.term} after {term}")
        term = entry.term
        entries.append(LogEntry(index, term, entry.command))
    return Append(
        body.term, body.commit_index, body.previous_index, body.previous_term, tuple(entries), notice=body.notice
    )


def _result_out(m: AppendResult) -> pb.RaftMessage:
    body = pb.RaftAppendResult(term=m.term, next_index=m.next_index, success=m.success, reset=m.reset)
    return pb.RaftMessage(append_result=body)


def _vote_out(m: VoteRequest) -> pb.RaftMessage:
    return pb.RaftMessage(vote_request=pb.RaftVoteRequest(term=m.term, last_index=m.last_index, last_term=m.last_term))


def _granted_out(m: VoteGranted) -> pb.RaftMessage:
    return pb.RaftMessage(vote_granted=pb.RaftVoteGranted(term=m.term))


def _pre_vote_out(m: PreVoteRequest) -> pb.RaftMessage:
    body = pb.RaftPreVoteRequest(term=m.term, last_index=m.last_index, last_term=m.last_term)
    return pb.RaftMessage(pre_vote_request=body)


def _pre_vote_result_out(m: PreVoteResult) -> pb.RaftMessage:
    body = pb.RaftPreVoteResult(term=m.term, current_term=m.current_term, granted=m.granted)
    return pb.RaftMessage(pre_vote_result=body)


def _part_out(message: SnapshotPart) -> pb.RaftMessage:
    return pb.RaftMessage(
        snapshot_part=pb.RaftSnapshotPart(
            term=message.term,
            commit_index=message.commit_index,
            snapshot_index=message.snapshot_index,
            snapshot_term=message.snapshot_term,
            snapshot_crc=message.snapshot_crc,
            snapshot_size=message.snapshot_size,
            offset=message.offset,
            data=message.data,
        )
    )


def _part_in(b: pb.RaftSnapshotPart) -> SnapshotPart:
    return SnapshotPart(
        b.term, b.commit_index, b.snapshot_index, b.snapshot_term, b.snapshot_crc, b.snapshot_size, b.offset, b.data
    )


def _snapshot_result_out(message: SnapshotResult) -> pb.RaftMessage:
    return pb.RaftMessage(
        snapshot_result=pb.RaftSnapshotResult(
            term=message.term,
            snapshot_index=message.snapshot_index,
            snapshot_term=message.snapshot_term,
            snapshot_crc=message.snapshot_crc,
            offset=message.offset,
            gap=message.gap,
        )
    )


_ENCODERS: Final[dict[type[Any], Callable[[Any], pb.RaftMessage]]] = {
    Append: _append_out,
    AppendResult: _result_out,
    VoteRequest: _vote_out,
    VoteGranted: _granted_out,
    PreVoteRequest: _pre_vote_out,
    PreVoteResult: _pre_vote_result_out,
    SnapshotPart: _part_out,
    SnapshotResult: _snapshot_result_out,
}
_DECODERS: Final[dict[str, Callable[[Any], RaftMessage]]] = {
    "append": _append_in,
    "append_result": lambda b: AppendResult(b.term, b.next_index, success=b.success, reset=b.reset),
    "vote_request": lambda b: VoteRequest(b.term, b.last_index, b.last_term),
    "vote_granted": lambda b: VoteGranted(b.term),
    "pre_vote_request": lambda b: PreVoteRequest(b.term, b.last_index, b.last_term),
    "pre_vote_result": lambda b: PreVoteResult(b.term, b.current_term, granted=b.granted),
    "snapshot_part": _part_in,
    "snapshot_result": lambda b: SnapshotResult(
        b.term, b.snapshot_index, b.snapshot_term, b.snapshot_crc, b.offset, gap=b.gap
    ),
}
