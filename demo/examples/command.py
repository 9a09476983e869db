"""``./dev example NAME``: runs an example under kill -9, shows it, and returns the verdict as exit code."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.root import run
from tidelog.cli.terminal.output import print_rows
from tidelog.demo.examples.flights_drill import FlightsDrill
from tidelog.demo.examples.orders_drill import drill_orders
from tidelog.demo.examples.statistics_drill import drill_statistics
from tidelog.demo.log.flights import FLIGHTS, FlightsMissing, find_files

SEEDS: int = 10**6

rows_option = click.option(
    "--rows", type=click.IntRange(1_000, FLIGHTS), default=FLIGHTS, show_default=True, help="Number of flights."
)
seed_option = click.option("--seed", type=int, help="Decides what to kill and when. Default: random, and shown.")
keep_option = click.option("--keep", is_flag=True, help="Keep data and logs even after success.")


@click.group()
def example() -> None:
    """Run programs of examples/, each on its own cluster, while killing processes with kill -9."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops everything that was started
    try:
        find_files()
    except FlightsMissing as missing:
        raise CommandFailed(str(missing)) from None


@example.command()
@rows_option
@seed_option
@keep_option
@click.option(
    "--seconds", type=click.FloatRange(0), default=15.0, show_default=True, help="How long the loading takes."
)
@click.option(
    "--node-kills", type=click.IntRange(0, 2), default=2, show_default=True, help="How often a node is killed."
)
@click.option("--at-least-once", is_flag=True, help="Workers without transactions: the check must find the duplicates.")
def flights(rows: int, seconds: float, seed: int | None, keep: bool, node_kills: int, at_least_once: bool) -> int:
    """Consume, transform, produce (flight_delays.py): three workers, three nodes, all of them mortal.

    Exit code 0 only if each flight has its row in the output once, equal to what is computed directly.
    """
    with _run_directory(keep) as (place, say, done):
        seed = _seed(seed, say)
        drill = FlightsDrill(
            place, rows=rows, seconds=seconds, seed=seed, node_kills=node_kills, at_least_once=at_least_once, say=say
        )
        result = drill.run()
        done.append(result.passed)
    lines: list[tuple[str, str]] = []
    for kill in result.kills:
        after = "-" if kill.went_on_s is None else f"went on after {kill.went_on_s:.2f} s"
        lines.append((f"kill -9 at {kill.at_share:4.0%}", f"{kill.what}: {after}"))
    nodes = sum(kill.what.startswith("node") for kill in result.kills)
    ended = result.commits + result.aborts
    lines += [
        ("killed", f"{len(result.kills) - nodes} times a worker, {nodes} times a node"),
        ("transactions", f"{result.commits:,} committed, {result.aborts:,} aborted"),
        ("records that nobody sees", f"{result.unseen:,}, of the aborted ones"),
        ("work", f"{result.work_s:.1f} s, {rows / result.work_s:,.0f} flights/s, {ended / result.work_s:,.0f} tx/s"),
        ("whole run", f"{result.total_s:.1f} s"),
    ]
    return _show(lines, result.verdict, result.passed)


@example.command()
@rows_option
@seed_option
@keep_option
def sqlite(rows: int, seed: int | None, keep: bool) -> int:
    """Offsets in the same database transaction as results (carrier_statistics.py): two programs, killed three times.

    Exit code 0 only if every carrier's row in the database equals what is computed directly.
    """
    with _run_directory(keep) as (place, say, done):
        result = drill_statistics(place, rows=rows, seed=_seed(seed, say), say=say)
        done.append(result.passed)
    lines = [(f"kill -9 of {name}", f"at {counted:,} flights") for name, counted in result.kills]
    lines.append(("counting", f"{result.count_s:.1f} s, {rows / result.count_s:,.0f} flights/s"))
    lines.append(("whole run", f"{result.total_s:.1f} s"))
    return _show(lines, result.verdict, result.passed)


@example.command()
@click.option("--orders", type=click.IntRange(200), default=5_000, show_default=True, help="Number of orders.")
@click.option(
    "--kills", type=click.IntRange(1, 20), default=5, show_default=True, help="How often relay or billing is killed."
)
@click.option(
    "--node-kills", type=click.IntRange(0, 20), default=3, show_default=True, help="How often a node is killed."
)
@seed_option
@keep_option
def orders(orders: int, kills: int, node_kills: int, seed: int | None, keep: bool) -> int:
    """Outbox, retries, dead letters, redrive, inbox (orders.py): a shop, a relay, two billing programs and three nodes,
    all mortal.

    Exit code 0 only if each committed order has its bill once, and each message, retry and dead letter is there once.
    """
    with _run_directory(keep) as (place, say, done):
        result = drill_orders(place, orders=orders, kills=kills, node_kills=node_kills, seed=_seed(seed, say), say=say)
        done.append(result.passed)
    lines = [(f"kill -9 of {name}", f"at {count:,} bills") for name, count in result.kills]
    lines += [("redrive", line) for line in result.redriven if not line.startswith("0 ")]
    lines += [("work", f"{result.work_s:.1f} s"), ("whole run", f"{result.total_s:.1f} s")]
    return _show(lines, result.verdict, result.passed)


def _seed(given: int | None, say: Callable[[str], None]) -> int:
    seed = time.time_ns() // 1_000 % SEEDS if given is None else given
    say(f"seed {seed}")
    return seed


@contextmanager
def _run_directory(keep: bool) -> Iterator[tuple[Path, Callable[[str], None], list[bool]]]:
    """Yield a working directory, which stays after a failure, and an output function."""
    place = Path(tempfile.mkdtemp(prefix="tidelog-example-"))
    done: list[bool] = []
    started = time.monotonic()
    interrupted = False
    try:
        yield place, lambda line: click.echo(f"{time.monotonic() - started:6.1f} s  {line}"), done
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        if (done == [True] or interrupted) and not keep:
            shutil.rmtree(place, ignore_errors=True)
        else:
            click.echo(f"Data and logs: {place}", err=True)


def _show(lines: list[tuple[str, str]], verdict: list[str], passed: bool) -> int:
    print_rows(("", "result"), lines)
    for line in verdict:
        click.echo(line)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], example, "./dev example"))
