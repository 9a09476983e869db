"""How people log in, depending on how the cluster is secured.

The console has no rights of its own: the SDK acts in the person's name, and the brokers authorize it. If the brokers
ask for passwords, so does the console. If they authenticate nobody, only this machine may connect to the console. If
they identify clients by certificate, the console presents the certificate of the person who started it, and admits
anyone who can read its output.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tidelog.cli.failure import CommandFailed
from tidelog.client.config.security import OF_PASSWORDS
from tidelog.model.settings.listener_security import OAUTHBEARER, SCRAM_SHA_512
from tidelog.model.settings.security_protocol import SecurityProtocol


class Way(StrEnum):
    OPEN = "open"
    TOKEN = "token"
    PASSWORD = "password"


@dataclass(frozen=True, slots=True)
class Access:
    """``settings``: the settings common to all clients, without a user."""

    way: Way
    settings: Mapping[str, Any]
    token: str = ""

    def of_person(self, user: str, password: str) -> dict[str, Any]:
        """Return the settings for a person's clients."""
        return {**self.settings, "sasl_username": user, "sasl_password": password}


def access_of(settings: Mapping[str, Any]) -> Access:
    """Return how people log in, given the settings that the command connects with. Raises :class:`CommandFailed`."""
    protocol = SecurityProtocol(settings.get("security_protocol", SecurityProtocol.PLAINTEXT.value).upper())
    if not protocol.sasl:
        if settings.get("ssl_certfile"):
            return Access(Way.TOKEN, settings, secrets.token_urlsafe(24))
        return Access(Way.OPEN, settings)
    mechanism = settings.get("sasl_mechanism") or SCRAM_SHA_512
    if mechanism == OAUTHBEARER:
        raise CommandFailed(f"sasl_mechanism: expected a mechanism with user name and password, found {mechanism}")
    kept = {name: value for name, value in settings.items() if name not in OF_PASSWORDS}
    return Access(Way.PASSWORD, {**kept, "sasl_mechanism": mechanism})


LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_place(access: Access, host: str, *, encrypted: bool) -> None:
    """Refuse an address that would expose the console to strangers or eavesdroppers. Raises :class:`CommandFailed`."""
    if is_loopback(host):
        return
    if access.way is not Way.PASSWORD:
        why = "does not ask for passwords" if access.way is Way.OPEN else "identifies you by your certificate"
        raise CommandFailed(
            f"--host {host}: the cluster {why}, so anyone who reaches the console could act on it; expected a "
            "loopback address, such as 127.0.0.1. To connect from elsewhere, use `ssh -L`"
        )
    if not encrypted:
        raise CommandFailed(
            f"--host {host}: passwords would travel in the clear; expected --ssl-certfile and --ssl-keyfile, or "
            "--origin https://… if a proxy in front of the console encrypts"
        )
