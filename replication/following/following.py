"""The partitions that this node follows, with one fetcher for each source broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tidelog.model.ids import NodeId, TopicIdPartition
from tidelog.replication.following.fetcher import BrokerFetcher, FetcherOwner
from tidelog.replication.partition.replica import Replica

Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]
"""Starts a task. If the task ends unexpectedly, the node stops."""


class Following:
    """A node's fetchers. A fetcher without partitions waits for one and costs nothing."""

    def __init__(self, owner: FetcherOwner, spawn: Spawn) -> None:
        self._owner = owner
        self._spawn = spawn
        self._running = False
        self._sources: dict[TopicIdPartition, NodeId] = {}
        self.fetchers: dict[NodeId, BrokerFetcher] = {}

    def start(self) -> None:
        self._running = True
        for fetcher in self.fetchers.values():
            self._start(fetcher)

    def close(self) -> None:
        """Stop the fetchers' timers; the owner of ``spawn`` ends their tasks."""
        self._running = False
        for fetcher in self.fetchers.values():
            fetcher.close()

    def follow(self, replica: Replica) -> None:
        """Fetch this partition from its leader, starting at its current position."""
        following = replica.partition.following
        assert following is not None
        source = following.leader
        if self._sources.get(replica.key) != source:
            self.unfollow(replica.key)
        self._sources[replica.key] = source
        fetcher = self.fetchers.get(source)
        if fetcher is None:
            fetcher = self.fetchers[source] = BrokerFetcher(source, self._owner)
            if self._running:
                self._start(fetcher)
        fetcher.add(replica)

    def unfollow(self, key: TopicIdPartition) -> None:
        source = self._sources.pop(key, None)
        if source is not None:
            self.fetchers[source].remove(key)

    def retry_now(self, source: NodeId) -> None:
        """Retry now, because this broker is probably reachable."""
        fetcher = self.fetchers.get(source)
        if fetcher is not None:
            fetcher.retry_now()

    def _start(self, fetcher: BrokerFetcher) -> None:
        self._spawn(fetcher.run(), f"fetcher from node {fetcher.source}")
