"""Protects a node from accidental exposure: finds listeners that let anybody in. Pure."""

from __future__ import annotations

from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.http_auth import NO_AUTH
from tidelog.model.settings.listener_security import CLIENT_AUTH_REQUIRED
from tidelog.model.settings.node.access_settings import ANONYMOUS


def exposed_listeners(config: NodeConfig) -> list[str]:
    """Return listeners beyond the loopback address that let anybody in, although ``allow.anonymous`` does not permit
    it, each with how it is secured."""
    http = () if config.http_listener is None else (config.http_listener,)
    judged = config.authorizer_class_name is not None and ANONYMOUS not in config.super_users
    exposed = []
    for listener in (*config.listeners, *http):
        protocol, found = config.protocol_of(listener.name), config.security_of(listener.name)
        if listener.loopback or found.allow_anonymous or protocol.sasl:
            continue
        if listener in http and config.http_auth != NO_AUTH:
            continue
        if protocol.tls and (found.ssl_client_auth == CLIENT_AUTH_REQUIRED or (judged and listener not in http)):
            continue
        auth = f" with ssl.client.auth={found.ssl_client_auth}" if protocol.tls else ""
        exposed.append(f"{listener} ({protocol}{auth})")
    return exposed


def check_exposure(config: NodeConfig) -> None:
    """Raise :class:`ConfigError` if there is such a listener."""
    if exposed := exposed_listeners(config):
        raise ConfigError(
            "listeners: expected, beyond the loopback address, TLS with ssl.client.auth=required, a login (SASL_SSL), "
            f"or TLS with authorizer.class.name, found {', '.join(exposed)}: anyone there would have the rights of "
            "everybody. Secure them, or permit it: allow.anonymous=true, or "
            "listener.name.NAME.allow.anonymous=true for one of them"
        )
