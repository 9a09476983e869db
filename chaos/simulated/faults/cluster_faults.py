"""Faults of a cluster: the possible entries of a schedule, and their injection.

A fault that lasts carries its own duration and undoes itself, so that a schedule stays valid when other faults are
removed from it. Targets are named by role: ``node:2``, ``leader:0`` and ``follower:0`` of the topic's partition 0
(``last:0``: the last follower in the ISR's order; ``out:0``: a replica that is not in sync), ``controller``; the node
is determined when the fault happens. ``leader:0>a`` lets later faults refer to that node as ``a``.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from tidelog.chaos.simulated.faults.fault_mix import CLIENTS
from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.chaos.simulated.world.fabric import LATE_S
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.client.errors import TidelogError
from tidelog.model.ids import NodeId
from tidelog.proto.transport.frames import decode_fetch_response
from tidelog.proto.transport.network import StreamKind
from tidelog.storage.segments.segment import CLEANED_SUFFIX, LOG_SUFFIX

MOMENTS: Final = ("at-isr-change", "at-leader-change", "at-coordinator-loaded", "at-commit", "at-step")
"""Kinds that wait for something to happen, and count when it does."""
CRC_COVERS: Final = 21
"""A batch's CRC covers everything after this many bytes."""


class FaultInjector:
    """Applies a schedule to a cluster. ``count`` holds the faults that took effect."""

    def __init__(self, cluster: SimulatedCluster, topic: str, note: Callable[[str], None]) -> None:
        self.count: Counter[str] = Counter()
        self.clients: list[Callable[[str, tuple[Any, ...]], bool]] = []
        self.acts: dict[str, Callable[..., bool]] = {}
        """Further kinds of fault, for scenarios with clients of their own."""
        self.roles: dict[str, Callable[[], NodeId | None]] = {}
        """Further targets by role."""
        self._cluster = cluster
        self._topic = topic
        self._note = note
        self._undo: list[asyncio.Task[None]] = []
        self._names: dict[str, NodeId] = {}
        self._waiting: list[Callable[[], bool]] = []

    async def deal(self, schedule: Sequence[Fault], began_s: float) -> None:
        """Inject every fault of a schedule at its time; return after the last fault began."""
        loop = self._cluster.loop
        for fault in schedule:
            if (wait := began_s + fault.at_s - loop.now) > 0:
                await asyncio.sleep(wait)
            if fault.kind in MOMENTS:
                self.act(fault)
                self._note(f"waits for its moment: {fault}")
            elif self.act(fault):
                self.count[fault.kind] += 1
                self._note(f"fault {fault}")
            else:
                self._note(f"no effect: {fault}")

    async def over(self) -> None:
        """Wait until all faults that last have ended."""
        while self._undo:
            undo, self._undo = self._undo, []
            await asyncio.gather(*undo)

    def act(self, fault: Fault) -> bool:
        """Inject a fault now; return whether it had an effect."""
        act = self.acts.get(fault.kind) or getattr(self, "_" + fault.kind.replace("-", "_"), None)
        if act is None:
            raise ValueError(f"no such kind of fault: {fault.kind}")
        return bool(act(*fault.arguments))

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Run an action after a while, before the run is over."""

        async def undo() -> None:
            await asyncio.sleep(seconds)
            action()

        self.run(undo())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that must finish before the run is over."""
        self._undo.append(asyncio.get_running_loop().create_task(work))

    def resolve(self, target: str) -> NodeId | None:
        """Return the node that a target refers to now, if any."""
        role, _, name = target.partition(">")
        node = self._names[role] if role in self._names else self._in_role(role)
        if name and node is not None:
            self._names[name] = node
        return node

    def _in_role(self, target: str) -> NodeId | None:
        role, _, number = target.partition(":")
        cluster = self._cluster
        if role == "node":
            return cluster.node_ids[int(number) - 1]
        if role in self.roles:
            return self.roles[role]() if cluster.nodes else None
        if not cluster.nodes or not (number or role == "controller"):
            return None
        if role == "controller":
            return cluster.controller()
        leader = cluster.leader_of(self._topic, int(number))
        if role == "leader":
            return leader
        in_sync = cluster.isr_of(self._topic, int(number))
        match role:
            case "follower" | "last":
                found = [node for node in in_sync if node != leader]
            case "out":
                topic = cluster.image.topic(self._topic)
                replicas = () if topic is None else topic.partitions[int(number)].replicas
                found = [node for node in replicas if node not in in_sync]
            case _:
                raise ValueError(f"no such target: {target}")
        if not found:
            return None
        return found[-1] if role == "last" else found[0]

    # --- processes ----------------------------------------------------------------------------------

    def start(self, node: NodeId) -> None:
        """Start a node that is down."""
        host = self._cluster.hosts[node]
        if not self._cluster.is_up(node) and host.starting is None:
            self._note(f"start {node}")
            self._cluster.start_soon(node)

    def look(self) -> None:
        """A message is about to arrive: do what waits for its moment."""
        if self._waiting:
            self._waiting = [moment for moment in self._waiting if not moment()]

    def _ended(self, node: NodeId, seconds: float) -> bool:
        self.later(seconds, lambda: self.start(node))
        return True

    def _kill(self, target: str, seconds: float) -> bool:
        node = self.resolve(target)
        if node is None or not self._cluster.is_up(node):
            return False
        self._cluster.kill(node)
        return self._ended(node, seconds)

    def _everyone(self) -> list[str]:
        """Return every node as a target."""
        return [f"node:{number + 1}" for number in range(len(self._cluster.node_ids))]

    def _kill_two(self, a: str, b: str, seconds: float) -> bool:
        return sum([self._kill(a, seconds), self._kill(b, seconds)]) == 2

    def _kill_all(self, seconds: float) -> bool:
        return sum([self._kill(target, seconds) for target in self._everyone()]) > 1

    def _kill_in_disk_call(
        self, target: str, calls: int, seconds: float, *, what: str = "", since: str = "", power_goes_too: bool = False
    ) -> bool:
        node = self.resolve(target)
        if node is None or not self._cluster.kill_in(
            node, calls, what=what, since=since, power_goes_too=power_goes_too
        ):
            return False

        def start() -> None:
            # It may not have reached that call yet; then it runs until it does, or is killed here.
            if self._cluster.is_up(node):
                self._cluster.kill(node)
            self.start(node)

        self.later(seconds, start)
        return True

    def _power_loss_in_disk_call(self, target: str, calls: int, seconds: float) -> bool:
        return self._kill_in_disk_call(target, calls, seconds, power_goes_too=True)

    def _power_loss_in_rename(self, target: str, calls: int, seconds: float) -> bool:
        return self._kill_in_disk_call(target, calls, seconds, what="rename", power_goes_too=True)

    def _power_loss_in_swap(self, target: str, calls: int, seconds: float) -> bool:
        """Cut the power at the n-th rename, counted from the first that swaps a cleaned copy in for its originals."""
        copy = LOG_SUFFIX + CLEANED_SUFFIX
        return self._kill_in_disk_call(target, calls, seconds, what="rename", since=copy, power_goes_too=True)

    def _power_loss(self, target: str, seconds: float) -> bool:
        node = self.resolve(target)
        if node is None or not self._cluster.is_up(node):
            return False
        self._cluster.lose_power(node)
        return self._ended(node, seconds)

    def _power_loss_two(self, a: str, b: str, seconds: float) -> bool:
        return sum([self._power_loss(a, seconds), self._power_loss(b, seconds)]) == 2

    def _power_loss_all(self, seconds: float) -> bool:
        return sum([self._power_loss(target, seconds) for target in self._everyone()]) > 1

    def _wipe_logs(self, target: str, seconds: float) -> bool:
        node = self.resolve(target)
        if node is None or not self._cluster.is_up(node):
            return False
        self._cluster.kill(node)
        self._cluster.wipe_logs(node)
        return self._ended(node, seconds)

    def _bit_flip(self, target: str, where: int, seconds: float) -> bool:
        """Flip a bit in the unsynced data of a killed process."""
        node = self.resolve(target)
        if node is None or not self._cluster.is_up(node):
            return False
        self._cluster.kill(node)
        flipped = self._cluster.flip_unsynced(node, random.Random(where))
        self._ended(node, seconds)
        return flipped

    def _pause(self, target: str, seconds: float) -> bool:
        node = self.resolve(target)
        if node is None or not self._cluster.pause(node):
            return False
        process = self._cluster.hosts[node].process

        def resume() -> None:
            if process.paused:
                self._cluster.loop.resume(process)

        self.later(seconds, resume)
        return True

    def _pause_all(self, seconds: float) -> bool:
        return sum([self._pause(target, seconds) for target in self._everyone()]) > 1

    def _stop(self, target: str, seconds: float) -> bool:
        node = self.resolve(target)
        cluster = self._cluster
        if node is None or node not in cluster.running or cluster.hosts[node].starting is not None:
            return False
        if cluster.hosts[node].process.paused:
            return False

        async def stop() -> None:
            if node in cluster.running:  # it may have died at this very instant
                await cluster.stop_node(node)
            await asyncio.sleep(seconds)
            self.start(node)

        self.run(stop())
        return True

    # --- network ------------------------------------------------------------------------------------

    def _cut_links(self, links: Sequence[tuple[str, str]], seconds: float) -> bool:
        fabric = self._cluster.fabric
        new = [link for link in links if not fabric.is_cut(*link)]
        for link in new:
            fabric.cut(*link)

        def heal() -> None:
            for link in new:
                fabric.heal(*link)

        self.later(seconds, heal)
        return bool(new)

    def _sides(self, side: str) -> list[str]:
        """Return the members of a side: clients, the controllers, all other nodes except one, or a target."""
        if side == CLIENTS:
            return self._cluster.client_names
        role, _, name = side.partition(":")
        if role in ("others", "controllers"):
            nodes = self._cluster.node_ids if role == "others" else self._cluster.controller_ids
            besides = self.resolve(name)
            return [f"node{node}" for node in nodes if node != besides]
        node = self.resolve(side)
        return [] if node is None else [f"node{node}"]

    def _cut(self, a: str, b: str, seconds: float) -> bool:
        pairs = [(x, y) for x in self._sides(a) for y in self._sides(b) if x != y]
        return self._cut_links([*pairs, *((y, x) for x, y in pairs)], seconds)

    def _cut_one_way(self, a: str, b: str, seconds: float) -> bool:
        return self._cut_links([(x, y) for x in self._sides(a) for y in self._sides(b) if x != y], seconds)

    def _isolate(self, target: str, seconds: float) -> bool:
        node = self.resolve(target)
        if node is None:
            return False
        others = [f"node{other}" for other in self._cluster.node_ids if other != node]
        name = f"node{node}"
        return self._cut_links([*((name, o) for o in others), *((o, name) for o in others)], seconds)

    def _ring(self, order: int, seconds: float) -> bool:
        """Cut links so that each node reaches its two neighbours only."""
        names = [f"node{node}" for node in self._cluster.node_ids]
        random.Random(order).shuffle(names)
        near = {(a, b) for a, b in zip(names, names[1:] + names[:1], strict=True)}
        links = [(a, b) for a in names for b in names if a != b and (a, b) not in near and (b, a) not in near]
        return self._cut_links(links, seconds)

    def _halves(self, order: int, seconds: float) -> bool:
        """Cut the cluster into two sides that cannot reach each other; clients reach both."""
        names = [f"node{node}" for node in self._cluster.node_ids]
        rng = random.Random(order)
        rng.shuffle(names)
        at = rng.randrange(1, len(names))
        links = [(a, b) for a in names[:at] for b in names[at:]]
        return self._cut_links([*links, *((b, a) for a, b in links)], seconds)

    def _break(self, a: str, b: str, seconds: float) -> bool:
        broken = 0
        for x in self._sides(a):
            for y in self._sides(b):
                broken += len(self._cluster.fabric.wires_of(x, y))
                self._cluster.fabric.break_connections(x, y)
        return broken > 0

    def _delay(self, target: str, late_s: float, seconds: float) -> bool:
        node = self.resolve(target)
        if node is None:
            return False
        name, fabric = f"node{node}", self._cluster.fabric
        others = [f"node{other}" for other in self._cluster.node_ids if other != node]
        for other in others:
            fabric.delay(name, other, late_s)

        def undo() -> None:
            for other in others:
                fabric.delay(name, other, 0.0)

        self.later(seconds, undo)
        return True

    def _double_requests(self, share: float, seconds: float, late_s: float = LATE_S[1]) -> bool:
        """Let requests arrive twice, the second time up to ``late_s`` later."""
        fabric = self._cluster.fabric
        fabric.doubled, fabric.late_s = share, (LATE_S[0], late_s)

        def undo() -> None:
            fabric.doubled, fabric.late_s = 0.0, LATE_S

        self.later(seconds, undo)
        return True

    def _late_verdicts(self, share: float, late_s: float, seconds: float) -> bool:
        """Delay what a transaction's coordinator says to leaders about a partition."""
        return self._late_answers("AddPartitionsToTxnRequest", share, late_s, seconds)

    def _late_fetches(self, share: float, late_s: float, seconds: float) -> bool:
        """Delay the fetch responses from leaders to followers."""
        return self._late_answers(StreamKind.REPLICA_FETCH.value, share, late_s, seconds)

    def _late_answers(self, what: str, share: float, late_s: float, seconds: float) -> bool:
        fabric = self._cluster.fabric
        fabric.late_answers = (what, share, late_s)
        self.later(seconds, lambda: setattr(fabric, "late_answers", None))
        return True

    def _garble_records(self, share: float, where: int, seconds: float) -> bool:
        """Flip a bit in some of the data that leaders send to followers (memory, a network card): the CRC exposes
        it."""
        fabric = self._cluster.fabric
        rng = random.Random(where)

        def garble(frame: memoryview) -> memoryview:
            data = bytearray(frame)
            for item in decode_fetch_response(memoryview(data))[1].partitions:
                for records in item.records:
                    at = data.find(records) + CRC_COVERS
                    if rng.random() < share and len(records) > CRC_COVERS:
                        data[rng.randrange(at, at + len(records) - CRC_COVERS)] ^= 1 << rng.randrange(8)
            return memoryview(data)

        fabric.garble = garble
        self.later(seconds, lambda: setattr(fabric, "garble", None))
        return True

    # --- moments ------------------------------------------------------------------------------------

    def _at_isr_change(self, partition: int, what: str, within_s: float, *acts: str | float) -> None:
        """When the leader next asks for another ISR (``join`` or ``leave``), act on those involved: ``l`` is the
        leader, ``j`` the replica that would join or leave, ``c`` the active controller."""

        def involved() -> dict[str, NodeId | None]:
            found = self._asked_for(partition, what)
            return {} if found is None else {"l": found[0], "j": found[1], "c": self._in_role("controller")}

        self.wait_for("at-isr-change", involved, within_s, acts)

    def _at_leader_change(self, partition: int, within_s: float, *acts: str | float) -> None:
        """When the partition next gets another leader, ``l``, act on those involved."""
        before = self._in_role(f"leader:{partition}")

        def involved() -> dict[str, NodeId | None]:
            now = self._in_role(f"leader:{partition}")
            return {} if now in (None, before) else {"l": now}

        self.wait_for("at-leader-change", involved, within_s, acts)

    def wait_for(
        self, kind: str, involved: Callable[[], dict[str, NodeId | None]], within_s: float, acts: Sequence[str | float]
    ) -> None:
        """Act as soon as the targets exist; checks before each message.

        ``acts`` are kinds of fault, each with a target (two with ``+`` between them) and a duration.
        """
        until = self._cluster.loop.now + within_s

        def moment() -> bool:
            if self._cluster.loop.now > until:
                return True
            names = involved()
            if not names:
                return False
            self._names |= {name: node for name, node in names.items() if node is not None}
            for number in range(0, len(acts), 3):
                act, target, seconds = acts[number : number + 3]
                fault = Fault(0.0, str(act), (*str(target).split("+"), float(seconds)))
                if self.act(fault):
                    self._note(f"at that moment {fault}")
            self.count[kind] += 1
            return True

        self._waiting.append(moment)

    def _asked_for(self, partition: int, what: str) -> tuple[NodeId, NodeId] | None:
        """Return the leader that asks for another ISR, and the replica that would join or leave it."""
        for node_id, node in self._cluster.nodes.items():
            if node.broker is None:
                continue
            for key, replica in node.broker.replicas.replicas.items():
                leading = replica.partition.leading
                if key.partition != partition or leading is None or leading.isr.proposal is None:
                    continue
                before, after = leading.isr.committed, leading.isr.proposal.isr
                more, less = (after, before) if what == "join" else (before, after)
                moved = [node for node in more if node not in less]
                if moved:
                    return node_id, moved[0]
        return None

    # --- disks and clocks -----------------------------------------------------------------------------

    def _slow_disk(self, target: str, flush_s: float, seconds: float) -> bool:
        node = self.resolve(target)
        if node is None:
            return False
        self._cluster.slow_disk(node, flush_s)
        self.later(seconds, lambda: self._cluster.slow_disk(node, 0.0))
        return True

    def _disk_error(self, target: str, number: int, seconds: float, error: int = errno.EIO) -> bool:
        node = self.resolve(target)
        if node is None or not self._cluster.break_log_dir(node, number, error):
            return False

        def mend() -> None:
            if self._cluster.is_up(node):
                self._cluster.kill(node)
            self.start(node)

        self.later(seconds, mend)
        return True

    def _disk_full(self, target: str, number: int, seconds: float) -> bool:
        return self._disk_error(target, number, seconds, errno.ENOSPC)

    def _clock_jump(self, target: str, milliseconds: int) -> bool:
        node = self.resolve(target)
        if node is None:
            return False
        self._cluster.jump_clock(node, milliseconds / 1000)
        return True

    # --- clients and administration ---------------------------------------------------------------------

    def _client(self, kind: str, *arguments: Any) -> bool:
        return any(act(kind, arguments) for act in self.clients)

    def _kill_client(self, number: int) -> bool:
        return self._client("kill", number)

    def _pause_client(self, number: int, seconds: float) -> bool:
        return self._client("pause", number, seconds)

    def _alter_config(self) -> bool:
        cluster = self._cluster
        if not cluster.nodes:
            return False

        async def alter() -> None:
            try:
                async with cluster.admin() as admin:
                    await admin.alter_topic_configs(self._topic, {"segment.ms": "3000"}, timeout=3)
            except TidelogError as error:
                self._note(f"segment.ms: {type(error).__name__}")

        self.run(alter())
        return True
