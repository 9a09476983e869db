"""Statistics in SQLite while the counting programs are killed: is each flight counted exactly once?

Runs ``examples/carrier_statistics.py``, two at a time, on its own node that ``examples/flight_delays.py`` has loaded.
Several times, one gets kill -9 in the middle of its work and is restarted; the example's own ``check`` judges the
result.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.watch import WatchFailed, wait_until
from tidelog.demo.examples.processes import ExampleProcess, killed_at_the_end

SCRIPT: Final = "carrier_statistics.py"
COUNTERS: Final = ("a", "b")
KILLS_AT: Final = (0.15, 0.4, 0.65)
TIMEOUT_S: Final = 180.0
START_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class StatisticsResult:
    rows: int
    kills: tuple[tuple[str, int], ...]
    """The killed workers, and how many flights were counted by then."""
    count_s: float
    total_s: float
    verdict: list[str]
    """The output of the example's ``check``."""
    passed: bool


def drill_statistics(directory: Path, *, rows: int, seed: int, say: Callable[[str], None]) -> StatisticsResult:
    """One run. Raises :class:`WatchFailed` if an expected event does not happen; leaves no process behind."""
    started = time.monotonic()
    rng = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    database = directory / "statistics.db"
    cluster = LocalCluster.create(directory / "cluster", nodes=1)
    processes: list[ExampleProcess] = []
    try:
        cluster.start()
        cluster.wait_ready()
        at = ("--bootstrap", cluster.bootstrap)
        with killed_at_the_end(processes):
            loader = ExampleProcess(directory, "load", "flight_delays.py", *at, "load", "--rows", str(rows))
            own = (*at, "--database", str(database))
            counters = [ExampleProcess(directory, f"counter-{name}", SCRIPT, *own, "count", name) for name in COUNTERS]
            check = ExampleProcess(directory, "check", SCRIPT, *own, "check", "--rows", str(rows))
            processes += [loader, *counters, check]
            loader.start()
            loader.wait(TIMEOUT_S)
            begun = time.monotonic()
            for counter in counters:
                counter.start()
            say(f"{len(counters)} programs count {rows:,} flights")
            kills = []

            def counted() -> int:
                for counter in counters:
                    counter.check_runs()
                return flights_counted(database)

            for share in KILLS_AT:
                wait_until(f"{share:.0%} to be counted", lambda share=share: counted() >= share * rows, TIMEOUT_S)  # type: ignore[misc]
                victim = rng.choice(counters)
                victim.kill()
                kills.append((victim.name, flights_counted(database)))
                say(f"{victim.name}: kill -9 with {kills[-1][1]:,} flights counted, and a new start")
                victim.start()
            if kills[-1][1] >= rows:
                raise WatchFailed(f"expected kills while flights were counted, found all {rows:,} counted by then")
            wait_until("all to be counted", lambda: counted() >= rows, TIMEOUT_S)
            count_s = time.monotonic() - begun
            wait_until("them to begin", lambda: all(counter.said() for counter in counters), START_TIMEOUT_S)
            for counter in counters:
                counter.end()
            check.start()
            wait_until("the check", lambda: check.code() is not None, TIMEOUT_S)
    finally:
        cluster.stop(timeout_s=10.0)
    total_s = time.monotonic() - started
    return StatisticsResult(rows, tuple(kills), count_s, total_s, check.said(), check.code() == 0)


def flights_counted(database: Path) -> int:
    """Return the database's current count; 0 before it exists."""
    if not database.exists():
        return 0
    try:
        with closing(sqlite3.connect(database, timeout=10.0)) as connection:
            return int(connection.execute("SELECT coalesce(sum(flights), 0) FROM statistics").fetchone()[0])
    except sqlite3.OperationalError:  # created, but its tables are not there yet
        return 0
