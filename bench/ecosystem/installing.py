"""Brings foreign programs by their own package managers, in pinned versions, into the user's cache directory (XDG)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tidelog.bench.kafka_side import kafka

JAVA: Final = "install Java 17 or later"
SMALL_JVM: Final = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
"""For short work on a machine that does much else."""
INSTALL_TIMEOUT_S: Final = 900.0
PROGRAMS: Final = Path(__file__).with_name("programs")


class Missing(RuntimeError):
    """A foreign program is not here and cannot be brought; the text says what to do."""


def cache_directory() -> Path:
    """Return the directory for foreign programs: in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tidelog" / "ecosystem"


def program(name: str, remedy: str) -> str:
    """Return the path of a program. Raises :class:`Missing`."""
    if (found := shutil.which(name)) is None:
        raise Missing(f"expected {name} on PATH, found none: {remedy}")
    return found


def go_program(folder: str) -> Path:
    """Build a Go program of ``programs/go``; the modules are those of its go.sum. Raises :class:`Missing`."""
    go = program("go", "install Go 1.25 or later")
    source = PROGRAMS / "go" / folder
    built = _room(f"go-{folder}", *(path.read_text() for path in sorted(source.iterdir()))) / folder
    if not built.exists():
        fresh = built.with_suffix(".new")
        _run("Go", (go, "build", "-mod=readonly", "-o", str(fresh), "."), cwd=source)
        fresh.replace(built)
    return built


def go_tests(module: str, version: str, package: str) -> Path:
    """Build a Go module's own tests of one of its packages. Raises :class:`Missing`."""
    go = program("go", "install Go 1.25 or later")
    built = _room(f"go-tests-{module.rsplit('/')[-1]}", version, package) / "tests"
    if not built.exists():
        found = _run("Go", (go, "mod", "download", "-json", f"{module}@v{version}"), cwd=built.parent)
        _run("Go", (go, "test", "-mod=readonly", "-c", "-o", str(built), f"./{package}"), cwd=json.loads(found)["Dir"])
    return built


def jars(name: str, *coordinates: tuple[str, str, str], alone: bool = False) -> list[Path]:
    """Let Maven bring these artifacts and, unless ``alone``, what they need; return the jars. Raises
    :class:`Missing`."""
    program("java", JAVA)
    try:
        return kafka.jars(_room(name, *map(":".join, coordinates)), coordinates, alone=alone)
    except kafka.KafkaMissing as missing:
        raise Missing(str(missing)) from None


def java(classes: Iterable[Path]) -> list[str]:
    """Return the command that runs a Java program with these jars."""
    return [program("java", JAVA), *SMALL_JVM, "-cp", os.pathsep.join(map(str, classes))]


def python_with(name: str, *requirements: str) -> str:
    """Return a Python with exactly these packages and what they need. Raises :class:`Missing`."""
    room = _room(name, sys.version, *requirements)
    python = room / "bin" / "python"
    if not (room / kafka.COMPLETE).exists():
        _run("venv", (sys.executable, "-m", "venv", "--clear", str(room)))
        _run("pip", (str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements))
        (room / kafka.COMPLETE).touch()
    return str(python)


def node_modules(name: str, *packages: str) -> Mapping[str, str]:
    """Let npm bring packages; return the environment in which Node.js finds them. Raises :class:`Missing`."""
    program("node", "install Node.js 20 or later")
    npm = program("npm", "install npm")
    room = _room(name, *packages)
    if not (room / kafka.COMPLETE).exists():
        _run("npm", (npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(room), *packages))
        (room / kafka.COMPLETE).touch()
    return {**os.environ, "NODE_PATH": str(room / "node_modules")}


def _room(name: str, *parts: str) -> Path:
    """A directory for this name and what it is made from: another version gets another one."""
    room = cache_directory() / f"{name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
    room.mkdir(parents=True, exist_ok=True)
    return room


def _run(what: str, command: Sequence[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    if done.returncode:
        raise Missing(f"{what} could not bring it: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout
