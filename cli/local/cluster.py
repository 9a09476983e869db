"""A cluster of real processes on this machine, entirely under one directory.

    <directory>/cluster.json              cluster id, each node's ports, and workers if there are several
    <directory>/node-1/server.properties  that node's configuration
    <directory>/node-1/data               its log directory
    <directory>/node-1/process.json       the process that runs it, while one does
    <directory>/node-1/served             there once it has served: from then on its data has to be there too
    <directory>/node-1/server.log         what it says

Nodes are numbered from 1. Those of the first layout are broker and controller both, those that are added later brokers
only. Nothing outside the directory is written. Files and directories are their owner's alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.node import LocalNode, NodePorts, NodeStatus
from tidelog.cli.local.private_files import DIRECTORY_MODE, write_private
from tidelog.cli.local.process import send_signal
from tidelog.model.ids import WORKER_ID_STEP, id_text, random_id
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.properties import format_properties, parse_properties
from tidelog.testing import ports

FORMAT_VERSION: Final = 1
FORMAT_WITH_WORKERS: Final = 2
NODES_MAX: Final = 9
WORKERS_MAX: Final = 9
PORTS_FIRST: Final = (9096, 9093, 9094, 9095, 9092)
"""The first node's ports if they are free, in the order of :class:`NodePorts`."""
PORT_STEP: Final = 100
READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 20.0
OUTNUMBERED_S: Final = 3.0
"""How long to wait for the rest of a majority that another command is starting."""
_POLL_S: Final = 0.02
_LAID_OUT: Final = {"node.id", "listeners", "http.listener", "controller.quorum.voters"}
_OWN: Final = {"process.roles", "log.dirs"}
"""Further settings that belong to one node."""


class LocalCluster:
    """A directory with a cluster in it. Open or create one with the class methods."""

    def __init__(self, directory: Path, cluster_id: str, nodes: dict[int, LocalNode]) -> None:
        self.directory = directory
        self.cluster_id = cluster_id
        self.nodes = nodes

    # --- On disk ---

    @classmethod
    def exists(cls, directory: Path) -> bool:
        return (directory / "cluster.json").exists()

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        nodes: int = 3,
        workers: int = 1,
        settings: Mapping[str, str] | None = None,
        fixed_ports: bool = False,
        first: int = 1,
        rng: random.Random | None = None,
    ) -> LocalCluster:
        """Create a cluster of ``nodes`` in a new or empty directory, each with as many ``workers``. ``settings`` go
        into every node's configuration; ``first`` is the lowest node id. Raises ``ConfigError`` for a wrong setting,
        :class:`CommandFailed` otherwise."""
        if not 1 <= nodes <= NODES_MAX:
            raise CommandFailed(f"expected 1 to {NODES_MAX} nodes, found {nodes}")
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise CommandFailed(
                f"{directory}: expected an empty or missing directory, found other content; use another --dir"
            )
        rng = rng or random.Random()
        cluster_id = id_text(random_id(rng))
        table = _fixed(nodes) if fixed_ports else None
        if table is None or ports.taken([port for row in table.values() for port in row.all_of(workers)]):
            table = {}
            for number in range(first, first + nodes):
                table[number] = _free_beside(table, workers, rng)
        texts = {
            number: _properties(directory, number, table, {**_machine_rack(number, workers), **(settings or {})})
            for number in table
        }
        for number in table:  # so that a typo shows now, not in a log file
            NodeConfig.from_properties(_properties(directory, number, table, {}), overrides=dict(settings or {}))
        directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        _lay_out(directory, cluster_id, table, texts, workers)
        return cls.open(directory)

    def spread_over_racks(self, racks: int) -> None:
        """Assign the nodes of a new cluster to this many racks in turn."""
        for number, node in self.nodes.items():
            with node.config_path.open("a") as config:
                config.write(format_properties({"broker.rack": rack_of(number, racks)}))

    def add(self) -> int:
        """Create one more node, a broker with the settings of the first node. Returns its id. Call it while
        :meth:`alone`. Raises :class:`CommandFailed`."""
        number = max(self.nodes) + 1
        if number > NODES_MAX:
            raise CommandFailed(f"expected node ids of at most {NODES_MAX}, found {number} for the next node")
        home = self.directory / f"node-{number}"
        if (home / "data").exists():
            raise CommandFailed(f"{home}: expected nothing there, found a node's data; move it away")
        table = {other: node.ports for other, node in self.nodes.items()}
        workers = self.nodes[min(self.nodes)].workers
        table[number] = replace(_ports_beside(table, number, workers), controller=0)
        first = parse_properties(self.nodes[min(self.nodes)].config_path.read_text())
        kept = {name: found.value for name, found in first.items() if name not in _LAID_OUT | _OWN}
        text = _properties(self.directory, number, table, {**kept, **_machine_rack(number, workers)})
        _lay_out(self.directory, self.cluster_id, table, {number: text}, workers)
        self.nodes[number] = LocalNode(self.cluster_id, home, number, table[number], workers)
        return number

    @staticmethod
    @contextmanager
    def alone(directory: Path) -> Iterator[None]:
        """Keep others from creating or starting a cluster in ``directory`` during the block. Creates a missing
        directory, and removes it again if it stays empty."""
        made = not directory.exists()
        directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
            if made:
                with suppress(OSError):
                    directory.rmdir()

    @classmethod
    def open(cls, directory: Path) -> LocalCluster:
        """Open a cluster that :meth:`create` made. Raises :class:`CommandFailed`."""
        directory = directory.absolute()  # the nodes have another working directory
        path = directory / "cluster.json"
        try:
            layout: Any = json.loads(path.read_text())
            if layout["version"] not in (FORMAT_VERSION, FORMAT_WITH_WORKERS):
                raise CommandFailed(
                    f"{path}: expected version {FORMAT_VERSION} or {FORMAT_WITH_WORKERS}, found {layout['version']!r}"
                )
            cluster_id = str(layout["cluster_id"])
            nodes = {
                int(number): LocalNode(
                    cluster_id,
                    directory / f"node-{number}",
                    int(number),
                    NodePorts(**{name: int(port) for name, port in row.items()}),
                    int(layout.get("workers", 1)),
                )
                for number, row in layout["nodes"].items()
            }
        except FileNotFoundError:
            raise CommandFailed(f"{directory}: no cluster here; `tidelog cluster start` creates one") from None
        except (ValueError, KeyError, TypeError, AttributeError) as trouble:
            raise CommandFailed(f"{path}: expected a cluster's layout, found something else ({trouble})") from None
        return cls(directory, cluster_id, nodes)

    def remove(self) -> None:
        """Delete the directory and everything in it. Refuses while a node runs."""
        if running := self.running():
            raise CommandFailed(f"node {running[0]} is running; stop the cluster first")
        for node in self.nodes.values():
            shutil.rmtree(node.directory)
        (self.directory / "cluster.json").unlink()
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    # --- Addresses ---

    @property
    def bootstrap(self) -> str:
        """The bootstrap address for clients of either protocol."""
        return ",".join(node.ports.bootstrap for node in self.nodes.values())

    # --- Processes ---

    def node(self, node_id: int) -> LocalNode:
        if node_id not in self.nodes:
            raise CommandFailed(f"expected a node of {', '.join(map(str, self.nodes))}, found {node_id}")
        return self.nodes[node_id]

    def start(
        self,
        node_ids: Iterable[int] | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        formats: bool = False,
    ) -> list[int]:
        """Start the named nodes (default: all) that are not running. Returns their ids before they are ready.
        ``formats``: nodes that lost their data start empty."""
        wanted = [self.node(number) for number in (self.nodes if node_ids is None else node_ids)]
        idle = [node for node in dict.fromkeys(wanted) if node.mark is None]
        for node in idle:
            node.check_startable(formats=formats)
        for node in idle:
            node.spawn(environment, formats=formats)
        return [node.node_id for node in idle]

    def wait_ready(
        self,
        node_ids: Iterable[int] | None = None,
        timeout_s: float = READY_TIMEOUT_S,
        *,
        found_running: Collection[int] = (),
    ) -> list[int]:
        """Wait until the named nodes (default: all) are ready. Raises :class:`CommandFailed` with the last log line of
        a dead or late node. ``found_running``: nodes that may already have been shutting down; one that ends is started
        once. Returns those."""
        revived: list[int] = []
        waiting = {number: self.node(number) for number in (self.nodes if node_ids is None else node_ids)}
        deadline = time.monotonic() + timeout_s
        outnumbered_until = time.monotonic() + OUTNUMBERED_S
        while waiting:
            for number, node in list(waiting.items()):
                if node.mark is None:
                    if number not in found_running or number in revived:
                        raise CommandFailed(f"node {number} ended while starting: {node.last_words()}")
                    revived += self.start([number])
                if node.ready():
                    del waiting[number]
            if waiting and not self.has_quorum():
                if time.monotonic() > outnumbered_until:
                    number, running = next(iter(waiting)), self.running()
                    raise CommandFailed(
                        f"node {number} is running but not ready: a majority of {len(self._voters())} controllers "
                        f"must run, found {', '.join(map(str, running))}; `tidelog cluster start` starts all"
                    )
            else:
                outnumbered_until = time.monotonic() + OUTNUMBERED_S
            if waiting and time.monotonic() > deadline:
                late = next(iter(waiting.values()))
                raise CommandFailed(f"node {late.node_id} is not ready after {timeout_s:g} s: {late.last_words()}")
            if waiting:
                time.sleep(_POLL_S)
        return revived

    def running(self) -> list[int]:
        """Return the nodes with a running process."""
        return [node.node_id for node in self.nodes.values() if node.mark is not None]

    def has_quorum(self) -> bool:
        """Return whether enough nodes run for the controllers to elect a leader."""
        voters = self._voters()
        return 2 * len(voters.intersection(self.running())) > len(voters)

    def _voters(self) -> set[int]:
        return {number for number, node in self.nodes.items() if node.ports.controller}

    def kill(self, node_id: int) -> bool:
        """kill -9 one node, with all its workers, and wait until it is gone. Returns ``False`` if it was not
        running."""
        node = self.node(node_id)
        hit = node.send_signal(signal.SIGKILL)
        if not node.wait_gone(STOP_TIMEOUT_S):
            raise CommandFailed(f"node {node_id} (pid {node.pid}) still exists {STOP_TIMEOUT_S:g} s after kill -9")
        return hit

    def kill_worker(self, node_id: int) -> int | None:
        """kill -9 one worker of a machine, which starts it again. Returns its pid; ``None`` if it was not running."""
        worker, number = divmod(node_id, WORKER_ID_STEP)
        node = self.node(number)
        if worker >= node.workers:
            raise CommandFailed(f"expected a node of {', '.join(map(str, self._node_ids()))}, found {node_id}")
        mark = node.worker_marks().get(worker)
        return mark.pid if mark is not None and send_signal(mark, signal.SIGKILL) else None

    def _node_ids(self) -> list[int]:
        return [number + WORKER_ID_STEP * one for number, node in self.nodes.items() for one in range(node.workers)]

    def pause(self, node_id: int) -> bool:
        """Freeze one node's process and its workers (SIGSTOP)."""
        return self.node(node_id).send_signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> bool:
        return self.node(node_id).send_signal(signal.SIGCONT)

    def stop(self, node_ids: Sequence[int] | None = None, timeout_s: float = STOP_TIMEOUT_S) -> list[int]:
        """Shut down the named nodes (default: all) and wait; kill those that are still running after ``timeout_s``.
        Returns the ids of killed nodes."""
        wanted = [self.node(number) for number in (self.nodes if node_ids is None else node_ids)]
        for node in wanted:
            node.send_signal(signal.SIGTERM)
            node.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + timeout_s
        killed = []
        for node in wanted:
            if not node.wait_gone(max(0.0, deadline - time.monotonic())):
                self.kill(node.node_id)
                killed.append(node.node_id)
        return killed

    def status(self) -> list[NodeStatus]:
        return [row for node in self.nodes.values() for row in node.status()]


def _lay_out(
    directory: Path, cluster_id: str, table: Mapping[int, NodePorts], texts: Mapping[int, str], workers: int
) -> None:
    """Write the configurations of new nodes, then commit them all as the cluster's layout."""
    layout = {
        "version": FORMAT_VERSION if workers == 1 else FORMAT_WITH_WORKERS,
        "cluster_id": cluster_id,
        "nodes": {str(number): asdict(row) for number, row in table.items()},
        **({} if workers == 1 else {"workers": workers}),
    }
    fresh = directory / "cluster.json.new"
    try:
        for number, text in texts.items():
            place = directory / f"node-{number}"
            place.mkdir(DIRECTORY_MODE, exist_ok=True)  # a kill may have left it
            write_private(place / "server.properties", text)
        write_private(fresh, json.dumps(layout, indent=2) + "\n")
        fresh.replace(directory / "cluster.json")
    except BaseException:  # half a layout would block the next try
        for number in texts:
            shutil.rmtree(directory / f"node-{number}", ignore_errors=True)
        fresh.unlink(missing_ok=True)
        raise


def _fixed(nodes: int) -> dict[int, NodePorts]:
    return {
        number: NodePorts(*(port + PORT_STEP * (number - 1) for port in PORTS_FIRST)) for number in range(1, nodes + 1)
    }


def _ports_beside(table: Mapping[int, NodePorts], number: int, workers: int) -> NodePorts:
    """Return the usual ports of the node if the first node has its usual ones and they are free, else any free
    ports."""
    row = _fixed(number)[number]
    if table[min(table)] == _fixed(1)[1] and not ports.taken(row.all_of(workers)):
        return row
    return _free_beside(table, workers)


def _free_beside(table: Mapping[int, NodePorts], workers: int, rng: random.Random | None = None) -> NodePorts:
    """Return free ports for another node and its workers."""
    rng = rng or random.Random()
    used = {port for other in table.values() for port in other.all_of(workers)}
    while True:
        row = NodePorts(*ports.free_ports(len(PORTS_FIRST), rng))
        wanted = row.all_of(workers)
        if len(set(wanted)) == len(wanted) and used.isdisjoint(wanted) and not ports.taken(wanted):
            return row


def rack_of(number: int, racks: int) -> str:
    """Return the rack of a node."""
    return f"rack-{(number - 1) % racks + 1}"


def _machine_rack(number: int, workers: int) -> dict[str, str]:
    """Return the setting that keeps the replicas of a partition on different nodes: their workers share one host."""
    return {"broker.rack": f"machine-{number}"} if workers > 1 else {}


def _properties(directory: Path, number: int, table: Mapping[int, NodePorts], settings: Mapping[str, str]) -> str:
    host = ports.LOOPBACK
    own = table[number]
    copies = min(3, len(table))
    if fixed := sorted(_LAID_OUT & settings.keys()):
        raise ConfigError(f"{fixed[0]}: the cluster's layout sets it; leave it out")
    kafka = f"KAFKA://{host}:{own.kafka}," if own.kafka else ""
    controller = f",CONTROLLER://{host}:{own.controller}" if own.controller else ""
    voters = [f"{other}@{host}:{row.controller}" for other, row in table.items() if row.controller]
    made = {
        "node.id": str(number),
        "process.roles": "broker,controller" if own.controller else "broker",
        "listeners": f"{kafka}CLIENT://{host}:{own.client},REPLICATION://{host}:{own.replication}{controller}",
        "http.listener": f"HTTP://{host}:{own.http}",
        "controller.quorum.voters": ",".join(voters),
        "log.dirs": str(directory.absolute() / f"node-{number}" / "data"),
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(max(1, copies - 1)),
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(max(1, copies - 1)),
        "audit.topic.replication.factor": str(copies),
        "group.initial.rebalance.delay.ms": "0",
        **settings,
    }
    return format_properties(made)
