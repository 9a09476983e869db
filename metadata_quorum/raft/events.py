"""Inputs and outputs of a step of the Raft engine."""

from __future__ import annotations

import enum
from typing import TypeAlias

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import DirectoryId, NodeId
from tidelog.model.voter_set import VoterSet
from tidelog.proto.transport.raft_messages import RaftMessage, VoterStanding

# --- in -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """Messages of one peer, in sending order.

    ``directory_id``: the directory that the peer's process named when it opened the stream. ``at``: the arrival time,
    if the engine gets them later; ``None`` for now.
    """

    peer: NodeId
    directory_id: DirectoryId
    messages: tuple[RaftMessage, ...]
    at: float | None = None


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The stream to a peer is up: messages may arrive. The peer named its directory and its standing."""

    peer: NodeId
    directory_id: DirectoryId
    standing: VoterStanding


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The stream to a peer broke: the last messages may be lost."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class PeerSuspected:
    """The stream from a peer broke: worth asking the others whether they still hear from it."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Propose:
    """A command decided under ``epoch``; its outcome names the ticket."""

    ticket: int
    epoch: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Compact:
    """``state`` is everything up to and including the entry at ``index``, which has ``term``."""

    index: int
    term: int
    state: bytes


@dataclass(frozen=True, slots=True)
class Bind:
    """No controller has release 0.1 any more: the node may leave its formats."""


EngineInput: TypeAlias = Received | LinkUp | LinkDown | PeerSuspected | Propose | Compact | Bind

# --- out ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """A message for a peer. Everything it refers to is durable."""

    peer: NodeId
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class Loaded:
    """A snapshot replaces all state."""

    index: int
    term: int
    state: bytes


@dataclass(frozen=True, slots=True)
class Committed:
    """The next committed entry; an empty payload if it carries no valid command."""

    index: int
    term: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class VotersChanged:
    """The current voters, committed or not, as far as this node knows. ``None``: it knows none."""

    voters: VoterSet | None
    standing: VoterStanding
    directory_id: DirectoryId
    """This node's directory."""


@dataclass(frozen=True, slots=True)
class Leading:
    term: int


@dataclass(frozen=True, slots=True)
class Resigned:
    term: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    leader: NodeId | None
    term: int


class ProposalOutcome(enum.Enum):
    COMMITTED = "committed"
    NOT_LEADING = "not leading"
    """Never was and never will be committed."""
    UNKNOWN = "unknown"
    BUSY = "busy"
    """The queue was full; the command never entered the log."""


@dataclass(frozen=True, slots=True)
class ProposalEnded:
    """``index`` is the entry's index if it was committed, else -1."""

    ticket: int
    outcome: ProposalOutcome
    index: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """The snapshot at ``index`` is durable; the journal now begins at ``first_index``."""

    index: int
    first_index: int


Effect: TypeAlias = (
    Send | Loaded | Committed | VotersChanged | Leading | Resigned | LeaderChanged | ProposalEnded | Compacted
)
