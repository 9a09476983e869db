"""Inputs and outputs of a step of the Raft engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.model.ids import DirectoryId, NodeId
from tidelog.model.voter_set import VoterSet
from tidelog.proto.transport.raft_messages import RaftMessage, VoterStanding

# --- in -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """Messages of one peer, in the order in which it sent them.

    ``directory_id``: the directory of the peer's process, as it said when it opened the stream. ``at``: the time at
    which they came, if the engine gets them later; ``None`` for now.
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
    """The stream from a peer broke: worth asking the others whether they still hear it."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Propose:
    """A command decided under ``epoch``; its outcome names the ticket."""

    ticket: int
    epoch: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Compact:
    """``state`` is everything up to and with the entry at ``index``, which has ``term``."""

    index: int
    term: int
    state: bytes


@dataclass(frozen=True, slots=True)
class Bind:
    """No controller is of release 0.1 any more: its formats may be left."""


EngineInput: TypeAlias = Received | LinkUp | LinkDown | PeerSuspected | Propose | Compact | Bind

# --- out ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """A message for a peer. Everything it speaks of is durable."""

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
    """The voters from here on, committed or not, as far as this node knows. ``None``: it knows of none."""

    voters: VoterSet | None
    standing: VoterStanding
    directory_id: DirectoryId
    """This node's."""


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
    """The queue was full; never entered the log."""


@dataclass(frozen=True, slots=True)
class ProposalEnded:
    """``index`` is that of the entry if it was committed, else -1."""

    ticket: int
    outcome: ProposalOutcome
    index: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """The snapshot at ``index`` is durable; the journal begins at ``first_index`` now."""

    index: int
    first_index: int


Effect: TypeAlias = (
    Send | Loaded | Committed | VotersChanged | Leading | Resigned | LeaderChanged | ProposalEnded | Compacted
)
