"""``./dev chaos link``: promotes a link under load, while its source's leaders and the link itself are killed."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidelog.chaos.laboratory.linked_run import linked_run
from tidelog.chaos.laboratory.options import seeds_of
from tidelog.chaos.laboratory.processes.parent_death import check_platform
from tidelog.cli.failure import CommandFailed

SHOWN: Final = 10

Say = Callable[[str], None]


def add_link(commands: argparse._SubParsersAction[argparse.ArgumentParser], say: Say) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("link", help="promote a link under load while killing leaders and the link")
    parser.add_argument("--seed", default="1", help="a seed, or first-last (default 1)")
    parser.set_defaults(run=lambda asked: _link(asked, say))


def _link(asked: argparse.Namespace, say: Say) -> int:
    check_platform()
    broken: list[int] = []
    left: list[int] = []
    seeds = seeds_of(asked.seed)
    for seed in seeds:
        directory = Path(tempfile.mkdtemp(prefix="tidelog-link-"))
        try:
            run = linked_run(directory, seed)
        except CommandFailed as failed:
            left.append(seed)
            say(f"seed {seed} could not be run to its end: {failed}; what the nodes left: {directory}")
            continue
        faults = run.faults()
        kills = f"{len(run.kills)} kills ({'; '.join(run.kills)})"
        say(
            f"seed {seed}: {kills}; {len(run.acknowledged)} records acknowledged at the source, {len(run.unknown)} "
            f"unknown, {len(run.target)} at the target, promoted at {run.promoted}"
        )
        for fault in faults[:SHOWN]:
            say(f"  {fault}")
        if faults:
            broken.append(seed)
            say(f"what the nodes left: {directory}")
        else:
            shutil.rmtree(directory)
    held = len(seeds) - len(broken) - len(left)
    say(f"{held} of {len(seeds)} runs held; broken: {broken or 'none'}; not run to their end: {left or 'none'}")
    return 1 if broken else 2 if left else 0
