"""How the package gets to executors: by an archive or ``--py-files``; what is said if it does not, or if another
release does; and executors that come and go.

Each test starts a driver of its own on the standalone cluster that ``./dev spark-cluster`` runs. All the other tests
show there that the package may be installed for executors.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import pyspark_tidelog
import tidelog
from tidelog.chaos.spark_kills.driver import ON_A_CLUSTER
from tidelog.chaos.spark_kills.suite import MASTER
from tidelog.client.record import ConsumerRecord
from tidelog.testing import Cluster

ROWS = [str(number) for number in range(20)]
DRIVER = """
import json, os, sys, time
from tidelog.spark_connector import runtime
master, brokers, topic, place, conf, how = sys.argv[1:7]
spark = runtime.session("deliveries", master=master, config=json.loads(conf))
given = {"tidelog.bootstrap.servers": brokers}

def stream():
    rows = spark.readStream.format("tidelog").options(**given, subscribe=topic, startingOffsets="earliest")
    rows = rows.option("maxOffsetsPerTrigger", "10").load().select("value").repartition(2)
    writer = rows.writeStream.format("tidelog").options(**given, topic=f"{topic}-out")
    return writer.option("checkpointLocation", place).trigger(availableNow=True).start()

def executors():
    return spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is one of them

try:
    count = spark.read.format("tidelog").options(**given, subscribe=topic).load().count()
    numbers = []
    if how == "idle":
        numbers.append(executors())
        until = time.monotonic() + 120
        while executors() and time.monotonic() < until:
            time.sleep(0.2)
        numbers.append(executors())
    query = stream()
    query.awaitTermination()
    told = {"rows": count, "executors": numbers}
except Exception as error:
    told = {"error": str(error)}
spark.stop()
print("TOLD " + json.dumps(told))
"""

pytestmark = [
    pytest.mark.skipif(MASTER not in os.environ, reason="comes back with ./dev spark-cluster, which takes minutes"),
    pytest.mark.timeout(900),
]


def environment(at: Path) -> Path:
    """Make an environment with all that Tidelog needs, but without Tidelog; return where its packages are."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(at)], check=True)
    packages = next(at.glob("lib/python*/site-packages"))
    # Python does not read the .pth files of a directory that is found in this way, so it misses an editable Tidelog.
    (packages / "needed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")
    return packages


def copied(to: Path) -> None:
    """Copy the package as pip would install it, without what is compiled for one kind of machine."""
    for package in (tidelog, pyspark_tidelog):
        (source,) = (Path(name).resolve() for name in package.__path__)
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(source, to / package.__name__, ignore=ignored)


def archive(of: Path, to: Path) -> str:
    with tarfile.open(to, "w:gz", compresslevel=1) as tar:
        for found in sorted(of.iterdir()):
            tar.add(found, found.name)
    return f"{to}#environment"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory to start drivers in, with an environment that has everything, under the name of the archives."""
    place = tmp_path_factory.mktemp("whole")
    copied(environment(place / "environment"))
    return place


class Told(NamedTuple):
    """What a driver tells: the rows it counted, the executors there were before and after an idle time, or an error."""

    rows: int = -1
    executors: Sequence[int] = []
    error: str = ""


Drive = Callable[..., Told]


@pytest.fixture
def drive(cluster: Cluster, topic: str, whole: Path, tmp_path: Path, fill: Callable[..., None]) -> Drive:
    """Run a driver that counts a topic and copies it to another; return what it tells."""
    for name in (topic, f"{topic}-out"):
        cluster.create_topic(name, partitions=2)
    for partition in range(2):
        fill(topic, *ROWS[partition::2], partition=partition)

    def run(python: str, how: str = "", *, path: str = "", **conf: str) -> Told:
        program = tmp_path / "driver.py"
        program.write_text(DRIVER)
        given = json.dumps(ON_A_CLUSTER | {"spark.task.maxFailures": "1"} | conf)
        command = [sys.executable, "-P", str(program), os.environ[MASTER], cluster.bootstrap, topic]
        command += [str(tmp_path / "checkpoint"), given, how]
        environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_DRIVER_PYTHON"}
        environ |= {"PYSPARK_PYTHON": python} | ({"PYTHONPATH": path} if path else {})
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=whole, env=environ)
        told = [line.removeprefix("TOLD ") for line in done.stdout.splitlines() if line.startswith("TOLD ")]
        assert told, (done.stdout + done.stderr)[-4000:]
        return Told(**json.loads(told[0]))

    return run


@pytest.fixture
def written(committed: Callable[[str], list[ConsumerRecord]], topic: str) -> Callable[[], list[str]]:
    """The values in the topic that the driver writes to."""
    return lambda: sorted(((record.value or b"").decode() for record in committed(f"{topic}-out")), key=int)


def test_an_archive_with_an_environment(
    drive: Drive, whole: Path, tmp_path: Path, written: Callable[[], list[str]]
) -> None:
    packed = archive(whole / "environment", tmp_path / "environment.tar.gz")
    assert drive("./environment/bin/python", **{"spark.archives": packed}) == Told(20)
    assert written() == ROWS


def test_py_files_with_the_package_alone(
    drive: Drive, whole: Path, tmp_path: Path, written: Callable[[], list[str]]
) -> None:
    environment(tmp_path / "needed")
    copied(tmp_path / "package")
    with zipfile.ZipFile(whole / "tidelog.zip", "w") as packed:
        for found in sorted((tmp_path / "package").rglob("*")):
            packed.write(found, found.relative_to(tmp_path / "package"))
    python = str(tmp_path / "needed" / "bin" / "python")
    told = drive(python, path="./tidelog.zip", **{"spark.submit.pyFiles": str(whole / "tidelog.zip")})
    assert told == Told(20)
    assert written() == ROWS


def test_executors_without_the_package(drive: Drive, tmp_path: Path) -> None:
    environment(tmp_path / "without")
    packed = archive(tmp_path / "without", tmp_path / "without.tar.gz")
    told = drive("./environment/bin/python", **{"spark.archives": packed})
    assert "ModuleNotFoundError: No module named 'tidelog'" in told.error


def test_executors_with_another_release(drive: Drive, tmp_path: Path) -> None:
    packages = environment(tmp_path / "older")
    copied(packages)
    version = packages / "tidelog" / "model" / "version.py"
    version.write_text(version.read_text().replace(f'"{tidelog.__version__}"', '"0.0.9"'))
    packed = archive(tmp_path / "older", tmp_path / "older.tar.gz")
    told = drive("./environment/bin/python", **{"spark.archives": packed})
    assert f"expected tidelog {tidelog.__version__}, as on the driver, found 0.0.9 on " in told.error


def test_executors_that_come_and_go(drive: Drive, written: Callable[[], list[str]]) -> None:
    allocation = {
        "enabled": "true",
        "shuffleTracking.enabled": "true",
        "minExecutors": "0",
        "maxExecutors": "2",
        "initialExecutors": "1",
        "executorIdleTimeout": "1s",
        "cachedExecutorIdleTimeout": "1s",
        "shuffleTracking.timeout": "1s",
    }
    conf = {f"spark.dynamicAllocation.{name}": value for name, value in allocation.items()}
    told = drive(sys.executable, "idle", **conf, **{"spark.scheduler.minRegisteredResourcesRatio": "0"})
    assert told.rows == 20
    assert told.executors[0] >= 1
    assert told.executors[1] == 0, "all were dismissed between the two queries"
    assert written() == ROWS
