"""``./dev spark-matrix``: the connector's tests on several releases of Spark and of Python.

Each pair has an environment of its own.
On releases that the source cannot run on, a query must say so. Environments are kept in ``.cache`` for the next run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dev.environment import CACHE, CONSTRAINTS, StepFailed, requirements, variables
from dev.preflight import ROOT

RELEASES = ("4.0.5", "4.1.4", "4.2.0", "4.3.0")
"""The last release of each line that is refused, the first that is supported, and the one that ``.venv`` has."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Those that Tidelog and the releases above support."""
OLDEST = (4, 2)
"""As in ``tidelog.spark_connector.releases``."""
LIMIT_S = 3600
_TESTING = ("pytest", "hypothesis")
_REFUSED = """
import sys
from pyspark.sql import SparkSession
from tidelog.spark_connector import runtime
runtime.prepare()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
given = {"tidelog.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "topic": "t"}
for ask in (
    lambda: spark.read.format("tidelog").options(**given).load(),
    lambda: spark.readStream.format("tidelog").options(**given).load(),
    lambda: spark.range(1).selectExpr("'a' value").write.format("tidelog").options(**given).mode("append").save(),
):
    try:
        ask()
    except Exception as error:
        found = str(error).splitlines()[0]
    else:
        found = "no error"
    if f"Tidelog expects Spark 4.2 or later, found pyspark {spark.version}" not in found:
        sys.exit(f"expected to be refused, found: {found}")
spark.stop()
"""


def run(arguments: Sequence[str]) -> int:
    """Test the given releases, by default :data:`RELEASES`; return the exit code. Raises :class:`StepFailed`."""
    parser = argparse.ArgumentParser("./dev spark-matrix", description=__doc__.splitlines()[0])
    parser.add_argument("releases", nargs="*", default=RELEASES, metavar="RELEASE", help=f"default: {RELEASES}")
    parser.add_argument(
        "--python",
        default=sys.executable,
        help=f"the Python to test with (default: this one), or 'all': each of {', '.join(PYTHONS)} that is on PATH or "
        "among pyenv's; says which is on neither",
    )
    parser.add_argument("--tests", default="tests/spark", help="which tests to run (default: %(default)s)")
    given = parser.parse_args(arguments)
    pythons = installed() if given.python == "all" else {_version(given.python): given.python}
    found = [
        (version, release, *_tested(release, version, python, given.tests.split()))
        for version, python in pythons.items()
        for release in given.releases
    ]
    for version, release, outcome, seconds in found:
        print(f"Python {version:<5} pyspark {release:<8} {outcome:<40} {seconds:6.0f} s")
    if given.python == "all":
        for version in PYTHONS:
            if version not in pythons:
                print(f"Python {version:<5} not tested: neither on PATH nor among pyenv's")
    return 1 if any(outcome.startswith("FAILED") for _, _, outcome, _ in found) else 0


def installed() -> dict[str, str]:
    """Return the Pythons of :data:`PYTHONS` that start, each with its path."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in PYTHONS:
        kept = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
        for python in filter(None, (shutil.which(f"python{version}"), *map(str, reversed(kept)))):
            if _version(python) == version:
                found[version] = python
                break
    return found


def _version(python: str) -> str:
    """Return a Python's version, such as 3.12; empty if it does not start (pyenv's shims of versions not chosen)."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _tested(release: str, version: str, python: str, tests: Sequence[str]) -> tuple[str, float]:
    started = time.monotonic()
    if not version:
        raise StepFailed(f"expected a Python that starts, found {python}")
    numbers = re.findall(r"\d+", release)[:2]
    if len(numbers) < 2:
        raise StepFailed(f"expected a release such as {RELEASES[-1]}, found {release!r}")
    is_supported = tuple(map(int, numbers)) >= OLDEST
    home = _environment(release, version, python)
    # -P: otherwise, from the repository root, the folders would also be importable by their bare names.
    command = [str(home / "bin" / "python"), "-P"]
    command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests] if is_supported else ["-c", _REFUSED]
    environ = variables() | {"VIRTUAL_ENV": str(home), "PATH": f"{home / 'bin'}:{variables()['PATH']}"}
    print(f"Python {version}, pyspark {release}: {'tests' if is_supported else 'is it refused?'}", flush=True)
    try:
        code = subprocess.run(command, cwd=ROOT, env=environ, timeout=LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        code = -1
    outcome = "passed" if is_supported else "is refused, and says why"
    return (outcome if code == 0 else f"FAILED, exit code {code}"), time.monotonic() - started


def _environment(release: str, version: str, python: str) -> Path:
    """Return an environment with this release and all that its tests need; make it if there is none."""
    home = CACHE / "spark" / f"python{version}-{release}"
    wanted = [f"pyspark[connect]=={release}", *(one for one in requirements("spark") if not one.startswith("pyspark"))]
    wanted += [*requirements(), *requirements("security")]
    wanted += [one for one in requirements("dev") if one.startswith(_TESTING)]
    stamp = home / ".installed"
    if stamp.exists() and stamp.read_text() == "\n".join(wanted):
        return home
    print(f"pyspark {release}: installing into {home.relative_to(ROOT)}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    _run([python, "-m", "venv", str(home)])
    constraints = home / "constraints.txt"
    pinned = CONSTRAINTS.read_text().splitlines()
    constraints.write_text("\n".join(one for one in pinned if not one.startswith("pyspark==")))
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    _run([*pip, "-c", str(constraints), "setuptools", "wheel", "Cython"])
    _run([*pip, "--no-build-isolation", "-c", str(constraints), *wanted])
    # The checkout itself, by a path: an editable installation would compile the codec again, beside that of .venv.
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "tidelog-checkout.pth").write_text(f"{ROOT / 'src'}\n")
    stamp.write_text("\n".join(wanted))
    return home


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=variables())
    if done.returncode != 0:
        raise StepFailed(f"{' '.join(command[:5])}: {(done.stdout + done.stderr).strip()[-2000:]}")
