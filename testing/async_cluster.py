"""A cluster of nodes in this process, in asyncio form: real nodes, real log files, faults as calls.

Nodes have the ids 1 to ``nodes`` and both roles, unless ``controllers`` says how many of them form the
quorum; the others are brokers only. Nodes speak through memory (the default) or gRPC over the loopback
address; links between them can be cut in both. Clients of Kafka's protocol reach them over the loopback
address in either case; their links cannot be cut.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from tidelog.broker.node import Node, NodeNetwork
from tidelog.broker.server import grpc_limits
from tidelog.model.broker_config import NodeConfig
from tidelog.model.clock import SystemClock
from tidelog.model.ids import NodeId, id_text, random_id
from tidelog.proto.memory_transport import MemoryFabric
from tidelog.proto.network import Address
from tidelog.storage.log_errors import LogDirFailed
from tidelog.testing.cut_network import CutNetwork, Cuts
from tidelog.testing.killable_files import KillableFiles, KilledNodeFilter
from tidelog.testing.ports import LOOPBACK, free_ports
from tidelog.testing.watched_cluster import WatchedCluster

if TYPE_CHECKING:
    from tidelog.aio import Admin, Consumer, Producer, SinkJob, SinkLedger, SinkWriter

CLIENT: Final = "client"
"""Name of the clients' end in :meth:`AsyncCluster.partition`."""
POLL_S: Final = 0.002
MEMORY: Final = "memory"
GRPC: Final = "grpc"
Side = int | str
_DEFAULTS: Final[Mapping[str, str]] = {
    "http.listener": "",
    "log.segment.delete.delay.ms": "0",
    "log.segment.bytes": str(64 * 1024 * 1024),
    "group.initial.rebalance.delay.ms": "0",
}


_KILLED = KilledNodeFilter()
for _name in ("tidelog.metadata_quorum.quorum", "tidelog.storage.log_directory", "tidelog.replication.manager"):
    logging.getLogger(_name).addFilter(_KILLED)


class AsyncCluster(WatchedCluster):
    """See the module. ``config`` are settings of every node by Kafka's names; ``seed`` makes ids and
    jitter repeatable; ``directory`` is kept after :meth:`stop`, without it a temporary one is removed."""

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
        if nodes < 1:
            raise ValueError(f"nodes: expected at least 1, found {nodes}")
        if transport not in (MEMORY, GRPC):
            raise ValueError(f"transport: expected {MEMORY} or {GRPC}, found {transport!r}")
        voters = min(nodes, 3) if controllers is None else controllers
        if not 1 <= voters <= nodes:
            raise ValueError(f"controllers: expected 1 to {nodes}, found {voters}")
        self._rng = random.Random(seed)
        copies = min(nodes, 3)
        own = {
            "default.replication.factor": str(copies),
            "offsets.topic.replication.factor": str(copies),
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": str(max(1, copies - 1)),
        }
        self._settings = {**_DEFAULTS, **own, **(config or {})}
        self._kept = directory is not None
        self._directory = directory
        self._log_dirs = log_dirs
        self._ending: set[asyncio.Future[None]] = set()
        """Nodes that go down because their last log directory was broken."""
        self.cluster_id = id_text(random_id(self._rng))
        self.transport = transport
        self.fabric = MemoryFabric()
        self._cuts: Cuts | None = None
        super().__init__(range(1, nodes + 1), POLL_S)
        self.controller_ids = self.node_ids[:voters]
        self._addresses = self._choose_addresses()
        self._disks: dict[NodeId, KillableFiles] = {}

    # --- Life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start every node and wait until all are ready."""
        if self._directory is None:
            self._directory = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="tidelog-"))
        try:
            await self.start_many(self.node_ids)
            await self.wait_ready()
        except BaseException:
            await self._abandon()
            raise

    async def stop(self) -> None:
        """Stop every node that runs. Raises what took a node down by itself."""
        for node_id in list(self.nodes):
            await self.kill(node_id)
        await asyncio.gather(*self._ending)
        self._remove()
        if self.failures:
            node_id, what, error = self.failures[0]
            raise AssertionError(f"node {node_id} went down by itself: {what}") from error

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.stop()
        else:
            await self._abandon()

    async def start_node(self, node_id: int) -> Node:
        """Start one node that does not run; returns once it serves. Raises what keeps it from starting."""
        key = self.known(node_id)
        if key in self.nodes:
            raise ValueError(f"node {node_id} runs already")
        disk = self._disks[key] = KillableFiles()
        from tidelog.broker.kafka.server import serve_kafka

        node = Node(
            self.node_config(key),
            network=self._network(f"node{key}", self.node_config(key)),
            files=disk,
            clock=SystemClock(),
            rng=random.Random(self._rng.random()),
            cluster_id=self.cluster_id,
            on_fatal=lambda what, error: self._failed(key, what, error),
            serve_kafka=serve_kafka,
        )
        self.nodes[key] = node
        try:
            await node.start()
        except BaseException:
            self.nodes.pop(key, None)
            node.drop()
            disk.kill()
            await node.kill()
            raise
        return node

    async def start_many(self, node_ids: Iterable[int]) -> None:
        """Start several nodes at once; a quorum needs more than half of its controllers to begin."""
        starts = [asyncio.ensure_future(self.start_node(node_id)) for node_id in node_ids]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.wait(starts)
            raise

    async def stop_node(self, node_id: int) -> None:
        """Stop one node in good order (controlled shutdown)."""
        node = self.nodes.pop(self.known(node_id))
        await node.stop()
        self._disks.pop(NodeId(node_id)).kill()

    async def kill(self, node_id: int) -> None:
        """End one node as kill -9 does: nothing is flushed, nobody is told."""
        key = self.known(node_id)
        await self._drop(key).kill()

    def _drop(self, key: NodeId) -> Node:
        """The part of a kill that is done at once."""
        node = self.nodes.pop(key)
        node.drop()
        self._disks.pop(key).kill()
        if self.transport == MEMORY:
            self.fabric.drop_node(f"node{key}")
        return node

    async def restart(self, node_id: int) -> Node:
        """Start a node again that was stopped or killed; kill it first if it runs."""
        if node_id in self.nodes:
            await self.kill(node_id)
        return await self.start_node(node_id)

    def wipe_logs(self, node_id: int) -> None:
        """Remove the partitions of a node that does not run, as if its log disks had been replaced by empty ones.
        What the controller role keeps stays."""
        if self.known(node_id) in self.nodes:
            raise ValueError(f"node {node_id} runs: stop or kill it first")
        for number in range(self._log_dirs):
            shutil.rmtree(self.node_directory(node_id, number), ignore_errors=True)

    # --- Faults of the disk ---------------------------------------------------------------------------

    def break_log_dir(self, node_id: int, number: int = 0, error: int = errno.EIO) -> None:
        """Let every access to one log directory of a running node fail (``EIO``, ``ENOSPC``, …) until it is
        started again. A node that has no other goes down when it notices."""
        self._disks[self.known(node_id)].break_path(str(self.node_directory(node_id, number)), error)

    # --- Faults of the network ------------------------------------------------------------------------

    def partition(self, a: Side, b: Side, *, one_way: bool = False) -> None:
        """Cut the link from ``a`` to ``b``, and back unless ``one_way``. A side is a node's id or ``"client"``.

        What is sent over a cut link is held and delivered after :meth:`heal`, as TCP would.
        """
        links = self._links()
        links.cut(self._side(a), self._side(b))
        if not one_way:
            links.cut(self._side(b), self._side(a))

    def isolate(self, node_id: int, *, clients: bool = False) -> None:
        """Cut a node off from every other node, and from clients too where asked."""
        others: list[Side] = [n for n in self.node_ids if n != self.known(node_id)]
        for other in [*others, CLIENT] if clients else others:
            self.partition(node_id, other)

    def heal(self) -> None:
        """Mend every link."""
        self._links().heal()

    # --- What is where ----------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Where clients begin: every node's client address."""
        return ",".join(str(self._addresses[n]["CLIENT"]) for n in self.node_ids)

    @property
    def kafka_bootstrap(self) -> str:
        """Where clients of Kafka's protocol begin, ``bootstrap.servers`` of theirs: any client of this machine."""
        return ",".join(str(self._addresses[n]["KAFKA"]) for n in self.node_ids)

    def client_network(self) -> NodeNetwork:
        """The carrier for clients of this cluster; their end is called ``"client"``."""
        return self._network(CLIENT)

    def node_directory(self, node_id: int, number: int = 0) -> Path:
        """A log directory of a node."""
        assert self._directory is not None
        return self._directory / f"node{node_id}" / f"data{number}"

    # --- Clients ----------------------------------------------------------------------------------------

    def producer(self, **config: Any) -> Producer:
        """An asyncio producer that is connected to this cluster."""
        from tidelog.aio import Producer

        return Producer(self.bootstrap, _network=self.client_network(), **config)

    def consumer(self, **config: Any) -> Consumer:
        """An asyncio consumer that is connected to this cluster."""
        from tidelog.aio import Consumer

        return Consumer(self.bootstrap, _network=self.client_network(), **config)

    def admin(self, **config: Any) -> Admin:
        """An asyncio admin client that is connected to this cluster."""
        from tidelog.aio import Admin

        return Admin(self.bootstrap, _network=self.client_network(), **config)

    def sink_ledger(self, sink: str, **config: Any) -> SinkLedger:
        """An asyncio ledger of a sink that is connected to this cluster."""
        from tidelog.aio import SinkLedger

        return SinkLedger(self.bootstrap, sink, _network=self.client_network(), **config)

    def sink_writer(self, job: SinkJob, **config: Any) -> SinkWriter:
        """An asyncio writer of a sink's job that is connected to this cluster."""
        from tidelog.aio import SinkWriter

        return SinkWriter(self.bootstrap, job, _network=self.client_network(), **config)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Make a topic and wait until every partition has its leader and every running node knows of it.
        Raises the error of the controller's refusal."""
        connection = self.client_network().connect(self._addresses[min(self.nodes)]["CLIENT"])
        await self.create_topic_by(connection, name, partitions, replication_factor, config)

    # --- Inside -----------------------------------------------------------------------------------------

    def node_config(self, node_id: int) -> NodeConfig:
        """The configuration that a node of this cluster has."""
        key = NodeId(node_id)
        assert self._directory is not None
        own = self._addresses[key]
        roles = "broker,controller" if key in self.controller_ids else "broker"
        dirs = ",".join(str(self.node_directory(key, n)) for n in range(self._log_dirs))
        return NodeConfig.parse(
            {
                "node.id": str(key),
                "process.roles": roles,
                "listeners": ",".join(f"{name}://{address}" for name, address in own.items()),
                "controller.quorum.voters": ",".join(
                    f"{n}@{self._addresses[n]['CONTROLLER']}" for n in self.controller_ids
                ),
                "log.dirs": dirs,
                "metadata.log.dir": str(self._directory / f"node{key}" / "metadata"),
                **self._settings,
            }
        )

    def _choose_addresses(self) -> dict[NodeId, dict[str, Address]]:
        names = {n: ["CLIENT", "REPLICATION"] + ["CONTROLLER"] * (n in self.controller_ids) for n in self.node_ids}
        ports = iter(free_ports(sum(map(len, names.values())) + len(names)))
        if self.transport == MEMORY:
            own = {n: {name: Address(f"node{n}", 9092 + i) for i, name in enumerate(names[n])} for n in names}
        else:
            own = {n: {name: Address(LOOPBACK, next(ports)) for name in names[n]} for n in names}
        for listeners in own.values():
            listeners["KAFKA"] = Address(LOOPBACK, next(ports))
        return own

    def _network(self, name: str, config: NodeConfig | None = None) -> NodeNetwork:
        if self.transport == MEMORY:
            return self.fabric.network(name)
        from tidelog.proto.grpc_transport import GrpcNetwork

        if self._cuts is None:
            self._cuts = Cuts()
        owners = {at: f"node{n}" for n, listeners in self._addresses.items() for at in listeners.values()}
        return CutNetwork(GrpcNetwork(None if config is None else grpc_limits(config)), name, owners, self._cuts)

    def _side(self, side: Side) -> str:
        return CLIENT if side == CLIENT else f"node{self.known(int(side))}"

    def _links(self) -> MemoryFabric | Cuts:
        return self.fabric if self._cuts is None else self._cuts

    def _failed(self, node_id: NodeId, what: str, error: BaseException) -> None:
        disk = self._disks.get(node_id)
        if disk is None or not (disk.broken and isinstance(error, LogDirFailed)):
            self.failures.append((node_id, what, error))
            return
        ending = asyncio.ensure_future(self._drop(node_id).kill())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _abandon(self) -> None:
        for node_id in list(self.nodes):
            await self.kill(node_id)
        self._remove()

    def _remove(self) -> None:
        if not self._kept and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
