"""A cluster of real processes on this machine, all of it under one directory.

    <directory>/cluster.json              cluster id, and each node's ports
    <directory>/node-1/server.properties  that node's configuration
    <directory>/node-1/data               its log directory
    <directory>/node-1/process.json       the process that runs it, while one does
    <directory>/node-1/server.log         what it says

Nodes are numbered from 1 and are broker and controller both. Nothing outside the directory is written.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tidelog.cli import local_process
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local_process import ProcessMark, ProcessUse
from tidelog.cli.main import tuned_environment
from tidelog.model.broker_config import NodeConfig
from tidelog.model.config_def import ConfigError
from tidelog.model.ids import id_text, random_id
from tidelog.model.properties import format_properties, parse_properties
from tidelog.testing import ports

FORMAT_VERSION: Final = 1
NODES_MAX: Final = 9
PORTS_FIRST: Final = (9092, 9093, 9094, 9095, 9096)
"""The first node's ports where they are free: clients, replication, controller, HTTP."""
PORT_STEP: Final = 100
READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 20.0
SERVER: Final = ("tidelog.cli.main", "server")
OUTNUMBERED_S: Final = 3.0
"""How long the rest of a majority may take to appear, started by another command."""
_POLL_S: Final = 0.02
_LAID_OUT: Final = {"node.id", "listeners", "http.listener", "controller.quorum.voters"}


def default_directory() -> Path:
    """``$TIDELOG_HOME``, else ``tidelog`` in the user's data directory (XDG)."""
    if home := os.environ.get("TIDELOG_HOME"):
        return Path(home).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "tidelog"


@dataclass(frozen=True, slots=True)
class NodePorts:
    """``kafka`` is 0 in clusters that were laid out before brokers spoke Kafka's protocol."""

    client: int
    replication: int
    controller: int
    http: int
    kafka: int = 0


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """``state``: "stopped", "starting" (runs, does not serve yet) or "ready"."""

    node_id: int
    state: str
    pid: int | None
    ports: NodePorts
    use: ProcessUse | None
    data_bytes: int


class LocalNode:
    """One node's place on disk, and its process if there is one."""

    def __init__(self, cluster_id: str, directory: Path, node_id: int, node_ports: NodePorts) -> None:
        self.cluster_id = cluster_id
        self.directory = directory
        self.node_id = node_id
        self.ports = node_ports
        self.config_path = directory / "server.properties"
        self.data_dir = directory / "data"
        self.log_path = directory / "server.log"
        self.program: Sequence[str] = SERVER
        """Module that runs the node, and what it is given before the options of ``tidelog server``."""
        self.environment: Mapping[str, str] = {}
        """Variables of its process, beside and before those that it is started with."""
        self._mark_path = directory / "process.json"
        self._child_pid: int | None = None

    # --- The process ---

    @property
    def mark(self) -> ProcessMark | None:
        """The running process; ``None`` if none runs."""
        self._reap()
        try:
            kept = json.loads(self._mark_path.read_text())
            mark = ProcessMark(int(kept["pid"]), str(kept["started"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as trouble:
            raise CommandFailed(
                f"{self._mark_path}: expected pid and start time, found something else ({trouble}); "
                "if no node runs, remove the file"
            ) from None
        return mark if local_process.alive(mark) else None

    @property
    def pid(self) -> int | None:
        mark = self.mark
        return None if mark is None else mark.pid

    def check_startable(self) -> None:
        """Raise :class:`CommandFailed` if a port is taken, or if the configuration leads to other data than ours:
        a directory that was moved or copied would start empty, or on what belongs to the original."""
        if busy := ports.taken(list(asdict(self.ports).values())):
            raise CommandFailed(
                f"node {self.node_id}: port {busy[0]} of 127.0.0.1 is taken by another program; stop that one, "
                f"or change the port in {self.config_path} and {self.directory.parent / 'cluster.json'}"
            )
        if not self.data_dir.exists():
            return
        try:
            named = parse_properties(self.config_path.read_text()).get("log.dirs")
        except (ConfigError, OSError):
            return  # the node says it better
        if named is not None and not any(_same(place.strip(), self.data_dir) for place in named.value.split(",")):
            raise CommandFailed(
                f"{self.config_path}: expected log.dirs to name {self.data_dir}, which holds this node's data, found "
                f"{named.value}; if the directory was moved, change log.dirs"
            )

    def spawn(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the process; returns before it serves. Does nothing if it runs."""
        if self.mark is not None:
            return
        self.check_startable()
        command = [sys.executable, "-P", "-m", *self.program, "--config", str(self.config_path)]
        command += ["--cluster-id", self.cluster_id, "--log-file", str(self.log_path)]
        with (self.directory / "server.err").open("wb") as errors:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd=self.directory,
                env=tuned_environment({**(environment if environment is not None else os.environ), **self.environment}),
                start_new_session=True,
            )
        try:
            mark = local_process.mark_of(child.pid)
            if mark is not None:
                fresh = self._mark_path.with_suffix(".new")
                fresh.write_text(json.dumps(asdict(mark)))
                fresh.replace(self._mark_path)
        except BaseException:  # nobody would ever find it again
            child.kill()
            child.wait()
            raise
        child.returncode = 0  # it may outlive us: no warning when this object goes
        self._child_pid = child.pid

    def _reap(self) -> None:
        """A dead child of ours would stay a zombie."""
        if self._child_pid is None:
            return
        try:
            gone, _ = os.waitpid(self._child_pid, os.WNOHANG)
        except ChildProcessError:
            gone = self._child_pid
        if gone:
            self._child_pid = None

    def send_signal(self, number: signal.Signals) -> bool:
        """Signal the process; ``False`` if none runs."""
        mark = self.mark
        return mark is not None and local_process.send_signal(mark, number)

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until no process runs; ``False`` if one still does after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while self.mark is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        self._mark_path.unlink(missing_ok=True)
        return True

    def ready(self) -> bool:
        """Whether the node says that it serves."""
        try:
            return self.get("/ready")[0] == 200
        except OSError:
            return False

    def get(self, path: str, timeout_s: float = 2.0) -> tuple[int, bytes]:
        """Fetch a page of the node's HTTP listener. Raises ``OSError``."""
        connection = http.client.HTTPConnection(ports.LOOPBACK, self.ports.http, timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as trouble:
            raise ConnectionError(f"node {self.node_id}: no proper HTTP answer: {trouble!r}") from None
        finally:
            connection.close()

    def last_words(self) -> str:
        """The last thing that the node said, for an error message; what ended Python comes first."""
        for path in (self.directory / "server.err", self.log_path):
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            if said := [line.strip() for line in lines if line.strip()]:
                return said[-1]
        return "it said nothing"

    def status(self) -> NodeStatus:
        mark = self.mark
        state = "stopped" if mark is None else "ready" if self.ready() else "starting"
        use = None if mark is None else local_process.use_of(mark)
        return NodeStatus(self.node_id, state, None if mark is None else mark.pid, self.ports, use, self._data_bytes())

    def _data_bytes(self) -> int:
        total = 0
        for place, _, names in os.walk(self.data_dir):
            for name in names:
                try:
                    total += os.lstat(os.path.join(place, name)).st_size
                except OSError:
                    continue  # deleted meanwhile
        return total


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
        settings: Mapping[str, str] | None = None,
        fixed_ports: bool = False,
        rng: random.Random | None = None,
    ) -> LocalCluster:
        """Lay out a cluster of ``nodes`` in a new or empty directory. ``settings`` go into every node's
        configuration. Raises ``ConfigError`` for a wrong setting, :class:`CommandFailed` otherwise."""
        if not 1 <= nodes <= NODES_MAX:
            raise CommandFailed(f"expected 1 to {NODES_MAX} nodes, found {nodes}")
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise CommandFailed(
                f"{directory}: expected an empty directory or none, found something else in it; use another --dir"
            )
        rng = rng or random.Random()
        cluster_id = id_text(random_id(rng))
        table = _fixed(nodes) if fixed_ports else None
        if table is None or ports.taken([port for row in table.values() for port in asdict(row).values()]):
            found = ports.free_ports(len(PORTS_FIRST) * nodes, rng)
            step = len(PORTS_FIRST)
            table = {number: NodePorts(*found[step * (number - 1) : step * number]) for number in range(1, nodes + 1)}
        texts = {number: _properties(directory, number, table, settings or {}) for number in table}
        for number in table:  # a typo shows now, not in a log file
            NodeConfig.from_properties(_properties(directory, number, table, {}), overrides=dict(settings or {}))
        directory.mkdir(parents=True, exist_ok=True)
        layout = {
            "version": FORMAT_VERSION,
            "cluster_id": cluster_id,
            "nodes": {str(number): asdict(row) for number, row in table.items()},
        }
        fresh = directory / "cluster.json.new"
        try:
            for number, text in texts.items():
                place = directory / f"node-{number}"
                place.mkdir()
                (place / "server.properties").write_text(text)
            fresh.write_text(json.dumps(layout, indent=2) + "\n")
            fresh.replace(directory / "cluster.json")
        except BaseException:  # half a layout would be in the way of the next try
            for number in texts:
                shutil.rmtree(directory / f"node-{number}", ignore_errors=True)
            fresh.unlink(missing_ok=True)
            raise
        return cls.open(directory)

    @staticmethod
    @contextmanager
    def alone(directory: Path) -> Iterator[None]:
        """Nobody else lays out or starts a cluster in ``directory`` meanwhile; makes it if it is not there, and
        takes it away again if it stays empty."""
        made = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
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
        """Open what :meth:`create` made. Raises :class:`CommandFailed`."""
        directory = directory.absolute()  # the nodes run elsewhere
        path = directory / "cluster.json"
        try:
            layout: Any = json.loads(path.read_text())
            if layout["version"] != FORMAT_VERSION:
                raise CommandFailed(f"{path}: expected version {FORMAT_VERSION}, found {layout['version']!r}")
            cluster_id = str(layout["cluster_id"])
            nodes = {
                int(number): LocalNode(
                    cluster_id,
                    directory / f"node-{number}",
                    int(number),
                    NodePorts(**{name: int(port) for name, port in row.items()}),
                )
                for number, row in layout["nodes"].items()
            }
        except FileNotFoundError:
            raise CommandFailed(f"{directory}: no cluster here; `tidelog cluster start` makes one") from None
        except (ValueError, KeyError, TypeError, AttributeError) as trouble:
            raise CommandFailed(f"{path}: expected a cluster's layout, found something else ({trouble})") from None
        return cls(directory, cluster_id, nodes)

    def remove(self) -> None:
        """Delete the directory with everything in it. Refuses while a node runs."""
        if running := self.running():
            raise CommandFailed(f"node {running[0]} runs; stop the cluster first")
        for node in self.nodes.values():
            shutil.rmtree(node.directory)
        (self.directory / "cluster.json").unlink()
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    # --- Addresses ---

    @property
    def bootstrap(self) -> str:
        """What a client is given to find the cluster."""
        return ",".join(f"{ports.LOOPBACK}:{node.ports.client}" for node in self.nodes.values())

    @property
    def kafka_bootstrap(self) -> str:
        """What a client of Kafka's protocol is given, ``bootstrap.servers`` of its own; "" where there is none."""
        return ",".join(f"{ports.LOOPBACK}:{node.ports.kafka}" for node in self.nodes.values() if node.ports.kafka)

    # --- Processes ---

    def node(self, node_id: int) -> LocalNode:
        if node_id not in self.nodes:
            raise CommandFailed(f"expected a node of {', '.join(map(str, self.nodes))}, found {node_id}")
        return self.nodes[node_id]

    def start(self, node_ids: Iterable[int] | None = None, environment: Mapping[str, str] | None = None) -> list[int]:
        """Start those nodes (all) that do not run; returns their ids, before they serve."""
        wanted = [self.node(number) for number in (self.nodes if node_ids is None else node_ids)]
        idle = [node for node in dict.fromkeys(wanted) if node.mark is None]
        for node in idle:
            node.check_startable()
        for node in idle:
            node.spawn(environment)
        return [node.node_id for node in idle]

    def wait_ready(
        self,
        node_ids: Iterable[int] | None = None,
        timeout_s: float = READY_TIMEOUT_S,
        *,
        found_running: Collection[int] = (),
    ) -> list[int]:
        """Wait until the named nodes (all) serve. Raises :class:`CommandFailed` with a dead or late node's
        last words. ``found_running``: nodes that may have been shutting down already; one of them that ends is started,
        once. Returns those."""
        revived: list[int] = []
        waiting = {number: self.node(number) for number in (self.nodes if node_ids is None else node_ids)}
        deadline = time.monotonic() + timeout_s
        outnumbered_until = time.monotonic() + OUTNUMBERED_S
        while waiting:
            for number, node in list(waiting.items()):
                if node.mark is None:
                    if number not in found_running or number in revived:
                        raise CommandFailed(f"node {number} ended while it was starting: {node.last_words()}")
                    revived += self.start([number])
                if node.ready():
                    del waiting[number]
            if waiting and self._outnumbered():
                if time.monotonic() > outnumbered_until:
                    number, running = next(iter(waiting)), self.running()
                    raise CommandFailed(
                        f"node {number} runs and does not serve yet: of {len(self.nodes)} nodes a majority must run, "
                        f"found {', '.join(map(str, running))}; `tidelog cluster start` starts all"
                    )
            else:
                outnumbered_until = time.monotonic() + OUTNUMBERED_S
            if waiting and time.monotonic() > deadline:
                late = next(iter(waiting.values()))
                raise CommandFailed(f"node {late.node_id} does not serve after {timeout_s:g} s: {late.last_words()}")
            if waiting:
                time.sleep(_POLL_S)
        return revived

    def running(self) -> list[int]:
        """The nodes whose process runs."""
        return [node.node_id for node in self.nodes.values() if node.mark is not None]

    def _outnumbered(self) -> bool:
        """Whether too few nodes run for the controllers to elect one of them."""
        return 2 * len(self.running()) <= len(self.nodes)

    def kill(self, node_id: int) -> bool:
        """kill -9 one node; returns once it is gone, ``False`` if it did not run."""
        node = self.node(node_id)
        hit = node.send_signal(signal.SIGKILL)
        if not node.wait_gone(STOP_TIMEOUT_S):
            raise CommandFailed(f"node {node_id} (pid {node.pid}) is still there {STOP_TIMEOUT_S:g} s after kill -9")
        return hit

    def pause(self, node_id: int) -> bool:
        """Stop one node's process in its tracks (SIGSTOP)."""
        return self.node(node_id).send_signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> bool:
        return self.node(node_id).send_signal(signal.SIGCONT)

    def stop(self, node_ids: Sequence[int] | None = None, timeout_s: float = STOP_TIMEOUT_S) -> list[int]:
        """Ask the named nodes (all) to shut down and wait; kill those that have not after ``timeout_s``.
        Returns the ids of those that had to be killed."""
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
        return [node.status() for node in self.nodes.values()]


def _same(named: str, place: Path) -> bool:
    return os.path.realpath(place.parent / named) == os.path.realpath(place)


def _fixed(nodes: int) -> dict[int, NodePorts]:
    return {
        number: NodePorts(*(port + PORT_STEP * (number - 1) for port in PORTS_FIRST)) for number in range(1, nodes + 1)
    }


def _properties(directory: Path, number: int, table: Mapping[int, NodePorts], settings: Mapping[str, str]) -> str:
    host = ports.LOOPBACK
    own = table[number]
    copies = min(3, len(table))
    if fixed := sorted(_LAID_OUT & settings.keys()):
        raise ConfigError(f"{fixed[0]}: set by the cluster's layout, cannot be given")
    kafka = f"KAFKA://{host}:{own.kafka}," if own.kafka else ""
    made = {
        "node.id": str(number),
        "process.roles": "broker,controller",
        "listeners": f"{kafka}CLIENT://{host}:{own.client},REPLICATION://{host}:{own.replication},"
        f"CONTROLLER://{host}:{own.controller}",
        "http.listener": f"HTTP://{host}:{own.http}",
        "controller.quorum.voters": ",".join(f"{other}@{host}:{row.controller}" for other, row in table.items()),
        "log.dirs": str(directory.absolute() / f"node-{number}" / "data"),
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(max(1, copies - 1)),
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(max(1, copies - 1)),
        "group.initial.rebalance.delay.ms": "0",
        **settings,
    }
    return format_properties(made)
