"""The private environment ``.venv``: made in recorded steps, so that an interrupted set-up can continue.

A step's stamp holds a hash of everything that it depends on; a step with a matching stamp is not run again. pip's own
configuration (its files and ``PIP_*``) decides where packages come from.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dev.preflight import ROOT

VENV = ROOT / ".venv"
CACHE = ROOT / ".cache" / "dev"
STAMPS = VENV / ".steps"
LOG = CACHE / "setup.log"
CONSTRAINTS = ROOT / "constraints.txt"
_BUILT_FROM = (
    "pyproject.toml",
    "setup.py",
    "proto/records/_codec.pyx",
    "proto/records/_rows.pxi",
    "client/_fast_path.pyx",
)
"""The files that an installation of tidelog itself depends on; some are compiled if there is a compiler."""


class StepFailed(Exception):
    """A set-up step failed; the text says what to do."""


def venv_bin(name: str) -> str:
    return str(VENV / "bin" / name)


def requirements(*extras: str) -> list[str]:
    """Return the requirements of these extras, and without any those of the package itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = list(project["dependencies"]) if not extras else []
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return found


def _interpreter() -> str:
    return f"{sys.implementation.cache_tag} {os.path.realpath(getattr(sys, '_base_executable', sys.executable))}"


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:24]


@contextmanager
def _lock() -> Iterator[None]:
    """Lock the environment: two concurrent set-ups would break it, so the second waits."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("Another ./dev is already setting up; waiting for it.", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _logged(command: Sequence[str]) -> None:
    with LOG.open("ab") as log:
        log.write(("$ " + " ".join(command) + "\n").encode())
        log.flush()
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT)
    if done.returncode != 0:
        lines = LOG.read_text(errors="replace").splitlines()
        errors = [line.strip() for line in lines[-40:] if "error" in line.lower()]
        cause = (errors or lines)[-1].strip()
        shown = LOG.relative_to(ROOT)
        raise StepFailed(
            f"{cause}\n      Whole output: {shown}. Fix the cause and run the same command: it continues from here"
        )


def _pip(*arguments: str) -> None:
    quiet = ["--disable-pip-version-check", "--no-input", "--no-warn-script-location"]
    # Most installed modules are never imported; those that are, Python compiles when it first imports them.
    _logged([venv_bin("python"), "-m", "pip", "install", "--no-compile", *quiet, "-c", str(CONSTRAINTS), *arguments])


def _make_venv() -> None:
    probe = [venv_bin("python"), "-c", "import sys, pip; print(sys.implementation.cache_tag)"]
    if VENV.exists():
        done = subprocess.run(probe, capture_output=True, text=True) if Path(probe[0]).exists() else None
        if done is not None and done.returncode == 0 and done.stdout.strip() == sys.implementation.cache_tag:
            return
        shutil.rmtree(VENV)
    _logged([sys.executable, "-m", "venv", str(VENV)])


def _install_runtime() -> None:
    _pip("setuptools", "wheel", "Cython")
    _pip("--no-build-isolation", *requirements())


def _install_tidelog() -> None:
    _pip("--no-build-isolation", "--no-deps", "-e", str(ROOT))


def _install_demo() -> None:
    # Without its dependencies: only its data files are needed, and pandas is larger than everything else.
    _pip("--no-build-isolation", "--no-deps", *requirements("demo"))


def _install_spark() -> None:
    _pip("--no-build-isolation", *requirements("spark"))


def _install_picture() -> None:
    _pip("--no-build-isolation", *requirements("picture"))


def _install_chaos() -> None:
    _pip("--no-build-isolation", *requirements("chaos"))


def _install_dev() -> None:
    _pip("--no-build-isolation", *requirements("dev"))


def _install_wheel() -> None:
    _pip("--no-build-isolation", *requirements("wheel"))


class _Step:
    def __init__(self, name: str, label: str, action: Callable[[], None], inputs: Callable[[], list[object]]) -> None:
        self.name, self.label, self.action, self.inputs = name, label, action, inputs


def _pins() -> list[object]:
    return [CONSTRAINTS.read_text(), _interpreter()]


_STEPS = {
    step.name: step
    for step in (
        _Step("environment", "private environment .venv", _make_venv, lambda: [_interpreter()]),
        _Step("runtime", "packages that tidelog needs", _install_runtime, lambda: [requirements(), *_pins()]),
        _Step(
            "tidelog",
            "tidelog itself, editable",
            _install_tidelog,
            lambda: [*((ROOT / name).read_text() for name in _BUILT_FROM), _interpreter(), str(ROOT)],
        ),
        _Step("demo", "flights data for the demo", _install_demo, lambda: [requirements("demo"), *_pins()]),
        _Step("spark", "Spark, Arrow and a Java runtime", _install_spark, lambda: [requirements("spark"), *_pins()]),
        _Step("picture", "Pillow for the demo's plot", _install_picture, lambda: [requirements("picture"), *_pins()]),
        _Step("chaos", "driver of toxiproxy", _install_chaos, lambda: [requirements("chaos"), *_pins()]),
        _Step("wheel", "tools for wheels", _install_wheel, lambda: [requirements("wheel"), *_pins()]),
        _Step("dev", "tools for tests and checks", _install_dev, lambda: [requirements("dev"), *_pins()]),
    )
}
RUN = ("environment", "runtime", "tidelog")
FLIGHTS = (*RUN, "demo")
DEMO = (*FLIGHTS, "spark", "picture")
CHAOS = (*RUN, "chaos")
WHEEL = (*RUN, "wheel")
DEV = (*DEMO, "chaos", "dev")


def ensure(names: Sequence[str]) -> None:
    """Run the named steps that are not done yet, printing each with its time.

    Raises :class:`StepFailed`.
    """
    if is_ready(names):
        return
    stamps = {name: _hash(*_STEPS[name].inputs()) for name in names}
    with _lock():
        LOG.unlink(missing_ok=True)
        for name in names:
            if _stamp(name) == stamps[name]:
                continue
            step = _STEPS[name]
            started = time.monotonic()
            print(f"set-up  {step.label:<32}", end=" ", flush=True)
            try:
                step.action()
            except StepFailed as trouble:
                print("failed", flush=True)
                raise StepFailed(f"{step.label}: {trouble}") from None
            STAMPS.mkdir(parents=True, exist_ok=True)
            fresh = STAMPS / f".{name}"
            fresh.write_text(stamps[name])
            fresh.replace(STAMPS / name)
            print(f"{time.monotonic() - started:6.1f} s", flush=True)


def is_ready(names: Sequence[str]) -> bool:
    return all(_stamp(name) == _hash(*_STEPS[name].inputs()) for name in names)


def _stamp(name: str) -> str | None:
    try:
        return (STAMPS / name).read_text()
    except OSError:
        return None


def variables() -> dict[str, str]:
    """Return the environment variables of a program that runs in the private environment."""
    found = dict(os.environ)
    found["VIRTUAL_ENV"] = str(VENV)
    found["PATH"] = f"{VENV / 'bin'}{os.pathsep}{found.get('PATH', '')}"
    found.pop("PYTHONHOME", None)
    found.pop("PYTHONPATH", None)
    if found.pop(
        "PYTHONDONTWRITEBYTECODE", ""
    ):  # else each node, command and worker of a test compiles everything again
        found["PYTHONPYCACHEPREFIX"] = str(CACHE / "bytecode")
    return found
