"""A quorum of Raft engines in virtual time: seeded, without threads, sockets or asyncio.

:class:`QuorumWorld` drives the engines that a node runs, over streams and disks of its own, and
checks after every step what must hold whatever happens:

- one command at each index, for ever and for every voter;
- at most one leader in each term;
- what was acknowledged stays; what was refused as not done is never committed;
- every voter's state after the same index is the same, whether it applied entries or loaded a snapshot;
- a voter hears of entries in order and without gap.

The same seed gives the same run.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.chaos.simulated_disk import SimulatedCrash, SimulatedDisk
from tidelog.metadata_quorum import raft_events as ev
from tidelog.metadata_quorum.quorum_types import QuorumIdentity, QuorumLimits, QuorumTiming
from tidelog.metadata_quorum.raft_engine import RaftEngine
from tidelog.metadata_quorum.raft_storage import open_engine
from tidelog.model.ids import NodeId
from tidelog.proto import raft_messages as rm

DIRECTORY: Final = "/quorum"
_STATE: Final = struct.Struct("<Q32s")
_NO_STATE: Final = (1, bytes(32))


class Violation(AssertionError):
    """Something happened that must never happen."""


@dataclass(slots=True)
class Voter:
    """One voter: what outlives its process, and its process while it runs."""

    node_id: NodeId
    disk: SimulatedDisk
    engine: RaftEngine | None = None
    applied: tuple[int, bytes] = _NO_STATE
    """Index and digest of everything that this process has heard."""
    leading: int = 0
    epochs: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Stream:
    """One direction between two voters."""

    up: bool = False
    stalled: bool = False
    blocked: bool = False
    frames: deque[tuple[float, list[bytes]]] = field(default_factory=deque)


class QuorumWorld:
    """Voters, streams, a clock, and the history that is checked."""

    def __init__(
        self,
        seed: int,
        voters: int = 3,
        timing: QuorumTiming | None = None,
        limits: QuorumLimits | None = None,
        latency_s: tuple[float, float] = (0.0002, 0.003),
        engine_class: Callable[..., RaftEngine] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.timing = timing or QuorumTiming()
        self.limits = limits or QuorumLimits()
        self.latency_s = latency_s
        self._engine_class = engine_class
        self.state_padding = 0
        """Bytes that make snapshots larger."""
        self.ids = tuple(NodeId(node) for node in range(1, voters + 1))
        self.voters = {node: Voter(node, SimulatedDisk(random.Random(self.rng.random()))) for node in self.ids}
        self.streams = {(a, b): _Stream() for a in self.ids for b in self.ids if a != b}
        self.steps = 0
        self.crashes = 0
        self.loads = 0
        self._ticket = 0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._proposals: dict[int, tuple[NodeId, bytes]] = {}
        # history
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.digests: dict[int, bytes] = {1: bytes(32)}
        self.leaders: dict[int, NodeId] = {}
        self.acknowledged: dict[bytes, int] = {}
        self.refused: set[bytes] = set()
        self.unknown: set[bytes] = set()

    # --- acting ------------------------------------------------------------------------------------

    def start(self, *nodes: NodeId) -> None:
        """Start voters (all by default) and let their streams come up."""
        for node in nodes or self.ids:
            voter = self.voters[node]
            if voter.engine is not None:
                continue
            identity = QuorumIdentity("simulated", node, self.ids)
            rng = random.Random(self.rng.random())
            voter.applied, voter.leading = _NO_STATE, 0
            try:
                voter.engine = open_engine(
                    voter.disk, DIRECTORY, identity, self.timing, self.limits, rng, self.now, self._engine_class
                )
            except SimulatedCrash:
                self._dead(voter)
                continue
            self._step(voter, [])
        for a, b in self.streams:
            self._reconnect_later(a, b)

    def kill(self, *nodes: NodeId, power_loss: bool = False) -> None:
        """End processes at once; peers notice by their streams."""
        for node in nodes:
            voter = self.voters[node]
            if voter.engine is not None:
                self._dead(voter)
            if power_loss:
                voter.disk.lose_power()

    def crash_in(self, node: NodeId, calls: int) -> None:
        """Let a voter's process end in the midst of its n-th disk call from now."""
        disk = self.voters[node].disk
        disk.crash_at = disk.calls + calls

    def stall(self, a: NodeId, b: NodeId) -> None:
        """Hold what ``a`` sends to ``b``; nobody notices."""
        self.streams[a, b].stalled = True

    def disconnect(self, a: NodeId, b: NodeId, *, block: bool = False) -> None:
        """Break both streams between two voters; what is under way is lost. ``block``: until healed."""
        for one, other in ((a, b), (b, a)):
            self.streams[one, other].blocked |= block
            self._break(one, other)

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
            stream.stalled = stream.blocked = False
            self._reconnect_later(a, b)

    def propose(self, node: NodeId, payload: bytes, epoch: int | None = None) -> None:
        """Propose at a voter that leads; what becomes of it shows in the history."""
        voter = self.voters[node]
        if voter.engine is None or not (voter.leading or epoch):
            return
        self._ticket += 1
        self._proposals[self._ticket] = (node, payload)
        self._step(voter, [ev.Propose(self._ticket, epoch or voter.leading, payload)])

    def compact(self, node: NodeId) -> None:
        """Let a voter write a snapshot of what it has applied."""
        voter = self.voters[node]
        index, digest = voter.applied
        if voter.engine is not None and index > 1:
            self._step(
                voter,
                [ev.Compact(index, self.committed[index][0], _STATE.pack(index, digest) + bytes(self.state_padding))],
            )

    # --- watching ----------------------------------------------------------------------------------

    @property
    def leader(self) -> NodeId | None:
        """The voter that leads in the highest term."""
        leading = [voter for voter in self.voters.values() if voter.engine is not None and voter.leading]
        return max(leading, key=lambda voter: voter.leading).node_id if leading else None

    def engine(self, node: NodeId) -> RaftEngine:
        engine = self.voters[node].engine
        assert engine is not None
        return engine

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let virtual time pass until a condition holds; returns whether it came to hold."""
        end = self.now + seconds
        while until is None or not until():
            due = self._next_due()
            if due is None or due[0] > end:
                self.now = end
                return until is not None and until()
            self.now = max(self.now, due[0])
            due[1]()
        return True

    def settle(self, seconds: float = 20.0) -> None:
        """Heal, restart everyone, and demand progress and equality."""
        self.heal()
        for voter in self.voters.values():
            voter.disk.crash_at = None
        self.start()
        if not self.run(seconds, lambda: self.leader is not None):
            raise Violation(f"no leader within {seconds} s after healing")
        payload = b"settled-%d" % self.steps
        settled = self.acknowledged, self.unknown

        def done() -> bool:
            if any(payload in outcome for outcome in settled):
                return self._all_equal()
            if self.leader is not None and all(value != payload for _, value in self._proposals.values()):
                self.refused.discard(payload)
                self.propose(self.leader, payload)
            return False

        if not self.run(seconds, done):
            states = {voter.node_id: voter.applied[0] for voter in self.voters.values()}
            raise Violation(f"no progress within {seconds} s after healing: applied {states}")
        for each, index in self.acknowledged.items():
            if self.committed[index][1] != each:
                raise Violation(f"acknowledged {each!r} at {index} is lost")

    def _all_equal(self) -> bool:
        return len({voter.applied for voter in self.voters.values()}) == 1

    # --- inside: time ------------------------------------------------------------------------------

    def _next_due(self) -> tuple[float, Callable[[], None]] | None:
        best: tuple[float, Callable[[], None]] | None = None
        for voter in self.voters.values():
            if voter.engine is not None:
                at = max(voter.engine.deadline(), self.now)
                if best is None or at < best[0]:
                    best = (at, lambda voter=voter: self._step(voter, []))
        for (a, b), stream in self.streams.items():
            if stream.frames and not stream.stalled and (best is None or stream.frames[0][0] < best[0]):
                best = (stream.frames[0][0], lambda a=a, b=b: self._arrive(a, b))
        if self._timers and (best is None or self._timers[0][0] < best[0]):
            best = (self._timers[0][0], self._fire)
        return None if best is None or best[0] == float("inf") else best

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after a while."""
        self._timer_count += 1
        self._timers.append((self.now + seconds, self._timer_count, action))
        self._timers.sort(key=lambda timer: timer[:2])

    def _fire(self) -> None:
        self._timers.pop(0)[2]()

    # --- inside: streams ---------------------------------------------------------------------------

    def _reconnect_later(self, a: NodeId, b: NodeId) -> None:
        self.later(self.rng.uniform(0.001, 0.05), lambda: self._connect(a, b))

    def _connect(self, a: NodeId, b: NodeId) -> None:
        stream = self.streams[a, b]
        one, other = self.voters[a], self.voters[b]
        if stream.up or stream.blocked or one.engine is None or other.engine is None:
            return
        stream.up = True
        self._step(one, [ev.LinkUp(b)])

    def _break(self, a: NodeId, b: NodeId) -> None:
        stream = self.streams[a, b]
        stream.frames.clear()
        if stream.up:
            stream.up = False
            self._tell_soon(a, ev.LinkDown(b))
            self._tell_soon(b, ev.PeerSuspected(a))
            self._reconnect_later(a, b)

    def _tell_soon(self, node: NodeId, given: ev.EngineInput) -> None:
        engine = self.voters[node].engine

        def tell() -> None:
            voter = self.voters[node]
            if voter.engine is engine:
                self._step(voter, [given])

        self.later(self.rng.uniform(0, 0.002), tell)

    def _arrive(self, a: NodeId, b: NodeId) -> None:
        """Deliver a frame, or a few that came together, as one step takes them."""
        stream = self.streams[a, b]
        inputs: list[ev.EngineInput] = []
        while stream.frames and stream.frames[0][0] <= self.now and len(inputs) < 8:
            _, messages = stream.frames.popleft()
            inputs.append(ev.Received(a, tuple(rm.decode_frame(b"".join(rm.join_messages(messages))))))
        self._step(self.voters[b], inputs)

    def _send(self, a: NodeId, messages: dict[NodeId, list[bytes]]) -> None:
        for b, encoded in messages.items():
            stream = self.streams[a, b]
            if stream.up:
                earliest = stream.frames[-1][0] if stream.frames else self.now
                stream.frames.append((max(earliest, self.now + self.rng.uniform(*self.latency_s)), encoded))

    # --- inside: steps -----------------------------------------------------------------------------

    def _step(self, voter: Voter, inputs: Iterable[ev.EngineInput]) -> None:
        engine = voter.engine
        if engine is None:
            return
        self.steps += 1
        try:
            effects = engine.step(inputs, self.now)
        except SimulatedCrash:
            self.crashes += 1
            self._dead(voter)
            return
        outgoing: dict[NodeId, list[bytes]] = {}
        for effect in effects:
            if isinstance(effect, ev.Send):
                outgoing.setdefault(effect.peer, []).append(rm.encode_message(effect.message))
            else:
                self._observe(voter, effect)
        self._send(voter.node_id, outgoing)
        if engine.is_leader:
            known = self.leaders.setdefault(engine.term, voter.node_id)
            if known != voter.node_id:
                raise Violation(f"nodes {known} and {voter.node_id} both lead in term {engine.term}")

    def _dead(self, voter: Voter) -> None:
        voter.engine = None
        voter.leading = 0
        voter.disk.kill()
        for ticket, (node, payload) in list(self._proposals.items()):
            if node == voter.node_id:
                del self._proposals[ticket]
                self.unknown.add(payload)
        for other in self.ids:
            if other != voter.node_id:
                self._break(voter.node_id, other)
                self._break(other, voter.node_id)

    def _observe(self, voter: Voter, effect: Any) -> None:
        match effect:
            case ev.Committed(index, term, payload):
                self._on_committed(voter, index, term, payload)
            case ev.Loaded(index, _, state):
                found = _STATE.unpack_from(state)
                if found[0] != index or self.digests.get(index) != found[1]:
                    raise Violation(f"node {voter.node_id} loaded a state at {index} that nobody had")
                voter.applied = (index, found[1])
                self.loads += 1
            case ev.Leading(term):
                voter.leading = term
                voter.epochs.append(term)
            case ev.Resigned(term):
                if voter.leading != term:
                    raise Violation(f"node {voter.node_id} resigned from {term}, led {voter.leading}")
                voter.leading = 0
            case ev.ProposalEnded(ticket, outcome, index):
                _, payload = self._proposals.pop(ticket)
                self._on_ended(payload, outcome, index)
            case _:
                pass

    def _on_committed(self, voter: Voter, index: int, term: int, payload: bytes) -> None:
        before, digest = voter.applied
        if index != before + 1:
            raise Violation(f"node {voter.node_id} heard of {index} after {before}")
        known = self.committed.setdefault(index, (term, payload))
        if known != (term, payload):
            raise Violation(f"two commands at {index}: {known} and, on node {voter.node_id}, {(term, payload)}")
        if payload in self.refused and payload:
            raise Violation(f"{payload!r} was refused and is committed at {index}")
        digest = hashlib.sha256(digest + struct.pack("<QQ", index, term) + payload).digest()
        if self.digests.setdefault(index, digest) != digest:
            raise Violation(f"states differ at {index}")
        voter.applied = (index, digest)

    def _on_ended(self, payload: bytes, outcome: ev.ProposalOutcome, index: int) -> None:
        if outcome is ev.ProposalOutcome.COMMITTED:
            if self.committed.get(index, (0, b""))[1] != payload:
                raise Violation(f"{payload!r} was acknowledged at {index} and is not there")
            self.acknowledged[payload] = index
        elif outcome is ev.ProposalOutcome.UNKNOWN:
            self.unknown.add(payload)
        else:
            self.refused.add(payload)
            if any(known == payload for _, known in self.committed.values()):
                raise Violation(f"{payload!r} was refused and is committed")
