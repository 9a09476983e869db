"""``meta.properties``: the cluster and node that own a log directory, and the directory's id.

Names and version are Kafka's (``MetaProperties``, version 1; ``directory.id`` by KIP-858).
"""

from __future__ import annotations

import random
from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import DirectoryId, NodeId, id_from_text, id_text, random_id
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.properties import format_properties, parse_properties
from tidelog.storage.disk.files import FileLayer, read_file, replace_file
from tidelog.storage.disk.log_errors import DirectoryRefused

META_PROPERTIES: Final = "meta.properties"
VERSION: Final = "1"


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The content of ``meta.properties``."""

    cluster_id: str
    node_id: NodeId
    directory_id: DirectoryId


def read_meta(files: FileLayer, path: str) -> MetaProperties | None:
    """Return a directory's ``meta.properties``, or None if it is not formatted.

    Raises :class:`DirectoryRefused` for a file that cannot be parsed, ``OSError`` if it cannot be read.
    """
    name = f"{path}/{META_PROPERTIES}"
    if not files.exists(name):
        return None
    content = read_file(files, name)
    try:
        values = {key: found.value for key, found in parse_properties(content.decode()).items()}
    except (UnicodeDecodeError, ConfigError) as error:
        raise DirectoryRefused(f"{name}: {error}") from None
    if values.get("version") != VERSION:
        raise DirectoryRefused(f"{name}: expected version={VERSION}, found {values.get('version')!r}")
    for key in ("cluster.id", "node.id", "directory.id"):
        if not values.get(key):
            raise DirectoryRefused(f"{name}: expected {key}, found none")
    try:
        return MetaProperties(
            values["cluster.id"], NodeId(int(values["node.id"])), DirectoryId(id_from_text(values["directory.id"]))
        )
    except ValueError as error:
        raise DirectoryRefused(f"{name}: {error}") from None


def format_directory(
    files: FileLayer, path: str, cluster_id: str, node_id: NodeId, rng: random.Random
) -> MetaProperties:
    """Format a directory for this node, durably; an already formatted one is unchanged.

    Raises :class:`DirectoryRefused` if it belongs to another cluster or node, ``OSError`` if it cannot be created.
    """
    found = read_meta(files, path)
    if found is not None:
        check_meta(path, found, cluster_id, node_id)
        return found
    meta = MetaProperties(cluster_id, node_id, DirectoryId(random_id(rng)))
    files.makedirs(path)
    content = format_properties(
        {
            "cluster.id": cluster_id,
            "directory.id": id_text(meta.directory_id),
            "node.id": str(node_id),
            "version": VERSION,
        }
    )
    replace_file(files, path, META_PROPERTIES, content.encode())
    files.fsync_dir(path.rpartition("/")[0] or ("/" if path.startswith("/") else "."))
    return meta


def check_meta(path: str, found: MetaProperties, cluster_id: str, node_id: NodeId) -> None:
    """Raise :class:`DirectoryRefused` unless the directory belongs to that cluster and node."""
    if found.cluster_id != cluster_id:
        raise DirectoryRefused(
            f"{path}: expected a directory of cluster {cluster_id}, found one of cluster {found.cluster_id}: "
            "name another directory in log.dirs, or start the node with that cluster's id"
        )
    if found.node_id != node_id:
        raise DirectoryRefused(
            f"{path}: expected a directory of node {node_id}, found one of node {found.node_id}: "
            "name another directory in log.dirs, or set node.id accordingly"
        )
