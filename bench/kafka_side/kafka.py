"""Apache Kafka from Maven Central: its jars, three nodes, and its own tools."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidelog.cli.local.process import ProcessMark, mark_of
from tidelog.testing.ports import free_ports

CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "kafka-side"
VERSION: Final = os.environ.get("TIDELOG_KAFKA_VERSION", "4.3.1")
COORDINATES: Final = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.slf4j", "slf4j-nop", "1.7.36"),
)
JVM: Final = (
    "-server", "-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
"""The JVM options of Kafka's own start script."""
COMPLETE: Final = "complete"
"""The file that a finished download ends with."""
NODES: Final = 3
STARTS_S: Final = 120.0
STOPS_S: Final = 30.0
LATENCY_PACE: Final = 1_000


class KafkaMissing(RuntimeError):
    """Java, Maven or the jars are missing; the text says what to do."""


def class_path(cache: Path = CACHE, *, bring: bool = True) -> str:
    """Let Maven put the jars below ``cache``, once; without ``bring`` they must exist. Raises :class:`KafkaMissing`."""
    if shutil.which("java") is None:
        raise KafkaMissing("expected java on PATH, found none: install Java (17 or later) and Maven")
    libraries = cache / f"kafka-{VERSION}"
    if not bring and not (libraries / COMPLETE).exists():
        raise KafkaMissing(f"expected Kafka {VERSION} in {libraries}: ./dev beside-kafka --jars brings it")
    jars(libraries, COORDINATES)
    return f"{libraries}/*"


def jars(libraries: Path, coordinates: Sequence[tuple[str, str, str]], *, alone: bool = False) -> list[Path]:
    """Let Maven put these artifacts and what they need into a directory, once; return the files. ``alone``: without
    what they need. Raises :class:`KafkaMissing`."""
    if not (libraries / COMPLETE).exists():
        if shutil.which("mvn") is None:
            raise KafkaMissing("expected mvn on PATH, found none: install Java (17 or later) and Maven")
        libraries.mkdir(parents=True, exist_ok=True)
        left_out = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
        rest = f"{left_out if alone else ''}</dependency>"
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>{rest}"
            for group, name, version in coordinates
        )
        project = libraries / "pom.xml"
        project.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>tidelog</groupId><artifactId>kafka-side</artifactId><version>1</version>"
            f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
        )
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={libraries}")
        done = subprocess.run(("mvn", "-q", "-B", "-f", str(project), *goal), capture_output=True, text=True)
        if done.returncode:
            names = ", ".join(":".join(one) for one in coordinates)
            raise KafkaMissing(f"Maven could not bring {names}: {done.stdout[-2000:]}")
        (libraries / COMPLETE).touch()
    return sorted(libraries.glob("*.jar"))


def java(classes: str, main: str, *arguments: str, timeout_s: float = 300.0) -> str:
    """Run a Java program; return its output. Raises ``RuntimeError`` if it failed."""
    done = subprocess.run(("java", "-cp", classes, main, *arguments), capture_output=True, text=True, timeout=timeout_s)
    if done.returncode:
        raise RuntimeError(f"{main} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


@contextmanager
def running(
    classes: str,
    root: Path,
    *,
    brokers: int = NODES,
    controllers: int = NODES,
    jvm: Sequence[str] = JVM,
    settings: Mapping[str, object] = {},
) -> Iterator[tuple[str, list[ProcessMark]]]:
    """Run nodes, all brokers and the first ones also controllers; yield their addresses and marks. They are stopped by
    process id."""
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    ports = free_ports(2 * brokers)
    voters = ",".join(f"{n + 1}@127.0.0.1:{ports[2 * n + 1]}" for n in range(controllers))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(brokers):
            directory = root / f"kafka-{number + 1}"
            directory.mkdir(parents=True)
            file = directory / "server.properties"
            controller = ports[2 * number + 1] if number < controllers else None
            known = _settings(number + 1, ports[2 * number], controller, voters, directory, brokers) | dict(settings)
            file.write_text("".join(f"{name}={value}\n" for name, value in known.items()))
            java(classes, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(file))
            with (directory / "out").open("wb") as out:
                command = ("java", *jvm, "-cp", classes, "kafka.Kafka", str(file))
                processes.append(subprocess.Popen(command, stdout=out, stderr=out))
        bootstrap = ",".join(f"127.0.0.1:{ports[2 * n]}" for n in range(brokers))
        _wait(bootstrap, processes)
        yield bootstrap, [mark for process in processes if (mark := mark_of(process.pid)) is not None]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(STOPS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _settings(
    node: int, broker: int, controller: int | None, voters: str, directory: Path, brokers: int
) -> dict[str, object]:
    listeners = [f"PLAINTEXT://127.0.0.1:{broker}"]
    if controller is not None:
        listeners.append(f"CONTROLLER://127.0.0.1:{controller}")
    return {
        "process.roles": "broker" if controller is None else "broker,controller",
        "node.id": node,
        "controller.quorum.voters": voters,
        "listeners": ",".join(listeners),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": directory / "data",
        "offsets.topic.replication.factor": brokers,
        "transaction.state.log.replication.factor": brokers,
        "group.initial.rebalance.delay.ms": 0,
    }


def _wait(bootstrap: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    from confluent_kafka.admin import AdminClient

    deadline = time.monotonic() + STARTS_S
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": "0"})
    while time.monotonic() < deadline:
        if any(process.poll() is not None for process in processes):
            raise RuntimeError("a node of Kafka ended while it was starting")
        try:
            if len(admin.list_topics(timeout=5).brokers) == len(processes):
                return
        except Exception:  # librdkafka's error while nobody listens
            time.sleep(0.5)
    raise RuntimeError(f"expected {len(processes)} nodes of Kafka within {STARTS_S:g} s")
