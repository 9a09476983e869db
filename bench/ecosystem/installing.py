"""Brings foreign programs by their own package managers, in pinned versions, into the user's cache directory (XDG)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tidelog.bench.kafka_side import kafka

JAVA: Final = "install Java 17 or later"
SMALL_JVM: Final = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
"""For short work on a machine that does much else."""
INSTALL_TIMEOUT_S: Final = 900.0
PROGRAMS: Final = Path(__file__).with_name("programs")
NOTHING: Final[Mapping[str, str]] = {}


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


def go_module(module: str, version: str) -> Path:
    """Let Go bring a module; return the directory of its source, tests included. Raises :class:`Missing`."""
    go = program("go", "install Go 1.25 or later")
    return Path(json.loads(_run("Go", (go, "mod", "download", "-json", f"{module}@v{version}"), cwd=PROGRAMS))["Dir"])


def go_tests(module: str, version: str, package: str, *, tags: str = "") -> Path:
    """Build a Go module's own tests of one of its packages. Raises :class:`Missing`."""
    built = _room(f"go-tests-{module.rsplit('/')[-1]}", version, package, *filter(None, (tags,))) / "tests"
    if not built.exists():
        source = go_module(module, version)
        for name in ("go.mod", "go.sum"):  # copies, as Go may bring them up to date
            shutil.copyfile(source / name, built.with_name(name))
        where = ("-mod=mod", f"-modfile={built.with_name('go.mod')}", f"-tags={tags}", "-o", str(built))
        _run("Go", (program("go", ""), "test", *where, "-c", f"./{package}"), cwd=source)
    return built


def go_command(package: str, version: str) -> Path:
    """Build a command of a Go module. Raises :class:`Missing`."""
    go = program("go", "install Go 1.25 or later")
    room = _room(f"go-{package.rsplit('/')[-1]}", package, version)
    if not any(room.iterdir()):
        _run("Go", (go, "install", f"{package}@v{version}"), cwd=PROGRAMS, environment={"GOBIN": str(room)})
    (built,) = room.iterdir()
    return built


def jars(name: str, *coordinates: tuple[str, str, str], alone: bool = False) -> list[Path]:
    """Let Maven bring these artifacts and, unless ``alone``, what they need; return the jars. Raises
    :class:`Missing`."""
    program("java", JAVA)
    try:
        return kafka.jars(_room(name, *map(":".join, coordinates)), coordinates, alone=alone)
    except kafka.KafkaMissing as missing:
        raise Missing(str(missing)) from None


def maven_archive(name: str, group: str, artifact: str, version: str, classifier: str) -> Path:
    """Let Maven bring a tar archive; return the directory with its files. Raises :class:`Missing`."""
    maven = program("mvn", "install Maven")
    room = _room(name, group, artifact, version, classifier)
    if not (room / kafka.COMPLETE).exists():
        wanted = f"-Dartifact={group}:{artifact}:{version}:tar.gz:{classifier}"
        _run("Maven", (maven, "-q", "-B", "dependency:get", "-Dtransitive=false", wanted))
        _run("Maven", (maven, "-q", "-B", "dependency:copy", wanted, f"-DoutputDirectory={room}"))
        (packed,) = room.glob("*.tar.gz")
        with tarfile.open(packed) as archive:
            archive.extractall(room, filter="data")
        packed.unlink()
        (room / kafka.COMPLETE).touch()
    return room


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


def node_project(name: str, source: Path, files: Sequence[str]) -> Path:
    """Let npm bring what a project needs, by these files of its; return the directory ``node_modules``. Raises
    :class:`Missing`."""
    program("node", "install Node.js 20 or later")
    npm = program("npm", "install npm")
    room = _room(name, *((source / file).read_text() for file in files))
    if not (room / kafka.COMPLETE).exists():
        for file in files:
            shutil.copyfile(source / file, room / file)
        _run("npm", (npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"), cwd=room)
        (room / kafka.COMPLETE).touch()
    return room / "node_modules"


def _room(name: str, *parts: str) -> Path:
    """A directory for this name and what it is made from: another version gets another one."""
    room = cache_directory() / f"{name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
    room.mkdir(parents=True, exist_ok=True)
    return room


def _run(what: str, command: Sequence[str], cwd: Path | None = None, environment: Mapping[str, str] = NOTHING) -> str:
    given = {**os.environ, **environment}
    done = subprocess.run(command, cwd=cwd, env=given, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    if done.returncode:
        raise Missing(f"{what} could not bring it: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout
