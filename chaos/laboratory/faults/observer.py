"""The state of the cluster, asked of its nodes directly: it bypasses the proxies, so that no fault blinds the
nemesis."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tidelog.chaos.laboratory.links.client_network import secured_network
from tidelog.cli.local.watch import PartitionState
from tidelog.client.config.security import SecuritySettings
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, TopicPartition
from tidelog.proto.calls.api import DescribeClusterRequest, MetadataRequest
from tidelog.proto.calls.group_api import FindCoordinatorRequest
from tidelog.proto.transport.network import Address, CallTimeout, Connection, ConnectionLost

ASK_S: Final = 0.7
"""How long a node may take to answer; a frozen one never does."""

SOON_S: Final = 0.1
"""If most nodes have answered by then, we do not wait for the others."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterStanding:
    """The state of the cluster according to the best informed of the answering nodes."""

    controller: int = NO_NODE
    metadata_offset: int = -1
    partitions: Mapping[TopicPartition, PartitionState] = field(default_factory=dict)
    fenced: frozenset[int] = frozenset()
    """Registered brokers that the controller considers dead."""

    def led_by(self, node: int) -> list[TopicPartition]:
        return sorted(at for at, held in self.partitions.items() if held.leader == node)

    @property
    def whole(self) -> bool:
        """Return whether there is a controller and every partition is whole."""
        return self.controller != NO_NODE and all(held.whole for held in self.partitions.values())


class Observer:
    """Asks all nodes; runs on one event loop."""

    def __init__(self, nodes: Mapping[int, Address], security: SecuritySettings) -> None:
        network = secured_network(**security)
        self._connections: dict[int, Connection] = {node: network.connect(at) for node, at in nodes.items()}

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()

    async def standing(self, topics: tuple[str, ...]) -> ClusterStanding:
        """Return the answer of the best informed node; an empty standing if none answers."""
        found = await self._answers([self._ask(each, topics) for each in self._connections.values()])
        return max(found, key=lambda one: (one.metadata_offset, one.controller), default=ClusterStanding())

    async def coordinator(self, key: str, kind: int) -> int:
        """Return the coordinator of a group or a transactional id (``kind`` as in FindCoordinator); -1 if unknown."""
        answers = await self._answers([self._coordinator(each, key, kind) for each in self._connections.values()])
        known = [answer for answer in answers if answer != NO_NODE]
        return max(known, key=known.count, default=int(NO_NODE))

    async def _answers(self, asking: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Return all answers that come soon; if that is not a majority, all that come in time."""
        tasks = [asyncio.ensure_future(each) for each in asking]
        done, left = await asyncio.wait(tasks, timeout=SOON_S)
        if left and 2 * len(done) <= len(tasks):
            done, left = await asyncio.wait(tasks, timeout=ASK_S)
        for task in left:
            task.cancel()
        return [task.result() for task in done]

    async def _ask(self, connection: Connection, topics: tuple[str, ...]) -> ClusterStanding:
        try:
            cluster = await connection.call(DescribeClusterRequest(), timeout_s=ASK_S)
            metadata = await connection.call(MetadataRequest(topics), timeout_s=ASK_S)
        except (ConnectionLost, CallTimeout):
            return ClusterStanding()
        partitions = {
            TopicPartition(topic.name, each.partition): PartitionState(
                int(each.leader), tuple(sorted(map(int, each.isr))), tuple(sorted(map(int, each.replicas)))
            )
            for topic in metadata.topics
            for each in topic.partitions
        }
        fenced = frozenset(int(broker.node_id) for broker in cluster.brokers if broker.fenced)
        return ClusterStanding(int(cluster.controller_id), int(cluster.metadata_offset), partitions, fenced)

    async def _coordinator(self, connection: Connection, key: str, kind: int) -> int:
        try:
            answer = await connection.call(FindCoordinatorRequest((key,), kind), timeout_s=ASK_S)
        except (ConnectionLost, CallTimeout):
            return int(NO_NODE)
        (found,) = answer.coordinators
        return int(found.node_id) if found.error is ErrorCode.NONE else int(NO_NODE)
