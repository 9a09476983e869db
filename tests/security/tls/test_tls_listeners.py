"""TLS on a node's listeners, met by foreign clients, by the SDK, by openssl, and by those who come the wrong way."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka import admin as confluent_admin

from tests.security.conftest import Certificates
from tidelog import Admin, Consumer, Producer, errors
from tidelog.broker.kafka.connection import KafkaConnection
from tidelog.broker.kafka.server import KafkaListener
from tidelog.security.principal import Principal
from tidelog.testing.cluster import Cluster

RECORD = b"a value that must not be seen" * 1_000


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def kafka_listener(cluster: Cluster) -> KafkaListener:
    role = cluster._inner.nodes[cluster.node_ids[0]].broker
    assert role is not None
    found = role._servers["KAFKA"]
    assert isinstance(found, KafkaListener)
    return found


def principals(cluster: Cluster) -> set[Principal]:
    """Of the connections of the first node's Kafka listener."""
    connections: list[KafkaConnection] = list(kafka_listener(cluster)._connections)
    return {found._requests._context.session.principal for found in connections}


@pytest.fixture(scope="module")
def secured(kept_certificates: Certificates) -> Iterator[Cluster]:
    """One node; every listener asks for a certificate."""
    settings = kept_certificates.settings("KAFKA CLIENT REPLICATION CONTROLLER", "required")
    settings["ssl.principal.mapping.rules"] = r"RULE:^CN=(.*)$/$1/"
    with Cluster(nodes=1, transport="grpc", config=settings) as cluster:
        yield cluster


# --- Who comes the right way ------------------------------------------------------------------------------


def test_librdkafka_writes_and_reads(secured: Cluster, kept_certificates: Certificates) -> None:
    settings = kept_certificates.librdkafka(secured.kafka_bootstrap)
    producer = confluent_kafka.Producer(settings)
    for _ in range(50):
        producer.produce("rdkafka", RECORD)
    assert producer.flush(20) == 0
    consumer = confluent_kafka.Consumer(settings | {"group.id": "rdkafka", "auto.offset.reset": "earliest"})
    consumer.subscribe(["rdkafka"])
    values: list[bytes | None] = []
    deadline = time.monotonic() + 20
    while len(values) < 50 and time.monotonic() < deadline:
        values += [message.value() for message in consumer.consume(50, 1) if message.error() is None]
    assert values == [RECORD] * 50
    assert principals(secured) == {Principal("User", "alice")}
    consumer.close()


async def test_aiokafka_writes_and_reads(secured: Cluster, kept_certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=kept_certificates.roots)
    context.load_cert_chain(kept_certificates.user("bob"))
    settings = {"bootstrap_servers": secured.kafka_bootstrap, "security_protocol": "SSL", "ssl_context": context}
    async with aiokafka.AIOKafkaProducer(**settings, max_request_size=2**22) as producer:
        sent = await producer.send_and_wait("aiokafka", bytes(900_000))
    async with aiokafka.AIOKafkaConsumer("aiokafka", **settings, auto_offset_reset="earliest") as consumer:
        got = await asyncio.wait_for(consumer.getone(), 20)
        assert (got.offset, len(got.value)) == (sent.offset, 900_000)
        assert Principal("User", "bob") in principals(secured)


def test_the_sdk_writes_and_reads_at_either_address(secured: Cluster, kept_certificates: Certificates) -> None:
    settings = kept_certificates.client()
    for number, bootstrap in enumerate((secured.bootstrap, secured.kafka_bootstrap)):
        topic = f"sdk-{number}"
        with Producer(bootstrap, **settings) as producer:
            producer.send(topic, b"x").result(20)
        with Consumer(bootstrap, **settings, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe([topic])
            assert [record.value for record in consumer.poll(20)] == [b"x"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
@pytest.mark.parametrize(("version", "works"), [("-tls1_3", True), ("-tls1_2", True), ("-tls1_1", False)])
def test_what_openssl_finds(secured: Cluster, kept_certificates: Certificates, version: str, works: bool) -> None:
    for address in (secured.kafka_bootstrap, secured.bootstrap):
        done = subprocess.run(
            ["openssl", "s_client", "-connect", address, "-CAfile", kept_certificates.roots, "-verify_return_error",
             "-cert", kept_certificates.user(), "-alpn", "h2", version, "-brief"],
            input="", capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert ("Verification: OK" in done.stderr) is works, done.stderr


# --- Who does not -----------------------------------------------------------------------------------------


def librdkafka_error(settings: dict[str, Any]) -> str:
    said: list[str] = []
    client = confluent_admin.AdminClient(settings | {"error_cb": lambda error: said.append(str(error))})
    with pytest.raises(confluent_kafka.KafkaException):
        client.list_topics(timeout=3)
    client.poll(0)
    return " ".join(said)


def test_a_client_without_a_certificate_is_told(
    secured: Cluster, kept_certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    text = librdkafka_error(kept_certificates.librdkafka(secured.kafka_bootstrap, None))
    assert "certificate required" in text or "handshake failure" in text.lower()
    assert "the TLS handshake failed: expected a client certificate (ssl.client.auth), found none" in caplog.text


def test_a_client_of_another_authority_is_told(
    secured: Cluster, kept_certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Certificates(tmp_path)
    settings = stranger.librdkafka(secured.kafka_bootstrap) | {"ssl.ca.location": kept_certificates.roots}
    assert "unknown ca" in librdkafka_error(settings)
    assert "expected a client certificate from an authority in the truststore" in caplog.text


def test_an_expired_client_certificate_is_told(
    secured: Cluster, kept_certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    settings = kept_certificates.librdkafka(secured.kafka_bootstrap, "late")
    kept_certificates.user("late", days=-1)
    assert "expired" in librdkafka_error(settings)
    assert "certificate has expired" in caplog.text


def test_a_client_that_does_not_know_the_authority_is_told(
    secured: Cluster, kept_certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Certificates(tmp_path)
    settings = kept_certificates.librdkafka(secured.kafka_bootstrap) | {"ssl.ca.location": other.roots}
    assert "certificate verify failed" in librdkafka_error(settings)
    assert "the client aborted the TLS handshake" in caplog.text
    with (
        Admin(secured.bootstrap, **kept_certificates.client() | {"ssl_cafile": other.roots}) as admin,
        pytest.raises(errors.SslAuthenticationError, match="the listener's certificate is not trusted"),
    ):
        admin.describe_cluster()


def test_a_plaintext_client_is_told(secured: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    librdkafka_error({"bootstrap.servers": secured.kafka_bootstrap, "log_level": 0, "socket.timeout.ms": 2000})
    assert "expected TLS, found Kafka's protocol in plaintext: the client needs security.protocol=SSL" in caplog.text
    with (
        Admin(secured.kafka_bootstrap) as admin,
        pytest.raises(errors.WrongAddressError, match="listener KAFKA expects TLS: set security_protocol=SSL"),
    ):
        admin.describe_cluster()
    address = secured._inner.nodes[secured.node_ids[0]].client_address
    with (
        Admin(str(address), default_api_timeout_ms=2_000) as admin,
        pytest.raises(errors.TidelogError, match=r"does the listener expect TLS \(security_protocol=SSL\)\?"),
    ):
        admin.describe_cluster()


def test_a_client_without_a_certificate_is_told_by_the_sdk(secured: Cluster, kept_certificates: Certificates) -> None:
    address = secured._inner.nodes[secured.node_ids[0]].client_address
    with (
        Admin(str(address), default_api_timeout_ms=2_000, **kept_certificates.client(None)) as admin,
        pytest.raises(errors.TidelogError, match=r"expect a client certificate \(ssl_certfile\)\?"),
    ):
        admin.describe_cluster()


def test_those_who_say_nothing_hold_no_place(secured: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.kafka.handshakes.TIMEOUT_S", 0.2)
    listener = kafka_listener(secured)
    host, _, port = secured.kafka_bootstrap.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(20)]
    handshakes = listener._handshakes
    assert handshakes is not None
    wait_until(lambda: not handshakes.under_way and all(_ended(sock) for sock in silent), "they are let go")
    for sock in silent:
        sock.close()


def test_those_who_say_nothing_hold_nobody_up(kept_certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than there are places. Their time is not over before the test is."""
    monkeypatch.setattr("tidelog.broker.kafka.handshakes.TIMEOUT_S", 300)
    monkeypatch.setattr("tidelog.broker.kafka.handshakes.UNDER_WAY_MAX", 4)
    settings = kept_certificates.settings("KAFKA", "none")
    with Cluster(nodes=1, transport="grpc", config=settings) as cluster, ExitStack() as kept:
        host, _, port = cluster.kafka_bootstrap.rpartition(":")
        for _ in range(20):
            kept.enter_context(socket.create_connection((host, int(port))))
        kept.enter_context(socket.create_connection((host, int(port)))).sendall(b"\x16")
        handshakes = kafka_listener(cluster)._handshakes
        assert handshakes is not None
        wait_until(lambda: len(handshakes.under_way) == 21, "all of them were accepted")
        context = ssl.create_default_context(cafile=kept_certificates.client(None)["ssl_cafile"])
        plain = kept.enter_context(socket.create_connection((host, int(port)), 60))
        assert kept.enter_context(context.wrap_socket(plain, server_hostname="localhost")).version()


def _ended(sock: socket.socket) -> bool:
    sock.settimeout(0.01)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_tls_client_at_a_plaintext_listener_is_told(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(nodes=1, transport="grpc") as cluster:
        assert librdkafka_error(certificates.librdkafka(cluster.kafka_bootstrap))
        assert "expected the Kafka protocol, found a TLS hello; this listener is plaintext" in caplog.text
        address = cluster._inner.nodes[cluster.node_ids[0]].client_address
        for bootstrap in (cluster.kafka_bootstrap, str(address)):
            with (
                Admin(bootstrap, default_api_timeout_ms=2_000, **certificates.client()) as admin,
                pytest.raises(errors.TidelogError) as caught,
            ):
                admin.describe_cluster()
            assert "plaintext (security_protocol" in str(caught.value)


def test_a_certificate_for_another_host_is_refused(certificates: Certificates) -> None:
    settings = certificates.settings("KAFKA CLIENT")
    certificates.node(hosts=("elsewhere.example",))
    with Cluster(nodes=1, transport="grpc", config=settings) as cluster:
        settings = certificates.librdkafka(cluster.kafka_bootstrap, None)
        assert "certificate verify failed" in librdkafka_error(settings)
        with (
            Admin(cluster.bootstrap, **certificates.client(None)) as admin,
            pytest.raises(errors.SslAuthenticationError, match="the listener's certificate is for another host name"),
        ):
            admin.describe_cluster()


# --- What passes over the wire ----------------------------------------------------------------------------


class Wiretap:
    """A forwarder that remembers what passes."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.target = ("", 0)
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port = self._sock.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._sock.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.target)
            except OSError:  # the node has stopped
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                self.heard += data
                other.sendall(data)
        except OSError:
            pass
        one.close()
        other.close()

    def close(self) -> None:
        self._sock.close()


@pytest.mark.parametrize("secure", [True, False])
def test_records_from_files_are_encrypted_too(certificates: Certificates, secure: bool) -> None:
    """Large stretches of a log leave by ``sendfile`` on a plaintext connection; under TLS that would show them."""
    tap = Wiretap()
    settings = certificates.settings() if secure else {}
    settings["advertised.listeners"] = f"KAFKA://127.0.0.1:{tap.port}"
    with Cluster(nodes=1, transport="grpc", config=settings) as cluster:
        host, _, port = str(kafka_listener(cluster).address).rpartition(":")
        tap.target = (host, int(port))
        client: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{tap.port}", "log_level": 0}
        if secure:
            client = certificates.librdkafka(client["bootstrap.servers"], None)
        producer = confluent_kafka.Producer(client)
        for _ in range(20):
            producer.produce("secret", RECORD)
        assert producer.flush(20) == 0
        tap.heard.clear()
        consumer = confluent_kafka.Consumer(client | {"group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["secret"])
        values: list[bytes | None] = []
        deadline = time.monotonic() + 20
        while len(values) < 20 and time.monotonic() < deadline:
            values += [message.value() for message in consumer.consume(20, 1) if message.error() is None]
        consumer.close()
        assert values == [RECORD] * 20
        assert (RECORD in bytes(tap.heard)) is not secure
        assert (kafka_listener(cluster).traffic.bytes_from_files > 0) is not secure
    tap.close()


# --- HTTP -------------------------------------------------------------------------------------------------


def test_metrics_over_https(certificates: Certificates) -> None:
    settings = certificates.settings() | {"http.listener": "HTTPS://127.0.0.1:0"}
    with Cluster(nodes=1, config=settings) as cluster:
        address = cluster._inner.nodes[cluster.node_ids[0]].http_address
        context = ssl.create_default_context(cafile=certificates.roots)
        with urllib.request.urlopen(f"https://{address}/ready", timeout=20, context=context) as answer:
            assert answer.read() == b"ready\n"
        with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
            urllib.request.urlopen(f"http://{address}/ready", timeout=20)


# --- Nodes among themselves -------------------------------------------------------------------------------


def test_three_nodes_with_certificates_of_their_own(certificates: Certificates) -> None:
    settings = certificates.settings("KAFKA CLIENT REPLICATION CONTROLLER", "required")
    client = certificates.client()
    with Cluster(nodes=3, transport="grpc", config=settings) as cluster:
        with Producer(cluster.bootstrap, **client) as producer:
            for number in range(300):
                producer.send("t", str(number).encode())
            producer.flush(30)
            cluster.kill(cluster.node_ids[0])
            for number in range(300, 600):
                producer.send("t", str(number).encode())
            producer.flush(60)
        cluster.start_node(cluster.node_ids[0])
        with Consumer(cluster.bootstrap, **client, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            values: list[int] = []
            while len(values) < 600:
                found = consumer.poll(20)
                assert found
                values += [int(record.value or b"") for record in found]
        assert sorted(values) == list(range(600))
