"""A producer's queue for one partition: order, sequences and retries. Pure: no clock, no IO.

Batches are sent in order, several at a time, and each carries the sequence after the one before
(KIP-98), so that a broker recognises a duplicate and refuses a gap. What happens:

====================  ==========================================================================
event                 effect
====================  ==========================================================================
``take``              the first pending batch goes in flight, unless the queue is *recovering* or the
                      batch lies outside the *window*; without a sequence it gets the next one
success, duplicate    the batch is decided
retriable, or lost    the batch returns to its place among the pending; the queue is *recovering*:
                      nothing is taken until no batch is in flight, so order holds through retries
gap (out of order,    while an older batch is undecided: as retriable, without counting a failure.
unknown producer)     Of the oldest batch: the leader does not have what came before and has not this
                      batch either, nor any after it. The queue *needs a new epoch*; once nothing is
                      in flight and the producer has a newer identity, the pending batches are numbered
                      from 0 under it (KIP-360). Unless an older batch was given up while its fate was
                      unknown, and an attempt of this one is lost too: then copies of both may still
                      be under way, to be appended one after the other, and this one is sent again as
                      it is until it gets through or its time is over. In a transaction the batch fails:
                      the transaction is aborted, and a new epoch comes from its coordinator alone
refused for good      the batch fails. Its sequences stay a gap, which the next batch finds, as above
too large             the batch is split in two, which inherit its sequences, and waits as for retry
expired               the batch fails; in flight, it stays until its answer, which then only moves
                      the queue. Whether it was appended is unknown; if not, the next batch finds a gap
leader changed        what is in flight to the old leader counts as lost; its answers are ignored
====================  ==========================================================================

A leader that does not know a producer accepts any sequence as its first. So under a new identity only one batch is in
flight until one is known to be appended. Otherwise a leader that is not ready yet could refuse the first batch, and the
second would then stand before it (seen in the simulation).

The window is the batches from the oldest undecided one on, at most ``in_flight_max``, counting decided ones too. A
leader recognises a producer's last five batches; an undecided batch that slipped out of that memory would look like a
gap (found by the model test).

A queue without undecided batches adopts the producer's new identity, at sequence 0. A queue with undecided batches
keeps the old one, because sending them again under another could duplicate them. Source: Kafka's ``Sender``,
``RecordAccumulator`` and ``TransactionManager``.
"""

from __future__ import annotations

import enum
from collections import deque

from tidelog.client.producer.batch import ProducerBatch
from tidelog.model.errors import ErrorCode

NO_PRODUCER: tuple[int, int] = (-1, -1)


class Outcome(enum.Enum):
    """What an answer's error code means for the batch."""

    SUCCESS = enum.auto()
    RETRY = enum.auto()
    GAP = enum.auto()
    TOO_LARGE = enum.auto()
    FATAL = enum.auto()
    SPLIT = enum.auto()
    """It was too large and now waits as two batches."""


_GAPS = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)


def classify(code: ErrorCode) -> Outcome:
    """Return the meaning of a produce answer's ``code``. ``KafkaProducer`` retries the same codes."""
    if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return Outcome.SUCCESS
    if code in _GAPS:
        return Outcome.GAP
    if code is ErrorCode.MESSAGE_TOO_LARGE:
        return Outcome.TOO_LARGE
    return Outcome.RETRY if code.retriable else Outcome.FATAL


class PartitionQueue:
    """The state of one partition. ``node`` is the broker that the batches in flight were sent to."""

    __slots__ = (
        "anchored",
        "in_flight",
        "in_flight_max",
        "needs_epoch",
        "next_sequence",
        "node",
        "partition",
        "pending",
        "producer",
        "recovering",
        "retry_at_ms",
        "topic",
        "transactional",
        "unresolved",
        "window",
    )

    def __init__(self, topic: str, partition: int, in_flight_max: int, *, transactional: bool = False) -> None:
        self.topic = topic
        self.transactional = transactional
        self.partition = partition
        self.in_flight_max = in_flight_max
        self.pending: deque[ProducerBatch] = deque()
        """First batches that were sent before, in order; then new ones; the last may be open."""
        self.in_flight: list[ProducerBatch] = []
        self.window: deque[ProducerBatch] = deque()
        """Sent batches, from the oldest undecided one on."""
        self.producer = NO_PRODUCER
        self.next_sequence = 0
        self.anchored = False
        """Whether any batch is known to be appended under the current identity."""
        self.recovering = False
        self.needs_epoch = False
        self.unresolved = False
        """Whether a batch that was given up may still be appended under the current identity."""
        self.retry_at_ms = -1 << 62
        self.node = -1

    @property
    def pending_bytes(self) -> int:
        """Roughly the bytes that wait here, for choosing a partition. Any thread may ask, without the lock: the copy is
        made in one step, because iterating over a queue that another thread appends to would raise."""
        return sum(batch.memory for batch in tuple(self.pending))

    def may_take(self, now_ms: int, node: int) -> bool:
        """Return whether :meth:`take` would return something to send to ``node``."""
        return bool(
            self.pending
            and self._in_window(self.pending[0])
            and not (self.in_flight and (self.recovering or self.node != node or self._unanchored))
            and now_ms >= self.retry_at_ms
            and not self.needs_epoch
        )

    @property
    def _unanchored(self) -> bool:
        return not self.anchored and self.in_flight[0].sequence >= 0

    def _in_window(self, batch: ProducerBatch) -> bool:
        if not batch.attempt:
            return len(self.window) < self.in_flight_max
        return len(self.window) <= self.in_flight_max or self.window.index(batch) < self.in_flight_max

    def _decide(self, batch: ProducerBatch, *, appended: bool) -> None:
        """Mark ``batch`` as decided: it will not be sent again."""
        batch.decided = True
        if appended:
            self.anchored = True
            self.unresolved = False  # so is everything before it
        elif batch.failures or batch in self.in_flight:
            self.unresolved = True
        while self.window and self.window[0].decided:
            self.window.popleft()

    def take(self, now_ms: int, node: int, producer: tuple[int, int] | None) -> ProducerBatch | None:
        """Put the first pending batch in flight to ``node``; ``None`` if none may go.

        ``producer``: the idempotent producer's current id and epoch, or ``None`` without idempotence.
        """
        if self.needs_epoch and producer is not None:
            self._renumber(producer)
        if not self.may_take(now_ms, node):
            return None
        if not self.in_flight:
            self.recovering = False
            self.node = node
        batch = self.pending.popleft()
        batch.seal()
        if producer is not None and batch.sequence < 0:
            if producer != self.producer and not self.window:
                self.producer = producer
                self.next_sequence = 0
                self.anchored = self.unresolved = False
            batch.assign(self.producer, self.next_sequence)
            self.next_sequence = batch.next_sequence
        if not batch.attempt:
            self.window.append(batch)
        batch.attempt += 1
        self.in_flight.append(batch)
        return batch

    def _renumber(self, producer: tuple[int, int]) -> None:
        """Start at sequence 0 of a newer identity, once all batches of the old one are back."""
        if self.in_flight or producer == self.producer:
            return
        self.producer = producer
        self.next_sequence = 0
        for batch in self.pending:
            if batch.sequence < 0:
                break
            batch.assign(producer, self.next_sequence)
            self.next_sequence = batch.next_sequence
        self.needs_epoch = False
        self.anchored = self.unresolved = False

    def answer(self, batch: ProducerBatch, attempt: int, outcome: Outcome, retry_at_ms: int) -> Outcome | None:
        """Process the answer to one attempt; ``None`` if it no longer counts.

        After ``SUCCESS``, ``FATAL`` and (for one record) ``TOO_LARGE`` the caller must tell the user and release the
        batch; after ``RETRY``, ``GAP`` and ``SPLIT`` it must not.
        """
        if batch.attempt != attempt or batch not in self.in_flight:
            return None
        if outcome is Outcome.GAP:
            if batch.sequence < 0 or (self.transactional and self.window[0] is batch):
                outcome = Outcome.FATAL
            elif self.window[0] is batch and not (self.unresolved and batch.failures):
                self.needs_epoch = True
        if outcome is Outcome.TOO_LARGE and batch.count > 1 and not batch.finished:
            self.in_flight.remove(batch)
            at = self.window.index(batch)
            halves = batch.halves()
            self.window.remove(batch)
            for half in reversed(halves):
                self.window.insert(at, half)
            for half in halves:
                self._put_back(half, retry_at_ms=-1 << 62)
            return Outcome.SPLIT
        self.in_flight.remove(batch)
        if outcome in (Outcome.RETRY, Outcome.GAP):
            self.recovering = True
            if batch.finished:
                batch.failures += outcome is Outcome.RETRY
                self._decide(batch, appended=False)
                return Outcome.FATAL
            if outcome is Outcome.RETRY:
                batch.failures += 1
            self._put_back(batch, retry_at_ms)
        else:
            self._decide(batch, appended=outcome is Outcome.SUCCESS)
        return outcome

    def lose(self, retry_at_ms: int) -> list[ProducerBatch]:
        """Treat everything in flight as lost, with unknown outcome. Returns the batches that will not be retried,
        because their time is already up."""
        gone = []
        while self.in_flight:
            batch = self.in_flight.pop()
            batch.failures += 1
            if batch.finished:
                self._decide(batch, appended=False)
                gone.append(batch)
            else:
                self._put_back(batch, retry_at_ms)
        return gone

    def _put_back(self, batch: ProducerBatch, retry_at_ms: int) -> None:
        self.recovering = True
        self.retry_at_ms = max(self.retry_at_ms, retry_at_ms)
        back = {id(b) for b in self.pending if b.attempt} | {id(batch)}
        while self.pending and self.pending[0].attempt:
            self.pending.popleft()
        self.pending.extendleft(reversed([b for b in self.window if id(b) in back]))

    def expire(self, created_before_ms: int) -> tuple[list[ProducerBatch], list[ProducerBatch]]:
        """Find batches created before then: those to fail and forget, and those to fail while they stay in flight."""
        late_in_flight = [b for b in self.in_flight if b.created_ms < created_before_ms and not b.finished]
        late = []
        while self.pending and self.pending[0].created_ms < created_before_ms:
            batch = self.pending.popleft()
            if batch.attempt:
                self._decide(batch, appended=False)
            late.append(batch)
        return late, late_in_flight

    def drain_all(self) -> list[ProducerBatch]:
        """Forget everything, for a producer that closes or aborts a transaction; returns the forgotten batches."""
        every = [*self.in_flight, *self.pending]
        self.retry_at_ms = -1 << 62
        self.in_flight.clear()
        self.pending.clear()
        self.window.clear()
        return every
