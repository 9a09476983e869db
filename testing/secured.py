"""Security of a test cluster: certificates, passwords or both, and an authorizer.

``tls``: every listener speaks TLS and asks for a certificate, whose common name is its user's name. ``scram``: clients
log in by password, and nothing is encrypted. ``tls+scram``: clients log in by password over TLS; the nodes have
certificates for each other. Access control lists name ``User:alice``. The nodes and the user ``admin`` may do
everything, others only what lists allow.
"""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.client.admin.users import UserScramCredentialUpsertion, salted
from tidelog.client.config.security import SecuritySettings
from tidelog.metadata_quorum.controller.scram_changes import SECRET_BYTES, first_users
from tidelog.model.ids import id_text, random_id
from tidelog.model.settings.listener_security import SCRAM_SHA_512
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.proto.logs.metadata_records import MetadataRecord
from tidelog.security.principal import ANONYMOUS

if TYPE_CHECKING:
    from tidelog.security.authority import Authority

ADMIN: Final = "admin"
KINDS: Final = {
    "tls": (SecurityProtocol.SSL, SecurityProtocol.SSL),
    "scram": (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.PLAINTEXT),
    "tls+scram": (SecurityProtocol.SASL_SSL, SecurityProtocol.SSL),
}
"""The protocols of listeners for clients, and of those between nodes."""
_FOR_CLIENTS: Final = ("KAFKA", "CLIENT")
_FOR_NODES: Final = ("REPLICATION", "CONTROLLER")
_NODE_HOSTS: Final = ("127.0.0.1", "localhost")
_DAYS: Final = 7
_USER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ClusterSecurity:
    """See the module. :meth:`make` creates the authority and the nodes' files, if certificates are used; a user's
    certificate is created on demand."""

    def __init__(self, kind: str, node_ids: Iterable[int], rng: random.Random) -> None:
        self._protocol, among_nodes = KINDS[kind]
        self._tls = among_nodes.tls
        self.passwords: Final = {ADMIN: id_text(random_id(rng))} if self._protocol.sasl else {}
        """Passwords by user; none if users have certificates."""
        self._nodes = {node_id: f"node-{node_id}" for node_id in node_ids}
        self._directory: Path | None = None
        self._authority: Authority | None = None
        nodes = self._nodes.values() if self._tls else (ANONYMOUS.name,)
        protocols = dict.fromkeys(_FOR_CLIENTS, self._protocol) | dict.fromkeys(_FOR_NODES, among_nodes)
        self.settings: Final = {
            "listener.security.protocol.map": ",".join(f"{name}:{found}" for name, found in protocols.items()),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{name}" for name in (*nodes, ADMIN)),
        }
        """The settings of all nodes."""
        if self._tls:
            self.settings["ssl.principal.mapping.rules"] = r"RULE:^CN=([^,]+).*$/$1/"
            self.settings["ssl.client.auth"] = "required"
            for name in _FOR_CLIENTS if self.passwords else ():
                self.settings[f"listener.name.{name.lower()}.ssl.client.auth"] = "none"

    def make(self, directory: Path) -> None:
        """Create the authority and its directory. Raises ``ModuleNotFoundError`` that says what to install."""
        if not self._tls or self._authority is not None:
            return
        try:
            from tidelog.security.authority import Authority
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(f"{missing}: pip install 'tidelog[security]' brings it") from None
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory, self._authority = directory, Authority.make("tidelog.testing", _DAYS)
        (directory / "ca.pem").write_text(self._authority.pem)
        for name in self._nodes.values():
            self._issue(name, _NODE_HOSTS)

    def first_records(self) -> Sequence[MetadataRecord]:
        """Return the first records of the metadata log: the user ``admin``, if users have passwords. Takes
        milliseconds."""
        users = [salted(UserScramCredentialUpsertion(*found)) for found in self.passwords.items()]
        return first_users(users, lambda: secrets.token_bytes(SECRET_BYTES))

    def renew(self, node_id: int) -> Path:
        """Replace a node's file with another key and certificate for the same names, and return it. Nodes check their
        files every ``ssl.files.check.interval.ms``. Raises ``ValueError`` if nodes have no certificates."""
        if not self._tls:
            raise ValueError("expected a cluster with certificates (tls, tls+scram), found one without")
        directory, authority = self._made()
        name = self._nodes[node_id]
        made, path = directory / f"{name}.new", directory / f"{name}.pem"
        made.write_text(authority.issue(name, _NODE_HOSTS, _DAYS))
        made.replace(path)
        return path

    def node_settings(self, node_id: int) -> dict[str, str]:
        """Return the settings of one node besides :attr:`settings`."""
        if not self._tls:
            return {}
        directory, _ = self._made()
        return {
            "ssl.keystore.location": str(directory / f"{self._nodes[node_id]}.pem"),
            "ssl.truststore.location": str(directory / "ca.pem"),
        }

    def client_settings(self, user: str) -> SecuritySettings:
        """Return a client's settings; create the user's certificate if one is used and missing. Raises
        ``ValueError``."""
        settings: SecuritySettings = {"security_protocol": self._protocol.value}
        if self._tls:
            settings["ssl_cafile"] = str(self._made()[0] / "ca.pem")
        if not self.passwords:
            settings["ssl_certfile"] = self._certificate(user)
        elif user in self.passwords:
            settings["sasl_mechanism"] = SCRAM_SHA_512
            settings["sasl_username"], settings["sasl_password"] = user, self.passwords[user]
        else:
            known = ", ".join(self.passwords)
            raise ValueError(f"user: expected one of {known}, found {user!r}: add_user({user!r}) makes it")
        return settings

    def _certificate(self, user: str) -> str:
        if not _USER.fullmatch(user) or user in (*self._nodes.values(), "ca"):
            raise ValueError(f"user: expected letters, digits, dots, hyphens, underscores and no node, found {user!r}")
        path = self._made()[0] / f"{user}.pem"
        if not path.exists():
            self._issue(user, ())
        return str(path)

    def _issue(self, name: str, hosts: tuple[str, ...]) -> None:
        directory, authority = self._made()
        (directory / f"{name}.pem").write_text(authority.issue(name, hosts, _DAYS))

    def _made(self) -> tuple[Path, Authority]:
        if self._directory is None or self._authority is None:
            raise RuntimeError("the cluster has not been started: it has no certificates yet")
        return self._directory, self._authority
