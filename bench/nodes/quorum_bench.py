"""Three controllers as separate processes on loopback: commit latency, failover, idle CPU.

    python -m tidelog.bench.nodes.quorum_bench [--commits N] [--failovers N] [--idle-s S] [--directory PATH]

Each controller is a :class:`Quorum` on gRPC with real files and fdatasync, as in a node. Prints one
JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from tidelog.metadata_quorum.quorum import Quorum
from tidelog.model.ids import ControllerEpoch, NodeId, Offset
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.network import Address, Service, StreamKind
from tidelog.storage.disk.files import SystemFiles
from tidelog.testing.ports import free_ports

PAYLOAD = bytes(200)


# --- a controller, in a separate process -------------------------------------------------------------


class _Controller:
    """Runs one quorum and executes JSON commands, one per line, from standard input."""

    def __init__(self, node_id: NodeId, ports: list[int], directory: str) -> None:
        voters = {NodeId(node): Address("127.0.0.1", port) for node, port in enumerate(ports)}
        self._address = voters[node_id]
        self._network = GrpcNetwork()
        self._epoch = ControllerEpoch(0)
        self._first_commit = 0.0
        self.quorum = Quorum(
            cluster_id="bench",
            node_id=node_id,
            voters=voters,
            directory=directory,
            files=SystemFiles(),
            connect=self._network.connect,
            rng=random.Random(),
            listener=self,
            on_fatal=lambda error: os._exit(3),
        )

    def on_load(self, offset: Offset, epoch: ControllerEpoch, snapshot: bytes) -> None:
        """No state to load."""

    def on_commit(self, offset: Offset, epoch: ControllerEpoch, payload: bytes) -> None:
        """No state to change."""

    def on_leading(self, epoch: ControllerEpoch) -> None:
        self._epoch = epoch
        self._first_commit = 0.0

        def committed(future: asyncio.Future[Offset]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._first_commit = time.monotonic()

        self.quorum.propose(PAYLOAD, epoch).add_done_callback(committed)

    def on_resigned(self, epoch: ControllerEpoch) -> None:
        self._epoch = ControllerEpoch(0)
        self._first_commit = 0.0

    def on_leader_change(self, leader: NodeId | None, epoch: ControllerEpoch) -> None:
        """Do nothing: the leader is looked up when needed."""

    async def run(self) -> None:
        service = Service({}, {StreamKind.RAFT: self.quorum.raft_session})
        server = await self._network.serve("CONTROLLER", self._address, service)
        await self.quorum.start()
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            answer = await self._obey(json.loads(line))
            print(json.dumps(answer), flush=True)
        await server.close(0)

    async def _obey(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "one-by-one":
            return {"seconds": [await self._timed_commit() for _ in range(command["count"])]}
        if command["do"] == "outstanding":
            return await self._outstanding(command["count"], command["outstanding"])
        usage = os.times()
        return {
            "epoch": self.quorum.leader()[1],
            "first_commit": self._first_commit,
            "offset": self.quorum.commit_offset,
            "leader": self.quorum.leader()[0],
            "cpu_s": usage.user + usage.system,
        }

    async def _timed_commit(self) -> float:
        start = time.perf_counter()
        await self.quorum.propose(PAYLOAD, self._epoch)
        return time.perf_counter() - start

    async def _outstanding(self, count: int, outstanding: int) -> dict[str, Any]:
        slots = asyncio.Semaphore(outstanding)
        start = time.perf_counter()
        futures = []
        for _ in range(count):
            await slots.acquire()
            future = self.quorum.propose(PAYLOAD, self._epoch)
            future.add_done_callback(lambda _: slots.release())
            futures.append(future)
        await asyncio.gather(*futures)
        return {"per_s": count / (time.perf_counter() - start)}


# --- the process that starts, kills and measures -----------------------------------------------------


class _Process:
    def __init__(self, node_id: int, ports: list[int], directory: Path) -> None:
        self.node_id = node_id
        command = [sys.executable, "-m", "tidelog.bench.nodes.quorum_bench", "--controller", str(node_id)]
        command += ["--ports", ",".join(map(str, ports)), "--directory", str(directory / str(node_id))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"controller {self.node_id} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _wait_for_leader(processes: list[_Process], seconds: float = 10.0) -> _Process:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for process in processes:
            if process.ask("state")["first_commit"]:
                return process
        time.sleep(0.02)
    raise RuntimeError(f"no leader within {seconds} s")


def _wait_for_all(processes: list[_Process], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while len({process.ask("state")["offset"] for process in processes}) > 1:
        if time.monotonic() > end:
            raise RuntimeError(f"controllers not equal within {seconds} s")
        time.sleep(0.02)


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0))
    }


def measure(directory: Path, *, commits: int, failovers: int, idle_s: float) -> dict[str, Any]:
    """Run all three measurements; leave no process behind."""
    ports = free_ports(3)
    started = time.monotonic()
    processes = [_Process(node, ports, directory) for node in range(3)]
    found: dict[str, Any] = {}
    try:
        leader = _wait_for_leader(processes)
        found["start_to_first_commit_s"] = round(leader.ask("state")["first_commit"] - started, 3)
        leader.ask("one-by-one", count=200)
        found["one_at_a_time"] = _percentiles(leader.ask("one-by-one", count=commits)["seconds"])
        if commits:
            found["outstanding_1024_per_s"] = round(leader.ask("outstanding", count=20_000, outstanding=1024)["per_s"])
        if idle_s:
            _wait_for_all(processes)
            before = [process.ask("state")["cpu_s"] for process in processes]
            time.sleep(idle_s)
            after = [process.ask("state")["cpu_s"] for process in processes]
            leads = processes.index(leader)
            used = [round(100 * (b - a) / idle_s, 2) for a, b in zip(before, after, strict=True)]
            found["epochs_before_failovers"] = leader.ask("state")["epoch"]
            found["idle_cpu_percent"] = {"leader": used.pop(leads), "followers": used}
        times = []
        for _ in range(failovers):
            _wait_for_all(processes)
            leader = _wait_for_leader(processes)
            time.sleep(random.uniform(0.3, 0.6))
            processes.remove(leader)
            killed = time.monotonic()
            leader.kill()
            times.append(_wait_for_leader(processes).ask("state")["first_commit"] - killed)
            processes.append(_Process(leader.node_id, ports, directory))
        if times:
            found["failover_s"] = {
                "median": round(statistics.median(times), 3),
                "max": round(max(times), 3),
                "all": [round(each, 3) for each in times],
            }
    finally:
        for process in processes:
            process.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=3000)
    parser.add_argument("--failovers", type=int, default=10)
    parser.add_argument("--idle-s", type=float, default=20.0)
    parser.add_argument("--directory", default="")
    parser.add_argument("--controller", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ports", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.controller is not None:
        ports = [int(port) for port in arguments.ports.split(",")]
        node_id = NodeId(arguments.controller)

        async def run() -> None:
            await _Controller(node_id, ports, arguments.directory).run()

        uvloop.run(run())
        return
    directory = Path(arguments.directory or tempfile.mkdtemp(prefix="quorum-bench-"))
    try:
        found = measure(directory, commits=arguments.commits, failovers=arguments.failovers, idle_s=arguments.idle_s)
    finally:
        if not arguments.directory:
            shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
