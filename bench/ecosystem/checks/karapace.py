"""Karapace, a schema registry that keeps its schemas in a topic: two instances, which are killed, as a broker is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from subprocess import Popen
from typing import Any, Final, NamedTuple

from tidelog import Admin
from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import Check, Differs, expect, output, rest, started, until
from tidelog.bench.ecosystem.installing import PROGRAMS, Missing, python_with
from tidelog.testing.ports import LOOPBACK, free_ports

VERSION: Final = "6.2.0"
PYTHON: Final = "KARAPACE_PYTHON"
"""The environment variable for the Python that has Karapace: no package registry has it."""
SERIALIZERS: Final = "confluent-kafka[avro,json,schemaregistry]==2.16.1"
SUBJECTS: Final = 10
"""Of each kind."""
RECORDS: Final = 200


class Kind(NamedTuple):
    """How a kind of schema says that field 1, ``id``, has a type, and whether there is a second field."""

    schema: Callable[[str, str, bool], str]
    whole: str
    other: str
    """A type that readers of the first cannot read."""
    read: Callable[[str], object]
    """What is compared: registries may write a schema in another way."""


def _avro(name: str, kind: str, longer: bool) -> str:
    note = [{"name": "note", "type": "string", "default": ""}] if longer else []
    return json.dumps({"type": "record", "name": name, "fields": [{"name": "id", "type": kind}, *note]})


def _json(name: str, kind: str, longer: bool) -> str:
    kinds = {"type": ["number", "null"] if longer else kind}
    return json.dumps({"title": name, "type": "object", "properties": {"id": kinds}, "required": ["id"]})


def _protobuf(name: str, kind: str, longer: bool) -> str:
    note = "  string note = 2;\n" if longer else ""
    return f'syntax = "proto3";\nmessage {name} {{\n  {kind} id = 1;\n{note}}}\n'


KINDS: Final = {
    "AVRO": Kind(_avro, "long", "string", json.loads),
    "JSON": Kind(_json, "integer", "string", json.loads),
    "PROTOBUF": Kind(_protobuf, "int64", "string", str.split),
}


class Registries:
    """The instances, and what was registered with them. ``base``: what their paths begin with."""

    def __init__(self, ports: list[int], base: str = "") -> None:
        self.ports = ports
        self.base = base
        self.known: dict[tuple[str, int], tuple[str, int, str]] = {}
        """Subject and version → kind, id and text."""

    def asked(
        self, port: int, path: str, body: dict[str, object] | None = None, method: str | None = None
    ) -> tuple[int, Any]:
        """Ask until the answer is none of a registry that has no primary, or lost its broker."""
        found: list[tuple[int, Any]] = []

        def answered() -> bool:
            found.append(rest(port, self.base + path, body, method))
            return HTTPStatus.OK <= found[-1][0] < HTTPStatus.INTERNAL_SERVER_ERROR

        try:
            until(path, answered)
        except Exception as never:
            raise Differs(f"{path}: expected an answer, found {found[-1]}") from never
        return found[-1]

    def register(self, port: int, version: int) -> None:
        """Register this version of every subject."""
        for kind, how in KINDS.items():
            for number in range(SUBJECTS):
                text = how.schema(f"Order{number}", how.whole, version > 1)
                path = f"/subjects/{subject(kind, number)}/versions"
                status, answer = self.asked(port, path, {"schema": text, "schemaType": kind})
                expect(f"{path}, {answer}", HTTPStatus.OK, status)
                self.known[subject(kind, number), version] = kind, answer["id"], text

    def refuse(self, port: int, kinds: Iterable[str] = KINDS) -> None:
        """Expect what cannot be read by readers of a subject to be told so, and refused."""
        for kind in kinds:
            how = KINDS[kind]
            path = f"/subjects/{subject(kind, 0)}/versions"
            for wanted, longer, one in ((True, True, how.whole), (False, False, how.other)):
                asked: dict[str, object] = {"schema": how.schema("Order0", one, longer), "schemaType": kind}
                status, answer = self.asked(port, f"/compatibility{path}/latest", asked)
                expect(f"compatible, {kind}", (HTTPStatus.OK, wanted), (status, dict(answer).get("is_compatible")))
            expect(f"refused, {kind}", HTTPStatus.CONFLICT, self.asked(port, path, asked)[0])

    def compare(self, port: int) -> None:
        """Expect everything that was registered, under its id and version, and nothing else."""
        subjects = {name for name, _ in self.known}
        expect("subjects", sorted(subjects), sorted(self.asked(port, "/subjects")[1]))
        for name in subjects:
            versions = [version for known, version in self.known if known == name]
            expect(f"versions of {name}", sorted(versions), self.asked(port, f"/subjects/{name}/versions")[1])
        for (name, version), (kind, schema_id, text) in self.known.items():
            found = self.asked(port, f"/subjects/{name}/versions/{version}")[1]
            read = KINDS[kind].read
            expect(f"{name} {version}", (schema_id, read(text)), (found["id"], read(found["schema"])))
            expect(f"schema {schema_id}", read(text), read(self.asked(port, f"/schemas/ids/{schema_id}")[1]["schema"]))


def subject(kind: str, number: int) -> str:
    return f"{kind.lower()}-{number}-value"


def python_with_karapace() -> str:
    """Return the Python that has Karapace. Raises :class:`Missing`."""
    if not (python := os.environ.get(PYTHON)):
        raise Missing(
            f"expected ${PYTHON}, the Python of an environment with Karapace {VERSION}, found none: no package "
            "registry has Karapace; install it as its own page says"
        )
    return python


def start_registry(stack: ExitStack, root: Path, bootstrap: str, port: int, *, copies: int = 3) -> Popen[bytes]:
    """Run a registry until the stack ends; return once it serves. ``copies``: of its topic."""
    environment = {**os.environ, **_settings(bootstrap, port, copies)}
    command, log = [python_with_karapace(), "-m", "karapace"], root / f"karapace-{port}.log"
    process = stack.enter_context(started(command, log, environment=environment))
    until(f"Karapace (port {port})", lambda: bool(_health(port).get("schema_registry_ready")), process)
    return process


def _run(root: Path) -> str:
    python_with_karapace()
    program = [python_with("serializers", SERIALIZERS), str(PROGRAMS / "python" / "registry_copy.py")]
    with clusters.running(root, 3) as cluster, ExitStack() as stack:
        with Admin(cluster.bootstrap) as admin:
            for topic in ("orders-avro", "orders-json"):
                clusters.create_topic(admin, topic, copies=3)
        ports = free_ports(2)
        registries = Registries(ports)

        def start(port: int) -> Popen[bytes]:
            return start_registry(stack, root, cluster.bootstrap, port)

        running = {port: start(port) for port in ports}
        primary: list[int] = []

        def elected() -> bool:
            primary[:] = [port for port in ports if _health(port).get("schema_registry_is_primary")]
            return len(primary) == 1

        until("one primary", elected)
        (survivor,) = set(ports) - set(primary)
        registries.register(survivor, 1)  # which forwards it
        for port in ports:
            registries.refuse(port)
            registries.compare(port)
        said = output([*program, cluster.bootstrap, f"http://{LOOPBACK}:{survivor}", str(RECORDS)])
        expect("records that were read back", [f"avro {RECORDS}", f"json {RECORDS}"], said.splitlines())
        for name in ("avro", "json"):
            _, found = registries.asked(survivor, f"/subjects/orders-{name}-value/versions/1")
            registries.known[f"orders-{name}-value", 1] = name.upper(), found["id"], found["schema"]
        running[primary[0]].kill()
        cluster.kill(1)
        registries.register(survivor, 2)
        cluster.start([1])
        cluster.wait_ready()
        running[survivor].kill()
        for port in ports:
            running[port].wait()
            start(port)
        for port in ports:
            registries.compare(port)
    return (
        f"{len(registries.known)} versions of Avro, JSON and Protobuf schemas, through a secondary too, checked for "
        f"compatibility, and read back under their ids by two registries that were killed (kill -9), as a broker was; "
        f"{2 * RECORDS} records of confluent-kafka's Avro and JSON serializers read back"
    )


def _health(port: int) -> dict[str, Any]:
    status, answer = rest(port, "/_health")
    found: dict[str, Any] = answer["status"] if status == HTTPStatus.OK else {}
    return found


def _settings(bootstrap: str, port: int, copies: int) -> dict[str, str]:
    settings = {
        "bootstrap_uri": bootstrap,
        "host": LOOPBACK,
        "port": str(port),
        "advertised_hostname": LOOPBACK,
        "advertised_port": str(port),
        "replication_factor": str(copies),
        "log_level": "INFO",
    }
    return {f"KARAPACE_{name.upper()}": value for name, value in settings.items()}


CHECK: Final = Check("karapace", f"Karapace {VERSION}", _run)
