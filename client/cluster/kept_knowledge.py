"""What clients have learned about a cluster, kept for the next client of the process.

A client leaves it when it closes, unless it had reason to doubt it. Like a client's own metadata, it is used for
``metadata_max_age_ms`` at most; an error at a broker makes the client look again, as if it had known it all along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

from tidelog.client.cluster.metadata import MetadataCache, TopicView
from tidelog.model.ids import NodeId
from tidelog.model.sinks import sink_part

V = TypeVar("V")

KEPT_MAX: Final = 64
"""Maximum topics, and coordinators, to keep; the oldest are forgotten."""


class KeptKnowledge:
    """Brokers, topics and coordinators of one cluster. For one event loop."""

    def __init__(self) -> None:
        self._cluster: MetadataCache | None = None
        self._since_ms = -1 << 62
        self._topics: dict[str, tuple[int, TopicView]] = {}
        self._coordinators: dict[str, NodeId] = {}

    def brokers(self, cache: MetadataCache, since_ms: int) -> int | None:
        """Tell ``cache`` the brokers, if they were learned at ``since_ms`` or later; return when, or None."""
        if self._cluster is None or self._since_ms < since_ms:
            return None
        cache.take_brokers(self._cluster)
        return self._since_ms

    def topic(self, cache: MetadataCache, name: str, since_ms: int) -> int | None:
        """The same for a topic."""
        at_ms, view = self._topics.get(name, (-1 << 62, None))
        if view is None or at_ms < since_ms:
            return None
        cache.take_topic(replace(view, partitions=[replace(one) for one in view.partitions]))
        return at_ms

    def keep(self, cache: MetadataCache, at_ms: int) -> None:
        """Keep what a client that closes knew at ``at_ms``, except what others learned later."""
        if cache.brokers and at_ms >= self._since_ms:
            self._cluster, self._since_ms = cache, at_ms
        for name, view in cache.topics.items():
            if at_ms >= self._topics.get(name, (at_ms, None))[0]:
                _put(self._topics, name, (at_ms, view))

    def forget(self, topics: Mapping[str, object]) -> None:
        """Forget the brokers and these topics: a client had reason to doubt them."""
        self._cluster, self._since_ms = None, -1 << 62
        for name in topics:
            self._topics.pop(name, None)

    def coordinator(self, transactional_id: str) -> NodeId | None:
        """Return the coordinator of the transaction's sink, if it is known. Others than sinks have none here."""
        return self._coordinators.get(sink_part(transactional_id))

    def keep_coordinator(self, transactional_id: str, node: NodeId | None) -> None:
        """Keep the coordinator of a transaction's sink; None: forget it."""
        sink = sink_part(transactional_id)
        if node is None:
            self._coordinators.pop(sink, None)
        elif sink:
            _put(self._coordinators, sink, node)


def _put(kept: dict[str, V], key: str, value: V) -> None:
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > KEPT_MAX:
        del kept[next(iter(kept))]
