"""The files, proposals and settings of ``tidelog reassign``. Makes no requests.

The files have the format of Kafka's ``kafka-reassign-partitions.sh`` (``ReassignPartitionsCommand``)::

    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [4, 2, 3]}]}
    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [4, 2], "log_dirs": ["/d", "any"]}]}
    {"version": 1, "topics": [{"topic": "orders"}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.replicas.spreading import NoRoom, Part, Target, spread_topics
from tidelog.model.ids import TopicPartition
from tidelog.model.settings.config_def import VALUE_LENGTH_MAX
from tidelog.model.settings.throttled_replicas import EVERY
from tidelog.proto.calls.api import ConfigResource

if TYPE_CHECKING:
    from tidelog.client.admin.reassignments import OngoingReassignment

ANY: Final = "any"
"""A directory that the broker chooses."""
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"

Assignment = Mapping[TopicPartition, Sequence[int]]
Settings = dict[ConfigResource, dict[str, str | None]]


# --- Files ---------------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """The content of such a file. ``directories``: by broker, for replicas that must be in a certain one."""

    replicas: dict[TopicPartition, tuple[int, ...]]
    directories: dict[int, dict[TopicPartition, str]]


def read_assignment(path: Path) -> Wanted:
    """Read the wanted replicas. Raises :class:`CommandFailed` if the file is invalid."""
    found: dict[TopicPartition, tuple[int, ...]] = {}
    directories: dict[int, dict[TopicPartition, str]] = {}
    for number, item in enumerate(_items(path, "partitions")):
        at = f"{path}: partition {number} of the file"
        topic, partition, replicas = (item.get(name) for name in ("topic", "partition", "replicas"))
        if not isinstance(topic, str) or not isinstance(partition, int) or not _is_id(partition):
            raise CommandFailed(f'{at}: expected a "topic" and a "partition" of 0 or more, found {_short(item)}')
        if not isinstance(replicas, list) or not replicas or not all(_is_id(node) for node in replicas):
            raise CommandFailed(f'{at}: expected "replicas", a list of node ids, found {_short(replicas)}')
        dirs = [ANY] * len(replicas) if item.get("log_dirs") is None else item["log_dirs"]
        if not isinstance(dirs, list) or len(dirs) != len(replicas) or not all(map(_is_directory, dirs)):
            raise CommandFailed(
                f'{at}: expected as many "log_dirs" as "replicas", each an absolute path or "{ANY}", found '
                f"{_short(dirs)}"
            )
        place = TopicPartition(topic, partition)
        if place in found:
            raise CommandFailed(f"{path}: expected each partition once, found {topic}-{partition} twice")
        found[place] = tuple(replicas)
        for node, directory in zip(replicas, dirs, strict=True):
            if directory != ANY:
                directories.setdefault(node, {})[place] = directory.rstrip("/") or directory
    return Wanted(found, directories)


def read_topics(path: Path) -> list[str]:
    """Read the topics to move. Raises :class:`CommandFailed`."""
    names = [item.get("topic") for item in _items(path, "topics")]
    for name in names:
        if not isinstance(name, str):
            raise CommandFailed(f'{path}: expected items with a "topic", found {_short(name)}')
    return [str(name) for name in dict.fromkeys(names)]


def _items(path: Path, kind: str) -> list[dict[str, Any]]:
    size = path.stat().st_size
    if size > FILE_BYTES_MAX:
        raise CommandFailed(f"{path}: expected at most {FILE_BYTES_MAX} bytes, found {size}")
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"{path}: expected JSON, found other text: {error}") from None
    if not isinstance(whole, dict) or whole.get("version", 1) != 1:
        raise CommandFailed(f'{path}: expected an object with "version" 1, found {_short(whole)}')
    items = whole.get(kind)
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise CommandFailed(f'{path}: expected "{kind}", a list with at least one object, found {_short(items)}')
    return items


def _is_id(found: object) -> bool:
    return type(found) is int and 0 <= found < 1 << 31


def _is_directory(found: object) -> bool:
    return isinstance(found, str) and (found == ANY or found.startswith("/"))


def _short(found: object) -> str:
    text = json.dumps(found)
    return text if len(text) <= 80 else text[:77] + "..."


def as_file(assignment: Assignment, directories: Mapping[int, Mapping[TopicPartition, str]] = {}) -> dict[str, Any]:
    """Return an assignment in the file's form; ``directories`` by broker."""
    return {
        "version": 1,
        "partitions": [
            {
                "topic": at.topic,
                "partition": at.partition,
                "replicas": list(replicas),
                "log_dirs": [directories.get(node, {}).get(at, ANY) for node in replicas],
            }
            for at, replicas in sorted(assignment.items())
        ],
    }


# --- Proposing -----------------------------------------------------------------------------------------


def propose(current: Assignment, targets: Sequence[Target]) -> dict[TopicPartition, tuple[int, ...]]:
    """Spread the topics of ``current`` evenly over ``targets``, with as few moves as possible. Raises
    :class:`CommandFailed` if there are too few."""
    try:
        return spread_topics(
            {at: Part(tuple(replicas), 0) for at, replicas in current.items()},
            targets,
        )
    except NoRoom as error:
        raise CommandFailed(str(error)) from None


# --- Throttling ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    """A partition's replicas before and after the move."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    @property
    def new(self) -> tuple[int, ...]:
        return tuple(node for node in self.targets if node not in self.sources)


def move_under_way(found: OngoingReassignment) -> Move:
    """Return a move in progress, with the replicas from before it."""
    return Move(tuple(node for node in found.replicas if node not in found.adding_replicas), found.target_replicas)


def throttles(moves: Mapping[TopicPartition, Move], rate: int) -> Settings:
    """Return the settings that limit the moves to ``rate`` bytes per second, for sending by possible leaders and
    fetching by new replicas.

    A list too long for a setting becomes ``*``. That hardly matters, because a throttle applies only to replicas that
    are not in sync."""
    settings: Settings = {}
    by_topic: dict[str, list[tuple[int, Move]]] = {}
    for at in sorted(moves):
        if moves[at].new:
            by_topic.setdefault(at.topic, []).append((at.partition, moves[at]))
    for topic, own in by_topic.items():
        settings[ConfigResource("topic", topic)] = {
            LEADER_REPLICAS: _listed((number, node) for number, move in own for node in move.sources),
            FOLLOWER_REPLICAS: _listed((number, node) for number, move in own for node in move.new),
        }
    nodes = {node for move in moves.values() if move.new for node in (*move.sources, *move.targets)}
    for node in sorted(nodes):
        settings[ConfigResource("broker", str(node))] = {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}
    return settings


def _listed(replicas: Iterable[tuple[int, int]]) -> str:
    text = ",".join(f"{partition}:{node}" for partition, node in replicas)
    return text if len(text) <= VALUE_LENGTH_MAX else EVERY


def without_throttles(topics: Iterable[str], nodes: Iterable[int]) -> Settings:
    """Return the settings that undo :func:`throttles`."""
    settings: Settings = {
        ConfigResource("topic", topic): {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None}
        for topic in sorted(set(topics))
    }
    for node in sorted(set(nodes)):
        settings[ConfigResource("broker", str(node))] = {LEADER_RATE: None, FOLLOWER_RATE: None}
    return settings
