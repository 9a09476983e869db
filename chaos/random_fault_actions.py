"""What happens to a cluster in this process under random faults: which faults there are, and which comes next."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tidelog.chaos.random_fault_watch import ClusterWatch
from tidelog.client.errors import TidelogError
from tidelog.model.ids import NodeId
from tidelog.testing.async_cluster import CLIENT, MEMORY, AsyncCluster

SETTLE_S: Final = 45.0
"""Bound of every single fault, and of every single wait after the last one."""
_GROWN_MAX: Final = 3
"""Partitions that a topic may get on top of those it began with."""

Told = Callable[[str], None]


class RandomHand:
    """Deals out faults. ``counts``: the partitions of each topic that producers send to; grows with the topic.

    ``noted`` is told of each fault, ``violated`` of what must not follow from one.
    """

    def __init__(
        self,
        cluster: AsyncCluster,
        watch: ClusterWatch,
        counts: dict[str, int],
        rng: random.Random,
        noted: Told,
        violated: Told,
    ) -> None:
        self._cluster = cluster
        self._watch = watch
        self._counts = counts
        self._counts_max = {topic: count + _GROWN_MAX for topic, count in counts.items()}
        self._rng = rng
        self._note = noted
        self._violated = violated
        self._starting: dict[NodeId, asyncio.Future[Any]] = {}
        self._impaired = False
        self._sizes: dict[tuple[NodeId, str, str], int] = {}
        """How long each file of a log was when its node started."""

    async def deal(self, seconds: float) -> None:
        """Let faults follow one another for so long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (5, self._kill),
            (2, self._kill_leader),
            (2, self._kill_controller),
            (8, self._restart),
            (2, self._stop),
            (2, self._bounce),
            (2, self._alter_config),
            (1, self._stall),
            (2, self._lose_power),
            (1, self._grow),
        ]
        if self._cluster.transport == MEMORY:
            actions += [(4, self._cut), (3, self._isolate), (8, self._heal), (2, self._delay), (2, self._break)]
        weights = [weight for weight, _ in actions]
        await asyncio.sleep(0.3)
        while loop.time() < end:
            action = self._rng.choices(actions, weights)[0][1]
            try:
                async with asyncio.timeout(SETTLE_S):
                    await action()
            except TimeoutError:
                self._violated(f"{action.__name__[1:]} did not end within {SETTLE_S:g} s")
                return
            await asyncio.sleep(self._rng.choice([0.02, 0.1, 0.3, 0.8, 1.5]))

    async def mend(self) -> None:
        """Undo everything and start whoever is down."""
        if self._cluster.transport == MEMORY:
            self._cluster.heal()
            for a in self._sides():
                for b in self._sides():
                    self._cluster.fabric.delay(a, b, 0.0)
        for node in self._cluster.node_ids:
            if node not in self._cluster.nodes:
                await self._start(node)
        if self._starting:
            done, late = await asyncio.wait(self._starting.values(), timeout=SETTLE_S)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    self._violated(f"a node did not start: {error!r}")
            if late:
                self._violated(f"{len(late)} nodes did not start within {SETTLE_S:g} s")

    # --- processes ----------------------------------------------------------------------------------

    def _up(self) -> list[NodeId]:
        return sorted(self._cluster.nodes)

    async def _kill_one(self, node: NodeId, why: str) -> None:
        if len(self._up()) <= 1 and self._rng.random() < 0.7:
            return
        self._note(f"kill {node} ({why})")
        await self._end(node)

    async def _end(self, node: NodeId) -> None:
        self._watch.dies(node)
        start = self._starting.pop(node, None)
        if start is None or start.done():
            await self._cluster.kill(node)
            return
        start.cancel()  # which ends the node as a kill does
        await asyncio.wait([start])
        if not start.cancelled() and (error := start.exception()) is not None:
            self._violated(f"node {node}, killed while it started, raised {error!r}")

    async def _kill(self) -> None:
        if up := self._up():
            await self._kill_one(self._rng.choice(up), "any")

    async def _kill_leader(self) -> None:
        if not self._up():
            return
        topic = self._rng.choice(list(self._counts))
        leader = self._cluster.leader_of(topic, self._rng.randrange(self._counts[topic]))
        if leader in self._cluster.nodes:
            await self._kill_one(leader, "leader")

    async def _kill_controller(self) -> None:
        leader = self._cluster.controller()
        if leader is not None:
            await self._kill_one(leader, "controller")

    async def _restart(self) -> None:
        down = [n for n in self._cluster.node_ids if n not in self._cluster.nodes]
        if not down:
            return
        node = self._rng.choice(down)
        self._note(f"start {node}")
        await self._start(node)

    async def _start(self, node: NodeId) -> None:
        """Start a node; one that cannot register yet (no quorum) is waited for at the end, not here."""
        self._note_sizes(node)
        task = self._starting[node] = asyncio.ensure_future(self._cluster.start_node(node))
        await asyncio.sleep(0)
        self._watch.opened(node)
        await asyncio.wait([task], timeout=self._rng.choice([0.05, 1.0, 5.0]))
        if task.done():
            task.result()
            del self._starting[node]

    async def _bounce(self) -> None:
        if up := self._up():
            node = self._rng.choice(up)
            self._note(f"bounce {node}")
            await self._end(node)
            await asyncio.sleep(self._rng.choice([0, 0, 0.05]))
            await self._start(node)

    async def _stall(self) -> None:
        seconds = self._rng.choice([0.3, 1.0])
        self._note(f"stall {seconds}")
        time.sleep(seconds)  # noqa: ASYNC251 - the event loop itself stands still

    async def _stop(self) -> None:
        up = self._up()
        if len(up) < 2:
            return
        node = self._rng.choice(up)
        if node in self._starting and not self._starting[node].done():
            return
        self._note(f"stop {node}")
        self._watch.dies(node, stops=True)
        await self._cluster.stop_node(node)
        self._note(f"stopped {node}")

    # --- disks --------------------------------------------------------------------------------------

    async def _lose_power(self) -> None:
        """A node dies and what it wrote since its start and did not sync is gone, in part. Committed records
        survive that on one node at a time: nothing else may be amiss before, or until the ISRs are whole again."""
        if len(self._up()) < 3 or self._starting or not self._watch.isr_whole() or self._impaired:
            return
        node = self._rng.choice(self._up())
        self._note(f"power loss {node}")
        await self._end(node)
        self._watch.loses_power(node)
        lost = 0
        for path in sorted(self._cluster.node_directory(node).parent.glob("data*/*-*/*.log")):
            before = self._sizes.get((node, path.parent.name, path.name), 0)
            size = path.stat().st_size
            if size > before and self._rng.random() < 0.8:
                kept = max(before, size - self._rng.choice([1, 100, 5_000, 1 << 30]))
                with path.open("rb+") as file:
                    file.truncate(kept)
                lost += size - kept
        await asyncio.sleep(self._rng.choice([0, 0.1, 1.0]))
        self._note(f"start {node}, which has lost {lost} bytes")
        await self._start(node)
        try:
            await self._cluster.wait_for(self._watch.isr_whole, "ISR whole after a loss of power", SETTLE_S)
        except TimeoutError as error:
            self._violated("\n    ".join([f"power: {error}", *self._watch.standing()]))

    def _note_sizes(self, node: NodeId) -> None:
        for path in self._cluster.node_directory(node).parent.glob("data*/*-*/*.log"):
            self._sizes[node, path.parent.name, path.name] = path.stat().st_size

    # --- links --------------------------------------------------------------------------------------

    def _sides(self) -> list[str]:
        return [*(f"node{n}" for n in self._cluster.node_ids), CLIENT]

    async def _cut(self) -> None:
        sides: list[int | str] = [*self._cluster.node_ids, CLIENT]
        a, b = self._rng.sample(sides, 2)
        one_way = self._rng.random() < 0.5
        self._note(f"cut {a} {'->' if one_way else '<->'} {b}")
        self._cluster.partition(a, b, one_way=one_way)
        self._impaired = True

    async def _isolate(self) -> None:
        node = self._rng.choice(self._cluster.node_ids)
        clients = self._rng.random() < 0.3
        self._note(f"isolate {node}{' from clients too' if clients else ''}")
        self._cluster.isolate(node, clients=clients)
        self._impaired = True

    async def _heal(self) -> None:
        self._note("heal")
        self._cluster.heal()
        self._impaired = False

    async def _delay(self) -> None:
        a, b = self._rng.sample(self._sides(), 2)
        seconds = self._rng.choice([0.0, 0.01, 0.1])
        self._note(f"delay {a} -> {b} {seconds}")
        self._cluster.fabric.delay(a, b, seconds)

    async def _break(self) -> None:
        a, b = self._rng.sample(self._sides(), 2)
        self._note(f"break {a} {b}")
        self._cluster.fabric.break_connections(a, b)

    # --- changes that users make ----------------------------------------------------------------------

    async def _alter_config(self) -> None:
        value = self._rng.choice(["1048576", "131072"])
        topic = next(iter(self._counts))
        await self._admin(
            f"segment.bytes {value}",
            lambda admin: admin.alter_topic_configs(topic, {"segment.bytes": value}, timeout=3),
        )

    async def _grow(self) -> None:
        topic = self._rng.choice(list(self._counts))
        count = self._counts[topic] + 1
        if count > self._counts_max[topic]:
            return
        if await self._admin(f"grow {topic} {count}", lambda admin: admin.create_partitions({topic: count}, timeout=3)):
            await asyncio.sleep(0.05)
            self._counts[topic] = count

    async def _admin(self, what: str, call: Callable[[Any], Awaitable[Any]]) -> bool:
        if not self._up():
            return False
        try:
            async with self._cluster.admin() as admin:
                await call(admin)
        except TidelogError as error:
            self._note(f"{what}: {type(error).__name__}")
            return False
        self._note(what)
        return True
