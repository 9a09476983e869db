"""The cost of TLS and logins for a node: idle connections, records in and out with librdkafka's own loops.

One node has a listener of each kind, and they take turns, so that other load on the machine affects all alike. The
node's processor time is measured besides records per second, because the client, which also encrypts, uses the same
processors.
"""

from __future__ import annotations

import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.bench.clusters import create_topic, running
from tidelog.bench.figures import median
from tidelog.bench.listener import librdkafka
from tidelog.bench.listener.kafka import MIB, PRODUCER, ask
from tidelog.cli.local.cluster import LocalCluster, LocalNode
from tidelog.cli.local.process import use_of
from tidelog.proto.kafka.headers import API_VERSIONS
from tidelog.proto.kafka.messages import request_frame
from tidelog.security.authority import Authority
from tidelog.testing.kafka_requests import fetch_request, produce_request

IDLE_CONNECTIONS: Final = 3_000
RECORDS: Final = 2_000_000
VALUE_BYTES: Final = 100
TURNS: Final = 5
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
    with _secured(root) as node:
        rates = _in_turns({name: node.producer_of(name) for name in (PLAIN, LOGIN, TLS)})
        for name, listener in (("login", LOGIN), ("tls", TLS)):
            found[f"{name}_produce_ratio"] = median([rate[listener][0] / rate[PLAIN][0] for rate in rates])
            found[f"{name}_produce_cpu"] = median([rate[listener][1] / rate[PLAIN][1] for rate in rates])
        with node.connect(PLAIN) as plain, node.connect(TLS) as secured:
            ask(plain, produce_request("big", [b"." * (MIB - 200)], 1), 2, 1)
            fetches = _in_turns({PLAIN: lambda: node.fetch(plain), TLS: lambda: node.fetch(secured)})
        found["tls_fetch_1m_cpu"] = median([each[TLS][1] for each in fetches]) / FETCHES * 1e3
    return found


Turn = tuple[float, float]
"""Records or answers per second, and the node's processor time."""


def _in_turns(kinds: Mapping[str, Callable[[], Turn]]) -> list[dict[str, Turn]]:
    """Run each once as warm-up, then in turns."""
    for run in kinds.values():
        run()
    return [{name: run() for name, run in kinds.items()} for _ in range(TURNS)]


@dataclass(frozen=True, slots=True)
class _Node:
    """Yield a node with a listener of each kind, and the authority that signed its certificate."""

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
        if listener == PLAIN:
            return plain
        context = ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))
        if listener == MUTUAL:
            context.load_cert_chain(self.certificates / "user.pem")
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def producer_of(self, listener: str) -> Callable[[], Turn]:
        settings = {**PRODUCER, "bootstrap.servers": f"127.0.0.1:{self.ports[listener]}"}
        if listener == TLS:
            settings |= {"security.protocol": "ssl", "ssl.ca.location": str(self.certificates / "ca.pem")}
        elif listener == LOGIN:
            settings |= {"security.protocol": "sasl_plaintext", "sasl.mechanism": "SCRAM-SHA-512"}
            settings |= {"sasl.username": _USER, "sasl.password": _PASSWORD}

        def produce() -> Turn:
            with librdkafka.producer(settings) as client:
                client.ends(_TOPIC, PARTITIONS)  # then it is connected: a login takes a client about 20 ms, once
                before_s = self.cpu_s()
                rate = client.produce(_TOPIC, PARTITIONS, VALUE_BYTES, RECORDS, _TIMEOUT_S)
                return rate, self.cpu_s() - before_s

        return produce

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
