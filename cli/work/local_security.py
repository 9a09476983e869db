"""The files that ``tidelog cluster start --security`` adds to a new cluster: an authority, certificates, a first user,
and client settings.

    <directory>/security/ca.pem, ca-key.pem        the authority
    <directory>/security/node-1.pem                that node's key and certificate
    <directory>/security/first-users               what the metadata log begins with, with the password
    <directory>/security/admin.pem                 the user's key and certificate, if it shows one
    <directory>/security/client.properties         how the user ``admin`` connects

All of it is its owner's alone.
"""

from __future__ import annotations

import secrets
from importlib import import_module
from typing import Any, Final

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.cluster import NODES_MAX, LocalCluster
from tidelog.cli.local.private_files import DIRECTORY_MODE, write_private
from tidelog.cli.local.secured import CLIENT_FILE, DIRECTORY, client_file
from tidelog.cli.work.first_users import OPTION
from tidelog.model.settings.listener_security import SCRAM_SHA_512
from tidelog.model.settings.node.access_settings import MACHINE_ID, NODE_ID, STANDARD_AUTHORIZER
from tidelog.model.settings.properties import format_properties
from tidelog.testing import ports

TLS: Final = "tls"
TLS_AND_SCRAM: Final = "tls+scram"
KINDS: Final = (TLS, TLS_AND_SCRAM)
ADMIN: Final = "admin"
_FIRST_USERS: Final = "first-users"
_DAYS: Final = 3650
_HOSTS: Final = (ports.LOOPBACK, "localhost")
_FOR_CLIENTS: Final = ("KAFKA", "CLIENT")
_FOR_NODES: Final = ("REPLICATION", "CONTROLLER")
_PASSWORD_BYTES: Final = 18


def check_library() -> None:
    """Raise :class:`CommandFailed` if certificates cannot be made here."""
    _certificates()


def lay_out(cluster: LocalCluster, kind: str) -> None:
    """Secure a cluster that has not run yet: ``tls`` with certificates for nodes and users, ``tls+scram`` with
    passwords for users."""
    directory = cluster.directory / DIRECTORY
    directory.mkdir(DIRECTORY_MODE)
    files = _certificates()
    authority = files.Authority.make("Tidelog local CA", _DAYS)
    files.save(authority, directory)
    client = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / files.CA),
    }
    by_password = kind == TLS_AND_SCRAM
    if by_password:
        word = secrets.token_urlsafe(_PASSWORD_BYTES)
        write_private(directory / _FIRST_USERS, f"{SCRAM_SHA_512}=[name={ADMIN},password={word}]\n")
        login = "org.apache.kafka.common.security.scram.ScramLoginModule"
        client |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": SCRAM_SHA_512,
            "sasl.username": ADMIN,
            "sasl.password": word,
            "sasl.jaas.config": f'{login} required username="{ADMIN}" password="{word}";',
        }
    else:
        write_private(directory / f"{ADMIN}.pem", authority.issue(ADMIN, (), _DAYS))
        client |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(directory / f"{ADMIN}.pem")}
    write_private(directory / CLIENT_FILE, format_properties(client))
    has_workers = any(node.workers > 1 for node in cluster.nodes.values())
    protocols = {
        **dict.fromkeys(_FOR_CLIENTS, "SASL_SSL" if by_password else "SSL"),
        **dict.fromkeys(_FOR_NODES, "SSL"),
    }
    settings = {
        "listener.security.protocol.map": ",".join(f"{name}:{found}" for name, found in protocols.items()),
        "ssl.truststore.location": str(directory / files.CA),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": r"RULE:^CN=([^,]+).*$/$1/",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        # Include nodes that are added later: the others would not restart for them.
        "super.users": ";".join(f"User:{name}" for name in (*map(_name, range(1, NODES_MAX + 1)), ADMIN)),
        "node.principal.pattern": f"User:{_name(MACHINE_ID if has_workers else NODE_ID)}",
    }
    if by_password:
        settings |= {f"listener.name.{name.lower()}.ssl.client.auth": "none" for name in _FOR_CLIENTS}
    for number, node in cluster.nodes.items():
        node.configure({**node.settings, **settings})
        give_certificate(cluster, number)


def give_certificate(cluster: LocalCluster, number: int) -> None:
    """Give a node of a secured cluster its key and certificate. Does nothing on another cluster."""
    directory = cluster.directory / DIRECTORY
    if client_file(cluster.directory) is None:
        return
    path = directory / f"{_name(number)}.pem"
    write_private(path, _certificates().load(directory).issue(_name(number), _HOSTS, _DAYS))
    node = cluster.node(number)
    node.configure({**node.settings, "ssl.keystore.location": str(path)})


def begin_with_users(cluster: LocalCluster) -> None:
    """Give nodes that have not run yet the first user."""
    users = cluster.directory / DIRECTORY / _FIRST_USERS
    if users.exists():
        for node in cluster.nodes.values():
            node.program = (*node.program, OPTION, f"@{users}")


def _name(number: int | str) -> str:
    return f"node-{number}"


def _certificates() -> Any:
    try:
        return import_module("tidelog.cli.work.certificates")
    except ModuleNotFoundError as missing:
        raise CommandFailed(f"{missing}: install it with pip install 'tidelog[security]'") from None
