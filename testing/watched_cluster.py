"""Queries and waits on the nodes of a cluster in one process, however they were started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tidelog.broker.metadata.lifecycle_state import BrokerStanding
from tidelog.broker.node.node import Node
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode, error_for
from tidelog.model.ids import NO_NODE, NodeId
from tidelog.proto.calls.api import ConfigEntry, CreateTopicsRequest, NewTopic
from tidelog.proto.transport.network import Connection

READY_TIMEOUT_S: Final = 30.0


class WatchedCluster:
    """The running nodes and their state. ``poll_s``: time between two checks of a condition."""

    def __init__(self, node_ids: Iterable[int], poll_s: float) -> None:
        self.node_ids = [NodeId(node_id) for node_id in node_ids]
        self.nodes: dict[NodeId, Node] = {}
        """The running nodes."""
        self.failures: list[tuple[NodeId, str, BaseException]] = []
        """Nodes that went down by themselves, and why."""
        self._poll_s = poll_s

    # --- state --------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The newest metadata on any running node; empty if none runs."""
        images = (node.view.image for node in self.nodes.values())
        return max(images, key=lambda image: image.offset, default=MetadataImage())

    def leader_of(self, topic: str, partition: int) -> NodeId | None:
        """Return the partition's leader, ``None`` if there is none (or no such partition)."""
        found = self.image.topic(topic)
        if found is None or partition not in found.partitions:
            return None
        leader = found.partitions[partition].leader
        return None if leader == NO_NODE else leader

    def isr_of(self, topic: str, partition: int) -> tuple[NodeId, ...]:
        """Return the in-sync replicas of a partition; empty if there is no such partition."""
        found = self.image.topic(topic)
        return () if found is None or partition not in found.partitions else found.partitions[partition].isr

    def controller(self) -> NodeId | None:
        """Return the active controller: a running node that reports that it leads."""
        leading = [node_id for node_id, node in self.nodes.items() if node.is_active_controller]
        return leading[0] if len(leading) == 1 else None

    # --- waiting ------------------------------------------------------------------------------------

    async def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until ``condition`` (called on the cluster's event loop) holds. Raises ``TimeoutError`` naming ``what``
        after the bound."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self.raise_failure()
                    await asyncio.sleep(self._poll_s)
        except TimeoutError:
            raise TimeoutError(f"expected within {timeout_s:g} s: {what}") from None

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every running node serves and knows every other running broker as live."""

        def ready() -> bool:
            return all(
                node.standing in (None, BrokerStanding.RUNNING)
                and all(node.view.image.is_active(other) for other in self.nodes)
                for node in self.nodes.values()
            )

        await self.wait_for(ready, f"nodes {sorted(self.nodes)} ready", timeout_s)

    async def wait_for_controller(self, timeout_s: float = READY_TIMEOUT_S) -> NodeId:
        """Wait until a controller is active; return it."""
        await self.wait_for(lambda: self.controller() is not None, "an active controller", timeout_s)
        found = self.controller()
        assert found is not None
        return found

    async def wait_for_leader(
        self, topic: str, partition: int, *, other_than: int | None = None, timeout_s: float = READY_TIMEOUT_S
    ) -> NodeId:
        """Wait until a partition has a running leader other than ``other_than``; return it."""

        def led() -> bool:
            leader = self.leader_of(topic, partition)
            return leader in self.nodes and leader != other_than

        await self.wait_for(led, f"a leader of {topic}-{partition} other than {other_than}", timeout_s)
        found = self.leader_of(topic, partition)
        assert found is not None
        return found

    async def wait_for_isr(
        self, topic: str, partition: int, nodes: Iterable[int] | int, timeout_s: float = READY_TIMEOUT_S
    ) -> None:
        """Wait until the in-sync replicas are these nodes, or that many."""
        if isinstance(nodes, int):
            wanted = nodes
            await self.wait_for(
                lambda: len(self.isr_of(topic, partition)) == wanted,
                f"{wanted} in-sync replicas of {topic}-{partition}",
                timeout_s,
            )
        else:
            those = {NodeId(n) for n in nodes}
            await self.wait_for(
                lambda: set(self.isr_of(topic, partition)) == those,
                f"in-sync replicas {sorted(those)} of {topic}-{partition}",
                timeout_s,
            )

    # --- topics -------------------------------------------------------------------------------------

    async def _create_topic_by(
        self,
        connection: Connection,
        name: str,
        partitions: int,
        replication_factor: int | None,
        config: Mapping[str, str] | None,
    ) -> None:
        """Create a topic over a connection, close that, and wait until every running node knows a leader for each
        partition. Asks again if the controller changed meanwhile. Raises the controller's error if it refuses.
        """
        factor = -1 if replication_factor is None else replication_factor
        entries = tuple(ConfigEntry(key, value) for key, value in (config or {}).items())
        request = CreateTopicsRequest((NewTopic(name, partitions, factor, (), entries),))
        done = {ErrorCode.NONE}
        end = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        try:
            made = (await connection.call(request, timeout_s=READY_TIMEOUT_S)).topics[0]
            while made.error is ErrorCode.REQUEST_TIMED_OUT and asyncio.get_running_loop().time() < end:
                done.add(ErrorCode.TOPIC_ALREADY_EXISTS)
                made = (await connection.call(request, timeout_s=READY_TIMEOUT_S)).topics[0]
        finally:
            await connection.close()
        if made.error not in done:
            raise error_for(made.error, made.error_message)

        def known(node: Node) -> bool:
            image = node.view.image
            found = image.topics.get(made.topic_id) if made.error is ErrorCode.NONE else image.topic(name)
            return found is not None and all(p.leader != NO_NODE for p in found.partitions.values())

        await self.wait_for(lambda: all(map(known, self.nodes.values())), f"leaders of {name}")

    # --- inside -------------------------------------------------------------------------------------

    def raise_failure(self) -> None:
        """Raise the error of a node that went down by itself, if any did."""
        for node_id, what, error in self.failures:
            raise AssertionError(f"node {node_id} went down by itself: {what}") from error

    def known(self, node_id: int) -> NodeId:
        """Check that a node id belongs to this cluster, and return it. Raises ``ValueError``."""
        if node_id not in self.node_ids:
            raise ValueError(f"expected a node of {self.node_ids}, found {node_id}")
        return NodeId(node_id)
