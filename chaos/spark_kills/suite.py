"""``./dev spark-cluster``: the connector's tests on a standalone cluster of Spark instead of a Spark in one process.

The cluster is started for the run, with two workers on loopback addresses, and stopped after it. Tests find its address
in the environment (``tests/spark/conftest.py``).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidelog.chaos.spark_kills.spark_cluster import SparkCluster

MASTER: Final = "TIDELOG_SPARK_MASTER"
"""The environment variable with the address of the cluster to run tests on."""
TESTS: Final = "tests/spark/queries"


def main(arguments: Sequence[str]) -> int:
    """Run pytest with these arguments, by default :data:`TESTS`; return its exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # everything is stopped on exit
    directory = Path(tempfile.mkdtemp(prefix="tidelog-spark-"))
    code = 1
    try:
        with SparkCluster(directory) as cluster:
            given = list(arguments) if any(not one.startswith("-") for one in arguments) else [*arguments, TESTS]
            command = [sys.executable, "-P", "-m", "pytest", *given]
            code = subprocess.run(command, env=os.environ | {MASTER: cluster.url}).returncode
    except KeyboardInterrupt:
        code = 130
    finally:
        if code == 0:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"Logs of the cluster: {directory}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
