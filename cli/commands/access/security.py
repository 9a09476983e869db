"""``tidelog security``: keys and certificates for a cluster without its own certificate authority."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.private_files import DIRECTORY_MODE, replace_private
from tidelog.cli.terminal.output import say
from tidelog.cli.terminal.settings import options
from tidelog.model.settings.properties import format_properties

if TYPE_CHECKING:
    from types import ModuleType

    from tidelog.security.authority import Authority

CA_DAYS: Final = 3650
DAYS: Final = 365
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST: Final = re.compile(r"[A-Za-z0-9:*][A-Za-z0-9.:*-]{0,252}")
LISTENERS: Final = ("KAFKA", "CLIENT", "REPLICATION", "CONTROLLER")


@click.group()
def security() -> None:
    """Make a certificate authority, and TLS certificates for nodes and users.

    Needs the package cryptography: pip install 'tidelog[security]'.
    """


_issuing: Final = options(
    click.option("--days", type=click.IntRange(1, CA_DAYS), default=DAYS, show_default=True, help="Validity."),
    click.option("--user", "users", multiple=True, metavar="NAME", help="A user; repeatable."),
    click.option(
        "--node", "nodes", multiple=True, metavar="ID=HOST,...",
        help="A node with every name and address that others reach it by; repeatable.",
    ),
    click.argument("directory", type=click.Path(file_okay=False, path_type=Path)),
)  # fmt: skip


@security.command(short_help="Make an authority and the first certificates in a new directory.")
@_issuing
@click.option("--ca-name", default="Tidelog CA", show_default=True, help="The authority's name.")
def init(directory: Path, nodes: tuple[str, ...], users: tuple[str, ...], days: int, ca_name: str) -> None:
    """Make an authority in DIRECTORY, and certificates for nodes and users, signed by it.

    Each node and user gets one file with key and certificate, and a .properties file with matching settings.
    Keep ca-key.pem away from the nodes: it can sign a certificate in any name.
    """
    wanted = _wanted(nodes, users)
    files = _library()
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise CommandFailed(f"{directory}: expected an empty directory; `tidelog security issue` adds to an authority")
    authority = files.Authority.make(ca_name, CA_DAYS)
    files.save(authority, directory)
    _issue(authority, directory, wanted, days)
    say(f"{directory / 'ca.pem'}: the authority's certificate, for everybody")
    say(f"{directory / 'ca-key.pem'}: its key; keep it away from the nodes")


@security.command(short_help="Issue further certificates, or renew them.")
@_issuing
def issue(directory: Path, nodes: tuple[str, ...], users: tuple[str, ...], days: int) -> None:
    """Issue certificates with the authority in DIRECTORY. Existing files are replaced, which renews them."""
    wanted = _wanted(nodes, users)
    if not wanted:
        raise click.UsageError("expected at least one --node or --user, found neither")
    _issue(_library().load(directory), directory, wanted, days)


def _wanted(nodes: tuple[str, ...], users: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the host names by the name in the certificate; none for a user."""
    found: dict[str, list[str]] = {}
    for text in nodes:
        number, equals, hosts = text.partition("=")
        named = [host.strip("[] ") for host in hosts.split(",")]
        if not number.isascii() or not number.isdecimal() or not equals or not all(map(_HOST.fullmatch, named)):
            raise click.BadParameter(f"expected ID=HOST,…, found {text!r}", param_hint="--node")
        _add(found, f"node-{int(number)}", named)
    for name in users:
        if not _NAME.fullmatch(name) or name == "ca" or name.startswith(("node-", "ca-")):
            raise click.BadParameter(
                f"expected letters, digits, dots, hyphens and underscores, not the name of a node, found {name!r}",
                param_hint="--user",
            )
        _add(found, name, [])
    return found


def _add(found: dict[str, list[str]], name: str, hosts: list[str]) -> None:
    if name in found:
        raise click.UsageError(f"expected each name once, found {name} twice")
    found[name] = hosts


def _library() -> ModuleType:
    try:
        return import_module("tidelog.cli.work.certificates")
    except ModuleNotFoundError as missing:
        raise CommandFailed(f"{missing}: install it with pip install 'tidelog[security]'") from None


def _issue(authority: Authority, directory: Path, wanted: dict[str, list[str]], days: int) -> None:
    directory = directory.absolute()
    for name, hosts in wanted.items():
        path = directory / f"{name}.pem"
        replace_private(path, authority.issue(name, hosts, days))
        settings = _node_settings(path) if hosts else _client_settings(path)
        replace_private(directory / f"{name}.properties", format_properties(settings))
        what = f"node, for {', '.join(hosts)}" if hosts else "user"
        say(f"{path}: key and certificate of CN={name}, a {what}, for {days} days; settings: {name}.properties")


def _node_settings(path: Path) -> dict[str, str]:
    return {
        "listener.security.protocol.map": ",".join(f"{name}:SSL" for name in LISTENERS),
        "ssl.keystore.location": str(path),
        "ssl.truststore.location": str(path.parent / "ca.pem"),
        "ssl.client.auth": "required",
    }


def _client_settings(path: Path) -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(path),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(path.parent / "ca.pem"),
    }
