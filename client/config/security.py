"""How a client secures its connections: the settings that all clients share, in the Python Kafka clients' spelling."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypedDict

from tidelog.model.settings.config_def import ConfigDef, ConfigError, ValueType, boolean, password, text
from tidelog.model.settings.listener_security import MECHANISMS, OAUTHBEARER, PLAIN
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.security.issuer import TokenEndpoint, check_url, is_file
from tidelog.security.oauthbearer import OAuthClient
from tidelog.security.pem import PemSource, PemSources, TlsError
from tidelog.security.sasl import ClientMechanism, LoginRefused, PlainClient
from tidelog.security.scram import BY_SASL_NAME, ScramClient
from tidelog.security.tls_store import TlsRules, TlsStore

NONCE_BYTES: Final = 24
OF_PASSWORDS: Final = ("sasl_username", "sasl_password", "sasl_tokenauth")
OF_TOKENS: Final = (
    "sasl_oauth_token_provider",
    "sasl_oauthbearer_token_endpoint_url",
    "sasl_oauthbearer_client_id",
    "sasl_oauthbearer_client_secret",
    "sasl_oauthbearer_scope",
)
STORE_TYPES: Final = ("ssl.truststore.type", "ssl.keystore.type")
"""Settings of Kafka clients that have only one possible value here: PEM."""
KAFKA_NAMES: Final = {
    "ssl.truststore.location": "ssl_cafile",
    "ssl.ca.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl_oauthbearer_client_id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl_oauthbearer_client_secret",
}
"""Names from Kafka's Java clients and librdkafka, with ours."""
OTHER_SPELLINGS: Final = {name.replace(".", "_"): ours for name, ours in KAFKA_NAMES.items()}
"""The same names in Python's spelling, as keyword arguments."""
JAAS: Final = "sasl.jaas.config"
"""Where Kafka's Java clients put user and password."""


class SecuritySettings(TypedDict, total=False):
    """The keyword arguments that secure a client."""

    security_protocol: str
    ssl_cafile: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    sasl_mechanism: str | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_tokenauth: bool
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_id: str | None
    sasl_oauthbearer_client_secret: str | None
    sasl_oauthbearer_scope: str | None
    sasl_oauth_token_provider: Callable[[], str] | None


class SpeltOtherwise(SecuritySettings, total=False):
    """The same, and :data:`OTHER_SPELLINGS`."""

    ssl_truststore_location: str | None
    ssl_ca_location: str | None
    ssl_keystore_location: str | None
    ssl_certificate_location: str | None
    ssl_key_location: str | None
    sasl_mechanisms: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | None


@dataclass(frozen=True)
class ClientSecurity:
    """See the module."""

    security_protocol: str = text(
        "PLAINTEXT", "Security of the brokers' listener.", choices=tuple(SecurityProtocol.__members__)
    )
    ssl_cafile: str | None = text(
        None, "PEM file of trusted certificate authorities. Default: those that come with gRPC."
    )
    ssl_certfile: str | None = text(
        None, "PEM file of the client's certificate with intermediate authorities, if brokers require one."
    )
    ssl_keyfile: str | None = text(None, "PEM file of the certificate's private key. Default: in ssl_certfile.")
    sasl_mechanism: str | None = text(
        None, "How the client logs in, with SASL_SSL or SASL_PLAINTEXT.", choices=MECHANISMS
    )
    sasl_username: str | None = text(None, "The user to log in as.")
    sasl_password: str | None = password(None, "The user's password.")
    sasl_tokenauth: bool = boolean(
        False, "Whether user and password are a delegation token's id and its HMAC in base64."
    )
    sasl_oauthbearer_token_endpoint_url: str | None = text(
        None, "Where the client gets tokens for OAUTHBEARER: https://…, http:// on this machine, or file:///…."
    )
    sasl_oauthbearer_client_id: str | None = text(None, "The client's id at that endpoint.")
    sasl_oauthbearer_client_secret: str | None = password(None, "The client's secret there.")
    sasl_oauthbearer_scope: str | None = text(None, "The scope of the requested tokens.")
    sasl_oauth_token_provider: Callable[[], str] | None = None
    """Returns a token for OAUTHBEARER, instead of an endpoint; called in a thread, for each login."""

    def login(self) -> Callable[[], ClientMechanism] | None:
        """Return a function that starts a login, ``None`` without one. Raises :class:`ConfigError`."""
        given = [name for name in ("sasl_mechanism", *OF_PASSWORDS, *OF_TOKENS) if getattr(self, name)]
        if not SecurityProtocol(self.security_protocol).sasl:
            if given:
                found = self.security_protocol
                raise ConfigError(f"security_protocol: expected SASL_SSL with {given[0]}, found {found}")
            return None
        how, user, secret = self.sasl_mechanism, self.sasl_username, self.sasl_password
        stray = set(given) & {*(OF_PASSWORDS if how == OAUTHBEARER else OF_TOKENS)}
        if how is not None and stray:
            raise ConfigError(f"sasl_mechanism: expected one other than {how} with {', '.join(sorted(stray))}")
        if how == OAUTHBEARER:
            token = self.token_source()
            return lambda: OAuthClient(token)
        if how is None or not user or not secret:
            raise ConfigError(
                f"security_protocol: expected sasl_mechanism, sasl_username and sasl_password with "
                f"{self.security_protocol}, found {', '.join(given) or 'none of them'}"
            )
        by_token = self.sasl_tokenauth
        if how == PLAIN:
            if by_token:
                raise ConfigError(f"sasl_tokenauth: expected a SCRAM mechanism, found {PLAIN}")
            return lambda: PlainClient(user, secret)
        mechanism = BY_SASL_NAME[how]
        return lambda: ScramClient(mechanism, user, secret, secrets.token_urlsafe(NONCE_BYTES), by_token=by_token)

    def token_source(self) -> Callable[[], str]:
        """Return a function that gets tokens, one for all connections of a client. Raises :class:`ConfigError`."""
        provider, url = self.sasl_oauth_token_provider, self.sasl_oauthbearer_token_endpoint_url
        if (provider is None) == (url is None):
            raise ConfigError(
                f"expected sasl_oauthbearer_token_endpoint_url or sasl_oauth_token_provider with {OAUTHBEARER}, found "
                f"{'neither' if url is None else 'both'}"
            )
        if provider is not None:
            if not callable(provider):
                raise ConfigError(f"sasl_oauth_token_provider: expected a callable, found {type(provider).__name__}")
            return _foreign(provider)
        assert url is not None
        client, secret = self.sasl_oauthbearer_client_id, self.sasl_oauthbearer_client_secret
        try:
            check_url(url)
        except ValueError as error:
            raise ConfigError(f"sasl_oauthbearer_token_endpoint_url: {error}") from None
        if not is_file(url) and not (client and secret):
            raise ConfigError(
                "sasl_oauthbearer_client_id: expected this and sasl_oauthbearer_client_secret, found only one"
            )
        return TokenEndpoint(url, client, secret, self.sasl_oauthbearer_scope)

    def tls(self) -> TlsStore | None:
        """Return the current files, ``None`` for plaintext. Raises :class:`ConfigError`."""
        given = [name for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile") if getattr(self, name) is not None]
        if not SecurityProtocol(self.security_protocol).tls:
            if given:
                found = self.security_protocol
                raise ConfigError(f"security_protocol: expected SSL or SASL_SSL with {given[0]}, found {found}")
            return None
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_certfile: expected the certificate of ssl_keyfile, found none")
        chain = None if self.ssl_certfile is None else PemSource("ssl_certfile", self.ssl_certfile)
        key = chain if self.ssl_keyfile is None else PemSource("ssl_keyfile", self.ssl_keyfile)
        roots = None if self.ssl_cafile is None else PemSource("ssl_cafile", self.ssl_cafile)
        try:
            return TlsStore(PemSources(key, chain, roots), TlsRules("the client", serves=False))
        except TlsError as error:
            raise ConfigError(str(error)) from None


def _foreign(provider: Callable[[], str]) -> Callable[[], str]:
    """Wrap a user's callable so that its errors become login errors."""

    def token() -> str:
        try:
            return provider()
        except Exception as error:
            raise LoginRefused(f"no token: sasl_oauth_token_provider raised {type(error).__name__}: {error}") from error

    return token


TEXTS: Final = {setting.name.replace(".", "_"): setting for setting in ConfigDef(ClientSecurity).settings.values()}
"""Settings allowed in a file."""
SECRETS: Final = frozenset(name for name, setting in TEXTS.items() if setting.value_type is ValueType.PASSWORD)
"""Settings that are never shown."""
