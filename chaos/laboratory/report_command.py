"""The commands that report: ``report``, ``campaign`` and ``night``."""

from __future__ import annotations

import argparse
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tidelog.chaos.laboratory.faults.nemesis import MIXED
from tidelog.chaos.laboratory.judge.run_summary import RunSummary
from tidelog.chaos.laboratory.links.toxiproxy_build import toxiproxy_server
from tidelog.chaos.laboratory.options import schedule_of, seeds_of, setting_of
from tidelog.chaos.laboratory.processes.parent_death import check_platform
from tidelog.chaos.laboratory.report.campaign import NAME, Campaign, planned
from tidelog.chaos.laboratory.report.report_files import report_beside, write_report, write_summary
from tidelog.chaos.laboratory.report.report_summary import held, objectives, summary_markdown, summary_text
from tidelog.chaos.laboratory.run import SECONDS_MAX
from tidelog.chaos.laboratory.workloads.workloads import WORKLOADS, workloads_named
from tidelog.cli.failure import CommandFailed
from tidelog.testing.secured import KINDS

EXIT_HELD: Final = 0
EXIT_BROKEN: Final = 1
EXIT_SLOW: Final = 3
"""Nothing illegal was found, but recovery missed an objective."""
CAMPAIGN_SEEDS: Final = "1-12"
NIGHT_SEEDS: Final = "1-30"
CAMPAIGN_S: Final = 300.0

Say = Callable[[str], None]
Commands = Any
"""The type that ``add_subparsers`` returns; argparse has no public name for it."""


def add_reports(commands: Commands, say: Say) -> None:
    """Add the commands to a parser."""
    reporting = commands.add_parser("report", help="write a page for a history, or pages and a table for many")
    reporting.add_argument("history", type=Path, nargs="+", help="a history, or a directory of them")
    reporting.add_argument(
        "--out",
        type=Path,
        metavar="FILE.html",
        help="where to write the page or table (default: beside the first history)",
    )
    reporting.set_defaults(run=lambda asked: _report(asked, say))
    for name, seeds, what in (
        ("campaign", CAMPAIGN_SEEDS, "run many times in a row, cycling through workloads"),
        ("night", NIGHT_SEEDS, f"run a campaign of 30 runs of {CAMPAIGN_S:g} s"),
    ):
        parser = commands.add_parser(name, help=what)
        parser.add_argument("--seeds", default=seeds, help=f"first-last, one run each (default {seeds})")
        parser.add_argument(
            "--seconds", type=float, default=CAMPAIGN_S, help=f"seconds of faults in each run (default {CAMPAIGN_S:g})"
        )
        parser.add_argument("--nemesis", default=MIXED, help="as for run (default mixed)")
        parser.add_argument(
            "--workload",
            action="append",
            metavar="NAMES",
            help=f"repeatable: runs cycle through those given (default: {', '.join(WORKLOADS)}); "
            "workloads separated by commas run side by side",
        )
        parser.add_argument("--nodes", type=int, default=None)
        parser.add_argument("--rate", type=float, default=None, help="records per second")
        parser.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting for every node; repeatable"
        )
        parser.add_argument("--security", choices=tuple(KINDS), default="", help="as for run")
        parser.add_argument("--dir", type=Path, help="keep histories and reports here")
        parser.set_defaults(run=lambda asked, name=name: _campaign(asked, name, say))


def _report(asked: argparse.Namespace, say: Say) -> int:
    histories = [found for path in asked.history for found in _histories(path)]
    if len({path.stem for path in histories}) < len(histories):
        raise CommandFailed("report: expected histories of different names, found one twice; their pages lie together")
    out = asked.out or (report_beside(histories[0]) if len(histories) == 1 else histories[0].parent / "report.html")
    if out.suffix != ".html":
        raise CommandFailed(f"--out: expected a file that ends in .html, found {out}")
    if len(histories) == 1:
        runs = [write_report(histories[0], out)]
    else:
        if out.stem in {path.stem for path in histories}:
            raise CommandFailed(f"--out: {out.name} is the page of a history; name another file")
        runs = [write_report(path, report_beside(out.parent / path.name)) for path in histories]
        write_summary(runs, out.parent, out.stem, "")
    say(summary_text(runs))
    say(str(out))
    return _code(runs)


def _histories(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    if not (found := sorted(path.glob("*.jsonl"))):
        raise CommandFailed(f"expected a history or a directory of them, found no *.jsonl in {path}")
    return found


def _campaign(asked: argparse.Namespace, name: str, say: Say) -> int:
    check_platform()
    seeds = seeds_of(asked.seeds, "--seeds")
    if not 0 < asked.seconds <= SECONDS_MAX:
        raise CommandFailed(f"--seconds: expected more than 0 and at most {SECONDS_MAX:g}, found {asked.seconds:g}")
    for setting in asked.set:
        setting_of(setting)
    workloads = [",".join(workloads_named(text)) for text in asked.workload or WORKLOADS]
    for seed in seeds:
        schedule_of(seed, asked.seconds, asked.nemesis)
    options = ["--nemesis", asked.nemesis]
    for option in ("nodes", "rate"):
        if (value := getattr(asked, option)) is not None:
            options += [f"--{option}", f"{value:g}"]
    options += [word for setting in asked.set for word in ("--set", setting)]
    options += ["--security", asked.security] if asked.security else []
    toxiproxy_server(say)
    directory = asked.dir or Path(tempfile.mkdtemp(prefix="tidelog-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    words = ["--seeds", asked.seeds, "--seconds", f"{asked.seconds:g}", *options]
    words += [word for text in asked.workload or () for word in ("--workload", text)]
    command = f"./dev chaos {name} {shlex.join(words)}"
    runs = planned(seeds, workloads, asked.seconds, options)
    say(f"{len(runs)} runs of {asked.seconds:g} s, in {directory}: {', '.join(workloads)} in turn")
    campaign = Campaign(runs, directory, command, say)
    try:
        campaign.run()
    finally:
        if campaign.done:
            paths = write_summary(campaign.done, directory, NAME, command)
            say(summary_markdown(campaign.done, command))
            say(summary_text(campaign.done))
            say("\n".join(map(str, paths)))
    return _code(campaign.done)


def _code(runs: Sequence[RunSummary]) -> int:
    if not held(runs):
        return EXIT_BROKEN
    return EXIT_HELD if all(result.held for result in objectives(runs)) else EXIT_SLOW
