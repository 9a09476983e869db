"""Faults of a cluster: what a schedule may hold, and the hand that deals it out.

A fault that lasts carries its own length and is undone by itself, so that a schedule stays whole when
other faults are taken out of it. Targets are named by role: ``node:2``, ``leader:0`` and ``follower:0``
of the topic's partition 0, ``controller``; who that is shows when the fault happens.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidelog.chaos.sim.cluster import SimulatedCluster
from tidelog.chaos.sim.scenario import Fault
from tidelog.client.errors import TidelogError
from tidelog.model.ids import NodeId

CLIENTS: Final = "clients"

LENGTHS_S: Final = (0.05, 0.3, 1.0, 3.0, 8.0)


class FaultMix:
    """Makes schedules: kinds with their weights, over some seconds."""

    def __init__(
        self, kinds: Mapping[str, int], *, nodes: int, partitions: int, victim_only: Sequence[str] = ()
    ) -> None:
        self.kinds = dict(kinds)
        self._nodes = nodes
        self._partitions = partitions
        self._victim_only = frozenset(victim_only)
        """Kinds that befall one and the same node in a run."""

    def schedule(self, rng: random.Random, count: int, begin_s: float, end_s: float) -> tuple[Fault, ...]:
        """``count`` faults between two times, in clusters: trouble seldom comes alone."""
        victim = f"node:{rng.randrange(self._nodes) + 1}"
        made: list[Fault] = []
        at = rng.uniform(begin_s, begin_s + 3.0)
        pause = (end_s - begin_s) / max(count, 1)
        kinds = rng.choices(list(self.kinds), list(self.kinds.values()), k=count) if count else []
        for kind in kinds:
            made.append(Fault(round(min(at, end_s), 3), kind, self._arguments(rng, kind, victim)))
            at += rng.choice((0.01, 0.1, 0.5, 1.0, 2.0)) * pause * rng.random() * 2
        return tuple(made)

    def _target(self, rng: random.Random) -> str:
        partition = rng.randrange(self._partitions)
        node = f"node:{rng.randrange(self._nodes) + 1}"
        return rng.choice(
            (node, node, f"leader:{partition}", f"leader:{partition}", f"follower:{partition}", "controller")
        )

    def _arguments(self, rng: random.Random, kind: str, victim: str) -> tuple[str | int | float | bool, ...]:
        target = victim if kind in self._victim_only else self._target(rng)
        length = round(rng.choice(LENGTHS_S) * (0.5 + rng.random()), 3)
        match kind:
            case "kill" | "stop" | "power-loss" | "pause" | "isolate" | "wipe-logs":
                return (target, length)
            case "bit-flip":
                return (target, rng.randrange(1 << 16), length)
            case "kill-in-disk-call":
                return (target, rng.choice((1, 2, 3, 5, 10, 30)), length)
            case "ring" | "halves":
                return (rng.randrange(1 << 16), length)
            case "kill-all" | "power-loss-all" | "pause-all":
                return (round(min(length, 3.0), 3),)
            case "kill-two" | "power-loss-two":
                return (*(f"node:{n + 1}" for n in rng.sample(range(self._nodes), 2)), length)
            case "cut" | "cut-one-way" | "break":
                sides = [*(f"node:{n + 1}" for n in range(self._nodes)), CLIENTS]
                a, b = rng.sample(sides, 2)
                return (a, b, length)
            case "delay":
                return (target, round(rng.choice((0.005, 0.05, 0.3)), 3), length)
            case "slow-disk":
                return (target, rng.choice((0.02, 0.2, 1.0)), length)
            case "clock-jump":
                return (target, rng.choice((-3_600_000, -60_000, -500, 500, 60_000, 86_400_000)))
            case "disk-error" | "disk-full":
                return (target, rng.randrange(2), length)
            case "double-requests":
                return (rng.choice((0.1, 0.5)), length)
            case "kill-client":
                return (rng.randrange(4),)
            case "pause-client":
                return (rng.randrange(4), length)
            case "alter-config":
                return ()
            case _:
                raise ValueError(f"no such kind of fault: {kind}")


class FaultHand:
    """Deals a schedule out to a cluster. ``count`` tells what took effect."""

    def __init__(self, cluster: SimulatedCluster, topic: str, note: Callable[[str], None]) -> None:
        self.count: Counter[str] = Counter()
        self.clients: list[Callable[[str, tuple[Any, ...]], bool]] = []
        self._cluster = cluster
        self._topic = topic
        self._note = note
        self._undo: list[asyncio.Task[None]] = []

    async def deal(self, schedule: Sequence[Fault], began_s: float) -> None:
        """Let everything in a schedule happen at its time; returns after the last fault began."""
        loop = self._cluster.loop
        for fault in schedule:
            if (wait := began_s + fault.at_s - loop.now) > 0:
                await asyncio.sleep(wait)
            if self._happen(fault):
                self.count[fault.kind] += 1
                self._note(f"fault {fault}")
            else:
                self._note(f"no effect: {fault}")

    async def over(self) -> None:
        """Wait until what lasts is over."""
        while self._undo:
            undo, self._undo = self._undo, []
            await asyncio.gather(*undo)

    def _happen(self, fault: Fault) -> bool:
        act = getattr(self, "_" + fault.kind.replace("-", "_"), None)
        if act is None:
            raise ValueError(f"no such kind of fault: {fault.kind}")
        return bool(act(*fault.arguments))

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        async def undo() -> None:
            await asyncio.sleep(seconds)
            action()

        self._undo.append(asyncio.get_running_loop().create_task(undo()))

    def _resolve(self, target: str) -> NodeId | None:
        role, _, number = target.partition(":")
        cluster = self._cluster
        if role == "node":
            return NodeId(int(number))
        if not cluster.nodes:
            return None
        if role == "controller":
            return cluster.controller()
        leader = cluster.leader_of(self._topic, int(number))
        if role == "leader":
            return leader
        others = [node for node in cluster.isr_of(self._topic, int(number)) if node != leader]
        return others[0] if others else None

    def _name(self, side: str) -> str:
        return CLIENTS if side == CLIENTS else f"node{side.partition(':')[2]}"

    # --- processes ----------------------------------------------------------------------------------

    def _start(self, node: NodeId) -> None:
        host = self._cluster.hosts[node]
        if not self._cluster.is_up(node) and host.starting is None:
            self._note(f"start {node}")
            self._cluster.start_soon(node)

    def _ended(self, node: NodeId, seconds: float) -> bool:
        self.later(seconds, lambda: self._start(node))
        return True

    def _kill(self, target: str, seconds: float) -> bool:
        node = self._resolve(target)
        if node is None or not self._cluster.is_up(node):
            return False
        self._cluster.kill(node)
        return self._ended(node, seconds)

    def _kill_two(self, a: str, b: str, seconds: float) -> bool:
        return sum([self._kill(a, seconds), self._kill(b, seconds)]) == 2

    def _kill_all(self, seconds: float) -> bool:
        return sum([self._kill(f"node:{node}", seconds) for node in self._cluster.node_ids]) > 1

    def _kill_in_disk_call(self, target: str, calls: int, seconds: float) -> bool:
        node = self._resolve(target)
        if node is None or not self._cluster.kill_in(node, calls):
            return False

        def start() -> None:
            # It may not have come to that call yet; then it goes on until it does, or is ended here.
            if self._cluster.is_up(node):
                self._cluster.kill(node)
            self._start(node)

        self.later(seconds, start)
        return True

    def _power_loss(self, target: str, seconds: float) -> bool:
        node = self._resolve(target)
        if node is None or not self._cluster.is_up(node):
            return False
        self._cluster.lose_power(node)
        return self._ended(node, seconds)

    def _power_loss_two(self, a: str, b: str, seconds: float) -> bool:
        return sum([self._power_loss(a, seconds), self._power_loss(b, seconds)]) == 2

    def _power_loss_all(self, seconds: float) -> bool:
        return sum([self._power_loss(f"node:{node}", seconds) for node in self._cluster.node_ids]) > 1

    def _wipe_logs(self, target: str, seconds: float) -> bool:
        node = self._resolve(target)
        if node is None or not self._cluster.is_up(node):
            return False
        self._cluster.kill(node)
        self._cluster.wipe_logs(node)
        return self._ended(node, seconds)

    def _bit_flip(self, target: str, where: int, seconds: float) -> bool:
        """Flip a bit in what a killed process had not synced."""
        node = self._resolve(target)
        if node is None or not self._cluster.is_up(node):
            return False
        self._cluster.kill(node)
        flipped = self._cluster.flip_unsynced(node, random.Random(where))
        self._ended(node, seconds)
        return flipped

    def _pause(self, target: str, seconds: float) -> bool:
        node = self._resolve(target)
        if node is None or not self._cluster.pause(node):
            return False
        process = self._cluster.hosts[node].process

        def resume() -> None:
            if process.paused:
                self._cluster.loop.resume(process)

        self.later(seconds, resume)
        return True

    def _pause_all(self, seconds: float) -> bool:
        return sum([self._pause(f"node:{node}", seconds) for node in self._cluster.node_ids]) > 1

    def _stop(self, target: str, seconds: float) -> bool:
        node = self._resolve(target)
        cluster = self._cluster
        if node is None or node not in cluster.nodes or cluster.hosts[node].starting is not None:
            return False
        if cluster.hosts[node].process.paused:
            return False

        async def stop() -> None:
            if node in cluster.nodes:  # it may have died in this very instant
                await cluster.stop_node(node)
            await asyncio.sleep(seconds)
            self._start(node)

        self._undo.append(asyncio.get_running_loop().create_task(stop()))
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
        name = self._name(side)
        return self._cluster.client_names if name == CLIENTS else [name]

    def _cut(self, a: str, b: str, seconds: float) -> bool:
        pairs = [(x, y) for x in self._sides(a) for y in self._sides(b)]
        return self._cut_links([*pairs, *((y, x) for x, y in pairs)], seconds)

    def _cut_one_way(self, a: str, b: str, seconds: float) -> bool:
        return self._cut_links([(x, y) for x in self._sides(a) for y in self._sides(b)], seconds)

    def _isolate(self, target: str, seconds: float) -> bool:
        node = self._resolve(target)
        if node is None:
            return False
        others = [f"node{other}" for other in self._cluster.node_ids if other != node]
        name = f"node{node}"
        return self._cut_links([*((name, o) for o in others), *((o, name) for o in others)], seconds)

    def _ring(self, order: int, seconds: float) -> bool:
        """Each node reaches its two neighbours only."""
        names = [f"node{node}" for node in self._cluster.node_ids]
        random.Random(order).shuffle(names)
        near = {(a, b) for a, b in zip(names, names[1:] + names[:1], strict=True)}
        links = [(a, b) for a in names for b in names if a != b and (a, b) not in near and (b, a) not in near]
        return self._cut_links(links, seconds)

    def _halves(self, order: int, seconds: float) -> bool:
        """Two sides that cannot reach each other; clients reach both."""
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
        node = self._resolve(target)
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

    def _double_requests(self, share: float, seconds: float) -> bool:
        fabric = self._cluster.fabric
        fabric.doubled = share
        self.later(seconds, lambda: setattr(fabric, "doubled", 0.0))
        return True

    # --- disks and clocks -----------------------------------------------------------------------------

    def _slow_disk(self, target: str, flush_s: float, seconds: float) -> bool:
        node = self._resolve(target)
        if node is None:
            return False
        self._cluster.slow_disk(node, flush_s)
        self.later(seconds, lambda: self._cluster.slow_disk(node, 0.0))
        return True

    def _disk_error(self, target: str, number: int, seconds: float, error: int = errno.EIO) -> bool:
        node = self._resolve(target)
        if node is None or not self._cluster.break_log_dir(node, number, error):
            return False

        def mend() -> None:
            if self._cluster.is_up(node):
                self._cluster.kill(node)
            self._start(node)

        self.later(seconds, mend)
        return True

    def _disk_full(self, target: str, number: int, seconds: float) -> bool:
        return self._disk_error(target, number, seconds, errno.ENOSPC)

    def _clock_jump(self, target: str, milliseconds: int) -> bool:
        node = self._resolve(target)
        if node is None:
            return False
        self._cluster.hosts[node].clock.jumped_ms += milliseconds
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

        self._undo.append(asyncio.get_running_loop().create_task(alter()))
        return True
