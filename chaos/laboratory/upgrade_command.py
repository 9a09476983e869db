"""``./dev chaos upgrade``: moves a cluster to the current release, back, and there for good, with kills at each
step."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidelog.chaos.laboratory.judge.judgement import shown
from tidelog.chaos.laboratory.options import seeds_of
from tidelog.chaos.laboratory.processes.parent_death import check_platform
from tidelog.chaos.laboratory.upgrade.kills import Kills
from tidelog.chaos.laboratory.upgrade.release import python_of
from tidelog.chaos.laboratory.upgrade.rolling import WORKLOAD, rolled, there_and_back

FIRST_RELEASE: Final = Path("tests/upgrade/tidelog-0.1.0-py3-none-any.whl")

Say = Callable[[str], None]


def add_upgrade(commands: argparse._SubParsersAction[argparse.ArgumentParser], say: Say) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "upgrade", help="upgrade a cluster node by node, go back, finalise; kill -9 at each step"
    )
    parser.add_argument("--seed", default="1", help="a seed, or first-last (default 1)")
    parser.add_argument(
        "--from", dest="release", type=Path, default=FIRST_RELEASE, metavar="RELEASE",
        help=f"a wheel, or the Python of an installed release (default {FIRST_RELEASE})",
    )  # fmt: skip
    parser.add_argument("--dir", type=Path, help="keep histories (and clusters that failed) here")
    parser.set_defaults(run=lambda asked: _upgrade(asked, say))


def _upgrade(asked: argparse.Namespace, say: Say) -> int:
    check_platform()
    root = asked.dir or Path(tempfile.mkdtemp(prefix="tidelog-upgrade-"))
    root.mkdir(parents=True, exist_ok=True)
    broken = []
    with tempfile.TemporaryDirectory(prefix="tidelog-release-") as unpacked:
        old = python_of(asked.release, Path(unpacked))
        seeds = seeds_of(asked.seed)
        for seed in seeds:
            directory, kills = root / f"upgrade-{seed}", Kills(seed)
            directory.mkdir()
            verdict = rolled(directory, old, there_and_back(old, sys.executable, kills), seed)
            say(f"seed {seed}: {kills.count} kills\n{shown(verdict, {'seed': seed, 'workload': WORKLOAD})}")
            if verdict.held:
                shutil.rmtree(directory)
            else:
                broken.append(seed)
                say(f"history, and what the nodes left: {directory}")
    say(f"{len(seeds) - len(broken)} of {len(seeds)} runs held{f'; broken: {broken}' if broken else ''}")
    return 1 if broken else 0
