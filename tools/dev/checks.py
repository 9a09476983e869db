"""What ``./dev check`` holds the tree to, besides the tests."""

from __future__ import annotations

import difflib
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dev import preflight
from dev.environment import variables, venv_bin
from dev.preflight import ROOT


def _run(*command: str) -> str | None:
    """Return ``None`` on success, else what the tool printed."""
    done = subprocess.run(command, cwd=ROOT, env=variables(), capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"


def lint() -> str | None:
    return _run(venv_bin("ruff"), "check", "--no-fix", ".")


def formatting() -> str | None:
    return _run(venv_bin("ruff"), "format", "--check", ".")


def types() -> str | None:
    return _run(venv_bin("mypy"))


def layers() -> str | None:
    return _run(venv_bin("lint-imports"))


def links() -> str | None:
    return preflight.links_are_links()


def generate(into: Path) -> str | None:
    """Generate the protobuf code of every contract under ``into``; paths as below ``src``."""
    contracts = sorted(str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/tidelog/proto/v1").glob("*.proto"))
    return _run(
        venv_bin("python"), "-P", "-W", "ignore", "-m", "grpc_tools.protoc", f"-I{ROOT / 'src'}",
        f"--python_out={into}", f"--pyi_out={into}", *contracts,
    )  # fmt: skip


def generated_code_is_fresh() -> str | None:
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        if (trouble := generate(fresh)) is not None:
            return trouble
        made = {path.relative_to(fresh): path.read_text() for path in fresh.rglob("*_pb2.py*")}
    committed = {
        path.relative_to(ROOT / "src"): path.read_text() for path in (ROOT / "src/tidelog/proto/v1").glob("*_pb2.py*")
    }
    stale = sorted(str(name) for name in made.keys() | committed.keys() if made.get(name) != committed.get(name))
    if not stale:
        return None
    name_first = Path(stale[0])
    shown = difflib.unified_diff(
        committed.get(name_first, "").splitlines(), made.get(name_first, "").splitlines(), "committed", "generated", n=0
    )
    return f"not what its contract generates: {', '.join(stale)}. Run ./dev generate\n" + "\n".join(list(shown)[:20])


CHECKS: tuple[tuple[str, Callable[[], str | None]], ...] = (
    ("links of src/tidelog", links),
    ("ruff check", lint),
    ("ruff format", formatting),
    ("mypy --strict, every folder", types),
    ("import contract", layers),
    ("generated code is fresh", generated_code_is_fresh),
)


def run_all() -> list[str]:
    """Run every check, print a line for each, return the names of those that failed."""
    failed = []
    for name, check in CHECKS:
        started = time.monotonic()
        trouble = check()
        print(f"{'FAIL' if trouble else 'ok':<5} {name:<32} {time.monotonic() - started:6.1f} s", flush=True)
        if trouble:
            print("\n".join("      " + line for line in trouble.splitlines()), flush=True)
            failed.append(name)
    return failed
