"""``tidelog server --workers N``: settings, processes that die, and the supervisor's own end."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.virtual_time import run_virtual
from tidelog import Admin
from tidelog.chaos.drill.machines import MachineReach, find_machines
from tidelog.cli.local.machine_page import merged
from tidelog.cli.local.process import mark_of, pids, stat_of
from tidelog.cli.local.workers import Supervisor, Worker, check_workers
from tidelog.client.admin.types import NewTopic
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import ConfigError
from tidelog.proto.transport.network import Address
from tidelog.testing.ports import free_ports, taken

LONG_S = 60.0
STEP = 7


def config(**settings: str) -> NodeConfig:
    return NodeConfig.parse({"node.id": "2"} | {name.replace("_", "."): value for name, value in settings.items()})


def test_a_worker_has_its_own_id_ports_and_directories() -> None:
    machine = config(
        listeners="KAFKA://0.0.0.0:9092,CLIENT://[::1]:9096,REPLICATION://h:9093,CONTROLLER://h:9094",
        advertised_listeners="KAFKA://public:19092",
        http_listener="HTTP://127.0.0.1:0",
        log_dirs="/d1,/d2",
        replication_transport_port="9097",
        audit_log_path="/var/audit.log",
    )
    first, second = check_workers(machine, 3, 100)
    assert first == {
        "node.id": "1002",
        "process.roles": "broker",
        "listeners": "KAFKA://0.0.0.0:9192,CLIENT://[::1]:9196,REPLICATION://h:9193",
        "advertised.listeners": "KAFKA://public:19192",
        "http.listener": "HTTP://127.0.0.1:0",
        "controller.quorum.voters": "2@h:9094",
        "log.dirs": "/d1/workers/1,/d2/workers/1",
        "metadata.log.dir": "/d1/workers/1",
        "replication.transport.port": "9197",
        "audit.log.path": "/var/audit.log.1002",
    }
    assert (second["node.id"], second["http.listener"]) == ("2002", "HTTP://127.0.0.1:0")
    NodeConfig.parse({"node.id": "2", "listeners": "CLIENT://h:1"} | first)  # a node takes them


@pytest.mark.parametrize(
    ("settings", "step", "text"),
    [
        ({"node_id": "1000"}, 100, "node.id: expected less than 1000 with --workers"),
        ({"process_roles": "controller"}, 100, "process.roles: expected broker with --workers"),
        ({"listeners": "CLIENT://h:65500,CONTROLLER://h:1"}, 100, "expected ports of at most 65535"),
        ({"listeners": "CLIENT://h:1,CONTROLLER://h:0"}, 100, "expected a port for CONTROLLER"),
        ({}, 1, "found 9093 for worker 0 and for worker 1: choose another --worker-port-step"),
        ({"node_principal_pattern": "User:CN=node-{id}"}, 100, "expected {machine} instead of {id} with --workers"),
    ],
)
def test_what_several_workers_cannot_share_is_refused(settings: dict[str, str], step: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        check_workers(config(**settings), 2, step)


def test_pages_are_merged_family_by_family() -> None:
    first = b'# HELP a_total What.\n# TYPE a_total counter\na_total 1.0\na_total{topic="x,\\"}"} 2.0\n'
    second = first + b'# TYPE b histogram\nb_bucket{le="+Inf"} 1.0\nb_sum{} 3.0\n'
    assert merged({1: first, 1001: second, 2001: None}).decode() == (
        "# HELP a_total What.\n# TYPE a_total counter\n"
        'a_total{node_id="1"} 1.0\na_total{node_id="1",topic="x,\\"}"} 2.0\n'
        'a_total{node_id="1001"} 1.0\na_total{node_id="1001",topic="x,\\"}"} 2.0\n'
        '# TYPE b histogram\nb_bucket{node_id="1001",le="+Inf"} 1.0\nb_sum{node_id="1001"} 3.0\n'
        "# HELP tidelog_worker_up Whether the worker answered this scrape.\n# TYPE tidelog_worker_up gauge\n"
        'tidelog_worker_up{node_id="1"} 1\ntidelog_worker_up{node_id="1001"} 1\ntidelog_worker_up{node_id="2001"} 0\n'
    )


Seen = list[tuple[float, int, str]]
"""When, which node, and what."""


class Scripted(Worker):
    """A worker whose lives are written down: how long each lasts, 0 for until a signal, and its exit code."""

    def __init__(self, node_id: int, lives: list[tuple[float, int]], seen: Seen) -> None:
        super().__init__(node_id, list)
        self._lives = iter(lives)
        self._seen = seen
        self._signalled = asyncio.Event()

    def _note(self, what: str) -> None:
        self._seen.append((round(asyncio.get_running_loop().time() - 1_000, 1), self.node_id, what))

    async def run(self) -> int:
        self._note("starts")
        lasts_s, code = next(self._lives)
        if code != 2:
            self.ready.set()
        if lasts_s:
            await asyncio.sleep(lasts_s)
        else:
            await self._signalled.wait()
            await asyncio.sleep(5)
        return code

    def signal(self, number: signal.Signals) -> None:
        self._note(number.name)
        self._signalled.set()


def supervised(lives: dict[int, list[tuple[float, int]]], *signals_s: float) -> tuple[int, Seen]:
    """Run a supervisor in virtual time, with SIGTERM at these times. Returns its code and what happened when."""
    seen: Seen = []

    async def run() -> int:
        supervisor = Supervisor([Scripted(node, script, seen) for node, script in lives.items()], lambda: True)
        for at_s in signals_s:
            asyncio.get_running_loop().call_later(at_s, supervisor.on_signal)
        return await supervisor.run()

    return run_virtual(run()), seen


def test_the_pauses_before_a_restart_double_and_end_after_a_steady_minute() -> None:
    lives = [(1.0, 1)] * 7 + [(60.0, 1), (0.5, 1), (0, 0)]
    code, seen = supervised({1: [(0, 0)], 1001: lives}, 300)
    starts = [at for at, node, what in seen if (node, what) == (1001, "starts")]
    # a life of 1 s and a pause of 1, 2, 4 … 30 s; after a minute's life none, then 1 s again
    assert starts == [0, 2, 5, 10, 19, 36, 67, 98, 158, 159.5]
    assert code == 0


def test_the_first_worker_stops_last_and_a_second_signal_kills_all() -> None:
    code, seen = supervised({1: [(0, 0)], 1001: [(0, 0)], 2001: [(0, 0)]}, 10)
    assert code == 0
    assert [each[:2] for each in seen if each[2] == "SIGTERM"] == [(10, 1001), (10, 2001), (15, 1)]
    _, seen = supervised({1: [(0, 0)], 1001: [(0, 0)]}, 10, 11)
    assert [each[:2] for each in seen if each[2] == "SIGKILL"] == [(11, 1), (11, 1001)]


def test_a_worker_that_was_never_ready_ends_all_and_one_that_stops_badly_tells() -> None:
    code, seen = supervised({1: [(0, 0)], 1001: [(3, 2)]})
    assert code == 1
    assert (3, 1, "SIGTERM") in seen
    assert supervised({1: [(0, 0)], 1001: [(0, 1)]}, 10)[0] == 1


class Machine:
    """Two workers under a supervisor."""

    def __init__(self, directory: Path) -> None:
        ports = free_ports(4, random.Random())
        while taken([port + STEP for port in ports]) or any(port + STEP in ports for port in ports):
            ports = free_ports(4, random.Random())
        client, replication, controller, http = ports
        self.address = f"127.0.0.1:{client}"
        self.http = http
        self.output = directory / "output.txt"
        self.arguments = {
            "node.id": "1",
            "listeners": f"CLIENT://127.0.0.1:{client},REPLICATION://127.0.0.1:{replication},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "http.listener": f"HTTP://127.0.0.1:{http}",
            "log.dirs": str(directory / "data"),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "tidelog.cli.main",
            "server",
            "--workers",
            "2",
            "--worker-port-step",
            str(STEP),
            *more,
        ]
        for name, value in self.arguments.items():
            command += ["--set", f"{name}={value}"]
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        return self.process

    def await_text(self, text: str) -> None:
        self.wait(lambda: text in self.output.read_text())

    def wait(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONG_S
        while not happened():
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.02)

    @staticmethod
    def state_of(pid: int) -> str:
        return (stat_of(pid) or ["gone"])[0]

    def page(self, path: str, worker: int) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http + worker * STEP}{path}", timeout=LONG_S) as answer:
            return str(answer.read().decode())

    def workers(self) -> dict[int, int]:
        """The pid of each worker by node id, found by what only its command says."""
        data, found = self.arguments["log.dirs"], {}
        for pid in pids():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "--supervised" in words and f"log.dirs={data}" in words:
                found[1] = pid
            if "--supervised" in words and f"log.dirs={data}/workers/1" in words:
                found[1001] = pid
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()
    for pid in made.workers().values():
        subprocess.run(["kill", "-9", str(pid)], check=False)


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the workers in /proc")
def test_a_dead_worker_is_started_again_and_all_end_with_the_supervisor(machine: Machine) -> None:
    supervisor = machine.start()
    machine.await_text("all 2 workers serve: nodes 1, 1001")
    with Admin(bootstrap_servers=machine.address) as admin:
        admin.create_topics([NewTopic("t", 4, 1)])
        led = {at.leader for at in admin.describe_topics(["t"])[0].partitions}
        assert led == {1, 1001}

        for worker in (0, 1):  # either answers for the machine
            page = machine.page("/machine/metrics", worker)
            for node in (1, 1001):
                assert f'tidelog_worker_up{{node_id="{node}"}} 1' in page
                assert f'tidelog_uptime_seconds{{node_id="{node}"}}' in page
        before = machine.workers()
        marks = {node: mark_of(pid) for node, pid in before.items()}
        subprocess.run(["kill", "-9", str(before[1001])], check=True)
        machine.await_text("node 1001 ended with exit code -9: starting it again")
        assert 'tidelog_worker_up{node_id="1001"} 0' in machine.page("/machine/metrics", 0)
        machine.wait(lambda: machine.output.read_text().count("node 1001 serves as broker") == 2)
        described = admin.describe_cluster()
        assert {int(one.node_id) for one in described.brokers if not one.fenced} == {1, 1001}
        cluster_id = described.cluster_id
        brokers = {int(one.node_id): Address(one.listeners[0].host, one.listeners[0].port) for one in described.brokers}
        machine.wait(lambda: 'tidelog_worker_up{node_id="1001"} 1' in machine.page("/machine/metrics", 0))
    after = machine.workers()
    assert after[1] == before[1]
    assert mark_of(after[1001]) != marks[1001]

    reach = MachineReach(brokers, find_machines(cluster_id))  # a drill's
    reach.kill([1001])
    assert machine.workers().keys() == {1}
    assert machine.state_of(supervisor.pid) == "T", "it would start the worker again"
    reach.restore()
    assert reach.running(1001)
    reach.kill([1, 1001])
    assert supervisor.wait(LONG_S) == -signal.SIGKILL
    assert machine.workers() == {}
    reach.start([1, 1001])
    reach.wait_serving([1, 1001])
    (found,) = find_machines(cluster_id)
    assert (found.nodes, found.command[-1]) == ((1, 1001), f"log.dirs={machine.arguments['log.dirs']}")
    [again] = [one.child for one in reach._machines]
    assert again is not None
    machine.process = again
    machine.wait(lambda: machine.output.read_text().count("all 2 workers serve") == 2)

    again.send_signal(signal.SIGTERM)
    assert again.wait(LONG_S) == 0, machine.output.read_text()
    assert machine.workers() == {}
    assert machine.output.read_text().count("ended with exit code") == 2

    logs = [machine.output.with_name(name) for name in ("server.log", "server-0.log", "server-1.log")]
    supervisor = machine.start("--log-file", str(logs[0]))  # the same directories, with the id that they have
    machine.wait(lambda: logs[0].exists() and "all 2 workers serve" in logs[0].read_text())
    supervisor.kill()
    machine.wait(lambda: machine.workers() == {})
    for log in logs[1:]:
        assert "the supervisor is gone: stopping" in log.read_text()


def test_workers_that_cannot_start_end_the_supervisor_with_the_reason(machine: Machine) -> None:
    machine.arguments["log.dirs"] = "/proc/nowhere"
    assert machine.start().wait(LONG_S) == 1
    said = machine.output.read_text()
    assert "ended with exit code 1 before it was ready: stopping" in said
    assert "/proc/nowhere" in said
    assert "Traceback" not in said
