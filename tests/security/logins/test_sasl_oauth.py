"""Logins by token: foreign clients and ours, with an issuer that runs, at both kinds of listener."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from aiokafka.abc import AbstractTokenProvider

from tests.conftest import broker_of
from tests.kafka.raw_connection import Closed
from tests.security.conftest import Certificates
from tests.security.issuer import AUDIENCE, CLIENTS, NAME, Issuer, running
from tidelog import (
    AclBinding,
    AclOperation,
    Admin,
    Consumer,
    PatternType,
    PermissionType,
    Producer,
    ResourceType,
    errors,
)
from tidelog.broker.notices import Notices
from tidelog.cli.terminal.connection import read_command_config
from tidelog.client.config.admin import AdminConfig
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.config_def import ConfigError
from tidelog.security.oauthbearer import ACKNOWLEDGED, REFUSED, OAuthClient
from tidelog.testing.cluster import Cluster

from .test_sasl_kafka import METADATA, STANDARD, Wire

with warnings.catch_warnings():  # as in tests/kafka/conftest.py
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.net.sasl.oauth import AbstractTokenProvider as PythonProvider


def settings(issuer: Issuer, protocol: str = "SASL_PLAINTEXT", **more: str) -> dict[str, str]:
    return {
        "listener.security.protocol.map": f"KAFKA:{protocol},CLIENT:{protocol}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/jwks",
        "sasl.oauthbearer.expected.issuer": NAME,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "connection.failed.authentication.delay.ms": "20",
        "authorizer.class.name": STANDARD,
        "super.users": "User:ANONYMOUS;User:admin",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def allow(cluster: Cluster, issuer: Issuer) -> None:
    """``alice`` may use the topic ``t`` and the group ``g``."""
    with Admin(cluster.bootstrap, **by_provider(lambda: issuer.token("admin"))) as admin:
        admin.create_acls(
            AclBinding(kind, name, PatternType.LITERAL, "User:alice", "*", AclOperation.ALL, PermissionType.ALLOW)
            for kind, name in ((ResourceType.TOPIC, "t"), (ResourceType.GROUP, "g"))
        )


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with running(Issuer()) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(issuer: Issuer) -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc", config=settings(issuer)) as found:
        allow(found, issuer)
        yield found


def by_provider(provider: Callable[[], str]) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }


def by_endpoint(issuer: Issuer, name: str = "alice") -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": f"{issuer.url}/token",
        "sasl_oauthbearer_client_id": name,
        "sasl_oauthbearer_client_secret": CLIENTS.get(name, "guess-of-mine"),
    }


def librdkafka(cluster: Cluster, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.kafka_bootstrap,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "log_level": 0,
    } | {name.replace("_", "."): value for name, value in more.items()}


def librdkafka_by_endpoint(cluster: Cluster, issuer: Issuer) -> dict[str, Any]:
    return librdkafka(
        cluster,
        sasl_oauthbearer_method="oidc",
        sasl_oauthbearer_client_id="alice",
        sasl_oauthbearer_client_secret=CLIENTS["alice"],
        sasl_oauthbearer_token_endpoint_url=f"{issuer.url}/token",
    )


def _note(outcomes: list[object], error: object, _: object) -> None:
    outcomes.append(error)


# --- Those that have a token --------------------------------------------------------------------------


def test_librdkafka_asks_the_issuer_and_writes(cluster: Cluster, issuer: Issuer) -> None:
    producer = confluent_kafka.Producer(librdkafka_by_endpoint(cluster, issuer))
    outcomes: list[object] = []
    producer.produce("t", b"x", on_delivery=partial(_note, outcomes))
    assert producer.flush(30) == 0
    assert outcomes == [None]


def test_kafka_python_and_aiokafka_bring_a_token(cluster: Cluster, issuer: Issuer) -> None:
    class Blocking(PythonProvider):  # type: ignore[misc]
        def token(self) -> str:
            return issuer.token()

    class Waiting(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return issuer.token()

    security = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    producer = kafka.KafkaProducer(
        bootstrap_servers=cluster.kafka_bootstrap, sasl_oauth_token_provider=Blocking(), **security
    )
    try:
        producer.send("t", b"kafka-python").get(30)
    finally:
        producer.close()

    async def send() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.kafka_bootstrap, sasl_oauth_token_provider=Waiting(), **security
        ) as producer:
            await producer.send_and_wait("t", b"aiokafka")

    asyncio.run(send())


def test_the_sdk_brings_a_token_or_asks_the_issuer(cluster: Cluster, issuer: Issuer) -> None:
    for given in (by_endpoint(issuer), by_provider(issuer.token)):
        with Producer(cluster.bootstrap, **given) as producer:
            producer.send("t", b"x").result(30)
        with Consumer(cluster.bootstrap, **given, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            assert consumer.poll(30)
    with (
        Producer(cluster.bootstrap, **by_endpoint(issuer, "bob")) as producer,
        pytest.raises(errors.TopicAuthorizationFailedError),
    ):
        producer.send("t", b"x").result(30)


def test_a_private_issuer_over_tls(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificates.roots)
    with running(Issuer("P-256"), certificates.node("issuer")) as issuer:
        issuer.token = partial(issuer.token, algorithm="ES256")  # type: ignore[method-assign]
        with Cluster(nodes=1, transport="grpc", config=settings(issuer)) as cluster:
            allow(cluster, issuer)
            assert issuer.url.startswith("https://")
            with Producer(cluster.bootstrap, **by_endpoint(issuer)) as producer:
                producer.send("t", b"x").result(30)
            monkeypatch.delenv("SSL_CERT_FILE")
            refused = pytest.raises(
                errors.SaslAuthenticationError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify"
            )
            with Admin(cluster.bootstrap, **by_endpoint(issuer)) as admin, refused:
                admin.list_topics()


# --- Those that have none, or a bad one ---------------------------------------------------------------

BAD: dict[str, Callable[[Issuer], str]] = {
    "has expired": lambda issuer: issuer.token(exp=int(time.time()) - 60),
    "expected a token from the issuer": lambda issuer: issuer.token(iss="https://another.example"),
    "another audience": lambda issuer: issuer.token(aud="another"),
    "signature": lambda _: Issuer().token(),
    "something else": lambda _: "no.token.atall",
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_token_is_one_line_to_the_operator_and_nothing_to_a_stranger(
    cluster: Cluster, issuer: Issuer, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = BAD[reason](issuer)
    broker = broker_of(cluster.node(1))
    for served in (broker._token_logins, broker._servers["KAFKA"]):
        monkeypatch.setattr(served, "_notices", Notices())  # no line is held back for earlier ones
    caplog.set_level(logging.INFO)

    async def over_kafka() -> None:
        wire = await Wire.to(cluster)
        assert (await wire.shake_hands("OAUTHBEARER")).error_code == 0
        first = await wire.token(OAuthClient(lambda: token).first())
        assert (first.error_code, first.auth_bytes) == (0, REFUSED)
        last = await wire.token(ACKNOWLEDGED)
        assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert last.error_message.endswith("due to invalid credentials with SASL mechanism OAUTHBEARER")
        assert await wire.is_closed()
        await wire.close()

    asyncio.run(over_kafka())
    with (
        Admin(str(cluster.node(1).client_address), **by_provider(lambda: token)) as admin,
        pytest.raises(errors.SaslAuthenticationError, match="invalid credentials") as refused,
    ):
        admin.list_topics()
    assert reason not in str(refused.value)
    lines = [record.getMessage() for record in caplog.records if record.name == "tidelog.broker.notices"]
    told = [line for line in lines if reason in line and "OAUTHBEARER" in line]
    for listener, deed in (("KAFKA", "closing the connection"), ("CLIENT", "refusing the login")):
        assert [line for line in told if line.startswith(f"listener {listener}: {deed} of ")], lines
    assert not [record for record in caplog.records if token in record.getMessage()]


def test_what_a_client_hears_of_its_own_issuer(cluster: Cluster, issuer: Issuer) -> None:
    refused = pytest.raises(errors.SaslAuthenticationError, match=r"no token: .*HTTP 401 \(invalid_client\)")
    with Admin(cluster.bootstrap, **by_endpoint(issuer, "mallory")) as admin, refused as said:
        admin.list_topics()
    assert "guess-of-mine" not in str(said.value) + repr(admin)

    def broken() -> str:
        raise RuntimeError("the vault is shut")

    refused = pytest.raises(errors.SaslAuthenticationError, match="RuntimeError: the vault is shut")
    with Admin(cluster.bootstrap, **by_provider(broken)) as admin, refused:
        admin.list_topics()


# --- How long a login lasts ---------------------------------------------------------------------------


async def test_a_login_lasts_as_long_as_its_token(cluster: Cluster, issuer: Issuer) -> None:
    wire = await Wire.to(cluster)
    await wire.shake_hands("OAUTHBEARER")
    exp = int(time.time()) + 3
    told = await wire.token(OAuthClient(lambda: issuer.token(exp=exp)).first())
    assert 0 < told.session_lifetime <= 3_000
    while time.time() < exp + 0.1:
        await asyncio.sleep(0.05)
    with pytest.raises(Closed):
        await wire.ask(METADATA, 1, {"topics": []})
    await wire.close()


async def test_a_token_without_a_sensible_end_is_shown_again_some_day(cluster: Cluster, issuer: Issuer) -> None:
    wire = await Wire.to(cluster)
    await wire.shake_hands("OAUTHBEARER")
    told = await wire.token(OAuthClient(lambda: issuer.token(exp=10**20)).first())
    assert told.session_lifetime == 2**31 - 1
    assert (await wire.ask(METADATA, 1, {"topics": []})).topics == ()
    await wire.close()


async def test_the_shorter_of_both_ends_counts(issuer: Issuer) -> None:
    config = settings(issuer, connections_max_reauth_ms="60000")
    with Cluster(nodes=1, transport="grpc", config=config) as cluster:
        for lifetime_s, least, most in ((3_600, 60_000, 60_000), (30, 1, 30_000), (10**20, 60_000, 60_000)):
            wire = await Wire.to(cluster)
            await wire.shake_hands("OAUTHBEARER")
            exp = int(time.time()) + lifetime_s
            first = OAuthClient(partial(issuer.token, exp=exp)).first()
            assert least <= (await wire.token(first)).session_lifetime <= most
            await wire.close()


def test_clients_bring_another_token_in_time_and_lose_nothing(cluster: Cluster) -> None:
    """librdkafka and ours, on tokens of a few seconds, for three lives of one."""
    lifetime_s = 6.0
    with running(Issuer()) as issuer:
        issuer.lifetime_s = lifetime_s
        with Cluster(nodes=1, transport="grpc", config=settings(issuer)) as short:
            allow(short, issuer)
            logins = broker_of(short.node(1))._token_logins
            foreign = confluent_kafka.Producer(librdkafka_by_endpoint(short, issuer))
            outcomes: list[object] = []
            tokens = set[str]()
            sent = 0
            with Producer(short.bootstrap, **by_endpoint(issuer)) as producer:
                ends = time.monotonic() + 3 * lifetime_s
                while time.monotonic() < ends or len(tokens) < 3:
                    producer.send("t", b"x").result(30)
                    foreign.produce("t", b"x", on_delivery=partial(_note, outcomes))
                    foreign.poll(0.02)
                    tokens |= set(logins._sessions)
                    sent += 1
            assert foreign.flush(30) == 0
            assert outcomes == [None] * sent


# --- Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"jwks.endpoint.url": ""}, "expected sasl.oauthbearer.jwks.endpoint.url with OAUTHBEARER"),
        ({"expected.issuer": ""}, "expected sasl.oauthbearer.expected.issuer with OAUTHBEARER"),
        ({"expected.audience": ""}, "expected sasl.oauthbearer.expected.audience with OAUTHBEARER"),
        ({"jwks.endpoint.url": "http://issuer.example/jwks"}, "jwks.endpoint.url: expected https://"),
        ({"jwks.endpoint.url": "file:///not/there.json"}, "not/there.json: No such file"),
        ({"scope.claim.name": "scope"}, "access control lists decide"),
    ],
)
def test_a_node_that_could_not_judge_tokens_does_not_start(change: dict[str, str], said: str) -> None:
    given = settings(Issuer()) | {f"sasl.oauthbearer.{name}": value for name, value in change.items()}
    with pytest.raises(ConfigError, match=said), Cluster(nodes=1, transport="grpc", config=given):
        pass


def test_keys_in_a_file(tmp_path: Path) -> None:
    issuer = Issuer()
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps(issuer.jwks()))
    config = settings(issuer) | {"sasl.oauthbearer.jwks.endpoint.url": keys.as_uri()}
    with Cluster(nodes=1, transport="grpc", config=config) as cluster:
        token = tmp_path / "token"
        token.write_text(issuer.token("admin"))
        given = by_endpoint(issuer) | {"sasl_oauthbearer_token_endpoint_url": token.as_uri()}
        with Admin(cluster.bootstrap, **given) as admin:
            assert admin.list_topics() == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "expected sasl_oauthbearer_token_endpoint_url or sasl_oauth_token_provider.*found neither"),
        ({"sasl_oauth_token_provider": "text"}, "sasl_oauth_token_provider: expected a callable, found str"),
        ({"sasl_oauthbearer_token_endpoint_url": "http://far/token"}, "token_endpoint_url: expected https://"),
        ({"sasl_oauthbearer_token_endpoint_url": "https://far/token"}, "sasl_oauthbearer_client_id: expected this"),
        ({"sasl_username": "u"}, "sasl_mechanism: expected one other than OAUTHBEARER with sasl_username"),
        (
            {"sasl_mechanism": "PLAIN", "sasl_oauthbearer_scope": "s"},
            "sasl_mechanism: expected one other than PLAIN with sasl_oauthbearer_scope",
        ),
    ],
)
def test_settings_of_a_client_that_do_not_fit_are_refused(given: dict[str, Any], said: str) -> None:
    base = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    with pytest.raises(ConfigError, match=said):
        AdminConfig.of(base | given).login()


def test_the_settings_of_kafkas_tools(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
        "sasl.oauthbearer.token.endpoint.url=https://issuer.example/token\n"
        "sasl.oauthbearer.client.credentials.client.id=alice\n"
        "sasl.oauthbearer.client.credentials.client.secret=pencil\n"
    )
    found = read_command_config(file)
    config = AdminConfig.of(found)
    assert config.login() is not None
    assert "pencil" not in repr(config)
    assert (config.sasl_oauthbearer_client_id, str(config.sasl_oauthbearer_client_secret)) == ("alice", "pencil")
