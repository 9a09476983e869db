"""A node does not open itself by accident: listeners beyond the loopback address that let anybody in."""

from __future__ import annotations

import pytest

from tidelog.broker.node.exposure import exposed_listeners
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import ConfigError

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OUTSIDE = {"listeners": "KAFKA://10.0.0.1:9092,CLIENT://127.0.0.2:1,CONTROLLER://localhost:2"}
TLS = {
    "listener.security.protocol.map": "KAFKA:SSL",
    "ssl.keystore.location": "k.pem",
    "ssl.truststore.location": "ca.pem",
}
JUDGED = {"authorizer.class.name": STANDARD, "super.users": "User:root"}


@pytest.mark.parametrize(
    ("settings", "exposed"),
    [
        ({}, []),
        ({"listeners": "KAFKA://[::1]:1,CLIENT://[::ffff:127.0.0.1]:2,CONTROLLER://LOCALHOST:3"}, []),
        (OUTSIDE, ["KAFKA://10.0.0.1:9092 (PLAINTEXT)"]),
        (OUTSIDE | JUDGED, ["KAFKA://10.0.0.1:9092 (PLAINTEXT)"]),
        (OUTSIDE | TLS, ["KAFKA://10.0.0.1:9092 (SSL with ssl.client.auth=none)"]),
        (
            OUTSIDE | TLS | {"ssl.client.auth": "requested"},
            ["KAFKA://10.0.0.1:9092 (SSL with ssl.client.auth=requested)"],
        ),
        (OUTSIDE | TLS | {"ssl.client.auth": "required"}, []),
        (OUTSIDE | TLS | JUDGED, []),
        (
            OUTSIDE | TLS | JUDGED | {"super.users": "User:root;User:ANONYMOUS"},
            ["KAFKA://10.0.0.1:9092 (SSL with ssl.client.auth=none)"],
        ),
        (OUTSIDE | {"listener.security.protocol.map": "KAFKA:SASL_PLAINTEXT"}, []),
        (OUTSIDE | {"allow.anonymous": "true"}, []),
        (OUTSIDE | {"listener.name.kafka.allow.anonymous": "true"}, []),
        (OUTSIDE | {"listener.name.client.allow.anonymous": "true"}, ["KAFKA://10.0.0.1:9092 (PLAINTEXT)"]),
        (
            {
                "listeners": "KAFKA://0.0.0.0:1,CLIENT://a.example:2,CONTROLLER://[::]:3",
                "advertised.listeners": "KAFKA://b:1",
            },
            ["KAFKA://0.0.0.0:1 (PLAINTEXT)", "CLIENT://a.example:2 (PLAINTEXT)", "CONTROLLER://[::]:3 (PLAINTEXT)"],
        ),
        ({"http.listener": "HTTP://0.0.0.0:9095"}, ["HTTP://0.0.0.0:9095 (PLAINTEXT)"]),
        ({"http.listener": "HTTP://0.0.0.0:9095", "listener.name.http.allow.anonymous": "true"}, []),
        (
            TLS | JUDGED | {"http.listener": "HTTPS://0.0.0.0:9095"},
            ["HTTPS://0.0.0.0:9095 (SSL with ssl.client.auth=none)"],
        ),
        (TLS | {"http.listener": "HTTPS://0.0.0.0:9095", "ssl.client.auth": "required"}, []),
    ],
)
def test_what_lets_anybody_in(settings: dict[str, str], exposed: list[str]) -> None:
    assert exposed_listeners(NodeConfig.parse({"node.id": "1"} | settings)) == exposed


def test_http_has_no_other_settings_of_its_own() -> None:
    with pytest.raises(ConfigError, match="expected no HTTP"):
        NodeConfig.parse({"node.id": "1", "listener.name.http.ssl.client.auth": "required"})
