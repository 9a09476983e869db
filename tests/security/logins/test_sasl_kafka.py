"""Logins at a Kafka listener: foreign clients with every mechanism, and all the ways to come in without one."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import struct
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import aiokafka
import confluent_kafka
import hypothesis
import pytest
from confluent_kafka import admin as rd
from hypothesis import given
from hypothesis import strategies as st

from tests.kafka.raw_connection import Closed, RawConnection
from tests.security.conftest import Certificates
from tidelog import (
    AclBinding,
    AclOperation,
    Admin,
    PatternType,
    PermissionType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tidelog.broker.kafka.wire.limits import KafkaLimits
from tidelog.model.errors import ErrorCode
from tidelog.security.scram import ScramClient
from tidelog.testing.cluster import Cluster

with warnings.catch_warnings():  # as in tests/kafka/conftest.py
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PRODUCE, HANDSHAKE, VERSIONS, AUTHENTICATE, METADATA = 0, 17, 18, 36, 3
BOTH = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
NAME, PASSWORD = "älice, =2C", "pëncil"
DELAY_MS = 50


def settings(protocol: str = "SASL_PLAINTEXT", **more: str) -> dict[str, str]:
    return {
        "listener.security.protocol.map": f"KAFKA:{protocol}",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "connection.failed.authentication.delay.ms": str(DELAY_MS),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def make_users(cluster: Cluster, *names: str) -> None:
    with Admin(str(cluster.node(1).client_address)) as admin:
        for mechanism in BOTH:
            info = ScramCredentialInfo(mechanism)
            admin.alter_user_scram_credentials(UserScramCredentialUpsertion(name, PASSWORD, info) for name in names)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One node, whose Kafka listener asks for a login and whose other one does not."""
    access = {"authorizer_class_name": STANDARD, "super_users": "User:ANONYMOUS;User:admin"}
    access["delegation_token_secret_key"] = "a key"
    with Cluster(nodes=1, transport="grpc", config=settings(**access)) as found:
        make_users(found, NAME, "admin", "nobody")
        found.create_topic("t", partitions=1)
        with Admin(found.bootstrap) as admin:
            admin.create_acls(
                AclBinding(kind, name, PatternType.LITERAL, f"User:{NAME}", "*", operation, PermissionType.ALLOW)
                for kind, name, operation in (
                    (ResourceType.TOPIC, "t", AclOperation.ALL),
                    (ResourceType.CLUSTER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE),
                    (ResourceType.GROUP, "g", AclOperation.ALL),
                )
            )
        yield found


def librdkafka(cluster: Cluster, mechanism: str, name: str = NAME, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.kafka_bootstrap,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
        "log_level": 0,
    }


def python_client(cluster: Cluster, mechanism: str, name: str = NAME, password: str = PASSWORD) -> dict[str, Any]:
    """As kafka-python and aiokafka call it."""
    return {
        "bootstrap_servers": cluster.kafka_bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": name,
        "sasl_plain_password": password,
    }


# --- Those that know a password -----------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_writes_and_reads_as_its_user(cluster: Cluster, mechanism: str) -> None:
    producer = confluent_kafka.Producer(librdkafka(cluster, mechanism))
    errors: list[Any] = []
    producer.produce("t", mechanism.encode(), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None]
    consumer = confluent_kafka.Consumer(
        librdkafka(cluster, mechanism) | {"group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    found = consumer.poll(30)
    assert found is not None
    assert found.error() is None
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_writes_as_its_user(cluster: Cluster, mechanism: str) -> None:
    async with aiokafka.AIOKafkaProducer(**python_client(cluster, mechanism)) as producer:
        await producer.send_and_wait("t", b"aiokafka")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_writes_as_its_user(cluster: Cluster, mechanism: str) -> None:
    producer = kafka.KafkaProducer(**python_client(cluster, mechanism, "admin"))  # it spells no comma in a name
    try:
        producer.send("t", b"kafka-python").get(30)
    finally:
        producer.close()


def test_a_user_has_its_own_rights_and_no_others(cluster: Cluster) -> None:
    for name, code in ((NAME, None), ("nobody", confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED)):
        producer = confluent_kafka.Producer(librdkafka(cluster, "SCRAM-SHA-256", name))
        outcomes: list[Any] = []
        producer.produce("t", b"x", on_delivery=partial(_note, outcomes))
        producer.flush(30)
        assert [error and error.code() for error in outcomes] == [code]


def test_tls_and_a_login(kept_certificates: Certificates) -> None:
    """The certificate that a client may show as well names nobody: the login does."""
    config = kept_certificates.settings("") | settings("SASL_SSL") | {"ssl.client.auth": "requested"}
    config["ssl.principal.mapping.rules"] = r"RULE:^CN=nobody-at-all$/x/"
    with Cluster(nodes=1, transport="grpc", config=config) as cluster:
        make_users(cluster, "alice")
        for own in (None, "alice"):
            client = kept_certificates.librdkafka(cluster.kafka_bootstrap, own) | {
                "security.protocol": "sasl_ssl",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": PASSWORD,
            }
            producer = confluent_kafka.Producer(client)
            producer.produce("t", b"x")
            assert producer.flush(30) == 0


def _note(outcomes: list[object], error: object, _: object) -> None:
    outcomes.append(error)


# --- Those that do not --------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [(NAME, "wrong"), ("stranger", PASSWORD)])
def test_a_wrong_password_is_refused(cluster: Cluster, mechanism: str, name: str, password: str) -> None:
    errors: list[Any] = []
    client = rd.AdminClient(librdkafka(cluster, mechanism, name, password) | {"error_cb": errors.append})
    deadline = time.monotonic() + 30
    while not any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors):
        assert time.monotonic() < deadline, errors
        client.poll(0.1)


class Wire(RawConnection):
    """A connection that has sent nothing yet; also with bare tokens."""

    @classmethod
    async def to(cls, cluster: Cluster) -> Wire:
        host, _, port = cluster.kafka_bootstrap.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def shake_hands(self, mechanism: str, version: int = 1) -> Any:
        return await self.ask(HANDSHAKE, version, {"mechanism": mechanism})

    async def token(self, token: bytes, version: int = 2) -> Any:
        return await self.ask(AUTHENTICATE, version, {"auth_bytes": token})

    async def send(self, frame: bytes) -> None:
        self._writer.write(struct.pack(">i", len(frame)) + frame)

    async def begin(self, size: int) -> None:
        """Send the beginning of a frame that says this size."""
        self._writer.write(struct.pack(">ihhih", size, PRODUCE, 9, 1, -1))

    async def bare(self, token: bytes) -> bytes:
        """Send a token as after SaslHandshake of version 0, and return the answer. Raises :class:`Closed`."""
        await self.send(token)
        try:
            async with asyncio.timeout(100):
                (size,) = struct.unpack(">i", await self._reader.readexactly(4))
                return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Closed from None

    async def is_closed(self) -> bool:
        async with asyncio.timeout(40):
            return await self._reader.read(1) == b""

    async def log_in(self, mechanism: str = "SCRAM-SHA-256", name: str = NAME) -> Any:
        """The last answer."""
        assert (await self.shake_hands(mechanism)).error_code == 0
        client = ScramClient(ScramMechanism[mechanism.replace("-", "_")], name, PASSWORD, "nonce")
        first = await self.token(client.first())
        if first.error_code:
            return first
        final = client.step(first.auth_bytes)
        assert final is not None
        return await self.token(final)


@pytest.fixture
async def wire(cluster: Cluster) -> AsyncIterator[Wire]:
    made = await Wire.to(cluster)
    yield made
    await made.close()


async def test_before_a_login_nothing_else_is_served(cluster: Cluster) -> None:
    for key, version, values in ((METADATA, 1, {"topics": []}), (10, 0, {"key": "g"}), (19, 2, {"topics": []})):
        wire = await Wire.to(cluster)
        with pytest.raises(Closed):
            await wire.ask(key, version, values)
        await wire.close()
        wire = await Wire.to(cluster)
        await wire.shake_hands("PLAIN")
        with pytest.raises(Closed):
            await wire.ask(key, version, values)
        await wire.close()


async def test_a_token_before_the_handshake_is_out_of_order(wire: Wire) -> None:
    assert (await wire.token(b"\0a\0b")).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert await wire.is_closed()


async def test_an_unknown_mechanism_is_answered_with_those_there_are(wire: Wire) -> None:
    answer = await wire.shake_hands("GSSAPI")
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, MECHANISMS)
    assert await wire.is_closed()


async def test_a_client_may_ask_for_versions_first_but_not_for_ever(wire: Wire) -> None:
    assert (await wire.ask(VERSIONS, 0, {})).error_code == 0
    assert (await wire.ask(VERSIONS, 0, {})).error_code == 0
    with pytest.raises(Closed):
        await wire.ask(VERSIONS, 0, {})


async def test_nobody_learns_which_users_there_are(cluster: Cluster) -> None:
    """Wrong passwords and unknown names: the same answers, one after the other, in the same time."""
    said: dict[str, list[Any]] = {}
    for name in (NAME, "stranger"):
        wire = await Wire.to(cluster)
        await wire.shake_hands("SCRAM-SHA-256")
        client = ScramClient(ScramMechanism.SCRAM_SHA_256, name, "wrong", "nonce")
        first = await wire.token(client.first())
        again = await Wire.to(cluster)
        await again.shake_hands("SCRAM-SHA-256")
        salt = [part for part in first.auth_bytes.split(b",") if part.startswith(b"s=")]
        assert salt[0] in (await again.token(client.first())).auth_bytes, "another salt each time tells decoys"
        await again.close()
        began = time.monotonic()
        final = await wire.token(client.step(first.auth_bytes) or b"")
        assert time.monotonic() - began >= DELAY_MS / 1000
        assert await wire.is_closed()
        said[name] = [first.error_code, len(first.auth_bytes), first.auth_bytes[-6:], final]
        await wire.close()
    known, unknown = said.values()
    assert known == unknown
    assert known[-1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_bare_tokens_of_old_clients(cluster: Cluster) -> None:
    wire = await Wire.to(cluster)
    assert (await wire.shake_hands("PLAIN", 0)).error_code == 0
    assert await wire.bare(f"\0{NAME}\0{PASSWORD}".encode()) == b""
    assert (await wire.ask(METADATA, 1, {"topics": []})).topics == ()
    await wire.close()
    wire = await Wire.to(cluster)
    await wire.shake_hands("PLAIN", 0)
    began = time.monotonic()
    with pytest.raises(Closed):
        await wire.bare(b"\0a\0b")
    assert time.monotonic() - began >= DELAY_MS / 1000
    await wire.close()


@pytest.mark.parametrize("shaken", [False, True])
async def test_frames_before_a_login_are_bounded(wire: Wire, shaken: bool) -> None:
    """At their length, however little of them comes, and even if it is a produce, which may be large elsewhere."""
    if shaken:
        await wire.shake_hands("PLAIN")
    began_s = time.monotonic()
    await wire.begin(512 * 1024 + 1)
    assert await wire.is_closed()
    assert time.monotonic() - began_s < KafkaLimits().first_request_ms / 2000, "it was closed for its silence"


async def test_a_login_must_be_done_in_time(cluster: Cluster) -> None:
    listener: Any = cluster._inner.nodes[cluster.node_ids[0]].broker
    found = listener._servers["KAFKA"]
    before, found.limits = found.limits, dataclasses.replace(found.limits, first_request_ms=200)
    try:
        wire = await Wire.to(cluster)
        await wire.shake_hands("PLAIN")
        assert await wire.is_closed()
        await wire.close()
    finally:
        found.limits = before


async def test_after_a_login_there_is_no_other(cluster: Cluster, wire: Wire) -> None:
    assert (await wire.log_in()).error_code == 0
    answer = await wire.token(b"")
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert (await wire.ask(METADATA, 1, {"topics": []})).topics == ()


async def test_where_no_login_is_wanted_there_is_none(cluster: Cluster) -> None:
    with Cluster(nodes=1, transport="grpc") as plain:
        wire = await Wire.to(plain)
        assert (await wire.shake_hands("PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await wire.token(b"\0a\0b")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await wire.close()


# --- How long a login lasts ---------------------------------------------------------------------------


async def test_a_deleted_user_is_sent_away(cluster: Cluster, wire: Wire) -> None:
    make_users(cluster, "leaver")
    assert (await wire.log_in(name="leaver")).error_code == 0
    assert (await wire.ask(METADATA, 1, {"topics": []})).topics == ()
    with Admin(cluster.bootstrap) as admin:
        for mechanism in BOTH:
            admin.alter_user_scram_credentials([UserScramCredentialDeletion("leaver", mechanism)])
    with pytest.raises(Closed):
        await wire.ask(METADATA, 1, {"topics": []})


async def test_logging_in_again_keeps_a_connection() -> None:
    lifetime_ms = 3_000
    config = settings(listener_name_kafka_connections_max_reauth_ms=str(lifetime_ms))
    with Cluster(nodes=1, transport="grpc", config=config) as cluster:
        await asyncio.to_thread(make_users, cluster, NAME, "other")
        wires = [await Wire.to(cluster) for _ in range(4)]
        for wire in wires:
            assert (await wire.log_in()).session_lifetime == lifetime_ms
        again, idle, other, mechanism = wires
        ends = time.monotonic() + lifetime_ms / 1000
        while time.monotonic() < ends - lifetime_ms / 3000:
            assert (await again.ask(METADATA, 1, {"topics": []})).topics == ()
            await asyncio.sleep(0.05)
        assert (await again.log_in()).session_lifetime == lifetime_ms
        assert (await again.shake_hands("SCRAM-SHA-256")).error_code == ErrorCode.ILLEGAL_SASL_STATE, "too early"
        refused = await other.log_in(name="other")
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await other.is_closed()
        refused = await mechanism.shake_hands("SCRAM-SHA-512")
        assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert await mechanism.is_closed()
        while time.monotonic() < ends + 0.1:
            assert (await again.ask(METADATA, 1, {"topics": []})).topics == ()
            await asyncio.sleep(0.05)
        with pytest.raises(Closed):
            await idle.ask(METADATA, 1, {"topics": []})
        for wire in wires:
            await wire.close()


# --- Any bytes at all ---------------------------------------------------------------------------------


def _frame(key: int, version: int, body: bytes, tagged: bool = False) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1) + (b"\0" if tagged else b"") + body


def _handshake(mechanism: str, version: int) -> bytes:
    return _frame(HANDSHAKE, version, struct.pack(">h", len(mechanism)) + mechanism.encode())


def _token(token: bytes) -> bytes:
    return _frame(AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)


_TOKENS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"n,,n=admin,r=abc", b"n,a=admin,n=admin,r=abc", b"c=biws,r=abc,p=AAAA", b"\0admin\0guess", b""]),
    st.sampled_from([b"n,,n=admin,r=abc,tokenauth=true", b"n,,n=,r=abc,tokenauth=true"]),
)
FRAMES = st.one_of(
    st.builds(_handshake, st.sampled_from([*MECHANISMS, "GSSAPI", ""]), st.integers(-1, 3)),
    st.builds(_token, _TOKENS),
    _TOKENS,
    st.builds(_frame, st.integers(0, 92), st.integers(-1, 20), st.binary(max_size=30), st.booleans()),
    st.just(_frame(VERSIONS, 0, b"")),
)


@given(frames=st.lists(FRAMES, max_size=6))
@hypothesis.settings(max_examples=100, deadline=None)
def test_no_bytes_get_in_without_a_password(cluster: Cluster, frames: list[bytes]) -> None:
    """Whatever comes before, a request for metadata ends the connection, unanswered, and the node goes on."""
    asked = _frame(METADATA, 1, struct.pack(">i", 0))
    host, _, port = cluster.kafka_bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as sock:
        sock.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in [*frames, asked]))
        said = bytearray()
        try:
            while piece := sock.recv(65536):
                said += piece
        except ConnectionResetError:
            pass
    assert b"127.0.0.1" not in said, "the brokers' addresses were told"
    assert cluster.node(1).failure == ""
