"""A secured cluster in a test: certificates and passwords of users, and access control lists that name them."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from pathlib import Path

import confluent_kafka
import pytest

from tidelog import (
    AclBinding,
    AclOperation,
    Consumer,
    PatternType,
    PermissionType,
    Producer,
    ResourceType,
    TopicPartition,
    errors,
)
from tidelog.testing.cluster import Cluster


def grant(cluster: Cluster, user: str, topic: str, *operations: AclOperation) -> None:
    with cluster.admin() as admin:
        admin.create_acls(
            [
                AclBinding(
                    ResourceType.TOPIC, topic, PatternType.LITERAL, f"User:{user}", "*", what, PermissionType.ALLOW
                )
                for what in operations
            ]
        )


def test_users_do_what_their_lists_allow_and_nothing_else() -> None:
    with Cluster(nodes=3, security="tls") as cluster:
        cluster.create_topic("orders", partitions=3, config={"min.insync.replicas": "2"})
        with cluster.producer(user="alice") as producer, pytest.raises(errors.TopicAuthorizationFailedError):
            producer.send("orders", b"refused").result(30)
        grant(cluster, "alice", "orders", AclOperation.WRITE)
        with Producer(cluster.bootstrap, **cluster.client_settings("alice")) as producer:
            producer.send("orders", b"taken").result(30)
        with (
            cluster.consumer(user="bob", group_id="g") as consumer,
            pytest.raises(errors.GroupAuthorizationFailedError),
        ):
            consumer.committed([TopicPartition("orders", 0)])
        with cluster.consumer(group_id="g", auto_offset_reset="earliest") as consumer:  # the admin
            consumer.subscribe(["orders"])
            assert [record.value for record in consumer.poll(30)] == [b"taken"]
        cluster.restart(cluster.leader_of("orders", 0) or 1)
        cluster.wait_for_isr("orders", 0, 3)


def test_other_kafka_clients_take_the_same_files() -> None:
    with Cluster(security="tls") as cluster:
        files = cluster.client_settings("carol")
        grant(cluster, "carol", "t", AclOperation.WRITE, AclOperation.CREATE)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.kafka_bootstrap,
                "security.protocol": "ssl",
                "ssl.ca.location": files["ssl_cafile"],
                "ssl.certificate.location": files["ssl_certfile"],
                "ssl.key.location": files["ssl_certfile"],
                "log_level": 0,
            }
        )
        said: list[confluent_kafka.KafkaError | None] = []
        producer.produce("t", b"x", on_delivery=lambda error, _: said.append(error))
        producer.flush(30)
        assert said == [None]


@pytest.mark.parametrize("security", ["scram", "tls+scram"])
def test_users_with_passwords_do_what_their_lists_allow(security: str) -> None:
    with Cluster(nodes=3, security=security) as cluster:
        cluster.create_topic("orders", partitions=3, config={"min.insync.replicas": "2"})
        with pytest.raises(ValueError, match=r"user: expected one of admin, found 'alice': add_user\('alice'\)"):
            cluster.producer(user="alice")
        cluster.add_user("alice", "her own")
        with cluster.producer(user="alice") as producer, pytest.raises(errors.TopicAuthorizationFailedError):
            producer.send("orders", b"refused").result(30)
        grant(cluster, "alice", "orders", AclOperation.WRITE)
        settings = cluster.client_settings("alice")
        assert settings["sasl_password"] == "her own"
        with Producer(cluster.bootstrap, **settings) as producer:
            producer.send("orders", b"taken").result(30)
        settings["sasl_password"] = "guess"
        with Producer(cluster.bootstrap, **settings) as producer, pytest.raises(errors.SaslAuthenticationError):
            producer.send("orders", b"refused").result(30)
        with cluster.consumer(auto_offset_reset="earliest") as consumer:  # the admin
            consumer.assign([TopicPartition("orders", number) for number in range(3)])
            assert [record.value for record in consumer.poll(30)] == [b"taken"]
        cluster.add_user("alice")  # another password
        for node in cluster.node_ids:
            cluster.restart(node)
        cluster.wait_for_isr("orders", 0, 3)
        with cluster.producer(user="alice") as producer:
            producer.send("orders", b"again").result(30)


def test_other_kafka_clients_take_the_same_password() -> None:
    with Cluster(security="scram") as cluster:
        cluster.add_user("carol", "c")
        grant(cluster, "carol", "t", AclOperation.WRITE, AclOperation.CREATE)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.kafka_bootstrap,
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "carol",
                "sasl.password": "c",
                "log_level": 0,
            }
        )
        said: list[confluent_kafka.KafkaError | None] = []
        producer.produce("t", b"x", on_delivery=lambda error, _: said.append(error))
        producer.flush(30)
        assert said == [None]


@pytest.mark.parametrize("security", ["scram", "tls+scram"])
def test_nobody_comes_in_without_a_password(security: str) -> None:
    with Cluster(security=security) as cluster:
        settings = cluster.client_settings()
        for name in ("sasl_mechanism", "sasl_username", "sasl_password"):
            del settings[name]  # type: ignore[misc]
        settings["security_protocol"] = settings["security_protocol"].removeprefix("SASL_")
        own = cluster.node(1).client_address
        for address in (cluster.bootstrap, str(own)):
            with (
                Consumer(address, **settings, default_api_timeout_ms=2_000) as consumer,
                pytest.raises(errors.TidelogError),
            ):
                consumer.partitions_for("t")


def test_nobody_comes_in_without_a_certificate() -> None:
    with Cluster(security="tls") as cluster:
        settings = cluster.client_settings()
        del settings["ssl_certfile"]
        with (
            Consumer(cluster.bootstrap, **settings, default_api_timeout_ms=2_000) as consumer,
            pytest.raises(errors.TidelogError),
        ):
            consumer.partitions_for("t")
        host, _, port = cluster.kafka_bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as plain:
            plain.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
            with suppress(ConnectionResetError):
                assert plain.recv(100) == b""


def test_without_lists_certificates_can_be_enough() -> None:
    with (
        Cluster(security="tls", config={"allow.everyone.if.no.acl.found": "true"}) as cluster,
        cluster.producer(user="alice") as producer,
    ):
        producer.send("t", b"x").result(30)


def test_what_makes_no_sense_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"security: expected None, tls, scram, tls\+scram, found 'kerberos'"):
        Cluster(security="kerberos")
    with pytest.raises(ValueError, match="transport: expected grpc with security='tls', found memory"):
        Cluster(security="tls", transport="memory")
    with Cluster(security="tls", directory=tmp_path) as cluster:
        with pytest.raises(ValueError, match=r"user: expected letters.*and no node, found 'node-1'"):
            cluster.producer(user="node-1")
        assert (tmp_path / "certificates").stat().st_mode & 0o77 == 0
    with Cluster() as plain:
        assert plain.client_settings() == {}
        with pytest.raises(ValueError, match="add_user: expected a cluster with security='scram'"):
            plain.add_user("alice")
    monkeypatch.delitem(sys.modules, "tidelog.security.authority", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tidelog\[security\]' brings it"):
        Cluster(security="tls").start()
