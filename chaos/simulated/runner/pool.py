"""Worker processes: each runs one seed at a time, and is killed if it does not return.

We manage our own processes rather than use ``multiprocessing``: this gives a hash seed per pool, a mutant installed
before anything is imported, and a bound on each run that holds even for code that never yields.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

from tidelog.chaos.simulated.mutants.mutant import Mutant
from tidelog.chaos.simulated.runner.worker import outcome_of
from tidelog.chaos.simulated.world.scenario import Outcome

RUN_S_MAX = 60.0
"""Wall-clock bound of one run, by default."""
RUNS_PER_WORKER_MAX = 2_000
"""After this many runs a fresh process replaces the worker, so that leftovers of runs do not accumulate."""
TICK_S = 0.25
_START_S_MAX = 60.0
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


class Job(NamedTuple):
    """One run to do."""

    scenario: str
    seed: int
    keep: tuple[int, ...] | None = None
    """Indexes of the faults in the schedule to keep; ``None``: all."""
    trace_path: str = ""
    """File that the trace is written to; empty: no trace."""


class Finished(NamedTuple):
    """One run that finished, or was abandoned."""

    job: Job
    outcome: Outcome
    never_loaded: Sequence[str] = ()
    """Modules of the mutant that the process had still not imported after the run."""
    timed_out: bool = False
    """Whether the run was killed at its wall-clock bound: the outcome then says no more than that."""


class WorkerRefused(Exception):
    """A worker could not start: the scenario cannot be imported, or the mutant does not fit."""


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    def __init__(self, settings: str, hash_seed: str) -> None:
        self.stderr: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115
        fcntl.fcntl(self.stderr, fcntl.F_SETFL, os.O_APPEND)  # the worker truncates the file before each run
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tidelog.chaos.simulated.runner.worker", settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self.ready = False
        self.job: Job | None = None
        self.deadline = time.monotonic() + _START_S_MAX
        self.runs = 0
        self.buffer = b""

    def give(self, job: Job, run_s_max: float) -> None:
        assert self.process.stdin is not None
        self.job = job
        self.runs += 1
        self.deadline = time.monotonic() + run_s_max
        try:
            self.process.stdin.write(json.dumps(job._asdict()).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its output will show that it has ended

    def read(self) -> list[dict[str, Any]] | None:
        """Return the messages that arrived; ``None`` when the process has closed its end."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def last_words(self, lines_max: int = 8) -> str:
        """Return the end of what the process wrote to stderr."""
        size = os.fstat(self.stderr.fileno()).st_size
        text = os.pread(self.stderr.fileno(), 8_192, max(0, size - 8_192)).decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-lines_max:])

    def where_it_hangs(self) -> str:
        """Ask the process for its stack and return the innermost frames."""
        size = os.fstat(self.stderr.fileno()).st_size
        self.process.send_signal(signal.SIGUSR1)
        until = time.monotonic() + 1.0
        while os.fstat(self.stderr.fileno()).st_size == size and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.01)
        text = os.pread(self.stderr.fileno(), 8_192, size).decode(errors="replace")
        frames = [f"{Path(file).name}:{line} {name}" for file, line, name in _FRAME.findall(text)]
        return " < ".join(frames[:4])

    def end(self) -> int:
        """Kill the process and wait for it; return its exit code."""
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        self.stderr.close()
        return code


class Pool:
    """Runs jobs on worker processes. A context manager: leaving it kills the jobs that still run."""

    def __init__(
        self,
        scenarios: Sequence[str],
        workers: int,
        *,
        file: Path | None = None,
        mutant: Mutant | None = None,
        hash_seed: str = "random",
        run_s_max: float = RUN_S_MAX,
    ) -> None:
        """Make a pool; processes start with the first jobs.

        Args:
            scenarios: Names of those that jobs may ask for.
            workers: The maximum number of processes.
            file: A user's file of scenarios.
            mutant: Installed in each process.
            hash_seed: ``PYTHONHASHSEED`` of each process.
            run_s_max: Wall-clock bound of a run; beyond it the process is killed and the run counts as a violation.
        """
        self._settings = json.dumps(
            {
                "scenarios": list(scenarios),
                "file": str(file.resolve()) if file else "",
                "mutant": dataclasses.asdict(mutant) if mutant else None,
            }
        )
        self._count = max(1, workers)
        self._hash_seed = hash_seed
        self._run_s_max = run_s_max
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill every worker."""
        while self._workers:
            self._end(self._workers[-1])
        self._selector.close()

    def start(self) -> None:
        """Start every worker now and wait until each has imported its scenarios; otherwise the first jobs start them.

        Raises :class:`WorkerRefused` if one cannot start.
        """
        while len(self._workers) < self._count:
            self._start()
        while not all(worker.ready for worker in self._workers):
            self._collect()

    def run(self, jobs: Iterable[Job]) -> Iterator[Finished | None]:
        """Yield each job's result as it arrives, in no particular order; ``None`` at least every second or so in
        between.

        The next job is taken from ``jobs`` when a worker is free, so that a generator can end the campaign. Raises
        :class:`WorkerRefused` if a worker cannot start.
        """
        assert not any(worker.job for worker in self._workers), "one run() at a time"
        source = iter(jobs)
        exhausted = False
        while not exhausted or any(worker.job for worker in self._workers):
            for worker in list(self._workers):
                if worker.runs >= RUNS_PER_WORKER_MAX and worker.job is None:
                    self._end(worker)
                elif not exhausted and worker.ready and worker.job is None:
                    job = next(source, None)
                    if job is None:
                        exhausted = True
                    else:
                        worker.give(job, self._run_s_max)
            while not exhausted and len(self._workers) < self._count:
                self._start()
            if exhausted and not any(worker.job for worker in self._workers):
                return
            finished = self._collect()
            yield from finished
            if not finished:
                yield None

    def _start(self) -> None:
        worker = _Worker(self._settings, self._hash_seed)
        assert worker.process.stdout is not None
        self._selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        self._workers.append(worker)

    def _end(self, worker: _Worker) -> int:
        assert worker.process.stdout is not None
        self._selector.unregister(worker.process.stdout)
        self._workers.remove(worker)
        return worker.end()

    def _collect(self) -> list[Finished]:
        finished: list[Finished] = []
        for key, _ in self._selector.select(TICK_S):
            worker: _Worker = key.data
            messages = worker.read()
            if messages is None:
                finished += self._ended(worker)
                continue
            for message in messages:
                if "refused" in message:
                    raise WorkerRefused(message["refused"])
                if "ready" in message:
                    worker.ready = True
                elif worker.job is not None:
                    job, worker.job = worker.job, None
                    outcome = outcome_of(job.scenario, job.seed, message)
                    finished.append(Finished(job, outcome, message["never_loaded"]))
        now = time.monotonic()
        for worker in list(self._workers):
            if now < worker.deadline:
                continue
            if not worker.ready:
                raise WorkerRefused(f"a worker did not start within {_START_S_MAX:g} s\n{worker.last_words()}")
            if worker.job is not None:
                where = worker.where_it_hangs()
                text = f"did not end within {self._run_s_max:g} s of wall clock" + (f", in {where}" if where else "")
                finished.append(_given_up(worker.job, text)._replace(timed_out=True))
                self._end(worker)
        return finished

    def _ended(self, worker: _Worker) -> list[Finished]:
        words = worker.last_words()
        job, was_ready = worker.job, worker.ready
        code = self._end(worker)
        text = f"the process that ran it ended with code {code}" + (f"\n{words}" if words else "")
        if not was_ready:
            raise WorkerRefused(text.replace("that ran it ", ""))
        return [] if job is None else [_given_up(job, text)]


def _given_up(job: Job, violation: str) -> Finished:
    return Finished(job, Outcome(job.scenario, job.seed, [violation], Counter(), Counter()))
