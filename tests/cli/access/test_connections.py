"""``tidelog connections`` against a node whose Kafka listener asks for a login."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands, until
from tidelog import Admin, Producer, UserScramCredentialUpsertion, errors
from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.logins import LoggedIn
from tidelog.broker.handlers.logins import TokenLogins
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.proto.kafka.headers import API_VERSIONS
from tidelog.proto.kafka.messages import request_frame
from tidelog.security.principal import USER, Principal
from tidelog.security.session import Session
from tidelog.testing.cluster import Cluster
from tidelog.testing.kafka_requests import exchange, log_in

PASSWORD = "of no use"
SETTINGS = {"listener.security.protocol.map": "KAFKA:SASL_PLAINTEXT", "sasl.enabled.mechanisms": "SCRAM-SHA-512"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc", config=SETTINGS) as found, Admin(found.bootstrap) as admin:
        found.create_topic("t", partitions=1)
        admin.alter_user_scram_credentials(UserScramCredentialUpsertion(name, PASSWORD) for name in ("alice", "bob"))
        yield found


@pytest.fixture
def connections(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    run = runs_commands(cluster.bootstrap, capfd, monkeypatch)
    return lambda *arguments: run("connections", *arguments)


def logged_in(cluster: Cluster, user: str) -> socket.socket:
    """A client of the Kafka protocol."""
    host, _, port = cluster.kafka_bootstrap.rpartition(":")
    made = socket.create_connection((host, int(port)), 60)
    software = {"client_software_name": "raw", "client_software_version": "1.0"}
    exchange(made, request_frame(API_VERSIONS, 3, 1, software, b"me"))
    log_in(made, user, PASSWORD)
    return made


def asked(made: socket.socket) -> bool:
    """Whether a request is still answered."""
    try:
        return exchange(made, request_frame(API_VERSIONS, 0, 3, {}, b"me")) != b""
    except ConnectionError:
        return False


def test_kafka_connections_are_listed_and_closed(cluster: Cluster, connections: Tidelog) -> None:
    with logged_in(cluster, "alice") as one, logged_in(cluster, "alice") as two, logged_in(cluster, "bob") as bobs:
        ports = {made.getsockname()[1] for made in (one, two)}
        listed = as_json(connections("list", "--principal", "User:alice", "--json"))
        assert listed["not_listed"] == 0
        assert {found["port"] for found in listed["connections"]} == ports
        found = listed["connections"][0]
        assert (found["node"], found["listener"], found["host"]) == (1, "KAFKA", "127.0.0.1")
        assert (found["security_protocol"], found["principal"]) == ("SASL_PLAINTEXT", "User:alice")
        assert (found["client_id"], found["software"]) == ("me", "raw 1.0")
        assert found["age_ms"] >= found["idle_ms"] >= 0
        assert found["bytes_in"] > 100 < found["bytes_out"]
        limited = connections("list", "--principal", "User:alice", "--limit", "1")
        assert limited[2] == "1 connection more (--limit)\n"
        assert limited[1].count("User:alice") == 1

        address = f"127.0.0.1:{one.getsockname()[1]}"
        assert connections("close", "--address", address)[:2] == (0, "node 1: 1 connection closed\n")
        assert [asked(made) for made in (one, two, bobs)] == [False, True, True]
        assert as_json(connections("close", "--principal", "User:alice", "--json")) == [{"node": 1, "closed": 1}]
        assert [asked(made) for made in (two, bobs)] == [False, True]
        with logged_in(cluster, "alice") as again:
            assert asked(again), "who may log in comes back"


def test_streams_at_a_grpc_listener_end_and_begin_again(cluster: Cluster, connections: Tidelog) -> None:
    with Producer(cluster.bootstrap, client_id="mine") as producer, Admin(cluster.bootstrap) as admin:
        producer.send("t", b"first").result()

        def opened_s() -> list[float]:
            """When the producer's streams at the node began."""
            now_s = time.monotonic()
            found = admin.describe_connections("User:ANONYMOUS")[cluster.known(1)].connections
            mine = [one for one in found if one.client_id == "mine"]
            assert {(one.listener, one.software, one.bytes_in) for one in mine} <= {("CLIENT", "gRPC", -1)}
            return [now_s - one.age_ms / 1000 for one in mine]

        assert opened_s()
        time.sleep(0.01)  # an age is told in milliseconds
        closed_s = time.monotonic()
        code, out, _ = connections("close", "--address", "127.0.0.1", "--node", "1")
        assert code == 0
        assert "closed" in out
        until(lambda: all(each >= closed_s for each in opened_s()), "the streams have ended")
        producer.send("t", b"second").result()
        assert opened_s()


def test_what_is_to_be_closed_must_be_said(cluster: Cluster, connections: Tidelog) -> None:
    assert connections("close")[2] == "tidelog: expected --principal or --address, found neither\n"
    assert (
        "--address: expected HOST or HOST:PORT, found '1.2.3.4:x'" in connections("list", "--address", "1.2.3.4:x")[2]
    )
    with (
        Admin(cluster.bootstrap) as admin,
        pytest.raises(errors.InvalidRequestError, match="expected a principal or a host"),
    ):
        admin.close_connections()


async def test_logins_are_forgotten_by_principal_and_host() -> None:
    logins = TokenLogins(lambda _: object(), AccessControl(NodeConfig.parse({"node.id": "1"})))  # type: ignore[arg-type, return-value]
    find = logins.sessions("CLIENT")
    assert find is not None
    await asyncio.sleep(0)

    def tokens() -> set[str]:
        for name in ("alice", "bob"):
            session = Session(Principal(USER, name), SecurityProtocol.SASL_PLAINTEXT)
            for host in ("10.0.0.1", "10.0.0.2"):
                logins._sessions[f"{name} {host}"] = LoggedIn(session, b"", 0, None, lambda: True), "CLIENT", host
        return set(logins._sessions)

    for principal, host, left in (
        ("User:alice", "", {"bob 10.0.0.1", "bob 10.0.0.2"}),
        ("", "10.0.0.1", {"alice 10.0.0.2", "bob 10.0.0.2"}),
        ("User:bob", "10.0.0.2", {"alice 10.0.0.1", "alice 10.0.0.2", "bob 10.0.0.1"}),
    ):
        every = tokens()
        logins.forget(principal, host)
        assert {token for token in every if find(token, token.split()[1]) is not None} == left
