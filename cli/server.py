"""``tidelog server``: one node, in the foreground."""

from __future__ import annotations

import logging
import logging.handlers
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.settings import settings_option

if TYPE_CHECKING:
    from tidelog.broker.node import Node, NodeNetwork

LOG_BYTES_MAX: Final = 16 * 1024 * 1024
LOG_FILES_KEPT: Final = 3


@click.command()
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A .properties file.")
@settings_option("Override one setting of the file; may be given again.")
@click.option("--cluster-id", help="Format empty directories for this cluster; refuse those of another.")
@click.option("--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Log here (rotated), not to stderr.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def server(
    config: Path | None, settings: dict[str, str], cluster_id: str | None, log_file: Path | None, log_level: str
) -> int:
    """Run one node with the roles of its configuration until SIGTERM or SIGINT.

    It then hands over its leaderships and stops; a second signal stops it at once. A directory that was
    formatted for another cluster or another node is refused.
    """
    return serve(config, settings, cluster_id, log_file, log_level)


def serve(
    config: Path | None,
    settings: dict[str, str],
    cluster_id: str | None,
    log_file: Path | None,
    log_level: str,
    carrier: Callable[[NodeNetwork], NodeNetwork] | None = None,
) -> int:
    """Run the node as the command does; returns its exit code. ``carrier``: see :func:`tidelog.broker.server.run`.

    Raises ``click.UsageError``, ``ConfigError`` or :class:`CommandFailed`.
    """
    started = time.monotonic()
    from tidelog.broker.server import run
    from tidelog.model.broker_config import NodeConfig

    if config is None and not settings:
        raise click.UsageError("expected --config FILE or at least --set node.id=NUMBER, found neither")
    node_config = NodeConfig.from_properties(config if config is not None else "", overrides=settings)
    _start_logging(log_file, log_level)

    def say(node: Node) -> None:
        roles = " and ".join(node_config.process_roles)
        where = " ".join(str(listener) for listener in node_config.listeners)
        for scheme, address in (("tidelog", node.client_address), ("kafka", node.kafka_address)):
            if address is not None:
                logging.getLogger("tidelog").info("clients: %s://%s", scheme, address)
        logging.getLogger("tidelog").info(
            "node %d serves as %s at %s, %.2f s after its start",
            node_config.node_id, roles, where, time.monotonic() - started,
        )  # fmt: skip

    from tidelog.broker.node import NodeRefused

    try:
        return run(node_config, cluster_id=cluster_id, on_ready=say, carrier=carrier)
    except (NodeRefused, OSError) as refused:
        logging.getLogger("tidelog").error("%s", refused)
        if log_file is None:
            return 1
        raise CommandFailed(str(refused)) from None


def _start_logging(log_file: Path | None, level: str) -> None:
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if log_file is not None:
        handler = logging.handlers.RotatingFileHandler(
            log_file, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES_KEPT, encoding="utf-8"
        )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
