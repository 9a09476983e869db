"""Voters, the streams between them, and the agenda of future events.

A stream is one direction between two voters, so two voters have two. It is ordered, and either breaks, with messages in
transit, or stalls unnoticed. Each side learns of a break separately; a new stream begins after that.
"""

from __future__ import annotations

import abc
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.engine import RaftEngine
from tidelog.model.ids import UNASSIGNED_DIRECTORY, DirectoryId, NodeId
from tidelog.proto.transport import raft_messages as rm
from tidelog.storage.disk.memory_files import MemoryFiles

CALM_LATENCY_S: Final = (0.0002, 0.003)
_DELIVERED_TOGETHER: Final = 8

Messages = tuple[rm.RaftMessage, ...]


@dataclass(slots=True, eq=False)
class Voter:
    """One voter: what outlives its process, and the process while it runs."""

    node_id: NodeId
    files: MemoryFiles
    rate: float = 1.0
    """Seconds of its clock per second of the world."""
    clock_offset: float = 0.0
    engine: RaftEngine | None = None
    process: int = 0
    """Number of the current process."""
    leading: int = 0
    """The epoch in which its user believes that it leads; 0 for none."""
    epochs: list[int] = field(default_factory=list)
    due: float = 0.0
    busy_until: float = 0.0
    inbox: list[ev.EngineInput] = field(default_factory=list)
    slow_s: float = 0.0
    """A sync takes up to this long."""
    synced_at: float = 0.0
    tickets: dict[int, bytes] = field(default_factory=dict)
    started: bool = False
    compacted: int = 1
    power_fails_with_it: bool = False
    """A crash in a disk call takes the machine down too."""
    disk_fails: bool = False
    """Its disk was made to fail: the voter may stop."""
    may_join: bool = False
    """It was started on an empty directory, with permission to join."""
    flipped: tuple[str, int, int] | None = None
    """A damaged file that must be refused: path, position, mask."""


@dataclass(slots=True, eq=False)
class Stream:
    """One direction between two voters."""

    source: Voter
    target: Voter
    directory_id: DirectoryId = UNASSIGNED_DIRECTORY
    """The directory of the source's process, as announced when the stream was opened."""
    up: bool = False
    stalled: bool = False
    blocked: bool = False
    scheduled: bool = False
    """A delivery is on the agenda."""
    delay_s: float = 0.0
    doubled: bool = False
    """Everything on it arrives a second time, somewhat later."""
    incarnation: int = 0
    end_heard_at: float = 0.0
    """When both ends will have learned of the break."""
    frames: deque[tuple[float, Messages]] = field(default_factory=deque)


class LinkedVoters(abc.ABC):
    """The parts of a world, without the voters' steps."""

    def __init__(
        self, rng: random.Random, voters: Sequence[Voter], latency_s: tuple[float, float], *, as_bytes: bool
    ) -> None:
        self.rng = rng
        self.now = 1000.0
        self.latency_s = latency_s
        self.ids = tuple(voter.node_id for voter in voters)
        self.voters = {voter.node_id: voter for voter in voters}
        self.streams = {(a, b): Stream(self.voters[a], self.voters[b]) for a in self.ids for b in self.ids if a != b}
        self.events: Counter[str] = Counter()
        self._as_bytes = as_bytes
        self._agenda: list[tuple[float, int, Callable[..., None], Any, Any]] = []
        self._agenda_count = 0

    @abc.abstractmethod
    def _step(self, voter: Voter, inputs: list[ev.EngineInput] | tuple[()]) -> None:
        """Let a voter take inputs."""

    # --- time ----------------------------------------------------------------------------------------

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let virtual time pass until a condition holds; return whether it did."""
        end = self.now + seconds
        agenda = self._agenda
        if until is not None and until():
            return True
        while agenda and agenda[0][0] <= end:
            at, _, action, one, other = heapq.heappop(agenda)
            if at > self.now:
                self.now = at
            action(one, other)
            if until is not None and until():
                return True
        self.now = end
        return until is not None and until()

    def later(self, seconds: float, action: Callable[..., None], one: object = None, other: object = None) -> None:
        """Schedule a call of an action with the two values after a while."""
        self._agenda_count += 1
        heapq.heappush(self._agenda, (self.now + seconds, self._agenda_count, action, one, other))

    def _at(self, time: float, action: Callable[..., None], one: object, other: object) -> None:
        self._agenda_count += 1
        heapq.heappush(self._agenda, (time, self._agenda_count, action, one, other))

    # --- acting on streams -----------------------------------------------------------------------------

    def stall(self, a: NodeId, b: NodeId) -> None:
        """Hold messages from ``a`` to ``b``; neither notices."""
        self.streams[a, b].stalled = True

    def resume(self, a: NodeId, b: NodeId) -> None:
        """Let a stalled or blocked direction flow again: held messages arrive one by one."""
        stream = self.streams[a, b]
        if stream.stalled:
            stream.stalled = False
            at = self.now
            held, stream.frames = stream.frames, deque()
            for _, messages in held:
                at += self.rng.uniform(0.0, 0.002)
                stream.frames.append((at, messages))
            self._schedule(stream)
        if stream.blocked:
            stream.blocked = False
        if not stream.up:
            self._reconnect_later(stream)

    def disconnect(self, a: NodeId, b: NodeId, *, block: bool = False) -> None:
        """Break both streams between two voters; messages in transit may be lost. ``block``: until resumed."""
        for one, other in ((a, b), (b, a)):
            stream = self.streams[one, other]
            stream.blocked |= block
            self._break(stream)

    def isolate(self, node: NodeId, *, silent: bool) -> None:
        """Cut a voter off from all others, noticed or not."""
        for other in self.ids:
            if other != node:
                if silent:
                    self.stall(node, other)
                    self.stall(other, node)
                else:
                    self.disconnect(node, other, block=True)

    def heal(self) -> None:
        """Let everything flow again."""
        for (a, b), stream in self.streams.items():
            stream.delay_s, stream.doubled = 0.0, False
            self.resume(a, b)

    # --- inside ----------------------------------------------------------------------------------------

    def _reconnect_later(self, stream: Stream) -> None:
        self.later(self.rng.uniform(0.001, 0.05), self._connect, stream)

    def _connect(self, stream: Stream, _: None) -> None:
        if stream.up or stream.blocked or stream.source.engine is None or stream.target.engine is None:
            return
        if self.now < stream.end_heard_at:
            self._at(stream.end_heard_at, self._connect, stream, None)
            return
        stream.up = True
        stream.incarnation += 1
        stream.frames.clear()  # messages left on the old stream are ignored from now on
        self.events["connect"] += 1
        target = stream.target.engine
        stream.directory_id = stream.source.engine.journal.directory_id
        self._step(stream.source, [ev.LinkUp(stream.target.node_id, target.journal.directory_id, target.standing)])

    def _break(self, stream: Stream, *, target_gone: bool = False) -> None:
        if not stream.up:
            if target_gone:
                stream.frames.clear()
            return
        stream.up = False
        gone_at = self.now + self.rng.uniform(0.0, 0.002)
        if target_gone or stream.stalled or self.rng.random() < 0.5:
            stream.frames.clear()
        elif stream.frames:  # in transit already: they arrive before the end of the stream does
            gone_at = max(gone_at, stream.frames[-1][0])
        down_at = self.now + self.rng.uniform(0.0, 0.002)
        stream.end_heard_at = max(gone_at, down_at)
        self._tell(stream.source, ev.LinkDown(stream.target.node_id), down_at)
        self._tell(stream.target, ev.PeerSuspected(stream.source.node_id), gone_at)
        self._reconnect_later(stream)

    def _tell(self, voter: Voter, given: ev.EngineInput, at: float) -> None:
        if voter.engine is not None:
            self._at(at, self._told, voter, (voter.process, given))

    def _told(self, voter: Voter, what: tuple[int, ev.EngineInput]) -> None:
        if voter.process == what[0] and voter.engine is not None:
            self._step(voter, [what[1]])

    def _schedule(self, stream: Stream) -> None:
        if stream.frames and not stream.scheduled and not stream.stalled:
            stream.scheduled = True
            self._at(max(self.now, stream.frames[0][0]), self._arrive, stream, None)

    def _arrive(self, stream: Stream, _: None) -> None:
        """Deliver a frame, or a few that arrived together, as one step takes them."""
        stream.scheduled = False
        frames = stream.frames
        if stream.stalled or not frames:
            return
        inputs: list[ev.EngineInput] = []
        peer = stream.source.node_id
        while frames and frames[0][0] <= self.now and len(inputs) < _DELIVERED_TOGETHER:
            inputs.append(ev.Received(peer, stream.directory_id, frames.popleft()[1]))
        self._schedule(stream)
        if inputs:
            self._step(stream.target, inputs)

    def _arrive_again(self, stream: Stream, what: tuple[int, Messages]) -> None:
        if stream.up and stream.incarnation == what[0] and not stream.stalled:
            self.events["duplicate"] += 1
            self._step(stream.target, [ev.Received(stream.source.node_id, stream.directory_id, what[1])])

    def _send(self, source: NodeId, outgoing: dict[NodeId, list[rm.RaftMessage]]) -> None:
        rng = self.rng
        low, high = self.latency_s
        for peer, messages in outgoing.items():
            stream = self.streams[source, peer]
            if not stream.up:
                continue
            together: Messages = tuple(messages)
            if self._as_bytes:
                encoded = b"".join(rm.join_messages([rm.encode_message(message) for message in messages]))
                together = tuple(rm.decode_frame(encoded))
            at = self.now + low + (high - low) * rng.random() + stream.delay_s
            if stream.frames and stream.frames[-1][0] > at:
                at = stream.frames[-1][0]
            stream.frames.append((at, together))
            if not stream.scheduled:
                self._schedule(stream)
            if stream.doubled:
                again_at = at + rng.uniform(0.0, rng.choice((0.005, 0.05, 0.4)))
                self._at(again_at, self._arrive_again, stream, (stream.incarnation, together))
