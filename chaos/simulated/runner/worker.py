"""A process that runs seeds, one after the other, as instructed.

:mod:`tidelog.chaos.simulated.runner.pool` starts it with one JSON object as its argument; jobs come in and results go
out as one JSON object per line. It exits when its input ends, even in the middle of a run, so that no worker outlives
its campaign. It imports nothing that a mutant may change before the mutant is installed.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import queue
import resource
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from tidelog.chaos.simulated.world.scenario import Fault, Outcome, Scenario, where

MEMORY_BYTES_MAX = 3 * 1024**3
"""A run that needs more fails with MemoryError rather than bring the machine down."""
VIOLATIONS_MAX = 20
_VIOLATION_CHARACTERS_MAX = 4_000


def select(schedule: Sequence[Fault], keep: Sequence[int] | None) -> tuple[Fault, ...]:
    """Return the faults of those indexes, in the schedule's order; all for ``None``.

    Raises ``ValueError`` for an index that the schedule does not have.
    """
    if keep is None:
        return tuple(schedule)
    beyond = sorted({index for index in keep if not 0 <= index < len(schedule)})
    if beyond:
        had = f"0 to {len(schedule) - 1}" if schedule else "none"
        raise ValueError(f"fault {', '.join(map(str, beyond))} is not in the schedule, which has {had}")
    return tuple(schedule[index] for index in sorted(set(keep)))


def run_job(scenario: Scenario, job: dict[str, Any]) -> dict[str, Any]:
    """Run one seed and return its outcome in plain types; an exception raised by the run is its violation."""
    seed, keep, trace_path = job["seed"], job["keep"], job["trace_path"]
    sink: TextIO | None = open(trace_path, "w", encoding="utf-8") if trace_path else None  # noqa: SIM115
    try:
        schedule = None if keep is None else select(scenario.schedule(seed), keep)
        trace = None if sink is None else _writer(sink)
        outcome = scenario.run(seed, schedule, trace=trace)
    except Exception as trouble:
        name = type(trouble).__name__
        outcome = Outcome(scenario.name, seed, violations=[f"run raised {where(trouble)}"], raised=name)
    finally:
        if sink is not None:
            sink.close()
    return {
        "violations": [line[:_VIOLATION_CHARACTERS_MAX] for line in outcome.violations[:VIOLATIONS_MAX]],
        "faults": dict(outcome.faults),
        "events": dict(outcome.events),
        "operations": outcome.operations,
        "virtual_s": outcome.virtual_s,
        "digest": outcome.digest,
        "raised": outcome.raised,
    }


def outcome_of(scenario: str, seed: int, result: dict[str, Any]) -> Outcome:
    """Rebuild an outcome from the result of :func:`run_job`."""
    return Outcome(
        scenario,
        seed,
        result["violations"],
        Counter(result["faults"]),
        Counter(result["events"]),
        result["operations"],
        result["virtual_s"],
        result["digest"],
        result["raised"],
    )


def _writer(sink: TextIO) -> Callable[[str], None]:
    def write(line: str) -> None:
        sink.write(line + "\n")

    return write


def _read_jobs(source: BinaryIO, jobs: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in source:
        jobs.put(json.loads(line))
    os._exit(0)


def main() -> None:
    """Serve jobs until the input ends. Stdout carries results only; anything that code prints goes to stderr."""
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(sys.stdin.buffer, jobs), daemon=True).start()
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, resource.RLIM_INFINITY))
    except (OSError, ValueError):  # a system without that limit, or with a tighter one already
        pass
    logging.getLogger().addHandler(logging.NullHandler())

    def answer(result: dict[str, Any]) -> None:
        results.write(json.dumps(result).encode() + b"\n")
        results.flush()

    scenarios: dict[str, Scenario] = {}
    try:
        finder = None
        if settings["mutant"] is not None:
            from tidelog.chaos.simulated.mutants.hook import install
            from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

            fields = dict(settings["mutant"])
            finder = install(Mutant(**{**fields, "more": tuple(Edit(**edit) for edit in fields["more"])}))
        from tidelog.chaos.simulated.scenarios.registry import Registry

        registry = Registry(Path(settings["file"]) if settings["file"] else None)
        for name in settings["scenarios"]:
            scenarios[name] = registry.get(name)
    except Exception as trouble:
        answer(
            {
                "refused": str(trouble)
                if type(trouble).__module__.startswith("tidelog.chaos.simulated")
                else where(trouble)
            }
        )
        return
    answer({"ready": True})
    while True:
        job = jobs.get()
        try:
            os.ftruncate(2, 0)
        except OSError:  # not a file
            pass
        result = run_job(scenarios[job["scenario"]], job)
        result["never_loaded"] = [] if finder is None else finder.never_loaded
        answer(result)


if __name__ == "__main__":
    main()
