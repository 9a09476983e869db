"""Authorities, and the certificates that they sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidelog.cli.work.certificates import save
from tidelog.security.authority import Authority

DAYS = 30


class Certificates:
    """An authority of its own, and files of what it signs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.make("authority", DAYS)
        save(self.authority, directory)
        self.roots = str(directory / "ca.pem")

    def node(self, name: str = "node", hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), days: int = DAYS) -> str:
        """The file of a node's key and certificate; an earlier one of the same name is replaced."""
        return self._write(name, self.authority.issue(name, hosts, days))

    def user(self, name: str = "alice", days: int = DAYS) -> str:
        return self._write(name, self.authority.issue(name, (), days))

    def _write(self, name: str, text: str) -> str:
        path = self.directory / f"{name}.pem"
        path.write_text(text)
        return str(path)

    def settings(self, listeners: str = "KAFKA", client_auth: str = "none", **more: str) -> dict[str, str]:
        """A node's settings for TLS on these listeners."""
        return {
            "listener.security.protocol.map": ",".join(f"{name}:SSL" for name in listeners.split()),
            "ssl.keystore.location": self.node(),
            "ssl.truststore.location": self.roots,
            "ssl.client.auth": client_auth,
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def client(self, name: str | None = "alice") -> dict[str, Any]:
        """A client's settings in the SDK's spelling."""
        own = {} if name is None else {"ssl_certfile": self.user(name)}
        return {"security_protocol": "SSL", "ssl_cafile": self.roots, **own}

    def librdkafka(self, bootstrap: str, name: str | None = "alice") -> dict[str, Any]:
        """The same in librdkafka's."""
        own: dict[str, Any] = {}
        if name is not None:
            own = dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), self.user(name))
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "ssl",
            "ssl.ca.location": self.roots,
            "socket.timeout.ms": 5_000,
            "log_level": 0,
            **own,
        }


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture(scope="module")
def kept_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """For a cluster that a module's tests share."""
    return Certificates(tmp_path_factory.mktemp("certificates"))
