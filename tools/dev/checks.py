"""The checks of ``./dev check``, besides the tests."""

from __future__ import annotations

import difflib
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from dev import blocking_forms, preflight
from dev.environment import variables, venv_bin
from dev.preflight import ROOT

V1 = Path("tidelog/proto/v1")
"""The directory of the contracts and their generated code, below ``src``."""


def _run(*command: str) -> str | None:
    """Run a tool. Return ``None`` on success, else its output."""
    done = subprocess.run(command, cwd=ROOT, env=variables(), capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"


def lint() -> str | None:
    return _run(venv_bin("ruff"), "check", "--no-fix", ".")


def formatting() -> str | None:
    return _run(venv_bin("ruff"), "format", "--check", ".")


def types() -> str | None:
    return _run(venv_bin("mypy"))


def collection() -> str | None:
    """Import every test file. This compiles them, too: once, and not in each of the processes that run them."""
    trouble = _run(venv_bin("python"), "-P", "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider")
    return None if trouble is None else trouble.rpartition("= ERRORS =")[2]


def layers() -> str | None:
    return _run(venv_bin("lint-imports"))


def links() -> str | None:
    return preflight.links_are_links()


def generate(into: Path) -> str | None:
    """Generate under ``into``, with the same paths as below ``src``: the contracts from our types, their protobuf code,
    and the blocking clients from the asyncio ones."""
    return _generate_contracts(into) or _generate_blocking_clients(into)


def _generate_contracts(into: Path) -> str | None:
    home = into / V1
    home.mkdir(parents=True, exist_ok=True)
    if (trouble := _run(venv_bin("python"), "-P", "-m", "tidelog.proto.contracts", str(home))) is not None:
        return trouble
    contracts = sorted(str(path.relative_to(into)) for path in home.glob("*.proto"))
    return _run(
        venv_bin("python"), "-P", "-W", "ignore", "-m", "grpc_tools.protoc", f"-I{into}",
        f"--python_out={into}", f"--pyi_out={into}", *contracts,
    )  # fmt: skip


def _generate_blocking_clients(into: Path) -> str | None:
    for form in blocking_forms.FORMS:
        text = blocking_forms.module_text(form)
        for command in (["check", "--fix", "--quiet", "--select", "I"], ["format", "--quiet"]):
            ruff = [venv_bin("ruff"), *command, "--stdin-filename", str(form.path), "-"]
            done = subprocess.run(ruff, cwd=ROOT, env=variables(), input=text, capture_output=True, text=True)
            if done.returncode:
                return f"{form.path}: {done.stderr.strip()}"
            text = done.stdout
        path = into / "tidelog" / form.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return None


def generated_code_is_fresh() -> str | None:
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        if (trouble := generate(fresh)) is not None:
            return trouble
        made = _generated(fresh)
    committed = _generated(ROOT / "src")
    stale = sorted(str(name) for name in made.keys() | committed.keys() if made.get(name) != committed.get(name))
    if not stale:
        return None
    name_first = Path(stale[0])
    shown = difflib.unified_diff(
        committed.get(name_first, "").splitlines(), made.get(name_first, "").splitlines(), "committed", "generated", n=0
    )
    return f"not what its sources generate: {', '.join(stale)}. Run ./dev generate\n" + "\n".join(list(shown)[:20])


def _generated(below: Path) -> dict[Path, str]:
    found = [path for pattern in ("*.proto", "*_pb2.py*") for path in (below / V1).glob(pattern)]
    found += [below / "tidelog" / form.path for form in blocking_forms.FORMS]
    return {path.relative_to(below): path.read_text() for path in found}


CHECKS: tuple[tuple[str, Callable[[], str | None]], ...] = (
    ("mypy --strict, every folder", types),  # the longest: the others run beside it
    ("links of src/tidelog", links),
    ("ruff check", lint),
    ("ruff format", formatting),
    ("import contract", layers),
    ("generated code is fresh", generated_code_is_fresh),
    ("test files can be imported", collection),
)
AT_ONCE: Final = 2


def run_all() -> list[str]:
    """Run every check, two at a time, print a line for each, return the names of those that failed."""
    failed = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in as_completed([pool.submit(_timed, name, check) for name, check in CHECKS]):
            name, trouble, seconds = done.result()
            print(f"{'FAIL' if trouble else 'ok':<5} {name:<32} {seconds:6.1f} s", flush=True)
            if trouble:
                print("\n".join("      " + line for line in trouble.splitlines()), flush=True)
                failed.append(name)
    return failed


def _timed(name: str, check: Callable[[], str | None]) -> tuple[str, str | None, float]:
    started = time.monotonic()
    return name, check(), time.monotonic() - started
