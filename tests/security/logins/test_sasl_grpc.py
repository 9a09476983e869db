"""Logins of the SDK's clients at a gRPC listener: with every mechanism, again in time, and not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conftest import broker_of
from tests.security.conftest import Certificates
from tidelog import (
    AclBinding,
    AclOperation,
    Admin,
    Consumer,
    PatternType,
    PermissionType,
    Producer,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
    errors,
)
from tidelog.broker.notices import Notices
from tidelog.cli.terminal.connection import read_command_config
from tidelog.client.config.admin import AdminConfig
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.config_def import ConfigError
from tidelog.proto.calls.api import DescribeClusterRequest
from tidelog.proto.calls.user_api import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.proto.transport.grpc_login import ClientLogin
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.network import Address, LoginNotMade, StreamKind
from tidelog.security.sasl import PlainClient
from tidelog.security.scram import ScramClient
from tidelog.testing.cluster import Cluster

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
NAME, PASSWORD = "älice, =2C", " pëncil "
LIFETIME_MS = 2_000


def settings(protocol: str = "SASL_PLAINTEXT", **more: str) -> dict[str, str]:
    """Kafka's listener asks for no login, so that a test can make users there."""
    return {
        "listener.security.protocol.map": f"CLIENT:{protocol}",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "connection.failed.authentication.delay.ms": "20",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def make_users(cluster: Cluster, *names: str) -> None:
    from confluent_kafka import admin as rd

    admin = rd.AdminClient({"bootstrap.servers": cluster.kafka_bootstrap})
    for mechanism in (rd.ScramMechanism.SCRAM_SHA_256, rd.ScramMechanism.SCRAM_SHA_512):
        info = rd.ScramCredentialInfo(mechanism, 4096)
        wanted: list[Any] = [rd.UserScramCredentialUpsertion(name, info, PASSWORD.encode()) for name in names]
        for future in admin.alter_user_scram_credentials(wanted).values():
            future.result(20)


def address(cluster: Cluster) -> str:
    """Of the gRPC listener."""
    return str(cluster.node(1).client_address)


def client(mechanism: str = "SCRAM-SHA-512", name: str = NAME, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": name,
        "sasl_password": password,
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    access = {"authorizer_class_name": STANDARD, "super_users": "User:ANONYMOUS;User:admin"}
    with Cluster(nodes=1, transport="grpc", config=settings(**access)) as found:
        make_users(found, NAME, "admin", "nobody")
        with Admin(address(found), **client(name="admin")) as admin:
            admin.create_acls(
                AclBinding(kind, name, PatternType.LITERAL, f"User:{NAME}", "*", AclOperation.ALL, PermissionType.ALLOW)
                for kind, name in (
                    (ResourceType.TOPIC, "t"),
                    (ResourceType.GROUP, "g"),
                    (ResourceType.CLUSTER, "kafka-cluster"),
                    (ResourceType.TRANSACTIONAL_ID, "x"),
                )
            )
        yield found


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_sdk_writes_and_reads_as_its_user(cluster: Cluster, mechanism: str) -> None:
    for bootstrap in (address(cluster), cluster.kafka_bootstrap):  # the second refers it to the first
        with Producer(bootstrap, **client(mechanism)) as producer:
            producer.send("t", mechanism.encode()).result(20)
    with Consumer(address(cluster), **client(mechanism), group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        assert consumer.poll(20)


def test_a_transaction_goes_through(cluster: Cluster) -> None:
    """Its calls go as frames of a stream."""
    with Producer(address(cluster), **client(), transactional_id="x") as producer:
        for _ in range(3):
            with producer.transaction():
                producer.send("t", b"x")


def test_a_user_has_its_own_rights_and_no_others(cluster: Cluster) -> None:
    with Admin(address(cluster), **client(name="nobody")) as admin:
        assert admin.list_topics() == []
        with pytest.raises(errors.ClusterAuthorizationFailedError):
            admin.describe_acls()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [(NAME, "guess"), ("stranger", PASSWORD)])
def test_a_wrong_password_is_refused(
    cluster: Cluster,
    mechanism: str,
    name: str,
    password: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_of(cluster.node(1))._token_logins, "_notices", Notices())  # no line is held back
    failed = pytest.raises(errors.SaslAuthenticationError, match="invalid credentials")
    with Admin(address(cluster), **client(mechanism, name, password)) as admin, failed as refused:
        admin.list_topics()
    assert password not in str(refused.value) + repr(admin)
    said = f"wrong user or password ('{mechanism}')"
    lines = [line for line in caplog.messages if line.startswith("listener CLIENT: refusing the login of ")]
    assert [line for line in lines if line.endswith(said)]
    assert not [line for line in caplog.messages if password in line]


def test_without_a_login_nothing_is_served(cluster: Cluster) -> None:
    with Admin(address(cluster)) as admin, pytest.raises(errors.SaslAuthenticationError, match="expected a login"):
        admin.list_topics()

    async def streams() -> None:
        connection = GrpcNetwork().connect(Address("127.0.0.1", int(address(cluster).rpartition(":")[2])))
        for kind in (StreamKind.PRODUCE, StreamKind.FETCH):
            with pytest.raises(LoginNotMade, match="expected a login"):
                await connection.open(kind, timeout_s=20)
        with pytest.raises(LoginNotMade):
            await connection.call(DescribeClusterRequest(), timeout_s=20)
        await connection.close()

    asyncio.run(streams())


def test_an_unknown_mechanism_is_answered_with_those_there_are(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_of(cluster.node(1))._token_logins, "_notices", Notices())

    async def ask() -> SaslAuthenticateResponse:
        connection = GrpcNetwork().connect(Address("127.0.0.1", int(address(cluster).rpartition(":")[2])))
        answer = await connection.call(SaslAuthenticateRequest("GSSAPI", b"", b""), timeout_s=20)
        await connection.close()
        return answer

    answer = asyncio.run(ask())
    assert answer.error is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert [line for line in caplog.messages if line.endswith(answer.error_message) and "found 'GSSAPI'" in line]


def test_no_login_where_none_is_wanted() -> None:
    refused = pytest.raises(errors.SaslAuthenticationError, match="has no logins")
    with Cluster(nodes=1, transport="grpc") as plain, Admin(address(plain), **client()) as admin, refused:
        admin.list_topics()


def test_a_token_of_elsewhere_is_none(cluster: Cluster) -> None:
    """Another host, another listener: the token is not good there."""
    broker = broker_of(cluster.node(1))
    logins = broker._token_logins

    async def made() -> str:
        login = ScramClient(ScramMechanism.SCRAM_SHA_512, NAME, PASSWORD, "nonce")
        connection = GrpcNetwork().connect(Address("127.0.0.1", int(address(cluster).rpartition(":")[2])))

        async def ask(exchange: bytes, token: bytes) -> SaslAuthenticateResponse:
            return await connection.call(SaslAuthenticateRequest(login.name, exchange, token), timeout_s=20)

        first = await ask(b"", login.first())
        final = login.step(first.auth_bytes) or b""
        done = await ask(first.exchange, final)
        assert (await ask(first.exchange, final)).error is ErrorCode.SASL_AUTHENTICATION_FAILED, "an exchange twice"
        assert (await ask(b"guess", final)).error is ErrorCode.SASL_AUTHENTICATION_FAILED
        await connection.close()
        return done.session_token

    token = asyncio.run(made())

    async def found(listener: str, host: str, shown: str) -> bool:
        find = logins.sessions(listener)
        return find is not None and find(shown, host) is not None

    for listener, host, shown, good in (
        ("CLIENT", "127.0.0.1", token, True),
        ("CLIENT", "127.0.0.2", token, False),
        ("KAFKA", "127.0.0.1", token, False),
        ("CLIENT", "127.0.0.1", "", False),
        ("CLIENT", "127.0.0.1", token[:-1], False),
    ):
        assert cluster._run(found(listener, host, shown)) is good, (listener, host)


# --- How long a login lasts ---------------------------------------------------------------------------


def test_a_deleted_user_is_sent_away(cluster: Cluster) -> None:
    make_users(cluster, "leaver")
    with (
        Admin(address(cluster), **client(name="leaver")) as leaver,
        Admin(address(cluster), **client(name="admin")) as admin,
    ):
        assert leaver.list_topics() == []
        for mechanism in ScramMechanism:
            admin.alter_user_scram_credentials([UserScramCredentialDeletion("leaver", mechanism)])
        with pytest.raises(errors.TidelogError):
            leaver.list_topics(timeout=2)


def test_clients_log_in_again_in_time_and_lose_nothing() -> None:
    config = settings(listener_name_client_connections_max_reauth_ms=str(LIFETIME_MS))
    with Cluster(nodes=1, transport="grpc", config=config) as cluster:
        make_users(cluster, NAME)
        logins = broker_of(cluster.node(1))._token_logins
        sent, tokens = 0, set[str]()
        with Producer(address(cluster), **client()) as producer:
            ends = time.monotonic() + 3 * LIFETIME_MS / 1000
            while time.monotonic() < ends or len(tokens) < 3:
                producer.send("t", str(sent).encode()).result(30)
                tokens |= set(logins._sessions)
                sent += 1
                time.sleep(0.02)
        with Consumer(address(cluster), **client(), group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            values: list[bytes | None] = []
            while len(values) < sent:
                values += [record.value for record in consumer.poll(20)]
        assert values == [str(number).encode() for number in range(sent)]


def test_tls_and_a_login(kept_certificates: Certificates) -> None:
    config = kept_certificates.settings("") | settings("SASL_SSL")
    with Cluster(nodes=1, transport="grpc", config=config) as cluster:
        make_users(cluster, NAME)
        secured = client("PLAIN") | {"security_protocol": "SASL_SSL", "ssl_cafile": kept_certificates.roots}
        with Admin(address(cluster), **secured) as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion("bob", "x", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256))]
            )
            assert set(admin.describe_user_scram_credentials()) == {NAME, "bob"}


# --- The client's end ---------------------------------------------------------------------------------


async def test_a_client_gives_its_password_to_no_impostor() -> None:
    async def ask(request: SaslAuthenticateRequest, _: float, __: object) -> SaslAuthenticateResponse:
        """Lets everybody in, without a proof."""
        return SaslAuthenticateResponse(ErrorCode.NONE, b"", b"", "token")

    def scram() -> ScramClient:
        return ScramClient(ScramMechanism.SCRAM_SHA_256, "u", "p", "nonce")

    with pytest.raises(LoginNotMade):
        await ClientLogin(Address("10.0.0.1", 1), scram, ask, encrypted=True).token(1)
    plain = ClientLogin(Address("10.0.0.1", 1), lambda: PlainClient("u", "p"), ask, encrypted=False)
    with pytest.raises(LoginNotMade, match="unencrypted"):
        await plain.token(1)
    assert await ClientLogin(Address("127.0.0.1", 1), lambda: PlainClient("u", "p"), ask, encrypted=False).token(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"security_protocol": "SASL_SSL"}, "found none of them"),
        (client() | {"sasl_password": None}, "found sasl_mechanism, sasl_username"),
        (client() | {"security_protocol": "SSL"}, "expected SASL_SSL with sasl_mechanism"),
        (client("GSSAPI"), "expected SCRAM-SHA-256 | SCRAM-SHA-512 | PLAIN"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("|", r"\|")) as refused:
        AdminConfig.of(given).login()
    assert PASSWORD not in str(refused.value)


def test_a_password_is_not_shown() -> None:
    config = AdminConfig.of(cast(Any, client()))
    assert PASSWORD not in repr(config)
    assert PASSWORD in str(config.sasl_password)


def test_the_settings_of_kafkas_tools(tmp_path: Path) -> None:
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="a\\"b";'
    file = tmp_path / "client.properties"
    written = jaas.replace("\\", "\\\\")
    file.write_text(f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={written}\n")
    assert read_command_config(file) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "alice",
        "sasl_password": 'a"b',
    }
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanisms=PLAIN\nsasl.username=u\nsasl.password=p\n")
    assert read_command_config(file)["sasl_password"] == "p"


def test_what_the_peer_forgot_is_made_anew(cluster: Cluster) -> None:
    """As after the node's restart: the next call logs in again by itself."""
    logins = broker_of(cluster.node(1))._token_logins
    with Admin(address(cluster), **client()) as admin:
        admin.describe_cluster()
        logins._sessions.clear()
        admin.describe_cluster()
        assert len(logins._sessions) == 1
