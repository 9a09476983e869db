"""Examines the files of a run once its processes are gone: are replicas equal, what do compacted ones hold, and which
elections were there?"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.chaos.checkers.compaction import KeyedRecord
from tidelog.chaos.stored_records import content_of
from tidelog.cli.local.node import LocalNode
from tidelog.cli.work.segment_files import PlacedBatch, read_batches
from tidelog.model.ids import TopicPartition

_PIECE: Final = 1 << 20
_ELECTED: Final = re.compile(r"^(\S+ \S+) .*: node (\d+) is the active controller, epoch (\d+)$")


class Copy(NamedTuple):
    """One node's copy of a partition: all its segments, concatenated."""

    node: int
    size: int
    digest: str


class Election(NamedTuple):
    """A node logged that it is the active controller, at a time of the wall clock (seconds since the epoch)."""

    at_s: float
    node: int
    epoch: int


def copies(nodes: Mapping[int, LocalNode], partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[Copy]]:
    """Return every node's copy of each partition. Segment boundaries may differ from node to node, but the concatenated
    bytes may not: followers store what the leader sent. No process may write meanwhile."""
    found: dict[TopicPartition, list[Copy]] = {}
    for at in partitions:
        for number, node in sorted(nodes.items()):
            directory = node.data_dir / str(at)
            if not directory.is_dir():
                continue
            digest, size = hashlib.sha256(), 0
            for segment in sorted(directory.glob("*.log")):
                with segment.open("rb") as file:
                    while piece := file.read(_PIECE):
                        digest.update(piece)
                        size += len(piece)
            found.setdefault(at, []).append(Copy(number, size, digest.hexdigest()))
    return found


def contents(
    nodes: Mapping[int, LocalNode], at: TopicPartition
) -> Iterator[tuple[int, Sequence[tuple[int, int, int]], list[KeyedRecord]]]:
    """Yield every node's copy of a partition: base offset, last offset and leader epoch of each batch, and all records.

    Everything behind damage is left out. No process may write meanwhile."""
    for number, node in sorted(nodes.items()):
        directory = node.data_dir / str(at)
        if not directory.is_dir():
            continue
        placed = [each for path in sorted(directory.glob("*.log")) for each in read_batches(path)]
        batches = [each.batch for each in placed if isinstance(each, PlacedBatch)]
        spans = [(batch.base_offset, batch.last_offset, batch.leader_epoch) for batch in batches]
        yield number, spans, [record for batch in batches for record in content_of(batch)[0]]


def elections(nodes: Mapping[int, LocalNode]) -> list[Election]:
    """Return each active controller, and when it became active, from the nodes' logs."""
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
