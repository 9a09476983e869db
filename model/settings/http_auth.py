"""Authentication at the HTTP listener: the values of ``http.auth``, and where each can be used."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.listener_security import NO_CLIENT_AUTH, OAUTHBEARER, ListenerSecurity
from tidelog.model.settings.listeners import Listener

NO_AUTH: Final = "none"
BASIC: Final = "basic"
BEARER: Final = "bearer"
MTLS: Final = "mtls"
HTTP_AUTH: Final = (NO_AUTH, BASIC, BEARER, MTLS)


def check_http_auth(auth: str, listener: Listener, security: ListenerSecurity, *, tls: bool) -> None:
    """Raise :class:`ConfigError` if nobody could authenticate, or secrets would travel unencrypted."""
    if auth in (BASIC, BEARER) and not tls and not listener.loopback:
        raise ConfigError(
            f"http.auth: expected http.listener=HTTPS://… with {auth}, found {listener}: everybody on the way could "
            "read what clients show"
        )
    if auth == BEARER:
        replace(security, sasl_enabled_mechanisms=(OAUTHBEARER,)).check_sasl(listener.name)
    if auth == MTLS and (not tls or security.ssl_client_auth == NO_CLIENT_AUTH):
        raise ConfigError(
            f"http.auth: expected http.listener=HTTPS://… and ssl.client.auth=requested or required with {auth}, found "
            f"{listener} and {security.ssl_client_auth}"
        )
