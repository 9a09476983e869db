"""Moves rows of an outbox into topics, each exactly once, without writing to the database.

The position in the outbox is a committed offset of the group ``outbox.NAME``, in the same transaction as the records. A
second relay with that name has the same transactional id, and fences the first.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.cluster.backoff import Backoff
from tidelog.client.consumer.blocking import Consumer
from tidelog.client.errors import IllegalStateError, TidelogError, UnknownTopicOrPartitionError
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.outbox.rows import DatabaseAwayError, Outbox, OutboxRow
from tidelog.client.producer.blocking import Producer
from tidelog.model.ids import TopicPartition

AT_ONCE: Final = 500
WAIT_S: Final = 1.0
LOOK_UP_S: Final = 5.0
ABORTS_MAX: Final = 10
"""After this many aborts in a row, the last one's error ends the relay."""
_BACKOFF: Final = Backoff(20, 1_000)
log = logging.getLogger(__name__)


@dataclass(slots=True)
class RelayCounts:
    sent: int = 0
    aborts: int = 0


def event_topic(row: OutboxRow) -> str:
    """Return ``outbox.event.`` and the aggregate's type, as Debezium routes."""
    return f"outbox.event.{row.aggregatetype}"


class OutboxRelay:
    """Sends the rows that programs put into ``outbox``, with value ``payload``, key ``aggregateid``, and headers
    ``id``, ``type`` and the row's own, to the topic ``route(row)``.

    ``read_committed`` readers find each committed row once, and rows of one aggregate in order, whatever is killed.
    ``name`` must stay the same for a database. The topic ``outbox.NAME`` stores the position; it gets no records. Rows
    are deleted once they are sent, unless ``keep``. ``start_after``: where to start if the group has no position.
    ``settings`` go to the consumer of the group and to the producer, ``producer_settings`` to the producer alone.
    """

    def __init__(
        self,
        outbox: Outbox,
        bootstrap_servers: str | Sequence[str],
        *,
        name: str,
        route: Callable[[OutboxRow], str] = event_topic,
        keep: bool = False,
        start_after: int | None = None,
        producer_settings: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self._outbox = outbox
        self._bootstrap = bootstrap_servers
        self._name: Final = f"outbox.{name}"
        self._transactional_id: Final = self._name
        self._at: Final = TopicPartition(self._name, 0)
        self._route = route
        self._keep = keep
        self._start_after = start_after
        self._settings = settings
        self._producer_settings = {**settings, **(producer_settings or {})}
        self._stopping = threading.Event()
        self._rng = random.Random()
        self.counts: Final = RelayCounts()

    def stop(self) -> None:
        """Stop: finish the open transaction, then let :meth:`run` return. Call it from any thread or signal handler."""
        self._stopping.set()

    def run(self, *, until_empty: bool = False) -> RelayCounts:
        """Run until :meth:`stop`, or with ``until_empty`` until no row is left.

        Raises ``ProducerFencedError`` if another relay with that name has started; ``IllegalStateError`` if the
        database is not the previous one, or an older state of it, or if the position is lost while rows were deleted.
        """
        with closing(self._outbox), self._consumer() as consumer, self._producer() as producer:
            self._check_topic(consumer)
            producer.init_transactions()  # an older relay's transaction is over now, so the position is certain
            lost = 0
            while not self._stopping.is_set():
                try:
                    self._move(consumer, producer, until_empty)
                    break
                except DatabaseAwayError as error:
                    lost += 1
                    log.warning("%s: the connection to the database is lost; connecting again: %s", self._name, error)
                    self._pause(_BACKOFF.after(lost, self._rng) / 1_000)
        return self.counts

    def _consumer(self) -> Consumer:
        return Consumer(
            self._bootstrap, group_id=self._name, enable_auto_commit=False, allow_auto_create_topics=False,
            **self._settings,
        )  # fmt: skip

    def _producer(self) -> Producer:
        return Producer(self._bootstrap, transactional_id=self._transactional_id, **self._producer_settings)

    def _pause(self, seconds: float) -> None:
        """Wait, unless the end is near."""
        self._stopping.wait(seconds)

    def _move(self, consumer: Consumer, producer: Producer, until_empty: bool) -> None:
        aborted = 0
        identity = self._outbox.identity()
        place = self._place(consumer.committed([self._at])[self._at], identity)
        while not self._stopping.is_set():
            rows = self._outbox.after(place, AT_ONCE)
            if not rows:
                if until_empty and rows is not None:
                    break
                self._outbox.wait(WAIT_S)
                continue
            try:
                with producer.transaction():
                    for row in rows:
                        producer.send(self._route(row), row.payload, row.aggregateid.encode(), headers=_headers(row))
                    offset = OffsetAndMetadata(rows[-1].seq, metadata=f"{identity} {rows[-1].id}")
                    producer.send_offsets_to_transaction({self._at: offset}, consumer.group_metadata())
            except TidelogError as error:
                aborted += 1
                self.counts.aborts += 1
                if not error.abortable or aborted >= ABORTS_MAX:
                    raise
                log.info("%s: a transaction was aborted; trying again: %s", self._name, error)
                self._pause(_BACKOFF.after(aborted, self._rng) / 1_000)
                continue
            aborted = 0
            place = rows[-1].seq
            self.counts.sent += len(rows)
            if not self._keep:
                self._outbox.delete(place)

    def _check_topic(self, consumer: Consumer) -> None:
        try:
            consumer.partitions_for(self._name, LOOK_UP_S)
        except UnknownTopicOrPartitionError:
            raise IllegalStateError(
                f"expected the topic {self._name}, which stores the position in the outbox, found none; create it: "
                f"tidelog topics create {self._name} --partitions 1"
            ) from None

    def _place(self, committed: OffsetAndMetadata | None, identity: str) -> int:
        if committed is None:
            if self._start_after is not None:
                return self._start_after
            if deleted := self._outbox.deleted():
                raise IllegalStateError(
                    f"{self._name}: the group has no position, but rows before {deleted + 1} were sent, deleted; "
                    "find the last one sent in its topic, and pass it as start_after"
                )
            return 0
        used, _, last_id = (committed.metadata or "used before").partition(" ")
        if used != identity:
            raise IllegalStateError(
                f"{self._name}: expected the database {used}, found {identity}; "
                "a relay for another database needs another name"
            )
        last, left = self._outbox.last(), self._outbox.last_up_to(committed.offset)
        if last < committed.offset or (left and last_id and left != (committed.offset, last_id)):
            raise IllegalStateError(
                f"{self._name}: rows up to {committed.offset} were sent, the last one with the id {last_id}, but "
                f"the database has had {last} and has {left} there: it was restored from an older backup, and new rows "
                "would be taken for sent. Give the rows other numbers while no program writes: "
                f"{self._outbox.to_renumber(max(last, committed.offset))} . The rows that are still there, "
                "sent or not, are then sent with their ids"
            )
        return committed.offset


def _headers(row: OutboxRow) -> list[tuple[str, bytes]]:
    own = [("id", row.id), ("type", row.type), *row.headers.items()]
    return [(name, value.encode()) for name, value in own]
