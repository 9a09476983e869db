"""Counters of a node's data path, as plain integers; :mod:`tidelog.broker.metrics` reads them at scrape time.

Counting costs an integer addition per request or partition, never per record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.proto.transport.frames import FetchResponse, ProducedPartition
from tidelog.replication.partition.topic_traffic import TopicTraffic

LATENCY_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_NO_TOPICS: Final[Mapping[TopicId, TopicTraffic]] = MappingProxyType({})


class Latency:
    """A histogram of durations in seconds, in Prometheus's form."""

    __slots__ = ("buckets", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.total_s += seconds


class Traffic:
    """Counters of one node's client data streams. ``topics``: the topics with replicas here, which are counted by
    topic."""

    __slots__ = (
        "_topics",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "fetch_latency",
        "fetch_requests",
        "fetch_streams",
        "produce_latency",
        "produce_requests",
        "produce_streams",
    )

    def __init__(self, topics: Mapping[TopicId, TopicTraffic] = _NO_TOPICS) -> None:
        self._topics = topics
        self.produce_requests = 0
        self.produce_streams = 0
        self.produce_latency = Latency()
        self.failed_produces = 0
        self.fetch_requests = 0
        self.fetch_streams = 0
        self.fetch_latency = Latency()
        self.failed_fetches = 0
        self.bytes_out = 0

    def produced(self, partitions: Sequence[ProducedPartition], seconds: float) -> None:
        """Count the answer to one produce request."""
        self.produce_latency.add(seconds)
        for item in partitions:
            if item.error:
                self.failed_produces += 1

    def fetched(self, response: FetchResponse, seconds: float) -> None:
        """Count the answer to one fetch."""
        self.fetch_latency.add(seconds)
        for item in response.partitions:
            if item.error is not ErrorCode.NONE:
                self.failed_fetches += 1
            elif size := item.size:
                self.bytes_out += size
                topic = self._topics.get(item.topic_id)
                if topic is not None:
                    topic.bytes_out += size
