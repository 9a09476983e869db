"""``./dev spark-matrix``: the connector's tests on several releases of Spark, each in an environment of its own.

On releases that the source cannot run on, a query must say so. Environments are kept in ``.cache`` for the next run.
"""

from __future__ import annotations

import argparse
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
    parser.add_argument("--python", default=sys.executable, help="the Python to test with (default: this one)")
    parser.add_argument("--tests", default="tests/spark", help="which tests to run (default: %(default)s)")
    given = parser.parse_args(arguments)
    found = [(release, *_tested(release, given.python, given.tests.split())) for release in given.releases]
    for release, outcome, seconds in found:
        print(f"pyspark {release:<8} {outcome:<40} {seconds:6.0f} s")
    return 1 if any(outcome.startswith("FAILED") for _, outcome, _ in found) else 0


def _tested(release: str, python: str, tests: Sequence[str]) -> tuple[str, float]:
    started = time.monotonic()
    numbers = re.findall(r"\d+", release)[:2]
    if len(numbers) < 2:
        raise StepFailed(f"expected a release such as {RELEASES[-1]}, found {release!r}")
    is_supported = tuple(map(int, numbers)) >= OLDEST
    home = _environment(release, python)
    # -P: otherwise, from the repository root, the folders would also be importable by their bare names.
    command = [str(home / "bin" / "python"), "-P"]
    command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests] if is_supported else ["-c", _REFUSED]
    environ = variables() | {"VIRTUAL_ENV": str(home), "PATH": f"{home / 'bin'}:{variables()['PATH']}"}
    print(f"pyspark {release}: {'tests' if is_supported else 'is it refused?'}", flush=True)
    try:
        code = subprocess.run(command, cwd=ROOT, env=environ, timeout=LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        code = -1
    outcome = "passed" if is_supported else "is refused, and says why"
    return (outcome if code == 0 else f"FAILED, exit code {code}"), time.monotonic() - started


def _environment(release: str, python: str) -> Path:
    """Return an environment with this release and all that its tests need; make it if there is none."""
    home = CACHE / "spark" / f"{Path(python).name}-{release}"
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
