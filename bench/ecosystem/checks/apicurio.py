"""Apicurio Registry, which keeps its schemas in topics: two instances, which are killed, as a broker is."""

from __future__ import annotations

import os
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from subprocess import Popen
from typing import Final

from tidelog import Admin
from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import Check, expect, output, rest, started, until
from tidelog.bench.ecosystem.checks.karapace import RECORDS, SERIALIZERS, Registries
from tidelog.bench.ecosystem.checks.suite_clusters import CALM
from tidelog.bench.ecosystem.installing import JAVA, PROGRAMS, SMALL_JVM, maven_archive, program, python_with
from tidelog.testing.ports import LOOPBACK, free_ports

VERSION: Final = "3.0.9"
"""The newest that runs on Java 17."""
BASE: Final = "/apis/ccompat/v7"
"""The interface that is Confluent's."""
STARTS_S: Final = 400.0
JOURNAL: Final = "kafkasql-journal"


def level(registries: Registries, port: int, name: str) -> None:
    """Set how compatible new versions must be."""
    expect("the level", HTTPStatus.OK, registries.asked(port, "/config", {"compatibility": name}, "PUT")[0])


def _run(root: Path) -> str:
    archive = maven_archive("apicurio", "io.apicurio", "apicurio-registry-app", VERSION, "all")
    command = [program("java", JAVA), *SMALL_JVM, "-jar", str(archive / f"apicurio-registry-app-{VERSION}-runner.jar")]
    serializers = [python_with("serializers", SERIALIZERS), str(PROGRAMS / "python" / "registry_copy.py")]
    with clusters.running(root, 3, CALM | {"default.replication.factor": "3"}) as cluster, ExitStack() as stack:
        with Admin(cluster.bootstrap) as admin:
            for topic in ("orders-avro", "orders-json"):
                clusters.create_topic(admin, topic, copies=3)
        first, second = ports = free_ports(2)
        registries = Registries(ports, BASE)

        def start(port: int) -> Popen[bytes]:
            settings = {
                "APICURIO_STORAGE_KIND": "kafkasql",
                "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": cluster.bootstrap,
                "QUARKUS_HTTP_HOST": LOOPBACK,
                "QUARKUS_HTTP_PORT": str(port),
            }
            log = root / f"apicurio-{port}.log"
            process = stack.enter_context(started(command, log, environment={**os.environ, **settings}))
            ready = f"Apicurio (port {port})"
            until(ready, lambda: rest(port, "/health/ready")[0] == HTTPStatus.OK, process, STARTS_S)
            return process

        def follow(port: int) -> None:
            """An instance hears of what others registered by the topic."""
            wanted = {name for name, _ in registries.known}
            until("all subjects", lambda: wanted <= set(registries.asked(port, "/subjects")[1]))
            for name, version in registries.known:
                path = f"/subjects/{name}/versions/{version}"
                until(path, lambda path=path: registries.asked(port, path)[0] == HTTPStatus.OK)  # type: ignore[misc]
            registries.compare(port)

        running = {port: start(port) for port in ports}
        with Admin(cluster.bootstrap) as admin:
            copies = {len(found.replicas) for found in admin.describe_topics([JOURNAL])[0].partitions}
        expect(f"replicas of {JOURNAL}", {3}, copies)
        level(registries, first, "BACKWARD")
        registries.register(first, 1)
        for port in ports:
            follow(port)
        registries.refuse(second, ("AVRO",))
        level(registries, second, "NONE")  # the second JSON schema does not suit it
        said = output([*serializers, cluster.bootstrap, f"http://{LOOPBACK}:{second}{BASE}", str(RECORDS)])
        expect("records that were read back", [f"avro {RECORDS}", f"json {RECORDS}"], said.splitlines())
        for name in ("avro", "json"):
            _, found = registries.asked(second, f"/subjects/orders-{name}-value/versions/1")
            registries.known[f"orders-{name}-value", 1] = name.upper(), found["id"], found["schema"]
        running[first].kill()
        cluster.kill(1)
        registries.register(second, 2)
        cluster.start([1])
        cluster.wait_ready()
        running[second].kill()
        for port in ports:
            running[port].wait()
            start(port)
        for port in ports:
            follow(port)
    return (
        f"{len(registries.known)} versions of Avro, JSON and Protobuf schemas, an incompatible one refused, read "
        f"back under their ids by two registries that were killed (kill -9), as a broker was; {2 * RECORDS} records of "
        "confluent-kafka's Avro and JSON serializers read back"
    )


CHECK: Final = Check("apicurio", f"Apicurio Registry {VERSION}", _run)
