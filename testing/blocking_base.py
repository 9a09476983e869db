"""The handwritten part of ``tidelog.testing.Cluster``: lifecycle and clients. The rest is generated
(``tools/dev/blocking_forms.py``)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tidelog.client.background import BackgroundLoop
from tidelog.model.ids import NodeId
from tidelog.testing.async_cluster import AsyncCluster
from tidelog.testing.secured import ADMIN

if TYPE_CHECKING:
    from tidelog import Admin, Consumer, Producer, SinkJob, SinkLedger, SinkWriter
    from tidelog.broker.node.node import Node

R = TypeVar("R")


class BlockingCluster:
    """A running cluster between ``with`` and its end (or :meth:`start` and :meth:`stop`).

        with tidelog.testing.Cluster(nodes=3) as cluster:
            cluster.create_topic("orders", partitions=3)
            with cluster.producer() as producer:
                producer.send("orders", b"hello").result()
            cluster.kill(cluster.leader_of("orders", 0))

    Nodes run on an event loop in their own thread. Clients from :meth:`producer` and similar methods run their IO there
    too.

    ``nodes``: their number; ids start at 1. ``transport``: ``"memory"`` or ``"grpc"`` over the loopback address.
    ``security``: None, or (over gRPC) ``"tls"`` for certificates, ``"scram"`` for passwords or ``"tls+scram"`` for
    both, with access control lists: clients are ``admin``, a super user, unless ``user`` names another.
    ``controllers``: how many of the nodes form the quorum, by default at most three. ``config``: settings for every
    node, under Kafka's names. ``directory``: where the log files are, kept afterwards; by default temporary.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        transport: str | None = None,
        security: str | None = None,
        controllers: int | None = None,
        config: Mapping[str, str] | None = None,
        directory: Path | None = None,
        log_dirs: int = 1,
        seed: int | None = None,
    ) -> None:
        self._inner = AsyncCluster(
            nodes,
            transport=transport,
            security=security,
            controllers=controllers,
            config=config,
            directory=directory,
            log_dirs=log_dirs,
            seed=seed,
        )
        self._background: BackgroundLoop | None = None

    # --- Lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every node and wait until all are ready."""
        self._background = BackgroundLoop()
        try:
            self._run(self._inner.start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Stop every running node. Raises the error of a node that went down by itself."""
        try:
            self._run(self._inner.stop())
        finally:
            self._end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._inner.__aexit__(kind, error, trace))
        finally:
            self._end()

    # --- Nodes ------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        return self._inner.cluster_id

    @property
    def node_ids(self) -> list[NodeId]:
        """Every node, running or not."""
        return list(self._inner.node_ids)

    @property
    def running(self) -> list[NodeId]:
        """The running nodes."""
        return self._call(lambda: sorted(self._inner.nodes))

    def node(self, node_id: int) -> Node:
        """Return a running node, for inspection; it lives on the cluster's event loop."""
        return self._inner.nodes[NodeId(node_id)]

    # --- Clients ----------------------------------------------------------------------------------------

    def producer(self, *, user: str = ADMIN, **config: Any) -> Producer:
        """Return a blocking producer connected to this cluster; settings are Kafka's names in snake_case."""
        from tidelog import Producer

        return Producer(self._inner.bootstrap, **self._client(user, **config))

    def consumer(self, *, user: str = ADMIN, **config: Any) -> Consumer:
        """Return a blocking consumer connected to this cluster."""
        from tidelog import Consumer

        return Consumer(self._inner.bootstrap, **self._client(user, **config))

    def admin(self, *, user: str = ADMIN, **config: Any) -> Admin:
        """Return a blocking admin client connected to this cluster."""
        from tidelog import Admin

        return Admin(self._inner.bootstrap, **self._client(user, **config))

    def sink_ledger(self, sink: str, *, user: str = ADMIN, **config: Any) -> SinkLedger:
        """Return a blocking sink ledger connected to this cluster."""
        from tidelog import SinkLedger

        return SinkLedger(self._inner.bootstrap, sink, **self._client(user, **config))

    def sink_writer(self, job: SinkJob, *, user: str = ADMIN, **config: Any) -> SinkWriter:
        """Return a blocking writer for a sink's job, connected to this cluster."""
        from tidelog import SinkWriter

        return SinkWriter(self._inner.bootstrap, job, **self._client(user, **config))

    # --- Inside -----------------------------------------------------------------------------------------

    def _client(self, user: str = ADMIN, **config: Any) -> dict[str, Any]:
        return {**self._inner._client(user, **config), "_background": self._background}

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        if self._background is None:
            work.close()
            raise RuntimeError("the cluster does not run: use it in a with statement, or call start()")
        return self._background.run(work)

    def _call(self, work: Callable[[], R]) -> R:
        async def run() -> R:
            return work()

        return self._run(run())

    def _end(self) -> None:
        background, self._background = self._background, None
        if background is not None:
            background.stop()
