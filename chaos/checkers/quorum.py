"""Judges of a Raft quorum: the rules that hold whatever happens to voters, links and disks.

:class:`QuorumJudge` receives each action of a voter as it happens, and returns violations. The rules and
their names are those of Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm",
figure 3, and the meaning of an answer to a proposer:

=====================  ====================================================================================
election safety        at most one leader in a term; a voter votes for one candidate in a term
log matching           two logs with an entry of the same index and term are the same up to that entry
leader completeness    a leader of a term holds every entry that was committed in an earlier term
state machine safety   one command at each index, permanently and for every voter; received in order, without gap
snapshot is prefix     a state that a voter loads is the result of all entries up to its index
acknowledged survives  a command that was answered as committed stays at the answered index permanently
refused stays out      a command that was answered as not done is never committed
at most once           a command is at one index; there is none that nobody proposed
=====================  ====================================================================================

The cost of a call is proportional to what is new since the last one for the same voter.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidelog.model.ids import NodeId
from tidelog.model.voter_set import Voter

_HEAD: Final = struct.Struct("<QQ")
_NO_DIGEST: Final = bytes(32)
_NO_CHAIN: Final = 0
"""Nobody saw what was before the first entry of this log: it is followed, and judged where other logs are known."""


class QuorumLog(Protocol):
    """A voter's log, in memory: entries ``(command, index, term)`` without gap.

    The first entry may be the anchor of a snapshot: its index and term count, its command does not.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> tuple[bytes, int, int]: ...


def digest_after(digest: bytes, index: int, term: int, payload: bytes) -> bytes:
    """Return the state after an entry, from the state before: a hash chain over everything committed."""
    return hashlib.sha256(digest + _HEAD.pack(index, term) + payload).digest()


@dataclass(slots=True)
class _Known:
    """The known part of one voter's log: its entries and, for each, a hash over all up to it."""

    entries: list[tuple[bytes, int, int]] = field(default_factory=list)
    chains: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Commit:
    term: int
    payload: bytes
    committed_in: int
    """Upper bound of the term in which it was committed: the term of the voter that first reported it."""


class QuorumJudge:
    """The history of one quorum. Commands are distinguished by their bytes: propose each only once.

    ``first_index`` is the index before the first entry that voters receive, ``state`` the digest there.
    """

    def __init__(self, first_index: int = 1, state: bytes = _NO_DIGEST) -> None:
        self._origin = (first_index, state)
        self._applied: dict[NodeId, tuple[int, bytes]] = {}
        self._digests: dict[int, bytes] = {first_index: state}
        self._commits: dict[int, _Commit] = {}
        self._last_committed = first_index
        self._index_of: dict[bytes, int] = {}
        self._leaders: dict[int, NodeId] = {}
        self._votes: dict[tuple[Voter, int], Voter] = {}
        self._logs: dict[NodeId, _Known] = {}
        self._chain_of: dict[tuple[int, int], int] = {}
        self._proposed: set[bytes] = set()
        self._acknowledged: dict[bytes, int] = {}
        self._refused: set[bytes] = set()
        self._unknown: set[bytes] = set()

    # --- what is known -----------------------------------------------------------------------------

    def applied(self, node: NodeId) -> tuple[int, bytes]:
        """Return the index and digest of everything that a voter's process has received."""
        return self._applied.get(node, self._origin)

    def command_at(self, index: int) -> tuple[int, bytes] | None:
        """Return term and payload of the committed entry at an index; ``None`` if nobody received one."""
        found = self._commits.get(index)
        return None if found is None else (found.term, found.payload)

    @property
    def last_committed(self) -> int:
        """Return the highest index that any voter knows to be committed."""
        return self._last_committed

    @property
    def terms_led(self) -> int:
        """Return how many terms had a leader."""
        return len(self._leaders)

    def outcome_of(self, payload: bytes) -> str:
        """Return ``acknowledged``, ``refused``, ``unknown`` or, while it is in progress, ``open``."""
        if payload in self._acknowledged:
            return "acknowledged"
        if payload in self._refused:
            return "refused"
        return "unknown" if payload in self._unknown else "open"

    # --- what voters do ----------------------------------------------------------------------------

    def started(self, node: NodeId) -> None:
        """Note that a voter's process starts: it receives everything again."""
        self._applied[node] = self._origin
        self._logs.pop(node, None)

    def voted(self, voter: Voter, term: int, candidate: Voter) -> list[str]:
        """Judge a voter's vote, which may be for itself. Another directory is another voter and another candidate."""
        known = self._votes.setdefault((voter, term), candidate)
        if known != candidate:
            return [f"election safety: {voter} voted for {known} and {candidate} in term {term}"]
        return []

    def leads(self, node: NodeId, term: int, log: QuorumLog | None = None) -> list[str]:
        """Judge that a voter is leader of a term. Call it as soon as it is and as often as you like; ``log`` counts at
        the first call of a term."""
        known = self._leaders.get(term)
        if known is None:
            self._leaders[term] = node
            return [] if log is None else self._completeness(node, term, log)
        if known != node:
            return [f"election safety: nodes {known} and {node} both lead in term {term}"]
        return []

    def holds(self, node: NodeId, log: QuorumLog, *, whole: bool = False) -> list[str]:
        """Judge a voter's current log. Entries that are the same objects as at the last call end the backward
        comparison; ``whole`` compares all of them."""
        known = self._logs.setdefault(node, _Known())
        if not len(log):
            known.entries.clear()
            known.chains.clear()
            return []
        entries, chains = known.entries, known.chains
        first = log[0][1]
        if entries and entries[0][1] != first:
            dropped = first - entries[0][1]
            if 0 < dropped < len(entries) and entries[dropped][2] == log[0][2]:
                del entries[:dropped], chains[:dropped]
            else:
                entries.clear()
                chains.clear()
        same = 0 if whole else min(len(entries), len(log))
        while same and entries[same - 1] is not log[same - 1] and entries[same - 1] != log[same - 1]:
            same -= 1
        if same == len(entries) == len(log):
            return []
        del entries[same:], chains[same:]
        return self._learn(node, log, known, same)

    def committed(self, node: NodeId, index: int, term: int, payload: bytes, node_term: int) -> list[str]:
        """Judge the next committed entry that a voter, whose own term is ``node_term``, received. An empty payload is a
        leader's own entry and nobody's command."""
        found = []
        before, digest = self.applied(node)
        if index != before + 1:
            found.append(f"state machine safety: node {node} heard of {index} after {before}")
        known = self._commits.get(index)
        if known is None:
            found += self._first_commit(node, index, _Commit(term, payload, max(term, node_term)))
        elif (known.term, known.payload) != (term, payload):
            found.append(
                f"state machine safety: two commands at {index}: {known.payload!r} of term {known.term} and, "
                f"on node {node}, {payload!r} of term {term}"
            )
        digest = digest_after(digest, index, term, payload)
        if self._digests.setdefault(index, digest) != digest and not found:
            found.append(f"state machine safety: node {node} has another state at {index} than others had")
        self._applied[node] = (index, digest)
        return found

    def loaded(self, node: NodeId, index: int, digest: bytes) -> list[str]:
        """Judge a snapshot that replaced a voter's state and claims to contain everything up to ``index``."""
        found = []
        expected = self._digests.get(index)
        if expected is None:
            found.append(f"snapshot is prefix: node {node} loaded a state at {index}, where nobody ever was")
        elif expected != digest:
            found.append(f"snapshot is prefix: node {node} loaded a state at {index} that nobody had there")
        before = self.applied(node)[0]
        if index < before:
            found.append(f"snapshot is prefix: node {node} went back from {before} to {index}")
        self._applied[node] = (index, digest)
        return found

    # --- answers to proposers -------------------------------------------------------------------------

    def proposed(self, payload: bytes) -> None:
        """Note that a command is proposed. One that was refused may be proposed again."""
        self._proposed.add(payload)
        self._refused.discard(payload)

    def acknowledged(self, payload: bytes, index: int) -> list[str]:
        """Judge an answer to a proposer: its command is committed at an index."""
        self._acknowledged[payload] = index
        known = self._commits.get(index)
        if known is None or known.payload != payload:
            return [f"acknowledged survives: {payload!r} was acknowledged at {index} and is not there"]
        return []

    def refused(self, payload: bytes) -> list[str]:
        """Judge an answer to a proposer: its command is not done and never will be."""
        self._refused.add(payload)
        return self._refusal_broken(payload)

    def outcome_unknown(self, payload: bytes) -> None:
        """Note an answer to a proposer: its command may or may not be done. Nothing follows from it."""
        self._unknown.add(payload)

    # --- at the end --------------------------------------------------------------------------------

    def finished(self, nodes: Iterable[NodeId] = ()) -> list[str]:
        """Judge the whole history; ``nodes`` are voters that must have reached the same state."""
        found = []
        for payload, index in self._acknowledged.items():
            known = self._commits.get(index)
            if known is None or known.payload != payload:
                found.append(f"acknowledged survives: {payload!r}, acknowledged at {index}, is lost")
        for payload in sorted(self._refused):
            found += self._refusal_broken(payload)
        states = {node: self.applied(node) for node in nodes}
        if len(set(states.values())) > 1:
            places = ", ".join(f"node {node} at {index}" for node, (index, _) in sorted(states.items()))
            found.append(f"state machine safety: voters did not come to the same state: {places}")
        return found

    # --- steps -------------------------------------------------------------------------------------

    def _first_commit(self, node: NodeId, index: int, commit: _Commit) -> list[str]:
        found = []
        self._commits[index] = commit
        before = self._commits.get(index - 1)
        if before is not None and before.term > commit.term:
            found.append(
                f"log matching: terms fall from {before.term} to {commit.term} in the committed log at {index}"
            )
        self._last_committed = max(self._last_committed, index)
        payload = commit.payload
        if not payload:
            return found
        if payload not in self._proposed:
            found.append(f"at most once: {payload!r} is committed at {index} and nobody proposed it")
        other = self._index_of.setdefault(payload, index)
        if other != index:
            found.append(f"at most once: {payload!r} is committed at {other} and {index}")
        if payload in self._refused:
            found.append(f"refused stays out: {payload!r} was refused and node {node} has it committed at {index}")
        return found

    def _refusal_broken(self, payload: bytes) -> list[str]:
        index = self._index_of.get(payload)
        if payload in self._refused and index is not None:
            return [f"refused stays out: {payload!r} was refused and is committed at {index}"]
        return []

    def _learn(self, node: NodeId, log: QuorumLog, known: _Known, start: int) -> list[str]:
        entries, chains, chain_of = known.entries, known.chains, self._chain_of
        for position in range(start, len(log)):
            entry = log[position]
            command, index, term = entry
            expected = chain_of.get((index, term), _NO_CHAIN)
            if position == 0:
                chain = expected
                if index <= self._origin[0]:
                    chain = chain_of.setdefault((index, term), hash((index, term)))
            else:
                before = entries[-1]
                if index != before[1] + 1 or term < before[2]:
                    return [f"log matching: node {node} has {before[1:]} before {(index, term)} (index, term)"]
                chain = expected if chains[-1] == _NO_CHAIN else hash((chains[-1], term, command))
                if chain != _NO_CHAIN and chain_of.setdefault((index, term), chain) != chain:
                    return [
                        f"log matching: node {node} has an entry of index {index} and term {term} that differs "
                        f"from another voter's, it or something before it"
                    ]
            entries.append(entry)
            chains.append(chain)
        return []

    def _completeness(self, node: NodeId, term: int, log: QuorumLog) -> list[str]:
        first = log[0][1] if len(log) else self._origin[0] + 1
        for index in range(max(first, self._origin[0] + 1), self._last_committed + 1):
            commit = self._commits.get(index)
            if commit is None or commit.committed_in >= term:
                continue
            position = index - first
            if position >= len(log):
                return [
                    f"leader completeness: node {node} leads in term {term} without entry {index}, committed "
                    f"in term {commit.committed_in} or before"
                ]
            if log[position][2] != commit.term:
                return [
                    f"leader completeness: node {node} leads in term {term} with an entry of term "
                    f"{log[position][2]} at {index}, where one of term {commit.term} is committed"
                ]
        return []
