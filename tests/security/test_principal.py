"""Identities, how they are written, and where a request's identity comes from."""

from __future__ import annotations

import pytest

from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.proto.transport.network import CallContext
from tidelog.security.principal import ANONYMOUS, Principal
from tidelog.security.session import UNSECURED


@pytest.mark.parametrize("text", ["User:alice", "User:CN=a,OU=b:c", "Group:*"])
def test_a_principal_is_read_as_it_is_written(text: str) -> None:
    assert str(Principal.parse(text)) == text


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:"])
def test_what_is_no_principal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a principal such as User:alice, found"):
        Principal.parse(text)


def test_nobody_logged_in_is_kafkas_anonymous() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert CallContext("CLIENT", "ipv4:127.0.0.1:1").session is UNSECURED
    assert UNSECURED.principal is ANONYMOUS
    assert UNSECURED.protocol is SecurityProtocol.PLAINTEXT


@pytest.mark.parametrize(
    ("protocol", "tls", "sasl"),
    [("PLAINTEXT", False, False), ("SSL", True, False), ("SASL_PLAINTEXT", False, True), ("SASL_SSL", True, True)],
)
def test_what_a_protocol_asks_for(protocol: str, tls: bool, sasl: bool) -> None:
    found = SecurityProtocol(protocol)
    assert (found.tls, found.sasl) == (tls, sasl)


def test_a_listener_is_plaintext_unless_the_map_says_otherwise() -> None:
    config = NodeConfig.parse({"node.id": "1", "listener.security.protocol.map": "kafka:plaintext"})
    assert config.protocol_of("KAFKA") is SecurityProtocol.PLAINTEXT
    assert config.protocol_of("CLIENT") is SecurityProtocol.PLAINTEXT


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:5555", "127.0.0.1"),
        ("ipv6:%5B::1%5D:5555", "::1"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:5555", "10.0.0.1"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]:80", "::1"),
        ("[fe80::1%eth0]:80", "fe80::1"),
        ("node-1", "node-1"),
        ("", ""),
    ],
)
def test_a_callers_host_has_one_spelling(peer: str, host: str) -> None:
    assert CallContext("CLIENT", peer).host == host
