"""Nodes that are removed from a simulated cluster for good while replicas move, and others that start under their ids.

A node is drained or not, ends or only becomes unreachable, and is unregistered; later a process starts under its id
again, with its disk or, if nothing is lost by it, with an empty one. Unregistering live brokers is tried as well. The
judges, besides the checks of every run and those of :mod:`tidelog.chaos.simulated.workloads.replica_moves`, are
:func:`tidelog.chaos.checkers.brokers.unregistered` and its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.chaos.simulated.workloads.replica_moves import ASK_S, ReplicaMoves
from tidelog.client.errors import BrokerIdNotRegisteredError, InvalidRequestError, TidelogError
from tidelog.model.ids import NodeId
from tidelog.model.settings.node.replication_settings import EVERY_DIRECTORY

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

DRAIN_S: Final = 8.0
"""How long a drain may take before the node is removed all the same."""
REMOVAL_S: Final = 20.0
"""How long to try to unregister a node: longer than its session lasts."""
AGAIN_S: Final = 0.5


class NodeRemovals(ReplicaMoves):
    """Implements :class:`tidelog.chaos.simulated.world.work.Work`."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._leaving: set[NodeId] = set()
        sim.injector.acts |= {"remove": self._remove, "unregister": self._ask_to_go}

    def _remove(self, number: int, way: str, drained: bool, away_s: float) -> bool:
        cluster = self.sim.cluster
        node = cluster.node_ids[number - 1]
        if node in self._leaving or node not in cluster.nodes or cluster.hosts[node].starting is not None:
            return False
        self._leaving.add(node)
        self.sim.injector.run(self._remove_node(node, way, drained, away_s))
        return True

    async def _remove_node(self, node: NodeId, way: str, drained: bool, away_s: float) -> None:
        """Remove a node as ``docs/operations.md`` says, or by force, and let another one start under its id."""
        sim, cluster = self.sim, self.sim.cluster
        gone = False
        try:
            if drained:
                await self._set_cordon(node, EVERY_DIRECTORY)
                await self._move_off(node, 0.0)
                await self._emptied(node)
            await self._end(node, way, away_s)
            gone = await self._unregistered(node)
            await sim.sleep(away_s)
            if gone and not cluster.is_up(node) and not self._is_needed(node):
                self._replace_disk(node)
        finally:
            self._leaving.discard(node)
            sim.injector.start(node)
            if drained and not gone:
                await self._set_cordon(node, None)

    async def _emptied(self, node: NodeId) -> None:
        """Wait for the end of the moves, with a bound."""
        until = self.sim.cluster.loop.now + DRAIN_S
        while self.sim.cluster.image.partitions_of(node) and self.sim.cluster.loop.now < until:
            await self.sim.sleep(AGAIN_S)

    async def _end(self, node: NodeId, way: str, away_s: float) -> None:
        injector, cluster = self.sim.injector, self.sim.cluster
        host = cluster.hosts[node]
        if way in ("pause", "isolate"):  # it is alive, and may return before or after it is unregistered
            getattr(injector, "_" + way)(f"node:{node}", REMOVAL_S / 2 + away_s)
        elif way == "stop" and node in cluster.nodes and host.starting is None and not host.process.paused:
            await cluster.stop_node(node)
        else:
            cluster.kill(node)

    async def _unregistered(self, node: NodeId) -> bool:
        """Return whether it was unregistered in time; otherwise it may have been all the same."""
        until = self.sim.cluster.loop.now + REMOVAL_S
        while self.sim.cluster.loop.now < until:
            if await self._unregister(node):
                return True
            await self.sim.sleep(AGAIN_S)
        return False

    async def _unregister(self, node: NodeId) -> bool:
        self.operations += 1
        try:
            async with self.sim.cluster.admin() as admin:
                await admin.unregister_broker(node, timeout=ASK_S)
        except BrokerIdNotRegisteredError:
            return True  # by an earlier try
        except InvalidRequestError:
            self.events["live-node-stays"] += 1
            return False
        except TidelogError as error:
            self.sim.world.note(f"unregister {node}: {type(error).__name__}")
            return False
        self.events["node-removed"] += 1
        return True

    def _is_needed(self, node: NodeId) -> bool:
        """Return whether data could be lost with the node's disk, or it is a broker again."""
        image = self.sim.observer.image
        if image.broker(node) is not None:
            return True
        held = (image.topics[at.topic_id].partitions[at.partition] for at in image.partitions_of(node))
        return any(
            not one.isr or node in (*one.isr, *one.eligible_leader_replicas, *one.last_known_elr) for one in held
        )

    def _replace_disk(self, node: NodeId) -> None:
        """Give the node another machine; a voter's quorum disk stays."""
        cluster = self.sim.cluster
        if node in cluster.controller_ids:
            cluster.wipe_logs(node)
        else:
            cluster.replace_disk(node)
        self.sim.world.note(f"node {node} gets an empty disk")
        self.events["removed-disk"] += 1

    def _ask_to_go(self, number: int) -> bool:
        """Request that a broker be unregistered, whether it is alive or not."""
        if not self.sim.cluster.nodes:
            return False

        async def ask() -> None:
            await self._unregister(self.sim.cluster.node_ids[number - 1])

        self.sim.injector.run(ask())
        return True
