"""``tidelog quorum``: recovery when the controllers cannot elect a leader."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.output import json_option, print_json, print_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidelog.metadata_quorum.raft.recovery import Survivor
    from tidelog.storage.disk.files import SystemFiles


@click.group()
def quorum() -> None:
    """Inspect a stopped controller's metadata log, and recover a cluster that lost a majority of its controllers."""


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="The controller's metadata.log.dir, else the first of its log.dirs.",
)


@quorum.command(short_help="Show the end of a stopped controller's log, and its voters.")
@directory_option
@json_option
def show(directory: Path, as_json: bool) -> None:
    """Show the end of a stopped controller's metadata log, and the voters that it names."""
    from tidelog.metadata_quorum.raft.recovery import look

    with refusals():
        found = look(system_files(), str(metadata_directory(directory)))
    _print(found, as_json)


@quorum.command(short_help="Let one survivor continue alone after most controllers' disks are lost.")
@directory_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def recover(directory: Path, yes: bool, as_json: bool) -> None:
    """Let this directory's controller decide alone after a majority of the controllers' directories is lost.

    Choose the survivor with the longest log: the highest last epoch, then the highest last offset in
    `tidelog quorum show`. Changes that the others committed and this log lacks are lost for good. Then start this node,
    and after it the others with --format; if they kept their metadata directories, give them empty ones. They are
    admitted automatically.
    """
    from tidelog.metadata_quorum.raft import recovery as quorum_recovery

    metadata = str(metadata_directory(directory))
    with refusals():
        found = quorum_recovery.look(system_files(), metadata)
        if not yes:
            click.echo(
                f"{found.me} of cluster {found.cluster_id} would decide alone, with its log up to offset "
                f"{found.last_offset} of epoch {found.last_epoch}.\nLost for good: every change of topics, settings "
                "and leaders that the others had committed after that, and the records of topics created then. "
                f"Offsets up to {found.committed_offset} are known to have been committed.\n"
                f"The voters until now: {found.voters or 'those of the configuration'}. Except for this one, none of "
                "their directories may be started again as it is.",
                err=True,
            )
            click.confirm("Continue?", abort=True, err=True)
        made = quorum_recovery.recover(system_files(), metadata)
    _print(made, as_json)


@contextmanager
def refusals() -> Iterator[None]:
    """Convert errors about a directory to command failures."""
    from tidelog.metadata_quorum.raft.types import QuorumConfigurationError, QuorumDamaged, QuorumFailure

    try:
        yield
    except (QuorumConfigurationError, QuorumDamaged, QuorumFailure, OSError) as error:
        raise CommandFailed(str(error)) from None


def system_files() -> SystemFiles:
    from tidelog.storage.disk.files import SystemFiles

    return SystemFiles()


def metadata_directory(directory: Path) -> Path:
    from tidelog.broker.node.node import METADATA_DIRECTORY

    return directory if directory.name == METADATA_DIRECTORY else directory / METADATA_DIRECTORY


def _print(found: Survivor, as_json: bool) -> None:
    from tidelog.model.ids import id_text

    values = {
        "cluster": found.cluster_id,
        "node": found.me.node_id,
        "directory": id_text(found.me.directory_id),
        "epoch": found.epoch,
        "last_offset": found.last_offset,
        "last_epoch": found.last_epoch,
        "committed_offset": found.committed_offset,
        "voters": "unknown" if found.voters is None else str(found.voters),
    }
    if as_json:
        print_json(values)
    else:
        print_pairs(values)
