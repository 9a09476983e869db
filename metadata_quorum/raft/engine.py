"""The Raft engine: pysyncobj's, hardened. One voter, without threads, sockets or a clock.

:meth:`RaftEngine.step` takes inputs and the time, and returns effects to be executed in order. Rules H1 to H11 are
those of ``docs/quorum.md``; the code names each where it applies it. Most of them depend on the barrier at the end of a
step: effects are returned only after everything they refer to is durable (H3).

From pysyncobj come the vote rule, the election timer, the loop that sends entries, the commit rule,
the apply loop and the command queue. Replaced here: the receiver of appends, acknowledgements,
pre-vote, the peers that a round sends to, and the meaning of commands.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from typing import Final, assert_never

from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.base import (
    DISCARDED,
    FOLLOWER,
    LEADER,
    QUEUE_FULL,
    REGULAR_COMMAND,
    SUCCESS,
    Peer,
    set_step_time,
    step_time,
)
from tidelog.metadata_quorum.raft.journal import RaftJournal
from tidelog.metadata_quorum.raft.membership import RaftMembership
from tidelog.metadata_quorum.raft.sending import ENTRY_OVERHEAD, FAR, NEVER, EngineParts
from tidelog.metadata_quorum.raft.snapshot import (
    Snapshot,
    SnapshotReceiver,
    SnapshotSender,
    SnapshotStore,
    anchor_of,
    joined,
)
from tidelog.metadata_quorum.raft.types import QuorumFailure, QuorumIdentity, QuorumLimits, QuorumTiming
from tidelog.model.ids import NodeId
from tidelog.model.voter_set import Voter
from tidelog.proto.transport import raft_messages as rm

_EPOCH: Final = struct.Struct("<Q")
_COMMAND_HEAD: Final = len(REGULAR_COMMAND) + _EPOCH.size
_STRICTLY_LATER_S: Final = 1e-6
"""pysyncobj acts when a deadline has *passed*; a driver that slept exactly until then would spin."""
_SEAL_AFTER_S: Final = 1.0
"""A journal that has been idle for this long is sealed (H2)."""


def payload_of(command: bytes, term: int) -> bytes | None:
    """Return an entry's proposed payload; ``None`` if it is one of the quorum's own, or was proposed in another
    term."""
    valid = command[:1] == REGULAR_COMMAND and _EPOCH.unpack_from(command, 1)[0] == term
    return command[_COMMAND_HEAD:] if valid else None


class RaftEngine(RaftMembership):
    """One controller of a quorum.

    All calls come from one thread at a time. An exception from :meth:`step` (``OSError``, :class:`QuorumFailure`, any
    bug) means that the node must stop: the engine is unusable afterwards, and none of the step's effects may be
    executed.
    """

    def __init__(
        self,
        identity: QuorumIdentity,
        journal: RaftJournal,
        snapshots: SnapshotStore,
        timing: QuorumTiming,
        limits: QuorumLimits,
        rng: random.Random,
        now: float,
    ) -> None:
        """Recover from journal and snapshot. Raises :class:`QuorumFailure` if the two do not fit together."""
        self._snapshots = snapshots
        self._receiver = SnapshotReceiver(snapshots)
        self._tickets: set[int] = set()
        self._reported_leader: tuple[NodeId | None, int] = (None, 0)
        self._snapshot_index = 0
        self._synced: tuple[int, float] = (-1, now)
        """The journal's sync count, and when its last change was seen."""
        sender = SnapshotSender(snapshots, limits)
        super().__init__(EngineParts(identity, journal, sender, timing, limits, rng, now))
        self._load_snapshot()
        self._tell_standing()
        self._found_if_complete()
        journal.sync()

    # --- the driver's side -----------------------------------------------------------------------

    def step(self, inputs: Iterable[ev.EngineInput], now: float) -> list[ev.Effect]:
        """Process inputs in order, do the due work, and return the effects, all of them durable (H3)."""
        set_step_time(now)
        for each in inputs:
            if isinstance(each, ev.Received) and each.at is not None:
                set_step_time(min(each.at, now))  # it proves only that the peer was alive at that time
                self._take(each)
                set_step_time(now)
            else:
                self._take(each)
        if self.is_leader:
            self._checkCommandsToApply()
        self._change_voters_if_due()
        self.journal.sync()
        self._begin_pre_vote_if_due()
        self._onTick(0.0)
        if self._pre_vote_won:
            self._give_up_election()
        self.journal.sync()
        self._seal_when_still(now)
        self._report_leader()
        effects, self._effects = self._effects, []
        return effects

    def silence_deadline(self) -> float:
        """Return the time from which a step without input treats the others' silence as a failure.

        A driver that was itself delayed must first process messages that arrived meanwhile.
        """
        return self._majority_lost_at() if self.is_leader else self._SyncObj__raftElectionDeadline

    def deadline(self) -> float:
        """Return the time at which the next step is due even without input."""
        if self.commit_index > self.applied_index:
            return NEVER
        seal_at = FAR if self.journal.sealed else self._synced[1] + _SEAL_AFTER_S
        if not self.is_leader:
            return min(self._SyncObj__raftElectionDeadline, seal_at) + _STRICTLY_LATER_S
        if self._must_send:
            return NEVER
        due = [self._majority_lost_at(), self._notice_at, seal_at]
        due.extend(self._sent_at.get(node, NEVER) + self._timing.heartbeat_s for node in self._links)
        return min(due) + _STRICTLY_LATER_S

    def _seal_when_still(self, now: float) -> None:
        if self._synced[0] != self.journal.syncs:
            self._synced = (self.journal.syncs, now)
        elif not self.journal.sealed and now >= self._synced[1] + _SEAL_AFTER_S:
            self.journal.seal()

    def _take(self, each: ev.EngineInput) -> None:
        match each:
            case ev.Received(peer, directory_id, messages):
                node = self._peer(Voter(peer, directory_id))
                for message in messages:
                    if self._takes_part or isinstance(message, rm.Voters):
                        self._on_message(node, message)
                        self._follow_voters()
            case ev.LinkUp(peer, directory_id, standing):
                node = self._peer(Voter(peer, directory_id))
                self._link_up(node)
                self._meet(node, standing)
                if self.leader_id is None:
                    self._probe_soon(None)
            case ev.LinkDown(peer):
                if peer in self._linked:
                    self._link_down(self._linked[peer])
                self._suspect(peer)
            case ev.PeerSuspected(peer):
                self._suspect(peer)
            case ev.Propose(ticket, epoch, payload):
                self._propose(ticket, epoch, payload)
            case ev.Compact(index, term, state):
                self._compact(index, term, state)
            case ev.Bind():
                self._bind()
            case _:
                assert_never(each)

    # --- proposals (H8, H11) -----------------------------------------------------------------------

    def _propose(self, ticket: int, epoch: int, payload: bytes) -> None:
        if not self.is_leader or epoch != self.term:
            self._end_proposal(ticket, ev.ProposalOutcome.NOT_LEADING)
            return
        self._tickets.add(ticket)
        command = REGULAR_COMMAND + _EPOCH.pack(epoch) + payload
        self._applyCommand(command, lambda index, reason: self._on_command_end(ticket, index, reason))

    def _on_command_end(self, ticket: int, index: int | None, reason: int) -> None:
        """Handle pysyncobj's answer: after apply, or because the entry will never be applied."""
        if reason == SUCCESS and index is not None:
            self._end_proposal(ticket, ev.ProposalOutcome.COMMITTED, index)
        elif reason == QUEUE_FULL:
            self._end_proposal(ticket, ev.ProposalOutcome.BUSY)
        else:  # void in this term, or never in the log, or replaced by another committed entry
            self._end_proposal(ticket, ev.ProposalOutcome.NOT_LEADING)

    def _end_proposal(self, ticket: int, outcome: ev.ProposalOutcome, index: int = -1) -> None:
        self._tickets.discard(ticket)
        self._effects.append(ev.ProposalEnded(ticket, outcome, index))

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Move queued commands into the log. Only a leader does this; nothing is ever forwarded (H7)."""
        if self.is_leader:
            last = self.journal.last_index
            super()._checkCommandsToApply()
            if self.journal.last_index != last:
                self._must_send.update(self._links)

    def _on_state_changed(self, old: int, new: int) -> None:
        if new == LEADER:
            self._receiver.abandon()
        if new == FOLLOWER:
            self._pre_vote_won = False
        if old != LEADER:
            return
        self._SyncObj__raftElectionDeadline = step_time() + self._SyncObj__generateRaftTimeout()
        if self._led_term:
            self._effects.append(ev.Resigned(self._led_term))
            self._led_term = 0
        waiting = self._SyncObj__commandsWaitingCommit
        for index in sorted(waiting):
            waiting[index].clear()
        waiting.clear()
        self._drop_queued_commands()
        for ticket in sorted(self._tickets):
            self._effects.append(ev.ProposalEnded(ticket, ev.ProposalOutcome.UNKNOWN, -1))
        self._tickets.clear()
        self._forget_all_under_way()

    def _drop_queued_commands(self) -> None:
        """Fail queued commands: as they never entered the log, they certainly have no effect."""
        queue = self._SyncObj__commandsQueue
        while queue._FastQueue__queue:
            queue.get_nowait()[1](None, DISCARDED)

    # --- apply (H8, H11) ---------------------------------------------------------------------------

    def _SyncObj__doApplyCommand(self, command: bytes) -> int | None:  # noqa: N802
        """Deliver the next committed entry; return its index if its command is valid in its term."""
        index = self.applied_index + 1
        term = self.journal.term_at(index)
        if term is None:
            raise QuorumFailure(f"committed entry {index} is not in {self.journal.path}")
        payload = payload_of(command, term)
        self._effects.append(ev.Committed(index, term, payload or b""))
        if self.is_leader and term == self.term and index == self._SyncObj__noopIDx:
            self._led_term = term
            self._effects.append(ev.Leading(term))
        return None if payload is None else index

    # --- messages (H4, H5) ---------------------------------------------------------------------------

    def _on_message(self, node: Peer, message: rm.RaftMessage) -> None:
        match message:
            case rm.Append():
                self._on_append(node, message)
            case rm.AppendResult():
                self._on_append_result(node, message)
            case rm.VoteRequest():
                self._on_vote_request(node, message)
            case rm.VoteGranted():
                self._on_vote_granted(node, message)
            case rm.PreVoteRequest():
                self._on_pre_vote_request(node, message)
            case rm.PreVoteResult():
                self._on_pre_vote_result(node, message)
            case rm.SnapshotPart():
                self._on_snapshot_part(node, message)
            case rm.SnapshotResult():
                self._on_snapshot_result(node, message)
            case rm.Voters():
                self._on_voters(message)
            case _:
                assert_never(message)

    def _on_append(self, node: Peer, message: rm.Append) -> None:
        """Receive entries (H4). Truncates only on conflict; acknowledges only what this message proves."""
        if not self._accepts_leader(node, message.term):
            return
        self._SyncObj__leaderCommitIndex = message.commit_index
        self._receiver.abandon()
        previous, entries = message.previous_index, message.entries
        first = self.journal.first_index
        if previous < first:  # our snapshot covers that part, so it is committed and equal
            if previous + len(entries) <= first:
                self._answer(node, success=True, reset=False, next_index=previous + len(entries) + 1)
                return
            entries = entries[first - previous :]
            previous = first
        elif self.journal.term_at(previous) != message.previous_term:
            if previous <= self.commit_index:
                raise self._would_overwrite(node, previous, message.previous_term)
            # One answer for all batches in flight: the committed prefix always matches.
            self._answer(node, success=False, reset=True, next_index=self.commit_index + 1)
            return
        for index, entry in enumerate(entries, previous + 1):
            self._store(node, index, entry)
        matched = previous + len(entries)
        commit = min(message.commit_index, matched)
        if commit > self.commit_index:
            self._SyncObj__raftCommitIndex = commit
            self.journal.setRaftCommitIndex(commit)
        if not message.notice:
            self._answer(node, success=True, reset=False, next_index=matched + 1)

    def _store(self, node: Peer, index: int, entry: rm.Entry) -> None:
        known = self.journal.term_at(index)
        if known == entry.term:
            return
        if known is not None:
            if index <= max(self.commit_index, self.applied_index):
                raise self._would_overwrite(node, index, entry.term)
            self.journal.deleteEntriesFrom(index - self.journal.first_index)
        self.journal.add(entry.command, index, entry.term)

    def _would_overwrite(self, node: Peer, index: int, term: int) -> QuorumFailure:
        return QuorumFailure(
            f"node {node.voter.node_id} would overwrite committed entry {index} of term {self.journal.term_at(index)} "
            f"with one of term {term}"
        )

    # --- snapshots (H6) ------------------------------------------------------------------------------

    def _load_snapshot(self) -> None:
        snapshot = joined(self._snapshots, self.journal)
        if snapshot is not None:
            self._adopt(snapshot)

    def _adopt(self, snapshot: Snapshot) -> None:
        self._snapshot_index = snapshot.index
        self._SyncObj__raftLastApplied = snapshot.index
        self._SyncObj__raftCommitIndex = max(self.commit_index, snapshot.index)
        self.journal.setRaftCommitIndex(self.commit_index)
        if snapshot.term > self.term:
            self._SyncObj__setCurrentTerm(snapshot.term, None)
        self._effects.append(ev.Loaded(snapshot.index, snapshot.term, snapshot.state))

    def _compact(self, index: int, term: int, state: bytes) -> None:
        journal = self.journal
        if index <= self._snapshot_index:
            return
        if index > self.applied_index or journal.term_at(index) != term:
            raise QuorumFailure(f"expected a snapshot of an applied entry, found {index} of term {term}")
        known = None if journal.is_old else journal.voters_at(index)
        self._snapshots.write(Snapshot(index, term, state, None if known is None else known[1]))
        self._snapshot_index = index
        keep_from = index - 1
        size = 0
        while keep_from > journal.first_index and index - keep_from < self._limits.retained_entries:
            size += len(journal[keep_from - journal.first_index][0]) + ENTRY_OVERHEAD
            if size > self._limits.retained_bytes:
                break
            keep_from -= 1
        if keep_from > journal.first_index:
            journal.reset(journal.entries_from(keep_from, len(journal), 1 << 62))
        self._effects.append(ev.Compacted(index, journal.first_index))

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        """Do nothing: the quorum's user requests compaction; the engine never starts it, and never forks."""

    def _on_snapshot_part(self, node: Peer, part: rm.SnapshotPart) -> None:
        if not self._accepts_leader(node, part.term):
            return
        if part.snapshot_index <= self.commit_index:  # never over newer commits; ours are a prefix of the leader's
            self._receiver.abandon()
            self._answer(node, success=True, reset=True, next_index=self.commit_index + 1)
            return
        received = self._receiver.take(part)
        snapshot = self._receiver.complete()
        if snapshot is None:
            gap = part.offset > received
            held = 0 if received >= part.snapshot_size else received  # complete, but its check fails: start again
            self._send(
                node,
                rm.SnapshotResult(
                    self.term, part.snapshot_index, part.snapshot_term, part.snapshot_crc, held, gap or held < received
                ),
            )
            return
        self._install(snapshot)
        self._answer(node, success=True, reset=True, next_index=snapshot.index + 1)

    def _install(self, snapshot: Snapshot) -> None:
        journal = self.journal
        keeps_suffix = journal.term_at(snapshot.index) == snapshot.term
        self._snapshots.install_incoming()
        if keeps_suffix:
            kept = journal.entries_from(snapshot.index, len(journal), 1 << 62)
        else:
            kept = [anchor_of(snapshot)]
        self._adopt(snapshot)
        journal.reset(kept, snapshot.voters)

    # --- reports -------------------------------------------------------------------------------------

    def _report_leader(self) -> None:
        current = (self.leader_id, self.term)
        if current != self._reported_leader:
            self._reported_leader = current
            self._effects.append(ev.LeaderChanged(*current))

    def close(self, *, clean: bool) -> None:
        """Close the files; a clean close marks the journal's tail as complete."""
        self._receiver.abandon()
        self.journal.close(clean=clean)
