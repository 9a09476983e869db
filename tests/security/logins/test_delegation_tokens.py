"""Delegation tokens on a running cluster: who gets one, who logs in by it, how long, and what is refused."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.wire_client import WireClient
from tests.security.conftest import Certificates
from tidelog import (
    AclBinding,
    AclOperation,
    Admin,
    Consumer,
    DelegationToken,
    PatternType,
    PermissionType,
    Producer,
    ResourceType,
    ScramMechanism,
    errors,
)
from tidelog.broker.handlers import delegation_tokens
from tidelog.cli.terminal.connection import read_command_config
from tidelog.client.config.admin import AdminConfig
from tidelog.metadata_quorum.controller import token_changes
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.config_def import ConfigError
from tidelog.security.delegation_tokens import token_hmac
from tidelog.security.scram import ScramClient
from tidelog.testing.cluster import Cluster

KEY = "a key that all nodes share"
HANDSHAKE, AUTHENTICATE, METADATA, CREATE, RENEW, EXPIRE, DESCRIBE = 17, 36, 3, 38, 39, 40, 41
REFUSED = ErrorCode.SASL_AUTHENTICATION_FAILED
SETTINGS = {
    "delegation.token.secret.key": KEY,
    "delegation.token.expiry.check.interval.ms": "200",
    "connection.failed.authentication.delay.ms": "20",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc", security="scram", config=SETTINGS) as found:
        for name in ("alice", "bob", "carol"):
            found.add_user(name)
        found.create_topic("t", partitions=1)
        with Admin(found.bootstrap, **found.client_settings("admin")) as admin:
            admin.create_acls(
                AclBinding(kind, name, PatternType.LITERAL, "User:alice", "*", AclOperation.ALL, PermissionType.ALLOW)
                for kind, name in (
                    (ResourceType.TOPIC, "t"),
                    (ResourceType.GROUP, "g"),
                    (ResourceType.CLUSTER, "kafka-cluster"),
                )
            )
        yield found


def by_token(token: DelegationToken, mechanism: str = "SCRAM-SHA-512", password: str | None = None) -> dict[str, Any]:
    """The settings of a client of the SDK."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": token.token_id,
        "sasl_password": password or token.hmac_as_base64,
        "sasl_tokenauth": True,
    }


def create(cluster: Cluster, user: str = "alice", **more: Any) -> DelegationToken:
    with Admin(cluster.bootstrap, **cluster.client_settings(user)) as admin:
        return admin.create_delegation_token(**more)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def kept(cluster: Cluster) -> set[str]:
    return set(cluster.node(1).view.image.delegation_tokens)


class Wire(WireClient):
    """A connection to the Kafka listener that logs in by SCRAM."""

    def log_in(self, name: str, password: str, *, token: bool, mechanism: str = "SCRAM-SHA-512") -> Any:
        """The last answer."""
        assert self.ask(HANDSHAKE, 1, mechanism=mechanism).error_code == 0
        client = ScramClient(ScramMechanism[mechanism.replace("-", "_")], name, password, "nonce", by_token=token)
        first = self.ask(AUTHENTICATE, 2, auth_bytes=client.first())
        if first.error_code:
            return first
        return self.ask(AUTHENTICATE, 2, auth_bytes=client.step(first.auth_bytes) or b"")


def wire_of(cluster: Cluster, user: str = "alice") -> Wire:
    found = Wire(cluster.kafka_bootstrap)
    password = cluster.client_settings(user)["sasl_password"]
    assert found.log_in(user, password or "", token=False).error_code == 0
    return found


def outcome(cluster: Cluster, name: str, password: str, mechanism: str = "SCRAM-SHA-512") -> ErrorCode:
    with Wire(cluster.kafka_bootstrap) as wire:
        return ErrorCode(wire.log_in(name, password, token=True, mechanism=mechanism).error_code)


# --- Logging in ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_sdk_writes_and_reads_as_the_owner(cluster: Cluster, mechanism: str) -> None:
    token = create(cluster)
    with Producer(cluster.bootstrap, **by_token(token, mechanism)) as producer:
        producer.send("t", mechanism.encode()).result(60)
    settings = by_token(token, mechanism)
    with Consumer(cluster.bootstrap, **settings, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        deadline = time.monotonic() + 60
        while mechanism.encode() not in [record.value for record in consumer.poll(timeout=1)]:
            assert time.monotonic() < deadline


def test_whose_token_it_is_decides_what_one_may_do(cluster: Cluster) -> None:
    token = create(cluster, "bob")
    with Producer(cluster.bootstrap, **by_token(token)) as producer, pytest.raises(errors.TidelogError) as caught:
        producer.send("t", b"x").result(60)
    assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_kafka_client_logs_in(cluster: Cluster) -> None:
    token = create(cluster)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        with Wire(cluster.kafka_bootstrap) as wire:
            done = wire.log_in(token.token_id, token.hmac_as_base64, token=True, mechanism=mechanism)
            assert done.error_code == 0
            assert 0 < done.session_lifetime <= token.expiry_timestamp - token.issue_timestamp
            assert wire.ask(METADATA, 12, topics=None).topics[0].name == "t"


def test_what_does_not_log_in(cluster: Cluster) -> None:
    token, other = create(cluster), create(cluster)
    password = token.hmac_as_base64
    altered = base64.b64encode(bytes([token.hmac[0] ^ 1]) + token.hmac[1:]).decode()
    assert outcome(cluster, token.token_id, altered) is REFUSED
    assert outcome(cluster, other.token_id, password) is REFUSED
    assert outcome(cluster, "nobody", password) is REFUSED
    assert outcome(cluster, "alice", cluster.client_settings("alice")["sasl_password"] or "") is REFUSED
    with Wire(cluster.kafka_bootstrap) as wire:
        assert wire.log_in(token.token_id, password, token=False).error_code == REFUSED, "as a user's password"
    assert outcome(cluster, token.token_id, password) is ErrorCode.NONE
    with (
        Admin(cluster.bootstrap, **by_token(token, password=altered)) as admin,
        pytest.raises(errors.SaslAuthenticationError),
    ):
        admin.describe_cluster(timeout=60)


def test_an_expired_token_is_refused_ends_its_sessions_and_goes(cluster: Cluster) -> None:
    """It was to live for longer when its holder logged in."""
    token = create(cluster, max_lifetime_ms=600_000)
    with Wire(cluster.kafka_bootstrap) as wire:
        done = wire.log_in(token.token_id, token.hmac_as_base64, token=True)
        assert done.error_code == 0
        assert 0 < done.session_lifetime <= 600_000
        with Admin(cluster.bootstrap, **cluster.client_settings("alice")) as admin:
            until_ms = admin.expire_delegation_token(token.hmac, expiry_time_period_ms=300)
        until(lambda: outcome(cluster, token.token_id, token.hmac_as_base64) is REFUSED, "it expires")
        with pytest.raises(AssertionError, match="closed"):
            wire.ask(METADATA, 12, topics=None)
        until(lambda: token.token_id not in kept(cluster), "the controller removes it")
        assert time.time() * 1000 > until_ms, "it was removed before its time"
    assert outcome(cluster, token.token_id, token.hmac_as_base64) is REFUSED


def test_a_removed_token_is_out_with_the_next_request(cluster: Cluster) -> None:
    token = create(cluster)
    with Wire(cluster.kafka_bootstrap) as wire, Admin(cluster.bootstrap, **by_token(token)) as guest:
        assert wire.log_in(token.token_id, token.hmac_as_base64, token=True).error_code == 0
        assert guest.list_topics()
        with Admin(cluster.bootstrap, **cluster.client_settings("alice")) as admin:
            admin.expire_delegation_token(token.hmac)
        with pytest.raises(AssertionError, match="closed"):
            wire.ask(METADATA, 12, topics=None)
        with pytest.raises(errors.TidelogError):
            guest.list_topics(timeout=2)
    assert outcome(cluster, token.token_id, token.hmac_as_base64) is REFUSED


def test_every_node_takes_a_token_also_after_the_controller_has_died() -> None:
    with Cluster(nodes=3, transport="grpc", security="scram", config=SETTINGS) as three:
        three.add_user("alice")
        token = create(three)

        def everywhere(error: ErrorCode) -> None:
            for bootstrap in three.kafka_bootstrap.split(","):
                with Wire(bootstrap) as wire:
                    said = wire.log_in(token.token_id, token.hmac_as_base64, token=True).error_code
                    assert said == error, bootstrap

        def all_know(known: bool) -> bool:
            return all((token.token_id in three.node(n).view.image.delegation_tokens) == known for n in three.node_ids)

        until(lambda: all_know(True), "every node knows the token")
        everywhere(ErrorCode.NONE)
        dead = three.wait_for_controller()
        three.kill(dead)
        three.wait_for_controller(60)
        with Admin(three.bootstrap, **three.client_settings("alice")) as admin:
            assert admin.renew_delegation_token(token.hmac, timeout=60) >= token.expiry_timestamp
            three.restart(dead)
            three.wait_ready(60)
            until(lambda: all_know(True), "the restarted node knows it from its log")
            everywhere(ErrorCode.NONE)
            admin.expire_delegation_token(token.hmac, timeout=60)
        until(lambda: all_know(False), "every node knows that it is gone")
        everywhere(REFUSED)


# --- Asking for tokens --------------------------------------------------------------------------------


def test_the_owner_and_renewers_renew_it(cluster: Cluster) -> None:
    token = create(cluster, renewers=["User:bob"])
    assert (token.owner, token.requester, token.renewers) == ("User:alice", "User:alice", ("User:bob",))
    for user in ("alice", "bob"):
        with Admin(cluster.bootstrap, **cluster.client_settings(user)) as admin:
            assert admin.renew_delegation_token(token.hmac, renew_time_period_ms=60_000) < token.expiry_timestamp
            assert token.token_id in [each.token_id for each in admin.describe_delegation_token()]
    with Admin(cluster.bootstrap, **cluster.client_settings("carol")) as admin:
        with pytest.raises(errors.TidelogError, match="neither the owner"):
            admin.renew_delegation_token(token.hmac)
        with pytest.raises(errors.TidelogError, match="neither the owner"):
            admin.expire_delegation_token(token.hmac)
        assert token.token_id not in [each.token_id for each in admin.describe_delegation_token()]


def test_rights_about_other_peoples_tokens(cluster: Cluster) -> None:
    """CREATE_TOKENS and DESCRIBE_TOKENS on a user, DESCRIBE on a token (KIP-373)."""
    with pytest.raises(errors.TidelogError, match="Delegation Token authorization failed"):
        create(cluster, "bob", owner="User:carol")

    def allow(operation: AclOperation, kind: ResourceType, name: str) -> None:
        entry = AclBinding(kind, name, PatternType.LITERAL, "User:bob", "*", operation, PermissionType.ALLOW)
        with Admin(cluster.bootstrap, **cluster.client_settings("admin")) as admin:
            admin.create_acls([entry])

    def seen(*owners: str) -> set[str]:
        with Admin(cluster.bootstrap, **cluster.client_settings("bob")) as admin:
            return {each.token_id for each in admin.describe_delegation_token(owners or None)}

    allow(AclOperation.CREATE_TOKENS, ResourceType.USER, "User:carol")
    asked_for = create(cluster, "bob", owner="User:carol")
    own, other = create(cluster, "carol"), create(cluster, "carol")
    assert (asked_for.owner, asked_for.requester) == ("User:carol", "User:bob")
    assert seen("User:carol") == {asked_for.token_id}
    allow(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, own.token_id)
    assert seen("User:carol") == {asked_for.token_id, own.token_id}
    allow(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:carol")
    assert seen("User:carol") == {asked_for.token_id, own.token_id, other.token_id}
    assert not seen("User:nobody")


def test_nobody_computes_the_secrets_of_tokens_that_the_caller_may_not_see(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = create(cluster, "carol")
    others = [create(cluster, "alice") for _ in range(5)]
    computed: list[str] = []

    def counted(key: str, token_id: str) -> bytes:
        computed.append(token_id)
        return token_hmac(key, token_id)

    monkeypatch.setattr(token_changes, "token_hmac", counted)
    monkeypatch.setattr(delegation_tokens, "AT_A_TIME", 2)
    for user in ("carol", "admin"):
        with Admin(cluster.bootstrap, **cluster.client_settings(user)) as admin:
            computed.clear()
            seen = [each.token_id for each in admin.describe_delegation_token()]
            assert computed == seen == sorted(seen)
            assert own.token_id in seen
            assert ({each.token_id for each in others} <= set(seen)) is (user == "admin")


def test_a_token_gives_no_token(cluster: Cluster) -> None:
    """Not to itself, at either kind of listener."""
    token = create(cluster)
    refused = errors.TidelogError
    with Admin(cluster.bootstrap, **by_token(token)) as guest:
        for call in (
            guest.create_delegation_token,
            guest.describe_delegation_token,
            lambda: guest.renew_delegation_token(token.hmac),
            lambda: guest.expire_delegation_token(token.hmac),
        ):
            with pytest.raises(refused, match="by something other than a delegation token") as caught:
                call()
            assert caught.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    with Wire(cluster.kafka_bootstrap) as wire:
        assert wire.log_in(token.token_id, token.hmac_as_base64, token=True).error_code == 0
        assert_not_allowed(wire, token.hmac)


def test_nobody_gets_a_token_without_a_login() -> None:
    """Over plaintext without a login, everybody is User:ANONYMOUS."""
    with Cluster(nodes=1, transport="grpc", config=SETTINGS) as plain:
        with Admin(plain.bootstrap) as admin, pytest.raises(errors.TidelogError) as caught:
            admin.create_delegation_token()
        assert caught.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        with Wire(plain.kafka_bootstrap) as wire:
            assert_not_allowed(wire, b"x")


def assert_not_allowed(wire: WireClient, hmac: bytes) -> None:
    for version in (1, 2, 3):
        more = {"owner_principal_type": None, "owner_principal_name": None} if version == 3 else {}
        answers = [wire.ask(CREATE, version, renewers=(), max_lifetime=-1, **more)]
        answers.append(wire.ask(DESCRIBE, version, owners=None))
        if version < 3:
            answers.append(wire.ask(RENEW, version, hmac=hmac, renew_period=-1))
            answers.append(wire.ask(EXPIRE, version, hmac=hmac, expiry_time_period=-1))
        for answer in answers:
            assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_without_a_key_there_are_none() -> None:
    with Cluster(nodes=1, transport="grpc", security="scram") as keyless:
        with Admin(keyless.bootstrap, **keyless.client_settings("admin")) as admin:
            for call in (admin.create_delegation_token, admin.describe_delegation_token):
                with pytest.raises(errors.TidelogError, match=r"delegation\.token\.secret\.key") as caught:
                    call()
                assert caught.value.code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert outcome(keyless, "id", "x") is REFUSED


def test_kafkas_calls_in_every_version(cluster: Cluster) -> None:
    renewer = {"principal_type": "User", "principal_name": "bob"}
    nobody = {"owner_principal_type": None, "owner_principal_name": ""}
    with wire_of(cluster) as wire:
        for version in (1, 2, 3):
            made = wire.ask(
                CREATE, version, renewers=[renewer], max_lifetime=3_600_000, **(nobody if version == 3 else {})
            )
            assert (made.error_code, made.principal_type, made.principal_name) == (0, "User", "alice")
            assert made.expiry_timestamp == made.max_timestamp == made.issue_timestamp + 3_600_000
            if version == 3:
                assert made.token_requester_principal_name == "alice"
            short = min(version, 2)
            renewed = wire.ask(RENEW, short, hmac=made.hmac, renew_period=60_000)
            assert renewed.error_code == 0
            assert renewed.expiry_timestamp < made.expiry_timestamp
            (found,) = (
                each for each in wire.ask(DESCRIBE, version, owners=None).tokens if each.token_id == made.token_id
            )
            assert (found.hmac, found.expiry_timestamp) == (made.hmac, renewed.expiry_timestamp)
            assert [(each.principal_type, each.principal_name) for each in found.renewers] == [("User", "bob")]
            if version == 3:
                assert found.token_requester_principal_name == "alice"
            assert wire.ask(DESCRIBE, version, owners=()).tokens == ()
            assert wire.ask(DESCRIBE, version, owners=[{"principal_type": "User", "principal_name": "x"}]).tokens == ()
            assert wire.ask(EXPIRE, short, hmac=made.hmac, expiry_time_period=-1).error_code == 0
            gone = wire.ask(EXPIRE, short, hmac=made.hmac, expiry_time_period=-1)
            assert gone.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        group = {"principal_type": "Group", "principal_name": "staff"}
        refused = wire.ask(CREATE, 3, renewers=[group], max_lifetime=-1, **nobody)
        assert refused.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
        others = {"owner_principal_type": "User", "owner_principal_name": "carol"}
        refused = wire.ask(CREATE, 3, renewers=(), max_lifetime=-1, **others)
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


def test_a_client_cannot_speak_for_another(cluster: Cluster) -> None:
    """The requester that a broker tells the controller is the one that logged in."""
    import asyncio

    from tidelog.proto.calls.delegation_token_api import ExpireDelegationTokenRequest
    from tidelog.proto.transport.grpc_transport import GrpcNetwork
    from tidelog.proto.transport.network import Address

    token = create(cluster)
    settings = AdminConfig.of(dict(cluster.client_settings("bob")))

    async def ask() -> ErrorCode:
        host, _, port = str(cluster.node(1).client_address).rpartition(":")
        connection = GrpcNetwork(login=settings.login()).connect(Address(host, int(port)))
        try:
            request = ExpireDelegationTokenRequest(token.hmac, -1, requester="User:alice")
            return (await connection.call(request, timeout_s=60)).error
        finally:
            await connection.close()

    assert asyncio.run(ask()) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert token.token_id in kept(cluster)


def test_a_certificate_gets_a_token_and_no_certificate_none(kept_certificates: Certificates) -> None:
    """One-way TLS proves nobody's identity."""
    config = kept_certificates.settings("CLIENT", "none", **{"listener.name.client.ssl.client.auth": "required"})
    config = SETTINGS | config | {"listener.security.protocol.map": "CLIENT:SSL"}
    with Cluster(nodes=1, transport="grpc", config=config) as cluster:
        with Admin(str(cluster.node(1).client_address), **kept_certificates.client()) as admin:
            token = admin.create_delegation_token()
        assert token.owner == "User:CN=alice"
    one_way = SETTINGS | kept_certificates.settings("CLIENT")
    with (
        Cluster(nodes=1, transport="grpc", config=one_way) as cluster,
        Admin(str(cluster.node(1).client_address), **kept_certificates.client(None)) as admin,
        pytest.raises(errors.TidelogError) as caught,
    ):
        admin.create_delegation_token()
    assert caught.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_nobody_learns_which_tokens_there_are(cluster: Cluster) -> None:
    """One and the same answer, step by step, and always the same salt."""
    token = create(cluster)
    said = []
    for token_id in (token.token_id, "A" * len(token.token_id)):
        salts = set()
        for _ in range(2):
            with Wire(cluster.kafka_bootstrap) as wire:
                wire.ask(HANDSHAKE, 1, mechanism="SCRAM-SHA-512")
                client = ScramClient(ScramMechanism.SCRAM_SHA_512, token_id, "guess", "nonce", by_token=True)
                first = wire.ask(AUTHENTICATE, 2, auth_bytes=client.first())
                salts.add(first.auth_bytes.split(b",")[1])
                final = wire.ask(AUTHENTICATE, 2, auth_bytes=client.step(first.auth_bytes) or b"")
        assert len(salts) == 1
        said.append([first.error_code, len(first.auth_bytes), first.auth_bytes[-6:], final])
    assert said[0] == said[1]
    assert said[0][-1].error_code == REFUSED


# --- Settings -----------------------------------------------------------------------------------------


def test_a_token_in_a_file_of_kafkas_tools(cluster: Cluster, tmp_path: Path) -> None:
    token = create(cluster)
    path = tmp_path / "client.properties"
    for spelt in ('tokenauth="true"', "tokenauth=true"):
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{token.token_id}" password="{token.hmac_as_base64}" {spelt};\n'
        )
        settings: dict[str, Any] = dict(read_command_config(path))
        with Admin(cluster.bootstrap, **settings) as admin:
            assert admin.list_topics()
    path.write_text(path.read_text().replace("tokenauth=true", "tokenauth=false"))
    assert "sasl_tokenauth" not in read_command_config(path)


def test_plain_takes_no_token() -> None:
    given = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"}
    with pytest.raises(ConfigError, match="sasl_tokenauth"):
        AdminConfig.of({**given, "sasl_tokenauth": True}).login()
    with pytest.raises(ConfigError, match="sasl_tokenauth"):
        AdminConfig.of({"sasl_tokenauth": True}).login()


def test_nothing_shows_a_tokens_secret(cluster: Cluster) -> None:
    token = create(cluster)
    assert token.hmac_as_base64 not in repr(token)
    assert repr(token.hmac) not in repr(token)
    assert KEY not in repr(cluster.node(1).config)
