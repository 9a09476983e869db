"""How a person gets in, by the way that the cluster is secured.

The console has no rights of its own: what a person does is done by the SDK in that person's name, and the brokers judge
it. So where they ask for passwords, the console does. Where they ask nobody, nobody but this machine may connect to the
console. Where they know clients by a certificate, the console shows that of the person who started it, and lets in who
can read its output.
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
    """``settings``: those of every client, without anybody's name."""

    way: Way
    settings: Mapping[str, Any]
    token: str = ""

    def of_person(self, user: str, password: str) -> dict[str, Any]:
        """The settings of a person's clients."""
        return {**self.settings, "sasl_username": user, "sasl_password": password}


def access_of(settings: Mapping[str, Any]) -> Access:
    """How people get in, by the settings with which the command connects. Raises :class:`CommandFailed`."""
    protocol = SecurityProtocol(settings.get("security_protocol", SecurityProtocol.PLAINTEXT.value).upper())
    if not protocol.sasl:
        if settings.get("ssl_certfile"):
            return Access(Way.TOKEN, settings, secrets.token_urlsafe(24))
        return Access(Way.OPEN, settings)
    mechanism = settings.get("sasl_mechanism") or SCRAM_SHA_512
    if mechanism == OAUTHBEARER:
        raise CommandFailed(
            f"sasl_mechanism: expected one with name and password, which the console asks for, found {mechanism}"
        )
    kept = {name: value for name, value in settings.items() if name not in OF_PASSWORDS}
    return Access(Way.PASSWORD, {**kept, "sasl_mechanism": mechanism})


LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_place(access: Access, host: str, *, encrypted: bool) -> None:
    """Refuse to listen where strangers could come in or listen. Raises :class:`CommandFailed`."""
    if is_loopback(host):
        return
    if access.way is not Way.PASSWORD:
        why = "asks nobody for a password" if access.way is Way.OPEN else "knows you by your certificate"
        raise CommandFailed(
            f"--host {host}: the cluster {why}, so everybody who reaches the console could act on it; expected a "
            "loopback address, such as 127.0.0.1. From elsewhere, connect by `ssh -L`"
        )
    if not encrypted:
        raise CommandFailed(
            f"--host {host}: passwords would travel in the clear; expected --ssl-certfile and --ssl-keyfile, or "
            "--origin https://… if a proxy before the console encrypts"
        )
