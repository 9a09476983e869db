"""How a command finds its cluster."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local_cluster import LocalCluster, default_directory
from tidelog.client.settings import parse_bootstrap

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
CONNECT_TIMEOUT_S: Final = 3.0


def default_bootstrap() -> str:
    """The local cluster in its default directory, if there is one, else Kafka's port on this machine."""
    directory = default_directory()
    if not LocalCluster.exists(directory):
        return DEFAULT_BOOTSTRAP
    cluster = LocalCluster.open(directory)
    if all(node.mark is None for node in cluster.nodes.values()):
        raise CommandFailed(f"the local cluster in {directory} is stopped; `tidelog cluster start` starts it")
    return cluster.bootstrap


def require_listener(bootstrap: str) -> None:
    """Raise :class:`CommandFailed` if nobody listens at any of the addresses: the SDK would try on for a minute."""
    reasons = []
    for host, port in parse_bootstrap(bootstrap):
        try:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            return
        except OSError as trouble:
            reasons.append(f"{host}:{port}: {trouble.strerror or trouble}")
    raise CommandFailed(f"no broker listens at {'; '.join(reasons)}. Is the cluster running? --bootstrap names another")


def bootstrap_option(command: F) -> F:
    """Give a command ``--bootstrap HOST:PORT,…``; it is called only if somebody listens there."""

    def check(_: click.Context, __: click.Parameter, value: str) -> str:
        require_listener(value)
        return value

    return click.option(
        "--bootstrap",
        "-b",
        default=default_bootstrap,
        callback=check,
        envvar="TIDELOG_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help="Some brokers of the cluster. Default: $TIDELOG_BOOTSTRAP, the local cluster, or 127.0.0.1:9092.",
    )(command)
