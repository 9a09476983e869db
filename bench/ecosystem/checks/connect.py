"""Kafka Connect in distributed mode: a file into a topic exactly once and out again, while workers are killed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from pathlib import Path
from subprocess import Popen
from typing import Final

from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import Check, Differs, expect, records, rest, started, until
from tidelog.bench.ecosystem.installing import jars, java
from tidelog.testing.ports import LOOPBACK, free_ports

VERSION: Final = "4.3.1"
JARS: Final = (
    ("org.apache.kafka", "connect-runtime", VERSION),
    ("org.apache.kafka", "connect-file", VERSION),
    ("org.apache.kafka", "connect-mirror", VERSION),
    ("org.slf4j", "slf4j-nop", "1.7.36"),
)
LINES: Final = 6_000
TOPIC: Final = "lines"


def _run(root: Path) -> str:
    command = [*java(jars("connect", *JARS)), "org.apache.kafka.connect.cli.ConnectDistributed"]
    source, sink = root / "source.txt", root / "sink.txt"
    with clusters.running(root, 3, {"default.replication.factor": "3"}) as cluster, ExitStack() as stack:
        ports = free_ports(2)

        def worker(port: int) -> Popen[bytes]:
            settings = root / f"worker-{port}.properties"
            given = _settings(cluster.bootstrap, port)
            settings.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
            process = stack.enter_context(started([*command, str(settings)], root / f"worker-{port}.log"))
            until(f"a worker (port {port})", lambda: rest(port, "/connectors")[0] == HTTPStatus.OK, process)
            return process

        def copied(what: int) -> None:
            until(f"{what} lines in the topic", lambda: len(records(cluster.bootstrap, TOPIC)) >= what)
            until(f"{what} lines in the file", lambda: sink.exists() and len(set(_lines(sink))) >= what)

        lines = [f"line {number}" for number in range(LINES)]
        _append(source, lines[: LINES // 3])
        one, other = (worker(port) for port in ports)
        for name, config in _connectors(source, sink).items():
            until(f"the connector {name}", partial(_put, ports[0], name, config))
        copied(LINES // 3)
        one.kill()
        _append(source, lines[LINES // 3 : 2 * LINES // 3])
        cluster.kill(1)
        one = worker(ports[0])
        cluster.start([1])
        copied(2 * LINES // 3)
        other.kill()
        _append(source, lines[2 * LINES // 3 :])
        copied(LINES)
        expect(
            "lines in the topic",
            lines,
            [(record.value or b"").decode() for record in records(cluster.bootstrap, TOPIC)],
        )
        expect("lines in the file", set(lines), set(_lines(sink)))
        again = len(_lines(sink)) - LINES
    return (
        f"{LINES} lines of a file are in the topic once each and in order (exactly.once.source.support), and all in "
        f"the file of a sink ({again} twice: that sink is at least once), with kill -9 of each worker and of a broker"
    )


def _settings(bootstrap: str, port: int) -> dict[str, object]:
    strings = "org.apache.kafka.connect.storage.StringConverter"
    storage: dict[str, object] = {
        f"{kind}.storage.{what}": value
        for kind in ("offset", "config", "status")
        for what, value in (("topic", f"connect-{kind}"), ("replication.factor", 3))
    }
    return storage | {
        "bootstrap.servers": bootstrap,
        "group.id": "connect",
        "listeners": f"http://{LOOPBACK}:{port}",
        "key.converter": strings,
        "value.converter": strings,
        "exactly.once.source.support": "enabled",
        "offset.flush.interval.ms": 1_000,
        "scheduled.rebalance.max.delay.ms": 1_000,  # of five minutes: for how long a dead worker keeps its tasks
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 1_500,
        "plugin.discovery": "only_scan",
    }


def _connectors(source: Path, sink: Path) -> dict[str, dict[str, str]]:
    return {
        "source": {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "file": str(source),
            "topic": TOPIC,
            "exactly.once.support": "required",
        },
        "sink": {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "file": str(sink),
            "topics": TOPIC,
        },
    }


def _put(port: int, name: str, config: Mapping[str, str]) -> bool:
    path = f"/connectors/{name}/config"
    status, answer = rest(port, path, config, "PUT")
    if status == HTTPStatus.BAD_REQUEST:
        raise Differs(f"Connect refused {path}: {answer}")
    return status in (HTTPStatus.OK, HTTPStatus.CREATED)


def _append(path: Path, lines: list[str]) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


CHECK: Final = Check("connect", f"Kafka Connect {VERSION}", _run)
