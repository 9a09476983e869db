"""One address for both kinds of clients: the Kafka listener sends those of gRPC to their own."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterator

import pytest

from tests.slow_link import SlowLink
from tidelog import Admin, Consumer, Producer, aio
from tidelog.client.cluster.kept_connections import KeptConnections
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.api import DescribeClusterRequest, MetadataRequest
from tidelog.proto.transport.grpc_calling import GrpcConnection
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.http2_referral import FRAME_BYTES_MAX, PREFACE, Referral
from tidelog.proto.transport.network import Address, NotServedHere
from tidelog.testing import Cluster
from tidelog.testing.ports import free_ports

EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc") as found:
        yield found


def grpc_addresses(cluster: Cluster) -> list[Address]:
    """Each node's address for gRPC clients."""
    found = [cluster.node(node).client_address for node in cluster.node_ids]
    return [address for address in found if address is not None]


def kafka_address(cluster: Cluster) -> Address:
    return Address.read(cluster.kafka_bootstrap.split(",")[0])


def test_blocking_clients_begin_at_the_kafka_listener(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        with Admin(cluster.kafka_bootstrap) as admin:
            assert len(admin.describe_cluster().brokers) == 3
        with Producer(cluster.kafka_bootstrap) as producer:
            assert producer.send("blocking", b"value").result(20).offset == 0
        with Consumer(cluster.kafka_bootstrap, auto_offset_reset="earliest", group_id="blocking") as consumer:
            consumer.subscribe(["blocking"])
            assert next(record.value for record in consumer) == b"value"
    assert not [line for line in caplog.messages if "closing the connection" in line]


async def test_asyncio_clients_begin_at_the_kafka_listener(cluster: Cluster) -> None:
    async with aio.Producer(cluster.kafka_bootstrap) as producer:
        assert (await producer.send_and_wait("asyncio", b"value")).offset == 0


@pytest.mark.parametrize("order", [1, -1])
def test_a_list_may_mix_both_kinds_and_the_dead(cluster: Cluster, order: int) -> None:
    dead = Address("127.0.0.1", free_ports(1)[0])
    mixed = [dead, kafka_address(cluster), grpc_addresses(cluster)[1]][::order]
    for _ in range(3):  # the SDK shuffles
        with Admin(",".join(map(str, mixed))) as admin:
            assert len(admin.describe_cluster().brokers) == 3


async def test_calls_at_once_are_all_sent_on(cluster: Cluster) -> None:
    connection = GrpcNetwork().connect(kafka_address(cluster))
    requests = [MetadataRequest() if n % 2 else DescribeClusterRequest() for n in range(50)]
    answers = await asyncio.gather(*(connection.call(r, timeout_s=10) for r in requests), return_exceptions=True)
    await connection.close()
    assert all(isinstance(found, NotServedHere) for found in answers), answers
    assert {found.elsewhere for found in answers} == {grpc_addresses(cluster)[0]}  # type: ignore[union-attr]
    assert "listener KAFKA speaks the Kafka protocol" in str(answers[0])


def test_a_node_that_moved_is_found_again() -> None:
    with Cluster(nodes=1, transport="grpc") as cluster, Admin(cluster.kafka_bootstrap) as admin:
        assert admin.describe_cluster().cluster_id == cluster.cluster_id
        before = grpc_addresses(cluster)
        cluster.stop_node(1)
        addresses = cluster._inner._addresses[cluster.node_ids[0]]
        addresses["CLIENT"] = Address("127.0.0.1", free_ports(1)[0])
        cluster.restart(1)
        assert grpc_addresses(cluster) != before
        assert admin.describe_cluster().cluster_id == cluster.cluster_id


async def test_a_caller_that_is_far_away_is_sent_on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.kafka.referring.REFERRAL_S", 0.05)
    link = SlowLink(lambda: kafka_address(cluster).port)
    link.delay_s = 0.3
    connection = GrpcNetwork().connect(Address("127.0.0.1", link.port))
    try:
        with pytest.raises(NotServedHere) as sent_on:
            await connection.call(MetadataRequest(), timeout_s=10)
        assert sent_on.value.elsewhere == grpc_addresses(cluster)[0]
    finally:
        await connection.close()
        link.close()


def test_a_silent_caller_is_let_go(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.kafka.referring.FIRST_CALL_S", 0.5)
    with socket.create_connection(kafka_address(cluster), 10) as peer:
        began = time.monotonic()
        peer.sendall(PREFACE)
        assert peer.recv(1024).startswith(EMPTY_SETTINGS)
        while peer.recv(1024):
            pass
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "what", [PREFACE[:10] + b"?" * 20, PREFACE + (FRAME_BYTES_MAX + 1).to_bytes(3, "big") + bytes(6)]
)
def test_what_is_no_http2_ends_it(what: bytes) -> None:
    referral = Referral("", None)
    referral.receive(what)
    assert referral.over


def test_frames_are_bounded() -> None:
    referral = Referral("", None)
    referral.receive(PREFACE)
    for _ in range(2_000):
        referral.receive(EMPTY_SETTINGS)
    assert referral.over


def test_it_reads_byte_by_byte() -> None:
    referral = Referral("text", Address("::1", 9096))
    whole = Referral("text", Address("::1", 9096))
    call = PREFACE + EMPTY_SETTINGS + b"\0\0\1\1\5\0\0\0\1\x82"
    assert b"".join(referral.receive(call[n : n + 1]) for n in range(len(call))) == whole.receive(call)
    assert b"[::1]:9096" in whole.receive(b"\0\0\1\1\5\0\0\0\3\x82")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"KAFKA": "CLIENT://127.0.0.1:9096"}),
        ({"listeners": "KAFKA://h:1,CLIENT://h:2,CONTROLLER://h:3"}, {"KAFKA": "CLIENT://h:2"}),
        (
            {
                "listeners": "KAFKA://a:1,OUTER://b:2,REPLICATION://a:3,CLIENT://a:4,PUBLIC://b:5,CONTROLLER://a:6",
                "kafka.listener.names": "KAFKA,OUTER",
            },
            {"KAFKA": "CLIENT://a:4", "OUTER": "PUBLIC://b:5"},
        ),
        (
            {
                "listeners": "KAFKA://0.0.0.0:1,CLIENT://0.0.0.0:2,CONTROLLER://h:3",
                "advertised.listeners": "KAFKA://out:19092,CLIENT://out:19096",
            },
            {"KAFKA": "CLIENT://out:19096"},
        ),
        (
            {
                "listeners": "KAFKA://a:1,CLIENT://a:2,REPLICATION://a:3,K2://a:4,C2://a:5,R2://a:6,CONTROLLER://a:7",
                "kafka.listener.names": "KAFKA,K2",
                "replication.listener.names": "R2",
                "listener.security.protocol.map": "K2:SASL_PLAINTEXT,C2:SASL_PLAINTEXT",
            },
            {"KAFKA": "CLIENT://a:2", "K2": "C2://a:5"},
        ),
    ],
)
def test_which_listener_is_named(settings: dict[str, str], expected: dict[str, str]) -> None:
    config = NodeConfig.parse({"node.id": "1", **settings})
    ports = {found.name: found.port for found in config.broker_listeners}
    assert {k.name: str(config.grpc_listener_for(k, ports)) for k in config.kafka_listeners} == expected
    assert {found.port for found in NodeConfig.parse({"node.id": "1"}).kafka_listeners} == {9092}


async def test_clients_that_follow_one_another_are_sent_on_once(cluster: Cluster) -> None:
    asked: list[Address] = []

    class Counted(GrpcNetwork):
        def connect(self, address: Address, listener: str = "") -> GrpcConnection:
            asked.append(address)
            return super().connect(address, listener)

    network = KeptConnections(Counted())
    for _ in range(5):
        async with aio.Admin(str(kafka_address(cluster)), _network=network) as admin:
            await admin.list_topics()
    await network.close()
    assert asked.count(kafka_address(cluster)) == 1
    assert len(asked) <= 2 + len(cluster.node_ids)
