"""The Raft engine: pysyncobj's, hardened. One voter, no thread, no socket, no clock of its own.

:meth:`RaftEngine.step` takes inputs and the time, and returns effects to be executed in order. Rules
H1 to H11 are those of ``docs/quorum.md``; each is named where it is kept. The one that most others
rest on is the barrier at the end of a step: effects are returned only after everything they speak of
is durable (H3).

From pysyncobj come the vote rule, the election timer, the loop that sends entries, the commit rule,
the apply loop and the command queue. Replaced here: the receiver of appends, acknowledgements,
pre-vote, who is sent to in a round, and what a command is.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, assert_never

from tidelog.metadata_quorum import raft_events as ev
from tidelog.metadata_quorum.quorum_types import QuorumFailure, QuorumIdentity, QuorumTiming
from tidelog.metadata_quorum.raft_base import (
    DISCARDED,
    EMPTY_COMMAND,
    FOLLOWER,
    LEADER,
    QUEUE_FULL,
    REGULAR_COMMAND,
    SUCCESS,
    Node,
    PinnedSyncObj,
    SyncObjConf,
    Transport,
    set_step_time,
    step_time,
)
from tidelog.metadata_quorum.raft_journal import JournalEntry, RaftJournal
from tidelog.metadata_quorum.raft_snapshot import (
    OutgoingPart,
    Snapshot,
    SnapshotReceiver,
    SnapshotSender,
    SnapshotStore,
)
from tidelog.model.ids import NodeId
from tidelog.proto import raft_messages as rm

PROPOSALS_QUEUED_MAX: Final = 8192
BATCH_BYTES: Final = 1024 * 1024
"""Entries of one append message: as many as fit, at least one."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""A peer that has not acknowledged so much is sent no more."""
RETAINED_ENTRIES: Final = 10_000
RETAINED_BYTES: Final = 4 * 1024 * 1024
"""Entries kept before a snapshot, so that a follower slightly behind need not load it."""

_EPOCH: Final = struct.Struct("<Q")
_COMMAND_HEAD: Final = len(REGULAR_COMMAND) + _EPOCH.size
_ENTRY_OVERHEAD: Final = 32
_NEVER: Final = float("-inf")
_STRICTLY_LATER_S: Final = 1e-6
"""pysyncobj acts when a deadline has *passed*; a driver that slept exactly until it would spin."""


class _Outbox(Transport):  # type: ignore[misc]  # pysyncobj is not typed
    """Where pysyncobj sends to. Nothing leaves from here: the engine hands it out at the end of a step."""

    def __init__(self, send: Callable[[Node, dict[str, Any]], None]) -> None:
        super().__init__(None, None, None)
        self._send = send

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self._send(node, message)
        return True


class RaftEngine(PinnedSyncObj):
    """One voter of a fixed quorum.

    All calls come from one thread at a time. What :meth:`step` raises (``OSError``,
    :class:`QuorumFailure`, any bug) means that the node must stop: the engine is unusable afterwards,
    and none of the step's effects may be executed.
    """

    def __init__(
        self,
        identity: QuorumIdentity,
        journal: RaftJournal,
        snapshots: SnapshotStore,
        timing: QuorumTiming,
        rng: random.Random,
        now: float,
    ) -> None:
        """Recover from journal and snapshot. Raises :class:`QuorumFailure` where the two do not meet."""
        self.identity = identity
        self._timing = timing
        self._rng = rng
        self._snapshots = snapshots
        self._receiver = SnapshotReceiver(snapshots)
        self._sender = SnapshotSender(snapshots)
        self._effects: list[ev.Effect] = []
        self._links: set[Node] = set()
        self._heard_at = _NEVER
        self._suspects_leader = False
        self._fruitless_elections = 0
        self._pre_vote: tuple[int, set[NodeId]] | None = None
        self._pre_vote_won = False
        self._votes: tuple[int, set[NodeId]] = (0, set())
        self._tickets: set[int] = set()
        self._led_term = 0
        self._reported_leader: tuple[NodeId | None, int] = (None, 0)
        self._sent_at: dict[Node, float] = {}
        self._told_commit: dict[Node, int] = {}
        self._under_way: dict[Node, deque[tuple[int, int]]] = {}
        self._must_send: set[Node] = set()
        self._snapshot_index = 0
        set_step_time(now)
        self._outbox = _Outbox(self._on_send)
        conf = SyncObjConf(
            autoTick=False,
            journalFile=journal,
            fullDumpFile=self._sender,
            useFork=False,
            commandsWaitLeader=False,
            commandsQueueSize=PROPOSALS_QUEUED_MAX,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            appendEntriesPeriod=timing.heartbeat_s,
            appendEntriesBatchSizeBytes=1 << 62,
            leaderFallbackTimeout=timing.majority_lost_s,
            connectionTimeout=max(3.5, timing.election_max_s),
            onStateChanged=self._on_state_changed,
        )
        others = [Node(voter) for voter in identity.voters if voter != identity.node_id]
        super().__init__(Node(identity.node_id), others, conf, transport=self._outbox)
        self._SyncObj__needLoadDumpFile = False
        self._load_snapshot()
        if not others:
            self._SyncObj__raftElectionDeadline = now - 1
        journal.sync()

    # --- the driver's side -----------------------------------------------------------------------

    def step(self, inputs: Iterable[ev.EngineInput], now: float) -> list[ev.Effect]:
        """Take inputs in order, do what is due, and return the effects, all of them durable (H3)."""
        set_step_time(now)
        for each in inputs:
            self._take(each)
        if self.is_leader:
            self._checkCommandsToApply()
        self.journal.sync()
        self._begin_pre_vote_if_due()
        self._onTick(0.0)
        if self._pre_vote_won:  # no link left to hold the election over
            self._pre_vote_won = False
            self._SyncObj__raftElectionDeadline = now + self._SyncObj__generateRaftTimeout()
        self.journal.sync()
        self._report_leader()
        effects, self._effects = self._effects, []
        return effects

    def deadline(self) -> float:
        """Return the time at which the next step is due even without input."""
        if self.commit_index > self.applied_index:
            return _NEVER
        if not self.is_leader:
            return self._SyncObj__raftElectionDeadline + _STRICTLY_LATER_S
        if self._must_send:
            return _NEVER
        due = [self._majority_lost_at()]
        due.extend(self._sent_at.get(node, _NEVER) + self._timing.heartbeat_s for node in self._links)
        return min(due) + _STRICTLY_LATER_S

    def _take(self, each: ev.EngineInput) -> None:
        match each:
            case ev.Received(peer, messages):
                node = Node(peer)
                if node in self._SyncObj__otherNodes:
                    for message in messages:
                        self._on_message(node, message)
            case ev.LinkUp(peer):
                self._on_link_up(Node(peer))
            case ev.LinkDown(peer):
                self._on_link_down(Node(peer))
            case ev.PeerSuspected(peer):
                self._suspect(peer)
            case ev.Propose(ticket, epoch, payload):
                self._propose(ticket, epoch, payload)
            case ev.Compact(index, term, state):
                self._compact(index, term, state)
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
        """pysyncobj's answer: after apply, or because the entry will never be applied."""
        if reason == SUCCESS and index is not None:
            self._end_proposal(ticket, ev.ProposalOutcome.COMMITTED, index)
        elif reason in (SUCCESS, DISCARDED):  # void in this term, or another entry took its place
            self._end_proposal(ticket, ev.ProposalOutcome.NOT_LEADING)
        elif reason == QUEUE_FULL:
            self._end_proposal(ticket, ev.ProposalOutcome.BUSY)
        else:
            self._end_proposal(ticket, ev.ProposalOutcome.NOT_LEADING)

    def _end_proposal(self, ticket: int, outcome: ev.ProposalOutcome, index: int = -1) -> None:
        self._tickets.discard(ticket)
        self._effects.append(ev.ProposalEnded(ticket, outcome, index))

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Move queued commands into the log. Only a leader does; nothing is ever forwarded (H7)."""
        if self.is_leader:
            last = self.journal.last_index
            super()._checkCommandsToApply()
            if self.journal.last_index != last:
                self._must_send.update(self._links)

    def _on_state_changed(self, old: int, new: int) -> None:
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
        self._sender.clear()
        self._must_send.clear()

    def _drop_queued_commands(self) -> None:
        """Commands that never entered the log are known not to be done."""
        queue = self._SyncObj__commandsQueue
        while queue._FastQueue__queue:
            queue.get_nowait()[1](None, DISCARDED)

    # --- apply (H8, H11) ---------------------------------------------------------------------------

    def _SyncObj__doApplyCommand(self, command: bytes) -> int | None:  # noqa: N802
        """Hand out the next committed entry; returns its index if its command is valid in its term."""
        index = self.applied_index + 1
        term = self.journal.term_at(index)
        if term is None:
            raise QuorumFailure(f"committed entry {index} is not in {self.journal.path}")
        valid = command[:1] == REGULAR_COMMAND and _EPOCH.unpack_from(command, 1)[0] == term
        self._effects.append(ev.Committed(index, term, command[_COMMAND_HEAD:] if valid else b""))
        if self.is_leader and term == self.term and index == self._SyncObj__noopIDx:
            self._led_term = term
            self._effects.append(ev.Leading(term))
        return index if valid else None

    # --- sending (H3, H5) --------------------------------------------------------------------------

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        """Send to those who are due something: entries, a commit index, a sign of life.

        pysyncobj's loop skips peers that are not connected; that is how the round is narrowed.
        """
        self.journal.sync()
        now = step_time()
        due = {node for node in self._must_send if not self._window_is_full(node)}
        due.update(node for node in self._links if now - self._sent_at.get(node, _NEVER) >= self._timing.heartbeat_s)
        self._SyncObj__connectedNodes = due
        self._must_send.clear()
        super()._SyncObj__sendAppendEntries()
        self._SyncObj__connectedNodes = set(self._links)
        self._schedule_round()

    def _schedule_round(self) -> None:
        """Tell pysyncobj when its next round is: now if somebody waits, else at the next heartbeat."""
        if self._must_send:
            self._SyncObj__newAppendEntriesTime = _NEVER
            return
        last = min((self._sent_at.get(node, _NEVER) for node in self._links), default=float("inf"))
        self._SyncObj__newAppendEntriesTime = last + self._timing.heartbeat_s

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        if self.is_leader:
            self._schedule_round()
        committed = self.commit_index
        super()._onTick(timeToWait)
        if self.is_leader and self.commit_index > committed:
            self._tell_commit()

    def _tell_commit(self) -> None:
        """Followers learn of a commit at once, not with the next heartbeat."""
        behind = {node for node in self._links if self._told_commit.get(node, 0) < self.commit_index}
        if behind:
            self._must_send |= behind
            self._SyncObj__sendAppendEntries()

    def _window_is_full(self, node: Node) -> bool:
        return sum(size for _, size in self._under_way.get(node, ())) >= WINDOW_BYTES

    def _on_send(self, node: Node, message: dict[str, Any]) -> None:
        """Turn what pysyncobj sends into our messages; what it must not send stops the node (H7)."""
        kind = message["type"]
        if kind == "append_entries":
            self._on_send_append(node, message)
        elif kind == "request_vote":
            self._send(node, rm.VoteRequest(message["term"], message["last_log_index"], message["last_log_term"]))
        elif kind == "response_vote":
            self._send(node, rm.VoteGranted(message["term"]))
        else:
            raise QuorumFailure(f"the Raft engine tried to send {kind!r}")

    def _on_send_append(self, node: Node, message: dict[str, Any]) -> None:
        now = step_time()
        heartbeat_due = now - self._sent_at.get(node, _NEVER) >= self._timing.heartbeat_s
        if "serialized" in message:
            part: OutgoingPart | None = message["serialized"]
            if part is None and heartbeat_due:
                part = self._sender.question(node.id)
            if part is not None:
                self._sent_at[node] = now
                self._send(
                    node,
                    rm.SnapshotPart(message["term"], message["commit_index"], *part.snapshot, part.offset, part.data),
                )
            return
        entries: list[JournalEntry] = message["entries"]
        notice = not entries and not heartbeat_due
        if entries:
            size = sum(len(entry[0]) + _ENTRY_OVERHEAD for entry in entries)
            self._under_way.setdefault(node, deque()).append((entries[-1][1], size))
            if self._window_is_full(node):
                self._SyncObj__connectedNodes.discard(node)
        if not notice:
            self._sent_at[node] = now
        self._told_commit[node] = message["commit_index"]
        self._send(
            node,
            rm.Append(
                message["term"],
                message["commit_index"],
                message["prevLogIdx"],
                message["prevLogTerm"],
                tuple(rm.LogEntry(index, term, command) for command, index, term in entries),
                notice,
            ),
        )

    def _send(self, node: Node, message: rm.RaftMessage) -> None:
        self._effects.append(ev.Send(node.id, message))

    # --- links -------------------------------------------------------------------------------------

    def _on_link_up(self, node: Node) -> None:
        if node not in self._SyncObj__otherNodes:
            return
        self._links.add(node)
        self._SyncObj__connectedNodes = set(self._links)
        self._forget_under_way(node)
        if self.is_leader:
            self._must_send.add(node)
        elif self.leader_id is None:
            self._probe_soon(None)

    def _on_link_down(self, node: Node) -> None:
        self._links.discard(node)
        self._SyncObj__connectedNodes = set(self._links)
        self._must_send.discard(node)
        self._forget_under_way(node)
        self._suspect(node.id)

    def _forget_under_way(self, node: Node) -> None:
        self._sender.end(node.id)
        self._under_way.pop(node, None)
        self._told_commit.pop(node, None)
        self._sent_at.pop(node, None)

    def _suspect(self, peer: NodeId) -> None:
        """A stream with the leader broke: probe at once. It fences nobody (see pre-vote)."""
        if not self.is_leader and peer == self.leader_id and not self._suspects_leader:
            self._suspects_leader = True
            self._probe_soon(peer)

    def _probe_soon(self, lost: NodeId | None) -> None:
        """Bring the next probe forward; voters take turns, so that they rarely split the vote."""
        turn = [voter for voter in self.identity.voters if voter != lost].index(self.identity.node_id)
        wait = self._timing.probe_spacing_s * (turn + self._rng.random() / 4)
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, step_time() + wait)

    # --- elections (H9) ------------------------------------------------------------------------------

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        timing = self._timing
        if 0 < self._fruitless_elections < 8:
            longest: float = min(timing.probe_retry_s * 2**self._fruitless_elections, timing.election_max_s)
            return longest * (0.5 + self._rng.random() / 2)
        return timing.election_min_s + (timing.election_max_s - timing.election_min_s) * self._rng.random()

    def _leader_is_alive(self) -> bool:
        """Whether this voter has reason to think that there is a working leader, itself included."""
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

    def _begin_pre_vote_if_due(self) -> None:
        """Instead of an election that is due: ask whether it could be won. Only then let pysyncobj begin it."""
        others = self._SyncObj__otherNodes
        if self.is_leader or not others or self._pre_vote_won:
            return
        if self._SyncObj__raftElectionDeadline >= step_time():
            return
        self._fruitless_elections += 1
        self._SyncObj__raftElectionDeadline = step_time() + self._SyncObj__generateRaftTimeout()
        self._pre_vote = (self.term + 1, set())
        for node in others:
            self._send(node, rm.PreVoteRequest(self.term + 1, self.journal.last_index, self.journal.last_term))

    def _on_pre_vote_request(self, node: Node, message: rm.PreVoteRequest) -> None:
        mine = (self.journal.last_term, self.journal.last_index)
        granted = (
            not self._leader_is_alive() and message.term > self.term and (message.last_term, message.last_index) >= mine
        )
        if granted and not self._pre_vote_won:
            timeout = self._SyncObj__generateRaftTimeout()
            later = step_time() + min(timeout, self._timing.probe_retry_s)
            self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, later)
        self._send(node, rm.PreVoteResult(message.term, self.term, granted))

    def _on_pre_vote_result(self, node: Node, message: rm.PreVoteResult) -> None:
        if message.current_term > self.term:
            self._step_down(message.current_term)
        elif message.granted and self._pre_vote is not None and message.term == self._pre_vote[0] == self.term + 1:
            self._pre_vote[1].add(node.id)
            if 1 + len(self._pre_vote[1]) > len(self.identity.voters) / 2:
                self._pre_vote = None
                self._pre_vote_won = True
                self._SyncObj__raftElectionDeadline = step_time() - 1

    def _SyncObj__setCurrentTerm(self, term: int, vote: NodeId | None) -> None:  # noqa: N802
        if vote == self.identity.node_id:
            self._pre_vote_won = False  # the election that pre-vote allowed has begun
        super()._SyncObj__setCurrentTerm(term, vote)

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        self._sent_at.clear()
        self._told_commit.clear()
        self._under_way.clear()
        self._sender.clear()
        self._receiver.abandon()
        self._fruitless_elections = 0
        self._suspects_leader = False
        super()._SyncObj__onBecomeLeader()

    def _step_down(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None
        self._pre_vote = None

    # --- messages (H4, H5) ---------------------------------------------------------------------------

    def _on_message(self, node: Node, message: rm.RaftMessage) -> None:
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
            case _:
                assert_never(message)

    def _on_vote_request(self, node: Node, message: rm.VoteRequest) -> None:
        if self._leader_is_alive():
            return
        if message.term == self.term and self._SyncObj__votedForNodeId == node.id and not self.is_leader:
            self._send(node, rm.VoteGranted(message.term))
            return
        self._to_pysyncobj(
            node,
            type="request_vote",
            term=message.term,
            last_log_index=message.last_index,
            last_log_term=message.last_term,
        )

    def _on_vote_granted(self, node: Node, message: rm.VoteGranted) -> None:
        if self._votes[0] != self.term:
            self._votes = (self.term, set())
        if message.term == self.term and node.id not in self._votes[1]:
            self._votes[1].add(node.id)
            self._to_pysyncobj(node, type="response_vote", term=message.term)

    def _on_append_result(self, node: Node, message: rm.AppendResult) -> None:
        if message.term > self.term:
            self._step_down(message.term)
            return
        if message.term < self.term or not self.is_leader:
            return
        before = self._SyncObj__raftNextIndex[node]
        self._to_pysyncobj(
            node,
            type="next_node_idx",
            next_node_idx=message.next_index,
            success=message.success,
            reset=message.reset,
        )
        matched = self._SyncObj__raftMatchIndex[node]
        if message.success and not message.reset:
            self._SyncObj__raftNextIndex[node] = max(before, self._SyncObj__raftNextIndex[node])
        elif not message.success and message.reset:
            # It does not hold what we thought. Counting less than it acknowledged is always safe.
            self._SyncObj__raftMatchIndex[node] = matched = min(matched, message.next_index - 1)
        if message.reset:
            self._under_way.pop(node, None)
            self._sender.end(node.id)
        under_way = self._under_way.get(node)
        while under_way and under_way[0][0] <= matched:
            under_way.popleft()
        if self._SyncObj__raftNextIndex[node] <= self.journal.last_index and node in self._links:
            self._must_send.add(node)

    def _to_pysyncobj(self, node: Node, **message: object) -> None:
        self._SyncObj__onMessageReceived(node, message)

    def _accepts_leader(self, node: Node, term: int) -> bool:
        """Follow the sender of an append if its term is current. Two leaders of one term stop the node."""
        if term < self.term:
            self._answer(node, success=False, reset=False)  # tells the old leader our term
            return False
        if term == self.term and self.is_leader:
            raise QuorumFailure(f"node {node.id} and this node both lead in term {term}")
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

    def _answer(self, node: Node, *, success: bool, reset: bool, next_index: int | None = None) -> None:
        known = self.journal.last_index + 1 if next_index is None else next_index
        self._send(node, rm.AppendResult(self.term, known, success, reset))

    def _on_append(self, node: Node, message: rm.Append) -> None:
        """Receive entries (H4). Truncates on conflict alone; acknowledges only what this message proves."""
        if not self._accepts_leader(node, message.term):
            return
        self._SyncObj__leaderCommitIndex = message.commit_index
        self._receiver.abandon()
        previous, entries = message.previous_index, message.entries
        first = self.journal.first_index
        if previous < first:  # that part is in our snapshot, hence committed, hence the same
            if previous + len(entries) <= first:
                self._answer(node, success=True, reset=False, next_index=previous + len(entries) + 1)
                return
            entries = entries[first - previous :]
            previous = first
        elif self.journal.term_at(previous) != message.previous_term:
            # One answer for every batch under way: the committed prefix always matches.
            self._answer(node, success=False, reset=True, next_index=self.commit_index + 1)
            return
        matched = previous
        for entry in entries:
            self._store(node, entry)
            matched = entry.index
        commit = min(message.commit_index, matched)
        if commit > self.commit_index:
            self._SyncObj__raftCommitIndex = commit
            self.journal.setRaftCommitIndex(commit)
        if not message.notice:
            self._answer(node, success=True, reset=False, next_index=matched + 1)

    def _store(self, node: Node, entry: rm.LogEntry) -> None:
        known = self.journal.term_at(entry.index)
        if known == entry.term:
            return
        if known is not None:
            if entry.index <= max(self.commit_index, self.applied_index):
                raise QuorumFailure(
                    f"node {node.id} would overwrite committed entry {entry.index} of term {known} "
                    f"with one of term {entry.term}"
                )
            self.journal.deleteEntriesFrom(entry.index - self.journal.first_index)
        self.journal.add(entry.command, entry.index, entry.term)

    # --- snapshots (H6) ------------------------------------------------------------------------------

    def _load_snapshot(self) -> None:
        snapshot = self._snapshots.load()
        journal = self.journal
        if snapshot is None:
            if journal.first_index != 1:
                raise QuorumFailure(
                    f"{journal.path} begins at entry {journal.first_index}, and {self._snapshots.path}, "
                    "which holds what was before, is missing"
                )
            return
        if journal.first_index > snapshot.index:
            raise QuorumFailure(
                f"{journal.path} begins at entry {journal.first_index}, {self._snapshots.path} ends at "
                f"{snapshot.index}: what is between them is missing"
            )
        if journal.term_at(snapshot.index) != snapshot.term:
            journal.reset([_anchor(snapshot)])  # the crash came between installing it and cutting the journal
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
        self._snapshots.write(Snapshot(index, term, state))
        self._snapshot_index = index
        keep_from = index - 1
        size = 0
        while keep_from > journal.first_index and index - keep_from < RETAINED_ENTRIES:
            size += len(journal[keep_from - journal.first_index][0]) + _ENTRY_OVERHEAD
            if size > RETAINED_BYTES:
                break
            keep_from -= 1
        if keep_from > journal.first_index:
            journal.reset(journal.entries_from(keep_from, len(journal), 1 << 62))
        self._effects.append(ev.Compacted(index, journal.first_index))

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        """Compaction is asked for by the seam's user, never begun by the engine, and never in a fork."""

    def _on_snapshot_part(self, node: Node, part: rm.SnapshotPart) -> None:
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
            held = 0 if received >= part.snapshot_size else received  # all here, and it does not check: again
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
            kept = [_anchor(snapshot)]
        self._adopt(snapshot)
        journal.reset(kept)

    def _on_snapshot_result(self, node: Node, message: rm.SnapshotResult) -> None:
        if message.term > self.term:
            self._step_down(message.term)
            return
        if message.term < self.term or not self.is_leader:
            return
        self._SyncObj__lastResponseTime[node] = step_time()
        if self._sender.on_result(node.id, message) and node in self._links:
            self._must_send.add(node)

    # --- telling -------------------------------------------------------------------------------------

    def _report_leader(self) -> None:
        current = (self.leader_id, self.term)
        if current != self._reported_leader:
            self._reported_leader = current
            self._effects.append(ev.LeaderChanged(*current))

    def close(self, *, clean: bool) -> None:
        """Close the files; a clean close marks the journal's tail as complete."""
        self._receiver.abandon()
        self.journal.close(clean=clean)


def _anchor(snapshot: Snapshot) -> JournalEntry:
    """The entry that stands for everything in a snapshot; it is never sent and never applied."""
    return (EMPTY_COMMAND, snapshot.index, snapshot.term)
