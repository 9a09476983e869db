"""A running cluster of processes goes from plaintext to TLS, logins and access control by the steps of the page, while
clients of both protocols write and read: nothing is lost, nobody gets an error, and plaintext is refused in the end."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from tests.docs.code_blocks import ROOT, code_blocks
from tidelog import Admin
from tidelog.chaos.drill.evidence import compare
from tidelog.chaos.drill.traffic import Load, Traffic
from tidelog.chaos.laboratory.history.recording import read_through
from tidelog.chaos.laboratory.links.connections import connections
from tidelog.chaos.laboratory.workloads.client_loop import ClientLoop
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.root import run
from tidelog.client.admin.types import NewTopic
from tidelog.client.config.security import SecuritySettings
from tidelog.client.errors import TidelogError
from tidelog.model.settings.properties import parse_properties
from tidelog.proto.transport.network import Address
from tidelog.security.acls import AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from tidelog.testing.ports import free_ports

PAGE: Final = ROOT / "docs" / "security.md"
NODES: Final = (1, 2, 3)
BOUND_S: Final = 90.0
USERS: Final = {"admin": "the admin's own words", "alice": "alice's own words"}
FOREIGN: Final = "foreign"


def steps(place: Path) -> list[str]:
    """What the page has nodes' configurations say, step by step."""
    (section,) = (text for text in PAGE.read_text().split("\n## ") if text.startswith("Change a running cluster\n"))
    page = place / "section.md"
    page.write_text(section)
    return [block.text for block in code_blocks(page) if block.info == ("properties",)]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Operator:
    """Follows the steps on a cluster whose ports are not the page's."""

    def __init__(self, cluster: LocalCluster, keys: Path) -> None:
        self.cluster = cluster
        self._keys = keys
        fresh = iter(free_ports(len(NODES) * 4))
        self._ports = {
            number: {
                9092: node.ports.kafka, 9096: node.ports.client,
                9093: node.ports.replication, 9094: node.ports.controller,
                **{port: next(fresh) for port in (9192, 9196, 9193, 9194)},
            }
            for number, node in cluster.nodes.items()
        }  # fmt: skip

    def port(self, node: int, page: int) -> int:
        """The port that stands for one of the page's."""
        return self._ports[node][page]

    def bootstrap(self, page: int) -> str:
        return ",".join(f"127.0.0.1:{self.port(node, page)}" for node in NODES)

    def addresses(self, page: int) -> dict[int, Address]:
        return {node: Address("127.0.0.1", self.port(node, page)) for node in NODES}

    def _said(self, text: str, node: int) -> dict[str, str]:
        """A step's lines, as this node's configuration has them."""
        found = {}
        for name, line in parse_properties(text).items():
            value = line.value.replace("/etc/tidelog", str(self._keys)).replace("node-1.pem", f"node-{node}.pem")
            if name == "listeners":
                value = value.replace("10.0.0.1:", f"10.0.0.{node}:")
            for number, ports in self._ports.items():
                for page, port in ports.items():
                    value = value.replace(f"10.0.0.{number}:{page}", f"127.0.0.1:{port}")
            assert "10.0.0." not in value
            found[name] = value
        return found

    def restart(self, text: str, whole: Callable[[], bool], controller: Callable[[], int]) -> None:
        """One node after the other takes over a step; the active controller last."""
        left = set(NODES)
        while left:
            others = sorted(left - {controller()})
            node = (others or sorted(left))[0]
            left.discard(node)
            found = self.cluster.nodes[node]
            assert self.cluster.stop([node], BOUND_S) == []
            found.configure({**found.settings, **self._said(text, node)})
            self.cluster.start([node])
            self.cluster.wait_ready([node], BOUND_S)
            until(whole, f"every replica in sync after node {node}")

    def dialled(self) -> Counter[int]:
        """The page's ports of other nodes that nodes are connected to, and how often."""
        of_page = {port: page for ports in self._ports.values() for page, port in ports.items()}
        pids = [node.pid or 0 for node in self.cluster.nodes.values()]
        return Counter(of_page[link.remote_port] for link in connections(pids) if link.remote_port in of_page)


class ForeignClients:
    """A producer and a member of a group by librdkafka, in a thread; they reconnect where they are told."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged: set[bytes] = set()
        self.errors: list[str] = []
        self.read: Counter[bytes] = Counter()
        self._stopping = False
        self._thread = threading.Thread(target=lambda: None)

    def begin(self, settings: Mapping[str, Any]) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, args=(settings,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends when everything that was sent has its outcome and has been read."""
        self._stopping = True
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive(), (self.sent, len(self.acknowledged), len(self.read), self.errors)

    def _run(self, settings: Mapping[str, Any]) -> None:
        def heard(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                self.errors.append(str(error))
            else:
                self.acknowledged.add(message.value() or b"")

        base = {**settings, "log_level": 0, "reconnect.backoff.max.ms": 200}
        producer = confluent_kafka.Producer({**base, "enable.idempotence": True, "linger.ms": 0})
        consumer = confluent_kafka.Consumer(
            {**base, "group.id": FOREIGN, "auto.offset.reset": "earliest", "enable.auto.commit": True}
        )
        consumer.subscribe([FOREIGN])
        while not self._stopping or len(self.acknowledged) + len(self.errors) < self.sent or self._unread:
            if not self._stopping:
                producer.produce(FOREIGN, b"%d" % self.sent, on_delivery=heard)
                self.sent += 1
            producer.poll(0.01)
            message = consumer.poll(0.01)
            if message is not None and message.error() is None:
                self.read[message.value() or b""] += 1
        consumer.close()  # which commits

    @property
    def _unread(self) -> bool:
        return len(self.read) < len(self.acknowledged)


class Clients:
    """The drills' clients: a producer, a reader, changes of settings, a watcher."""

    def __init__(
        self, clients: ClientLoop, operator: Operator, page: int, topic: str, security: SecuritySettings
    ) -> None:
        self._clients = clients
        self._bootstrap, self._security = operator.bootstrap(page), security
        configs = {"min.insync.replicas": "2"}
        self._traffic = Traffic(
            self._bootstrap, operator.addresses(page), NewTopic(topic, 6, 3, configs=configs), Load(), self._security
        )
        clients.run(self._traffic.begin(), BOUND_S)

    def whole(self) -> bool:
        """Whether all is well, asked from now on."""
        since = self._traffic.now()
        until(lambda: self._traffic.last_look[0] > since, "the cluster answers")
        found = self._traffic.last_look[1]
        return found.whole and not found.fenced and len(found.partitions) == 6

    def controller(self) -> int:
        return self._traffic.last_look[1].controller

    def goes_on(self) -> None:
        """Records and changes of metadata that are asked for from now on are acknowledged, and records handed out."""
        evidence, since = self._traffic.evidence, self._traffic.now()
        until(lambda: len({one.partition for one in evidence.acknowledged_since(since)}) == 6, "records")
        until(lambda: bool(evidence.commits) and evidence.commits[-1].began_s > since, "changes of metadata")
        until(lambda: bool(evidence.handed) and evidence.handed[-1][0] > since, "a reader is given records")

    def end(self) -> None:
        """Judge: no error, everything acknowledged, and there once."""
        traffic, evidence = self._traffic, self._traffic.evidence
        assert self._clients.run(traffic.stop_sending(), 3 * BOUND_S) == 0
        log, _, _ = self._clients.run(
            read_through(self._bootstrap, traffic.partitions, BOUND_S, self._security), 2 * BOUND_S
        )
        self._clients.run(traffic.end(delete=False), BOUND_S)
        back = compare(
            evidence.places,
            (
                (int(value.partition(b":")[0]), at.partition, offset)
                for at, records in log.items()
                for offset, value in records
            ),
        )
        assert (evidence.errors, evidence.troubles) == (0, [])
        assert (back.read, back.lost, back.duplicated) == (evidence.sent, 0, 0)
        assert evidence.sent > 500


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster.create(tmp_path / "cluster", nodes=3)
    try:
        made.start()
        made.wait_ready(timeout_s=BOUND_S)
        yield made
    finally:
        for node in made.nodes:
            made.kill(node)


@pytest.mark.timeout(900)
def test_a_running_cluster_is_secured_by_the_steps_of_the_page(cluster: LocalCluster, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    hosts = [word for node in NODES for word in ("--node", f"{node}=127.0.0.1,localhost")]
    assert run(["security", "init", str(keys), *hosts, "--days", "2"]) == 0
    opened, used, closed, judged, strict = steps(tmp_path)
    operator = Operator(cluster, keys)
    for user, words in USERS.items():
        (tmp_path / user).write_text(words)
        asked = ["users", "set", user, "--password-file", str(tmp_path / user), "-b", operator.bootstrap(9096)]
        assert run(asked) == 0
    logged_in: SecuritySettings = {
        "security_protocol": "SASL_SSL", "ssl_cafile": str(keys / "ca.pem"), "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "admin", "sasl_password": USERS["admin"],
    }  # fmt: skip
    foreign = ForeignClients()
    with ClientLoop() as clients:
        before = Clients(clients, operator, 9096, "before", {})
        with Admin(operator.bootstrap(9096)) as admin:
            admin.create_topics([NewTopic(FOREIGN, 3, 3)])
        foreign.begin({"bootstrap.servers": operator.bootstrap(9092)})
        until(before.whole, "a whole cluster")
        before.goes_on()

        operator.restart(opened, before.whole, before.controller)
        assert set(operator.dialled()) == {9093, 9094}
        operator.restart(used, before.whole, before.controller)
        before.goes_on()
        assert set(operator.dialled()) == {9193, 9194}

        after = Clients(clients, operator, 9196, "after", logged_in)
        after.goes_on()
        before.goes_on()  # clients that have not moved yet
        foreign.end()
        foreign.begin(
            {
                "bootstrap.servers": operator.bootstrap(9192), "security.protocol": "sasl_ssl",
                "ssl.ca.location": str(keys / "ca.pem"), "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice", "sasl.password": USERS["alice"],
            }
        )  # fmt: skip
        before.end()

        operator.restart(closed + judged, after.whole, after.controller)
        with Admin(operator.bootstrap(9196), **logged_in) as admin:
            kinds = {ResourceType.TOPIC: FOREIGN, ResourceType.GROUP: FOREIGN}
            admin.create_acls(
                [
                    AclBinding(
                        kind, name, PatternType.LITERAL, "User:alice", "*", AclOperation.ALL, PermissionType.ALLOW
                    )
                    for kind, name in kinds.items()
                ]
            )
        operator.restart(strict, after.whole, after.controller)
        after.goes_on()
        foreign.end()
        after.end()

    assert foreign.errors == []
    assert foreign.acknowledged == {b"%d" % number for number in range(foreign.sent)} == set(foreign.read)
    for node in NODES:
        for page in (9092, 9093, 9094, 9096):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", operator.port(node, page)), 5)
    plain: dict[str, Any] = {"default_api_timeout_ms": 1_000, "request_timeout_ms": 500}
    for page in (9192, 9193, 9194, 9196):
        with pytest.raises(TidelogError), Admin(operator.bootstrap(page), **plain) as stranger:
            stranger.list_topics()
