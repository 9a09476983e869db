"""A release that a cluster is upgraded from: a wheel, or a Python from an environment with that release."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.node import LocalNode


def python_of(release: Path, directory: Path) -> str:
    """Return the Python that runs it; a wheel is unpacked into ``directory``, for this Python. Raises
    :class:`CommandFailed`."""
    if not release.is_file():
        raise CommandFailed(
            f"expected a release, as a wheel or a Python that has it installed, found no file {release}"
        )
    if release.suffix != ".whl":
        return str(release)
    with zipfile.ZipFile(release) as wheel:
        wheel.extractall(directory)
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={directory} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def begin_with(nodes: Iterable[LocalNode], interpreter: str) -> None:
    """Let nodes that have never run use the release of that Python, with the settings that it knows. Raises
    :class:`CommandFailed`."""
    asks = (
        "try:\n from tidelog.model.settings.broker_config import NODE_CONFIG_DEF as one\n"
        "except ImportError:\n from tidelog.model.broker_config import NODE_CONFIG_DEF as one  # release 0.1\n"
        "print(*one.settings)"
    )
    try:
        said = subprocess.run([interpreter, "-P", "-c", asks], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise CommandFailed(f"expected the Python of an installed release, found {interpreter}: {error}") from None
    known = set(said.stdout.split())
    for node in nodes:
        node.interpreter = interpreter
        node.configure({name: value for name, value in node.settings.items() if name in known})
