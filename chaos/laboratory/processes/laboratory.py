"""A cluster of real processes between proxies: its files, start and end.

    <directory>/cluster/       nodes, their configurations, data and logs (:mod:`tidelog.cli.local.cluster`)
    <directory>/cluster/node-1/detours.json   the address that node 1 dials for each one that it knows
    <directory>/cluster/node-1/faults         the faults of its disk and clock (:mod:`tidelog.chaos.disk`)
    <directory>/cluster/certificates          keys and certificates of a secured cluster
    <directory>/toxiproxy.log  output of the proxy server

Every node listens on its own ports, by which the others know it; each dials the others through its own proxies
(:mod:`tidelog.chaos.laboratory.links.detours`). Clients get only the addresses of proxies, in the bootstrap list and
in metadata (``advertised.listeners``). Outside observers of the laboratory use :attr:`Laboratory.direct`.

Everything here is called from the main thread: see :mod:`tidelog.chaos.laboratory.processes.parent_death`.
"""

from __future__ import annotations

import os
import random
import shutil
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidelog.chaos.disk.faults import DiskFaults
from tidelog.chaos.laboratory.links.detours import Detours, write_detours
from tidelog.chaos.laboratory.links.links import CLIENTS, Links, Route
from tidelog.chaos.laboratory.links.proxy_server import ProxyServer
from tidelog.chaos.laboratory.processes.parent_death import check_platform
from tidelog.chaos.laboratory.processes.secured import CLIENT_USER, secure
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.cluster import LocalCluster, rack_of
from tidelog.cli.local.node import LocalNode
from tidelog.client.config.security import SecuritySettings
from tidelog.model.settings.properties import format_properties
from tidelog.proto.transport.network import Address
from tidelog.testing import ports
from tidelog.testing.secured import ADMIN, ClusterSecurity

NODES_MIN: Final = 1
NODES_MAX: Final = 9
STOP_TIMEOUT_S: Final = 10.0
START_TIMEOUT_S: Final = 90.0
_ANSWER_S: Final = 5.0
_POLL_S: Final = 0.05
"""For all nodes together, also on a busy machine."""
REPLICATION: Final = "REPLICATION"
CONTROLLER: Final = "CONTROLLER"
CLIENT: Final = "CLIENT"
KAFKA: Final = "KAFKA"
BETWEEN_NODES: Final = (REPLICATION, CONTROLLER)
FOR_CLIENTS: Final = (CLIENT, KAFKA)
CONSUMER_SESSION_MS: Final = 6_000
"""Session timeout of members in groups with assignment by the coordinator."""
SETTINGS: Final[Mapping[str, str]] = {
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
    "group.consumer.session.timeout.ms": str(CONSUMER_SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "800",
    "controlled.shutdown.timeout.ms": "5000",
    "leader.imbalance.check.interval.seconds": "5",
    "auto.create.topics.enable": "false",
    "log.cleaner.backoff.ms": "500",
    "transaction.sink.timeout.ms": "15000",  # transactions of a killed task stay undecided, and readers wait for them
    "transaction.sink.prepared.timeout.ms": "20000",
}
"""Defaults for a laboratory of three nodes or more."""


class Laboratory:
    """The nodes, the proxy server and the links of one run."""

    def __init__(
        self,
        directory: Path,
        cluster: LocalCluster,
        server: ProxyServer,
        links: Links,
        security: ClusterSecurity | None = None,
    ) -> None:
        self.directory = directory
        self.cluster = cluster
        self.server = server
        self.links = links
        self._security = security
        self.faults: Mapping[int, DiskFaults] = {}
        """The faults of each node's disk and clock, if the laboratory has the shim."""
        self.racks = 0
        """Number of racks over which the nodes are spread in turn; 0: no racks."""

    @classmethod
    @contextmanager
    def running(
        cls,
        directory: Path,
        program: Path,
        *,
        nodes: int = 3,
        settings: Mapping[str, str] | None = None,
        seed: int = 0,
        proxy_port: int | None = None,
        mutant: str = "",
        shim: Path | None = None,
        security: str = "",
        racks: int = 0,
    ) -> Iterator[Laboratory]:
        """Lay out and start a laboratory in a new or empty directory; all its processes are gone at the end.

        ``program`` is a toxiproxy server; ``mutant`` a rule of the nodes to break; ``shim`` the library that causes
        disk and clock faults (:mod:`tidelog.chaos.disk`); ``security`` a kind of :mod:`tidelog.testing.secured`, or
        nothing. Raises ``ConfigError`` for an invalid setting, :class:`CommandFailed` for obstacles: ports, a full
        directory, a node that does not start.
        """
        laboratory = cls.laid_out(
            directory,
            program,
            nodes=nodes,
            settings=settings,
            seed=seed,
            proxy_port=proxy_port,
            mutant=mutant,
            security=security,
        )
        if racks:
            laboratory.racks = racks
            laboratory.cluster.spread_over_racks(racks)
        if shim is not None:
            laboratory.faults = {node.node_id: _faults(node, shim) for node in laboratory.cluster.nodes.values()}
        try:
            laboratory.server.start()
            laboratory.links.open()
            laboratory.cluster.start()
            laboratory.cluster.wait_ready(timeout_s=START_TIMEOUT_S)
            if missing := [node for node, faults in laboratory.faults.items() if not faults.attached]:
                raise CommandFailed(f"node {missing[0]} runs, and not with {shim}: is it not loaded on this system?")
            yield laboratory
        finally:
            laboratory.end()

    @classmethod
    def laid_out(
        cls,
        directory: Path,
        program: Path,
        *,
        nodes: int,
        settings: Mapping[str, str] | None,
        seed: int,
        proxy_port: int | None = None,
        mutant: str = "",
        security: str = "",
    ) -> Laboratory:
        """Create the directory and choose the ports; start nothing."""
        check_platform()
        if not NODES_MIN <= nodes <= NODES_MAX:
            raise CommandFailed(f"expected {NODES_MIN} to {NODES_MAX} nodes, found {nodes}")
        defaults = SETTINGS if nodes >= 3 else {**SETTINGS, "min.insync.replicas": "1"}
        rng = random.Random(f"laboratory-{seed}")
        cluster = LocalCluster.create(
            directory / "cluster", nodes=nodes, settings={**defaults, **(settings or {})}, rng=random.Random()
        )
        server = ProxyServer(program, directory / "toxiproxy.log", rng, proxy_port)
        routes = _routes(cluster, {server.port})
        links = Links(server, routes)
        for node in cluster.nodes.values():
            detours = detours_of(node.node_id, routes)
            write_detours(node.directory / "detours.json", detours)
            node.program = (
                "tidelog.chaos.laboratory.processes.node",
                str(os.getpid()),
                str(node.directory / "detours.json"),
            )
            if mutant:
                node.program = (*node.program, "--mutant", mutant)
            with node.config_path.open("a") as config:
                config.write(format_properties({"advertised.listeners": _advertised(node, routes)}))
        return cls(directory, cluster, server, links, secure(cluster, security) if security else None)

    def end(self) -> None:
        """Kill the processes that still run."""
        try:
            for number in self.cluster.nodes:
                self.cluster.kill(number)
        finally:
            self.server.stop()

    def remove(self) -> None:
        """Delete the directory; nothing may run."""
        self.cluster.remove()
        shutil.rmtree(self.directory)

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(self.cluster.nodes)

    def rack_of(self, node: int) -> tuple[int, ...]:
        """Return the nodes of this node's rack; without racks, only itself."""
        racks = self.racks or len(self.cluster.nodes)
        return tuple(other for other in self.node_ids if rack_of(other, racks) == rack_of(node, racks))

    @property
    def bootstrap(self) -> str:
        """Return the clients' bootstrap addresses: proxies."""
        return self._bootstrap(CLIENT)

    @property
    def kafka_bootstrap(self) -> str:
        """Return the bootstrap addresses for clients of Kafka's protocol: proxies."""
        return self._bootstrap(KAFKA)

    @property
    def clients(self) -> SecuritySettings:
        """Return how the clients under judgement connect and log in."""
        return self._settings_of(CLIENT_USER)

    @property
    def admin(self) -> SecuritySettings:
        """Return how the laboratory itself connects and logs in, with all rights."""
        return self._settings_of(ADMIN)

    def _settings_of(self, user: str) -> SecuritySettings:
        return {} if self._security is None else self._security.client_settings(user)

    def renew(self, node: int, bound_s: float) -> None:
        """Give a node another key and certificate, and wait until its listener for Kafka's clients presents it; a node
        that does not answer loads it when it is back. Raises :class:`CommandFailed` if it keeps the old one, and
        ``ValueError`` without certificates."""
        if self._security is None:
            raise ValueError("expected a laboratory with certificates (--security tls or tls+scram), found one without")
        wanted = self._security.renew(node).read_text()
        deadline = time.monotonic() + bound_s
        while (shown := _shown((ports.LOOPBACK, self.cluster.nodes[node].ports.kafka))) and shown not in wanted:
            if time.monotonic() > deadline:
                raise CommandFailed(f"node {node} shows its old certificate {bound_s:g} s after it got another one")
            time.sleep(_POLL_S)

    def direct(self, node: int) -> Address:
        """Return the address of a node's client listener without a proxy: for observers, not for the clients under
        judgement."""
        return Address(ports.LOOPBACK, self.cluster.nodes[node].ports.client)

    def _bootstrap(self, listener: str) -> str:
        return ",".join(
            str(route.listen) for route in self.links.routes if route.dialler == CLIENTS and route.listener == listener
        )


def _shown(address: tuple[str, int]) -> str:
    """Return the certificate that a listener presents, in PEM; "" if it does not answer."""
    try:
        return ssl.get_server_certificate(address, timeout=_ANSWER_S)
    except OSError:
        return ""


def _faults(node: LocalNode, shim: Path) -> DiskFaults:
    faults = DiskFaults(node.data_dir, node.directory / "faults", shim)
    node.environment = faults.environment
    return faults


def detours_of(node: int, routes: Sequence[Route]) -> Detours:
    """Return the addresses that a node dials in place of the others' own. Its own address has no proxy: that is no
    link."""
    own = {
        route.upstream: route.upstream for route in routes if route.target == node and route.listener in BETWEEN_NODES
    }
    return {**own, **{route.upstream: route.listen for route in routes if route.dialler == node}}


def _port(node: LocalNode, listener: str) -> int:
    return {
        CLIENT: node.ports.client,
        REPLICATION: node.ports.replication,
        CONTROLLER: node.ports.controller,
        KAFKA: node.ports.kafka,
    }[listener]


def _routes(cluster: LocalCluster, taken: set[int]) -> tuple[Route, ...]:
    """Return every link of the cluster, each with a port of its own."""
    wanted = [
        (dialler, target, listener)
        for target in cluster.nodes
        for dialler in (CLIENTS, *cluster.nodes)
        for listener in (FOR_CLIENTS if dialler == CLIENTS else BETWEEN_NODES)
        if dialler != target
    ]
    taken = (
        taken
        | {_port(node, listener) for node in cluster.nodes.values() for listener in (*FOR_CLIENTS, *BETWEEN_NODES)}
        | {node.ports.http for node in cluster.nodes.values()}
    )
    free = [port for port in ports.free_ports(len(wanted) + len(taken)) if port not in taken]
    return tuple(
        Route(
            dialler,
            target,
            listener,
            Address(ports.LOOPBACK, port),
            Address(ports.LOOPBACK, _port(cluster.nodes[target], listener)),
        )
        for (dialler, target, listener), port in zip(wanted, free, strict=False)
    )


def _advertised(node: LocalNode, routes: Sequence[Route]) -> str:
    """Return the advertised listeners: clients get proxies, nodes the addresses in their tables."""
    proxies = {
        route.listener: route.listen for route in routes if route.dialler == CLIENTS and route.target == node.node_id
    }
    proxies[REPLICATION] = Address(ports.LOOPBACK, node.ports.replication)
    return ",".join(f"{listener}://{address}" for listener, address in proxies.items())
