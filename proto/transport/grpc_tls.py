"""TLS for gRPC's channels and servers: credentials from a key store, and sessions from callers' certificates.

gRPC's server asks for its certificate at each handshake, so a change applies to later connections. A channel keeps its
original credentials, so a connection makes a new channel.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from tidelog.proto.transport.network import CallContext
from tidelog.security.session import UNSECURED, FindSession, Session
from tidelog.security.tls_store import NotAuthenticated, TlsStore

_KNOWN_MAX: Final = 1_000
"""Most certificates with cached sessions."""
_CERTIFICATE: Final = "x509_pem_cert"
_AUTHORIZATION: Final = "authorization"
_SCHEME: Final = "Tidelog "
_NO_GREETING: Final = ("before receiving SETTINGS frame", "Handshake read failed (FD Shutdown")
"""gRPC's messages for an attempt to connect that took too long, without TLS and with it."""
_CLOSED: Final = ("Socket closed", "Connection reset", "Secure read failed")
"""gRPC's message for a connection that ended before any data."""


def server_credentials(store: TlsStore) -> grpc.ServerCredentials:
    """Return the credentials for binding a listener."""
    made = (store.version, _server_configuration(store))

    def current() -> grpc.ServerCertificateConfiguration | None:
        """Return the configuration; None if nothing has changed. Called on one of gRPC's threads."""
        nonlocal made
        if made[0] == store.version:
            return None
        made = (store.version, _server_configuration(store))
        return made[1]

    # The stubs do not allow None.
    return grpc.dynamic_ssl_server_credentials(made[1], current, store.requires_certificates)  # type: ignore[arg-type]


def _server_configuration(store: TlsStore) -> grpc.ServerCertificateConfiguration:
    key, chain, roots = store.material
    return grpc.ssl_server_certificate_configuration([(key, chain)], roots or None)


def channel_credentials(store: TlsStore) -> grpc.ChannelCredentials:
    """Return the credentials and options for a channel."""
    key, chain, roots = store.material
    return grpc.ssl_channel_credentials(roots or None, key or None, chain or None)


class LoginNeeded(NotAuthenticated):
    """A call without a login's token, which it needs."""


class Sessions:
    """Finds a call's session: by its connection or, where callers log in, by its token."""

    def __init__(self, store: TlsStore | None, logged_in: FindSession | None = None) -> None:
        self._store = store
        self._logged_in = logged_in
        self._known: dict[bytes, Session] = {}
        """Sessions by certificate."""
        self._always = UNSECURED if store is None else None if store.requires_certificates else store.session_of(None)
        """The session without a certificate."""

    def of(self, context: grpc.aio.ServicerContext[Any, Any], *, logs_in: bool = False) -> Session:
        """Return the call's session. ``logs_in``: the call is part of a login. Raises :class:`NotAuthenticated`."""
        if self._logged_in is None or logs_in:
            return self._of_connection(context)
        found = self._logged_in(*_shown_by(context))
        if found is None:
            raise LoginNeeded("expected a login (security_protocol=SASL_…), found a call without one that lasts")
        return found

    def lasting(self, context: grpc.aio.ServicerContext[Any, Any]) -> Callable[[], bool]:
        """Return a check whether a stream's login is still valid."""
        find = self._logged_in
        if find is None:
            return lambda: True
        shown = _shown_by(context)
        return lambda: find(*shown) is not None

    def _of_connection(self, context: grpc.aio.ServicerContext[Any, Any]) -> Session:
        if self._always is not None:
            return self._always
        (shown,) = context.auth_context()[_CERTIFICATE]
        session = self._known.get(shown)
        if session is None:
            assert self._store is not None
            session = self._store.session_of(ssl.PEM_cert_to_DER_cert(shown.decode("ascii")))
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[shown] = session
        return session


def login_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return a call's credentials from its login."""
    return ((_AUTHORIZATION, _SCHEME + token),)


def _shown_by(context: grpc.aio.ServicerContext[Any, Any]) -> tuple[str, str]:
    """Return a call's token, and the host that it comes from."""
    pairs: Any = context.invocation_metadata() or ()  # the stubs lack it
    shown = next((value for key, value in pairs if key == _AUTHORIZATION), "")
    return str(shown).removeprefix(_SCHEME), CallContext("", context.peer()).host


def refusal(detail: str) -> str | None:
    """Explain a channel's failure, with what to do, if TLS is certainly the reason; else ``None``."""
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        return (
            "the listener's certificate is not trusted, or not valid today (ssl_cafile, or a node's "
            "ssl.truststore.location, names the authorities)"
        )
    if "is not in peer certificate" in detail or "Hostname Verification Check failed" in detail:
        return "the listener's certificate is for another host name"
    if "WRONG_VERSION_NUMBER" in detail or "HTTP_REQUEST" in detail:
        return "expected TLS, found a listener that speaks plaintext (security_protocol)"
    return None


def not_greeted(detail: str) -> bool:
    """Return whether a peer accepted a connection, but did not greet in time."""
    return any(sign in detail for sign in _NO_GREETING)


def suspicion(detail: str, *, tls: bool) -> str:
    """Return possible reasons for a connection that was closed immediately, or is not greeted."""
    if not_greeted(detail):
        return "; the peer did not greet in time: it is overloaded or stopped, or too far away"
    if not any(sign in detail for sign in _CLOSED):
        return ""
    if tls and "Handshake read failed" in detail:
        return "; does the listener speak plaintext (security_protocol=PLAINTEXT)?"
    needs = "a client certificate (ssl_certfile)" if tls else "TLS (security_protocol=SSL)"
    return f"; does the listener expect {needs}?"
