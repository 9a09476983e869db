"""The cost of TLS and logins for a node: idle connections, records in and out with librdkafka's own loops.

One node has a listener of each kind. Two at a time are compared in many short pairs of turns, each listener first in
every other pair, so that other load on the machine, and writing the last turn's records to the disk, affect both alike.
A listener keeps its client for all turns, so that none has a connection to make. The node's processor time is measured
besides records per second, because the client, which also encrypts, uses the same processors.
"""

from __future__ import annotations

import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.bench.clusters import create_topic, running
from tidelog.bench.figures import median
from tidelog.bench.listener import librdkafka
from tidelog.bench.listener.kafka import IN_FLIGHT, MIB, PRODUCER, ask
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.node import LocalNode
from tidelog.cli.local.process import use_of
from tidelog.proto.kafka.headers import API_VERSIONS
from tidelog.proto.kafka.messages import request_frame
from tidelog.security.authority import Authority
from tidelog.testing.kafka_requests import fetch_request, log_in, produce_request

IDLE_CONNECTIONS: Final = 3_000
RECORDS: Final = 400_000
"""Records of one turn."""
VALUE_BYTES: Final = 100
LOGIN_PAIRS: Final = 40
"""Enough to tell 2 %, on a machine that does nothing else."""
PAIRS: Final = 12
SMALL_REQUESTS: Final = 2_000
PARTITIONS: Final = 4
FETCHES: Final = 200
PLAIN, LOGIN, TLS, MUTUAL = "KAFKA", "LOGIN", "SECURED", "MUTUAL"
_PROTOCOLS: Final = {LOGIN: "SASL_PLAINTEXT", TLS: "SSL", MUTUAL: "SSL"}
GREETING: Final = request_frame(API_VERSIONS, 0, 1, {})
_TIMEOUT_S: Final = 120.0
_SETTLE_S: Final = 3.0
_DAYS: Final = 7
_TOPIC: Final = "bench"
_USER: Final = "alice"
_PASSWORD: Final = "of no use"


def idle_connections(root: Path) -> Mapping[str, float]:
    """Measure the node's resident memory in KiB for a connection that has asked for versions and is idle."""
    found = {}
    for name, listener in (("plain", PLAIN), ("tls", TLS), ("mtls", MUTUAL)):
        with _secured(root / name) as node, ExitStack() as crowd:
            for _ in range(IDLE_CONNECTIONS // 20):
                node.connect(listener).close()
            before = node.memory_bytes()
            for _ in range(IDLE_CONNECTIONS):
                ask(crowd.enter_context(node.connect(listener)), GREETING, 1, 1)
            time.sleep(_SETTLE_S)
            found[f"connection_{name}_memory"] = (node.memory_bytes() - before) / IDLE_CONNECTIONS / 1024
    return found


def secured_throughput(root: Path) -> Mapping[str, float]:
    """Compare producing with a login and over TLS with plaintext, and the node's processor time for it and for
    fetches."""
    found = {}
    with _secured(root) as node, ExitStack() as clients:
        producers = {name: node.producer_of(name, clients) for name in (PLAIN, LOGIN, TLS)}
        for name, listener, count in (("login", LOGIN, LOGIN_PAIRS), ("tls", TLS, PAIRS)):
            pairs = _in_pairs(producers[PLAIN], producers[listener], count)
            found[f"{name}_produce_ratio"] = median([other[0] / plain[0] for plain, other in pairs])
            found[f"{name}_produce_cpu"] = median([other[1] / plain[1] for plain, other in pairs])
        plain, logged_in = (clients.enter_context(node.connect(name)) for name in (PLAIN, LOGIN))
        requests = _in_pairs(lambda: node.produce_small(plain), lambda: node.produce_small(logged_in), LOGIN_PAIRS)
        found["login_request_cpu"] = median([other[1] / one[1] for one, other in requests])
        ask(plain, produce_request("big", [b"." * (MIB - 200)], 1), 2, 1)
        secured = clients.enter_context(node.connect(TLS))
        fetches = _in_pairs(lambda: node.fetch(plain), lambda: node.fetch(secured), PAIRS)
        found["tls_fetch_1m_cpu"] = median([other[1] for _, other in fetches]) / FETCHES * 1e3
    return found


Turn = tuple[float, float]
"""Records or answers per second, and the node's processor time."""


def _in_pairs(one: Callable[[], Turn], other: Callable[[], Turn], count: int) -> Sequence[tuple[Turn, Turn]]:
    """Run each once as warm-up, then in pairs: one after the other, and the other way round."""
    one()
    other()
    found = []
    for number in range(count):
        if number % 2:
            second = other()
            found.append((one(), second))
        else:
            found.append((one(), other()))
    return found


@dataclass(frozen=True, slots=True)
class _Node:
    """A node with a listener of each kind, and the directory of its certificates."""

    node: LocalNode
    ports: Mapping[str, int]
    certificates: Path

    @property
    def pid(self) -> int:
        found = self.node.pid
        if found is None:
            raise RuntimeError(f"the node ended during the measurement: {self.node.last_words()}")
        return found

    def memory_bytes(self) -> int:
        mark = self.node.mark
        use = None if mark is None else use_of(mark)
        assert use is not None, self.node.last_words()
        return use.memory_bytes

    def cpu_s(self) -> float:
        """Return the sum over all its threads, which the scheduler counts more finely than the process's own
        figures."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(path.read_text().split()[0]) for path in threads) / 1e9

    def connect(self, listener: str) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.ports[listener]), _TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if listener == LOGIN:
            log_in(plain, _USER, _PASSWORD)
        if listener in (PLAIN, LOGIN):
            return plain
        context = ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))
        if listener == MUTUAL:
            context.load_cert_chain(self.certificates / "user.pem")
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def producer_of(self, listener: str, clients: ExitStack) -> Callable[[], Turn]:
        """Connect a producer, which ``clients`` closes; return what produces the records of one turn."""
        settings = {**PRODUCER, "bootstrap.servers": f"127.0.0.1:{self.ports[listener]}"}
        if listener == TLS:
            settings |= {"security.protocol": "ssl", "ssl.ca.location": str(self.certificates / "ca.pem")}
        elif listener == LOGIN:
            settings |= {"security.protocol": "sasl_plaintext", "sasl.mechanism": "SCRAM-SHA-512"}
            settings |= {"sasl.username": _USER, "sasl.password": _PASSWORD}
        client = clients.enter_context(librdkafka.producer(settings))

        def produce() -> Turn:
            before_s = self.cpu_s()
            rate = client.produce(_TOPIC, PARTITIONS, VALUE_BYTES, RECORDS, _TIMEOUT_S)
            return rate, self.cpu_s() - before_s

        return produce

    def produce_small(self, connection: socket.socket) -> Turn:
        request = produce_request(_TOPIC, [b"." * VALUE_BYTES], 1)
        before_s, began_s = self.cpu_s(), time.monotonic()
        ask(connection, request, SMALL_REQUESTS, IN_FLIGHT)
        return SMALL_REQUESTS / (time.monotonic() - began_s), self.cpu_s() - before_s

    def fetch(self, connection: socket.socket) -> Turn:
        before_s, began_s = self.cpu_s(), time.monotonic()
        got = ask(connection, fetch_request("big", MIB, 1), FETCHES, 1)
        if not 0.9 * MIB < got / FETCHES < 1.1 * MIB:
            raise RuntimeError(f"expected answers of 1 MiB, found {got / FETCHES:,.0f} bytes")
        return FETCHES / (time.monotonic() - began_s), self.cpu_s() - before_s


@contextmanager
def _secured(root: Path) -> Iterator[_Node]:
    from tidelog import Admin, UserScramCredentialUpsertion

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * IDLE_CONNECTIONS)), hard))
    certificates = root / "certificates"
    certificates.mkdir(parents=True)
    authority = Authority.make("benchmark", _DAYS)
    (certificates / "ca.pem").write_text(authority.pem)
    (certificates / "node.pem").write_text(authority.issue("node", ("127.0.0.1",), _DAYS))
    (certificates / "user.pem").write_text(authority.issue(_USER, (), _DAYS))
    settings = {
        "ssl.keystore.location": str(certificates / "node.pem"),
        "ssl.truststore.location": str(certificates / "ca.pem"),
        "log.retention.check.interval.ms": "2000",
        "log.segment.delete.delay.ms": "1000",
    }
    ports: dict[str, int] = {}

    def listen(cluster: LocalCluster) -> None:
        node = cluster.nodes[1]
        ports.update({PLAIN: node.ports.kafka, **node.listen_too(_PROTOCOLS)})
        node.configure({**node.settings, f"listener.name.{MUTUAL.lower()}.ssl.client.auth": "required"})

    with running(root, 1, settings, listen) as cluster:
        with Admin(cluster.bootstrap) as admin:
            # Old segments are deleted, so that the turns do not fill a small disk.
            small = {"retention.bytes": str(256 * MIB), "segment.bytes": str(64 * MIB)}
            create_topic(admin, _TOPIC, partitions=PARTITIONS, settings=small)
            big = {"max.message.bytes": str(2 * MIB), "retention.ms": "-1"}
            create_topic(admin, "big", partitions=1, settings=big)
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion(_USER, _PASSWORD)])
        yield _Node(cluster.nodes[1], ports, certificates)
