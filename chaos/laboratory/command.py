"""The laboratory's command line: ``./dev chaos``."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidelog.chaos.laboratory.faults.drain_acts import NODES_MIN as DRAINABLE
from tidelog.chaos.laboratory.faults.nemesis import MIXED, NEMESES
from tidelog.chaos.laboratory.faults.schedule import BadSchedule, Step, steps_of
from tidelog.chaos.laboratory.history.history_file import BadHistory, Recorded, read_history
from tidelog.chaos.laboratory.judge.judgement import Verdict, judge, shown
from tidelog.chaos.laboratory.link_command import add_link
from tidelog.chaos.laboratory.links.toxiproxy_build import toxiproxy_server
from tidelog.chaos.laboratory.options import schedule_of, seeds_of, setting_of
from tidelog.chaos.laboratory.processes.parent_death import check_platform
from tidelog.chaos.laboratory.report.report_files import report_beside, write_page, write_summary
from tidelog.chaos.laboratory.report.report_summary import summary_text
from tidelog.chaos.laboratory.report_command import add_reports
from tidelog.chaos.laboratory.run import OPERATIONS_MAX, PER_S, Asked, perform
from tidelog.chaos.laboratory.upgrade_command import add_upgrade
from tidelog.chaos.laboratory.workloads.workloads import WORKLOADS, workloads_named
from tidelog.chaos.simulated.mutants import ALL
from tidelog.cli.failure import CommandFailed
from tidelog.model.settings.config_def import ConfigError
from tidelog.testing.secured import KINDS

EXIT_HELD: Final = 0
EXIT_BROKEN: Final = 1
EXIT_REFUSED: Final = 2
EXIT_INTERRUPTED: Final = 130
SECONDS: Final = 60.0
RACKS_MIN: Final = 3


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if everything held, 1 if not, 2 if it could not be run."""
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return int(asked.run(asked))
    except (CommandFailed, ConfigError, BadSchedule, BadHistory, OSError) as refused:
        print(f"chaos: {refused}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        print("chaos: interrupted; none of its processes is left", file=sys.stderr)
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev chaos",
        description="Faults on a cluster of real processes behind proxies, judged by the answers that its clients got.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    running = commands.add_parser("run", help="run once, or once for each seed")
    running.add_argument("--seed", default="1", help="a seed, or first-last (default 1)")
    running.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"seconds of faults in each run (default {SECONDS:g})"
    )
    running.add_argument("--nemesis", default=MIXED, help="names separated by commas (see nemeses; default mixed)")
    running.add_argument(
        "--workload", default="append", help=f"one, or several separated by commas: {', '.join(WORKLOADS)}"
    )
    running.add_argument("--nodes", type=int, default=3)
    running.add_argument("--racks", type=int, default=0, help="number of racks to spread the nodes over")
    running.add_argument("--rate", type=float, default=PER_S, help=f"records per second (default {PER_S:g})")
    running.add_argument("--operations", type=int, default=OPERATIONS_MAX, help="maximum number of records")
    running.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting for every node; repeatable"
    )
    running.add_argument("--security", choices=tuple(KINDS), default="", help="secure the cluster, with access control")
    running.add_argument("--replay", type=Path, metavar="HISTORY", help="use the schedule of an earlier run")
    running.add_argument(
        "--mutant", default="", metavar="ID", help="break one of the nodes' rules (./dev sim --mutants)"
    )
    running.add_argument("--dir", type=Path, help="keep histories (and clusters that failed) here")
    running.add_argument("--name", help="for a single run: name of the history, without suffix")
    running.add_argument("--report", action="store_true", help="write a page for each run, and a table for several")
    running.set_defaults(run=_run)
    judging = commands.add_parser("judge", help="judge a history again")
    judging.add_argument("history", type=Path)
    judging.set_defaults(run=_judge)
    planning = commands.add_parser("plan", help="print a seed's schedule without running it")
    planning.add_argument("--seed", type=int, default=1)
    planning.add_argument("--seconds", type=float, default=SECONDS)
    planning.add_argument("--nemesis", default=MIXED)
    planning.set_defaults(run=_plan)
    add_reports(commands, say)
    add_upgrade(commands, say)
    add_link(commands, say)
    listing = commands.add_parser("nemeses", help="list the faults")
    listing.set_defaults(run=_nemeses)
    return parser


def _run(asked: argparse.Namespace) -> int:
    check_platform()
    settings = dict(setting_of(text) for text in asked.set)
    if asked.mutant and asked.mutant not in {mutant.id for mutant in ALL}:
        raise CommandFailed(f"--mutant: expected an id that the simulation knows, found {asked.mutant!r}")
    seeds = seeds_of(asked.seed)
    if asked.name and len(seeds) > 1:
        raise CommandFailed(f"--name: expected one seed, found {len(seeds)}")
    works = workloads_named(asked.workload)
    schedules = {seed: _schedule(asked, seed) for seed in seeds}
    for schedule in schedules.values():
        _check_nodes(schedule, asked.nodes, asked.racks)
    program = toxiproxy_server(say)
    root = asked.dir or Path(tempfile.mkdtemp(prefix="tidelog-chaos-"))
    root.mkdir(parents=True, exist_ok=True)
    broken, runs = [], []
    for seed in seeds:
        name = asked.name or f"{'+'.join(works)}-{seed}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        directory, history = root / name, root / f"{name}.jsonl"
        if history.exists():
            raise CommandFailed(f"{history} is there already; name another with --name or --dir")
        schedule = schedules[seed]
        say(f"seed {seed}: {len({step.episode for step in schedule})} episodes in {asked.seconds:g} s; {history}")
        for step in schedule:
            say(f"  {step}")
        wanted = Asked(
            seed,
            asked.seconds,
            ",".join(works),
            schedule,
            asked.nodes,
            settings,
            asked.rate,
            asked.operations,
            asked.mutant,
            asked.security,
            asked.racks,
            _again(asked, seed),
        )
        with _log_beside(history):
            perform(wanted, directory, history, program, say)
        recorded, verdict = _verdict(history)
        if asked.report:
            runs.append(write_page(history, recorded, verdict, report_beside(history)))
            say(f"report: {report_beside(history)}")
        if not verdict.held:
            broken.append(seed)
            say(f"what the nodes left: {directory}")
        else:
            _remove(directory)
    if len(runs) > 1:
        table, *_ = write_summary(runs, root, "report", "")
        say(f"{summary_text(runs)}\nreport of all: {table}")
    if len(seeds) > 1:
        say(f"{len(seeds) - len(broken)} of {len(seeds)} runs held{f'; broken: {broken}' if broken else ''}")
    return EXIT_BROKEN if broken else EXIT_HELD


def _judge(asked: argparse.Namespace) -> int:
    _, verdict = _verdict(asked.history)
    return EXIT_HELD if verdict.held else EXIT_BROKEN


def _verdict(history: Path) -> tuple[Recorded, Verdict]:
    recorded = read_history(history)
    verdict = judge(recorded)
    say(shown(verdict, recorded.run))
    return recorded, verdict


def _again(asked: argparse.Namespace, seed: int) -> str:
    """Return the command for one of the requested runs, without its output options."""
    words = [
        "--seed",
        seed,
        "--seconds",
        f"{asked.seconds:g}",
        "--nemesis",
        asked.nemesis,
        "--workload",
        asked.workload,
    ]
    words += ["--nodes", asked.nodes, "--rate", f"{asked.rate:g}", "--operations", asked.operations]
    words += [word for setting in asked.set for word in ("--set", setting)]
    words += ["--mutant", asked.mutant] if asked.mutant else []
    words += ["--security", asked.security] if asked.security else []
    words += ["--racks", asked.racks] if asked.racks else []
    words += ["--replay", asked.replay.name] if asked.replay is not None else []
    return f"./dev chaos run {shlex.join(map(str, words))}"


def _plan(asked: argparse.Namespace) -> int:
    for step in schedule_of(asked.seed, asked.seconds, asked.nemesis):
        say(str(step))
    return EXIT_HELD


def _nemeses(_: argparse.Namespace) -> int:
    for name, nemesis in NEMESES.items():
        say(f"{name:<12} {nemesis.what}")
    say(f"{MIXED:<12} all of them by weight, slow links over others now and then")
    return EXIT_HELD


def _schedule(asked: argparse.Namespace, seed: int) -> list[Step]:
    if asked.replay is None:
        return schedule_of(seed, asked.seconds, asked.nemesis)
    return steps_of(read_history(asked.replay).run["schedule"])


def _check_nodes(steps: Sequence[Step], nodes: int, racks: int) -> None:
    """Raise :class:`CommandFailed` for acts that need more nodes or other racks."""
    acts = {step.act for step in steps}
    if "drain" in acts and nodes < DRAINABLE:
        raise CommandFailed(
            f"--nodes: expected {DRAINABLE} or more for a drain, one more than there are replicas, found {nodes}"
        )
    if ("kill-rack" in acts or racks) and not RACKS_MIN <= racks <= nodes:
        raise CommandFailed(
            f"--racks: expected {RACKS_MIN} (one for each replica) to {nodes} (the nodes), found {racks or 'none'}"
        )


@contextmanager
def _log_beside(history: Path) -> Iterator[None]:
    """Send the clients' own logging to a file, away from the progress display."""
    handler = logging.FileHandler(history.with_suffix(".log"), encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def _remove(directory: Path) -> None:
    """Remove the files of a run that held, except its history."""
    shutil.rmtree(directory)
