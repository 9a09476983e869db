"""The order service while all of its programs are killed: does each order have its bill, once?

Runs ``examples/orders.py`` on its own cluster. The shop, the relay, both billing programs and nodes get kill -9 in the
middle of their work and are restarted; then dead letters are redriven, and the example's own ``check`` judges the
result.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.watch import WatchFailed, wait_until
from tidelog.demo.examples.processes import ExampleProcess, killed_at_the_end

SCRIPT: Final = "orders.py"
LAST_KILL_AT: Final = 0.65
"""Behind this share of the orders nothing is killed."""
TIMEOUT_S: Final = 180.0
ORDERS: Final = "SELECT count(*) FROM orders"


@dataclass(frozen=True, slots=True)
class OrdersResult:
    kills: tuple[tuple[str, int], ...]
    """The killed programs and nodes, and how many bills there were just before."""
    redriven: list[str]
    """The output of the redrive."""
    work_s: float
    total_s: float
    verdict: list[str]
    """The output of the example's ``check``."""
    passed: bool


def drill_orders(
    directory: Path, *, orders: int, kills: int, node_kills: int, seed: int, say: Callable[[str], None]
) -> OrdersResult:
    """One run, with so many kills of relay and billing, as many of the shop while it takes orders, and some of one of
    three nodes; without these, there is one node. Raises :class:`WatchFailed` if an expected event does not happen;
    leaves no process behind."""
    started = time.monotonic()
    rng = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster.create(directory / "cluster", nodes=3 if node_kills else 1)
    processes: list[ExampleProcess] = []

    def program(name: str, *arguments: str) -> ExampleProcess:
        own = ("--bootstrap", cluster.bootstrap, "--directory", str(directory))
        processes.append(ExampleProcess(directory, name, SCRIPT, *own, *arguments))
        return processes[-1]

    def run(made: ExampleProcess) -> None:
        made.start()
        made.wait(TIMEOUT_S)

    def bills() -> int:
        for process in running[1:]:
            if process.starts:
                process.check_runs()
        return _count(directory / "billing.db", "SELECT count(*) FROM bills")

    try:
        cluster.start()
        cluster.wait_ready()
        with killed_at_the_end(processes):
            run(program("create", "create"))
            shop = program("shop", "shop", "--orders", str(orders))
            running = [shop, program("relay", "relay"), program("bill-a", "bill", "a"), program("bill-b", "bill", "b")]
            for process in running[1:]:
                process.start()
            for process in running[2:]:
                wait_until(f"{process.name} to begin", lambda process=process: bool(process.said()), TIMEOUT_S)  # type: ignore[misc]
            begun = time.monotonic()
            shop.start()
            say(f"a shop takes {orders:,} orders, a relay moves them, two programs write bills")
            killed: list[tuple[str, int]] = []

            def kill(victim: ExampleProcess) -> None:
                killed.append((victim.name, bills()))
                victim.kill()
                say(f"{victim.name}: kill -9 with {killed[-1][1]:,} bills written, and a new start")
                victim.start()

            def kill_node() -> None:
                node_id = rng.choice(cluster.running())
                killed.append((f"node {node_id}", bills()))
                cluster.kill(node_id)
                say(f"node {node_id}: kill -9 with {killed[-1][1]:,} bills written, and a new start")
                cluster.start([node_id])

            wait_until("the first orders", lambda: _count(directory / "shop.db", ORDERS) > 0, TIMEOUT_S)
            kill(shop)
            for number in range(kills):
                share, victim = LAST_KILL_AT * (number + 1) / kills, rng.choice(running[1:])
                wait_until(f"{share:.0%} to be billed", lambda share=share: bills() >= share * orders, TIMEOUT_S)  # type: ignore[misc]
                kill(victim)
                if number < node_kills:
                    kill_node()
                if shop.code() is None:
                    kill(shop)
            shop.wait(TIMEOUT_S)
            placed = _count(directory / "shop.db", ORDERS)
            known = _count(directory / "billing.db", "SELECT count(*) FROM customers")
            say(f"{placed:,} orders were placed; billing comes to know all customers, {known} so far")
            run(program("customers", "customers"))
            redriven = _all_billed(cluster.bootstrap, placed, bills)
            work_s = time.monotonic() - begun
            for process in running[1:]:
                process.end()
            verdict = program("check", "check")
            verdict.start()
            wait_until("the check", lambda: verdict.code() is not None, TIMEOUT_S)
    finally:
        cluster.stop(timeout_s=10.0)
    total_s = time.monotonic() - started
    return OrdersResult(tuple(killed), redriven, work_s, total_s, verdict.said(), verdict.code() == 0)


def _all_billed(bootstrap: str, placed: int, bills: Callable[[], int]) -> list[str]:
    """Redrive until all orders have bills; letters may still be on their way to the topic at the first time."""
    said: list[str] = []
    deadline = time.monotonic() + TIMEOUT_S
    while bills() < placed:
        if time.monotonic() > deadline:
            raise WatchFailed(f"expected {placed:,} bills after the dead letters were redriven, found {bills():,}")
        command = [sys.executable, "-P", "-m", "tidelog.cli.main", "dlq", "redrive", "dlq.billing"]
        done = subprocess.run([*command, "--bootstrap", bootstrap], capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode:
            raise WatchFailed(f"dlq redrive ended with exit code {done.returncode}: {done.stderr}")
        said += done.stdout.splitlines()
        time.sleep(0.2)
    return said


def _count(database: Path, query: str) -> int:
    with closing(sqlite3.connect(database, timeout=30.0)) as connection:
        return int(connection.execute(query).fetchone()[0])
