"""``tidelog demo``: runs the demo, shows it, and returns its verdict as exit code."""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.watch import WatchFailed
from tidelog.cli.terminal.output import json_option, print_json
from tidelog.demo import report as demo_report
from tidelog.demo.log.flights import FLIGHTS, FlightsMissing, find_files
from tidelog.demo.log.half import LogHalf, load_flights, three_nodes

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.cli.local.cluster import LocalCluster

PARTS: Final = ("all", "log", "spark")
SPARK_NEEDS: Final = {"pyspark": "spark", "pyarrow": "spark", "PIL": "picture"}
"""Modules for the second half, and the extra that installs each."""


@click.command()
@click.option("--part", type=click.Choice(PARTS), default="all", show_default=True, help="Both halves, or one of them.")
@click.option(
    "--rows", type=click.IntRange(1_000, FLIGHTS), default=FLIGHTS, show_default=True, help="Flights to send."
)
@click.option("--seconds", type=click.FloatRange(2), default=22.0, show_default=True, help="How long sending lasts.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Work here and keep it. Default: temporary.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/demo"),
    show_default=True,
    help="Where the picture and Spark's checkpoint go.",
)
@click.option("--keep", is_flag=True, help="Keep the nodes' data and logs even after success.")
@click.option("--installing", type=int, hidden=True)  # a pipe on which ./dev reports how the background set-up went
@json_option
def demo(
    part: str,
    rows: int,
    seconds: float,
    directory: Path | None,
    out: Path,
    keep: bool,
    installing: int | None,
    as_json: bool,
) -> int:
    """Three nodes, 336,776 real flights, kill -9 of whatever matters: is all there, once, in order?

    The log half: two nodes are killed while the flights are sent, then a reader of a group. The Spark half: delays by
    carrier and hour through Structured Streaming, whose driver is killed in a micro-batch; compared, row by row, with
    the same computed from the source. Exit code 0 only if nothing was lost, duplicated, reordered or changed.
    """
    _check_installed(part if installing is None else "log")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops everything that was started
    root = directory or Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    passed = interrupted = False
    try:
        run = _Run(part, rows, seconds, root.resolve(), out.resolve(), installing, quiet=as_json)
        passed = run.run()
        if as_json:
            print_json(run.told)
    except KeyboardInterrupt:
        interrupted = True
        raise
    except WatchFailed as failed:
        raise CommandFailed(
            f"the demo failed: {failed}. Look into {root} (see README, How to read a failed demo)"
        ) from None
    finally:
        if (passed or interrupted) and not keep and directory is None:
            shutil.rmtree(root, ignore_errors=True)
        elif not as_json:
            click.echo(f"Data and logs of the nodes: {root / 'cluster'}", err=True)
    return 0 if passed else 1


class _Run:
    """Run the requested halves on one cluster, and show each when it is done."""

    def __init__(
        self, part: str, rows: int, seconds: float, root: Path, out: Path, installing: int | None, *, quiet: bool
    ) -> None:
        self._part = part
        self._rows = rows
        self._seconds = seconds
        self._root = root
        self._out = out
        self._installing = installing
        self._quiet = quiet
        self._started = time.monotonic()
        self.told: dict[str, Any] = {}

    def run(self) -> bool:
        passed = True
        say = self._timed(lambda line: click.echo(line, err=self._quiet))
        with three_nodes(self._root / "cluster", say) as (cluster, admin):
            if self._part == "spark":
                load_flights(cluster, admin, self._rows, say)
            else:
                passed = self._log(cluster, admin)
            if self._part != "log" and passed:
                passed = self._spark(cluster, admin, say)
        took = time.monotonic() - self._started
        if not self._quiet:
            click.echo(f"whole demo: {took:.1f} s")
        self.told |= {"passed": passed, "total_seconds": took}
        return passed

    def _log(self, cluster: LocalCluster, admin: Admin) -> bool:
        with _progress(self._rows, quiet=self._quiet) as (say, progress):
            half = LogHalf(
                cluster,
                self._root / "readers",
                rows=self._rows,
                seconds=self._seconds,
                say=self._timed(say),
                progress=progress,
            )
            result = half.run(admin)
        self.told["log"] = demo_report.log_as_json(result)
        if not self._quiet:
            demo_report.print_log(result)
        return result.passed

    def _spark(self, cluster: LocalCluster, admin: Admin, say: Callable[[str], None]) -> bool:
        if self._installing is not None:
            _await_install(self._installing, say)
            _check_installed("spark")
        from tidelog.demo.delays.half import SparkHalf

        result = SparkHalf(
            admin, cluster.bootstrap, self._root / "spark", self._out, rows=self._rows, say=say
        ).run()  # fmt: skip
        self.told["spark"] = demo_report.spark_as_json(result)
        if not self._quiet:
            demo_report.print_spark(result)
        return result.passed

    def _timed(self, say: Callable[[str], None]) -> Callable[[str], None]:
        return lambda line: say(f"{time.monotonic() - self._started:6.1f} s  {line}")


def _check_installed(part: str) -> None:
    """Raise :class:`CommandFailed` for missing requirements, before anything starts."""
    try:
        find_files()
    except FlightsMissing as missing:
        raise CommandFailed(str(missing)) from None
    if part == "log":
        return
    lacking = sorted({extra for module, extra in SPARK_NEEDS.items() if importlib.util.find_spec(module) is None})
    if lacking:
        raise CommandFailed(
            f"the demo's second half needs packages that are not installed: pip install 'tidelog[{','.join(lacking)}]' "
            "(from a checkout, ./dev demo does it); or leave it out: --part log"
        )
    from tidelog.spark_connector import runtime

    if "JAVA_HOME" not in os.environ:
        try:
            runtime.java_home(runtime.cache_directory())
        except runtime.NoJava as lacks:
            raise CommandFailed(f"the demo's second half: {lacks}; or leave it out: --part log") from None


def _await_install(pipe: int, say: Callable[[str], None]) -> None:
    """Wait until ``./dev setup demo`` closes its end. Raise :class:`CommandFailed` unless its last line is "Ready"."""
    closed = select.poll()
    closed.register(pipe, 0)
    if not closed.poll(0):
        say("the second half waits until Spark is set up")
    with open(pipe, errors="replace") as told:
        text = told.read()
    if not (text.splitlines() or [""])[-1].startswith("Ready"):
        cause = text.partition("FAIL")[2].strip() or "its set-up was interrupted"
        raise CommandFailed(f"the second half cannot begin: {cause}. Run ./dev demo again: set-up goes on where it was")
    importlib.invalidate_caches()
    say("Spark is set up")


@contextmanager
def _progress(rows: int, *, quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Yield a progress display: a bar on a terminal, a line for every tenth elsewhere, nothing with JSON."""
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
