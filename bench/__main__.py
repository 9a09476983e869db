"""``./dev bench``: measures, records the history, and with ``--check`` checks the bounds."""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tidelog.bench import runner
from tidelog.bench.figures import load_figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Return exit code 0; 1 if ``--check`` found a figure below its bound or a benchmark failed; 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="./dev bench", description="Measure, append to bench/history/, print figure against bound."
    )
    parser.add_argument(
        "--check", action="store_true", help="run each five times; exit 1 if a median is below its bound"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a benchmark or a figure; repeatable"
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each (1; with --check, as its target says)")
    parser.add_argument("--no-history", action="store_true", help="do not append to the history")
    parser.add_argument("--list", action="store_true", help="list benchmarks and figures")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the nodes on the way out
    figures = load_figures()
    if options.list:
        for figure in figures.values():
            print(f"{figure.benchmark:<20} {figure.name:<26} {figure.unit:<10} {figure.workload}")
        return 0
    try:
        wanted = runner.chosen(figures, options.only)
    except KeyError as unknown:
        parser.error(f"expected a benchmark or a figure (--list names them), found {unknown.args[0]!r}")
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"expected at least 1 repeat, found {options.repeats}")
    command = " ".join(["./dev bench", *(sys.argv[1:] if arguments is None else arguments)])
    outcomes: list[runner.Outcome] = []
    failed: list[str] = []
    root = Path(tempfile.mkdtemp(prefix="tidelog-bench-"))
    numbers = itertools.count(1)

    def work_in() -> Path:
        for old in root.iterdir():
            shutil.rmtree(old)
        made = root / str(next(numbers))
        made.mkdir()
        return made

    try:
        for benchmark, its_figures in wanted.items():
            repeats = options.repeats or (max(figure.repeats for figure in its_figures) if options.check else 1)
            try:
                found = runner.measure(benchmark, its_figures, repeats, work_in)
            except Exception as trouble:
                print(f"failed: {type(trouble).__name__}: {trouble}", file=sys.stderr, flush=True)
                failed.append(benchmark)
                continue
            outcomes += found
            if not options.no_history:
                runner.keep(found, command)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print("\n".join(runner.report(outcomes, check=options.check)))
    below = [outcome.figure.name for outcome in outcomes if not outcome.holds] if options.check else []
    if below:
        print(f"below the bound: {', '.join(below)}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if below or failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
