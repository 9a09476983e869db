"""A cluster of nodes in this process, in asyncio form: real nodes, real log files, faults as calls.

Nodes have the ids 1 to ``nodes`` and both roles. With ``controllers``, only that many form the
quorum; the others are brokers only. Nodes talk through memory (the default) or gRPC over the loopback
address; you can cut links between them in both. Kafka clients always reach them over the loopback address;
you cannot cut their links.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from tidelog.broker.node.node import Node, NodeNetwork
from tidelog.broker.node.server import grpc_limits, tcp_port
from tidelog.client.admin.users import SALT_BYTES, UserScramCredentialUpsertion
from tidelog.client.config.security import ClientSecurity, SecuritySettings
from tidelog.model.clock import SystemClock
from tidelog.model.ids import NodeId, id_text, random_id
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.logs.metadata_records import MetadataRecord
from tidelog.proto.transport.grpc_login import MakeLogin
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address
from tidelog.security.tls_store import FindTls, NodeTls, no_tls
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.testing.cut_network import CutNetwork, Cuts
from tidelog.testing.killable_files import KillableFiles, KilledNodeFilter
from tidelog.testing.ports import LOOPBACK, free_ports
from tidelog.testing.secured import ADMIN, KINDS, ClusterSecurity
from tidelog.testing.watched_cluster import WatchedCluster

if TYPE_CHECKING:
    from tidelog.aio import Admin, Consumer, Producer, SinkJob, SinkLedger, SinkWriter

CLIENT: Final = "client"
"""Name of the clients' side in :meth:`AsyncCluster.partition`."""
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
for _name in ("tidelog.metadata_quorum.quorum", "tidelog.storage.log.log_directory", "tidelog.replication.manager"):
    logging.getLogger(_name).addFilter(_KILLED)


class AsyncCluster(WatchedCluster):
    """See the module. ``config`` holds settings for every node, under Kafka's names. ``seed`` makes ids and jitter
    repeatable. A given ``directory`` stays after :meth:`stop`; the default, a temporary one, is removed. ``security``:
    None, or ``"tls"``, ``"scram"`` or ``"tls+scram"`` (:mod:`tidelog.testing.secured`); then the transport is gRPC."""

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
        if nodes < 1:
            raise ValueError(f"nodes: expected at least 1, found {nodes}")
        if security not in (None, *KINDS):
            raise ValueError(f"security: expected None, {', '.join(KINDS)}, found {security!r}")
        transport = transport or (MEMORY if security is None else GRPC)
        if transport not in (MEMORY, GRPC):
            raise ValueError(f"transport: expected {MEMORY} or {GRPC}, found {transport!r}")
        if security is not None and transport == MEMORY:
            raise ValueError(f"transport: expected {GRPC} with security={security!r}, found {MEMORY}")
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
            "audit.topic.replication.factor": str(copies),
        }
        self._secured = None if security is None else ClusterSecurity(security, range(1, nodes + 1), self._rng)
        of_security = {} if self._secured is None else self._secured.settings
        self._settings = {**_DEFAULTS, **own, **of_security, **(config or {})}
        self._kept = directory is not None
        self._directory = directory
        self._first_records: Sequence[MetadataRecord] = ()
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

    # --- Lifecycle ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start every node and wait until all are ready."""
        if self._directory is None:
            self._directory = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="tidelog-"))
        if self._secured is not None:
            await asyncio.to_thread(self._secured.make, self._directory / "certificates")
            self._first_records = await asyncio.to_thread(self._secured.first_records)
        try:
            await self.start_many(self.node_ids)
            await self.wait_ready()
        except BaseException:
            await self._abandon()
            raise

    async def stop(self) -> None:
        """Stop every running node. Raises the error of a node that went down by itself."""
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
        """Start a stopped node; return once it serves. Raises the error that keeps it from starting."""
        key = self.known(node_id)
        if key in self.nodes:
            raise ValueError(f"node {node_id} runs already")
        disk = self._disks[key] = KillableFiles()
        from tidelog.broker.kafka.server import serve_kafka

        config = self.node_config(key)
        tls = NodeTls(config)
        node = Node(
            config,
            network=self._network(f"node{key}", config, tls.find),
            files=disk,
            clock=SystemClock(),
            rng=random.Random(self._rng.random()),
            cluster_id=self.cluster_id,
            on_fatal=lambda what, error: self._failed(key, what, error),
            serve_kafka=serve_kafka,
            first_records=self._first_records,
            tls=tls,
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
        """Start several nodes together; a new quorum needs all of its controllers, an existing one more than half."""
        starts = [asyncio.ensure_future(self.start_node(node_id)) for node_id in node_ids]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.wait(starts)
            raise

    async def stop_node(self, node_id: int) -> None:
        """Stop one node cleanly (controlled shutdown)."""
        node = self.nodes.pop(self.known(node_id))
        await node.stop()
        self._disks.pop(NodeId(node_id)).kill()

    async def kill(self, node_id: int) -> None:
        """End one node as kill -9 does: without a flush or any notice."""
        key = self.known(node_id)
        await self._drop(key).kill()

    def _drop(self, key: NodeId) -> Node:
        """Do the synchronous part of a kill."""
        node = self.nodes.pop(key)
        node.drop()
        self._disks.pop(key).kill()
        if self.transport == MEMORY:
            self.fabric.drop_node(f"node{key}")
        return node

    async def restart(self, node_id: int) -> Node:
        """Restart a stopped or killed node; kill it first if it runs."""
        if node_id in self.nodes:
            await self.kill(node_id)
        return await self.start_node(node_id)

    def wipe_logs(self, node_id: int) -> None:
        """Remove a stopped node's partitions, as if empty disks had replaced its log disks.
        The controller role's data stays."""
        if self.known(node_id) in self.nodes:
            raise ValueError(f"node {node_id} runs: stop or kill it first")
        for number in range(self._log_dirs):
            shutil.rmtree(self.node_directory(node_id, number), ignore_errors=True)

    # --- Disk faults ----------------------------------------------------------------------------------

    def break_log_dir(self, node_id: int, number: int = 0, error: int = errno.EIO) -> None:
        """Let every access to one log directory of a running node fail (``EIO``, ``ENOSPC``, …) until the node
        restarts. A node without another directory goes down when it notices."""
        self._disks[self.known(node_id)].break_path(str(self.node_directory(node_id, number)), error)

    # --- Network faults -------------------------------------------------------------------------------

    def partition(self, a: Side, b: Side, *, one_way: bool = False) -> None:
        """Cut the link from ``a`` to ``b``, and back unless ``one_way``. A side is a node's id or ``"client"``.

        A cut link holds its data and delivers it after :meth:`heal`, as TCP would.
        """
        links = self._links()
        links.cut(self._side(a), self._side(b))
        if not one_way:
            links.cut(self._side(b), self._side(a))

    def isolate(self, node_id: int, *, clients: bool = False) -> None:
        """Cut a node off from every other node, and optionally from clients too."""
        others: list[Side] = [n for n in self.node_ids if n != self.known(node_id)]
        for other in [*others, CLIENT] if clients else others:
            self.partition(node_id, other)

    def heal(self) -> None:
        """Restore every link."""
        self._links().heal()

    # --- Addresses and locations ------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """The clients' bootstrap addresses, ``host:port,…``. Over gRPC they are :attr:`kafka_bootstrap`: any client on
        this machine can use them, and our own find their listener there."""
        if self.transport == GRPC:
            return self.kafka_bootstrap
        return ",".join(str(self._addresses[n]["CLIENT"]) for n in self.node_ids)

    @property
    def kafka_bootstrap(self) -> str:
        """The ``bootstrap.servers`` for any Kafka client on this machine."""
        return ",".join(str(self._addresses[n]["KAFKA"]) for n in self.node_ids)

    def client_network(self, user: str = ADMIN, client_id: str = "") -> NodeNetwork:
        """Return the carrier for this cluster's clients; their side is called ``"client"``. ``user``: the user that a
        secured cluster sees. ``client_id``: the name by which the nodes know the client."""
        if self._secured is None:
            return self._network(CLIENT, client_id=client_id)
        found = ClientSecurity(**self.client_settings(user))
        store = found.tls()
        return self._network(CLIENT, tls=lambda _: store, login=found.login(), client_id=client_id)

    def client_settings(self, user: str = ADMIN) -> SecuritySettings:
        """Return what an SDK client in any process needs to connect as ``user``, besides ``bootstrap_servers``: nothing
        unless the cluster is secured. ``admin`` may do everything; others, what access control lists for ``User:`` and
        their name allow."""
        return {} if self._secured is None else self._secured.client_settings(user)

    def node_directory(self, node_id: int, number: int = 0) -> Path:
        """Return a log directory of a node."""
        assert self._directory is not None
        return self._directory / f"node{node_id}" / f"data{number}"

    # --- Clients ----------------------------------------------------------------------------------------

    def producer(self, *, user: str = ADMIN, **config: Any) -> Producer:
        """Return an asyncio producer connected to this cluster."""
        from tidelog.aio import Producer

        return Producer(self.bootstrap, **self._client(user, **config))

    def consumer(self, *, user: str = ADMIN, **config: Any) -> Consumer:
        """Return an asyncio consumer connected to this cluster."""
        from tidelog.aio import Consumer

        return Consumer(self.bootstrap, **self._client(user, **config))

    def admin(self, *, user: str = ADMIN, **config: Any) -> Admin:
        """Return an asyncio admin client connected to this cluster."""
        from tidelog.aio import Admin

        return Admin(self.bootstrap, **self._client(user, **config))

    def sink_ledger(self, sink: str, *, user: str = ADMIN, **config: Any) -> SinkLedger:
        """Return an asyncio sink ledger connected to this cluster."""
        from tidelog.aio import SinkLedger

        return SinkLedger(self.bootstrap, sink, **self._client(user, **config))

    def sink_writer(self, job: SinkJob, *, user: str = ADMIN, **config: Any) -> SinkWriter:
        """Return an asyncio writer for a sink's job, connected to this cluster."""
        from tidelog.aio import SinkWriter

        return SinkWriter(self.bootstrap, job, **self._client(user, **config))

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until every partition has its leader and every running node knows of it.
        Raises the controller's error if it refuses."""
        connection = self.client_network().connect(self._addresses[min(self.nodes)]["CLIENT"])
        await self._create_topic_by(connection, name, partitions, replication_factor, config)

    async def add_user(self, name: str, password: str | None = None) -> None:
        """Create a user with a password, or change its password; by default to a random one. Return when every running
        node knows it. Raises ``ValueError`` unless users of this cluster have passwords."""
        if self._secured is None or not self._secured.passwords:
            raise ValueError("add_user: expected a cluster with security='scram' or 'tls+scram'")
        salt = self._rng.randbytes(SALT_BYTES)
        wanted = UserScramCredentialUpsertion(name, password or id_text(random_id(self._rng)), salt=salt)
        async with self.admin() as admin:
            await admin.alter_user_scram_credentials([wanted])

        def known(node: Node) -> bool:
            found = node.view.image.users.get((name, wanted.info.mechanism))
            return found is not None and found.salt == salt

        await self.wait_for(lambda: all(map(known, self.nodes.values())), f"every node knows the user {name}")
        self._secured.passwords[name] = wanted.password

    # --- Inside -----------------------------------------------------------------------------------------

    def node_config(self, node_id: int) -> NodeConfig:
        """Return a node's configuration in this cluster."""
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
                **({} if self._secured is None else self._secured.node_settings(key)),
                **self._settings,
            }
        )

    def _client(self, user: str = ADMIN, **config: Any) -> dict[str, Any]:
        """Return a client's arguments besides its addresses."""
        return {"_network": self.client_network(user, config.get("client_id", "")), **config}

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

    def _network(
        self,
        name: str,
        config: NodeConfig | None = None,
        tls: FindTls = no_tls,
        login: MakeLogin | None = None,
        client_id: str = "",
    ) -> NodeNetwork:
        if self.transport == MEMORY:
            return self.fabric.network(name, client_id=client_id)
        from tidelog.proto.transport.grpc_transport import GrpcNetwork

        if self._cuts is None:
            self._cuts = Cuts()
        owners = {at: f"node{n}" for n, listeners in self._addresses.items() for at in listeners.values()}
        limits, port = (None, None) if config is None else (grpc_limits(config), tcp_port(config))
        network = GrpcNetwork(limits, tls=tls, login=login, client_id=client_id, tcp_port=port)
        return CutNetwork(network, name, owners, self._cuts)

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
