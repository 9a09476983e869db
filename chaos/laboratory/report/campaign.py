"""Many runs, one after the other, each in its own process: if one fails, hangs or dies, the others still run.

A campaign's directory holds, for each run, its history, its output (``.out``), its clients' log (``.log``) and its
report; and the table of all of them as ``campaign.html``, ``campaign.md`` and ``campaign.json``, rewritten after every
run, so that an interrupted campaign has one too.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tidelog.chaos.laboratory.judge.run_summary import RunSummary
from tidelog.chaos.laboratory.report.report_files import reported, write_summary
from tidelog.cli.failure import CommandFailed

RUNS_MAX: Final = 10_000
OVERHEAD_S: Final = 30.0
"""A run's time beyond its faults, until one has been measured."""
MARGIN_S: Final = 900.0
"""A run is ended this long after the end of its faults: start, waits, reading and judging take less."""
INTERRUPT_S: Final = 60.0
"""How long a run that is asked to end may take to stop its processes; then it is killed, and they with it."""
PROGRESS_S: Final = 20.0
NAME: Final = "campaign"
PROGRAM: Final = (sys.executable, "-P", "-m", "tidelog.chaos.laboratory")
_LOOK_S: Final = 0.5
_TEXT_MAX: Final = 300

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Planned:
    """One run of a campaign: ``options`` are those of ``./dev chaos run`` except its seed and workload."""

    seed: int
    workload: str
    seconds: float
    options: tuple[str, ...] = ()

    def command(self, directory: Path, name: str) -> list[str]:
        """Return the arguments of the run."""
        asked = ["run", "--seed", str(self.seed), "--workload", self.workload, "--seconds", f"{self.seconds:g}"]
        return [*asked, *self.options, "--dir", str(directory), "--name", name]


def planned(seeds: Sequence[int], workloads: Sequence[str], seconds: float, options: Sequence[str]) -> list[Planned]:
    """Return a run for each seed, over the workloads in turn."""
    if len(seeds) > RUNS_MAX:
        raise CommandFailed(f"expected at most {RUNS_MAX} runs, found {len(seeds)}")
    return [
        Planned(seed, workloads[index % len(workloads)], seconds, tuple(options)) for index, seed in enumerate(seeds)
    ]


class Campaign:
    """Runs in ``directory``, which must have none of an earlier campaign. ``asked`` is the command, for the summary;
    ``program`` does a run, with the arguments of :meth:`Planned.command`."""

    def __init__(
        self,
        runs: Sequence[Planned],
        directory: Path,
        asked: str,
        say: Say,
        *,
        program: Sequence[str] = PROGRAM,
        margin_s: float = MARGIN_S,
    ) -> None:
        self.done: list[RunSummary] = []
        self._runs = runs
        self._directory = directory
        self._asked = asked
        self._say = say
        self._program = program
        self._margin_s = margin_s
        self._overhead_s = OVERHEAD_S
        if earlier := sorted(directory.glob("*.jsonl")):
            raise CommandFailed(f"{directory} holds {earlier[0].name} already; name a directory without histories")

    def run(self) -> list[RunSummary]:
        """Do all runs; return the outcome of each. An interrupt ends the current run, and propagates. Raises
        :class:`CommandFailed` if the first one does not even start: then none will."""
        began = time.monotonic()
        for index, planned_run in enumerate(self._runs):
            self._say(
                f"[{index + 1}/{len(self._runs)}] seed {planned_run.seed}, {planned_run.workload}, "
                f"{planned_run.seconds:g} s; {self._left(index)}"
            )
            before = time.monotonic()
            self.done.append(self._one(index, planned_run))
            if index == 0 and (self.done[0].trouble and not self.done[0].began):
                raise CommandFailed(f"the first run was refused: {self.done.pop().trouble}")
            took_s = time.monotonic() - before
            self._overhead_s += (took_s - planned_run.seconds - self._overhead_s) / (index + 1)
            self._say(f"  {_outcome(self.done[-1])}; took {took_s:.0f} s")
            write_summary(self.done, self._directory, NAME, self._asked)
        self._say(f"{len(self.done)} runs in {(time.monotonic() - began) / 60:.1f} min")
        return self.done

    def _left(self, index: int) -> str:
        """Estimate how long the remaining runs will take, from the finished ones."""
        left_s = sum(max(0.0, run.seconds + self._overhead_s) for run in self._runs[index:])
        return f"about {left_s / 60:.0f} min left, until {time.strftime('%H:%M', time.localtime(time.time() + left_s))}"

    def _one(self, index: int, run: Planned) -> RunSummary:
        name = f"{index + 1:03d}-{run.workload.replace(',', '+')}-{run.seed}"
        history = self._directory / f"{name}.jsonl"
        trouble = self._perform(index, run, name)
        made = reported(history) if history.exists() else RunSummary(history.name, run.seed, run.workload)
        if trouble:
            made.trouble, made.held = trouble, False
        if made.trouble:
            made.seed, made.workload = run.seed, run.workload
            made.again = made.again or f"./dev chaos {' '.join(run.command(self._directory, name)[:-4])}"
        return made

    def _perform(self, index: int, run: Planned, name: str) -> str:
        """Do a run; return what prevented it, empty if it was done, whatever its verdict."""
        command = [sys.executable, "-P", "-m", "tidelog.chaos.laboratory.processes.parent_death", str(os.getpid())]
        command += [*self._program, *run.command(self._directory, name)]
        with ExitStack() as ends:
            out = ends.enter_context((self._directory / f"{name}.out").open("w", encoding="utf-8"))
            process = ends.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                 start_new_session=True)
            )  # fmt: skip
            ends.callback(_end, process)
            assert process.stdout is not None
            last = self._follow(index, process.stdout, out, time.monotonic() + run.seconds + self._margin_s)
            if last is None:
                return f"not over {self._margin_s:g} s after the end of its faults"
            code = process.wait()
        if code in (0, 1):
            return ""
        return last[:_TEXT_MAX] if code > 0 else f"ended by signal {-code}"

    def _follow(self, index: int, said: IO[bytes], out: IO[str], deadline: float) -> str | None:
        """Store a run's output, and show some of it; return its last line, or ``None`` if it takes too long."""
        shown = time.monotonic()
        last, rest = "", b""
        with selectors.DefaultSelector() as selector:
            selector.register(said, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                if not selector.select(_LOOK_S):
                    continue
                piece = os.read(said.fileno(), 1 << 16)
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    last = line.decode(errors="replace").strip() or last
                    out.write(line.decode(errors="replace") + "\n")
                out.flush()
                if not piece:
                    return rest.decode(errors="replace").strip() or last
                if time.monotonic() - shown > PROGRESS_S:
                    shown = time.monotonic()
                    self._say(f"  [{index + 1}/{len(self._runs)}] {last}")
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a run to end (not by SIGINT, which is ignored below a shell's background job); kill it if it does not. Its
    nodes die with it."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.communicate(timeout=INTERRUPT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _outcome(run: RunSummary) -> str:
    if run.trouble:
        return f"NOT DONE: {run.trouble}"
    verdict = "held" if run.held else f"BROKEN: {run.examples[0]}"
    return f"{verdict}: {run.faults} faults, {run.acknowledged} acknowledged, {run.unknown} unknown, {run.reads} read"
