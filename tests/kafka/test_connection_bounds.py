"""Connections of strangers: how large and how late a first request is, how many an address has, how fast they come."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.kafka.wire_client import WireClient
from tidelog import ClientQuotaEntity
from tidelog.broker.kafka.wire.limits import KafkaLimits
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.kafka.headers import API_VERSIONS
from tidelog.testing.cluster import Cluster

PRODUCE, METADATA = 0, 3
TIMEOUT_S = 20.0
LARGE = KafkaLimits().first_bytes_max + 1


def connect(cluster: Cluster) -> socket.socket:
    host, _, port = cluster.kafka_bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def is_ended(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def is_served(peer: socket.socket) -> bool:
    """Whether a request is answered."""
    try:
        peer.sendall(struct.pack(">ihhih", 10, API_VERSIONS, 0, 1, -1))
        size: int
        (size,) = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))
        return len(peer.recv(size, socket.MSG_WAITALL)) == size
    except (ConnectionError, struct.error):
        return False


def begin_large(peer: socket.socket, api_key: int) -> None:
    peer.sendall(struct.pack(">ihhih", LARGE, api_key, 9, 1, -1) + bytes(100))


def test_a_large_first_request_is_refused_at_its_length(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(kafka_cluster) as stranger:
        begin_large(stranger, METADATA)
        assert is_ended(stranger)
    assert f"expected a first request of at most {LARGE - 1} bytes, found a length of {LARGE}" in caplog.text


def test_the_length_of_a_first_request_may_come_alone(kafka_cluster: Cluster) -> None:
    with connect(kafka_cluster) as stranger:
        stranger.sendall(struct.pack(">i", LARGE))
        time.sleep(0.1)
        stranger.sendall(struct.pack(">hhih", METADATA, 9, 1, -1))
        assert is_ended(stranger)


def test_a_produce_may_be_the_first_and_large_and_any_request_a_later_one(kafka_cluster: Cluster) -> None:
    """Some clients learn versions on one connection and begin the others with what they are for."""
    for api_key, greets in ((PRODUCE, False), (METADATA, True)):
        with connect(kafka_cluster) as peer:
            if greets:
                assert is_served(peer)
            begin_large(peer, api_key)
            peer.settimeout(0.3)
            with pytest.raises(TimeoutError):
                peer.recv(1)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster that waits 0.5 s for a first request."""
    made = KafkaLimits.of

    def of(config: NodeConfig) -> KafkaLimits:
        return replace(made(config), first_request_ms=500)

    monkeypatch.setattr(KafkaLimits, "of", of)
    with Cluster(nodes=1, transport="grpc") as cluster:
        yield cluster


def test_a_connection_without_a_first_request_is_closed_and_one_with_it_stays(hasty: Cluster) -> None:
    with connect(hasty) as silent, connect(hasty) as half, connect(hasty) as served:
        half.sendall(b"\0\0\1\0half a request")
        assert is_served(served)
        assert is_ended(silent)
        assert is_ended(half)
        time.sleep(0.5)
        assert is_served(served)


def test_a_large_first_produce_may_take_its_time_while_it_goes_on(hasty: Cluster) -> None:
    with connect(hasty) as slow:
        begin_large(slow, PRODUCE)
        slow.sendall(bytes(100_000))
        for _ in range(8):
            time.sleep(0.2)
            slow.sendall(b"more")
        slow.settimeout(0.05)
        with pytest.raises(TimeoutError):
            slow.recv(1)
        slow.settimeout(TIMEOUT_S)
        assert is_ended(slow), "it does not go on"


def test_an_address_has_so_many_connections(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(nodes=1, transport="grpc", config={"max.connections.per.ip": "2"}) as cluster:
        first, second = connect(cluster), connect(cluster)
        assert is_served(first)
        assert is_served(second)
        with connect(cluster) as third:
            assert not is_served(third)
        assert "expected at most 2 connections of one address (max.connections.per.ip)" in caplog.text
        first.close()
        deadline = time.monotonic() + TIMEOUT_S
        while True:  # until the node has heard of the end
            with connect(cluster) as fourth:
                if is_served(fourth):
                    break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second.close()


def test_an_address_that_is_named_has_its_own_number() -> None:
    config = {"max.connections.per.ip": "1", "max.connections.per.ip.overrides": "127.0.0.1:3"}
    with Cluster(nodes=1, transport="grpc", config=config) as cluster:
        peers = [connect(cluster) for _ in range(4)]
        try:
            assert [is_served(peer) for peer in peers] == [True, True, True, False]
        finally:
            for peer in peers:
                peer.close()


def test_connections_beyond_their_rate_wait_and_are_served() -> None:
    with Cluster(nodes=1, transport="grpc", config={"max.connection.creation.rate": "2"}) as cluster:
        began_s = time.monotonic()
        for _ in range(20):  # a window's worth at once
            with WireClient(cluster.kafka_bootstrap) as wire:
                wire.ask(API_VERSIONS, 0)
        burst_s = time.monotonic() - began_s
        for _ in range(4):
            with WireClient(cluster.kafka_bootstrap) as wire:
                wire.ask(API_VERSIONS, 0)
        assert time.monotonic() - began_s - burst_s > 0.9


def test_an_address_over_its_quota_is_held_and_not_served(caplog: pytest.LogCaptureFixture) -> None:
    """``connection_creation_rate`` of an address (KIP-612)."""
    with Cluster(nodes=1, transport="grpc") as cluster, cluster.admin() as admin, connect(cluster) as before:
        admin.alter_client_quotas({ClientQuotaEntity(ip="127.0.0.1"): {"connection_creation_rate": 1.0}})
        served = [connect(cluster) for _ in range(10)]
        assert all(is_served(peer) for peer in served)
        with connect(cluster) as further:
            started = time.monotonic()
            assert not is_served(further)
            assert time.monotonic() - started > 0.5, "it is held, so that the next try comes later"
        assert "expected fewer new connections per second from one address (connection_creation_rate)" in caplog.text
        assert is_served(before)
        admin.alter_client_quotas({ClientQuotaEntity(ip="127.0.0.1"): {"connection_creation_rate": None}})
        with connect(cluster) as free:
            assert is_served(free)
        for peer in served:
            peer.close()
