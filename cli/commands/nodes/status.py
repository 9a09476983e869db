"""``tidelog status``: the cluster's health on one screen."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import click

from tidelog.broker.health.facts import Facts
from tidelog.broker.health.look import Look, Watch, as_object, look_at, sentence
from tidelog.broker.health.progress import SAMPLES, Windows
from tidelog.broker.health.rule import Finding, Severity, counted
from tidelog.cli.terminal.connection import cluster_options, secured
from tidelog.cli.terminal.numbers import Seconds
from tidelog.cli.terminal.output import json_line, megabytes, print_json
from tidelog.cli.work.health_facts import Asker
from tidelog.model.escaping import escaped

EXIT_CODES: Final = {None: 0, Severity.NOTE: 0, Severity.WARNING: 3, Severity.CRITICAL: 4}
"""By the most severe finding. 1 and 2 mean what they mean for every command: failure and wrong usage."""
COLOURS: Final = {Severity.CRITICAL: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
WATCH_S: Final = 2.0
ASK_TIMEOUT_MS: Final = 5_000
"""Timeout of each request; one that nobody answers in time is listed as not checked."""


@click.command(short_help="Show whether the cluster is healthy, and what to do if not.")
@click.option(
    "--watch", metavar="[SECONDS]", type=Seconds(min=0.1), is_flag=False, flag_value=str(WATCH_S),
    help=f"Repeat every {WATCH_S:g} s, or at the given interval, until interrupted.",
)  # fmt: skip
@click.option(
    "--window", "window_s", metavar="SECONDS", type=Seconds(min=0), default=0.0,
    help="Watch groups for this long to judge their progress; longer than their commit interval.",
)  # fmt: skip
@click.option("--verbose", "-v", is_flag=True, help="List what was not checked, and why.")
@cluster_options
def status(watch: float | None, window_s: float, verbose: bool, bootstrap: str, as_json: bool) -> int:
    """Show the health of the cluster: brokers, controllers, partitions, disks, groups, transactions.

    Each finding says what is wrong, since when as far as known, why it matters and what to do. Exit code: 0 if the
    cluster is healthy, 3 with warnings, 4 if something is critical, 1 if nobody answers.
    """
    from tidelog import Admin

    windows = Windows()
    with Admin(bootstrap, **{"default_api_timeout_ms": ASK_TIMEOUT_MS, **secured()}) as admin:
        asker = Asker(admin, secured(), windows)
        if watch is not None:
            for look in _looks(asker, watch):
                _show_again(look, verbose, as_json)
        look = look_at(asker)
        for _ in range(SAMPLES - 1 if window_s else 0):
            time.sleep(window_s / (SAMPLES - 1))
            look = look_at(asker)
    if as_json:
        print_json(as_object(look))
    else:
        click.echo("\n".join(lines(look, verbose)))
    return EXIT_CODES[look.report.worst]


def _looks(asker: Asker, every_s: float) -> Iterator[Look]:
    """Yield looks without end."""
    watch = Watch(asker)
    while True:
        began = time.monotonic()
        yield watch.look()
        time.sleep(max(0.0, every_s - (time.monotonic() - began)))


def _show_again(look: Look, verbose: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json_line(as_object(look)))
        return
    terminal = sys.stdout.isatty()
    if terminal:
        click.clear()
    click.echo("\n".join(lines(look, verbose)))
    if not terminal:
        click.echo()


def lines(look: Look, verbose: bool) -> Iterator[str]:
    """Yield the lines of the screen."""
    facts, found = look.facts, look.report
    worst = found.worst
    word = {Severity.CRITICAL: "critical", Severity.WARNING: "warning"}.get(worst, "healthy") if worst else "healthy"
    colour = COLOURS[worst] if worst in (Severity.CRITICAL, Severity.WARNING) else "green"
    yield f"{click.style(word, fg=colour, bold=True)}  {escaped(sentence(look))}"
    for line in _nodes(facts):
        yield f"  {escaped(line)}"
    for finding in found.findings:
        yield ""
        head = click.style(finding.severity.value, fg=COLOURS[finding.severity], bold=True)
        yield f"{head}  {escaped(finding.what)}{_since(finding)}"
        yield f"  why   {escaped(finding.why)}"
        yield f"  do    {escaped(finding.do)}"
    if look.unsettled:
        yield ""
        lags = counted(look.unsettled, "group")
        yield f"not judged: whether {lags} with lag makes progress; use --window 60 or --watch"
    if facts.unknown:
        yield ""
        if verbose:
            yield "not checked:"
            yield from (f"  {escaped(part)}: {escaped(why)}" for part, why in sorted(facts.unknown.items()))
        else:
            yield f"not checked: {escaped(', '.join(sorted(facts.unknown)))} (--verbose says why)"


def _nodes(facts: Facts) -> Iterator[str]:
    """Yield a line per broker, from its metrics and disks."""
    crowds = Counter(broker.machine for broker in (facts.brokers or {}).values())
    for node, broker in sorted((facts.brokers or {}).items()):
        state = "fenced" if broker.fenced else "stopping" if broker.stopping else "live"
        parts = [f"node {node}  {state:<8}"]
        if broker.machine is not None and crowds[broker.machine] > 1 < len(crowds):
            parts.append(f"machine {broker.machine}")
        if facts.controller == node:
            parts.append("active controller")
        metrics = (facts.nodes or {}).get(node)
        if metrics is not None and metrics.busy is not None:
            parts.append(f"loop {100 * metrics.busy:.0f} %")
        if metrics is not None and (memory := metrics.values.get("process_resident_memory_bytes")):
            parts.append(f"memory {megabytes(int(sum(memory.values())))}")
        disks = [one for one in facts.directories or () if one.node == node and not one.failed and one.total_bytes > 0]
        if disks:
            least = min(disks, key=lambda one: one.free_bytes / one.total_bytes)
            parts.append(f"disk {100 * least.free_bytes / least.total_bytes:.0f} % free")
        yield "  ".join(parts)


def _since(finding: Finding) -> str:
    if finding.since_ms is not None:
        return f" (since {_time(finding.since_ms)})"
    return "" if finding.before_ms is None else f" (since {_time(finding.before_ms)} or before)"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
