"""The kinds of fault that a schedule of the quorum's scenario can name, and the effect of each on a world.

Targets are named by role and number: ``leader 2`` is the leader at that moment, or voter number 2 without a leader;
``follower 1`` one of those that do not lead; ``any 0`` a voter in any role; ``minority 0`` one of a few voters that are
chosen once, none of them the leader at that moment. Most faults end by themselves after the seconds they name, so that
any part of a schedule is a schedule too.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from typing import Final

from tidelog.chaos.simulated.quorum.links import Stream, Voter
from tidelog.chaos.simulated.quorum.watch import Violation
from tidelog.chaos.simulated.quorum.world import JOURNAL, SNAPSHOT, QuorumWorld
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.model.ids import NodeId

OPERATIONS: Final = frozenset({"propose", "propose-late", "compact"})
"""The entries of a schedule besides faults."""
_RECORD_MAGIC: Final = 0x544C514A.to_bytes(4, "little")
_SEAL_BODY: Final = 9
_STILL_S: Final = 2.2
"""A journal is sealed (checked every second) after this long without an append."""


class QuorumTrouble:
    """Executes a schedule on a world, and counts the faults that took effect."""

    def __init__(self, world: QuorumWorld, payload_bytes: tuple[int, ...]) -> None:
        self.world = world
        self.faults: Counter[str] = Counter()
        self.proposed = 0
        self._payload_bytes = payload_bytes
        self._waiting: list[tuple[int, int]] = []
        """Bursts of proposals that found no leader."""
        self._minority: tuple[NodeId, ...] = ()
        self._coups: list[tuple[float, str, float]] = []
        """The faults that wait for the next elected leaders."""
        self._coups_at_change: list[tuple[str, float]] = []
        """The faults that wait for the next leaders that change the voters."""
        self._returns: dict[NodeId, tuple[float, float]] = {}
        """Voter that will end by itself → when it restarts, and when its machine fails after that."""
        self._acts: dict[str, Callable[..., bool]] = {
            "propose": self.propose,
            "propose-late": self.propose_late,
            "compact": self.compact,
            "kill": self.kill,
            "power-loss": self.power_loss,
            "kill-all": self.kill_all,
            "power-loss-all": self.power_loss_all,
            "wipe": self.wipe,
            "crash-in-disk-call": self.crash_in_disk_call,
            "crash-in-catch-up": self.crash_in_catch_up,
            "lose-new-leader": self.lose_new_leader,
            "lose-leader-of-change": self.lose_leader_of_change,
            "stall": self.stall,
            "disconnect": self.disconnect,
            "disconnect-in-burst": self.disconnect_in_burst,
            "miss-commit": self.miss_commit,
            "isolate": self.isolate,
            "partition": self.partition,
            "delay": self.delay,
            "duplicate": self.duplicate,
            "pause": self.pause,
            "clock-jump": self.clock_jump,
            "slow-disk": self.slow_disk,
            "fsync-fails": self.fsync_fails,
            "disk-full": self.disk_full,
            "bit-flip": self.bit_flip,
        }
        world.on_leading = self._leading
        world.on_elected = self._elected
        world.on_change = self._change_of_voters
        world.on_down = self._down

    def act(self, fault: Fault) -> None:
        """Execute a fault now."""
        if self._acts[fault.kind](*fault.arguments) and fault.kind not in OPERATIONS:
            self.faults[fault.kind] += 1

    # --- targets -----------------------------------------------------------------------------------

    def target(self, role: str, number: int) -> NodeId:
        """Return the voter that a role and a number refer to now."""
        world = self.world
        leader = world.leader
        if role == "leader" and leader is not None:
            return leader
        if role == "follower" and len(world.ids) > 1:
            others = [node for node in world.ids if node != leader]
            return others[number % len(others)]
        if role == "minority":
            if not self._minority:
                others = [node for node in world.ids if node != leader]
                first = number % len(others)
                self._minority = tuple((others[first:] + others[:first])[: (len(world.ids) - 1) // 2])
                if leader is not None:
                    world.watch.calm = (leader, world.voters[leader].leading)
            return self._minority[number % len(self._minority)]
        return world.ids[number % len(world.ids)]

    def _running(self, role: str, number: int) -> Voter | None:
        voter = self.world.voters[self.target(role, number)]
        return voter if voter.engine is not None else None

    def _other(self, node: NodeId, number: int) -> NodeId | None:
        others = [other for other in self.world.ids if other != node]
        return others[number % len(others)] if others else None

    # --- operations --------------------------------------------------------------------------------

    def propose(self, count: int, size: int) -> bool:
        """Propose at the leader; if there is none, at the next one."""
        leader = self.world.leader
        if leader is None:
            self._waiting.append((count, size))
            return False
        self._burst(leader, count, size)
        return True

    def _leading(self, node: NodeId) -> None:
        waiting, self._waiting = self._waiting, []
        for burst in waiting:
            self.world.later(self.world.rng.uniform(0.0, 0.002), self._propose_waiting, node, burst)

    def propose_waiting(self, node: NodeId) -> None:
        """Make the proposals that found no leader so far."""
        waiting, self._waiting = self._waiting, []
        for burst in waiting:
            self._burst(node, *burst)

    def _propose_waiting(self, node: NodeId, burst: tuple[int, int]) -> None:
        if self.world.voters[node].leading:
            self._burst(node, *burst)
        else:
            self._waiting.append(burst)

    def _burst(self, node: NodeId, count: int, size: int) -> None:
        payloads = [self._payload(size + at) for at in range(count)]
        if not self.world.propose(node, *payloads):
            self._waiting.append((count, size))

    def _payload(self, size: int) -> bytes:
        self.proposed += 1
        padding = b"." * self._payload_bytes[size % len(self._payload_bytes)]
        if self.proposed % 32 == 0:  # something that looks like a record of the journal
            first = self.world.voters[self.world.ids[0]].files
            if first.faults.steps > 0 and self.world.voters[self.world.ids[0]].engine is not None:
                padding = bytes(first.content(JOURNAL)[:80])
        return b"%d-" % self.proposed + padding

    def propose_late(self, number: int) -> bool:
        """Deliver a command to a voter's engine only now, though it was decided under an earlier epoch."""
        for role in ("leader", "any"):
            voter = self.world.voters[self.target(role, number)]
            earlier = [epoch for epoch in voter.epochs if epoch != voter.leading]
            if earlier and voter.engine is not None:
                self.world.events["late-proposal"] += 1
                return self.world.propose(voter.node_id, self._payload(number), epoch=earlier[number % len(earlier)])
        return False

    def compact(self, role: str, number: int) -> bool:
        """Let a voter write a snapshot."""
        self.world.compact(self.target(role, number))
        return True

    # --- processes ---------------------------------------------------------------------------------

    def _restart_later(self, node: NodeId, seconds: float) -> None:
        self.world.later(seconds, self._restart, node)
        self.world.later(seconds + 0.3, self._restart, node)  # if the first start did not complete

    def _restart(self, node: NodeId, _: None) -> None:
        self.world.start(node)

    def kill(self, role: str, number: int, burst: int, down_s: float) -> bool:
        """End a process, perhaps with proposals that no other voter has; it restarts after a while."""
        return self._end(role, number, burst, down_s, power_loss=False)

    def power_loss(self, role: str, number: int, burst: int, down_s: float) -> bool:
        """Cut a machine's power: unsynced data is lost in whole or in part."""
        return self._end(role, number, burst, down_s, power_loss=True)

    def _end(self, role: str, number: int, burst: int, down_s: float, *, power_loss: bool) -> bool:
        voter = self._running(role, number)
        if voter is None:
            return False
        if burst and voter.leading:
            self._burst(voter.node_id, burst, number)
        self.world.kill(voter.node_id, power_loss=power_loss)
        self._restart_later(voter.node_id, down_s)
        return True

    def wipe(self, role: str, number: int, down_s: float) -> bool:
        """Lose a voter's directory: it returns on an empty one, with permission to join."""
        node = self.target(role, number)
        if not self.world.wipe(node):
            return False
        self._restart_later(node, down_s)
        return True

    def lose_new_leader(self, after_s: float, how: str, seconds: float) -> bool:
        """Lose the next elected voter right after its election: ``kill``, ``isolate`` or ``pause``."""
        self._coups.append((after_s, how, seconds))
        return False  # counted when it happens

    def _elected(self, node: NodeId) -> None:
        if self._coups:
            after_s, how, seconds = self._coups.pop(0)
            self.world.later(after_s, self._lose, node, (how, seconds))

    def lose_leader_of_change(self, how: str, seconds: float) -> bool:
        """Lose the next leader that changes the voters before anybody learns of the change: ``kill`` or ``isolate``."""
        self._coups_at_change.append((how, seconds))
        return False  # counted when it happens

    def _change_of_voters(self, node: NodeId) -> None:
        if self._coups_at_change:
            how, seconds = self._coups_at_change.pop(0)
            self.faults["lose-leader-of-change"] += 1
            if how == "kill":
                self.kill("any", self.world.ids.index(node), 0, seconds)
            else:
                self.isolate("any", self.world.ids.index(node), False, 0, seconds)

    def _lose(self, node: NodeId, what: tuple[str, float]) -> None:
        how, seconds = what
        if self.world.voters[node].engine is None:
            return
        self.faults["lose-new-leader"] += 1
        number = self.world.ids.index(node)
        match how:
            case "kill":
                self.kill("any", number, 0, seconds)
            case "isolate":
                self.isolate("any", number, True, 2, seconds)
            case _:
                self.pause("any", number, seconds)

    def kill_all(self, down_s: float, apart_s: float) -> bool:
        """End all processes simultaneously; they restart one after the other."""
        return self._end_all(down_s, apart_s, power_loss=False)

    def power_loss_all(self, down_s: float, apart_s: float) -> bool:
        """Cut the power of all machines simultaneously."""
        return self._end_all(down_s, apart_s, power_loss=True)

    def _end_all(self, down_s: float, apart_s: float, *, power_loss: bool) -> bool:
        world = self.world
        any_ran = any(voter.engine is not None for voter in world.voters.values())
        world.kill(*world.ids, power_loss=power_loss)
        for number, node in enumerate(sorted(world.ids, key=lambda _: world.rng.random())):
            self._restart_later(node, down_s + number * apart_s)
        return any_ran

    def crash_in_disk_call(
        self, role: str, number: int, kind: str, calls: int, power_loss: bool, down_s: float, again_s: float
    ) -> bool:
        """End a process, or its machine, in the middle of its n-th disk call (of a kind) from now.

        ``again_s``, if not 0: how long after the restart the machine fails.
        """
        voter = self._running(role, number)
        if voter is None:
            return False
        self.world.crash_in(voter.node_id, calls, kind="" if kind == "any" else kind, power_loss=power_loss)
        self._returns[voter.node_id] = (down_s, again_s)
        return True

    def crash_in_catch_up(
        self,
        role: str,
        number: int,
        out_s: float,
        kind: str,
        calls: int,
        power_loss: bool,
        down_s: float,
        again_s: float,
    ) -> bool:
        """End a voter in the middle of a disk call while it catches up after being cut off."""
        voter = self._running(role, number)
        if voter is None or len(self.world.ids) == 1:
            return False
        self.isolate("any", self.world.ids.index(voter.node_id), True, 0, out_s)
        self.world.later(out_s, self._crash_soon, voter.node_id, (kind, calls, power_loss, down_s, again_s))
        return True

    def _crash_soon(self, node: NodeId, how: tuple[str, int, bool, float, float]) -> None:
        self.crash_in_disk_call("any", self.world.ids.index(node), *how)

    def _down(self, node: NodeId) -> None:
        down_s, again_s = self._returns.pop(node, (0.1, 0.0))
        self._restart_later(node, down_s)
        if again_s:
            self.world.later(down_s + again_s, self._lose_power, node)
            self._restart_later(node, down_s + again_s + 0.05)

    def _lose_power(self, node: NodeId, _: None) -> None:
        self.world.kill(node, power_loss=True)

    def pause(self, role: str, number: int, seconds: float) -> bool:
        """Pause a process."""
        voter = self._running(role, number)
        if voter is None:
            return False
        self.world.pause(voter.node_id, seconds)
        return True

    def clock_jump(self, role: str, number: int, seconds: float) -> bool:
        """Let a voter's clock jump ahead."""
        voter = self._running(role, number)
        if voter is None:
            return False
        self.world.jump(voter.node_id, seconds)
        return True

    # --- links -------------------------------------------------------------------------------------

    def _resume_later(self, seconds: float, *pairs: tuple[NodeId, NodeId]) -> None:
        for a, b in pairs:
            self.world.later(seconds, self.world.resume, a, b)

    def stall(self, role: str, number: int, outwards: bool, other: int, seconds: float) -> bool:
        """Hold one direction between two voters; neither notices."""
        node = self.target(role, number)
        peer = self._other(node, other)
        if peer is None:
            return False
        pair = (node, peer) if outwards else (peer, node)
        self.world.stall(*pair)
        self._resume_later(seconds, pair)
        return True

    def disconnect(self, role: str, number: int, other: int, seconds: float) -> bool:
        """Break the streams between two voters for a while (0: they reconnect immediately)."""
        node = self.target(role, number)
        peer = self._other(node, other)
        if peer is None:
            return False
        self.world.disconnect(node, peer, block=seconds > 0)
        self._resume_later(seconds, (node, peer), (peer, node))
        return True

    def disconnect_in_burst(self, other: int, count: int, apart_s: float, after_s: float, seconds: float) -> bool:
        """While many proposals are in flight, break the streams between the leader and another voter, and hold those to
        the rest for a while."""
        leader = self.world.leader
        peer = None if leader is None else self._other(leader, other)
        if leader is None or peer is None:
            return False
        for number in range(8):
            self.world.later(number * apart_s, self._propose_waiting, leader, (count, other))
        self.world.later(after_s, self.world.disconnect, leader, peer)
        for rest in self.world.ids:
            if rest not in (leader, peer):
                for pair in ((leader, rest), (rest, leader)):
                    self.world.later(after_s, self.world.stall, *pair)
                    self._resume_later(after_s + seconds, pair)
        return True

    def miss_commit(self, other: int, count: int, apart_s: float) -> bool:
        """Let a follower receive entries but not learn that they are committed; when it is reachable again, the leader
        has a snapshot that covers some of them, and sends it."""
        world = self.world
        leader = world.leader
        peer = None if leader is None else self._other(leader, other)
        if leader is None or peer is None:
            return False
        self._propose_waiting(leader, (count, other))
        for node in world.ids:
            if node != leader:
                world.stall(node, leader)  # nothing is committed for now
                if node != peer:
                    world.later(apart_s, world.stall, leader, node)  # and what follows, only one follower has
                    self._resume_later(4 * apart_s, (node, leader))
                    self._resume_later(9 * apart_s, (leader, node))
        world.later(apart_s, self._propose_waiting, leader, (2, other))
        world.later(3 * apart_s, world.stall, leader, peer)
        world.later(3 * apart_s, self._propose_waiting, leader, (1, other))
        world.later(7 * apart_s, world.compact, leader)
        world.later(9 * apart_s, world.disconnect, leader, peer)
        self._resume_later(9 * apart_s, (leader, peer), (peer, leader))
        return True

    def isolate(self, role: str, number: int, silent: bool, burst: int, seconds: float) -> bool:
        """Cut a voter off from all others, perhaps with proposals that nobody else receives."""
        node = self.target(role, number)
        if len(self.world.ids) == 1:
            return False
        self.world.isolate(node, silent=silent)
        if burst and self.world.voters[node].leading:
            self._burst(node, burst, number)
        for other in self.world.ids:
            if other != node:
                self._resume_later(seconds, (node, other), (other, node))
        return True

    def partition(self, shape: str, number: int, silent: bool, seconds: float) -> bool:
        """Cut links between voters so that the rest has a shape: ``ring``, ``star``, ``halves``, ``chain``."""
        world = self.world
        ids = world.ids
        if len(ids) < 3:
            return False
        turned = ids[number % len(ids) :] + ids[: number % len(ids)]
        turn = {node: at for at, node in enumerate(turned)}
        size = len(ids)
        for a in ids:
            for b in ids:
                if a < b and not _joined(shape, turn[a], turn[b], size):
                    if silent:
                        world.stall(a, b)
                        world.stall(b, a)
                    else:
                        world.disconnect(a, b, block=True)
                    self._resume_later(seconds, (a, b), (b, a))
        return True

    def delay(self, role: str, number: int, other: int, delay_s: float, seconds: float) -> bool:
        """Delay both directions between two voters."""
        return self._spoil(role, number, other, seconds, delay_s, doubled=False)

    def duplicate(self, role: str, number: int, other: int, seconds: float) -> bool:
        """Deliver messages between two voters twice, the second time somewhat later. Role ``all``: on all links."""
        if role == "all":
            for stream in self.world.streams.values():
                stream.doubled = True
                self.world.later(seconds, self._mend, stream)
            return len(self.world.ids) > 1
        return self._spoil(role, number, other, seconds, 0.0, doubled=True)

    def _spoil(self, role: str, number: int, other: int, seconds: float, delay_s: float, *, doubled: bool) -> bool:
        node = self.target(role, number)
        peer = self._other(node, other)
        if peer is None:
            return False
        for pair in ((node, peer), (peer, node)):
            stream = self.world.streams[pair]
            stream.delay_s, stream.doubled = delay_s, doubled
            self.world.later(seconds, self._mend, stream)
        return True

    @staticmethod
    def _mend(stream: Stream, _: None) -> None:
        stream.delay_s, stream.doubled = 0.0, False

    # --- disks -------------------------------------------------------------------------------------

    def slow_disk(self, role: str, number: int, upto_s: float, seconds: float) -> bool:
        """Let syncs of a voter take up to this long."""
        voter = self._running(role, number)
        if voter is None:
            return False
        voter.slow_s = upto_s
        self.world.later(seconds, self._quick_again, voter)
        return True

    @staticmethod
    def _quick_again(voter: Voter, _: None) -> None:
        voter.slow_s = 0.0

    def fsync_fails(self, role: str, number: int, power_loss: bool, down_s: float, again_s: float) -> bool:
        """Let the next sync of a voter fail: it stops. ``power_loss``: its machine fails then; ``again_s``: or
        later."""
        return self._fail(role, number, "fdatasync", errno.EIO, (down_s, again_s), power_loss=power_loss)

    def disk_full(self, role: str, number: int, down_s: float) -> bool:
        """Let the next write of a voter fail: it stops."""
        return self._fail(role, number, "pwritev", errno.ENOSPC, (down_s, 0.0), power_loss=False)

    def _fail(
        self, role: str, number: int, action: str, error: int, returns: tuple[float, float], *, power_loss: bool
    ) -> bool:
        voter = self._running(role, number)
        if voter is None:
            return False
        voter.disk_fails = True
        voter.power_fails_with_it = power_loss
        voter.files.faults.failing[action] = error
        self._returns[voter.node_id] = returns
        return True

    def bit_flip(self, role: str, number: int, snapshot: bool, where: float, bit: int, down_s: float) -> bool:
        """Stop a voter, and flip a bit of its journal or snapshot while it is down: it must refuse to start.

        Damage to the last record of a journal, with nothing behind it yet, looks the same as a torn write; no voter can
        promise to detect it, so that part is left alone.
        """
        voter = self._running(role, number)
        if voter is None:
            return False
        still_s = self.world.now - max(voter.synced_at, voter.busy_until)
        self.world.kill(voter.node_id)
        self._restart_later(voter.node_id, down_s)
        path = SNAPSHOT if snapshot else JOURNAL
        try:
            content = bytes(voter.files.content(path))
        except OSError:
            return False
        size = len(content) if snapshot else _sealed_bytes(content, voter.node_id, still_s)
        if not size or voter.flipped is not None:
            return False
        voter.flipped = (path, int(where * size), 1 << bit)
        voter.files.flip(*voter.flipped)
        return True


def _joined(shape: str, a: int, b: int, size: int) -> bool:
    """Return whether two nodes stay connected under a partition of that shape."""
    apart = abs(a - b)
    match shape:
        case "ring":
            return apart in (1, size - 1) if size > 3 else apart == 1
        case "chain":
            return apart == 1
        case "star":
            return 0 in (a, b)
        case "halves":
            return (a <= size // 2) == (b <= size // 2)
        case _:
            raise ValueError(f"expected ring, chain, star or halves, found {shape}")


def _sealed_bytes(content: bytes, node: NodeId, still_s: float) -> int:
    """Return how much of a journal is followed by valid data, so that the voter must detect damage in it."""
    last = end = 0
    while content[end : end + 4] == _RECORD_MAGIC and end + 12 <= len(content):
        size = int.from_bytes(content[end + 4 : end + 8], "little")
        if end + 12 + size > len(content):
            break
        last, end = end, end + 12 + size
    if still_s > _STILL_S and end - last != 12 + _SEAL_BODY:
        raise Violation(f"node {node}: nothing was added to its journal for {still_s:.1f} s, and it is not sealed")
    return last


__all__ = ["OPERATIONS", "QuorumTrouble"]
