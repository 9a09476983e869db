"""The delay topics of one node: a mover for each of their partitions that it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from tidelog.broker.coordinators.delays.surroundings import Counts, Surroundings
from tidelog.broker.metadata.dynamic_config import Settings
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.metadata.reconciler import TopicConfigs
from tidelog.broker.services import Calls
from tidelog.model.clock import Clock
from tidelog.model.ids import NO_NODE, NodeId, TopicIdPartition, TopicPartition
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.network import Connection, StreamKind
from tidelog.replication.manager import ReplicaManager
from tidelog.replication.partition.partition_state import PartitionState

if TYPE_CHECKING:
    from tidelog.broker.coordinators.delays.mover import Mover
    from tidelog.broker.coordinators.delays.orders import Target

MOVERS_MAX = 10_000
"""Most produce frames under way to another node: one of each mover."""


class Delays:
    """See the module. Everything runs on the event loop."""

    def __init__(
        self,
        node_id: NodeId,
        replicas: ReplicaManager,
        view: MetadataView,
        connection: Callable[[NodeId], Connection | None],
        calls: Calls,
        settings: Callable[[], Settings],
        clock: Clock,
        on_fatal: Callable[[BaseException], None],
        *,
        group_partition: Callable[[str], int],
        transaction_partition: Callable[[str], int],
        create: Callable[[Iterable[str]], Awaitable[object]],
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._view = view
        self._connection = connection
        self._settings = settings
        self._configs = TopicConfigs(settings())
        self._clock = clock
        self._on_fatal = on_fatal
        self._callers: dict[NodeId, tuple[Connection, FrameCaller]] = {}
        self._movers: dict[TopicIdPartition, tuple[Mover, asyncio.Task[None]]] = {}
        self._closed = False
        self._around = Surroundings(
            node_id, replicas, view, connection, self._caller, calls, group_partition, transaction_partition, create
        )
        self.counts = Counts()

    @property
    def movers(self) -> list[Mover]:
        return [mover for mover, _ in self._movers.values()]

    def applied(self, states: Iterable[PartitionState]) -> None:
        """These partitions' roles or settings may have changed. A mover ends by itself once it does not lead."""
        for state in states:
            if not state.config.moves_delayed or state.leader != self._node_id or self._closed:
                continue
            known = self._movers.get(state.key)
            if known is not None:
                if known[0].leader_epoch == state.leader_epoch and not known[1].done():
                    continue
                known[1].cancel()
            self._start(state)

    async def stop(self) -> None:
        """End all movers where they stand: what they have open is aborted by the next leader."""
        tasks = [task for _, task in self._movers.values()]
        self.kill()
        if tasks:
            await asyncio.wait(tasks)
        callers, self._callers = self._callers, {}
        for _, caller in callers.values():
            await caller.close()

    def kill(self) -> None:
        self._closed = True
        for _, task in self._movers.values():
            task.cancel()
        for _, caller in self._callers.values():
            caller.reset("the node has ended")

    def _start(self, state: PartitionState) -> None:
        from tidelog.broker.coordinators.delays.mover import Mover
        from tidelog.broker.coordinators.delays.transaction import DelayTransactions

        source = TopicPartition(state.topic, state.partition)
        mover = Mover(
            state.key,
            source,
            state.leader_epoch,
            self._replicas,
            DelayTransactions(self._around, source, state.topic_id),
            self._find,
            self._clock,
            self.counts,
        )
        task = asyncio.get_running_loop().create_task(mover.run(), name=f"delay topic {source}")
        self._movers[state.key] = mover, task
        task.add_done_callback(lambda done: self._ended(state.key, done))

    def _ended(self, key: TopicIdPartition, task: asyncio.Task[None]) -> None:
        known = self._movers.get(key)
        if known is not None and known[1] is task:
            del self._movers[key]
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._on_fatal(bug)

    def _find(self, name: str) -> Target | None:
        from tidelog.broker.coordinators.delays.orders import Target

        image = self._view.image
        topic = image.topic(name)
        if topic is None:
            return None
        settings = self._settings()
        if self._configs.settings is not settings:
            self._configs = TopicConfigs(settings)
        away = frozenset(number for number, found in topic.partitions.items() if found.leader == NO_NODE)
        return Target(name, len(topic.partitions), self._configs.of(image, name), away)

    def _caller(self, node_id: NodeId) -> FrameCaller | None:
        connection = self._connection(node_id)
        if connection is None:
            return None
        known = self._callers.get(node_id)
        if known is not None:
            if known[0] is connection:
                return known[1]
            known[1].reset("another connection is used now")
        caller = FrameCaller(connection, StreamKind.PRODUCE, in_flight_max=MOVERS_MAX)
        self._callers[node_id] = connection, caller
        return caller
