"""``./dev wheel``: this machine's wheel, built from git's files, and tested in an otherwise empty environment.

cibuildwheel builds for other systems and Pythons, from the same table of ``pyproject.toml``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from dev.environment import CONSTRAINTS, StepFailed, variables, venv_bin
from dev.preflight import ROOT

DIST = ROOT / "dist"


def build(out: Path, *, python: str) -> Path:
    """Build a wheel into an empty directory from the files that git tracks or would add; ``build/`` may hold old ones.

    Raises :class:`StepFailed`.
    """
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    with tempfile.TemporaryDirectory() as source:
        for name in filter(None, listed):
            if name.startswith(("tests/", "docs/")) or (not (ROOT / name).is_symlink() and not (ROOT / name).is_file()):
                continue
            target = Path(source, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                target.symlink_to((ROOT / name).readlink())
            else:
                target.write_bytes((ROOT / name).read_bytes())
        pip = [python, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
        _run([*pip, "--wheel-dir", str(out), source])
    (wheel,) = out.glob("*.whl")
    return wheel


def build_and_test() -> Path:
    """Build into ``dist/``, test, and return the wheel. Raises :class:`StepFailed`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        wheel = build(directory / "built", python=venv_bin("python"))
        if sys.platform == "linux":
            # Tag it for the oldest system with a C library that the codec can use, instead of "any Linux".
            _run([venv_bin("auditwheel"), "repair", "--wheel-dir", str(directory / "repaired"), str(wheel)])
            (wheel,) = (directory / "repaired").glob("*.whl")
        print(f"built {wheel.name}; its tests:", flush=True)
        _run([sys.executable, "-m", "venv", str(directory / "empty")])
        quiet = ["--quiet", "--disable-pip-version-check", "-c", str(CONSTRAINTS)]
        whole = f"{wheel}[{','.join(settings['test-extras'])}]"
        _run([str(directory / "empty/bin/pip"), "install", *quiet, whole, *settings["test-requires"]])
        command = f'PATH="{directory}/empty/bin:$PATH"; {settings["test-command"].format(project=ROOT)}'
        if (code := subprocess.run(["sh", "-c", command], cwd=directory).returncode) != 0:
            raise StepFailed(f"the wheel's tests: exit code {code}")
        DIST.mkdir(exist_ok=True)
        return Path(shutil.copy(wheel, DIST))


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=variables())
    if done.returncode != 0:
        raise StepFailed(f"{' '.join(command[:4])}: {(done.stdout + done.stderr).strip()[-2000:]}")
