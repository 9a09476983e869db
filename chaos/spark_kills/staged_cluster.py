"""Three nodes in this process, over real sockets; every call passes through a stage
(:mod:`tidelog.chaos.spark_kills.stage`)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from tidelog.broker.coordinators.markers import TransactionMarkers
from tidelog.broker.node.node import NodeNetwork
from tidelog.chaos.spark_kills.points import Call, When
from tidelog.chaos.spark_kills.stage import RECORDS, KillStage, Seen, outcome_of_fetch, outcome_of_produce
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.ids import NodeId
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.transaction_api import TransactionMarker
from tidelog.proto.transport.grpc_login import MakeLogin
from tidelog.proto.transport.network import (
    Address,
    CallContext,
    CallHandler,
    Connection,
    Frame,
    FrameSession,
    PacedSession,
    Server,
    Service,
    SessionFactory,
    StreamKind,
)
from tidelog.security.tls_store import FindTls, no_tls
from tidelog.testing.async_cluster import GRPC, AsyncCluster
from tidelog.testing.cut_network import WrappedNetwork
from tidelog.transactions.marker_sender import MarkersWritten, Sending

NODES: Final = 3
RETURN_TIMEOUT_S: Final = 30.0
CONFIG: Final = {
    # Spark keeps the machine busy too; a slow node must not count as dead.
    "broker.session.timeout.ms": "2000",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "min.insync.replicas": "2",
}


class StagedCluster(AsyncCluster):
    """Three nodes with a stage. ``stage`` is that of the running case."""

    def __init__(self) -> None:
        super().__init__(NODES, transport=GRPC, config=CONFIG)
        self.stage: KillStage | None = None
        self.faults: list[str] = []
        """Nodes that did not return."""
        self._returning: dict[NodeId, asyncio.Task[None]] = {}

    def kill_for_a_while(self, node_id: int) -> None:
        """Kill a node, and restart it when it leads no partition any more."""
        key = NodeId(node_id)
        if key in self._returning or key not in self.nodes:
            self.faults.append(f"node {node_id} is dead already")
            return
        self._returning[key] = asyncio.get_running_loop().create_task(self._kill_and_return(key))

    async def whole(self) -> None:
        """Wait until every node is back and every partition has all of its replicas in sync."""
        await asyncio.gather(*self._returning.values())
        self._returning.clear()
        await self.wait_ready()
        await self.wait_for(lambda: _in_sync(self.image), "every replica in sync", RETURN_TIMEOUT_S)

    async def _kill_and_return(self, key: NodeId) -> None:
        await self.kill(key)

        def replaced() -> bool:
            return all(one.leader != key for topic in self.image.topics.values() for one in topic.partitions.values())

        try:
            await self.wait_for(replaced, f"others to lead what node {key} led", RETURN_TIMEOUT_S)
            await self.start_node(key)
        except TimeoutError as late:
            self.faults.append(str(late))

    def _network(
        self,
        name: str,
        config: NodeConfig | None = None,
        tls: FindTls = no_tls,
        login: MakeLogin | None = None,
        client_id: str = "",
    ) -> NodeNetwork:
        network = super()._network(name, config, tls, login, client_id)
        return network if config is None else _StagedNetwork(network, config.node_id, self)

    def serving(self, node_id: NodeId) -> None:
        """Let a node that is about to serve report the markers that it sends."""
        role = self.nodes[node_id].broker
        if role is not None:
            markers = role.transactions.markers
            vars(markers)["send"] = partial(self._send, node_id, markers, markers.send)

    def _send(
        self,
        node_id: NodeId,
        markers: TransactionMarkers,
        send: Callable[[TransactionMarker, MarkersWritten], Sending],
        marker: TransactionMarker,
        written: MarkersWritten,
    ) -> Sending:
        if self.stage is not None and node_id in self.nodes and self.stage.saw_marker(marker, node_id) is not None:
            markers.close()  # the node ends in the next turn of the loop; the marker must not leave before
        return send(marker, written)


def _in_sync(image: MetadataImage) -> bool:
    return all(
        set(one.isr) == set(one.replicas) for topic in image.topics.values() for one in topic.partitions.values()
    )


class _StagedNetwork(WrappedNetwork):
    """A node's network that serves through the stage."""

    def __init__(self, inner: NodeNetwork, node_id: NodeId, cluster: StagedCluster) -> None:
        super().__init__(inner)
        self._node_id = node_id
        self._cluster = cluster

    def connect(self, address: Address, listener: str = "") -> Connection:
        return self._inner.connect(address, listener)

    async def serve(self, listener: str, address: Address, service: Service) -> Server:
        if listener == "CLIENT":
            self._cluster.serving(self._node_id)
            calls = {kind: self._call(handler) for kind, handler in service.calls.items()}
            streams = {kind: self._stream(kind, factory) for kind, factory in service.streams.items()}
            service = Service(calls, streams)
        return await self._inner.serve(listener, address, service)

    def _call(self, handler: CallHandler) -> CallHandler:
        async def serve(request: object, context: CallContext) -> Any:
            stage = self._cluster.stage
            seen = None if stage is None else stage.saw_call(request, self._node_id, context)
            if stage is None or seen is None:
                return await handler(request, context)
            return await stage.keep(stage.carry(seen, partial(handler, request, context)))

        return serve

    def _stream(self, kind: StreamKind, factory: SessionFactory) -> SessionFactory:
        if kind not in (StreamKind.PRODUCE, StreamKind.FETCH):
            return factory
        return lambda context: _StagedSession(factory(context), kind, self._node_id, context, self._cluster)


class _StagedSession:
    """A stream. A held frame holds those behind it, and the stream's end. Implements ``PacedSession``."""

    def __init__(
        self, inner: FrameSession, kind: StreamKind, node_id: NodeId, context: CallContext, cluster: StagedCluster
    ) -> None:
        self._inner = inner
        self._kind = kind
        self._node_id = node_id
        self._context = context
        self._cluster = cluster
        self._last: asyncio.Future[None] | None = None
        """Done when the last held frame has been passed on."""

    def hold(self) -> Awaitable[object] | None:
        return self._inner.hold() if isinstance(self._inner, PacedSession) else None

    def on_written(self, frame: Frame) -> None:
        if isinstance(self._inner, PacedSession):
            self._inner.on_written(frame)

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame | None:
        stage = self._cluster.stage
        if stage is None:
            return self._inner.on_frame(frame)
        saw = stage.saw_produce if self._kind is StreamKind.PRODUCE else stage.saw_fetch
        seen = saw(frame, self._node_id, self._context)
        if seen is None:
            return self._inner.on_frame(frame)
        if self._last is None and not stage.waits(When.BEFORE, seen):
            seen.begin()
            return stage.keep(self._finish(stage, seen, self._inner.on_frame(frame)))
        before, self._last = self._last, asyncio.get_running_loop().create_future()
        return stage.keep(self._later(stage, seen, memoryview(bytes(frame)), before, self._last))

    async def _later(
        self,
        stage: KillStage,
        seen: Seen,
        frame: memoryview,
        before: asyncio.Future[None] | None,
        done: asyncio.Future[None],
    ) -> Frame:
        answer: Awaitable[Frame] | Frame | None = None
        try:
            if before is not None:
                await before
            await stage.met(When.BEFORE, seen)
            seen.begin()
            answer = self._inner.on_frame(frame)
        finally:
            done.set_result(None)
            if self._last is done:
                self._last = None
        return await self._finish(stage, seen, answer)

    async def _finish(self, stage: KillStage, seen: Seen, answer: Awaitable[Frame] | Frame | None) -> Frame:
        await stage.met(When.STARTED, seen)
        found = await answer if inspect.isawaitable(answer) else answer
        assert found is not None
        if seen.call is Call.PRODUCE:
            seen.end(outcome_of_produce(found))
        else:
            seen.end(outcome_of_fetch(found))
            if seen.outcome != RECORDS:
                return found
        await stage.met(When.RAN, seen)
        return found

    def on_close(self) -> None:
        if self._last is None:
            self._inner.on_close()
        else:
            self._last.add_done_callback(lambda _: self._inner.on_close())
