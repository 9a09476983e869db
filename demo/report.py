"""The demo's final report: for each half a table and a verdict in words; or everything as JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.terminal.output import print_rows
from tidelog.demo.log.group_reading import GroupReadResult
from tidelog.demo.log.half import LogResult

if TYPE_CHECKING:
    from tidelog.demo.delays.half import SparkResult


def print_log(result: LogResult) -> None:
    """Return the log half's table and verdict."""
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
    rows.append(("whole log half", f"{result.total_s:.1f} s"))
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


def print_spark(result: SparkResult) -> None:
    """Return the Spark half's table and verdict."""
    verdict, kill = result.verdict, result.kill
    same = verdict.expected_digest == verdict.found_digest
    rate = f"{result.flights / result.streaming_s:,.0f} flights/s"
    rows: list[tuple[str, str]] = [
        ("flights streamed", f"{result.flights:,} in {result.batches} micro-batches"),
        (
            "kill -9 of the driver",
            f"in micro-batch {kill.batch}, not decided; its transactions: {kill.prepared} prepared, {kill.open} open",
        ),
        ("  rows it had written of it", f"{result.unseen:,}, seen by nobody"),
        ("  a new driver had Spark after", f"{result.session_s:.1f} s"),
        ("  the batch committed after", f"{result.went_on_s:.1f} s"),
        ("rows computed from the source", f"{verdict.expected:,}"),
        ("rows in topic delays", f"{verdict.found:,}"),
        ("missing", f"{verdict.missing:,}"),
        ("twice", f"{verdict.twice:,}"),
        ("wrong", f"{verdict.wrong:,}"),
        ("foreign", f"{verdict.foreign:,}"),
        ("checksum of the computed", verdict.expected_digest[:32]),
        ("checksum of the topic", f"{verdict.found_digest[:32]} {'(the same)' if same else '(DIFFERENT)'}"),
        ("streaming, with the kill", f"{result.streaming_s:.1f} s, {rate}"),
        ("computing from the source", f"{result.recompute_s:.1f} s"),
        ("picture", "none: there is nothing to draw" if result.picture is None else _shown(result.picture)),
        ("checkpoint", _shown(result.checkpoint)),
        ("whole Spark half", f"{result.total_s:.1f} s"),
    ]
    print_rows(("", "result"), rows)
    for example in verdict.examples:
        click.echo(f"  {example}")
    if result.passed:
        click.echo("PASSED: each row of the result is in the topic, once, and as it was computed directly.")
    else:
        click.echo("FAILED: the topic does not hold what was computed directly.")


def _shown(path: Path) -> str:
    """Format a value, briefly if possible."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


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


def log_as_json(result: LogResult) -> dict[str, Any]:
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


def spark_as_json(result: SparkResult) -> dict[str, Any]:
    return {
        "passed": result.passed,
        "verdict": asdict(result.verdict),
        "flights": result.flights,
        "batches": result.batches,
        "kill": {"batch": result.kill.batch, "prepared": result.kill.prepared, "open": result.kill.open},
        "unseen": result.unseen,
        "session_seconds": result.session_s,
        "went_on_seconds": result.went_on_s,
        "streaming_seconds": result.streaming_s,
        "recompute_seconds": result.recompute_s,
        "picture": None if result.picture is None else str(result.picture),
        "checkpoint": str(result.checkpoint),
        "total_seconds": result.total_s,
    }
