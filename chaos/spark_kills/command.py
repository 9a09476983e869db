"""``./dev kills``: runs the kill matrix, shows it as a table, and reports the verdict as its exit code."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from tidelog.chaos.spark_kills.cases import CASES, Case
from tidelog.chaos.spark_kills.drivers import DriverPool
from tidelog.chaos.spark_kills.kill_run import CaseResult, KillRun
from tidelog.chaos.spark_kills.spark_cluster import SparkCluster
from tidelog.chaos.spark_kills.staged_cluster import StagedCluster
from tidelog.cli.failure import CommandFailed
from tidelog.cli.root import run
from tidelog.cli.terminal.output import print_rows
from tidelog.client.background import BackgroundLoop

LIMIT_S = 40 * 60.0
"""No case begins after this many seconds, times the patience."""


def run_cases(
    cases: Sequence[Case],
    directory: Path,
    hear: Callable[[CaseResult], None],
    *,
    ahead: int = 1,
    patience: float = 1.0,
    master: str = "",
) -> list[CaseResult]:
    """Run cases one after the other on their own cluster; ``hear`` is called for each. ``ahead``: how many Sparks are
    started before they are needed; ``patience`` multiplies time bounds; ``master``: the Spark cluster to run on, by
    default none. Raises ``CommandFailed`` if time runs out."""
    loop = BackgroundLoop()
    most = 1 + sum(case.drivers_out for case in cases)
    pool = DriverPool(directory, most=most, ahead=ahead, patience=patience, master=master)
    results: list[CaseResult] = []
    began = time.monotonic()
    try:
        pool.prepare()
        cluster = loop.run(_made())
        loop.run(cluster.start())
        try:
            run = KillRun(cluster, loop, pool, directory, patience=patience)
            for case in cases:
                if time.monotonic() - began > LIMIT_S * patience:
                    raise CommandFailed(f"{len(cases) - len(results)} cases remain after {LIMIT_S * patience:g} s")
                results.append(run.run(case))
                hear(results[-1])
        finally:
            loop.run(cluster.stop())
    finally:
        pool.close()
        loop.stop()
    return results


async def _made() -> StagedCluster:
    return StagedCluster()


@click.command()
@click.argument("names", nargs=-1, metavar="[CASE …]")
@click.option("--list", "listed", is_flag=True, help="List the cases and what each tries.")
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Run each case this many times.")
@click.option("--keep", is_flag=True, help="Keep checkpoints and logs even after success.")
@click.option(
    "--ahead", type=click.IntRange(1), default=1, show_default=True, help="How many Spark processes to start ahead."
)
@click.option(
    "--patience", type=click.FloatRange(1), default=1.0, show_default=True, help="Multiply all time limits by this."
)
@click.option("--cluster", is_flag=True, help="Use a standalone Spark cluster with two workers, started for the run.")
def kills(
    names: tuple[str, ...], listed: bool, repeat: int, keep: bool, ahead: int, patience: float, cluster: bool
) -> int:
    """Run Spark on three brokers, kill processes on the way, and check that each row is in the sink exactly once.

    Exit code 0 only if every named case (default: all) went as expected. Each kill happens at a fixed step of a call to
    the brokers, so there is no seed, and a case is the same each time.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # everything is stopped on exit
    if listed:
        print_rows(("case", "what is tried"), [(case.name, case.shows) for case in CASES.values()])
        return 0
    if unknown := [name for name in names if name not in CASES]:
        raise CommandFailed(f"no case {unknown[0]!r}; there are: {', '.join(CASES)}")
    chosen = [CASES[name] for name in names] or [one for one in CASES.values() if cluster or not one.clustered]
    if not cluster and (wanting := [one.name for one in chosen if one.clustered]):
        raise CommandFailed(f"case {wanting[0]} takes executors: give --cluster")
    cases = [_numbered(case, number) for number in range(repeat) for case in chosen]
    started = time.monotonic()
    with _run_directory(keep) as (directory, done), ExitStack() as stack:
        master = stack.enter_context(SparkCluster(directory / "spark")).url if cluster else ""
        results = run_cases(cases, directory, _say, ahead=ahead, patience=patience, master=master)
        done.append(not any(result.faults for result in results))
    failed = [result for result in results if result.faults]
    print_rows(
        ("case", "s", "runs", "batches", "rows", "attempts", "lost", "already", "refused", ""),
        [_line(result) for result in results],
    )
    click.echo(f"{len(results)} cases in {time.monotonic() - started:.0f} s")
    if failed:
        click.echo(f"FAILED: {', '.join(result.name for result in failed)}")
        return 1
    click.echo("Every row of every case is in the sink once, and no reader saw one before the decision on its batch.")
    return 0


def _numbered(case: Case, number: int) -> Case:
    from dataclasses import replace

    return case if not number else replace(case, name=f"{case.name}-{number + 1}")


def _say(result: CaseResult) -> None:
    click.echo(f"{'FAIL' if result.faults else 'ok':<5} {result.name}  {result.seconds:.1f} s")
    for fault in result.faults:
        click.echo(f"      {fault}")
    if result.faults:
        for error in result.errors:
            click.echo(f"      a run ended by: {error[:400]}")


def _line(one: CaseResult) -> tuple[str, ...]:
    figures = (one.runs, one.batches, one.rows, one.attempts, one.losers, one.already, one.refused)
    return (one.name, f"{one.seconds:.1f}", *map(str, figures), "FAIL" if one.faults else "ok")


@contextmanager
def _run_directory(keep: bool) -> Iterator[tuple[Path, list[bool]]]:
    """Provide a working directory, which is kept on failure."""
    directory = Path(tempfile.mkdtemp(prefix="tidelog-kills-"))
    done: list[bool] = []
    interrupted = False
    try:
        yield directory, done
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        if (done == [True] or interrupted) and not keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            click.echo(f"Checkpoints and logs: {directory}", err=True)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], kills, "./dev kills"))
