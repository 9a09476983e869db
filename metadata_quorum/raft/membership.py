"""The voters: how a quorum is founded, and how a directory that lost its place regains one (KIP-853).

    fresh        -- the founder has heard all others, and all are fresh ------> founded: it wrote the voters
    fresh        -- a founded controller says that this directory votes ------> founded
    fresh        -- another one knows voters, or has an old log, without us --> refused; told to join: observer
    old          -- no controller has release 0.1 any more -------------------> founded
    observer     -- has everything committed, and its seat is vacant ---------> voter, once a leader appended it
    voter        -- a leader gave its seat to a newcomer ---------------------> observer

The *founder* is the controller with the lowest id. It alone decides on the first set, once: with the directory of every
controller; all must be connected, and new. So no emptied directory takes part in a founding while a better informed
controller exists.

An *old* directory holds a log that release 0.1 started. It votes together with controllers of that release, as a member
of the set that :func:`~tidelog.model.voter_set.directory_of_seat` gives, and writes and sends only what they can read:
no set of voters enters the log, so none changes.

A leader changes the set by the rules of Raft's single-server changes: one change at a time, as the log shows; none
before an entry of its own term is committed (Ongaro's correction of 2015); a new voter is admitted once it has
everything. An observer answers vote requests like any other; the candidate's set decides whether its votes count.
"""

from __future__ import annotations

from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.base import Peer, step_time
from tidelog.metadata_quorum.raft.election import RaftElection
from tidelog.metadata_quorum.raft.journal import VOTERS_COMMAND
from tidelog.metadata_quorum.raft.sending import FAR, EngineParts
from tidelog.metadata_quorum.raft.types import (
    QuorumConfigurationError,
)
from tidelog.model.ids import NodeId
from tidelog.model.voter_set import VoterSet
from tidelog.proto.transport import raft_messages as rm


class RaftMembership(RaftElection):
    """The part of a controller that tracks the voters."""

    def __init__(self, parts: EngineParts) -> None:
        self._met: dict[NodeId, tuple[Peer, rm.VoterStanding]] = {}
        """Each other controller's directory at the last opening of the stream to it."""
        self._in_force: VoterSet | None = None
        self._led_term = 0
        super().__init__(parts)

    @property
    def standing(self) -> rm.VoterStanding:
        """This directory's standing in its quorum."""
        if self.journal.is_old:
            return rm.VoterStanding.OLD
        return rm.VoterStanding.FRESH if self.journal.voters is None else rm.VoterStanding.FOUNDED

    @property
    def _takes_part(self) -> bool:
        """Whether this node follows leaders and answers: only once it knows its own quorum."""
        return self.journal.voters is not None or self.journal.may_join

    def _follow_voters(self) -> None:
        """Follow the set now in force. Called after every possible change of the log."""
        voters = self.journal.voters
        if voters is self._in_force:
            return
        self._in_force = voters
        self._arrange()
        voting = voters is not None and self.journal.me in voters
        if voting and not self._voting:
            alone = not self._SyncObj__otherNodes
            wait = -1.0 if alone else self._SyncObj__generateRaftTimeout()
            self._SyncObj__raftElectionDeadline = step_time() + wait
        elif not voting:
            self._SyncObj__raftElectionDeadline = FAR
        self._voting = voting
        self._report_voters()

    def _tell_standing(self) -> None:
        """Report this directory's standing, once, after recovery."""
        if self.journal.voters is None:
            self._report_voters()
        self._follow_voters()

    def _report_voters(self) -> None:
        self._effects.append(ev.VotersChanged(self.journal.voters, self.standing, self.journal.directory_id))

    # --- founding ------------------------------------------------------------------------------------

    def _meet(self, node: Peer, standing: rm.VoterStanding) -> None:
        """Note that a stream to another controller is up."""
        self._met[node.voter.node_id] = (node, standing)
        if self.standing is rm.VoterStanding.FOUNDED:
            if standing is rm.VoterStanding.FRESH:
                self._tell_voters(node)
        elif self.standing is rm.VoterStanding.FRESH and standing is rm.VoterStanding.OLD and not self.journal.may_join:
            raise self._refused(f"{node.voter} has the log of a quorum that this directory is not a part of")
        else:
            self._found_if_complete()

    def _found_if_complete(self) -> None:
        """Decide on the voters, if that is this node's task and all controllers are connected."""
        founder, *others = self.identity.voters
        if self.identity.node_id != founder or self.journal.voters is not None:
            return
        met = [self._met[other] for other in others if other in self._met and self._met[other][0] in self._links]
        if len(met) < len(others) or any(standing is not self.standing for _, standing in met):
            return
        self.journal.found(VoterSet((self.journal.me, *(node.voter for node, _ in met))))
        self._follow_voters()
        for node, _ in met:
            self._tell_voters(node)

    def _tell_voters(self, node: Peer) -> None:
        voters = self.journal.voters
        if voters is not None:
            self._send(node, rm.Voters(voters))

    def _on_voters(self, message: rm.Voters) -> None:
        """Handle a peer's voters. If this directory is one of them, it takes its place; otherwise it may continue only
        if told to join."""
        if self.journal.voters is not None:
            return
        if self.journal.me in message.voters:
            self.journal.found(message.voters)
            for node in self._linked.values():  # the founder may have ended before it told them
                self._tell_voters(node)
        elif not self.journal.may_join:
            raise self._refused(f"the voters are {message.voters}")

    def _refused(self, found: str) -> QuorumConfigurationError:
        me = self.journal.me
        return QuorumConfigurationError(
            f"{self.journal.path}: expected the directory with which node {me.node_id} votes, found another one: {me}; "
            f"{found}. If its disk is not mounted or log.dirs is wrong, mend that. If the directory is lost, start the "
            "node once with --format: it then copies everything from the others, and they admit it again"
        )

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        """Write the founding voters into the log as the first leader, for nodes that will get only the log."""
        super()._SyncObj__onBecomeLeader()
        voters = self.journal.voters
        if voters is not None and self.journal.voters_index == 0 and not self.journal.is_old:
            self._append_voters(voters)

    def _bind(self) -> None:
        """Leave the formats of release 0.1."""
        if self.journal.is_old:
            self.journal.bind()
            self._report_voters()

    # --- changing ------------------------------------------------------------------------------------

    def _change_voters_if_due(self) -> None:
        """As the leader, append the next change of voters, if one is due."""
        journal = self.journal
        voters = journal.voters
        if not self.is_leader or voters is None or self._led_term != self.term or journal.is_old:
            return
        if journal.voters_index > self.commit_index:
            return
        if journal.voters_index == 0:  # it was old when this node began to lead
            self._append_voters(voters)
            return
        for seat in voters.seats:
            newcomer = self._linked.get(seat)
            if newcomer is None or newcomer.voter in voters or not self._has_everything(newcomer):
                continue
            vacant = seat in voters.vacant
            self._append_voters(voters.admitting(newcomer.voter) if vacant else voters.without(seat))
            return

    def _has_everything(self, node: Peer) -> bool:
        """Return whether a follower has everything committed, and was heard from recently."""
        heard_at = self._SyncObj__lastResponseTime[node]
        recently = step_time() - heard_at < self._timing.majority_lost_s
        return recently and self._SyncObj__raftMatchIndex[node] >= self.commit_index

    def _append_voters(self, voters: VoterSet) -> None:
        self.journal.add(VOTERS_COMMAND + voters.encode(), self.journal.last_index + 1, self.term)
        self._follow_voters()
        self._must_send.update(self._links)
