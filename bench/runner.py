"""Runs benchmarks, as often as requested, and compares the figures with their bounds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Final

from tidelog.bench import history
from tidelog.bench.figures import Figure, median

Measurement = Callable[[Path], Mapping[str, float]]
"""Measures once, in an empty working directory; returns values by figure name."""

BENCHMARKS: Final = {
    "produce": "tidelog.bench.records.throughput:produce_three_nodes",
    "produce-one-node": "tidelog.bench.records.throughput:produce_one_node",
    "produce-matrix": "tidelog.bench.records.throughput:produce_matrix",
    "consume": "tidelog.bench.records.throughput:consume_one_node",
    "latency": "tidelog.bench.records.latency:latency",
    "authorizer": "tidelog.bench.listener.authorizer:authorizer",
    "rebalance": "tidelog.bench.coordination.rebalance:rebalance",
    "startup": "tidelog.bench.nodes.startup:startup",
    "idle": "tidelog.bench.nodes.resources:idle",
    "memory-loaded": "tidelog.bench.nodes.resources:memory_loaded",
    "controller-failover": "tidelog.bench.nodes.failover:controller_failover",
    "leader-failover": "tidelog.bench.nodes.failover:leader_failover",
    "large-topics": "tidelog.bench.nodes.large_topics:large_topics",
    "partitions": "tidelog.bench.nodes.partitions:ten_thousand_partitions",
    "quorum-commit": "tidelog.bench.nodes.quorum_commit:quorum_commit",
    "group-rebalance": "tidelog.bench.coordination.groups:rebalance",
    "group-join": "tidelog.bench.coordination.groups:join",
    "group-read": "tidelog.bench.coordination.groups:during_rebalance",
    "group-assignment": "tidelog.bench.coordination.assignment:assignment",
    "group-heartbeats": "tidelog.bench.coordination.heartbeats:heartbeats",
    "transaction": "tidelog.bench.coordination.transactions:one_at_a_time",
    "transaction-rate": "tidelog.bench.coordination.transactions:many_at_once",
    "delay": "tidelog.bench.coordination.delays:lateness",
    "delay-rate": "tidelog.bench.coordination.delays:at_once",
    "delay-restart": "tidelog.bench.coordination.delays:restart",
    "keyed-workers": "tidelog.bench.coordination.workers:slow_handlers",
    "transaction-batches": "tidelog.bench.coordination.transactions:large_batches",
    "read-committed": "tidelog.bench.coordination.transactions:read_committed",
    "kafka": "tidelog.bench.listener.kafka:kafka_throughput",
    "kafka-requests": "tidelog.bench.listener.kafka:kafka_requests",
    "one-record": "tidelog.bench.listener.kafka:one_record_requests",
    "workers": "tidelog.bench.listener.workers:workers",
    "connections": "tidelog.bench.listener.security:idle_connections",
    "secured": "tidelog.bench.listener.security:secured_throughput",
    "restore": "tidelog.bench.records.backup:restore",
    "restore-large": "tidelog.bench.records.backup:restore_large",
    "spark-source": "tidelog.bench.spark.queries:source_to_noop",
    "spark-sink": "tidelog.bench.spark.queries:source_to_sink",
    "spark-trigger": "tidelog.bench.spark.queries:trigger_overhead",
}
"""Benchmark → its module, imported only when it runs: each has its own dependencies."""


@dataclass(frozen=True, slots=True)
class Outcome:
    figure: Figure
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def holds(self) -> bool:
        return self.figure.holds(self.median)


def load(benchmark: str) -> Measurement:
    module, _, name = BENCHMARKS[benchmark].partition(":")
    found: Measurement = getattr(import_module(module), name)
    return found


def chosen(figures: Mapping[str, Figure], only: Sequence[str]) -> dict[str, list[Figure]]:
    """Return the figures to measure by benchmark; ``only`` names benchmarks or figures, empty means all. Raises
    ``KeyError`` for an unknown name."""
    for name in only:
        if name not in BENCHMARKS and name not in figures:
            raise KeyError(name)
    found: dict[str, list[Figure]] = {}
    for figure in figures.values():
        if not only or figure.name in only or figure.benchmark in only:
            found.setdefault(figure.benchmark, []).append(figure)
    return found


def measure(
    benchmark: str, figures: Sequence[Figure], repeats: int, work_in: Callable[[], Path], run: Measurement | None = None
) -> list[Outcome]:
    """Run one benchmark ``repeats`` times, each in its own directory."""
    run = run or load(benchmark)
    values: dict[str, list[float]] = {figure.name: [] for figure in figures}
    for number in range(repeats):
        started = time.monotonic()
        print(f"{benchmark} {number + 1}/{repeats} …", end=" ", file=sys.stderr, flush=True)
        found = run(work_in())
        for figure in figures:
            values[figure.name].append(found[figure.name])
        shown = ", ".join(f"{figure.name} {format_value(found[figure.name])} {figure.unit}" for figure in figures)
        print(f"{shown} ({time.monotonic() - started:.0f} s)", file=sys.stderr, flush=True)
    return [Outcome(figure, tuple(values[figure.name])) for figure in figures]


def report(outcomes: Sequence[Outcome], *, check: bool) -> list[str]:
    """Return a table's lines: figure, median, bound, aim; with ``check`` also whether the bound holds."""
    rows = [("figure", "median", "at least", "aim", "unit", "" if not check else "verdict")]
    for outcome in outcomes:
        figure = outcome.figure
        verdict = "-" if figure.at_least is None else "ok" if outcome.holds else "BELOW"
        if outcome.holds and figure.reaches_aim(outcome.median):
            verdict = "aim reached"
        sign = "≥" if figure.more_is_better else "≤"
        bound = "-" if figure.at_least is None else f"{sign} {format_value(figure.at_least)}"
        rows.append(
            (
                figure.name,
                format_value(outcome.median),
                bound,
                "-" if figure.aim is None else format_value(figure.aim),
                figure.unit,
                verdict if check else "",
            )
        )  # fmt: skip
    widths = [max(len(row[at]) for row in rows) for at in range(6)]
    right = {1, 2, 3}
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def keep(outcomes: Sequence[Outcome], command: str) -> Path:
    """Append the outcomes to the history."""
    now = datetime.now(UTC)
    return history.append([history.line(outcome.figure, outcome.values, command, now) for outcome in outcomes], now)


def format_value(value: float) -> str:
    """Format a figure for people: 1,234,567; 12.3; 0.123."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3g}"
