"""Flips bytes in a log of a node that is down: the damage of a disk that lost its power, or is worn.

Behind the recovery point only: data before it was synced, and a start accepts it unread, as Kafka does. A batch's
leader epoch is spared, since no checksum covers it (so that a broker can stamp it).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.model.ids import TopicPartition
from tidelog.proto.records.batches import HEADER, HEADER_SIZE, LENGTH_OVERHEAD
from tidelog.storage.disk.checkpoints import RECOVERY_POINTS, decode_offsets

FLIPS_MAX: Final = 8
_EPOCH: Final = range(12, 16)
"""The position of a batch's leader epoch."""


class Damage(NamedTuple):
    """The flipped bytes in the batch that begins at ``offset``."""

    path: Path
    offset: int
    positions: tuple[int, ...]

    def __str__(self) -> str:
        places = ", ".join(map(str, self.positions))
        return f"{self.path.parent.name}/{self.path.name}: bytes {places} flipped, of the batch at offset {self.offset}"


class _Place(NamedTuple):
    path: Path
    offset: int
    position: int
    size: int


def damage_tail(data: Path, topics: Collection[str], rng: random.Random) -> Damage | None:
    """Flip one to :data:`FLIPS_MAX` bytes of one batch of these topics' partitions in a log directory; ``None`` if
    nothing lies behind a recovery point. No process may have the directory open."""
    try:
        points = decode_offsets((data / RECOVERY_POINTS).read_bytes())
    except FileNotFoundError:
        points = {}
    logs: list[list[_Place]] = []
    for directory in sorted(data.iterdir()):
        topic, _, number = directory.name.rpartition("-")
        if topic not in topics or not number.isdecimal():
            continue
        point = points.get(TopicPartition(topic, int(number)), 0)
        places = [each for path in sorted(directory.glob("*.log")) for each in _batches(path) if each.offset >= point]
        if places:
            logs.append(places)
    if not logs:
        return None
    place = rng.choice(rng.choice(logs))
    open_to_it = [at for at in range(place.size) if at not in _EPOCH]
    flipped = sorted(rng.sample(open_to_it, rng.randint(1, FLIPS_MAX)))
    with place.path.open("r+b") as file:
        for at in flipped:
            file.seek(place.position + at)
            (old,) = file.read(1)
            file.seek(place.position + at)
            file.write(bytes((old ^ rng.randint(1, 255),)))
    return Damage(place.path, place.offset, tuple(place.position + at for at in flipped))


def _batches(path: Path) -> Iterator[_Place]:
    content = path.read_bytes()
    position = 0
    while position + HEADER_SIZE <= len(content):
        offset, length, *_ = HEADER.unpack_from(content, position)
        size = length + LENGTH_OVERHEAD
        if size < HEADER_SIZE or position + size > len(content):
            return
        yield _Place(path, offset, position, size)
        position += size
