"""The commands of ``./dev``: what each does, and which set-up steps it needs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from dev import checks, environment, preflight, quick, spark_matrix, wheel
from dev.environment import StepFailed, variables, venv_bin
from dev.preflight import ROOT

TESTS_FAILED: Final = 1
"""pytest's exit code."""
ALONE_MAX: Final = 3
"""With more failed tests than this, none is run again: something is wrong."""
ALONE_TIMES: Final = 3


def _start(*command: str, pass_fds: Sequence[int] = ()) -> int:
    """Run in the foreground. An interrupt at the terminal reaches the program by itself; SIGTERM is passed on."""
    process = subprocess.Popen(command, env=variables(), pass_fds=pass_fds)
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue
        return 128 - code if code < 0 else code


def _python(*arguments: str) -> tuple[str, ...]:
    # -P: otherwise, from the repository root, the folders would also be importable by their bare names.
    return (venv_bin("python"), "-P", *arguments)


def _demo(arguments: Sequence[str]) -> int:
    command = (venv_bin("tidelog"), "demo", "--out", str(ROOT / "build" / "demo"), *arguments)
    if _demo_part(arguments) != "all" or environment.is_ready(environment.DEMO):
        return _start(*command)
    # The log half begins now, while Spark is installed. The demo reads the outcome from the pipe.
    reading, writing = os.pipe()
    tools = [sys.executable, "-B", str(ROOT / "tools"), "setup", "demo"]
    behind = subprocess.Popen(tools, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing)
    os.setpriority(os.PRIO_PROCESS, behind.pid, 10)
    os.close(writing)
    print("set-up  Spark and what else the second half needs: continues during the first half", flush=True)
    try:
        return _start(*command, "--installing", str(reading), pass_fds=[reading])
    finally:
        behind.terminate()
        behind.wait()
        os.close(reading)


def _demo_part(arguments: Sequence[str]) -> str:
    if "--help" in arguments:
        return "log"
    parts = [given.removeprefix("--part=") for given in arguments if given.startswith("--part=")]
    return [*parts, *(after for name, after in pairwise(arguments) if name == "--part"), "all"][0]


def _demo_steps(arguments: Sequence[str]) -> Sequence[str]:
    """Return the set-up steps. Spark is a large download: only a run of its half alone waits for it."""
    return environment.DEMO if _demo_part(arguments) == "spark" else environment.FLIGHTS


def _example(arguments: Sequence[str]) -> int:
    return _start(*_python("-m", "tidelog.demo.examples.command", *arguments))


def _test(arguments: Sequence[str]) -> int:
    os.chdir(ROOT)
    given = [argument for argument in arguments if argument not in ("--quick", "--durations-file")]
    # A run with chosen tests, or with -s or --pdb, uses one process unless it has its own -n.
    workers = ["-n", str(quick.WORKERS)] if {"-q", "-v", "-x"}.issuperset(given) else []
    if "--quick" in arguments:
        given = [*quick.choose(), *(given or ["-q"]), "--no-loadscope-reorder"]
    given += workers
    is_whole = bool(workers) and not {"--quick", "-x"}.intersection(arguments)
    report = environment.CACHE / "tests.xml"
    report.unlink(missing_ok=True)
    if is_whole or "--durations-file" in arguments:
        given = [f"--junit-xml={report}", "-o", "junit_family=xunit1", *given]
    if is_whole:  # so that pytest's list of failed tests is from this run
        given = ["--cache-clear", *given]
    code = _start(*_python("-m", "pytest", *given))
    if "--durations-file" in arguments and report.exists():
        quick.keep_durations(report)
    return _alone(report) if code == TESTS_FAILED and is_whole else code


def _alone(report: Path) -> int:
    """Rerun a few failed tests alone: beside 9,000 others on a busy machine, a cluster may be too slow for its test.
    Those that pass ``ALONE_TIMES`` times are reported as unstable, not as failures."""
    failed = list(json.loads((ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed").read_text()))
    if len(failed) > ALONE_MAX:
        return TESTS_FAILED
    print(f"\n{len(failed)} failed: {ALONE_TIMES} times more, alone", flush=True)
    for _ in range(ALONE_TIMES):
        if code := _start(*_python("-m", "pytest", "-q", *failed)):
            return code
    for name in failed:
        print(f"UNSTABLE  {name} failed beside the others (see above) and passed {ALONE_TIMES} times alone", flush=True)
    print(f"{quick.passed(report) + len(failed)} passed, {len(failed)} of them unstable", flush=True)
    return 0


def _check(arguments: Sequence[str]) -> int:
    failed = checks.run_all()
    if "--no-tests" not in arguments and _test(["-q"]) != 0:
        failed.append("tests")
    if failed:
        print(f"FAIL  {', '.join(failed)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def _bench(arguments: Sequence[str]) -> int:
    os.chdir(ROOT)
    return _start(*_python("-m", "tidelog.bench", *arguments))


def _beside_kafka(arguments: Sequence[str]) -> int:
    return _start(*_python("-m", "tidelog.bench.kafka_side", *arguments))


def _ecosystem(arguments: Sequence[str]) -> int:
    return _start(*_python("-m", "tidelog.bench.ecosystem", *arguments))


def _sim(arguments: Sequence[str]) -> int:
    return _start(*_python("-m", "tidelog.chaos.simulated", *arguments))


def _chaos(arguments: Sequence[str]) -> int:
    return _start(*_python("-m", "tidelog.chaos.laboratory", *arguments))


def _chaos_steps(arguments: Sequence[str]) -> Sequence[str]:
    """Return the set-up steps. Kafka's clients and Spark are large downloads: other workloads, and commands that run
    nothing, skip them."""
    named = any(name in argument for argument in arguments for name in ("kafka", "spark"))
    turns = bool({"campaign", "night"}.intersection(arguments)) and not any("--workload" in word for word in arguments)
    return environment.DEV if (named or turns) and "--help" not in arguments else environment.CHAOS


def _kills(arguments: Sequence[str]) -> int:
    return _start(*_python("-m", "tidelog.chaos.spark_kills.command", *arguments))


def _spark_cluster(arguments: Sequence[str]) -> int:
    os.chdir(ROOT)
    return _start(*_python("-m", "tidelog.chaos.spark_kills.suite", *arguments))


def _fuzz(arguments: Sequence[str]) -> int:
    return _start(*_python("-m", "tidelog.chaos.fuzz", *arguments))


def _format(arguments: Sequence[str]) -> int:
    os.chdir(ROOT)
    fixed = _start(venv_bin("ruff"), "check", "--fix", *(arguments or ["."]))
    return _start(venv_bin("ruff"), "format", *(arguments or ["."])) or fixed


def _generate(_: Sequence[str]) -> int:
    if (trouble := checks.generate(ROOT / "src")) is not None:
        print(trouble, file=sys.stderr)
        return 1
    return 0


def _setup(arguments: Sequence[str]) -> int:
    what = "what the demo needs" if arguments else "everything"
    print(f"Ready: {environment.VENV.relative_to(ROOT)} has {what}. `./dev clean` removes it.")
    return 0


def _wheel(_: Sequence[str]) -> int:
    print(f"Ready: {wheel.build_and_test().relative_to(ROOT)}")
    return 0


def _run(arguments: Sequence[str]) -> int:
    if not arguments:
        print("usage: ./dev run COMMAND [ARGUMENT …]", file=sys.stderr)
        return 2
    found = shutil.which(arguments[0], path=variables()["PATH"])
    if found is None:
        print(f"{arguments[0]}: no such command in the private environment or on PATH", file=sys.stderr)
        return 127
    return _start(found, *arguments[1:])


def _shell(_: Sequence[str]) -> int:
    print("A shell in the private environment; `exit` leaves it.")
    return _start(os.environ.get("SHELL", "/bin/sh"))


def _clean(_: Sequence[str]) -> int:
    names = (".venv", ".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache")
    for path in [ROOT / name for name in (*names, "build", "dist", "src/tidelog.egg-info")]:
        if path.exists():
            shutil.rmtree(path)
            print(f"removed {path.relative_to(ROOT)}")
    for path in [*ROOT.glob("*/**/__pycache__"), *ROOT.glob("__pycache__")]:
        shutil.rmtree(path, ignore_errors=True)
    return 0


class Command(NamedTuple):
    usage: str
    summary: str
    run: Callable[[Sequence[str]], int]
    steps: Sequence[str] | Callable[[Sequence[str]], Sequence[str]] | None
    """Set-up that must be done first, or a function of the arguments that returns it; ``None``: not even the machine
    checks."""


COMMANDS = {
    "demo": Command(
        "demo [--part log]", "336,776 flights, kill -9 of nodes and of Spark: is everything there?", _demo, _demo_steps
    ),
    "example": Command(
        "example NAME", "one of examples/ under kill -9: flights, sqlite, orders", _example, environment.FLIGHTS
    ),
    "test": Command(
        "test [--quick]", "the tests, or what the change touches (pytest's options)", _test, environment.DEV
    ),
    "check": Command("check", "lint, types, layers, generated code, then the tests", _check, environment.DEV),
    "bench": Command("bench [--check]", "measure; --check: against bench/targets.toml", _bench, environment.DEV),
    "beside-kafka": Command(
        "beside-kafka", "measure Tidelog and Apache Kafka in turns (Java, Maven)", _beside_kafka, environment.DEV
    ),
    "ecosystem": Command(
        "ecosystem NAME …", "foreign programs against Tidelog, from Go, Spark …: --help", _ecosystem, environment.DEV
    ),
    "sim": Command("sim [--seeds N]", "the cluster in simulated time under seeded faults", _sim, environment.RUN),
    "chaos": Command("chaos run [--seed N]", "real processes behind proxies under faults", _chaos, _chaos_steps),
    "fuzz": Command("fuzz kafka", "hostile frames or crowds at a Kafka port; damaged logins", _fuzz, environment.DEV),
    "kills": Command("kills [CASE …]", "Spark under kill -9: is each row there once?", _kills, environment.DEV),
    "spark-cluster": Command(
        "spark-cluster [TEST …]",
        "the connector's tests on a standalone cluster of Spark",
        _spark_cluster,
        environment.DEV,
    ),
    "spark-matrix": Command(
        "spark-matrix [RELEASE …]", "the connector's tests on several releases of Spark", spark_matrix.run, ()
    ),
    "run": Command("run COMMAND …", "a command in the private environment: ./dev run tidelog", _run, environment.RUN),
    "shell": Command("shell", "a shell in the private environment", _shell, environment.RUN),
    "format": Command("format", "sort imports, format the code", _format, environment.DEV),
    "generate": Command(
        "generate", "generate proto/v1 from the types of calls, and the blocking clients", _generate, environment.DEV
    ),
    "setup": Command(
        "setup [demo]",
        "make the private environment, for everything or the demo; run nothing",
        _setup,
        lambda arguments: environment.DEMO if "demo" in arguments else environment.DEV,
    ),
    "wheel": Command("wheel", "this machine's wheel into dist/, tested from the wheel", _wheel, environment.WHEEL),
    "clean": Command("clean", "remove the private environment and all caches", _clean, None),
}


OWN_OPTIONS: Mapping[str, Sequence[str]] = {
    "check": ["--no-tests"], "shell": [], "generate": [], "setup": ["demo"], "wheel": [], "clean": [],
}  # fmt: skip
"""Arguments of the commands that pass nothing on. Anything else is refused before they act: `clean --help` must not
clean."""


def _list() -> None:
    print("usage: ./dev COMMAND [ARGUMENT …]\n")
    for command in COMMANDS.values():
        print(f"  {command.usage:<18} {command.summary}")
    print("\nEach first sets up what it needs in .venv (no root); `tidelog` itself: ./dev run tidelog --help")


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code (2: usage, or the machine lacks something; 130: interrupted)."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _list()
        return 0
    command = COMMANDS.get(arguments[0])
    if command is None:
        print(f"./dev: no command {arguments[0]!r}. There are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    if (known := OWN_OPTIONS.get(arguments[0])) is not None:
        if set(arguments[1:]) & {"-h", "--help"}:
            print(f"usage: ./dev {command.usage}\n\n{command.summary}")
            return 0
        if unknown := [given for given in arguments[1:] if given not in known]:
            expected = " or ".join(("nothing", *known))
            print(f"./dev {arguments[0]}: expected {expected} after it, found {unknown[0]!r}", file=sys.stderr)
            return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if command.steps is not None:
            if failed := preflight.failures():
                print("\n".join(f"FAIL  {line}" for line in failed), file=sys.stderr)
                return 2
            started = time.monotonic()
            environment.ensure(command.steps(arguments[1:]) if callable(command.steps) else command.steps)
            if time.monotonic() - started > 1:
                print(f"set-up  done {time.monotonic() - started:26.1f} s", flush=True)
        return command.run(arguments[1:])
    except StepFailed as trouble:
        print(f"FAIL  {trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; run the same command to go on from here.", file=sys.stderr)
        return 130
