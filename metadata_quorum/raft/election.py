"""How one voter becomes a follower or a leader (H5, H9).

    follower  -- heard no leader for an election timeout, or a stream with it broke --> asks for pre-votes
    follower  -- a majority would vote for it ---------------------------------------> candidate (pysyncobj)
    candidate -- a majority voted for it --------------------------------------------> leader (pysyncobj)
    candidate -- no one won in time -------------------------------------------------> asks for pre-votes again
    leader    -- no majority answered for ``majority_lost_s`` -----------------------> follower (pysyncobj)
    any       -- a higher term, in anything but a pre-vote request ------------------> follower of that term

A pre-vote changes no state on either side, so a voter that cannot win never disturbs a leader. A voter that has reason
to believe in a working leader refuses it, like a vote.
"""

from __future__ import annotations

from typing import Final

from tidelog.metadata_quorum.raft.base import FOLLOWER, Peer, step_time
from tidelog.metadata_quorum.raft.sending import FAR, NEVER, EngineParts, RaftSending
from tidelog.metadata_quorum.raft.types import QuorumFailure
from tidelog.model.ids import NodeId
from tidelog.model.voter_set import Voter
from tidelog.proto.transport import raft_messages as rm

_QUICK_RETRIES: Final = 8
"""How many elections without a winner are repeated soon; later ones wait for election timeouts."""


class RaftElection(RaftSending):
    """The voting half of one voter."""

    def __init__(self, parts: EngineParts) -> None:
        self._heard_at = NEVER
        self._suspects_leader = False
        self._fruitless_elections = 0
        self._pre_vote: tuple[int, set[Voter]] | None = None
        """The requested term and the nodes that would vote for us in it."""
        self._pre_vote_won = False
        self._votes: tuple[int, set[Voter]] = (0, set())
        self._voting = False
        """Whether this node with its directory is one of the voters in force."""
        super().__init__(parts)

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        timing = self._timing
        if 0 < self._fruitless_elections < _QUICK_RETRIES:
            longest: float = min(timing.probe_retry_s * 2**self._fruitless_elections, timing.election_max_s)
            return longest * (0.5 + self._rng.random() / 2)
        return timing.election_min_s + (timing.election_max_s - timing.election_min_s) * self._rng.random()

    def _leader_is_alive(self) -> bool:
        """Return whether this voter has reason to believe in a working leader, itself included."""
        if self.is_leader:
            return step_time() < self._majority_lost_at()
        recently = step_time() - self._heard_at < self._timing.election_min_s
        return self.leader_id is not None and recently and not self._suspects_leader

    def _majority_lost_at(self) -> float:
        others = self._SyncObj__otherNodes
        needed = (len(others) + 1) // 2
        if needed == 0:
            return float("inf")
        answered = sorted((self._SyncObj__lastResponseTime[node] for node in others), reverse=True)
        return answered[needed - 1] + self._timing.majority_lost_s

    def _give_up_election(self) -> None:
        """Give up an election after a won pre-vote, because no link is left."""
        self._pre_vote_won = False
        self._SyncObj__raftElectionDeadline = step_time() + self._SyncObj__generateRaftTimeout()

    def _begin_pre_vote_if_due(self) -> None:
        """Ask for pre-votes when an election is due. Let pysyncobj start it only if it could be won."""
        others = self._SyncObj__otherNodes
        if not self._voting:
            self._SyncObj__raftElectionDeadline = FAR
        if self.is_leader or not others or self._pre_vote_won:
            return
        if self._SyncObj__raftElectionDeadline >= step_time():
            return
        self._fruitless_elections += 1
        self._SyncObj__raftElectionDeadline = step_time() + self._SyncObj__generateRaftTimeout()
        self._pre_vote = (self.term + 1, set())
        for node in others:
            self._send(node, rm.PreVoteRequest(self.term + 1, self.journal.last_index, self.journal.last_term))

    def _on_pre_vote_request(self, node: Peer, message: rm.PreVoteRequest) -> None:
        mine = (self.journal.last_term, self.journal.last_index)
        granted = (
            not self._leader_is_alive() and message.term > self.term and (message.last_term, message.last_index) >= mine
        )
        if granted and not self._pre_vote_won:
            timeout = self._SyncObj__generateRaftTimeout()
            later = step_time() + min(timeout, self._timing.probe_retry_s)
            self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, later)
        self._send(node, rm.PreVoteResult(message.term, self.term, granted))

    def _on_pre_vote_result(self, node: Peer, message: rm.PreVoteResult) -> None:
        if message.current_term > self.term:
            self._step_down(message.current_term)
        elif message.granted and self._pre_vote is not None and message.term == self._pre_vote[0] == self.term + 1:
            self._pre_vote[1].add(node.voter)
            voters = self.journal.voters
            if voters is not None and voters.has_majority((self.journal.me, *self._pre_vote[1])):
                self._pre_vote = None
                self._pre_vote_won = True
                self._SyncObj__raftElectionDeadline = step_time() - 1

    def _SyncObj__setCurrentTerm(self, term: int, vote: NodeId | None) -> None:  # noqa: N802
        if vote == self.identity.node_id:
            self._pre_vote_won = False  # the election that the pre-vote allowed has begun
            self.journal.vote_on(self.journal.directory_id)
        super()._SyncObj__setCurrentTerm(term, vote)

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        self._forget_all_under_way()
        self._fruitless_elections = 0
        self._suspects_leader = False
        self._SyncObj__raftNextIndex.clear()
        self._SyncObj__raftMatchIndex.clear()  # nor do an observer's earlier acknowledgements count in this term
        super()._SyncObj__onBecomeLeader()

    def _step_down(self, term: int) -> None:
        super()._step_down(term)
        self._pre_vote = None

    def _on_vote_request(self, node: Peer, message: rm.VoteRequest) -> None:
        if self._leader_is_alive():
            return
        journal = self.journal
        voted = (journal.getVotedForNodeId(), journal.vote_directory)
        if message.term == self.term and voted == node.voter and not self.is_leader:
            self._send(node, rm.VoteGranted(message.term))
            return
        journal.vote_on(node.voter.directory_id)
        self._to_pysyncobj(
            node,
            type="request_vote",
            term=message.term,
            last_log_index=message.last_index,
            last_log_term=message.last_term,
        )

    def _on_vote_granted(self, node: Peer, message: rm.VoteGranted) -> None:
        if self._votes[0] != self.term:
            self._votes = (self.term, set())
        voters = self.journal.voters
        if voters is None or node.voter not in voters:
            return
        if message.term == self.term and node.voter not in self._votes[1]:
            self._votes[1].add(node.voter)
            self._to_pysyncobj(node, type="response_vote", term=message.term)

    # --- following ---------------------------------------------------------------------------------

    def _accepts_leader(self, node: Peer, term: int) -> bool:
        """Follow the sender of an append if its term is current. Two leaders of one term stop the node."""
        if term < self.term:
            self._answer(node, success=False, reset=False)  # tells the old leader our term
            return False
        if term == self.term and self.is_leader:
            raise QuorumFailure(f"node {node.voter.node_id} and this node both lead in term {term}")
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = node
        self._heard_at = step_time()
        self._fruitless_elections = 0
        self._suspects_leader = False
        self._pre_vote = None
        self._SyncObj__raftElectionDeadline = step_time() + self._SyncObj__generateRaftTimeout()
        return True

    def _answer(self, node: Peer, *, success: bool, reset: bool, next_index: int | None = None) -> None:
        known = self.journal.last_index + 1 if next_index is None else next_index
        self._send(node, rm.AppendResult(self.term, known, success, reset))

    def _suspect(self, peer: NodeId) -> None:
        """Probe immediately, because a stream with the leader broke. This deposes no leader (see pre-vote)."""
        if not self.is_leader and peer == self.leader_id and not self._suspects_leader:
            self._suspects_leader = True
            self._probe_soon(peer)

    def _probe_soon(self, lost: NodeId | None) -> None:
        """Schedule the next probe earlier; voters take turns, so that they rarely split the vote."""
        if not self._voting:
            return
        turn = [voter for voter in self.identity.voters if voter != lost].index(self.identity.node_id)
        wait = self._timing.probe_spacing_s * (turn + self._rng.random() / 4)
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, step_time() + wait)
