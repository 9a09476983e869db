"""A quorum of Raft engines in virtual time: seeded, without threads, sockets or asyncio.

:class:`QuorumWorld` drives the engines that a node runs, over streams and disks of its own, and has
every step judged (:mod:`tidelog.chaos.sim.quorum_watch`, :mod:`tidelog.chaos.checkers.quorum`). The same
seed and the same calls give the same run.

What it knows of the world around an engine: streams between two voters are ordered, break with what is
under way, or stall; a process may be held up, its clock runs at a rate of its own and may jump ahead, its
disk may be slow, fail, fill up, lose what was not synced or end the process in any call.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.chaos.sim.quorum_watch import QuorumWatch, Violation
from tidelog.chaos.sim.scenario import Trace
from tidelog.metadata_quorum import raft_events as ev
from tidelog.metadata_quorum.quorum_types import QuorumDamaged, QuorumIdentity, QuorumLimits, QuorumTiming
from tidelog.metadata_quorum.raft_engine import RaftEngine
from tidelog.metadata_quorum.raft_storage import open_engine
from tidelog.model.ids import NodeId
from tidelog.proto import raft_messages as rm
from tidelog.storage.memory_files import Faults, Killed, MemoryFiles

DIRECTORY: Final = "/quorum"
JOURNAL: Final = f"{DIRECTORY}/journal"
SNAPSHOT: Final = f"{DIRECTORY}/snapshot"
_STATE: Final = struct.Struct("<Q32s")
_MARK: Final = struct.Struct("<dIIQQQQ")
_DELIVERED_TOGETHER: Final = 8
_WAKES_AT_ONCE_MAX: Final = 500
"""So many steps without input at one instant are a voter that spins."""
_CALM_LATENCY_S: Final = (0.0002, 0.003)
_NEVER: Final = float("-inf")

Messages = tuple[rm.RaftMessage, ...]


@dataclass(slots=True, eq=False)
class Voter:
    """One voter: what outlives its process, and its process while it runs."""

    node_id: NodeId
    files: MemoryFiles
    rate: float = 1.0
    """Seconds of its clock for each of the world's."""
    clock_offset: float = 0.0
    engine: RaftEngine | None = None
    process: int = 0
    """Counts its processes."""
    leading: int = 0
    """The epoch under which its user believes that it leads; 0 for none."""
    epochs: list[int] = field(default_factory=list)
    due: float = 0.0
    busy_until: float = 0.0
    inbox: list[ev.EngineInput] = field(default_factory=list)
    slow_s: float = 0.0
    """A sync takes up to so long."""
    synced_at: float = 0.0
    tickets: dict[int, bytes] = field(default_factory=dict)
    started: bool = False
    compacted: int = 1
    power_fails_with_it: bool = False
    """A crash in a disk call is one of the machine."""
    disk_fails: bool = False
    """Its disk was made to fail: the voter may stop."""
    flipped: tuple[str, int, int] | None = None
    """A damaged file that must be refused: path, position, mask."""


@dataclass(slots=True, eq=False)
class Stream:
    """One direction between two voters."""

    source: Voter
    target: Voter
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
    """When both ends have heard that it broke."""
    frames: deque[tuple[float, Messages]] = field(default_factory=deque)


class QuorumWorld:
    """Voters, streams, a clock, and the history that is checked. Whatever acts may raise :class:`Violation`."""

    def __init__(
        self,
        seed: int,
        voters: int = 3,
        timing: QuorumTiming | None = None,
        limits: QuorumLimits | None = None,
        *,
        latency_s: tuple[float, float] = _CALM_LATENCY_S,
        drift: float = 0.0,
        compact_every: int = 0,
        as_bytes: bool = True,
        engine_class: Callable[..., RaftEngine] | None = None,
        trace: Trace | None = None,
    ) -> None:
        """``drift``: clocks run up to that share fast or slow. ``compact_every``: entries after which a voter
        writes a snapshot by itself; 0 for never. ``as_bytes``: messages travel encoded."""
        self.rng = random.Random(f"quorum-world-{seed}")
        self.now = 1000.0
        self.timing = timing or QuorumTiming()
        self.limits = limits or QuorumLimits()
        self.latency_s = latency_s
        self.compact_every = compact_every
        self.state_padding = 0
        """Bytes that make snapshots larger."""
        self._as_bytes = as_bytes
        self._engine_class = engine_class
        self._trace = trace
        self.ids = tuple(NodeId(node) for node in range(1, voters + 1))
        self.voters: dict[NodeId, Voter] = {}
        for node in self.ids:
            rate = 1.0 + self.rng.uniform(-drift, drift) if drift else 1.0
            files = MemoryFiles(faults=Faults(random.Random(self.rng.random())))
            files.disk.names_in_order = False
            self.voters[node] = Voter(node, files, rate)
        self.streams = {(a, b): Stream(self.voters[a], self.voters[b]) for a in self.ids for b in self.ids if a != b}
        self.watch = QuorumWatch(self.ids, self.timing)
        self.judge = self.watch.judge
        self.events = self.watch.events
        self.steps = 0
        self.acknowledged: dict[bytes, int] = {}
        self._tickets = 0
        self._agenda: list[tuple[float, int, Callable[..., None], Any, Any]] = []
        self._agenda_count = 0
        self._woke_at = 0.0
        self._wakes = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self.on_leading: Callable[[NodeId], None] | None = None
        """Called when a voter is told that it leads."""
        self.on_elected: Callable[[NodeId], None] | None = None
        """Called when a voter is elected, which is before."""
        self.on_down: Callable[[NodeId], None] | None = None
        """Called when a process ended by itself: in a disk call, or because its disk failed."""

    # --- acting ------------------------------------------------------------------------------------

    def start(self, *nodes: NodeId) -> None:
        """Start voters that are down (all by default) and let their streams come up."""
        for node in nodes or self.ids:
            voter = self.voters[node]
            if voter.engine is None:
                self._start(voter)

    def kill(self, *nodes: NodeId, power_loss: bool = False) -> None:
        """End processes at once; peers notice by their streams. ``power_loss``: and machines."""
        for node in nodes:
            voter = self.voters[node]
            if voter.engine is not None:
                self._dead(voter, "killed")
            if power_loss:
                voter.files.restart(power_loss=True)

    def crash_in(self, node: NodeId, calls: int, *, kind: str = "", power_loss: bool = False) -> None:
        """Let a voter's process (or machine) end in the midst of its n-th disk call (of a kind) from now."""
        voter = self.voters[node]
        faults = voter.files.faults
        if kind:
            faults.kill_in = (kind, calls)
        else:
            faults.kill_at = faults.steps + calls
        voter.power_fails_with_it = power_loss

    def stall(self, a: NodeId, b: NodeId) -> None:
        """Hold what ``a`` sends to ``b``; nobody notices."""
        self.streams[a, b].stalled = True

    def resume(self, a: NodeId, b: NodeId) -> None:
        """Let a stalled or blocked direction flow again: what was held arrives one by one."""
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
        """Break both streams between two voters; what is under way may be lost. ``block``: until resumed."""
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

    def pause(self, node: NodeId, seconds: float) -> None:
        """Hold a process up: it takes no step, and what arrives waits."""
        voter = self.voters[node]
        voter.busy_until = max(voter.busy_until, self.now + seconds)
        self._arm(voter)

    def jump(self, node: NodeId, seconds: float) -> None:
        """Let a voter's clock jump ahead."""
        voter = self.voters[node]
        voter.clock_offset += seconds
        self._arm(voter)

    def propose(self, node: NodeId, *payloads: bytes, epoch: int | None = None) -> bool:
        """Propose at a voter that leads, all in one step; what becomes of it shows in the history."""
        voter = self.voters[node]
        decided = epoch or voter.leading
        if voter.engine is None or not decided:
            return False
        inputs: list[ev.EngineInput] = []
        for payload in payloads:
            self._tickets += 1
            voter.tickets[self._tickets] = payload
            self.watch.proposed(payload, decided)
            inputs.append(ev.Propose(self._tickets, decided, payload))
        self._step(voter, inputs)
        return True

    def compact(self, node: NodeId, _: None = None) -> None:
        """Let a voter write a snapshot of what it has applied."""
        voter = self.voters[node]
        index, digest = self.judge.applied(node)
        at = self.judge.command_at(index)
        if voter.engine is not None and at is not None:
            voter.compacted = index
            self._step(voter, [ev.Compact(index, at[0], _STATE.pack(index, digest) + bytes(self.state_padding))])

    # --- watching ----------------------------------------------------------------------------------

    @property
    def leader(self) -> NodeId | None:
        """The voter that leads in the highest term."""
        best: Voter | None = None
        for voter in self.voters.values():
            if voter.leading and (best is None or voter.leading > best.leading):
                best = voter
        return best.node_id if best is not None else None

    @property
    def digest(self) -> str:
        """Hash over every step so far."""
        return self._digest.hexdigest()

    def engine(self, node: NodeId) -> RaftEngine:
        engine = self.voters[node].engine
        assert engine is not None
        return engine

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let virtual time pass until a condition holds; returns whether it came to hold."""
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

    def settle(self, seconds: float = 20.0, then: Callable[[NodeId], None] | None = None) -> None:
        """End all trouble, restart everyone, and demand progress and equality within a bound.

        ``then`` is called with the leader once there is one.
        """
        self.heal()
        self.latency_s = _CALM_LATENCY_S
        for voter in self.voters.values():
            voter.files.faults.kill_at = voter.files.faults.kill_in = None
            voter.files.faults.failing.clear()
            voter.disk_fails = False
            voter.slow_s = 0.0
        self.start()
        self.start()  # a file that was refused is restored now
        if not self.run(seconds, lambda: self.leader is not None):
            raise Violation(f"progress: no leader within {seconds} s after healing")
        if then is not None and self.leader is not None:
            then(self.leader)
        self.run(0.01)
        payload = b"settled-%d" % self.steps
        handed_in = False

        def done() -> bool:
            nonlocal handed_in
            outcome = self.judge.outcome_of(payload) if handed_in else "refused"
            if outcome == "acknowledged" or outcome == "unknown":
                return self._all_equal() and not any(voter.tickets for voter in self.voters.values())
            if outcome == "refused" and self.leader is not None:
                handed_in = self.propose(self.leader, payload)
            return False

        if not self.run(seconds, done):
            states = {node: self.judge.applied(node)[0] for node in self.ids}
            open_ = {node: len(voter.tickets) for node, voter in self.voters.items() if voter.tickets}
            raise Violation(
                f"progress: within {seconds} s after healing not all came to the same state or not all is answered: "
                f"voters heard up to {states}, open proposals {open_}"
            )
        self.watch.finished(self.ids)

    def _all_equal(self) -> bool:
        applied = self.judge.applied
        first = applied(self.ids[0])
        return all(applied(node) == first for node in self.ids)

    # --- inside: time ------------------------------------------------------------------------------

    def later(self, seconds: float, action: Callable[..., None], one: Any = None, other: Any = None) -> None:
        """Have an action called with the two values after a while."""
        self._agenda_count += 1
        heapq.heappush(self._agenda, (self.now + seconds, self._agenda_count, action, one, other))

    def _at(self, time: float, action: Callable[..., None], one: Any, other: Any) -> None:
        self._agenda_count += 1
        heapq.heappush(self._agenda, (time, self._agenda_count, action, one, other))

    def _arm(self, voter: Voter) -> None:
        """Put the voter's next step without input on the agenda."""
        engine = voter.engine
        if engine is None:
            return
        due = engine.deadline()
        if due == float("inf") and voter.busy_until <= self.now:
            voter.due = due
            return
        at = self.now if due == _NEVER else (due - voter.clock_offset) / voter.rate
        at = max(at, self.now, voter.busy_until) if not voter.inbox else max(self.now, voter.busy_until)
        if at != voter.due:
            voter.due = at
            self._at(at, self._wake, voter, at)

    def _wake(self, voter: Voter, at: float) -> None:
        if voter.due == at and voter.engine is not None:
            voter.due = 0.0
            self._wakes = self._wakes + 1 if at == self._woke_at else 0
            self._woke_at = at
            if self._wakes > _WAKES_AT_ONCE_MAX:
                raise Violation(f"progress: node {voter.node_id} has always something to do and does nothing")
            if voter.busy_until > self.now:
                self._arm(voter)
            else:
                self._step(voter, ())

    # --- inside: streams ---------------------------------------------------------------------------

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
        stream.frames.clear()  # what the old stream had left is not heard any more
        self.events["connect"] += 1
        self._step(stream.source, [ev.LinkUp(stream.target.node_id)])

    def _break(self, stream: Stream, *, target_gone: bool = False) -> None:
        if not stream.up:
            if target_gone:
                stream.frames.clear()
            return
        stream.up = False
        gone_at = self.now + self.rng.uniform(0.0, 0.002)
        if target_gone or stream.stalled or self.rng.random() < 0.5:
            stream.frames.clear()
        elif stream.frames:  # on their way already: they arrive before the end of the stream does
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
        """Deliver a frame, or a few that came together, as one step takes them."""
        stream.scheduled = False
        frames = stream.frames
        if stream.stalled or not frames:
            return
        inputs: list[ev.EngineInput] = []
        peer = stream.source.node_id
        while frames and frames[0][0] <= self.now and len(inputs) < _DELIVERED_TOGETHER:
            inputs.append(ev.Received(peer, frames.popleft()[1]))
        self._schedule(stream)
        if inputs:
            self._step(stream.target, inputs)

    def _arrive_again(self, stream: Stream, what: tuple[int, Messages]) -> None:
        if stream.up and stream.incarnation == what[0] and not stream.stalled:
            self.events["duplicate"] += 1
            self._step(stream.target, [ev.Received(stream.source.node_id, what[1])])

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

    # --- inside: processes -------------------------------------------------------------------------

    def _start(self, voter: Voter) -> None:
        node = voter.node_id
        identity = QuorumIdentity("simulated", node, self.ids)
        rng = random.Random(self.rng.random())
        files = voter.files
        size = self._journal_size(voter)
        if self._trace:
            self._trace(f"{self.now:.6f} node {node} starts")
        try:
            engine = open_engine(
                files, DIRECTORY, identity, self.timing, self.limits, rng, self._local(voter), self._engine_class
            )
        except Killed:
            self._crashed(voter)
            return
        except OSError as error:
            if not voter.disk_fails:
                raise Violation(f"node {node} does not start: {error!r}") from error
            self._stopped_by_disk(voter)
            return
        except QuorumDamaged as error:
            if voter.flipped is None:
                raise Violation(f"node {node} does not start: {error}") from error
            self.events["damage-refused"] += 1
            files.flip(*voter.flipped)  # somebody restores the file
            voter.flipped = None
            files.restart()
            return
        except Exception as error:
            raise Violation(f"node {node} does not start: {error!r}") from error
        if voter.flipped is not None:
            raise Violation(f"node {node} accepts {voter.flipped[0]} with byte {voter.flipped[1]} changed")
        voter.engine = engine
        voter.process += 1
        voter.started = False
        voter.leading = 0
        voter.due = 0.0
        voter.busy_until = voter.synced_at = self.now
        self.watch.started(node, engine, torn=engine.journal.bytes_on_disk < size)
        self._step(voter, ())
        for (a, b), stream in self.streams.items():
            if node in (a, b):
                self._reconnect_later(stream)

    def _journal_size(self, voter: Voter) -> int:
        try:
            return len(voter.files.content(JOURNAL))
        except OSError:
            return 0

    def _crashed(self, voter: Voter) -> None:
        """The process ended in a disk call, and perhaps the machine."""
        self.events["crash-in-disk-call"] += 1
        power_loss = voter.power_fails_with_it
        self._dead(voter, "crashed in a disk call", in_step=True)
        self._down(voter, power_loss)

    def _stopped_by_disk(self, voter: Voter) -> None:
        """The disk failed, and the node stopped, as it must."""
        self.events["stopped-by-disk"] += 1
        power_loss = voter.power_fails_with_it
        if voter.engine is not None:
            voter.engine.close(clean=False)
        self._dead(voter, "stopped by its disk", in_step=True)
        self._down(voter, power_loss)

    def _down(self, voter: Voter, power_loss: bool) -> None:
        if power_loss:
            voter.files.restart(power_loss=True)
        if self.on_down is not None:
            self.on_down(voter.node_id)

    def _dead(self, voter: Voter, how: str, *, in_step: bool = False) -> None:
        if self._trace:
            self._trace(f"{self.now:.6f} node {voter.node_id} {how}")
        voter.engine = None
        voter.leading = 0
        voter.inbox.clear()
        voter.disk_fails = voter.power_fails_with_it = False
        voter.files.restart()
        self.watch.ended(voter.node_id, in_step=in_step)
        for payload in voter.tickets.values():
            self.judge.outcome_unknown(payload)
        voter.tickets.clear()
        for (a, b), stream in self.streams.items():
            if voter.node_id in (a, b):
                self._break(stream, target_gone=b == voter.node_id)

    # --- inside: steps -----------------------------------------------------------------------------

    def _local(self, voter: Voter) -> float:
        return self.now * voter.rate + voter.clock_offset

    def _step(self, voter: Voter, inputs: list[ev.EngineInput] | tuple[()]) -> None:
        engine = voter.engine
        if engine is None:
            return
        if voter.busy_until > self.now:
            voter.inbox.extend(inputs)
            return
        if voter.inbox:
            inputs = [*voter.inbox, *inputs]
            voter.inbox.clear()
        node = voter.node_id
        local_now = self.now * voter.rate + voter.clock_offset
        journal = engine.journal
        syncs = journal.syncs
        self.steps += 1
        try:
            effects = engine.step(inputs, local_now)
        except Killed:
            self._crashed(voter)
            return
        except OSError as error:
            if not voter.disk_fails:
                raise Violation(f"node {node} stops: {error!r}") from error
            self._stopped_by_disk(voter)
            return
        except Exception as error:
            raise Violation(f"node {node} stops: {error!r}") from error
        self._digest.update(
            _MARK.pack(
                self.now, node, len(effects), engine.term, journal.last_index, engine.commit_index, journal.syncs
            )
        )
        elected = self.watch.stepped(node, engine, inputs, effects, local_now)
        if elected and self.on_elected is not None:
            self.on_elected(node)
        synced = journal.syncs != syncs
        if synced:
            voter.synced_at = self.now
        if voter.slow_s and synced:
            voter.busy_until = self.now + self.rng.uniform(0.0, voter.slow_s)
            self._at(voter.busy_until, self._execute_held, voter, (voter.process, effects))
        elif effects:
            self._execute(voter, effects)
        self._arm(voter)

    def _execute_held(self, voter: Voter, held: tuple[int, list[ev.Effect]]) -> None:
        if voter.process == held[0] and voter.engine is not None:
            self._execute(voter, held[1])

    def _execute(self, voter: Voter, effects: list[ev.Effect]) -> None:
        outgoing: dict[NodeId, list[rm.RaftMessage]] = {}
        for effect in effects:
            if isinstance(effect, ev.Send):
                peer = effect.peer
                if peer in outgoing:
                    outgoing[peer].append(effect.message)
                else:
                    outgoing[peer] = [effect.message]
            else:
                self._observe(voter, effect)
        voter.started = True
        if outgoing:
            self._send(voter.node_id, outgoing)

    def _observe(self, voter: Voter, effect: ev.Effect) -> None:
        node = voter.node_id
        if isinstance(effect, ev.Committed):
            assert voter.engine is not None
            self.watch.committed(node, effect.index, effect.term, effect.payload, voter.engine.term)
            if self.compact_every and effect.index - voter.compacted >= self.compact_every:
                voter.compacted = effect.index
                self.later(self.rng.uniform(0.0, 0.001), self._compact_now, voter, voter.process)
            return
        if self._trace:
            self._trace(f"{self.now:.6f} node {node} {str(effect)[:200]}")
        match effect:
            case ev.ProposalEnded(ticket, outcome, index):
                payload = voter.tickets.pop(ticket)
                self.events[f"proposal-{outcome.name.lower().replace('_', '-')}"] += 1
                self.watch.answered(payload, outcome, index)
                if index > 0:
                    self.acknowledged[payload] = index
            case ev.Loaded(index, _, state):
                found_index, digest = _STATE.unpack_from(state)
                if found_index != index:
                    raise Violation(f"node {node} loaded the state of {found_index} as that of {index}")
                self.events["snapshot-install" if voter.started else "snapshot-load"] += 1
                if voter.started and voter.engine is not None and voter.engine.journal.last_index > index:
                    self.events["snapshot-install-keeps-suffix"] += 1
                voter.compacted = max(voter.compacted, index)
                self.watch.loaded(node, index, digest)
            case ev.Leading(term):
                voter.leading = term
                voter.epochs.append(term)
                self.watch.told_to_lead(node, term)
                if self.on_leading is not None:
                    self.on_leading(node)
            case ev.Resigned(term):
                if voter.leading != term:
                    raise Violation(f"node {node} resigned from {term}, led {voter.leading}")
                voter.leading = 0
                self.events["step-down"] += 1
            case ev.Compacted():
                self.events["snapshot-write"] += 1
            case _:
                pass

    def _compact_now(self, voter: Voter, process: int) -> None:
        if voter.process == process and voter.engine is not None:
            self.compact(voter.node_id)
