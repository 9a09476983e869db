"""``tidelog demo``: runs the demo, shows it, and answers with its exit code."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tidelog.chaos.demo import Demo, DemoResult
from tidelog.chaos.flights import FLIGHTS, FlightsMissing, find_files
from tidelog.chaos.group_reading import GroupReadResult
from tidelog.cli.cluster_watch import WatchFailed
from tidelog.cli.failure import CommandFailed
from tidelog.cli.output import json_option, print_json, print_rows


@click.command()
@click.option(
    "--rows", type=click.IntRange(1_000, FLIGHTS), default=FLIGHTS, show_default=True, help="Flights to send."
)
@click.option("--seconds", type=click.FloatRange(2), default=22.0, show_default=True, help="How long sending lasts.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Work here and keep it. Default: temporary.")
@click.option("--keep", is_flag=True, help="Keep the nodes' data and logs even if all went well.")
@json_option
def demo(rows: int, seconds: float, directory: Path | None, keep: bool, as_json: bool) -> int:
    """Three nodes, 336,776 real flights, two kill -9 while they are sent: is all there, once, in order?

    Then a group of three readers, one of them killed. Exit code 0 only if nothing was lost, duplicated, reordered or
    changed, and no more handed out twice than the dead reader had not committed.
    """
    try:
        find_files()
    except FlightsMissing as missing:
        raise CommandFailed(str(missing)) from None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the nodes are stopped on the way out
    place = directory or Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    started = time.monotonic()
    passed = interrupted = False
    try:
        with _progress(rows, quiet=as_json) as (say, progress):

            def say_when(line: str) -> None:
                say(f"{time.monotonic() - started:6.1f} s  {line}")

            result = Demo(place / "cluster", rows=rows, seconds=seconds, say=say_when, progress=progress).run()
        passed = result.passed
        if as_json:
            print_json(_as_json(result))
        else:
            _print(result)
    except KeyboardInterrupt:
        interrupted = True
        raise
    except WatchFailed as failed:
        raise CommandFailed(
            f"the demo failed: {failed}. Look into {place} (see README, How to read a failed demo)"
        ) from None
    finally:
        if (passed or interrupted) and not keep and directory is None:
            shutil.rmtree(place, ignore_errors=True)
        elif not as_json:
            click.echo(f"Data and logs of the nodes: {place / 'cluster'}", err=True)
    return 0 if passed else 1


@contextmanager
def _progress(rows: int, *, quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """A bar on a terminal, a line for every tenth elsewhere, nothing when asked for JSON."""
    if quiet:
        yield lambda line: click.echo(line, err=True), lambda sent: None
        return
    if not sys.stdout.isatty():
        last = 0

        def tell(sent: int) -> None:
            nonlocal last
            tenth = sent * 10 // rows
            if tenth > last:
                last = tenth
                click.echo(f"          {sent:,} of {rows:,} rows sent")

        yield click.echo, tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("sending flights"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("", total=rows)
        yield (
            lambda line: bar.console.print(line, highlight=False, markup=False),
            lambda sent: bar.update(task, completed=sent),
        )


def _print(result: DemoResult) -> None:
    verdict = result.verdict
    same = verdict.source_digest == verdict.log_digest
    rows: list[tuple[str, str]] = [
        ("rows sent", f"{verdict.sent:,}"),
        ("acknowledged", f"{verdict.acknowledged:,}"),
        ("read back", f"{verdict.read:,}"),
        ("lost", f"{verdict.lost:,}"),
        ("duplicated in the log", f"{verdict.duplicated:,}"),
        ("out of order per key", f"{verdict.out_of_order:,}"),
        ("not where acknowledged", f"{verdict.misplaced:,}"),
        ("changed, foreign, unread", f"{verdict.changed:,}, {verdict.foreign:,}, {verdict.unread:,}"),
        ("checksum of the source", verdict.source_digest[:32]),
        ("checksum of the log", f"{verdict.log_digest[:32]} {'(the same)' if same else '(DIFFERENT)'}"),
    ]
    for kill in result.kills:
        rows.append((f"kill -9 of node {kill.node_id}", kill.what))
        rows.append(("  rows on their way", f"{kill.pending:,}, {kill.pending_there:,} of them to its partitions"))
        rows.append(("  first record again after", _seconds(kill.first_acknowledged_s)))
        rows.append(("  in all its partitions after", _seconds(kill.last_acknowledged_s)))
        if kill.controller_s is not None:
            rows.append(("  next metadata commit after", _seconds(kill.controller_s)))
        rows.append(("  in sync after its restart", _seconds(kill.whole_s)))
    rows += _group_rows(result.group)
    rate = f"{result.unpaced_records / result.unpaced_s:,.0f} records/s"
    volume = f"{result.unpaced_bytes / result.unpaced_s / 1e6:,.1f} MB/s"
    rows += [
        ("sending, paced", f"{result.paced_s:.1f} s"),
        ("reading back", f"{result.read_s:.1f} s, {verdict.read / max(result.read_s, 1e-9):,.0f} records/s"),
        ("sending, no pace", f"{result.unpaced_s:.1f} s, {rate}, {volume}"),
    ]
    for node_id, use in result.use.items():
        memory = f"{use.memory_peak_bytes / 1e6:,.0f} MB at most"
        rows.append((f"node {node_id}", f"{memory}, {use.cpu_s:.1f} s of CPU ({use.cpu_percent:.0f} % of one)"))
    rows.append(("whole demo", f"{result.total_s:.1f} s"))
    print_rows(("", "result"), rows)
    for example in (*verdict.examples, *result.failures, *result.group.verdict.examples, *result.group.failures):
        click.echo(f"  {example}")
    if result.passed:
        click.echo("PASSED: nothing lost, nothing duplicated, nothing reordered.")
    elif verdict.passed and not result.failures:
        click.echo("FAILED: the group was not handed what the log holds.")
    elif verdict.passed or not verdict.complete:
        click.echo(f"FAILED: {verdict.sent - verdict.acknowledged:,} rows were not acknowledged.")
    else:
        click.echo("FAILED: the log is not what was acknowledged.")


def _group_rows(group: GroupReadResult) -> list[tuple[str, str]]:
    verdict = group.verdict
    allowed = f"at most the {verdict.uncommitted:,} that {group.killed} had not committed"
    return [
        ("read through a group of 3", f"{verdict.handed:,} records handed out in {group.total_s:.1f} s"),
        (f"kill -9 of {group.killed}", f"at record {group.killed_at:,}, {verdict.handed_to_dead:,} of them its own"),
        ("  its partitions read on after", _seconds(group.read_on_s)),
        ("lost to the group", f"{verdict.lost:,}"),
        ("redelivered to the group", f"{verdict.redelivered:,}, {allowed}"),
        ("redelivered beyond that", f"{verdict.stray:,}"),
        ("changed, backwards", f"{verdict.changed:,}, {verdict.backwards:,}"),
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _as_json(result: DemoResult) -> dict[str, Any]:
    return {
        "passed": result.passed,
        "verdict": asdict(result.verdict),
        "group": {"passed": result.group.passed, **asdict(result.group)},
        "kills": [asdict(kill) for kill in result.kills],
        "paced_seconds": result.paced_s,
        "read_seconds": result.read_s,
        "unpaced": {
            "records": result.unpaced_records,
            "value_bytes": result.unpaced_bytes,
            "seconds": result.unpaced_s,
            "records_per_second": result.unpaced_records / result.unpaced_s,
        },
        "nodes": {str(node_id): asdict(use) for node_id, use in result.use.items()},
        "total_seconds": result.total_s,
        "failures": result.failures,
    }
