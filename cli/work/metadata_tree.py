"""The metadata as a tree of names, like Kafka's ``kafka-metadata-shell``. It contains no secrets."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from tidelog.metadata_quorum.image.image import MetadataImage, TopicImage
from tidelog.metadata_quorum.metadata_directory import MetadataDirectory, MetadataEntry
from tidelog.model.ids import Offset, id_text
from tidelog.model.settings.broker_config import NODE_CONFIG_DEF
from tidelog.security.scram import ScramMechanism

HIDDEN: Final = "(hidden)"
_ID_BYTES: Final = 16

Leaf: TypeAlias = str | int | float | bool | dict[str, Any] | list[Any] | None
"""A file's content, as a JSON value."""


@dataclass(frozen=True, slots=True)
class Folder:
    """``children`` is called when somebody looks inside, so a tree of 100,000 partitions costs only what is looked
    at."""

    children: Callable[[], Mapping[str, Folder | Leaf]]


Node: TypeAlias = Folder | Leaf


class NoSuchPath(ValueError):
    """A path does not exist; the text says what was expected and found."""


def metadata_tree(found: MetadataDirectory, up_to: Offset) -> Folder:
    """Return the root: ``image`` is the metadata as of offset ``up_to``, ``log`` the entries, ``quorum`` the voters."""
    image = found.image(up_to)
    return _folder(
        {
            "image": Folder(lambda: _image(image)),
            "log": Folder(lambda: {str(entry.offset): _entry(found, entry) for entry in found.entries}),
            "quorum": {
                "cluster_id": found.cluster_id,
                "node_id": found.node_id,
                "epoch": found.epoch,
                "committed_offset": found.committed_offset,
                "snapshot_offset": found.snapshot.offset,
                "voters": None if found.voters is None else str(found.voters),
            },
        }
    )


# --- Walking ---------------------------------------------------------------------------------------


def resolved(path: str, current: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the parts of a path, relative to ``current``; ``..`` stops at the root."""
    steps = [] if path.startswith("/") else list(current)
    for name in path.split("/"):
        if name == "..":
            del steps[-1:]
        elif name not in ("", "."):
            steps.append(name)
    return tuple(steps)


def find(root: Folder, pattern: tuple[str, ...]) -> list[tuple[tuple[str, ...], Node]]:
    """Return every path that matches names with ``*``, ``?`` and ``[…]``, with its node.

    Raises :class:`NoSuchPath` if nothing matches.
    """
    at: list[tuple[tuple[str, ...], Node]] = [((), root)]
    for depth, name in enumerate(pattern):
        below: list[tuple[tuple[str, ...], Node]] = []
        for path, node in at:
            if isinstance(node, Folder):
                below += [((*path, child), found) for child, found in listed(node) if fnmatchcase(child, name)]
        if not below:
            looked = "/" + "/".join(pattern[:depth])
            raise NoSuchPath(f"/{'/'.join(pattern)}: expected an existing path, found no {name!r} in {looked}")
        at = below
    return at


def listed(folder: Folder) -> list[tuple[str, Node]]:
    """Return the children in order: numbers by value."""
    return sorted(folder.children().items(), key=lambda child: _by_number(child[0]))


def walk(path: tuple[str, ...], node: Node) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Yield a node and everything below it, from the top."""
    yield path, node
    if isinstance(node, Folder):
        for name, child in listed(node):
            yield from walk((*path, name), child)


def _by_number(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


# --- What is in it -----------------------------------------------------------------------------------


def _folder(children: Mapping[str, Node]) -> Folder:
    """Make a folder. A ``/`` in the name of a user or client is shown as ``%2F``."""
    return Folder(lambda: {name.replace("/", "%2F"): child for name, child in children.items()})


def _image(image: MetadataImage) -> dict[str, Node]:
    return {
        "provenance": {"offset": image.offset, "epoch": image.epoch},
        "features": _folder(dict(image.features.items())),
        "cluster": _folder(
            {
                "brokers": _folder({str(at): _shown(found.record) for at, found in image.brokers.items()}),
                "controllers": _folder({str(at): _shown(found) for at, found in image.controllers.items()}),
            }
        ),
        "topics": _folder(
            {
                "byName": Folder(lambda: {topic.name: _topic(topic) for topic in image.topics.values()}),
                "byId": Folder(lambda: {id_text(topic.topic_id): _topic(topic) for topic in image.topics.values()}),
                "unpublished": Folder(
                    lambda: {
                        id_text(at): _folder({str(number): _shown(found) for number, found in partitions.items()})
                        for at, partitions in image.unpublished.items()
                    }
                ),
            }
        ),
        "configs": Folder(lambda: _configs(image)),
        "clientQuotas": _folder(
            {
                ",".join(f"{part.entity_type}={part.entity_name or '<default>'}" for part in entity): _folder(
                    dict(quotas.items())
                )
                for entity, quotas in image.quotas.items()
            }
        ),
        "acls": Folder(lambda: {id_text(at): _shown(found) for at, found in image.acls.items()}),
        "scram": Folder(lambda: _users(image)),
        "delegationTokens": Folder(lambda: {at: _shown(found) for at, found in image.delegation_tokens.items()}),
        "producerIds": {"next_producer_id": image.next_producer_id},
    }


def _topic(topic: TopicImage) -> Folder:
    return Folder(
        lambda: {
            "name": topic.name,
            "id": id_text(topic.topic_id),
            **{str(number): _shown(found) for number, found in topic.partitions.items()},
        }
    )


def _configs(image: MetadataImage) -> dict[str, Node]:
    kinds: dict[str, dict[str, Node]] = {}
    for resource, values in image.configs.items():
        shown: dict[str, Node] = {name: _setting(name, value) for name, value in values.items()}
        kinds.setdefault(resource.resource_type, {})[resource.name or "<default>"] = _folder(shown)
    return {kind: _folder(resources) for kind, resources in kinds.items()}


def _users(image: MetadataImage) -> dict[str, Node]:
    mechanisms: dict[str, dict[str, Node]] = {}
    for (name, mechanism), found in image.users.items():
        mechanisms.setdefault(ScramMechanism(mechanism).sasl_name, {})[name] = _shown(found)
    return {mechanism: _folder(users) for mechanism, users in mechanisms.items()}


def _entry(found: MetadataDirectory, entry: MetadataEntry) -> Leaf:
    return {
        "epoch": entry.epoch,
        "committed": entry.offset <= found.committed_offset,
        "records": [{"type": type(record).__name__, "data": _shown(record)} for record in entry.records],
    }


def _setting(name: str, value: str) -> str:
    known = NODE_CONFIG_DEF.settings.get(name)
    return HIDDEN if known is not None and known.secret else value


def _shown(value: object) -> Any:
    """Return a record as JSON. A field that its type excludes from ``repr`` is a secret."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        shown = {at.name: _shown(getattr(value, at.name)) if at.repr else HIDDEN for at in fields}
        if {"name", "value"} <= shown.keys() and isinstance(shown["value"], str):
            shown["value"] = _setting(shown["name"], shown["value"])
        return shown
    if isinstance(value, bytes):
        return id_text(value) if len(value) == _ID_BYTES else value.hex()
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_shown(item) for item in value]
    return value
