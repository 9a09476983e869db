"""One node of a local cluster: its directory, its ports, its process or processes."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tidelog.broker.node.identity import WORKERS_DIRECTORY
from tidelog.cli.allocator import tuned_environment
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local import process as local_process
from tidelog.cli.local.private_files import private
from tidelog.cli.local.process import ProcessMark, ProcessUse
from tidelog.model.ids import WORKER_ID_STEP
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.properties import format_properties, parse_properties
from tidelog.storage.disk.format import META_PROPERTIES
from tidelog.testing import ports

SERVER: Final = ("tidelog.cli.main", "server")
WORKER_PORT_STEP: Final = 10
"""Between the ports of a node's workers."""
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class NodePorts:
    """``client`` speaks gRPC, ``kafka`` the Kafka protocol; ``kafka`` is 0 in clusters laid out before that listener
    existed. ``controller`` is 0 on nodes that are only brokers."""

    client: int
    replication: int
    controller: int
    http: int
    kafka: int = 0

    @property
    def bootstrap(self) -> str:
        """The address at which clients of either protocol reach the node."""
        return f"{ports.LOOPBACK}:{self.kafka or self.client}"

    def of_worker(self, worker: int) -> NodePorts:
        """Return the ports of one of the node's workers, from 0."""
        if not worker:
            return self
        moved = {name: port + worker * WORKER_PORT_STEP if port else 0 for name, port in asdict(self).items()}
        return NodePorts(**{**moved, "controller": 0})

    def all_of(self, workers: int) -> list[int]:
        """Return the ports of that many workers."""
        return [port for one in range(workers) for port in asdict(self.of_worker(one)).values() if port]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """``state``: "stopped", "starting" (running, not ready yet) or "ready"."""

    node_id: int
    state: str
    pid: int | None
    ports: NodePorts
    use: ProcessUse | None
    data_bytes: int


class LocalNode:
    """One node's directory, and its process if it runs. A node with ``workers`` is a machine of ``tidelog server
    --workers``: its process is their supervisor, and a signal goes to all of them."""

    def __init__(self, cluster_id: str, directory: Path, node_id: int, node_ports: NodePorts, workers: int = 1) -> None:
        self.cluster_id = cluster_id
        self.directory = directory
        self.node_id = node_id
        self.ports = node_ports
        self.workers = workers
        self.config_path = directory / "server.properties"
        self.data_dir = directory / "data"
        self.log_path = directory / "server.log"
        self.program: Sequence[str] = SERVER
        """The module that runs the node, and arguments before the options of ``tidelog server``."""
        self.interpreter = sys.executable
        """The Python that runs the node, and so the installed release."""
        self.launcher: Sequence[str] = ()
        """A command that executes the interpreter."""
        self.environment: Mapping[str, str] = {}
        """Environment variables of its process; they override those given at its start."""
        self._mark_path = directory / "process.json"
        self._served_path = directory / "served"
        self._child_pid: int | None = None
        self._killed: tuple[ProcessMark, ...] = ()
        """Workers that were killed, and may not be gone yet."""

    # --- The process ---

    @property
    def mark(self) -> ProcessMark | None:
        """The running process; ``None`` if none runs."""
        self._reap()
        return local_process.read_mark(self._mark_path)

    @property
    def pid(self) -> int | None:
        mark = self.mark
        return None if mark is None else mark.pid

    @property
    def settings(self) -> dict[str, str]:
        """The settings in its configuration."""
        return {name: line.value for name, line in parse_properties(self.config_path.read_text()).items()}

    def configure(self, settings: Mapping[str, str]) -> None:
        """Replace its configuration."""
        self.config_path.write_text(format_properties(dict(settings)))

    def listen_too(self, protocols: Mapping[str, str], at: Sequence[int] = ()) -> dict[str, int]:
        """Give a stopped node further listeners for Kafka clients, each with its security protocol. Returns their
        ports: those of ``at``, or any free ones."""
        found = dict(zip(protocols, at or ports.free_ports(len(protocols)), strict=True))
        lines = self.settings
        lines["listeners"] += "".join(f",{name}://{ports.LOOPBACK}:{port}" for name, port in found.items())
        lines["kafka.listener.names"] = ",".join(("KAFKA", *found))
        lines["listener.security.protocol.map"] = ",".join(f"{name}:{how}" for name, how in protocols.items())
        self.configure(lines)
        return found

    def check_startable(self, *, formats: bool = False) -> None:
        """Raise :class:`CommandFailed` if the node must not start: a port is taken, its data has vanished since it
        served (unless it ``formats``), or its configuration names other data than ours. A moved or copied directory
        would otherwise start empty, or on the original's data."""
        if busy := ports.taken(self.ports.all_of(self.workers)):
            raise CommandFailed(
                f"node {self.node_id}: port {busy[0]} of 127.0.0.1 is taken by another program; stop that one, "
                f"or change the port in {self.config_path} and {self.directory.parent / 'cluster.json'}"
            )
        if not self.data_dir.exists() and not self._served_path.exists():
            return
        try:
            named = parse_properties(self.config_path.read_text()).get("log.dirs")
        except (ConfigError, OSError):
            return  # the node reports it better
        ours = named is None or any(_same(path.strip(), self.data_dir) for path in named.value.split(","))
        if self.data_dir.exists() and not ours:
            assert named is not None
            raise CommandFailed(
                f"{self.config_path}: expected log.dirs to name {self.data_dir}, which holds this node's data, found "
                f"{named.value}; if the directory was moved, change log.dirs"
            )
        if ours and not formats and self._served_path.exists() and not (self.data_dir / META_PROPERTIES).exists():
            raise CommandFailed(
                f"{self.data_dir}: expected the data of node {self.node_id}, which has served before, found none; if "
                f"it is lost, `tidelog cluster start {self.node_id} --format` lets the node start empty and copy from "
                "the others"
            )

    def spawn(self, environment: Mapping[str, str] | None = None, *, formats: bool = False) -> None:
        """Start the process. Returns before the node is ready. Does nothing if it runs."""
        if self.mark is not None:
            return
        self.check_startable(formats=formats)
        command = [*self.launcher, self.interpreter, "-P", "-m", *self.program, "--config", str(self.config_path)]
        command += ["--cluster-id", self.cluster_id, "--log-file", str(self.log_path), *["--format"] * formats]
        if self.workers > 1:
            command += ["--workers", str(self.workers), "--worker-port-step", str(WORKER_PORT_STEP)]
        with open(self.directory / "server.err", "wb", opener=private) as errors:
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
            local_process.keep_mark(self._mark_path, child.pid)
        except BaseException:  # otherwise nobody would find it again
            child.kill()
            child.wait()
            raise
        child.returncode = 0  # it may outlive us: no warning when this object goes
        self._child_pid = child.pid

    def _reap(self) -> None:
        """Reap a dead child, so that it does not stay a zombie."""
        if self._child_pid is None:
            return
        try:
            gone, _ = os.waitpid(self._child_pid, os.WNOHANG)
        except ChildProcessError:
            gone = self._child_pid
        if gone:
            self._child_pid = None

    def send_signal(self, number: signal.Signals) -> bool:
        """Signal the process, and its workers if it cannot pass the signal on to them. Returns ``False`` if none
        runs."""
        mark = self.mark
        if mark is None:
            return False
        if self.workers > 1 and number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT):
            local_process.send_signal(mark, signal.SIGSTOP)  # it would start them again
            workers = tuple(self.worker_marks().values())
            for worker in workers:
                local_process.send_signal(worker, number)
            if number is signal.SIGKILL:
                self._killed = workers
        return local_process.send_signal(mark, number)

    def worker_marks(self) -> dict[int, ProcessMark]:
        """Return the processes of a machine's workers that run, by worker."""
        mark = self.mark
        children = {} if mark is None else local_process.children_of(mark.pid)
        found = {}
        for child, words in children.items():
            ids = [int(word.removeprefix("node.id=")) for word in words if word.startswith("node.id=")]
            if ids:
                found[ids[-1] // WORKER_ID_STEP] = child
        return found

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until no process runs. Returns ``False`` if one still does after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while self.mark is not None or any(map(local_process.alive, self._killed)):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        self._mark_path.unlink(missing_ok=True)
        return True

    def ready(self) -> bool:
        """Return whether the node, or each of its workers, reports that it is ready."""
        serves = all(self.worker_ready(worker) for worker in range(self.workers))
        if serves and not self._served_path.exists():
            self._served_path.touch(mode=0o600)
        return serves

    def worker_ready(self, worker: int) -> bool:
        try:
            return self.get("/ready", worker=worker)[0] == 200
        except OSError:
            return False

    def get(self, path: str, timeout_s: float = 2.0, worker: int = 0) -> tuple[int, bytes]:
        """Fetch a page from the node's HTTP listener. Raises ``OSError``."""
        port = self.ports.of_worker(worker).http
        connection = http.client.HTTPConnection(ports.LOOPBACK, port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as trouble:
            raise ConnectionError(f"node {self.node_id}: no proper HTTP answer: {trouble!r}") from None
        finally:
            connection.close()

    def last_words(self) -> str:
        """Return the node's last log line for an error message, preferring an exception that ended Python."""
        for path in (self.directory / "server.err", self.log_path):
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            if said := [line.strip() for line in lines if line.strip()]:
                return said[-1]
        return "it logged nothing"

    def status(self) -> list[NodeStatus]:
        """Return its state, or that of each worker, whose node id is its own."""
        mark = self.mark
        marks = self.worker_marks() if self.workers > 1 else {0: mark} if mark is not None else {}
        return [self._status(worker, marks.get(worker)) for worker in range(self.workers)]

    def _status(self, worker: int, mark: ProcessMark | None) -> NodeStatus:
        state = "stopped" if mark is None else "ready" if self.worker_ready(worker) else "starting"
        return NodeStatus(
            self.node_id + worker * WORKER_ID_STEP,
            state,
            None if mark is None else mark.pid,
            self.ports.of_worker(worker),
            None if mark is None else local_process.use_of(mark),
            self._data_bytes(worker),
        )

    def _data_bytes(self, worker: int) -> int:
        total = 0
        top = self.data_dir / WORKERS_DIRECTORY / str(worker) if worker else self.data_dir
        for folder, folders, names in os.walk(top):
            if folder == str(self.data_dir) and WORKERS_DIRECTORY in folders:
                folders.remove(WORKERS_DIRECTORY)
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_size
                except OSError:
                    continue  # deleted in the meantime
        return total


def _same(named: str, data_dir: Path) -> bool:
    return os.path.realpath(data_dir.parent / named) == os.path.realpath(data_dir)
