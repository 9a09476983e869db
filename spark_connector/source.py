"""The source's batch and streaming readers for Spark's Python data source API.

Spark pickles a reader into every task, and creates several for one query; so a reader holds only its options until the
first call. Only the reader that plans a stream is long-lived, in a process of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tidelog.client.errors import BrokerNotAvailableError
from tidelog.model.ids import TopicPartition
from tidelog.spark_connector.losses import report
from tidelog.spark_connector.offsets import Pace, Range, SourceOffset, byte_shares, fallen, plan, split
from tidelog.spark_connector.options import Kind, OptionError, SourceOptions
from tidelog.spark_connector.reading import RangePartition, read
from tidelog.spark_connector.same_release import packed
from tidelog.spark_connector.worker_errors import leave, told_in_a_line

if TYPE_CHECKING:
    from tidelog.spark_connector.cluster_offsets import ClusterOffsets


class BatchReader(DataSourceReader):
    """Reads from one limit to another; both are looked up when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(BatchReader, self._options)

    @told_in_a_line()
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with _cluster(options) as cluster:
            there = cluster.partitions()
            start = cluster.resolved(options.starting, there, starting=True)
            end = cluster.resolved(options.ending, there, starting=False)
            for at in sorted(end.offsets):
                if start.offsets[at] > end.offsets[at]:
                    raise OptionError(
                        f"The resolved start offset {start.offsets[at]} is greater than the resolved end offset "
                        f"{end.offsets[at]} for topic {at.topic} partition {at.partition}."
                    )
            latest = end if options.ending.kind is Kind.LATEST else cluster.latest(end.offsets)
            end = end.no_older_than(start).no_older_than(latest)
            planned = plan(start, end, cluster.earliest(end.offsets), latest.offsets, there)
        report(planned.losses, fail=options.fail_on_data_loss)
        # Spark takes an empty list of partitions for one partition without a value.
        return _tasks(planned.ranges, end, options) or [RangePartition("", 0, "", 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        with told_in_a_line():
            yield from read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches from where the last one ended, and reads them."""

    def __init__(self, options: SourceOptions, now_ms: Callable[[], float] | None = None) -> None:
        self._options = options
        self._now_ms = now_ms
        self._cluster: ClusterOffsets | None = None
        self._pace = Pace(
            options.min_offsets_per_trigger, options.max_offsets_per_trigger, options.max_trigger_delay_ms
        )
        self._available_now = False
        self._target: SourceOffset | None = None
        self._latest: SourceOffset | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the options; tasks need nothing else."""
        return packed(StreamReader, self._options)

    # --- planning -----------------------------------------------------------------------------------

    @told_in_a_line()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        cluster = self._asked()
        found = cluster.patiently(lambda: cluster.resolved(self._options.starting, cluster.partitions(), starting=True))
        return replace(found, initial=True).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @told_in_a_line()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = True
        tolerant = not self._options.fail_on_data_loss
        self._target = self._asked().patiently(lambda: self._read_latest(None, tolerant=tolerant))

    @told_in_a_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or ``start`` itself if there is no next batch.

        Spark passes on only one limit; the options know both. If it asks for everything available (``Trigger.Once``),
        it gets that. While no broker answers, there is no next batch either, and :meth:`reportLatestOffset` says so;
        but a query that ends when nothing is left has to wait here.
        """
        cluster = self._asked()
        if self._available_now or self._latest is None:
            return cluster.patiently(lambda: self._next_end(start, limit))
        try:
            found = self._next_end(start, limit)
        except BrokerNotAvailableError as error:
            cluster.bear(error)
            return start
        cluster.back()
        return found

    def _next_end(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = SourceOffset.from_json(start)
        latest = self._target
        if latest is None or any(latest.offsets.get(at, 0) < offset for at, offset in begin.offsets.items()):
            latest = self._read_latest(begin, tolerant=not self._options.fail_on_data_loss)
            if self._available_now:
                self._target = latest
        if self._options.fail_on_data_loss:  # before the checkpoint has it: no batch could ever be built from that
            report(fallen(begin, latest), fail=True)
        self._latest = latest
        ends: Mapping[TopicPartition, int] | None = latest.offsets
        if not isinstance(limit, ReadAllAvailable):
            begins = self._begins(begin, latest)
            ends = self._pace.end(begins, latest.offsets, self._now(), wait=not self._available_now)
            if ends is not None and self._options.max_bytes_per_trigger is not None:
                parts = byte_shares(self._options.max_bytes_per_trigger, begins, ends)
                ends = {**ends, **{at: min(end, ends[at]) for at, end in self._asked().after_bytes(parts).items()}}
        if ends is None:
            ends = begin.offsets
        if begin.initial:
            return replace(latest, offsets=ends, begin=begin).no_older_than(begin).to_json()
        found = replace(latest if ends is not begin.offsets else begin, offsets=ends).no_older_than(begin)
        if found.offsets == begin.offsets and found.topic_ids == begin.topic_ids:
            return start
        return found.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if self._latest is None:
            return None
        away = None if self._cluster is None else self._cluster.away
        return self._latest.to_json() | ({} if away is None else {"brokersAway": away})

    @told_in_a_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        begin, until = SourceOffset.from_json(start), SourceOffset.from_json(end)
        if begin.initial and until.begin is not None:
            begin = until.begin
        if begin.offsets == until.offsets and begin.topic_ids == until.topic_ids:
            return []
        return self._asked().patiently(lambda: self._planned(begin, until))

    def _planned(self, begin: SourceOffset, until: SourceOffset) -> Sequence[InputPartition]:
        cluster = self._asked()
        there = cluster.partitions(tolerant=True)
        asked = [at for at in until.offsets if at in there.offsets]
        known = {} if self._latest is None else self._latest.offsets
        if all(until.is_of(self._latest or until, at.topic) and known.get(at, -1) >= until.offsets[at] for at in asked):
            readable: Mapping[TopicPartition, int] = {at: known[at] for at in asked}
        else:  # a batch that was planned before the query restarted
            readable = cluster.latest(asked, until.of_those_in(there)).offsets
        planned = plan(begin, until, cluster.earliest(asked), readable, there)
        report(planned.losses, fail=self._options.fail_on_data_loss)
        return _tasks(planned.ranges, until, self._options)

    def stop(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()
        if isinstance(sys.exception(), EOFError):  # the query was stopped: Spark calls this on the way out
            leave()

    # --- reading ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        with told_in_a_line():
            yield from read(self._options, partition)

    # --- inside -------------------------------------------------------------------------------------

    def _asked(self) -> ClusterOffsets:
        if self._cluster is None:
            self._cluster = _cluster(self._options)
        return self._cluster

    def _now(self) -> float:
        return time.monotonic() * 1_000 if self._now_ms is None else self._now_ms()

    def _read_latest(self, known: SourceOffset | None, *, tolerant: bool) -> SourceOffset:
        cluster = self._asked()
        there = cluster.partitions(tolerant=tolerant)
        found = cluster.latest(there.offsets, None if known is None else known.of_those_in(there))
        return replace(found, topic_ids=there.topic_ids)

    def _begins(self, begin: SourceOffset, latest: SourceOffset) -> dict[TopicPartition, int]:
        """Return each partition's start; for new partitions, and those of a recreated topic, the first offset."""
        found = {
            at: begin.offsets[at] for at in latest.offsets if at in begin.offsets and begin.is_of(latest, at.topic)
        }
        return found | self._asked().earliest(at for at in latest.offsets if at not in found)


def _cluster(options: SourceOptions) -> ClusterOffsets:
    from tidelog.spark_connector.cluster_offsets import ClusterOffsets  # tasks do without

    return ClusterOffsets(options)


def _tasks(ranges: Sequence[Range], end: SourceOffset, options: SourceOptions) -> list[InputPartition]:
    return [
        RangePartition(
            one.at.topic,
            one.at.partition,
            end.topic_ids[one.at.topic],
            one.start,
            one.end,
            end.leader_epochs.get(one.at, -1),
        )
        for one in split(ranges, options.min_partitions, options.max_records_per_partition)
    ]
