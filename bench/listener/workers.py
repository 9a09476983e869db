"""What a request costs with several workers on a machine, beside what it costs with one.

Two cores also run the clients, so the throughput of several workers says little here. Their processor time says it: as
long as a request costs the same, N workers on N cores serve N times as many.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tidelog.bench.clusters import create_topic
from tidelog.bench.listener.kafka import IN_FLIGHT, VALUE_BYTES, ask
from tidelog.cli.local.process import mark_of, use_of
from tidelog.testing.kafka_requests import produce_request
from tidelog.testing.ports import free_ports, taken

WORKERS: Final = 4
REQUESTS: Final = 20_000
"""For each worker."""
PORT_STEP: Final = 100
_TIMEOUT_S: Final = 60.0
_TOPIC: Final = "bench"


def workers(root: Path) -> Mapping[str, float]:
    """Measure the processor time of all workers for a small produce request, with one and with several of them."""
    alone, together = (_request_us(root / str(count), count) for count in (1, WORKERS))
    return {"workers_request_cpu": together, "workers_request_ratio": alone / together}


def _request_us(root: Path, count: int) -> float:
    from tidelog import Admin

    with _machine(root, count) as (pid, bootstrap), ExitStack() as open_connections:
        with Admin(bootstrap) as admin:
            create_topic(admin, _TOPIC, partitions=count, copies=1)
            leaders = {at.leader: number for number, at in enumerate(admin.describe_topics([_TOPIC])[0].partitions)}
            brokers = admin.describe_cluster().brokers
        if len(leaders) != count:
            raise RuntimeError(f"expected a leader on each of {count} workers, found {sorted(leaders)}")
        work = []
        for broker in brokers:
            at = next(one for one in broker.listeners if one.listener == "KAFKA")
            plain = open_connections.enter_context(socket.create_connection((at.host, at.port), timeout=_TIMEOUT_S))
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = produce_request(_TOPIC, [b"." * VALUE_BYTES], 1, partition=leaders[broker.node_id])
            work.append((plain, request))
        _all(work, 1_000)
        before = _cpu_s(pid)
        _all(work, REQUESTS)
        return (_cpu_s(pid) - before) / (REQUESTS * count) * 1e6


def _all(work: list[tuple[socket.socket, bytes]], requests: int) -> None:
    threads = [threading.Thread(target=ask, args=(*one, requests, IN_FLIGHT)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def _machine(root: Path, count: int) -> Iterator[tuple[int, str]]:
    """Yield the supervisor's pid and a worker's address."""
    root.mkdir(parents=True)
    kafka = _ports(count)
    client, replication, controller = (kafka + at for at in (1, 2, 3))
    listeners = (
        f"KAFKA://127.0.0.1:{kafka},CLIENT://127.0.0.1:{client},REPLICATION://127.0.0.1:{replication},"
        f"CONTROLLER://127.0.0.1:{controller}"
    )
    command = [sys.executable, "-m", "tidelog.cli.main", "server", "--workers", str(count), "--set", "node.id=1"]
    command += ["--worker-port-step", str(PORT_STEP)]
    for setting in (f"listeners={listeners}", "http.listener=", f"log.dirs={root / 'data'}"):
        command += ["--set", setting]
    said = root / "output.txt"
    with said.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        ready = f"all {count} workers serve" if count > 1 else "node 1 serves"
        deadline = time.monotonic() + _TIMEOUT_S
        while ready not in said.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"expected {count} workers to serve, found: {said.read_text()}")
            time.sleep(0.05)
        yield process.pid, f"127.0.0.1:{client}"
    finally:
        process.terminate()
        process.wait(_TIMEOUT_S)


def _ports(count: int) -> int:
    """Return the first of four free ports in a row, with as many free ones at each worker's place."""
    while True:
        [first] = free_ports(1, random.Random())
        if not taken([first + at + worker * PORT_STEP for worker in range(count) for at in range(4)]):
            return first


def _cpu_s(pid: int) -> float:
    """The processor time of a supervisor and its workers, or of a node by itself."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    used = 0.0
    for one in (pid, *map(int, children)):
        mark = mark_of(one)
        use = None if mark is None else use_of(mark)
        if use is None:
            raise RuntimeError(f"process {one} ended during the measurement")
        used += use.cpu_s
    return used
