"""Certificates are renewed while clients write: nobody notices, and new connections see the new one."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.security.conftest import Certificates
from tidelog import Admin, Producer
from tidelog.broker.node.node import Node
from tidelog.client.errors import SslAuthenticationError, TidelogError
from tidelog.proto.transport.network import Address
from tidelog.security.pem import PemSource, PemSources
from tidelog.testing.cluster import Cluster


def shown(address: Address | None, certificates: Certificates) -> bytes:
    """The certificate that a listener shows to a new connection."""
    assert address is not None
    context = ssl.create_default_context(cafile=certificates.roots)
    context.load_cert_chain(certificates.directory / "alice.pem")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(address, 10) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def replace(path: str | Path, text: str) -> None:
    """As the page says: written beside, then renamed."""
    fresh = Path(path).with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


def test_renewal_under_load_is_not_noticed(certificates: Certificates) -> None:
    listeners = "KAFKA CLIENT REPLICATION CONTROLLER"
    settings = certificates.settings(listeners, "required", ssl_files_check_interval_ms="50")
    client = certificates.client()
    failures: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    with (
        Cluster(nodes=3, transport="grpc", config=settings) as cluster,
        Producer(cluster.bootstrap, **client) as producer,
    ):
        foreign = confluent_kafka.Producer(certificates.librdkafka(cluster.kafka_bootstrap))
        node = cluster.node(1)
        results = []
        seen = set()
        for turn in range(4):
            for number in range(200):
                results.append(producer.send("t", f"{turn} {number}".encode()))
                foreign.produce("t", b"x", on_delivery=delivered)
                foreign.poll(0)
            seen.add(shown(node.client_address, certificates))
            fresh = certificates.authority.issue("node", ["127.0.0.1", "localhost"], 30 + turn)
            replace(settings["ssl.keystore.location"], fresh)
            new = ssl.PEM_cert_to_DER_cert(fresh[fresh.index("-----BEGIN CERTIFICATE") :])
            deadline = time.monotonic() + 20
            while not shown(node.client_address, certificates) == shown(node.kafka_address, certificates) == new:
                assert time.monotonic() < deadline, "the new certificate is shown"
                time.sleep(0.05)
            with Admin(cluster.bootstrap, **client) as admin:
                assert len(admin.describe_cluster().brokers) == 3
        for result in results:
            result.result(30)
        assert foreign.flush(30) == 0
        assert failures == []
        assert len(seen) == 4
        assert {store.reloads for store in node.tls.stores.values()} == {4}
        # Nodes find each other again with the new certificates.
        cluster.kill(2)
        cluster.start_node(2)
        producer.send("t", b"after").result(30)


def test_another_authority_takes_over_under_load(tmp_path: Path) -> None:
    """The page's three steps, on all listeners of brokers and controllers, while clients write: no record fails. After
    each step every node is killed and started, so that every link there is shakes hands with what is in force."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = (Certificates(tmp_path / name) for name in ("old", "new"))
    trusted, own, users = tmp_path / "trusted.pem", tmp_path / "node.pem", tmp_path / "alice.pem"
    hosts = ["127.0.0.1", "localhost"]
    trusted.write_text(old.authority.pem)
    own.write_text(old.authority.issue("node", hosts, 30))
    users.write_text(old.authority.issue("alice", (), 30))
    settings = old.settings("KAFKA CLIENT REPLICATION CONTROLLER", "required", ssl_files_check_interval_ms="50")
    settings |= {"ssl.keystore.location": str(own), "ssl.truststore.location": str(trusted)}
    client: dict[str, Any] = {"security_protocol": "SSL", "ssl_cafile": str(trusted), "ssl_certfile": str(users)}
    failures: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    with (
        Cluster(nodes=3, transport="grpc", config=settings) as cluster,
        Producer(cluster.bootstrap, **client) as producer,
    ):

        def foreign() -> confluent_kafka.Producer:
            """It reads its files once."""
            pem = {"ssl.certificate.location": str(users), "ssl.key.location": str(users)}
            return confluent_kafka.Producer(
                {
                    "bootstrap.servers": cluster.kafka_bootstrap, "security.protocol": "ssl", "log_level": 0,
                    "ssl.ca.location": str(trusted), **pem, "enable.idempotence": True,
                }
            )  # fmt: skip

        def all_nodes(found: Callable[[Node], bool]) -> None:
            deadline = time.monotonic() + 60
            while not all(found(cluster.node(node)) for node in cluster.node_ids):
                assert time.monotonic() < deadline
                time.sleep(0.02)

        results = []

        def written(count: int = 100) -> None:
            for number in range(count):
                results.append(producer.send("t", b"%d" % number))
                other.produce("t", b"x", on_delivery=delivered)
                other.poll(0)

        def under_load(step: Callable[[], None], issuer: Certificates) -> None:
            """Carry out a step; every store of every node has what it leaves; and every node begins anew."""
            written()
            step()
            key, roots = PemSource("key", str(own)), PemSource("roots", str(trusted))
            found = PemSources(key, key, roots).read()
            all_nodes(lambda node: all(store.material == found for store in node.tls.stores.values()))
            for node in cluster.node_ids:
                written()
                cluster.kill(node)
                written()
                cluster.start_node(node)
                cluster.wait_ready()
            written()
            issuer.user()
            address = cluster.node(1).client_address
            assert shown(address, issuer) == ssl.PEM_cert_to_DER_cert(found.chain.decode())

        both = old.authority.pem + new.authority.pem
        other = foreign()
        under_load(lambda: replace(trusted, both), old)
        assert other.flush(60) == 0
        other = foreign()  # with the truststore of both
        under_load(lambda: replace(own, new.authority.issue("node", hosts, 30)), new)
        replace(users, new.authority.issue("alice", (), 30))
        assert other.flush(60) == 0
        other = foreign()  # with its new certificate
        under_load(lambda: replace(trusted, new.authority.pem), new)
        for result in results:
            result.result(60)
        assert other.flush(60) == 0
        assert failures == []

        # The old authority is worth nothing any more, at either end.
        late = {**client, "ssl_certfile": old.user("bob"), "ssl_cafile": new.roots}
        with pytest.raises(TidelogError), Admin(cluster.bootstrap, default_api_timeout_ms=2_000, **late) as admin:
            admin.list_topics()
        with (
            pytest.raises(SslAuthenticationError),
            Admin(cluster.bootstrap, **{**client, "ssl_cafile": old.roots}) as admin,
        ):
            admin.list_topics()
