"""How a node's listeners are secured. Source: Kafka's ``SslConfigs``, ``BrokerSecurityConfigs``, KIP-103, KIP-368 and
KIP-651.

Each setting may also be given for one listener, with the prefix ``listener.name.NAME.``. A node that connects to
another node's listener uses that listener's settings as a client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tidelog.model.secret import Secret
from tidelog.model.settings.config_def import (
    ConfigDef,
    ConfigError,
    ValueType,
    boolean,
    integer,
    listing,
    long,
    password,
    structured,
    text,
)

PEM: Final = "PEM"
NO_CLIENT_AUTH: Final = "none"
CLIENT_AUTH_REQUESTED: Final = "requested"
CLIENT_AUTH_REQUIRED: Final = "required"
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
LISTENER_PREFIX: Final = "listener.name."
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512, PLAIN, OAUTHBEARER)
"""The supported SASL mechanisms."""
UNPROTECTED: Final = (PLAIN, OAUTHBEARER)
"""Mechanisms that send a secret in plain text."""


def _read_store_type(written: str) -> str:
    if written.upper() == PEM:
        return PEM
    raise ValueError(
        f"expected PEM, found {written[:20]!r}; convert a JKS store with `keytool -importkeystore -srckeystore "
        "store.jks -destkeystore store.p12 -deststoretype PKCS12`, a PKCS12 store with `openssl pkcs12 -in store.p12 "
        "-nodes -out store.pem`"
    )


@dataclass(frozen=True)
class ListenerSecurity:
    """See the module."""

    ssl_keystore_type: str = structured(
        PEM, "Format of the key and its certificates.", read=_read_store_type, write=str, value_type=ValueType.STRING
    )
    ssl_keystore_location: str | None = text(
        None, "A PEM file: the private key, then its certificate and those of intermediate authorities."
    )
    ssl_keystore_key: Secret | None = password(  # noqa: RUF009 - a field, like the others
        None, "The private key itself, in PEM; together with ssl.keystore.certificate.chain, instead of a file."
    )
    ssl_keystore_certificate_chain: Secret | None = password(  # noqa: RUF009 - a field, like the others
        None, "The key's certificate itself, in PEM, and those of intermediate authorities."
    )
    ssl_truststore_type: str = structured(
        PEM, "Format of the trusted certificates.", read=_read_store_type, write=str, value_type=ValueType.STRING
    )
    ssl_truststore_location: str | None = text(
        None,
        "A PEM file: the certificates of trusted authorities; by default, those that come with gRPC.",
    )
    ssl_truststore_certificates: Secret | None = password(  # noqa: RUF009 - a field, like the others
        None, "The trusted certificates themselves, in PEM, instead of a file."
    )
    ssl_client_auth: str = text(
        NO_CLIENT_AUTH,
        "Whether clients must show a certificate; requested is for Kafka listeners only.",
        choices=(NO_CLIENT_AUTH, CLIENT_AUTH_REQUESTED, CLIENT_AUTH_REQUIRED),
    )
    ssl_enabled_protocols: tuple[str, ...] = listing(
        TLS_VERSIONS, "The TLS versions; listeners of gRPC have both.", choices=TLS_VERSIONS
    )
    ssl_principal_mapping_rules: str = text(
        "DEFAULT",
        "How a certificate's subject becomes a principal's name: RULE:pattern/replacement/[LU],… and DEFAULT, the "
        "subject itself; the first match applies.",
    )
    ssl_endpoint_identification_algorithm: str = text(
        "https", "A node checks that another node's certificate names the host that it connects to.", choices=("https",)
    )
    allow_anonymous: bool = boolean(
        False,
        "Whether the node may start with a listener beyond the loopback address that lets anybody in.",
    )
    ssl_allow_dn_changes: bool = boolean(False, "Whether a new certificate may have another subject.")
    ssl_allow_san_changes: bool = boolean(False, "Whether a new certificate may lack names that the old one had.")

    sasl_enabled_mechanisms: tuple[str, ...] = listing(
        (SCRAM_SHA_256, SCRAM_SHA_512),
        "How clients may log in at SASL_SSL and SASL_PLAINTEXT listeners.",
        choices=MECHANISMS,
    )
    sasl_server_max_receive_size: int = integer(
        512 * 1024, "Largest request of a client that has not logged in.", at_least=1024
    )
    connections_max_reauth_ms: int = long(
        0,
        "How long a login lasts; a client that logs in again in time keeps its connection. 0: without end.",
        at_least=0,
    )

    sasl_oauthbearer_jwks_endpoint_url: str | None = text(
        None,
        "The address of the keys of the OAUTHBEARER token issuer: https://…, http:// on this machine, or file:///….",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = long(
        60 * 60 * 1000, "Time after which the issuer's keys are read again.", at_least=1_000
    )
    sasl_oauthbearer_expected_issuer: str | None = text(None, "The issuer that a token must name (iss).")
    sasl_oauthbearer_expected_audience: tuple[str, ...] = listing(
        (), "The audiences (aud); a token must name one of them."
    )
    sasl_oauthbearer_clock_skew_seconds: int = integer(
        30, "How far the clocks of node and issuer may differ.", at_least=0
    )
    sasl_oauthbearer_sub_claim_name: str = text("sub", "The claim of a token that holds the user's name.")

    DEFINITION: ClassVar[ConfigDef]

    def check_sasl(self, listener: str) -> None:
        """Raise :class:`ConfigError` if nobody could log in at a SASL listener of this name."""
        if not self.sasl_enabled_mechanisms:
            raise ConfigError(
                f"listener {listener}: sasl.enabled.mechanisms: expected at least one of {', '.join(MECHANISMS)}, "
                "found none"
            )
        if OAUTHBEARER not in self.sasl_enabled_mechanisms:
            return
        for name in ("jwks_endpoint_url", "expected_issuer", "expected_audience", "sub_claim_name"):
            if not getattr(self, f"sasl_oauthbearer_{name}"):
                setting = f"sasl.oauthbearer.{name.replace('_', '.')}"
                raise ConfigError(f"listener {listener}: expected {setting} with {OAUTHBEARER}, found none")

    def check_tls(self, listener: str, *, grpc: bool) -> None:
        """Raise :class:`ConfigError` if a TLS listener of this name cannot be served with these settings."""
        whole = self.ssl_keystore_key is not None and self.ssl_keystore_certificate_chain is not None
        if self.ssl_keystore_location is None and not whole:
            raise ConfigError(
                f"listener {listener} speaks TLS: expected ssl.keystore.location, or ssl.keystore.key with "
                "ssl.keystore.certificate.chain, found neither"
            )
        trusts = self.ssl_truststore_location is not None or self.ssl_truststore_certificates is not None
        if self.ssl_client_auth != NO_CLIENT_AUTH and not trusts:
            raise ConfigError(
                f"listener {listener}: expected ssl.truststore.location or ssl.truststore.certificates with "
                f"ssl.client.auth={self.ssl_client_auth}, found neither"
            )
        if not self.ssl_enabled_protocols:
            raise ConfigError(f"listener {listener}: ssl.enabled.protocols: expected at least one, found none")
        if grpc and self.ssl_client_auth == CLIENT_AUTH_REQUESTED:
            raise ConfigError(
                f"listener {listener}: ssl.client.auth: expected none or required, found requested: gRPC cannot ask "
                "for a certificate and do without"
            )
        if grpc and set(self.ssl_enabled_protocols) != set(TLS_VERSIONS):
            raise ConfigError(
                f"listener {listener}: ssl.enabled.protocols: expected {','.join(TLS_VERSIONS)}, found "
                f"{','.join(self.ssl_enabled_protocols)}: gRPC offers both; "
                f"{LISTENER_PREFIX}NAME.ssl.enabled.protocols sets it for one listener"
            )


LISTENER_SECURITY_DEF: Final = ConfigDef(ListenerSecurity)
ListenerSecurity.DEFINITION = LISTENER_SECURITY_DEF


def split_listener_setting(name: str) -> tuple[str, str] | None:
    """Split ``listener.name.NAME.setting``; ``None`` for another name. Listener names hold no dots."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, setting = name.removeprefix(LISTENER_PREFIX).partition(".")
    return listener.upper(), setting
