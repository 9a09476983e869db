"""A quorum of Raft engines in virtual time: seeded, without threads, sockets or asyncio.

:class:`QuorumWorld` drives the same engines as a node, over its own streams and disks, and judges every step
(:mod:`tidelog.chaos.simulated.quorum.watch`, :mod:`tidelog.chaos.checkers.quorum`). The same seed and the same calls
give the same run.

Its model of the environment: streams between two voters are ordered, break with messages in transit, or stall; a
process may be paused, its clock runs at its own rate and may jump ahead, its disk may be slow, fail, fill up, lose
unsynced data or end the process in any call.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable
from typing import Final

from tidelog.chaos.simulated.quorum.links import CALM_LATENCY_S, LinkedVoters, Voter
from tidelog.chaos.simulated.quorum.watch import QuorumWatch, Violation
from tidelog.chaos.simulated.world.scenario import Trace
from tidelog.metadata_quorum.raft import events as ev
from tidelog.metadata_quorum.raft.engine import RaftEngine
from tidelog.metadata_quorum.raft.storage import open_engine
from tidelog.metadata_quorum.raft.types import QuorumDamaged, QuorumIdentity, QuorumLimits, QuorumTiming
from tidelog.model.ids import DirectoryId, NodeId, random_id
from tidelog.proto.transport import raft_messages as rm
from tidelog.storage.disk.memory_files import Faults, Killed, MemoryFiles

DIRECTORY: Final = "/quorum"
JOURNAL: Final = f"{DIRECTORY}/journal"
SNAPSHOT: Final = f"{DIRECTORY}/snapshot"
_STATE: Final = struct.Struct("<Q32s")
_MARK: Final = struct.Struct("<dIIQQQQ")
_WAKES_AT_ONCE_MAX: Final = 500
"""This many steps without input at one instant mean that a voter spins."""
_FOREVER: Final = float("inf")
_NEVER: Final = float("-inf")


class QuorumWorld(LinkedVoters):
    """Voters, streams, a clock, and the history that is checked. Calls that act may raise :class:`Violation`."""

    def __init__(
        self,
        seed: int,
        voters: int = 3,
        timing: QuorumTiming | None = None,
        limits: QuorumLimits | None = None,
        *,
        latency_s: tuple[float, float] = CALM_LATENCY_S,
        drift: float = 0.0,
        compact_every: int = 0,
        as_bytes: bool = True,
        engine_class: Callable[..., RaftEngine] | None = None,
        trace: Trace | None = None,
    ) -> None:
        """``drift``: clocks run fast or slow by up to that share. ``compact_every``: entries after which a voter writes
        a snapshot by itself; 0 for never. ``as_bytes``: messages travel encoded."""
        rng = random.Random(f"quorum-world-{seed}")
        made: list[Voter] = []
        for number in range(1, voters + 1):
            rate = 1.0 + rng.uniform(-drift, drift) if drift else 1.0
            files = MemoryFiles(faults=Faults(random.Random(rng.random())))
            files.disk.names_in_order = False
            made.append(Voter(NodeId(number), files, rate))
        super().__init__(rng, made, latency_s, as_bytes=as_bytes)
        self.timing = timing or QuorumTiming()
        self.limits = limits or QuorumLimits()
        self.compact_every = compact_every
        self.state_padding = 0
        """Extra bytes that make snapshots larger."""
        self._engine_class = engine_class
        self._trace = trace
        self.watch = QuorumWatch(self.ids, self.timing, self.events)
        self.judge = self.watch.judge
        self.steps = 0
        self.acknowledged: dict[bytes, int] = {}
        self._tickets = 0
        self._woke_at = 0.0
        self._wakes = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self.on_leading: Callable[[NodeId], None] | None = None
        """Called when a voter learns that it leads."""
        self.on_elected: Callable[[NodeId], None] | None = None
        """Called when a voter is elected, which is earlier."""
        self.on_change: Callable[[NodeId], None] | None = None
        """Called when a leader has appended a change of voters to its log and told nobody yet."""
        self.on_down: Callable[[NodeId], None] | None = None
        """Called when a process ended by itself: in a disk call, or because its disk failed."""

    # --- acting ------------------------------------------------------------------------------------

    def start(self, *nodes: NodeId) -> None:
        """Start voters that are down (all by default) and let their streams connect."""
        for node in nodes or self.ids:
            voter = self.voters[node]
            if voter.engine is None:
                self._start(voter)

    def kill(self, *nodes: NodeId, power_loss: bool = False) -> None:
        """End processes immediately; peers notice through their streams. ``power_loss``: and machines."""
        for node in nodes:
            voter = self.voters[node]
            if voter.engine is not None:
                self._dead(voter, "killed")
            # Damage to a record, plus the loss of everything behind it: nobody could detect both.
            if power_loss and voter.flipped is None:
                voter.files.restart(power_loss=True)

    def wipe(self, node: NodeId) -> bool:
        """End a process, and lose everything on its disk; it restarts on an empty one with permission to join.

        Does nothing and returns false if no majority of whole directories would be left to admit it.
        """
        voter = self.voters[node]
        if not self.watch.intact(without=node) or voter.flipped is not None:
            return False
        self.kill(node)
        voter.files = MemoryFiles(faults=Faults(random.Random(self.rng.random())))
        voter.files.disk.names_in_order = False
        voter.may_join = True
        voter.compacted = 1
        self.watch.wiped(node)
        return True

    def crash_in(self, node: NodeId, calls: int, *, kind: str = "", power_loss: bool = False) -> None:
        """Let a voter's process (or machine) end in the middle of its n-th disk call (of a kind) from now."""
        voter = self.voters[node]
        faults = voter.files.faults
        if kind:
            faults.kill_in = (kind, calls)
        else:
            faults.kill_at = faults.steps + calls
        voter.power_fails_with_it = power_loss

    def pause(self, node: NodeId, seconds: float) -> None:
        """Pause a process: it takes no step, and arriving messages wait."""
        voter = self.voters[node]
        voter.busy_until = max(voter.busy_until, self.now + seconds)
        self._arm(voter)

    def jump(self, node: NodeId, seconds: float) -> None:
        """Let a voter's clock jump ahead."""
        voter = self.voters[node]
        voter.clock_offset += seconds
        self._arm(voter)

    def propose(self, node: NodeId, *payloads: bytes, epoch: int | None = None) -> bool:
        """Propose at a voter that leads, all in one step; the history shows the outcome."""
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
        """Return the voter that leads in the highest term."""
        best: Voter | None = None
        for voter in self.voters.values():
            if voter.leading and (best is None or voter.leading > best.leading):
                best = voter
        return best.node_id if best is not None else None

    @property
    def digest(self) -> str:
        """Return the hash over every step so far."""
        return self._digest.hexdigest()

    def engine(self, node: NodeId) -> RaftEngine:
        engine = self.voters[node].engine
        assert engine is not None
        return engine

    def settle(self, seconds: float = 20.0, then: Callable[[NodeId], None] | None = None) -> None:
        """End all faults, restart everyone, and require progress and equality within a bound.

        ``then`` is called with the leader once there is one.
        """
        self.heal()
        self.latency_s = CALM_LATENCY_S
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
        engines = [voter.engine for voter in self.voters.values()]
        if any(engine is None or engine.journal.me not in (engine.journal.voters or ()) for engine in engines):
            return False  # not every voter was admitted yet
        first = applied(self.ids[0])
        return all(applied(node) == first for node in self.ids)

    # --- inside: time ------------------------------------------------------------------------------

    def _arm(self, voter: Voter) -> None:
        """Schedule the voter's next step without input."""
        engine = voter.engine
        if engine is None:
            return
        due = engine.deadline()
        at = self.now if due == _NEVER or voter.inbox else (due - voter.clock_offset) / voter.rate
        at = max(at, self.now, voter.busy_until)
        if at != voter.due:
            voter.due = at
            if at != _FOREVER:
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

    # --- inside: processes -------------------------------------------------------------------------

    def _start(self, voter: Voter) -> None:
        node = voter.node_id
        rng = random.Random(self.rng.random())
        identity = QuorumIdentity("simulated", node, self.ids, DirectoryId(random_id(rng)), voter.may_join)
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
        """Handle the end of a process, and perhaps the machine, in a disk call."""
        self.events["crash-in-disk-call"] += 1
        power_loss = voter.power_fails_with_it
        self._dead(voter, "crashed in a disk call", in_step=True)
        self._down(voter, power_loss)

    def _stopped_by_disk(self, voter: Voter) -> None:
        """Handle a failed disk: the node stopped, as it must."""
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
            self._arm(voter)
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
            case ev.VotersChanged():
                if voter.leading and self.on_change is not None:
                    self.on_change(node)
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
