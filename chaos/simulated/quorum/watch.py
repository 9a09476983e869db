"""Checks after every step of a voter, besides :class:`~tidelog.chaos.checkers.quorum.QuorumJudge`.

The judge sees what a quorum's users see. This module sees the engine too, and so finds the moment of a fault
rather than the loss that it may cause much later:

- *durable before it is said* (H3): a process that ends between two steps has lost nothing of the last one,
  neither term nor vote nor entry; one that ends within a step has not forgotten its vote;
- *acknowledges the same entries*: the leader of a term holds everything that a follower acknowledges or commits;
- *nothing is taken back*: within a term a follower keeps what it acknowledged to that term's leader;
- *votes for a log as good*: nobody votes for a candidate whose log is older or shorter than its own;
- *elected by a majority*: a leader had received enough votes in its term, each counted once;
- *counts what was said to it*: what a leader counts for a follower, that follower acknowledged in this term;
- *committed by a majority*: when a leader commits an entry, it is of its own term, and a majority hold it;
- *no leader alone*: a voter without a majority's answer for longer than allowed does not lead;
- *sent once*: on one stream a leader does not resend an entry unless asked;
- *caught up before it leads*: a voter that learns that it leads has everything committed in earlier terms;
- *voters by the log*: the set in force is that of the last entry that holds one, or the one in force before the first;
- *one change of voters at a time*: a leader appends one that changes one voter, after an entry of its own
  term is committed and the change before it; and an admitted voter has everything that is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.chaos.checkers.quorum import QuorumJudge
from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.engine import RaftEngine
from tidelog.metadata_quorum.raft.journal import VOTERS_COMMAND, JournalEntry, RaftJournal
from tidelog.metadata_quorum.raft.types import QuorumTiming
from tidelog.model.ids import DirectoryId, NodeId
from tidelog.model.voter_set import Voter, VoterSet
from tidelog.proto.transport import raft_messages as rm

CLOCK_GRAIN_S: Final = 1e-3
"""Deadlines are kept only to this precision."""


class Violation(AssertionError):
    """Something happened that must never happen."""


@dataclass(slots=True)
class _Seen:
    """The known state of one voter."""

    voter: Voter | None = None
    journal: RaftJournal | None = None
    """The journal of the running process, or of the last one."""
    durable: tuple[int, NodeId | None, int, int] | None = None
    """Term, vote, last index and its term after the last step that returned."""
    in_step: bool = False
    """The last process ended within a step, or in recovery."""
    claim: tuple[int, int] = (0, 0)
    """Term, and the last index that was acknowledged to its leader."""
    leads_in: int = 0
    commit: int = 0
    first: int = 1
    term: int = 0
    syncs: int = -1
    voters_index: int = 0
    answered_at: dict[Voter, float] = field(default_factory=dict)
    sent: dict[NodeId, int] = field(default_factory=dict)
    """Peer → the last index sent on this stream, for a leader."""


def _is_majority(found: Iterable[Voter | None], voters: VoterSet) -> bool:
    return len(set(found) & set(voters.voters)) >= len(voters.voters) // 2 + 1


def _voters_of(journal: RaftJournal) -> VoterSet:
    if journal.voters is None:
        raise Violation(f"voters by the log: {journal.me} leads and knows of no voters")
    return journal.voters


def _entries(journal: RaftJournal) -> list[JournalEntry]:
    return journal.entries_from(journal.first_index, len(journal), 1 << 62)


class QuorumWatch:
    """Looks at engines before and after each step. Methods raise :class:`Violation`."""

    def __init__(self, voters: Sequence[NodeId], timing: QuorumTiming, events: Counter[str]) -> None:
        """``events`` counts the quorum's events."""
        self.judge = QuorumJudge()
        self.events = events
        self._alone_s = timing.majority_lost_s + CLOCK_GRAIN_S
        self._seen = {node: _Seen() for node in voters}
        self._founded: VoterSet | None = None
        self._gone: dict[Voter, _Seen] = {}
        """Voters that lost their directory, in their last state."""
        self._sets: dict[int, VoterSet] = {}
        """Index from which a set of voters is in force → the set, as far as committed."""
        self._votes: dict[tuple[int, Voter], set[Voter]] = {}
        self._heard_votes: dict[tuple[int, Voter], set[Voter]] = {}
        self._requests: dict[tuple[NodeId, int], DirectoryId] = {}
        """Candidate and term → the directory from which it last asked for votes."""
        self._asked: dict[tuple[int, Voter], tuple[int, int]] = {}
        """Term and candidate → term and index of its last entry, as given in its vote requests."""
        self._epochs: dict[bytes, int] = {}
        self.calm: tuple[NodeId, int] | None = None
        """The leader and its term, if nothing that happens may depose it."""

    # --- processes -----------------------------------------------------------------------------------

    def started(self, node: NodeId, engine: RaftEngine, torn: bool) -> None:
        """Check a recovered process: it must start where the last one stopped."""
        seen = self._seen[node]
        self.judge.started(node)
        journal = engine.journal
        found = (engine.term, journal.getVotedForNodeId(), journal.last_index, journal.last_term)
        if engine._SyncObj__votedForNodeId != found[1]:
            raise Violation(f"durable before it is said: node {node} does not go by the vote in its journal")
        before = seen.durable
        if before is not None:
            if not seen.in_step and found != before:
                raise Violation(
                    f"durable before it is said: node {node} was at {before} (term, vote, last index, its term) "
                    f"when it ended and came back at {found}"
                )
            if found[0] < before[0] or (found[0] == before[0] and before[1] is not None and found[1] != before[1]):
                raise Violation(
                    f"durable before it is said: node {node} had term {before[0]} and vote {before[1]} and came back "
                    f"with {found[:2]}"
                )
            if found[1] is not None:
                self.events["vote-restored"] += 1
            self.events["restart"] += 1
        if torn:
            self.events["torn-tail-recovered"] += 1
        if seen.claim[0] == engine.term and journal.last_index < seen.claim[1]:
            raise Violation(f"nothing is taken back: node {node} came back without entry {seen.claim[1]}")
        self._seen[node] = _Seen(
            journal.me, journal, found, False, seen.claim, first=journal.first_index, term=engine.term
        )
        self._check_voters(node, engine)
        self._judged(self.judge.holds(node, journal))

    def wiped(self, node: NodeId) -> None:
        """Note that a node that is down has lost its directory: its next process is another voter."""
        seen = self._seen[node]
        if seen.voter is not None:
            self._gone[seen.voter] = seen
        self._seen[node] = _Seen()

    def intact(self, without: NodeId) -> bool:
        """Return whether a majority of every set that may be in force would be whole if one more node lost its
        directory."""
        left = {seen.voter for node, seen in self._seen.items() if node != without and seen.voter is not None}
        known = [seen.journal.voters for seen in self._seen.values() if seen.journal is not None]
        return all(voters is not None and _is_majority(left, voters) for voters in known)

    def _of(self, voter: Voter) -> _Seen | None:
        seen = self._seen[voter.node_id]
        return seen if seen.voter == voter else self._gone.get(voter)

    def ended(self, node: NodeId, *, in_step: bool) -> None:
        """Note that a process has ended. ``in_step``: the effects of its last step may be durable or not."""
        seen = self._seen[node]
        seen.in_step = seen.in_step or in_step
        seen.leads_in = 0

    # --- steps -----------------------------------------------------------------------------------------

    def stepped(
        self,
        node: NodeId,
        engine: RaftEngine,
        inputs: Iterable[ev.EngineInput],
        effects: Iterable[ev.Effect],
        local_now: float,
    ) -> bool:
        """Check a step that returned ``effects``, which are still to be executed. Return whether it won an election."""
        seen = self._seen[node]
        journal = engine.journal
        term = engine.term
        seen.journal = journal
        leads = engine.is_leader
        elected = leads and seen.leads_in != term
        for given in inputs:
            if isinstance(given, ev.Received):
                for message in given.messages:
                    if isinstance(message, rm.VoteRequest):
                        self._requests[given.peer, message.term] = given.directory_id
        if seen.leads_in:
            self._hear_answers(node, engine, seen, inputs, local_now)
        else:
            self._hear_votes(journal.me, term, inputs)
        if elected:
            self._elected(node, engine, seen, local_now)
        elif not leads:
            seen.leads_in = 0
        for effect in effects:
            if isinstance(effect, ev.Send):
                self._said(node, seen, effect.peer, effect.message)
        last = (journal.last_index, journal.last_term)
        if journal.syncs != seen.syncs or seen.first != journal.first_index:
            self._journal_changed(node, engine, seen, last)
        if seen.claim[0] == term and last[0] < seen.claim[1]:
            raise Violation(
                f"nothing is taken back: node {node} acknowledged entry {seen.claim[1]} in term {term} and ends "
                f"at {last[0]} now"
            )
        if leads:
            if engine.commit_index > seen.commit:
                self._committed(node, engine, engine.commit_index)
            self._not_alone(node, engine, seen, local_now)
            if journal.voters_index > seen.voters_index and journal.term_at(journal.voters_index) == term:
                if seen.voters_index:
                    self._voters_appended(node, engine, seen.voters_index)
                else:
                    self.events["voters-written"] += 1
        elif engine.commit_index > seen.commit and engine.leader_id is not None:
            self._check_same(node, journal, engine.leader_id, term, engine.commit_index, "commits")
        seen.commit = engine.commit_index
        seen.voters_index = journal.voters_index
        if term != seen.term:
            seen.term = term
            self.events["term-change"] += 1
        seen.durable = (term, journal.getVotedForNodeId(), *last)
        calm = self.calm
        if calm is not None and node == calm[0] and (not leads or term != calm[1]):
            raise Violation(f"a minority in trouble deposed node {node}, leader of term {calm[1]}")
        return elected

    def _journal_changed(self, node: NodeId, engine: RaftEngine, seen: _Seen, last: tuple[int, int]) -> None:
        journal = engine.journal
        seen.syncs = journal.syncs
        if seen.first != journal.first_index:
            seen.first = journal.first_index
            self.events["compaction"] += 1
        before = seen.durable
        if before is not None and before[2] >= journal.first_index and journal.term_at(before[2]) != before[3]:
            self.events["truncation"] += 1
        self._check_voters(node, engine)
        self._judged(self.judge.holds(node, journal))

    def _hear_answers(
        self, node: NodeId, engine: RaftEngine, seen: _Seen, inputs: Iterable[ev.EngineInput], local_now: float
    ) -> None:
        term = seen.leads_in
        for given in inputs:
            if isinstance(given, ev.Received):
                if engine.is_leader and engine.term == term:
                    self._check_counted(node, engine, Voter(given.peer, given.directory_id))
                for message in given.messages:
                    if isinstance(message, rm.AppendResult | rm.SnapshotResult) and message.term == term:
                        seen.answered_at[Voter(given.peer, given.directory_id)] = local_now
                        if isinstance(message, rm.AppendResult) and (message.reset or not message.success):
                            seen.sent.pop(given.peer, None)
            elif isinstance(given, ev.LinkUp | ev.LinkDown):
                seen.sent.pop(given.peer, None)

    def _hear_votes(self, candidate: Voter, term: int, inputs: Iterable[ev.EngineInput]) -> None:
        for given in inputs:
            if isinstance(given, ev.Received):
                for message in given.messages:
                    if isinstance(message, rm.VoteGranted) and message.term == term:
                        voter = Voter(given.peer, given.directory_id)
                        self._heard_votes.setdefault((term, candidate), set()).add(voter)

    def _check_counted(self, node: NodeId, engine: RaftEngine, peer: Voter) -> None:
        counted = engine._SyncObj__raftMatchIndex.get(engine._peer(peer), 0)
        said = self._of(peer)
        claim = (0, 0) if said is None else said.claim
        if claim[0] <= engine.term and counted > (claim[1] if claim[0] == engine.term else 0):
            raise Violation(
                f"counts what was said to it: node {node} counts {peer} up to {counted} in term {engine.term}; "
                f"the last that it acknowledged is {claim[1]} in term {claim[0]}"
            )

    def _elected(self, node: NodeId, engine: RaftEngine, seen: _Seen, local_now: float) -> None:
        term = engine.term
        self.events["election"] += 1
        seen.leads_in = term
        me, voters = engine.journal.me, _voters_of(engine.journal)
        seen.answered_at = dict.fromkeys((voter for voter in voters.voters if voter != me), local_now)
        seen.sent = {}
        votes = {me} | (self._votes.get((term, me), set()) & self._heard_votes.get((term, me), set()))
        if not _is_majority(votes, voters):
            raise Violation(
                f"elected by a majority: node {node} leads in term {term} by the votes of "
                f"{', '.join(map(str, sorted(votes)))}; the voters are {voters}"
            )
        self._judged(self.judge.leads(node, term, engine.journal))

    def _said(self, node: NodeId, seen: _Seen, peer: NodeId, message: rm.RaftMessage) -> None:
        if isinstance(message, rm.Append):
            if message.entries:
                before = seen.sent.get(peer, 0)
                first = message.previous_index + 1
                if first <= before and seen.leads_in == message.term:
                    raise Violation(f"sent once: node {node} sent entries from {first} on again after {before}")
                seen.sent[peer] = message.previous_index + len(message.entries)
        elif isinstance(message, rm.AppendResult):
            if message.success:
                claim = (message.term, message.next_index - 1)
                # Within one step a newer leader may have replaced the acknowledgement to the older one.
                if seen.journal is not None and seen.journal.getCurrentTerm() == message.term:
                    self._check_same(node, seen.journal, peer, *claim, "acknowledges")
                seen.claim = max(seen.claim, claim)
        elif isinstance(message, rm.VoteGranted):
            assert seen.journal is not None
            candidate = Voter(peer, self._requests[peer, message.term])
            votes = self._votes.setdefault((message.term, candidate), set())
            if seen.journal.me not in votes:
                votes.add(seen.journal.me)
                self._voted(seen.journal.me, seen, candidate, message.term)
        elif isinstance(message, rm.VoteRequest):
            assert seen.journal is not None
            me = seen.journal.me
            self._votes.setdefault((message.term, me), set()).add(me)
            self._asked[message.term, me] = (message.last_term, message.last_index)
            self._judged(self.judge.voted(me, message.term, me))

    def _check_same(self, node: NodeId, journal: RaftJournal, leader: NodeId, term: int, index: int, what: str) -> None:
        other = self._seen[leader]
        if other.leads_in != term or other.journal is None:
            return
        mine, theirs = journal.term_at(index), other.journal.term_at(index)
        if index > other.journal.last_index or (mine is not None and theirs is not None and mine != theirs):
            raise Violation(
                f"acknowledges what is the same: node {node} {what} entry {index} of term {mine}; node {leader}, "
                f"leader of term {term}, has one of term {theirs} there"
            )

    def _voted(self, voter: Voter, seen: _Seen, candidate: Voter, term: int) -> None:
        self._judged(self.judge.voted(voter, term, candidate))
        before = seen.durable  # a vote may come before the other effects of the step
        asked = self._asked.get((term, candidate), (0, 0))
        if before is not None and (before[3], before[2]) > asked:
            raise Violation(
                f"votes for a log as good: {voter}, whose log ends at entry {before[2]} of term {before[3]}, votes "
                f"for {candidate}, whose ends at {asked[1]} of term {asked[0]}"
            )

    def _committed(self, node: NodeId, engine: RaftEngine, index: int) -> None:
        term = engine.journal.term_at(index)
        if term != engine.term:
            raise Violation(
                f"committed by a majority: node {node}, leader of term {engine.term}, commits up to entry {index} of "
                f"term {term}"
            )
        voters = _voters_of(engine.journal)
        holders = {voter for voter in voters.voters if self._holds(voter, index, term)}
        if not _is_majority(holders, voters):
            raise Violation(
                f"committed by a majority: node {node} commits entry {index} of term {term}, held by "
                f"{', '.join(map(str, sorted(holders)))}; the voters are {voters}"
            )
        known = engine.journal.voters_at(index)
        if known is not None:
            self._sets.setdefault(*known)

    def _holds(self, voter: Voter, index: int, term: int) -> bool:
        seen = self._of(voter)
        journal = None if seen is None else seen.journal
        return journal is not None and (journal.term_at(index) == term or index < journal.first_index)

    def _check_voters(self, node: NodeId, engine: RaftEngine) -> None:
        """Check that the set in force matches the log, and is the one that the engine counts over."""
        journal = engine.journal
        changes = [command for command, _, _ in _entries(journal) if command[:1] == VOTERS_COMMAND]
        if changes:
            expected: VoterSet | None = VoterSet.decode(changes[-1][1:])
        else:
            before = [index for index in self._sets if 0 < index <= journal.first_index]
            self._founded = self._founded or journal.voters
            founded = None if journal.voters is None else self._founded
            expected = self._sets[max(before)] if before else founded
        if journal.voters != expected:
            raise Violation(f"voters by the log: node {node} goes by {journal.voters}, its log says {expected}")
        counted = {peer.voter for peer in engine._SyncObj__otherNodes}
        if counted != set(() if expected is None else expected.voters) - {journal.me}:
            raise Violation(f"voters by the log: node {node} counts over {sorted(counted)}, its log says {expected}")

    def _voters_appended(self, node: NodeId, engine: RaftEngine, before: int) -> None:
        """Check a change of voters that a leader appended to its log."""
        journal, index = engine.journal, engine.journal.voters_index
        old, new = journal.voters_at(index - 1), _voters_of(journal)
        if old is None:
            raise Violation(f"one change of voters at a time: node {node} appended the first at {index}")
        changed = set(old[1].voters) ^ set(new.voters)
        if len(changed) > 1 or old[1].seats != new.seats:
            raise Violation(f"one change of voters at a time: node {node} went from {old[1]} to {new}")
        commit = engine.commit_index
        if before > commit or journal.term_at(commit) != engine.term:
            raise Violation(
                f"one change of voters at a time: node {node} appended one at {index} in term {engine.term}; the one "
                f"before is at {before}, committed is {commit} of term {journal.term_at(commit)}"
            )
        self.events["voter-left" if changed - set(new.voters) else "voter-admitted"] += 1
        for newcomer in changed & set(new.voters):
            if not self._holds(newcomer, commit, journal.term_at(commit) or 0):
                raise Violation(
                    f"one change of voters at a time: node {node} admits {newcomer}, which has not everything up to "
                    f"{commit}"
                )

    def _not_alone(self, node: NodeId, engine: RaftEngine, seen: _Seen, local_now: float) -> None:
        others = [voter for voter in _voters_of(engine.journal).voters if voter != engine.journal.me]
        needed = (len(others) + 1) // 2
        if needed:
            answered = sorted((seen.answered_at.get(voter, float("-inf")) for voter in others), reverse=True)
            if local_now - answered[needed - 1] > self._alone_s:
                raise Violation(
                    f"no leader alone: node {node} leads in term {seen.leads_in}, and no majority answered for "
                    f"{local_now - answered[needed - 1]:.3f} s"
                )

    # --- answers to users -----------------------------------------------------------------------------

    def proposed(self, payload: bytes, epoch: int) -> None:
        self.judge.proposed(payload)
        self._epochs[payload] = epoch

    def committed(self, node: NodeId, index: int, term: int, payload: bytes, node_term: int) -> None:
        self._judged(self.judge.committed(node, index, term, payload, node_term))
        if payload and self._epochs.get(payload, term) != term:
            raise Violation(
                f"valid in its epoch: {payload[:40]!r}, decided under epoch {self._epochs[payload]}, is committed in "
                f"term {term}"
            )

    def loaded(self, node: NodeId, index: int, digest: bytes) -> None:
        self._judged(self.judge.loaded(node, index, digest))

    def told_to_lead(self, node: NodeId, term: int) -> None:
        judge = self.judge
        heard = judge.applied(node)[0]
        for index in range(heard + 1, judge.last_committed + 1):
            found = judge.command_at(index)
            if found is not None and found[0] < term:
                raise Violation(
                    f"heard before it leads: node {node} leads in term {term}, has heard of {heard}, and entry {index} "
                    f"of term {found[0]} is committed"
                )

    def answered(self, payload: bytes, outcome: ev.ProposalOutcome, index: int) -> None:
        """Check the answer to a proposer."""
        match outcome:
            case ev.ProposalOutcome.COMMITTED:
                self._judged(self.judge.acknowledged(payload, index))
            case ev.ProposalOutcome.UNKNOWN:
                self.judge.outcome_unknown(payload)
            case _:
                self._judged(self.judge.refused(payload))

    def finished(self, nodes: Iterable[NodeId]) -> None:
        self._judged(self.judge.finished(nodes))

    @staticmethod
    def _judged(found: list[str]) -> None:
        if found:
            raise Violation("; ".join(found[:3]))
