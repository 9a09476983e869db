"""Who sees metrics over HTTP: those with DESCRIBE on the cluster, by password, token or certificate."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.security.conftest import Certificates
from tests.security.issuer import AUDIENCE, CLIENTS, NAME, Issuer, running
from tidelog import (
    AclBinding,
    AclOperation,
    Admin,
    PatternType,
    PermissionType,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tidelog.broker import metrics as m
from tidelog.broker.node.exposure import exposed_listeners
from tidelog.cli.work.node_metrics import PageUnread, read_page, tls_context
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import ConfigError
from tidelog.security.acls import CLUSTER_NAME
from tidelog.testing.cluster import Cluster

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
JUDGED = {
    "authorizer.class.name": STANDARD,
    "super.users": "User:ANONYMOUS;User:root",
    "connection.failed.authentication.delay.ms": "20",
}


@contextmanager
def serving(scheme: str = "http", **settings: str) -> Iterator[tuple[Cluster, str]]:
    """A node, and the URL of its pages."""
    config = JUDGED | {"http.listener": f"{scheme.upper()}://127.0.0.1:0"}
    config |= {name.replace("_", "."): value for name, value in settings.items()}
    with Cluster(nodes=1, transport="grpc", config=config) as cluster:
        address = cluster.node(1).http_address
        yield cluster, f"{scheme}://{address}"


def look(url: str, client: dict[str, Any]) -> str:
    """What a client's metrics command finds: "seen", or why not."""
    context = tls_context(client) if url.startswith("https") else ssl.create_default_context()
    try:
        values = read_page(url + "/metrics", context, client).values
    except PageUnread as error:
        return str(error)
    assert values[m.UPTIME.exported]
    return "seen"


def plain(url: str, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, str, str]:
    """Status, challenge and text that somebody without our commands gets."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=30, context=context
        ) as answer:
            return answer.status, "", answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers.get("WWW-Authenticate", ""), error.read().decode()


def add_users(cluster: Cluster, **users: str) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(name, password) for name, password in users.items()]
        )


def allow(cluster: Cluster, user: str) -> None:
    resource = (ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
    with Admin(cluster.bootstrap) as admin:
        admin.create_acls([AclBinding(*resource, f"User:{user}", "*", AclOperation.DESCRIBE, PermissionType.ALLOW)])


def test_a_password_and_describe_show_metrics_and_strangers_get_a_word() -> None:
    with serving(http_auth="basic") as (cluster, url):
        add_users(cluster, alice="alice's", bob="bob's")
        allow(cluster, "alice")
        alice = {"sasl_username": "alice", "sasl_password": "alice's"}
        assert look(url, alice) == "seen"
        assert look(url, alice) == "seen"  # known by now
        assert "403" in look(url, {"sasl_username": "bob", "sasl_password": "bob's"})
        for other in ({**alice, "sasl_password": "bob's"}, {"sasl_username": "carol", "sasl_password": "x"}, {}):
            assert "401" in look(url, other)
        assert plain(url + "/metrics")[:2] == (401, 'Basic realm="tidelog"')
        for word in ("!", "YTpi\xe9"):
            assert plain(url + "/metrics", Authorization=f"Basic {word}")[0] == 401
        assert plain(url + "/health") == (200, "", "alive\n")
        assert plain(url + "/ready") == (200, "", "ready\n")
        with Admin(cluster.bootstrap) as admin:
            admin.alter_user_scram_credentials([UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_512)])
        assert "401" in look(url, alice), "a password that was good goes on being good only while there is the user"


def test_strangers_do_not_learn_what_is_wrong_with_a_node() -> None:
    with serving(http_auth="basic") as (cluster, url):
        add_users(cluster, root="root's")
        cluster.node(1).failure = "a reason with names in it"
        assert plain(url + "/health") == (503, "", "failed\n")
        assert "a reason" in plain(url + "/health", Authorization="Basic cm9vdDpyb290J3M=")[2]


def test_a_token_of_the_issuer_shows_metrics() -> None:
    with running(Issuer()) as issuer:
        settings = {
            "sasl_oauthbearer_jwks_endpoint_url": f"{issuer.url}/jwks",
            "sasl_oauthbearer_expected_issuer": NAME,
            "sasl_oauthbearer_expected_audience": AUDIENCE,
        }
        with serving(http_auth="bearer", **settings) as (cluster, url):
            client, secret = next(iter(CLIENTS.items()))
            by_token = {
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauthbearer_token_endpoint_url": f"{issuer.url}/token",
                "sasl_oauthbearer_client_id": client,
                "sasl_oauthbearer_client_secret": secret,
            }
            assert "403" in look(url, by_token)
            allow(cluster, client)
            assert look(url, by_token) == "seen"
            assert "401" in look(url, {})
            assert plain(url + "/metrics", Authorization="Bearer a.b.c")[:2] == (401, 'Bearer realm="tidelog"')
            strange = issuer.token(client, aud="another")
            assert plain(url + "/metrics", Authorization=f"Bearer {strange}")[0] == 401


def test_a_certificate_shows_metrics(certificates: Certificates) -> None:
    settings = certificates.settings("HTTPS", "requested", http_auth="mtls")
    del settings["listener.security.protocol.map"]
    settings["ssl.principal.mapping.rules"] = r"RULE:^CN=(.*)$/$1/"
    with serving("https", **settings) as (cluster, url):
        allow(cluster, "alice")
        assert look(url, certificates.client("alice")) == "seen"
        alice = certificates.client("alice")
        values = read_page(url + "/metrics", tls_context(alice), alice).values
        assert values[m.TLS_EXPIRY.exported].keys() == {("HTTPS",)}
        assert "403" in look(url, certificates.client("bob"))
        assert "401" in look(url, certificates.client(None))
        context = tls_context(certificates.client(None))
        assert plain(url + "/health", context) == (200, "", "alive\n")


def test_a_certificate_that_is_required_is_asked_for(certificates: Certificates) -> None:
    settings = certificates.settings("HTTPS", "required")
    del settings["listener.security.protocol.map"]
    with serving("https", **settings) as (_, url):
        assert look(url, certificates.client("alice")) == "seen"
        with pytest.raises((OSError, ssl.SSLError)):
            plain(url + "/health", tls_context(certificates.client(None)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"http.auth": "basic", "http.listener": "HTTP://10.0.0.1:1"}, "HTTPS"),
        ({"http.auth": "mtls", "http.listener": "HTTP://127.0.0.1:1"}, "ssl.client.auth"),
        ({"http.auth": "bearer", "http.listener": "HTTP://127.0.0.1:1"}, "sasl.oauthbearer.jwks.endpoint.url"),
        ({"http.auth": "digest"}, "none | basic | bearer | mtls"),
    ],
)
def test_settings_under_which_nobody_could_be_known_are_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        NodeConfig.parse({"node.id": "1"} | settings)
    assert said in str(wrong.value)


def test_a_listener_that_asks_who_it_is_may_be_reached_from_outside() -> None:
    tls = {"ssl.keystore.location": "k.pem", "http.listener": "HTTPS://0.0.0.0:9095", "http.auth": "basic"}
    assert exposed_listeners(NodeConfig.parse({"node.id": "1"} | tls)) == []
