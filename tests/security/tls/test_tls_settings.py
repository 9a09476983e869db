"""Settings of TLS: what a node refuses before it touches a file, and what holds for one listener."""

from __future__ import annotations

import pytest

from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.security_protocol import SecurityProtocol

ONE = {"node.id": "1"}
SSL = {**ONE, "listener.security.protocol.map": "KAFKA:SSL", "ssl.keystore.location": "/k.pem"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listener.security.protocol.map": "KAFKA:SSL"}, "expected ssl.keystore.location, or ssl.keystore.key with"),
        ({"http.listener": "HTTPS://127.0.0.1:1"}, "listener HTTPS speaks TLS: expected ssl.keystore.location"),
        ({"http.listener": "WEB://127.0.0.1:1"}, "expected HTTP://… or HTTPS://…, found WEB://127.0.0.1:1"),
        ({"listener.security.protocol.map": "HTTP:SSL"}, "http.listener=HTTPS://… makes that listener TLS"),
        ({**SSL, "ssl.client.auth": "required"}, "expected ssl.truststore.location or ssl.truststore.certificates"),
        ({**SSL, "ssl.enabled.protocols": ""}, "listener KAFKA: ssl.enabled.protocols: expected at least one"),
        ({**SSL, "ssl.enabled.protocols": "TLSv1.1"}, "expected a list of TLSv1.2 | TLSv1.3, found 'TLSv1.1'"),
        ({**SSL, "ssl.keystore.type": "JKS"}, "expected PEM, found 'JKS'; convert a JKS store with `keytool"),
        ({**SSL, "ssl.key.password": "x"}, "the key must not be encrypted: `openssl pkey"),
        ({**SSL, "listener.name.kafa.ssl.client.auth": "none"}, "expected one of CLIENT, CONTROLLER, HTTP, KAFKA"),
        ({**SSL, "listener.name.kafka.ssl.client.aut": "none"}, "did you mean ssl.client.auth?"),
        ({**SSL, "listener.name.kafka.ssl.client.auth": "maybe"}, "listener.name.kafka.ssl.client.auth: expected none"),
        ({**SSL, "ssl.endpoint.identification.algorithm": ""}, "expected https, found ''"),
        ({"security.inter.broker.protocol": "SSL"}, "inter.broker.listener.name names the listener"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NodeConfig.parse(ONE | settings)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("ssl.client.auth", "requested", "gRPC cannot ask for a certificate and do without"),
        ("ssl.enabled.protocols", "TLSv1.3", "gRPC offers both"),
    ],
)
def test_what_grpc_cannot_do_is_refused_on_its_listeners_only(setting: str, value: str, said: str) -> None:
    settings = SSL | {"ssl.truststore.location": "/t.pem", setting: value}
    assert NodeConfig.parse(settings).protocol_of("KAFKA") is SecurityProtocol.SSL
    with pytest.raises(ConfigError, match=said):
        NodeConfig.parse(settings | {"listener.security.protocol.map": "CLIENT:SSL"})


def test_a_listeners_own_settings_come_first() -> None:
    config = NodeConfig.parse(
        SSL
        | {
            "ssl.truststore.location": "/t.pem",
            "listener.name.kafka.ssl.client.auth": "requested",
            "listener.name.KAFKA.ssl.keystore.location": "/other.pem",
        }
    )
    own, others = config.security_of("KAFKA"), config.security_of("CLIENT")
    assert (own.ssl_client_auth, own.ssl_keystore_location) == ("requested", "/other.pem")
    assert (others.ssl_client_auth, others.ssl_keystore_location) == ("none", "/k.pem")
    assert own.ssl_truststore_location == others.ssl_truststore_location == "/t.pem"
    text = {name: value for name, value in config.describe().items() if value is not None}
    assert NodeConfig.parse(text).security_of("KAFKA") == own


def test_a_file_names_the_line_of_a_listeners_setting() -> None:
    with pytest.raises(ConfigError, match=r"line 2: listener\.name\.kafka\.ssl\.client\.auth: expected none"):
        NodeConfig.from_properties("node.id=1\nlistener.name.kafka.ssl.client.auth=all\n")
