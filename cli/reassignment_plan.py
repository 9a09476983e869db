"""What ``tidelog reassign`` reads, proposes and sets; nothing here asks a cluster.

The files are those of Kafka's ``kafka-reassign-partitions.sh`` (``ReassignPartitionsCommand``)::

    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [4, 2, 3]}]}
    {"version": 1, "topics": [{"topic": "orders"}]}
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidelog.cli.failure import CommandFailed
from tidelog.metadata_quorum.placement import UsableBroker, place_replicas
from tidelog.model.config_def import VALUE_LENGTH_MAX
from tidelog.model.errors import Refusal
from tidelog.model.ids import TopicPartition
from tidelog.model.throttled_replicas import EVERY
from tidelog.proto.api import ConfigResource

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"

Assignment = Mapping[TopicPartition, Sequence[int]]
Settings = dict[ConfigResource, dict[str, str | None]]


# --- Files ---------------------------------------------------------------------------------------------


def read_assignment(path: Path) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas wished for. Raises :class:`CommandFailed` for a file that is none."""
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for number, item in enumerate(_items(path, "partitions")):
        at = f"{path}: partition {number} of the file"
        topic, partition, replicas = (item.get(name) for name in ("topic", "partition", "replicas"))
        if not isinstance(topic, str) or not isinstance(partition, int) or not _is_id(partition):
            raise CommandFailed(f'{at}: expected a "topic" and a "partition" of 0 or more, found {_short(item)}')
        if not isinstance(replicas, list) or not replicas or not all(_is_id(node) for node in replicas):
            raise CommandFailed(f'{at}: expected "replicas", a list of node ids, found {_short(replicas)}')
        if any(place != "any" for place in item.get("log_dirs") or ()):
            raise CommandFailed(f'{at}: expected "any" for every one of its "log_dirs": a node chooses its own')
        place = TopicPartition(topic, partition)
        if place in found:
            raise CommandFailed(f"{path}: expected each partition once, found {topic}-{partition} twice")
        found[place] = tuple(replicas)
    return found


def read_topics(path: Path) -> list[str]:
    """The topics to be moved. Raises :class:`CommandFailed`."""
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
        raise CommandFailed(f'{path}: expected an object of "version" 1, found {_short(whole)}')
    items = whole.get(kind)
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise CommandFailed(f'{path}: expected "{kind}", a list with at least one object, found {_short(items)}')
    return items


def _is_id(found: Any) -> bool:
    return type(found) is int and 0 <= found < 1 << 31


def _short(found: Any) -> str:
    text = json.dumps(found)
    return text if len(text) <= 80 else text[:77] + "..."


def as_file(assignment: Assignment) -> dict[str, Any]:
    """An assignment as such a file has it."""
    return {
        "version": 1,
        "partitions": [
            {
                "topic": at.topic,
                "partition": at.partition,
                "replicas": list(replicas),
                "log_dirs": ["any"] * len(replicas),
            }
            for at, replicas in sorted(assignment.items())
        ],
    }


# --- Proposing -----------------------------------------------------------------------------------------


def propose(
    current: Assignment, brokers: Iterable[tuple[int, str | None]], rng: random.Random
) -> dict[TopicPartition, tuple[int, ...]]:
    """Spread the topics of ``current`` over ``brokers`` (node and rack), each with as many replicas as its first
    partition has. Raises :class:`CommandFailed` where there are not enough."""
    usable = [UsableBroker(node, rack, False) for node, rack in brokers]  # type: ignore[arg-type]
    by_topic: dict[str, list[TopicPartition]] = {}
    for at in sorted(current):
        by_topic.setdefault(at.topic, []).append(at)
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for topic, places in by_topic.items():
        placed = place_replicas(usable, len(places), len(current[places[0]]), rng)
        if isinstance(placed, Refusal):
            raise CommandFailed(f"{topic}: {placed.message}")
        found.update(zip(places, placed, strict=True))
    return found


# --- Throttling ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    """Where a partition's replicas were before, and where they are to be."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    @property
    def new(self) -> tuple[int, ...]:
        return tuple(node for node in self.targets if node not in self.sources)


def throttles(moves: Mapping[TopicPartition, Move], rate: int) -> Settings:
    """The settings that hold the moves to ``rate`` bytes a second: who may lead sends, and who is new takes, no more.

    A list that would be too long for a setting is ``*``: that only replicas which are not in sync are held back
    makes the difference small."""
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
    """The settings that take all of that back."""
    settings: Settings = {
        ConfigResource("topic", topic): {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None}
        for topic in sorted(set(topics))
    }
    for node in sorted(set(nodes)):
        settings[ConfigResource("broker", str(node))] = {LEADER_RATE: None, FOLLOWER_RATE: None}
    return settings
