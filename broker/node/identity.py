"""Identifies the node's directories, and formats new ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from tidelog.model.ids import id_text, random_id
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.storage.disk.files import FileLayer
from tidelog.storage.disk.format import MetaProperties, check_meta, format_directory, read_meta
from tidelog.storage.disk.log_errors import DirectoryRefused

WORKERS_DIRECTORY: Final = "workers"
"""In a log directory of a machine's node: the directories of the machine's other nodes."""
IGNORED_NAMES: Final = frozenset({"lost+found", ".lock", "meta.properties.tmp", WORKERS_DIRECTORY})
"""Names that an empty directory may contain: a file system's own, other nodes', and leftovers of a killed start."""


def settle_identity(
    files: FileLayer, config: NodeConfig, cluster_id: str | None, rng: random.Random, *, formats: bool = False
) -> str:
    """Return the id of the cluster that this node's directories belong to; format empty ones.

    ``cluster_id`` ``None``: take it from the directories; if none is formatted, a node that is the only controller
    makes a new id. ``formats``: format the metadata log's directory even if other directories of this node are already
    formatted, so that it must have been lost.

    Raises :class:`DirectoryRefused` naming the directory, and ``OSError`` if no directory, or not the metadata log's,
    can be used.
    """
    found: dict[str, MetaProperties | None] = {}
    trouble: dict[str, OSError] = {}
    for path in _paths(config):
        try:
            found[path] = read_meta(files, path)
        except OSError as error:
            trouble[path] = error
    if not formats:
        _refuse_lost_metadata(found, config)
    wanted = cluster_id or _cluster_of(found, config, rng)
    for path, meta in found.items():
        if meta is not None:
            check_meta(path, meta, wanted, config.node_id)
    # The metadata log's comes first: if a node is killed in between, having only the others would look like a loss.
    for path, meta in sorted(found.items(), key=lambda each: each[0] != config.metadata_directory):
        if meta is None:
            try:
                _format(files, path, wanted, config, rng)
            except OSError as error:
                trouble[path] = error
    needed = [config.metadata_directory] if config.is_controller else []
    for path, cause in trouble.items():
        # The log manager handles a failed log directory: the others continue without it.
        if path in needed or len(trouble) == len(_paths(config)):
            raise OSError(cause.errno, f"{path}: {cause.strerror or cause}") from cause
    return wanted


def _refuse_lost_metadata(found: dict[str, MetaProperties | None], config: NodeConfig) -> None:
    """Refuse an empty directory if others show that the node is not new: its disk may not be mounted."""
    mine = config.metadata_directory
    others = [path for path, meta in found.items() if meta is not None]
    if config.is_controller and others and mine in found and found[mine] is None:
        raise DirectoryRefused(
            f"{mine}: expected this node's metadata log, as {others[0]} is formatted; found nothing. If its disk is "
            "not mounted or the setting is wrong, fix that. If it is lost, start the node once with --format"
        )


def _paths(config: NodeConfig) -> Sequence[str]:
    paths = list(config.directories) if config.is_broker else []
    if config.is_controller and config.metadata_directory not in paths:
        paths.append(config.metadata_directory)
    return paths


def _cluster_of(found: dict[str, MetaProperties | None], config: NodeConfig, rng: random.Random) -> str:
    formatted = {path: meta for path, meta in found.items() if meta is not None}
    if formatted:
        return next(iter(formatted.values())).cluster_id
    if config.is_controller and len(config.voters) == 1:
        return id_text(random_id(rng))
    raise DirectoryRefused(
        f"{', '.join(found)}: expected a directory formatted for a cluster, found none: "
        "start the node with the id of its cluster (--cluster-id)"
    )


def _format(files: FileLayer, path: str, cluster_id: str, config: NodeConfig, rng: random.Random) -> None:
    names = files.listdir(path) if files.exists(path) else []
    strange = sorted(set(names) - IGNORED_NAMES)
    if strange:
        raise DirectoryRefused(
            f"{path}: expected an empty directory or one with meta.properties, found {', '.join(strange[:3])}"
            f"{' and more' if len(strange) > 3 else ''}: name another directory in log.dirs"
        )
    format_directory(files, path, cluster_id, config.node_id, rng)
