"""The in-process cluster in plain blocking form.

    with tidelog.testing.Cluster(nodes=3) as cluster:
        cluster.create_topic("orders", partitions=3)
        with cluster.producer() as producer:
            producer.send("orders", b"hello").result()
        cluster.kill(cluster.leader_of("orders", 0))

Nodes run on an event loop in a thread of their own, and clients made by :meth:`Cluster.producer` and
its like run their IO there too. Everything is as in :class:`~tidelog.testing.async_cluster.AsyncCluster`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tidelog.client.background import BackgroundLoop
from tidelog.model.ids import NodeId
from tidelog.proto.network import Network
from tidelog.testing.async_cluster import MEMORY, AsyncCluster, Side
from tidelog.testing.watched_cluster import READY_TIMEOUT_S

if TYPE_CHECKING:
    from tidelog import Admin, Consumer, Producer, SinkJob, SinkLedger, SinkWriter
    from tidelog.broker.node import Node

R = TypeVar("R")


class Cluster:
    """A running cluster between ``with`` and its end (or :meth:`start` and :meth:`stop`).

    ``nodes``: how many, with ids from 1. ``transport``: ``"memory"`` or ``"grpc"`` over the loopback
    address. ``controllers``: how many of the nodes form the quorum, by default at most three. ``config``:
    settings of every node by Kafka's names. ``directory``: where log files lie; kept after the end if
    it is given, else temporary.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        transport: str = MEMORY,
        controllers: int | None = None,
        config: Mapping[str, str] | None = None,
        directory: Path | None = None,
        log_dirs: int = 1,
        seed: int | None = None,
    ) -> None:
        self._inner = AsyncCluster(
            nodes,
            transport=transport,
            controllers=controllers,
            config=config,
            directory=directory,
            log_dirs=log_dirs,
            seed=seed,
        )
        self._background: BackgroundLoop | None = None

    # --- Life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every node and wait until all are ready."""
        self._background = BackgroundLoop()
        try:
            self._run(self._inner.start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """End every node and remove the temporary directory. Raises what took a node down by itself."""
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

    def kill(self, node_id: int) -> None:
        """End a node as kill -9 does: nothing is flushed, nobody is told."""
        self._run(self._inner.kill(node_id))

    def stop_node(self, node_id: int) -> None:
        """Stop a node in good order (controlled shutdown)."""
        self._run(self._inner.stop_node(node_id))

    def restart(self, node_id: int) -> None:
        """Start a node again that was stopped or killed, and wait until it serves; kill it first if it runs."""
        self._run(self._inner.restart(node_id))

    def wipe_logs(self, node_id: int) -> None:
        """Remove the partitions of a node that does not run, as if its log disks had been replaced."""
        self._inner.wipe_logs(node_id)

    # --- Faults of disk and network -------------------------------------------------------------------

    def break_log_dir(self, node_id: int, number: int = 0, error: int = errno.EIO) -> None:
        """Let every access to one log directory of a running node fail until it is started again."""
        self._call(lambda: self._inner.break_log_dir(node_id, number, error))

    def partition(self, a: Side, b: Side, *, one_way: bool = False) -> None:
        """Cut the link from ``a`` to ``b``, and back unless ``one_way``. A side is a node's id or ``"client"``."""
        self._call(lambda: self._inner.partition(a, b, one_way=one_way))

    def isolate(self, node_id: int, *, clients: bool = False) -> None:
        """Cut a node off from every other node, and from clients too where asked."""
        self._call(lambda: self._inner.isolate(node_id, clients=clients))

    def heal(self) -> None:
        """Mend every link."""
        self._call(self._inner.heal)

    # --- What is where ----------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Where clients begin, ``host:port,…``. Over gRPC any client of this machine can use it."""
        return self._inner.bootstrap

    @property
    def kafka_bootstrap(self) -> str:
        """``bootstrap.servers`` for any client of Kafka's protocol on this machine, whatever the transport."""
        return self._inner.kafka_bootstrap

    @property
    def cluster_id(self) -> str:
        return self._inner.cluster_id

    @property
    def node_ids(self) -> list[NodeId]:
        """Every node, whether it runs or not."""
        return list(self._inner.node_ids)

    @property
    def running(self) -> list[NodeId]:
        """The nodes that run."""
        return self._call(lambda: sorted(self._inner.nodes))

    def node(self, node_id: int) -> Node:
        """A running node, to look into; it lives on the cluster's event loop."""
        return self._inner.nodes[NodeId(node_id)]

    def leader_of(self, topic: str, partition: int) -> NodeId | None:
        """The partition's leader, ``None`` where there is none (or no such partition)."""
        return self._call(lambda: self._inner.leader_of(topic, partition))

    def isr_of(self, topic: str, partition: int) -> tuple[NodeId, ...]:
        """The in-sync replicas of a partition."""
        return self._call(lambda: self._inner.isr_of(topic, partition))

    def controller(self) -> NodeId | None:
        """The active controller."""
        return self._call(self._inner.controller)

    def node_directory(self, node_id: int, number: int = 0) -> Path:
        """A log directory of a node."""
        return self._inner.node_directory(node_id, number)

    # --- Clients ----------------------------------------------------------------------------------------

    def client_network(self) -> Network:
        """The carrier for clients of this cluster."""
        return self._inner.client_network()

    def producer(self, **config: Any) -> Producer:
        """A blocking producer that is connected to this cluster; settings in snake_case of Kafka's names."""
        from tidelog import Producer

        return Producer(self.bootstrap, **self._client(), **config)

    def consumer(self, **config: Any) -> Consumer:
        """A blocking consumer that is connected to this cluster."""
        from tidelog import Consumer

        return Consumer(self.bootstrap, **self._client(), **config)

    def admin(self, **config: Any) -> Admin:
        """A blocking admin client that is connected to this cluster."""
        from tidelog import Admin

        return Admin(self.bootstrap, **self._client(), **config)

    def sink_ledger(self, sink: str, **config: Any) -> SinkLedger:
        """A blocking ledger of a sink that is connected to this cluster."""
        from tidelog import SinkLedger

        return SinkLedger(self.bootstrap, sink, **self._client(), **config)

    def sink_writer(self, job: SinkJob, **config: Any) -> SinkWriter:
        """A blocking writer of a sink's job that is connected to this cluster."""
        from tidelog import SinkWriter

        return SinkWriter(self.bootstrap, job, **self._client(), **config)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Make a topic and wait until every partition has its leader. Raises what the controller refused."""
        self._run(self._inner.create_topic(name, partitions, replication_factor, config))

    # --- Waiting ----------------------------------------------------------------------------------------

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until ``condition`` (called on the cluster's event loop) holds; ``TimeoutError`` after the bound."""
        self._run(self._inner.wait_for(condition, what, timeout_s))

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every running node serves and knows every other one as live."""
        self._run(self._inner.wait_ready(timeout_s))

    def wait_for_controller(self, timeout_s: float = READY_TIMEOUT_S) -> NodeId:
        return self._run(self._inner.wait_for_controller(timeout_s))

    def wait_for_leader(
        self, topic: str, partition: int, *, other_than: int | None = None, timeout_s: float = READY_TIMEOUT_S
    ) -> NodeId:
        """Wait until a partition has a leader that runs, another one than ``other_than``; return it."""
        return self._run(self._inner.wait_for_leader(topic, partition, other_than=other_than, timeout_s=timeout_s))

    def wait_for_isr(
        self, topic: str, partition: int, nodes: Iterable[int] | int, timeout_s: float = READY_TIMEOUT_S
    ) -> None:
        """Wait until the in-sync replicas are these nodes, or that many."""
        self._run(self._inner.wait_for_isr(topic, partition, nodes, timeout_s))

    # --- Inside -----------------------------------------------------------------------------------------

    def _client(self) -> dict[str, Any]:
        return {"_network": self.client_network(), "_background": self._background}

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
