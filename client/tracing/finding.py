"""Finds hops in the trace store, by a trace, by a place or by a key. Reads a bounded number of records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from tidelog.client.config.trace_context import context_of
from tidelog.client.consumer.blocking import Consumer
from tidelog.client.consumer.single import record_at
from tidelog.client.errors import UnknownTopicOrPartitionError
from tidelog.client.tracing.hops import Hop, unpacked
from tidelog.model.hashes.key_partition import partition_for_key
from tidelog.model.ids import TopicPartition

LOOK_UP_S: Final = 1.5
TRACES_MAX: Final = 20
"""How many traces of one key are returned: the newest."""


class Finder:
    """Reads the store in at most three passes, each from ``since_ms`` on, of at most ``most`` records. ``whole``:
    whether these were all."""

    def __init__(self, consumer: Consumer, topic: str, *, since_ms: int, most: int) -> None:
        self._consumer = consumer
        self._since_ms = since_ms
        self._most = most
        views = consumer.partitions_for(topic, LOOK_UP_S)
        self._partitions: Final = [TopicPartition(topic, view.partition) for view in views]
        self.whole = True

    def of_trace(self, trace_id: str) -> list[Hop]:
        """Return the trace's hops, the oldest first."""
        own = partition_for_key(trace_id.encode(), len(self._partitions))
        there = [at for at in self._partitions if at.partition == own]
        others = [at for at in self._partitions if at.partition != own]  # the topic may have been smaller once
        return self._hops([trace_id], there)[0] or self._hops([trace_id], others)[0]

    def of_place(self, at: TopicPartition, offset: int) -> list[Hop]:
        """Return the hops of a record's trace: by its headers if it is still there, or by what was stored of it."""
        if trace_id := self._trace_of(at, offset):
            return self.of_trace(trace_id)
        found = self._traces(lambda hop: (hop.topic, hop.partition, hop.offset) == (*at, offset))
        return self.of_trace(found[-1]) if found else []

    def of_key(self, hashed: str, topic: str | None) -> list[list[Hop]]:
        """Return the newest traces that a record with the key belongs to."""
        found = self._traces(lambda hop: hop.key == hashed and topic in (None, hop.topic))
        return self._hops(found[-TRACES_MAX:], self._partitions) if found else []

    def _traces(self, chosen: Callable[[Hop], bool]) -> list[str]:
        last = {hop.trace: hop.began_us for hop in self._read(self._partitions) if chosen(hop)}
        return sorted(last, key=lambda trace_id: last[trace_id])

    def _hops(self, trace_ids: Sequence[str], partitions: Sequence[TopicPartition]) -> list[list[Hop]]:
        found: dict[str, list[Hop]] = {trace_id: [] for trace_id in trace_ids}
        keys = {trace_id.encode() for trace_id in trace_ids}
        for hop in self._read(partitions, keys):
            if hop.trace in found:
                found[hop.trace].append(hop)
        return [sorted(hops, key=lambda hop: hop.began_us) for hops in found.values()]

    def _read(self, partitions: Sequence[TopicPartition], keys: Collection[bytes] | None = None) -> Iterator[Hop]:
        """Yield the hops in these partitions, or those with one of the keys."""
        consumer, left = self._consumer, self._most
        if not partitions:
            return
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        starts = consumer.offsets_for_times(dict.fromkeys(partitions, self._since_ms))
        for at in partitions:
            consumer.seek(at, ends[at] if (start := starts.get(at)) is None else start.offset)
        while any(consumer.position(at) < end for at, end in ends.items()):
            if left <= 0:
                self.whole = False
                return
            records = consumer.poll(1.0, max_records=min(1_000, left))
            left -= len(records)
            for record in records:
                if (keys is None or record.key in keys) and (hop := unpacked(record.value)) is not None:
                    yield hop

    def _trace_of(self, at: TopicPartition, offset: int) -> str | None:
        try:
            self._consumer.partitions_for(at.topic, LOOK_UP_S)
            record = record_at(self._consumer, at, offset)
        except UnknownTopicOrPartitionError:
            record = None
        context = None if record is None else context_of(record.headers)
        return None if context is None else context.trace_id
