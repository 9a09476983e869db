"""Moves rows of an outbox into topics, each exactly once, without writing to the database.

The position in the outbox is a committed offset of the group ``outbox.NAME``, in the same transaction as the records. A
second relay with that name has the same transactional id, and fences the first.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.cluster.backoff import Backoff
from tidelog.client.consumer.blocking import Consumer
from tidelog.client.errors import IllegalStateError, TidelogError, UnknownTopicOrPartitionError
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.outbox.sqlite import OutboxRow, SqliteOutbox
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
    """

    def __init__(
        self,
        outbox: SqliteOutbox,
        bootstrap_servers: str | Sequence[str],
        *,
        name: str,
        route: Callable[[OutboxRow], str] = event_topic,
        keep: bool = False,
        start_after: int | None = None,
        **settings: Any,
    ) -> None:
        self._outbox = outbox
        self._bootstrap = bootstrap_servers
        self._name: Final = f"outbox.{name}"
        self._at: Final = TopicPartition(self._name, 0)
        self._route = route
        self._keep = keep
        self._start_after = start_after
        self._settings = settings
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
        aborted = 0
        with (
            Consumer(
                self._bootstrap, group_id=self._name, enable_auto_commit=False, allow_auto_create_topics=False,
                **self._settings,
            ) as consumer,
            Producer(self._bootstrap, transactional_id=self._name, **self._settings) as producer,
        ):  # fmt: skip
            self._check_topic(consumer)
            producer.init_transactions()  # an older relay's transaction is over now, so the position is certain
            identity = self._outbox.identity()
            place = self._place(consumer.committed([self._at])[self._at], identity)
            while not self._stopping.is_set():
                rows = self._outbox.after(place, AT_ONCE)
                if not rows:
                    if until_empty:
                        break
                    self._outbox.wait(WAIT_S)
                    continue
                try:
                    with producer.transaction():
                        for row in rows:
                            producer.send(
                                self._route(row), row.payload, row.aggregateid.encode(), headers=_headers(row)
                            )
                        offsets = {self._at: OffsetAndMetadata(rows[-1].seq, metadata=identity)}
                        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                except TidelogError as error:
                    aborted += 1
                    self.counts.aborts += 1
                    if not error.abortable or aborted >= ABORTS_MAX:
                        raise
                    log.info("%s: a transaction was aborted; trying again: %s", self._name, error)
                    self._stopping.wait(_BACKOFF.after(aborted, self._rng) / 1_000)
                    continue
                aborted = 0
                place = rows[-1].seq
                self.counts.sent += len(rows)
                if not self._keep:
                    self._outbox.delete(place)
        return self.counts

    def _check_topic(self, consumer: Consumer) -> None:
        try:
            consumer.partitions_for(self._name, LOOK_UP_S)
        except UnknownTopicOrPartitionError:
            raise IllegalStateError(
                f"expected the topic {self._name}, which stores the position in the outbox, found none; create it: "
                f"tidelog topics create {self._name} --partitions 1"
            ) from None

    def _place(self, committed: OffsetAndMetadata | None, identity: str) -> int:
        last, first = self._outbox.last(), self._outbox.first()
        if committed is None:
            if self._start_after is not None:
                return self._start_after
            if last and first != 1:
                raise IllegalStateError(
                    f"{self._name}: the group has no position, but rows before {first or last + 1} were sent, deleted; "
                    "find the last one sent in its topic, and pass it as start_after"
                )
            return 0
        if committed.metadata != identity:
            raise IllegalStateError(
                f"{self._name}: expected the database {committed.metadata or 'used before'}, found {identity}; "
                "a relay for another database needs another name"
            )
        if last < committed.offset:
            raise IllegalStateError(
                f"{self._name}: rows up to {committed.offset} were sent, but the database has had {last} only: it was "
                "restored from an older backup. Rows that are written now would be taken for sent; raise the sequence "
                f"first: UPDATE sqlite_sequence SET seq = {committed.offset} WHERE name = 'outbox'"
            )
        return committed.offset


def _headers(row: OutboxRow) -> list[tuple[str, bytes]]:
    own = [("id", row.id), ("type", row.type), *row.headers.items()]
    return [(name, value.encode()) for name, value in own]
