"""The current key and certificates of a listener or client: read at start, and again when their files change.

Unusable ones are refused: at start, the node or client does not start; later, the old key and certificates stay in
force. A change does not affect existing connections.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.listener_security import (
    CLIENT_AUTH_REQUESTED,
    CLIENT_AUTH_REQUIRED,
    NO_CLIENT_AUTH,
    TLS_VERSIONS,
    ListenerSecurity,
)
from tidelog.model.settings.listeners import HTTPS
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.security.distinguished_name import subject_of
from tidelog.security.pem import Material, PemSource, PemSources, TlsError
from tidelog.security.principal import ANONYMOUS, USER, Principal
from tidelog.security.principal_mapping import PrincipalMapping
from tidelog.security.session import Session
from tidelog.security.tls_check import Identity, identity_of, server_context

if TYPE_CHECKING:  # clients need no settings of nodes
    from tidelog.model.settings.broker_config import NodeConfig

log = logging.getLogger(__name__)

_VERIFY: Final = {
    NO_CLIENT_AUTH: ssl.CERT_NONE,
    CLIENT_AUTH_REQUESTED: ssl.CERT_OPTIONAL,
    CLIENT_AUTH_REQUIRED: ssl.CERT_REQUIRED,
}
_EVERYBODY: Final = "*"
"""In an ACL this means everybody, so no user can have this name."""


class NotAuthenticated(Exception):
    """A valid certificate that names nobody. The text is for the log."""


@dataclass(frozen=True, slots=True)
class TlsRules:
    """What a store requires of its key and certificates, and how it interprets those that others present."""

    name: str
    """For messages: the listener's name, or the client's settings."""
    protocol: SecurityProtocol = SecurityProtocol.SSL
    client_auth: str = NO_CLIENT_AUTH
    versions: tuple[str, ...] = TLS_VERSIONS
    mapping: PrincipalMapping = PrincipalMapping("DEFAULT")
    serves: bool = True
    """Whether it belongs to a listener rather than to a client."""
    by_own_roots: bool = False
    """Whether the node's peers use the same authorities, so that its own certificate must be acceptable to itself."""
    allow_dn_changes: bool = False
    allow_san_changes: bool = False


class TlsStore:
    """See the module. Raises :class:`TlsError`. Any thread may read; only one may call :meth:`refresh`."""

    def __init__(self, sources: PemSources, rules: TlsRules) -> None:
        self.rules = rules
        self._sources = sources
        self._seen = sources.stamps()
        """The files that were last read or refused."""
        self.version = 1
        """Increases with each change of :attr:`material`."""
        self.reloads = 0
        self.refused = 0
        self.material = sources.read()
        self.identity: Identity | None = None
        self._context: ssl.SSLContext | None = None
        if self.material.chain:
            self._context = self._server_context(self.material)
            self.identity = self._identity(self.material)
        self._anonymous = Session(ANONYMOUS, rules.protocol)

    @property
    def context(self) -> ssl.SSLContext:
        """The server's context, for new connections."""
        assert self._context is not None
        return self._context

    @property
    def requires_certificates(self) -> bool:
        """Whether clients without a certificate are rejected."""
        return self.rules.client_auth == CLIENT_AUTH_REQUIRED

    def session_of(self, certificate: bytes | None) -> Session:
        """Return the session of a client that presented this certificate, in DER. Raises :class:`NotAuthenticated`."""
        if certificate is None or self.rules.protocol.sasl:  # the login names the user
            return self._anonymous
        subject = subject_of(certificate)
        name = self.rules.mapping.name_of(subject)
        if not name or name == _EVERYBODY:
            raise NotAuthenticated(
                f"expected a certificate whose subject matches ssl.principal.mapping.rules, found {subject!r}"
            )
        return Session(Principal(USER, name), self.rules.protocol)

    def refresh(self) -> None:
        """Check whether files have changed and, if their content is usable, adopt it. Logs what it did."""
        stamps = self._sources.stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            found = self._sources.read()
            if found == self.material:
                return
            identity = self._identity(found) if found.chain else None
            self._check_same(identity)
            context = self._server_context(found) if found.chain else None
        except TlsError as refused:
            self.refused += 1
            log.error("keeping the old key and certificates: %s", refused)
            return
        self.material, self.identity, self._context = found, identity, context
        self.version += 1
        self.reloads += 1
        if identity is not None:
            until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(identity.expires_s))
            log.info("%s: using the new certificate of %s, valid until %s", self.rules.name, identity.subject, until)
        else:
            log.info("%s: using the new trusted certificates", self.rules.name)

    def _identity(self, material: Material) -> Identity | None:
        if not self.rules.serves:
            return None  # a client's certificate need not be valid for a server
        by_own_roots = self.rules.by_own_roots and bool(material.roots)
        return identity_of(material, self._what(), by_own_roots=by_own_roots)

    def _what(self) -> str:
        return f"{self.rules.name}: {self._sources.chain}"

    def _check_same(self, found: Identity | None) -> None:
        """Source: Kafka's ``SslFactory.CertificateEntries.ensureCompatible``."""
        old = self.identity
        if old is None or found is None:
            return
        if found.subject != old.subject and not self.rules.allow_dn_changes:
            raise TlsError(
                f"{self._what()}: expected a certificate of {old.subject}, found one of {found.subject} "
                "(ssl.allow.dn.changes)"
            )
        if (lost := sorted(old.names - found.names)) and not self.rules.allow_san_changes:
            raise TlsError(
                f"{self._what()}: expected a certificate for {', '.join(lost)} too, found one without "
                "(ssl.allow.san.changes)"
            )

    def _server_context(self, material: Material) -> ssl.SSLContext:
        try:
            return server_context(material, _VERIFY[self.rules.client_auth], self.rules.versions)
        except TlsError as error:
            raise TlsError(f"{self._what()}: {error}") from None


FindTls = Callable[[str], TlsStore | None]
"""Returns a listener's TLS store by its name; ``None`` if it does not use TLS."""


def no_tls(_: str) -> None:
    """A :data:`FindTls`: everything is plaintext."""


class NodeTls:
    """The TLS stores of one node: of its own listeners, and for other nodes that it connects to."""

    def __init__(self, config: NodeConfig) -> None:
        """Create the stores. Raises :class:`ConfigError`."""
        among_nodes = {*config.replication_listeners, *config.controller_listener_names}
        names = {found.name for found in config.listeners} | among_nodes
        if config.http_listener is not None and config.http_listener.name == HTTPS:
            names.add(HTTPS)
        self.stores: dict[str, TlsStore] = {}
        for name in sorted(names):
            if config.protocol_of(name).tls:
                self.stores[name] = _store(config, name, by_own_roots=name in among_nodes)

    def find(self, listener: str) -> TlsStore | None:
        """A :data:`FindTls`."""
        return self.stores.get(listener)

    def refresh(self) -> None:
        """See :meth:`TlsStore.refresh`."""
        for store in self.stores.values():
            store.refresh()


def _store(config: NodeConfig, name: str, *, by_own_roots: bool) -> TlsStore:
    found = config.security_of(name)
    try:
        rules = TlsRules(
            f"listener {name}",
            config.protocol_of(name),
            found.ssl_client_auth,
            found.ssl_enabled_protocols,
            PrincipalMapping(found.ssl_principal_mapping_rules),
            by_own_roots=by_own_roots,
            allow_dn_changes=found.ssl_allow_dn_changes,
            allow_san_changes=found.ssl_allow_san_changes,
        )
        return TlsStore(_sources(found), rules)
    except TlsError as error:
        raise ConfigError(str(error)) from None
    except ValueError as error:
        raise ConfigError(f"listener {name}: ssl.principal.mapping.rules: {error}") from None


def _sources(found: ListenerSecurity) -> PemSources:
    key: PemSource | None = None
    chain: PemSource | None = None
    if found.ssl_keystore_location is not None:
        key = chain = PemSource("ssl.keystore.location", found.ssl_keystore_location)
    elif found.ssl_keystore_key is not None and found.ssl_keystore_certificate_chain is not None:
        key = PemSource("ssl.keystore.key", text=found.ssl_keystore_key)
        chain = PemSource("ssl.keystore.certificate.chain", text=found.ssl_keystore_certificate_chain)
    roots: PemSource | None = None
    if found.ssl_truststore_location is not None:
        roots = PemSource("ssl.truststore.location", found.ssl_truststore_location)
    elif found.ssl_truststore_certificates is not None:
        roots = PemSource("ssl.truststore.certificates", text=found.ssl_truststore_certificates)
    return PemSources(key, chain, roots)
