"""What is done to a cluster of real processes in a drill that is recorded (``recording.py``)."""

from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidelog import Admin, NewTopic, Producer, TidelogError, TopicPartition
from tidelog.broker import metrics
from tidelog.broker.metrics import MetricName
from tidelog.chaos.disk.faults import DiskFaults
from tidelog.chaos.disk.shim_build import fault_shim
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.node import LocalNode
from tidelog.cli.local.secured import DIRECTORY
from tidelog.cli.work import certificates, local_security
from tidelog.proto.kafka.messages import request_frame
from tidelog.security.authority import Authority
from tidelog.testing.kafka_requests import log_in

SEGMENT_BYTES: Final = 2**20
READY_S: Final = 120.0
STRANGER: Final = 9
"""The number at which the first node of another cluster is scraped."""
LINK: Final = "dr"
OPEN: Final = "OPEN"
GUESSERS: Final = 8
ASKERS: Final = 4
METADATA: Final = 3
HOSTS: Final = ("127.0.0.1", "localhost")


@dataclass
class Stage:
    """A cluster with its programs: a producer and a group run until they are told to stop."""

    cluster: LocalCluster
    over: threading.Event = field(default_factory=threading.Event)
    unread: threading.Event = field(default_factory=threading.Event)
    """Set: the group's consumer stops."""
    transaction: Producer | None = None
    client: dict[str, Any] = field(default_factory=dict)
    """The settings by which programs connect."""
    own_disks: set[LocalNode] = field(default_factory=set)
    """Nodes on a file system that nobody else fills."""
    faults: dict[int, DiskFaults] = field(default_factory=dict)
    """Of the nodes that have the shim."""
    beside: LocalCluster | None = None
    """Another cluster."""
    scraped: dict[int, LocalNode] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)
    link: subprocess.Popen[bytes] | None = None

    def admin(self) -> Admin:
        return Admin(self.cluster.bootstrap, **self.client)

    def pid(self, node: int) -> int:
        found = self.cluster.node(node).pid
        assert found is not None
        return found

    def run(self, work: Callable[[], object]) -> None:
        """Do something until the end."""
        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
        if self.link is not None:
            self.link.kill()
            self.link.wait()
        for cluster in (self.cluster, self.beside):
            if cluster is not None:
                for node in cluster.nodes:
                    cluster.kill(node)
                cluster.remove()


Act = Callable[[Stage], object]


def kill(node: int) -> Act:
    return lambda stage: stage.cluster.kill(node)


def start(node: int) -> Act:
    return lambda stage: stage.cluster.start([node])


def restart(node: int) -> Act:
    def act(stage: Stage) -> None:
        stage.cluster.stop([node])
        stage.cluster.start([node])
        stage.cluster.wait_ready([node], timeout_s=120)

    return act


def topic(name: str, *replicas: int, **settings: str) -> Act:
    """Create a topic of one partition on these nodes."""
    configs = {key.replace("_", "."): value for key, value in settings.items()}

    def act(stage: Stage) -> None:
        with stage.admin() as admin:
            admin.create_topics([NewTopic(name, assignments={0: replicas}, configs=configs)])

    return act


def write(name: str, records: int, size: int = 1_000) -> Act:
    def act(stage: Stage) -> None:
        with Producer(stage.cluster.bootstrap, **stage.client) as producer:
            for number in range(records):
                producer.send(name, b"x" * size, b"%d" % number)
            producer.flush()

    return act


def move(name: str, *replicas: int) -> Act:
    def act(stage: Stage) -> None:
        with stage.admin() as admin:
            admin.alter_partition_reassignments({TopicPartition(name, 0): replicas})

    return act


def begin(name: str) -> Act:
    """Leave a transaction open in a topic."""

    def act(stage: Stage) -> None:
        stage.transaction = producer = Producer(stage.cluster.bootstrap, transactional_id="recorded")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"x").result(60)

    return act


def prepare(name: str) -> Act:
    """Leave a prepared transaction in a topic: its program goes, and nobody decides."""

    def act(stage: Stage) -> None:
        with Producer(
            stage.cluster.bootstrap, transactional_id="recorded", transaction_two_phase_commit_enable=True
        ) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(name, b"x").result(60)
            producer.prepare_transaction()

    return act


def commit(stage: Stage) -> None:
    assert stage.transaction is not None
    try:
        stage.transaction.commit_transaction(timeout=20)
    except (TidelogError, TimeoutError):
        pass  # it is decided, and the markers wait
    stage.transaction.close(timeout=5)


def flip(name: str, node: int) -> Act:
    """Change a byte in the middle of the topic's first segment."""

    def act(stage: Stage) -> None:
        (place,) = stage.cluster.node(node).data_dir.glob(f"**/{name}-0")
        segment = min(place.glob("*.log"))
        with segment.open("r+b") as file:
            file.seek(SEGMENT_BYTES // 2)
            byte = file.read(1)
            file.seek(SEGMENT_BYTES // 2)
            file.write(bytes([byte[0] ^ 1]))

    return act


# --- Disks and clocks ---


def shimmed(*nodes: int) -> Act:
    """Before the start: the disks and clocks of these nodes can fail."""

    def act(stage: Stage) -> None:
        for number in nodes:
            _shim(stage, number, stage.cluster.node(number).directory)

    return act


def second_directory(node: int) -> Act:
    """Before the start: the node has two log directories, and the second can fail."""

    def act(stage: Stage) -> None:
        found = stage.cluster.node(node)
        second = found.directory / "second"
        second.mkdir()
        found.configure({**found.settings, "log.dirs": f"{found.data_dir},{second}"})
        _shim(stage, node, second)

    return act


def _shim(stage: Stage, node: int, root: Path) -> None:
    found = stage.cluster.node(node)
    faults = stage.faults[node] = DiskFaults(root, found.directory / "faults", fault_shim())
    found.environment = faults.environment


def fail_disk(node: int) -> Act:
    return lambda stage: stage.faults[node].fail(write=True, sync=True)


def slow_follower(name: str, write_ms: int) -> Act:
    """Slow down the disk of a node that neither leads the topic nor is the active controller."""

    def act(stage: Stage) -> None:
        with stage.admin() as admin:
            busy = {one.leader for one in admin.describe_topics([name])[0].partitions}
            busy.add(admin.describe_cluster().controller_id)
        node = min(stage.faults.keys() - busy)
        stage.faults[node].slow(write_ms=write_ms)

    return act


def move_clock(node: int, ahead_s: float) -> Act:
    return lambda stage: stage.faults[node].set_clock(ahead_s)


def small_disk(node: int, megabytes: int) -> Act:
    """Before the start: the node has a file system of its own, in a namespace of its own."""

    def act(stage: Stage) -> None:
        found = stage.cluster.node(node)
        mount = f'mkdir -p "$0" && mount -t tmpfs -o size={megabytes}m none "$0" && exec "$@"'
        stage.own_disks.add(found)
        found.launcher = ("unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(found.data_dir))

    return act


def fill(name: str, node: int, free: float) -> Act:
    """Write to a topic until only this share of the node's disk is free."""

    def act(stage: Stage) -> None:
        def values(metric: MetricName) -> float:
            _, page = stage.cluster.node(node).get("/metrics", 10)
            (line,) = (one for one in page.decode().splitlines() if one.startswith(metric.exported))
            return float(line.rsplit(" ", 1)[1])

        while values(metrics.DISK_FREE) > free * values(metrics.DISK_TOTAL):
            write(name, 1_000)(stage)

    return act


def stallable(node: int, name: str) -> Act:
    """Before the start: the disk can stop answering for the files of one topic."""

    def act(stage: Stage) -> None:
        _shim(stage, node, stage.cluster.node(node).data_dir / f"{name}-0")

    return act


def stall(node: int) -> Act:
    return lambda stage: stage.faults[node].stall()


# --- Limits of the process ---


def few_files(node: int, share: float) -> Act:
    """Allow so few files that the open ones are this share."""

    def act(stage: Stage) -> None:
        pid = stage.pid(node)
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        most = int(len(os.listdir(f"/proc/{pid}/fd")) / share)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))

    return act


def storm(node: int) -> Act:
    """Ask for the topics, over and over, and more than the node can answer."""
    pieces = [request_frame(METADATA, 4, number, {"topics": None}) for number in range(1_000)]

    def ask(port: int, stage: Stage) -> None:
        with socket.create_connection((HOSTS[0], port), READY_S) as plain:
            plain.setblocking(False)
            left = memoryview(b"".join(pieces))
            sent = 0
            while not stage.over.is_set():
                read, write, _ = select.select([plain], [plain], [], 1)
                if read:
                    assert plain.recv(2**20), "the node closed the connection"
                if write:
                    sent = (sent + plain.send(left[sent:])) % len(left)

    def storm(stage: Stage) -> None:
        for _ in range(ASKERS):
            stage.run(partial(ask, stage.cluster.node(node).ports.kafka, stage))

    return storm


# --- Certificates and logins ---


def secured(days: Mapping[int, int], **settings: str) -> Act:
    """Before the start: TLS, with certificates that are valid for these days, and listeners for passwords."""
    more = {key.replace("_", "."): value for key, value in settings.items()}

    def act(stage: Stage) -> None:
        cluster = stage.cluster
        local_security.lay_out(cluster, local_security.TLS)
        place = cluster.directory / DIRECTORY
        for number, valid in days.items():
            _certify(cluster, number, certificates.load(place), valid)
        for node in cluster.nodes.values():
            protocols = node.settings["listener.security.protocol.map"]
            node.listen_too({OPEN: "SASL_PLAINTEXT"})
            node.configure(
                {**node.settings, "listener.security.protocol.map": f"{protocols},{OPEN}:SASL_PLAINTEXT", **more}
            )
        stage.client = {
            "security_protocol": "SSL", "ssl_cafile": str(place / certificates.CA),
            "ssl_certfile": str(place / f"{local_security.ADMIN}.pem"),
        }  # fmt: skip

    return act


def _certify(cluster: LocalCluster, number: int, authority: Authority, days: int) -> None:
    path = Path(cluster.node(number).settings["ssl.keystore.location"])
    made = path.with_suffix(".new")
    made.write_text(authority.issue(path.stem, HOSTS, days))
    made.replace(path)


def foreign_certificate(node: int) -> Act:
    """Replace a node's certificate by one from an authority that nobody knows."""
    return lambda stage: _certify(stage.cluster, node, Authority.make("somebody else", 100), 100)


def guess_passwords(node: int, per_s: int) -> Act:
    """Log in as somebody who does not exist, each time another."""

    def act(stage: Stage) -> None:
        listeners = stage.cluster.node(node).settings["listeners"].split(",")
        (port,) = (int(one.rpartition(":")[2]) for one in listeners if one.startswith(OPEN))
        began_s = time.monotonic()

        def guess(first: int) -> None:
            number = first
            while not stage.over.wait(max(0.0, began_s + number / per_s - time.monotonic())):
                with socket.create_connection((HOSTS[0], port), 10) as plain:
                    try:
                        log_in(plain, f"user-{number}", "guess")
                    except Exception:
                        pass
                number += GUESSERS

        for first in range(GUESSERS):
            stage.run(partial(guess, first))

    return act


# --- Another cluster ---


def start_beside(stage: Stage) -> None:
    stage.beside = LocalCluster.create(stage.cluster.directory.parent / "beside", nodes=1)
    stage.beside.start()
    stage.beside.wait_ready(timeout_s=READY_S)


def scrape_beside(stage: Stage) -> None:
    """Scrape another cluster in the same job."""
    start_beside(stage)
    assert stage.beside is not None
    stage.scraped[STRANGER] = stage.beside.node(1)


def link_with_source(*topics: str) -> Act:
    """Link topics of another cluster."""

    def act(stage: Stage) -> None:
        start_beside(stage)
        assert stage.beside is not None
        create_at_source(*topics)(stage)
        source = ("--source", stage.beside.bootstrap, "--topics", "|".join(topics))
        subprocess.run(_links(stage, "create", *source), check=True, timeout=READY_S, stdout=subprocess.DEVNULL)
        run_link(stage)

    return act


def run_link(stage: Stage) -> None:
    stage.link = subprocess.Popen(_links(stage, "run"), stderr=subprocess.DEVNULL)


def _links(stage: Stage, command: str, *options: str) -> list[str]:
    program = (sys.executable, "-P", "-m", "tidelog.cli.main", "links", command, LINK)
    return [*program, *options, "--bootstrap", stage.cluster.bootstrap]


def create_at_source(*topics: str) -> Act:
    """Create them, or create them anew, with a record in each."""

    def act(stage: Stage) -> None:
        assert stage.beside is not None
        with Admin(stage.beside.bootstrap) as admin, Producer(stage.beside.bootstrap) as producer:
            if there := {one.name for one in admin.list_topics()}.intersection(topics):
                admin.delete_topics([*there])
            admin.create_topics([NewTopic(name, 1, 1) for name in topics])
            for name in topics:
                producer.send(name, b"x").result(60)

    return act


def stop_link(stage: Stage) -> None:
    assert stage.link is not None
    stage.link.kill()
    stage.link.wait()
