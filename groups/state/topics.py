"""What decisions about groups know about topics: ids, names and numbers of partitions, as of one moment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from tidelog.model.ids import TopicId


class TopicShape(NamedTuple):
    """A topic. Partitions are numbered from 0 without gaps."""

    topic_id: TopicId
    partitions: int


class Topics(Protocol):
    """A snapshot of all topics; a later one has a higher version."""

    @property
    def version(self) -> int: ...

    def shape(self, name: str) -> TopicShape | None: ...

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def names(self) -> Iterable[str]:
        """Return the names of all topics, in a fixed order."""


class NoTopics:
    """A cluster without topics."""

    version = 0

    def shape(self, name: str) -> TopicShape | None:
        return None

    def name_of(self, topic_id: TopicId) -> str | None:
        return None

    def names(self) -> Iterable[str]:
        return ()


def metadata_hash(topics: Topics, names: Iterable[str]) -> int:
    """Return 64 signed bits that differ when one of these topics is created, deleted, recreated or grown; 0 without
    any. Kafka uses another hash; readers of the record treat it as opaque, and another value costs one rebalance."""
    digest = hashlib.blake2b(digest_size=8)
    is_empty = True
    for name in sorted(names):
        shape = topics.shape(name)
        if shape is not None:
            is_empty = False
            digest.update(shape.topic_id + shape.partitions.to_bytes(4) + name.encode() + b"\0")
    return 0 if is_empty else int.from_bytes(digest.digest(), signed=True)
