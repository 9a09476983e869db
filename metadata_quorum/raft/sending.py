"""The Raft engine's messages, when they are sent to each node, and how a leader uses the answers (H3, H5, H7).

pysyncobj's loop sends to every connected peer whenever it runs. Here a round goes only to peers that need a message:
new entries, a commit index, or a heartbeat after an interval of silence. This module sends nothing itself: messages are
effects of the step, which syncs the journal before it returns them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.base import (
    FOLLOWER,
    Peer,
    PinnedSyncObj,
    SyncObjConf,
    Transport,
    set_step_time,
    step_time,
)
from tidelog.metadata_quorum.raft.journal import JournalEntry, RaftJournal
from tidelog.metadata_quorum.raft.snapshot import OutgoingPart, SnapshotSender
from tidelog.metadata_quorum.raft.types import QuorumFailure, QuorumIdentity, QuorumLimits, QuorumTiming
from tidelog.model.ids import NodeId
from tidelog.model.voter_set import Voter
from tidelog.proto.transport import raft_messages as rm

PROPOSALS_QUEUED_MAX: Final = 8192
ENTRY_OVERHEAD: Final = 32
NEVER: Final = float("-inf")
FAR: Final = float("inf")


class _Outbox(Transport):  # type: ignore[misc]  # pysyncobj is not typed
    """Collects the messages that pysyncobj sends. They are not sent here: the engine returns them at the end of a
    step."""

    def __init__(self, send: Callable[[Peer, dict[str, Any]], None]) -> None:
        super().__init__(None, None, None)
        self._send = send

    def send(self, node: Peer, message: dict[str, Any]) -> bool:
        self._send(node, message)
        return True


class _UnderWay:
    """Batches that a peer has not acknowledged: the last index and the size of each."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int]] = deque()
        self.bytes = 0

    def add(self, last_index: int, size: int) -> None:
        self._batches.append((last_index, size))
        self.bytes += size

    def acknowledge(self, matched: int) -> None:
        while self._batches and self._batches[0][0] <= matched:
            self.bytes -= self._batches.popleft()[1]


class EngineParts(NamedTuple):
    """The parts of an engine."""

    identity: QuorumIdentity
    journal: RaftJournal
    sender: SnapshotSender
    timing: QuorumTiming
    limits: QuorumLimits
    rng: random.Random
    now: float


class RaftSending(PinnedSyncObj):
    """One voter's sending half, as leader and otherwise."""

    def __init__(self, parts: EngineParts) -> None:
        identity, journal, sender, timing, limits, rng, now = parts
        self.identity = identity
        self._timing = timing
        self._limits = limits
        self._rng = rng
        self._sender = sender
        self._effects: list[ev.Effect] = []
        self._links: set[Peer] = set()
        self._must_send: set[Peer] = set()
        self._sent_at: dict[Peer, float] = {}
        self._told_commit: dict[Peer, int] = {}
        self._notice_at = FAR
        self._under_way: dict[Peer, _UnderWay] = {}
        set_step_time(now)
        self._outbox = _Outbox(self._on_send)
        conf = SyncObjConf(
            autoTick=False,
            journalFile=journal,
            fullDumpFile=sender,
            useFork=False,
            commandsWaitLeader=False,
            commandsQueueSize=PROPOSALS_QUEUED_MAX,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            appendEntriesPeriod=timing.heartbeat_s,
            appendEntriesBatchSizeBytes=1 << 62,  # larger than any entry, so none is ever pickled
            leaderFallbackTimeout=timing.majority_lost_s,
            connectionTimeout=max(3.5, timing.election_max_s),
            onStateChanged=self._on_state_changed,
        )
        self._peers: dict[Voter, Peer] = {}
        self._linked: dict[NodeId, Peer] = {}
        """The directory that the stream to each controller currently reaches."""
        super().__init__(self._peer(journal.me), (), conf, transport=self._outbox)
        self._SyncObj__needLoadDumpFile = False

    def _peer(self, voter: Voter) -> Peer:
        peer = self._peers.get(voter)
        if peer is None:
            peer = self._peers[voter] = Peer(voter)
        return peer

    def _arrange(self) -> None:
        """Tell pysyncobj which nodes vote and which only follow. It counts only the voters in force."""
        voters = self.journal.voters
        self._SyncObj__otherNodes = {
            self._peer(voter) for voter in (() if voters is None else voters.voters) if voter != self.journal.me
        }
        self._SyncObj__readonlyNodes = self._links - self._SyncObj__otherNodes
        self._SyncObj__connectedNodes = set(self._links)
        for node in self._SyncObj__otherNodes | self._SyncObj__readonlyNodes:
            self._SyncObj__raftNextIndex.setdefault(node, self.journal.last_index + 1)
            self._SyncObj__raftMatchIndex.setdefault(node, 0)
            self._SyncObj__lastResponseTime.setdefault(node, NEVER)

    def _on_state_changed(self, old: int, new: int) -> None:
        """Handle pysyncobj's FOLLOWER, CANDIDATE, LEADER. Overridden above."""

    def _step_down(self, term: int) -> None:
        """Follow nobody, in a later term."""
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    # --- rounds ------------------------------------------------------------------------------------

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        """Send to every node that needs a message: entries, a commit index, a heartbeat.

        pysyncobj's loop skips peers that are not connected; this is how the round is limited.
        """
        self.journal.sync()
        now = step_time()
        due = {node for node in self._must_send if not self._window_is_full(node)}
        due.update(node for node in self._links if now - self._sent_at.get(node, NEVER) >= self._timing.heartbeat_s)
        self._SyncObj__connectedNodes = due
        self._must_send.clear()
        super()._SyncObj__sendAppendEntries()
        self._SyncObj__connectedNodes = set(self._links)
        self._schedule_round()

    def _schedule_round(self) -> None:
        """Schedule pysyncobj's next round: now if a node waits, else at the next heartbeat."""
        if self._must_send:
            self._SyncObj__newAppendEntriesTime = NEVER
            return
        last = min((self._sent_at.get(node, NEVER) for node in self._links), default=FAR)
        self._SyncObj__newAppendEntriesTime = last + self._timing.heartbeat_s

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        if self.is_leader:
            self._schedule_round()
        committed = self.commit_index
        super()._onTick(timeToWait)
        if self.is_leader:
            if self.commit_index > committed and self._links:
                self._notice_at = min(self._notice_at, step_time() + self._timing.notice_s)
            if self._notice_at <= step_time():
                self._tell_commit()

    def _tell_commit(self) -> None:
        """Tell followers of a commit immediately, not with the next heartbeat; most learn it with the next entries."""
        self._notice_at = FAR
        behind = {node for node in self._links if self._told_commit.get(node, 0) < self.commit_index}
        if behind:
            self._must_send |= behind
            self._SyncObj__sendAppendEntries()

    def _window_is_full(self, node: Peer) -> bool:
        under_way = self._under_way.get(node)
        return under_way is not None and under_way.bytes >= self._limits.window_bytes

    def _on_send(self, node: Peer, message: dict[str, Any]) -> None:
        """Convert pysyncobj's messages into ours; a forbidden one stops the node (H7)."""
        kind = message["type"]
        if kind == "append_entries":
            self._on_send_append(node, message)
        elif kind == "request_vote":
            self._send(node, rm.VoteRequest(message["term"], message["last_log_index"], message["last_log_term"]))
        elif kind == "response_vote":
            self._send(node, rm.VoteGranted(message["term"]))
        else:
            raise QuorumFailure(f"the Raft engine tried to send {kind!r}")

    def _on_send_append(self, node: Peer, message: dict[str, Any]) -> None:
        now = step_time()
        heartbeat_due = now - self._sent_at.get(node, NEVER) >= self._timing.heartbeat_s
        if "serialized" in message:
            part: OutgoingPart | None = message["serialized"]
            if part is None:
                self._SyncObj__connectedNodes.discard(node)  # enough is in flight: ends pysyncobj's loop
                if heartbeat_due:
                    part = self._sender.question(node.voter.node_id)
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
            size = sum(len(entry[0]) + ENTRY_OVERHEAD for entry in entries)
            self._under_way.setdefault(node, _UnderWay()).add(entries[-1][1], size)
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
                tuple(rm.Entry(term, command) for command, _, term in entries),
                notice,
            ),
        )

    def _send(self, node: Peer, message: rm.RaftMessage) -> None:
        self._effects.append(ev.Send(node.voter.node_id, message))

    # --- links -------------------------------------------------------------------------------------

    def _link_up(self, node: Peer) -> None:
        before = self._linked.get(node.voter.node_id)
        if before is not None and before is not node:
            self._link_down(before)
        self._linked[node.voter.node_id] = node
        self._links.add(node)
        self._arrange()
        self._forget_under_way(node)
        if self.is_leader:
            self._must_send.add(node)

    def _link_down(self, node: Peer) -> None:
        self._links.discard(node)
        self._linked.pop(node.voter.node_id, None)
        self._arrange()
        self._must_send.discard(node)
        self._forget_under_way(node)

    def _forget_under_way(self, node: Peer) -> None:
        self._sender.end(node.voter.node_id)
        self._under_way.pop(node, None)
        self._told_commit.pop(node, None)
        self._sent_at.pop(node, None)

    def _forget_all_under_way(self) -> None:
        self._sender.clear()
        self._must_send.clear()
        self._under_way.clear()
        self._told_commit.clear()
        self._sent_at.clear()
        self._notice_at = FAR

    # --- answers -----------------------------------------------------------------------------------

    def _on_append_result(self, node: Peer, message: rm.AppendResult) -> None:
        if message.term > self.term:
            self._step_down(message.term)
            return
        if message.term < self.term or not self.is_leader:
            return
        if message.next_index > self.journal.last_index + 1:
            raise QuorumFailure(
                f"node {node.voter.node_id} holds committed or acknowledged entries up to {message.next_index - 1}; "
                f"the leader of term {self.term} has none after {self.journal.last_index}"
            )
        if node not in self._SyncObj__raftMatchIndex:
            return  # a directory that was never linked in this term
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
            # It lacks entries that we counted. Counting less than it acknowledged is always safe.
            self._SyncObj__raftMatchIndex[node] = matched = min(matched, message.next_index - 1)
        if message.reset:
            self._under_way.pop(node, None)
            self._sender.end(node.voter.node_id)
        if node in self._under_way:
            self._under_way[node].acknowledge(matched)
        if self._SyncObj__raftNextIndex[node] <= self.journal.last_index and node in self._links:
            self._must_send.add(node)

    def _on_snapshot_result(self, node: Peer, message: rm.SnapshotResult) -> None:
        if message.term > self.term:
            self._step_down(message.term)
            return
        if message.term < self.term or not self.is_leader:
            return
        self._SyncObj__lastResponseTime[node] = step_time()
        if self._sender.on_result(node.voter.node_id, message) and node in self._links:
            self._must_send.add(node)

    def _to_pysyncobj(self, node: Peer, **message: object) -> None:
        self._SyncObj__onMessageReceived(node, message)
