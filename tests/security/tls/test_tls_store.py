"""Keys and certificates: what is refused at start, what is taken later, and what the log says."""

from __future__ import annotations

import datetime
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.security.conftest import Certificates
from tidelog.cli.work.certificates import save
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.properties import format_properties
from tidelog.security import authority
from tidelog.security.authority import Authority
from tidelog.security.principal import ANONYMOUS
from tidelog.security.tls_store import NodeTls, NotAuthenticated, TlsStore

HOSTS = ("127.0.0.1", "localhost")


def tls_of(settings: dict[str, str], listener: str = "KAFKA") -> TlsStore:
    found = NodeTls(NodeConfig.parse({"node.id": "1", **settings})).find(listener)
    assert found is not None
    return found


def refusal(settings: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        tls_of(settings)
    return str(caught.value)


def replace(path: str, text: str) -> None:
    """As tools that renew certificates do: another file takes the name."""
    Path(f"{path}.new").write_text(text)
    os.replace(f"{path}.new", path)


def test_a_plaintext_node_reads_no_file() -> None:
    assert NodeTls(NodeConfig.parse({"node.id": "1"})).stores == {}


def test_a_file_that_is_not_there_is_named(certificates: Certificates) -> None:
    settings = certificates.settings() | {"ssl.keystore.location": "/no/such.pem"}
    assert refusal(settings) == "ssl.keystore.location: /no/such.pem: No such file or directory"


def test_a_file_without_a_key_is_named(certificates: Certificates) -> None:
    settings = certificates.settings() | {"ssl.keystore.location": certificates.roots}
    assert "expected one private key in PEM, found 0" in refusal(settings)


def test_a_file_without_certificates_is_named(certificates: Certificates) -> None:
    settings = certificates.settings(client_auth="required")
    replace(certificates.roots, "nothing")
    assert (
        refusal(settings) == f"ssl.truststore.location: {certificates.roots}: expected certificates in PEM, found none"
    )


def test_a_key_of_another_certificate_is_refused(certificates: Certificates) -> None:
    key, _, _ = certificates.authority.issue("a", ["h"], 1).partition("-----BEGIN CERTIFICATE")
    _, _, chain = certificates.authority.issue("b", ["h"], 1).partition("-----BEGIN CERTIFICATE")
    settings = certificates.settings()
    replace(settings["ssl.keystore.location"], key + "-----BEGIN CERTIFICATE" + chain)
    assert "expected the private key of the first certificate, found another certificate's" in refusal(settings)


def test_an_expired_certificate_is_refused(certificates: Certificates) -> None:
    settings = certificates.settings()
    certificates.node(days=-1)
    assert "expected a certificate that is valid today: certificate has expired" in refusal(settings)


def test_a_certificate_that_is_not_valid_yet_is_refused(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a node's clock is behind."""
    settings = certificates.settings()
    monkeypatch.setattr(authority, "_CLOCK_SKEW", -datetime.timedelta(days=1))
    certificates.node()
    assert "expected a certificate that is valid today: certificate is not yet valid" in refusal(settings)


def test_a_key_that_may_not_be_read_is_named(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = certificates.settings()
    key = settings["ssl.keystore.location"]
    os.chmod(key, 0)
    if os.geteuid() == 0:  # who may read everything: another file that it cannot read
        os.unlink(key)
        os.mkdir(key)
    assert refusal(settings).startswith(f"ssl.keystore.location: {key}: ")


def test_an_encrypted_key_is_refused_with_what_to_do(certificates: Certificates) -> None:
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    settings = certificates.settings()
    replace(settings["ssl.keystore.location"], key.decode())
    assert "openssl pkey -in encrypted.pem -out key.pem" in refusal(settings)


def test_nodes_must_accept_their_own_certificate(certificates: Certificates, tmp_path: Path) -> None:
    """A Kafka listener's clients may have another authority than the node itself; nodes among themselves may not."""
    (tmp_path / "other").mkdir()
    save(Authority.make("another", 1), tmp_path / "other")
    others = {"ssl.truststore.location": str(tmp_path / "other" / "ca.pem")}
    tls_of(certificates.settings("KAFKA", "required") | others)
    text = refusal(certificates.settings("KAFKA REPLICATION", "required") | others)
    assert "listener REPLICATION" in text
    assert "expected a certificate that is accepted by its own trusted certificates" in text


def test_pem_may_stand_in_the_settings_themselves(certificates: Certificates) -> None:
    text = Path(certificates.node()).read_text()
    key, begin, chain = text.partition("-----BEGIN CERTIFICATE")
    inline = {
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": begin + chain,
        "ssl.truststore.certificates": Path(certificates.roots).read_text(),
    }
    settings = {"node.id": "1", "listener.security.protocol.map": "KAFKA:SSL", "ssl.client.auth": "required", **inline}
    config = NodeConfig.from_properties(format_properties(settings))
    store = NodeTls(config).find("KAFKA")
    assert store is not None
    assert store.identity is not None
    assert store.identity.subject == "CN=node"
    secret = key.splitlines()[1]
    assert secret not in repr(config)
    assert secret not in repr(store.material)
    # In one line, as Kafka takes it too.
    assert tls_of({**settings, "ssl.keystore.key": key.replace("\n", "")}).material == store.material


def test_a_certificate_that_no_rule_names_is_nobody(certificates: Certificates) -> None:
    rules = {"ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/U,RULE:^CN=STAR$/*/"}
    store = tls_of(certificates.settings("KAFKA", "required") | rules)

    def der(name: str) -> bytes:
        _, begin, chain = certificates.authority.issue(name, (), 1).partition("-----BEGIN CERTIFICATE")
        return ssl.PEM_cert_to_DER_cert(begin + chain)

    assert str(store.session_of(der("alice")).principal) == "User:ALICE"
    assert store.session_of(None).principal is ANONYMOUS
    for name in ("alice7", "STAR"):
        with pytest.raises(
            NotAuthenticated, match=rf"subject matches ssl\.principal\.mapping\.rules, found 'CN={name}'"
        ):
            store.session_of(der(name))


def test_a_renewed_certificate_is_taken(certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    store = tls_of(certificates.settings())
    before, context = store.material, store.context
    store.refresh()
    assert (store.material, store.version) == (before, 1)
    with caplog.at_level(logging.INFO):
        replace(certificates.node(), certificates.authority.issue("node", ["127.0.0.1", "localhost", "new"], 60))
        store.refresh()
    assert store.material != before
    assert store.context is not context
    assert (store.version, store.reloads, store.refused) == (2, 1, 0)
    assert "listener KAFKA: using the new certificate of CN=node, valid until" in caplog.text


def of_another_key(certificates: Certificates) -> str:
    key, _, _ = renewed()(certificates).partition("-----BEGIN CERTIFICATE")
    _, begin, chain = renewed()(certificates).partition("-----BEGIN CERTIFICATE")
    return key + begin + chain


def not_valid_yet(certificates: Certificates) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authority, "_CLOCK_SKEW", -datetime.timedelta(days=1))
        return renewed()(certificates)


def of_another_authority(_: Certificates) -> str:
    return Authority.make("another", 1).issue("node", HOSTS, 9)


def renewed(name: str = "node", hosts: tuple[str, ...] = HOSTS, days: int = 9) -> Callable[[Certificates], str]:
    return lambda certificates: certificates.authority.issue(name, hosts, days)


@pytest.mark.parametrize(
    ("make", "said", "allowed"),
    [
        (renewed("other"), "expected a certificate of CN=node, found one of CN=other", "dn"),
        (renewed(hosts=HOSTS[1:]), "expected a certificate for IP Address:127.0.0.1 too, found one without", "san"),
        (renewed(days=-1), "certificate has expired", None),
        (not_valid_yet, "certificate is not yet valid", None),
        (of_another_key, "expected the private key of the first certificate, found another certificate's", None),
        (of_another_authority, "expected a certificate that is accepted by its own trusted certificates", None),
    ],
    ids=["name", "hosts", "expired", "early", "key", "authority"],
)
def test_what_would_lock_clients_out_is_refused(
    certificates: Certificates,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Certificates], str],
    said: str,
    allowed: str | None,
) -> None:
    listener = "REPLICATION" if make is of_another_authority else "KAFKA"  # that clients may have another is fine
    settings = certificates.settings("KAFKA REPLICATION", "required")
    store = tls_of(settings, listener)
    before = store.material
    path = settings["ssl.keystore.location"]
    good = Path(path).read_text()
    bad = make(certificates)
    replace(path, bad)
    store.refresh()
    assert "keeping the old key and certificates: " in caplog.text
    assert said in caplog.text
    assert (store.material, store.version, store.refused) == (before, 1, 1)
    caplog.clear()
    store.refresh()  # the same file again: it was told once
    assert not caplog.text
    replace(path, good)
    store.refresh()
    assert (store.version, store.refused) == (1, 1)
    if allowed is not None:
        lenient = tls_of(settings | {f"ssl.allow.{allowed}.changes": "true"})
        replace(path, bad)
        lenient.refresh()
        assert lenient.version == 2
