"""Reads a part of a topic again: into a handler, a group, or a copy.

A replay has two ends, offsets that are looked up once, when it begins; the end lies at most at the last stable offset
of that moment. So it is bounded, whatever is written meanwhile, and the same range has the same records again.

A copy is a chain of transactions, each with a chunk of records and the place after it, a committed offset of the group
``replay.ID``. The first transaction commits the places at which it begins, with the ends in their metadata, so a copy
that is started again goes on to the end that it was begun with.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from tidelog.client.admin.blocking import Admin
from tidelog.client.cluster.backoff import Backoff
from tidelog.client.config.trace_context import handling
from tidelog.client.consumer.blocking import Consumer
from tidelog.client.consumer.range_consumer import RangeConsumer
from tidelog.client.errors import IllegalStateError, TidelogError
from tidelog.client.group_types import ConsumerGroupMetadata, OffsetAndMetadata
from tidelog.client.producer.blocking import Producer
from tidelog.client.record import ConsumerRecord
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.proto.records.message_headers import REPLAY_ID, REPLAY_ORIGIN

ABORTS_MAX: Final = 10
LOOK_UP_S: Final = 5.0
"""How long to look for a topic. Brokers may not know a new one yet, but a wrong name should be reported soon."""
_BACKOFF: Final = Backoff(20, 1_000)
_replaying: ContextVar[bool] = ContextVar("tidelog_replaying", default=False)

Place = int | datetime | timedelta | Mapping[int, int]
"""An offset in every partition, a time, a time that long ago, or an offset for each partition."""

log = logging.getLogger(__name__)


class ReplayPart(NamedTuple):
    """The offsets of one partition, ``end`` exclusive. Some may have no record: markers, and what compaction took."""

    partition: TopicPartition
    start: int
    end: int


@dataclass(slots=True)
class ReplayCounts:
    """``done``: records handled, or copied; ``left``: not chosen; ``looping``: once copied out of the topic into which
    this copy goes. ``resumed``: the copy had begun before."""

    done: int = 0
    left: int = 0
    looping: int = 0
    resumed: bool = False


def is_replay() -> bool:
    """Return whether the record that this thread handles comes from a :class:`Replay`."""
    return _replaying.get()


class Replay:
    """Reads what was committed in ``topic`` from ``start`` to before ``end`` again.

        Replay("localhost:9092", "orders", start=timedelta(hours=2)).to_handler(bill)

    A place is an offset, a ``datetime``, a ``timedelta`` (that long ago) or offsets by partition; the default is
    everything there is now. ``partitions``: only these. ``chosen(record)`` says which records to handle or copy,
    ``rate`` how many per second. :meth:`plan` shows what would be read, and changes nothing.
    """

    _CHUNK = 500
    """A transaction of a copy ends with the batch that brings it to so many records."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topic: str,
        *,
        start: Place = 0,
        end: Place | None = None,
        partitions: Iterable[int] | None = None,
        chosen: Callable[[ConsumerRecord], bool] | None = None,
        rate: float | None = None,
        **settings: Any,
    ) -> None:
        if rate is not None and rate <= 0:
            raise ValueError(f"rate: expected more than 0, found {rate}")
        self._bootstrap = bootstrap_servers
        self._topic = topic
        self._start = start
        self._end = end
        self._partitions = None if partitions is None else sorted(set(partitions))
        self._chosen = chosen
        self._rate = rate
        self._settings = settings

    def plan(self) -> list[ReplayPart]:
        """Return what would be read now. Raises ``UnknownTopicOrPartitionError``, and ``ValueError`` for a partition
        that is not there."""
        with self._reader() as reader:
            return self._plan(reader, self._chosen_partitions(reader))

    def to_handler(self, handler: Callable[[ConsumerRecord], Any]) -> ReplayCounts:
        """Call ``handler`` with each record, one partition after the other, without a group. Within, :func:`is_replay`
        is true. If it raises, a note on the exception says where."""
        counts = ReplayCounts()
        with self._reader() as reader:
            for at, start, end in self._plan(reader, self._chosen_partitions(reader)):
                for batch in reader.batches(at, start, end):
                    began, before = time.monotonic(), counts.done
                    for record in batch.records():
                        if record.offset < end and self._counts_in(record, counts):
                            self._handle(handler, record)
                            counts.done += 1
                    self._keep_rate(counts.done - before, began)
        return counts

    def to_group(self, group_id: str) -> list[ReplayPart]:
        """Commit the starts for a new group, so that its consumers read from there: they are Kafka's or ours, and go on
        with what comes after the end. Partitions that were left out begin at their end.

        Raises ``IllegalStateError`` if the group has committed offsets of the topic already, ``UnknownMemberIdError``
        if it has members.
        """
        with (
            self._reader() as reader,
            Admin(self._bootstrap, **self._settings) as admin,
        ):
            every = self._every_partition(reader)
            parts = self._plan(reader, self._chosen_partitions(reader))
            known = sorted(admin.list_consumer_group_offsets(group_id).keys() & set(every))
            if known:
                raise IllegalStateError(
                    f"{group_id}: expected a new group for a replay, found one with committed offsets of {known[0]}; "
                    "tidelog groups reset-offsets moves a group that is in use"
                )
            offsets = {at: OffsetAndMetadata(end) for at, end in reader.end_offsets(every).items()}
            offsets |= {at: OffsetAndMetadata(start, metadata=f"replay until {end}") for at, start, end in parts}
            admin.alter_consumer_group_offsets(group_id, offsets)
        return parts

    def to_topic(
        self, topic: str, *, replay_id: str | None = None, producer_settings: Mapping[str, Any] | None = None
    ) -> ReplayCounts:
        """Copy the records into ``topic``, which must exist, each once for readers of what is committed, with key,
        value, timestamp and headers; two more headers name the replay and the origin. They keep their partition if the
        topics have equally many, otherwise the key decides.

        A copy with the same ``replay_id`` (default: both topics' names) goes on where it ended, to the end that it was
        begun with; once finished, it does nothing more. Raises ``ValueError`` for a copy of a topic into itself,
        ``IllegalStateError`` if that id belongs to another copy, ``ProducerFencedError`` if the same copy was started
        elsewhere.
        """
        if topic == self._topic:
            raise ValueError(f"expected a topic other than {topic} for the copy, which would never end, found the same")
        replay_id = replay_id or f"{self._topic}.{topic}"
        name = f"replay.{replay_id}"
        with (
            self._reader() as reader,
            self._group(name) as group,
            self._producer({**(producer_settings or {}), "transactional_id": name}) as producer,
        ):
            chosen, every = self._chosen_partitions(reader), self._every_partition(reader)
            same_partitions = len(reader.partitions_for(topic, LOOK_UP_S)) == len(every)
            found = reader._core.cluster.cache.topic_id(self._topic)
            assert found is not None, "its partitions are known"
            copy = _Copy(producer, ConsumerGroupMetadata(name), replay_id, topic, found, same_partitions, self._wait)
            producer.init_transactions()  # an earlier run's transaction is over now, so the places are certain
            begun = {at: given for at, given in group.committed(every).items() if given is not None}
            if begun:
                parts = copy.resumed(begun, chosen, partitions_given=self._partitions is not None)
            else:
                parts = self._plan(reader, chosen)
                copy.commit([], {at: copy.place(start, end) for at, start, end in parts})
            copy.counts.resumed = bool(begun)
            for part in parts:
                self._copy(reader, copy, part)
        return copy.counts

    # --- inside ---------------------------------------------------------------------------------------

    def _reader(self) -> RangeConsumer:
        return RangeConsumer(self._bootstrap, **self._settings)

    def _group(self, name: str) -> Consumer:
        return Consumer(self._bootstrap, group_id=name, enable_auto_commit=False, **self._settings)

    def _producer(self, settings: Mapping[str, Any]) -> Producer:
        return Producer(self._bootstrap, **{**self._settings, **settings})

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def _copy(self, reader: RangeConsumer, copy: _Copy, part: ReplayPart) -> None:
        at, start, end = part
        if start >= end:
            return
        waiting: list[ConsumerRecord] = []
        began = time.monotonic()
        for batch in reader.batches(at, start, end, topic_id=copy.source_id):
            waiting += [
                record
                for record in batch.records()
                if record.offset < end and not copy.loops(record) and self._counts_in(record, copy.counts)
            ]
            if len(waiting) >= self._CHUNK:
                copy.commit(waiting, {at: copy.place(min(batch.next_offset, end), end)})
                self._keep_rate(len(waiting), began)
                waiting, began = [], time.monotonic()
        copy.commit(waiting, {at: copy.place(end, end)})
        self._keep_rate(len(waiting), began)

    def _handle(self, handler: Callable[[ConsumerRecord], Any], record: ConsumerRecord) -> None:
        token = _replaying.set(True)
        try:
            with handling(record):
                handler(record)
        except BaseException as error:
            error.add_note(f"the replay has ended at {record.topic_partition} offset {record.offset}")
            raise
        finally:
            _replaying.reset(token)

    def _counts_in(self, record: ConsumerRecord, counts: ReplayCounts) -> bool:
        if self._chosen is None or self._chosen(record):
            return True
        counts.left += 1
        return False

    def _keep_rate(self, count: int, began: float) -> None:
        if self._rate is not None:
            self._wait(max(0.0, count / self._rate - (time.monotonic() - began)))

    def _every_partition(self, reader: RangeConsumer) -> list[TopicPartition]:
        return [TopicPartition(self._topic, view.partition) for view in reader.partitions_for(self._topic, LOOK_UP_S)]

    def _chosen_partitions(self, reader: RangeConsumer) -> list[TopicPartition]:
        every = self._every_partition(reader)
        if self._partitions is None:
            return every
        chosen = [TopicPartition(self._topic, number) for number in self._partitions]
        for gone in set(chosen) - set(every):
            raise ValueError(f"{gone}: expected a partition from 0 to {len(every) - 1}")
        return chosen

    def _plan(self, reader: RangeConsumer, partitions: Sequence[TopicPartition]) -> list[ReplayPart]:
        firsts, ends = reader.beginning_offsets(partitions), reader.end_offsets(partitions)
        now_s = time.time()
        starts = _offsets(reader, partitions, self._start, ends, now_s)
        stops = ends if self._end is None else _offsets(reader, partitions, self._end, ends, now_s)
        parts = []
        for at in partitions:
            start = min(max(starts[at], firsts[at]), ends[at])
            parts.append(ReplayPart(at, start, max(start, min(stops[at], ends[at]))))
        return parts


def _offsets(
    reader: RangeConsumer,
    partitions: Sequence[TopicPartition],
    place: Place,
    ends: Mapping[TopicPartition, int],
    now_s: float,
) -> dict[TopicPartition, int]:
    if isinstance(place, int):
        return dict.fromkeys(partitions, place)
    if isinstance(place, Mapping):
        return {at: place.get(at.partition, ends[at]) for at in partitions}
    since_s = now_s - place.total_seconds() if isinstance(place, timedelta) else place.timestamp()
    found = reader.offsets_for_times(dict.fromkeys(partitions, max(0, round(since_s * 1_000))))
    return {at: ends[at] if (one := found[at]) is None else one.offset for at in partitions}


class _Copy:
    """The writing side of a copy."""

    def __init__(
        self,
        producer: Producer,
        group: ConsumerGroupMetadata,
        replay_id: str,
        target: str,
        source_id: TopicId,
        same_partitions: bool,
        wait: Callable[[float], None],
    ) -> None:
        self._producer = producer
        self._group = group
        self._replay_id = replay_id
        self._target = target
        self.source_id = source_id
        self._same_partitions = same_partitions
        self._wait = wait
        self._rng = random.Random(replay_id)
        self.counts: Final = ReplayCounts()

    def place(self, offset: int, end: int) -> OffsetAndMetadata:
        return OffsetAndMetadata(offset, metadata=f"{end} {self.source_id.hex()} {self._target}")

    def resumed(
        self,
        begun: Mapping[TopicPartition, OffsetAndMetadata],
        chosen: Sequence[TopicPartition],
        *,
        partitions_given: bool,
    ) -> list[ReplayPart]:
        """Return what is left of a copy that has begun. Raises ``IllegalStateError`` if it is another one."""
        parts = []
        for at, given in begun.items():
            end, _, of = given.metadata.partition(" ")
            if not end.isdigit() or self.place(0, int(end)).metadata != given.metadata:
                raise IllegalStateError(
                    f"replay {self._replay_id}: expected one from {at.topic} (id {self.source_id.hex()}) to "
                    f"{self._target}, found {of or 'another group'!r}; choose another id"
                )
            parts.append(ReplayPart(at, given.offset, int(end)))
        if partitions_given and set(begun) != set(chosen):
            raise IllegalStateError(
                f"replay {self._replay_id}: expected the partitions with which it was begun, "
                f"{sorted(at.partition for at in begun)}, found {[at.partition for at in chosen]}; choose another id"
            )
        return parts

    def loops(self, record: ConsumerRecord) -> bool:
        """Return whether a replay has copied the record out of the topic into which it would go now."""
        for name, value in record.headers:
            if name == REPLAY_ORIGIN and (value or b"").decode(errors="replace").rsplit("-", 2)[0] == self._target:
                self.counts.looping += 1
                return True
        return False

    def commit(self, records: Sequence[ConsumerRecord], places: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Write the records and the places in one transaction."""
        for aborted in range(1, ABORTS_MAX + 1):
            try:
                with self._producer.transaction():
                    for record in records:
                        self._send(record)
                    self._producer.send_offsets_to_transaction(places, self._group)
                break
            except TidelogError as error:
                if not error.abortable or aborted == ABORTS_MAX:
                    raise
                log.info("replay %s: a transaction was aborted; trying again: %s", self._replay_id, error)
                self._wait(_BACKOFF.after(aborted, self._rng) / 1_000)
        self.counts.done += len(records)

    def _send(self, record: ConsumerRecord) -> None:
        origin = f"{record.topic}-{record.partition}-{record.offset}"
        headers = [*record.headers, (REPLAY_ID, self._replay_id.encode()), (REPLAY_ORIGIN, origin.encode())]
        self._producer.send(
            self._target, record.value, record.key, headers=headers,
            partition=record.partition if self._same_partitions else None,
            timestamp_ms=record.timestamp if record.timestamp >= 0 else None,
        )  # fmt: skip
