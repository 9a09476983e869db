"""How a command finds its cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from tidelog.cli.local_cluster import LocalCluster, default_directory

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"


def default_bootstrap() -> str:
    """The local cluster in its default directory, if there is one, else Kafka's port on this machine."""
    directory = default_directory()
    return LocalCluster.open(directory).bootstrap if LocalCluster.exists(directory) else DEFAULT_BOOTSTRAP


def bootstrap_option(command: F) -> F:
    """Give a command ``--bootstrap HOST:PORT,…``."""
    return click.option(
        "--bootstrap",
        "-b",
        default=default_bootstrap,
        envvar="TIDELOG_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help="Some brokers of the cluster. Default: $TIDELOG_BOOTSTRAP, the local cluster, or 127.0.0.1:9092.",
    )(command)
