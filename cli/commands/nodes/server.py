"""``tidelog server``: one node, in the foreground."""

from __future__ import annotations

import faulthandler
import logging
import logging.handlers
import os
import stat
import sys
import time
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.private_files import private
from tidelog.cli.terminal.secret_files import names_secret, warn_of_readable_secret
from tidelog.cli.terminal.settings import settings_option
from tidelog.model.escaping import escaped

if TYPE_CHECKING:
    import asyncio

    from tidelog.broker.node.node import Node, NodeNetwork
    from tidelog.model.settings.broker_config import NodeConfig
    from tidelog.proto.logs.metadata_records import MetadataRecord

LOG_BYTES_MAX: Final = 16 * 1024 * 1024
LOG_FILES_KEPT: Final = 3


@click.command()
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A .properties file.")
@settings_option("Override one setting in the file; repeatable.")
@click.option("--cluster-id", help="Format empty directories for this cluster; refuse another cluster's directories.")
@click.option(
    "--format",
    "formats",
    is_flag=True,
    help="Give a controller that lost its metadata log a new one. It votes again once the others have admitted it.",
)
@click.option(
    "--add-scram",
    "first_users",
    multiple=True,
    metavar="USER",
    help="A user of a new cluster, SCRAM-SHA-512=[name=admin,password=...], or @FILE with such lines; repeatable. "
    "An existing cluster keeps its users.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes of this machine: this node, and brokers beside it whose ids are higher by 1000, 2000 ...",
)
@click.option(
    "--worker-port-step",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Between the ports of one worker and the next.",
)
@click.option("--supervised", type=int, hidden=True)
@click.option(
    "--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Log to this file (rotated) instead of stderr."
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def server(
    config: Path | None,
    settings: dict[str, str],
    cluster_id: str | None,
    formats: bool,
    first_users: tuple[str, ...],
    workers: int,
    worker_port_step: int,
    supervised: int | None,
    log_file: Path | None,
    log_level: str,
) -> int:
    """Run one node with the roles of its configuration until SIGTERM or SIGINT.

    It then hands over its leaderships and stops; a second signal stops it immediately. The node refuses a directory
    that was formatted for another cluster or node.

    A node uses one core. With --workers N, this command runs N of them and starts again those that die.
    """
    if workers == 1:
        return serve(
            config, settings, cluster_id, log_file, log_level,
            formats=formats, first_users=first_users, supervised=supervised,
        )  # fmt: skip
    from tidelog.cli.local.workers import supervise

    node_config = _read(config, settings)

    def arguments(worker: int) -> list[str]:
        made = ["--log-level", log_level]
        if config is not None:
            made += ["--config", str(config)]
        if log_file is not None:
            made += ["--log-file", str(log_file.with_stem(f"{log_file.stem}-{worker}"))]
        if worker == 0:
            made += ["--format"] * formats
            for user in first_users:
                made += ["--add-scram", user]
        return made

    _start_logging(log_file, log_level)
    return supervise(node_config, workers, worker_port_step, settings, arguments, cluster_id)


def serve(
    config: Path | None,
    settings: dict[str, str],
    cluster_id: str | None,
    log_file: Path | None,
    log_level: str,
    carrier: Callable[[NodeNetwork], NodeNetwork] | None = None,
    *,
    formats: bool = False,
    first_users: tuple[str, ...] = (),
    supervised: int | None = None,
) -> int:
    """Run the node as the command does, and return its exit code. ``carrier``: see
    :func:`tidelog.broker.node.server.run`. ``supervised``: the socket of the supervisor, if there is one.

    Raises ``click.UsageError``, ``ConfigError`` or :class:`CommandFailed`.
    """
    started = time.monotonic()
    from tidelog.broker.node.server import run

    node_config = _read(config, settings)
    first_records: tuple[MetadataRecord, ...] = ()
    if first_users:
        from tidelog.cli.work.first_users import parse_first_users

        first_records = parse_first_users(first_users)
    faulthandler.enable()  # a library that aborts the process prints nothing
    _start_logging(log_file, log_level, node_config.node_id if supervised is not None else None)
    for directory in {*node_config.directories, node_config.metadata_directory}:
        _warn_of_open_directory(directory)
    _warn_of_readable_secrets(config, node_config)

    reporting: list[asyncio.Task[None]] = []

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
        if supervised is not None:
            import asyncio

            from tidelog.cli.local.workers import report_to

            reporting.append(asyncio.get_running_loop().create_task(report_to(supervised, node), name="supervisor"))

    from tidelog.broker.node.node import NodeRefused

    try:
        return run(
            node_config,
            cluster_id=cluster_id,
            formats=formats,
            on_ready=say,
            carrier=carrier,
            first_records=first_records,
        )
    except MemoryError:  # while starting or stopping
        logging.getLogger("tidelog").critical("the node stops: out of memory")
        raise
    except (NodeRefused, OSError) as refused:
        logging.getLogger("tidelog").error("%s", refused)
        if log_file is None:
            return 1
        raise CommandFailed(str(refused)) from None


def _read(config: Path | None, settings: dict[str, str]) -> NodeConfig:
    from tidelog.model.settings.broker_config import NodeConfig

    if config is None and not settings:
        raise click.UsageError("expected --config FILE or at least --set node.id=NUMBER, found neither")
    return NodeConfig.from_properties(config if config is not None else "", overrides=settings)


def _warn_of_readable_secrets(config: Path | None, found: NodeConfig) -> None:
    """Warn if others can read the configuration file or private keys."""
    from tidelog.model.settings.properties import parse_properties

    if config is not None and names_secret(parse_properties(config.read_text(encoding="utf-8"))):
        warn_of_readable_secret(config)
    keys = {found.security_of(each.name).ssl_keystore_location for each in found.listeners}
    for key in sorted(filter(None, keys)):
        warn_of_readable_secret(key)


def _warn_of_open_directory(directory: str) -> None:
    """Warn if others can read a directory. An existing directory keeps its mode, because an operator chose it.
    PostgreSQL also accepts 0700 and 0750."""
    try:
        mode = stat.S_IMODE(os.stat(directory).st_mode)
    except OSError:
        return  # created later, or refused with a reason
    if mode & (stat.S_IWGRP | stat.S_IRWXO):
        logging.getLogger("tidelog").warning(
            "%s: expected mode 0700 or 0750, found %04o: other users of this machine can read the records; "
            "`chmod -R go= %s` prevents it", directory, mode, directory,
        )  # fmt: skip


def _start_logging(log_file: Path | None, level: str, node_id: int | None = None) -> None:
    """``node_id``: of a worker, whose lines go where those of others go too."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if log_file is not None:
        handler = _PrivateLog(log_file, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES_KEPT, encoding="utf-8")
    who = "" if node_id is None else f" [{node_id}]"
    handler.setFormatter(_OneLine(f"%(asctime)s %(levelname)-7s{who} %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _PrivateLog(logging.handlers.RotatingFileHandler):
    """A log that only its owner can read: it names groups, clients and their addresses."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=private)


class _OneLine(logging.Formatter):
    """Keeps a message on one line and indents traceback lines, so that no name or data from a client can start a log
    line or control a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  overrides
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  overrides
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802  overrides
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(f"    {escaped(line)}" for line in text.splitlines())
