"""What a run leaves on disk, looked at when its processes are gone: are replicas equal, who was elected when?"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.cli.local_cluster import LocalNode
from tidelog.model.ids import TopicPartition

_PIECE: Final = 1 << 20
_ELECTED: Final = re.compile(r"^(\S+ \S+) .*: node (\d+) is the active controller, epoch (\d+)$")


class Copy(NamedTuple):
    """One node's copy of a partition: all its segments, one behind the other."""

    node: int
    size: int
    digest: str


class Election(NamedTuple):
    """A node said that it is the active controller, at a time of the wall clock (seconds since the epoch)."""

    at_s: float
    node: int
    epoch: int


def copies(nodes: Mapping[int, LocalNode], partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[Copy]]:
    """Every node's copy of each partition. Where segments begin may differ from node to node, the bytes of all of them
    together may not: followers keep what the leader sent as it came. No process may write meanwhile."""
    found: dict[TopicPartition, list[Copy]] = {}
    for at in partitions:
        for number, node in sorted(nodes.items()):
            place = node.data_dir / str(at)
            if not place.is_dir():
                continue
            digest, size = hashlib.sha256(), 0
            for segment in sorted(place.glob("*.log")):
                with segment.open("rb") as file:
                    while piece := file.read(_PIECE):
                        digest.update(piece)
                        size += len(piece)
            found.setdefault(at, []).append(Copy(number, size, digest.hexdigest()))
    return found


def elections(nodes: Mapping[int, LocalNode]) -> list[Election]:
    """Who became the active controller when, by what the nodes logged."""
    return sorted(each for node in nodes.values() for each in _elections(node.log_path))


def _elections(path: Path) -> Iterator[Election]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        if (found := _ELECTED.match(line)) is not None:
            when = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").astimezone()
            yield Election(when.timestamp(), int(found[2]), int(found[3]))
