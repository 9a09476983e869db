"""One partition's knowledge of its idempotent producers (KIP-98). Pure.

A producer numbers its records per partition. For each producer id the partition keeps the epoch, the sequence numbers
of the last appends, and the start of an open transaction:

====================================  =========================================================
a batch of producer *p*, epoch *e*    outcome
====================================  =========================================================
*p* unknown                           appended, whatever its sequence (its state may have expired,
                                      or its records were deleted)
*p* unknown, verification failed      OUT_OF_ORDER_SEQUENCE_NUMBER: that comes first
for an earlier sequence of *e*
*e* below the known epoch             INVALID_PRODUCER_EPOCH
*e* above it, sequence 0              appended; the older epoch's batches are forgotten
*e* above it, other sequence          OUT_OF_ORDER_SEQUENCE_NUMBER
same *e*, range among those kept      a duplicate: answered with its first offset, not appended
same *e*, follows the last sequence   appended (0 follows 2**31 - 1, and a marker)
same *e*, anything else               OUT_OF_ORDER_SEQUENCE_NUMBER
not transactional, transaction open   INVALID_TXN_STATE
====================================  =========================================================

====================================  =========================================================
a marker for *p*, epoch *e*           outcome
====================================  =========================================================
*e* below the known epoch             INVALID_PRODUCER_EPOCH
an older coordinator epoch            TRANSACTION_COORDINATOR_FENCED
the known epoch, transaction open     appended for the first transaction protocol, whose markers
                                      have the transaction's epoch; INVALID_PRODUCER_EPOCH for
                                      the second, whose markers have the next one: this one is late,
                                      and would end a transaction that began after its own
anything else                         appended, even if nothing is open; *e* is known from then on
====================================  =========================================================

Source: KIP-1228 for the third rule of markers, else Kafka 4's ``ProducerStateManager``, ``ProducerAppendInfo``,
``ProducerStateEntry``. Two things differ. Kafka remembers the last five *batches*; this class keeps the last
:data:`RUNS_KEPT` *runs* of batches with consecutive sequences and offsets, since our frames may carry several batches
of a partition: this covers five requests in flight, however they were split, and a batch within a run is a duplicate.
And Kafka measures a producer's idle time by its records' timestamps alone, which immediately forgets a producer of old
records; here a producer is kept for the expiration time after its last append by this replica's clock, and one found by
replaying the log counts as used then.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_OFFSET, Offset
from tidelog.proto.records.batches import Batch

RUNS_KEPT: Final = 5
SEQUENCE_MAX: Final = 0x7FFF_FFFF
RUN_RECORDS_MAX: Final = 1 << 30
"""A run is closed before its sequences could wrap around to its own."""
PRODUCERS_MAX: Final = 100_000
"""Default of ``producer.ids.max``."""

_SEQUENCES: Final = SEQUENCE_MAX + 1


class Run(NamedTuple):
    """``length`` records with consecutive sequences and offsets."""

    sequence: int
    offset: int
    length: int

    @property
    def last_sequence(self) -> int:
        return (self.sequence + self.length - 1) & SEQUENCE_MAX

    @property
    def last_offset(self) -> int:
        return self.offset + self.length - 1


class Producer:
    """One producer's state; ``runs`` oldest first; ``transaction_offset`` is -1 without an open transaction.

    ``last_used_ms``: the time of its last activity, for expiry.
    """

    __slots__ = ("coordinator_epoch", "epoch", "last_used_ms", "producer_id", "runs", "transaction_offset")

    def __init__(
        self,
        producer_id: int,
        epoch: int,
        *,
        coordinator_epoch: int = -1,
        last_used_ms: int = -1,
        transaction_offset: int = -1,
        runs: Iterable[Run] = (),
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_used_ms = last_used_ms
        self.transaction_offset = transaction_offset
        self.runs: list[Run] = list(runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Producer) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self.producer_id)

    def __repr__(self) -> str:
        return f"Producer{self._key()}"

    def _key(self) -> tuple[object, ...]:
        return (
            self.producer_id,
            self.epoch,
            self.coordinator_epoch,
            self.last_used_ms,
            self.transaction_offset,
            tuple(self.runs),
        )

    @property
    def last_sequence(self) -> int:
        """-1 if only markers are known in this epoch."""
        return self.runs[-1].last_sequence if self.runs else -1

    def find(self, sequence: int, count: int) -> Offset:
        """Return the offset of the records with these sequences in this epoch, -1 if unknown."""
        for run in reversed(self.runs):
            into = (sequence - run.sequence) % _SEQUENCES
            if into + count <= run.length:
                return Offset(run.offset + into)
        return NO_OFFSET


class CompletedTransaction(NamedTuple):
    """A transaction whose marker was appended at ``last_offset``.

    ``last_stable_offset``: the first undecided offset at that time.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int


class Waited(NamedTuple):
    """The earliest ``sequence`` under ``epoch`` that has waited for its transaction to be verified. ``seen_ms``: the
    last time that a batch did so."""

    epoch: int
    sequence: int
    seen_ms: int


class VerificationGuard:
    """Proof that nothing of this producer was appended since; compared by identity.

    ``ended_from``: markers of that epoch or a later one end the transaction that waits on the guard. In the second
    protocol a transaction's marker has the next epoch, so a marker with the waiting batches' own epoch belongs to the
    previous transaction: the producer continues while that marker is on its way.
    """

    __slots__ = ("ended_from",)

    def __init__(self, ended_from: int) -> None:
        self.ended_from = ended_from


class ProducerStates:
    """All producers of one partition, the longest unused first.

    At most ``producers_max`` are kept: beyond that, a new one replaces the longest unused one without an open
    transaction, as if that had expired.
    """

    __slots__ = ("_ended", "_guards", "_open", "_producers", "_waited", "lacking_from", "producers_max")

    def __init__(self, producers: Iterable[Producer] = (), *, producers_max: int = PRODUCERS_MAX) -> None:
        self.producers_max = producers_max
        self.lacking_from: Offset | None = None
        """The first damaged offset in the part of the log that this state comes from: the state does not cover the
        damage."""
        self._producers: dict[int, Producer] = {}
        self._open: dict[int, int] = {}
        """The first offset of each open transaction, in rising order."""
        self._ended: list[tuple[int, int]] = []
        """A heap of (first offset, marker's offset) of transactions whose marker may not be committed yet."""
        self._guards: dict[int, VerificationGuard] = {}
        self._waited: dict[int, Waited] = {}
        for producer in sorted(producers, key=lambda each: each.last_used_ms):
            self._producers[producer.producer_id] = producer
        opened = [producer for producer in self._producers.values() if producer.transaction_offset >= 0]
        for producer in sorted(opened, key=lambda each: each.transaction_offset):
            self._open[producer.producer_id] = producer.transaction_offset

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def is_open(self, producer_id: int) -> bool:
        """Return whether this producer has an open transaction here."""
        return producer_id in self._open

    def all(self) -> Sequence[Producer]:
        return tuple(self._producers.values())

    @property
    def first_open_offset(self) -> Offset | None:
        """The first offset of the oldest transaction without a marker."""
        return Offset(next(iter(self._open.values()))) if self._open else None

    def first_unstable_offset(self, high_watermark: int) -> Offset | None:
        """Return the first offset of the oldest transaction that has no marker below the high watermark.

        Markers of transactions that ended before this state was loaded count as committed. Source:
        ``ProducerStateManager.firstUnstableOffset``.
        """
        ended = self._ended
        if ended:
            while ended and ended[0][1] < high_watermark:
                heapq.heappop(ended)
            if ended:
                first = ended[0][0]
                return Offset(min(first, next(iter(self._open.values())))) if self._open else Offset(first)
        return self.first_open_offset

    def keep_undecided(self, former: ProducerStates, end_offset: int) -> None:
        """Keep uncommitted markers undecided after the log was truncated to ``end_offset`` and this state was
        reloaded."""
        known = {marker for _, marker in self._ended}
        for first, marker in former._ended:
            if marker < end_offset and marker not in known:
                heapq.heappush(self._ended, (first, marker))

    def committed(self, high_watermark: int) -> None:
        """Forget transactions that waited for this high watermark."""
        if self._ended:
            self.first_unstable_offset(high_watermark)

    # --- The guard of a transaction's first batch ----------------------------------------------------

    def guard(self, producer_id: int) -> VerificationGuard | None:
        """Return the guard that was set for a producer, if nothing has cleared it since."""
        return self._guards.get(producer_id)

    def set_guard(self, producer_id: int, ended_from: int) -> VerificationGuard:
        """Watch whether anything of this producer is appended: data, or a marker with epoch ``ended_from`` or later.

        The guard holds until then, until :meth:`clear_guard`, or until the log is truncated. Source: KIP-890,
        ``VerificationStateEntry``.
        """
        guard = self._guards[producer_id] = VerificationGuard(ended_from)
        return guard

    def clear_guard(self, producer_id: int, guard: VerificationGuard) -> None:
        """Stop watching."""
        if self._guards.get(producer_id) is guard:
            del self._guards[producer_id]

    # --- The first batch of an unknown producer ------------------------------------------------------

    def waits(self, batch: Batch, now_ms: int) -> None:
        """Note that a batch of a possibly unknown producer waits for verification. If verification fails, the batch is
        sent again, and a later one may arrive before it: so the earliest sequence is kept until something of the
        producer is appended.

        The same limits of time and number apply as for producers. Source: KIP-890,
        ``VerificationStateEntry.maybeUpdateLowestSequenceAndEpoch``.
        """
        producer_id, found = batch.producer_id, Waited(batch.producer_epoch, batch.base_sequence, now_ms)
        if producer_id in self._producers:
            return
        known = self._waited.pop(producer_id, None)
        if known is None:
            if len(self._waited) >= self.producers_max:
                del self._waited[next(iter(self._waited))]
        elif known.epoch > found.epoch or (known.epoch == found.epoch and _is_later(found.sequence, known.sequence)):
            found = known._replace(seen_ms=now_ms)
        self._waited[producer_id] = found

    # --- Judging -------------------------------------------------------------------------------------

    def check(self, batches: Sequence[Batch]) -> Refusal | list[Offset] | None:
        """Judge a client's batches, in the order in which they would be appended.

        Returns ``None`` if all must be appended; if some are duplicates, a list with each batch's first offset, -1 for
        new ones; or a refusal of them all. Changes nothing.
        """
        found: list[Offset] | None = None
        ahead: dict[int, tuple[int, int, bool]] = {}
        for number, batch in enumerate(batches):
            producer_id = batch.producer_id
            if producer_id < 0 or batch.is_control:
                continue
            epoch, sequence, count = batch.producer_epoch, batch.base_sequence, batch.last_offset_delta + 1
            known = ahead.get(producer_id)
            if known is None:
                producer = self._producers.get(producer_id)
                if producer is not None:
                    if epoch == producer.epoch:
                        offset = producer.find(sequence, count)
                        if offset >= 0:
                            if found is None:
                                found = [NO_OFFSET] * len(batches)
                            found[number] = offset
                            continue
                    known = (producer.epoch, producer.last_sequence, producer.transaction_offset >= 0)
                elif self._waited:
                    waited = self._waited.get(producer_id)
                    if waited is not None and waited.epoch == epoch and _is_later(sequence, waited.sequence):
                        return Refusal(
                            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                            f"expected sequence {waited.sequence} from producer {producer_id} (epoch {epoch}), which "
                            f"has come before and is not appended yet, found {sequence}",
                        )
            if known is not None:
                refusal = _judge(batch, *known)
                if refusal is not None:
                    return refusal
            ahead[producer_id] = (epoch, (sequence + count - 1) & SEQUENCE_MAX, batch.is_transactional)
        return found

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, bears_next_epoch: bool = False
    ) -> Refusal | None:
        """Check a transaction marker from a coordinator.

        ``bears_next_epoch``: it belongs to the second protocol, so its epoch is one above the transaction's.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        if epoch < producer.epoch:
            return _old_epoch(producer_id, epoch, producer.epoch)
        if coordinator_epoch < producer.coordinator_epoch:
            return Refusal(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"expected a marker of coordinator epoch {producer.coordinator_epoch} or later for producer "
                f"{producer_id}, found {coordinator_epoch}",
            )
        if bears_next_epoch and epoch == producer.epoch and producer.transaction_offset >= 0:
            return Refusal(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"expected a marker of epoch {epoch + 1} or later, as producer {producer_id} has a transaction open "
                f"under {epoch}, found {epoch}",
            )
        return None

    # --- What is in the log --------------------------------------------------------------------------

    def apply(
        self, producer_id: int, epoch: int, sequence: int, offset: int, count: int, transactional: bool, now_ms: int
    ) -> None:
        """Note a data batch in the log, without checks (a follower, a replay)."""
        producer = self._take(producer_id, epoch)
        if producer.epoch != epoch:
            producer.epoch = epoch
            producer.runs.clear()
        runs = producer.runs
        if sequence >= 0:
            last = runs[-1] if runs else None
            if (
                last is not None
                and last.offset + last.length == offset
                and (last.sequence + last.length) & SEQUENCE_MAX == sequence
                and last.length + count <= RUN_RECORDS_MAX
            ):
                runs[-1] = Run(last.sequence, last.offset, last.length + count)
            else:
                if len(runs) == RUNS_KEPT:
                    del runs[0]
                runs.append(Run(sequence, offset, count))
        if transactional and producer.transaction_offset < 0:
            producer.transaction_offset = offset
            self._open[producer_id] = offset
        if self._guards:
            self._guards.pop(producer_id, None)
        producer.last_used_ms = max(producer.last_used_ms, now_ms)

    def apply_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, offset: int, *, abort: bool, now_ms: int
    ) -> CompletedTransaction | None:
        """Note a marker in the log. Returns the transaction that it ended, if one was open."""
        producer = self._take(producer_id, epoch)
        if producer.epoch != epoch:
            producer.epoch = epoch
            producer.runs.clear()
        producer.coordinator_epoch = coordinator_epoch
        producer.last_used_ms = max(producer.last_used_ms, now_ms)
        guard = self._guards.get(producer_id)
        if guard is not None and epoch >= guard.ended_from:
            del self._guards[producer_id]
        first, producer.transaction_offset = producer.transaction_offset, -1
        if first < 0:
            return None
        del self._open[producer_id]
        heapq.heappush(self._ended, (first, offset))
        unstable = self.first_open_offset
        return CompletedTransaction(producer_id, first, offset, abort, offset + 1 if unstable is None else unstable)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers unused for ``expiration_ms`` that have no open transaction. Returns how many."""
        gone = []
        for producer in self._producers.values():
            if now_ms - producer.last_used_ms < expiration_ms:
                break
            if producer.transaction_offset < 0:
                gone.append(producer.producer_id)
        for producer_id in gone:
            del self._producers[producer_id]
        if self._waited:
            waited = self._waited
            self._waited = {each: found for each, found in waited.items() if now_ms - found.seen_ms < expiration_ms}
        return len(gone)

    def clear(self) -> None:
        self.lacking_from = None
        self._producers.clear()
        self._open.clear()
        self._ended.clear()
        self._guards.clear()
        self._waited.clear()

    def _take(self, producer_id: int, epoch: int) -> Producer:
        """Return the producer's state, created if necessary, and move it to the end of the order of use."""
        producer = self._producers.pop(producer_id, None)
        if producer is None:
            self._waited.pop(producer_id, None)
            producer = Producer(producer_id, epoch)
            if len(self._producers) >= self.producers_max:
                self._forget_one()
        self._producers[producer_id] = producer
        return producer

    def _forget_one(self) -> None:
        for producer_id, producer in self._producers.items():
            if producer.transaction_offset < 0:
                del self._producers[producer_id]
                return


def _judge(batch: Batch, epoch: int, last_sequence: int, transaction_open: bool) -> Refusal | None:
    """Check a batch that is not a duplicate against the state that it would follow."""
    producer_id, sequence = batch.producer_id, batch.base_sequence
    if batch.producer_epoch < epoch:
        return _old_epoch(producer_id, batch.producer_epoch, epoch)
    expected = 0 if batch.producer_epoch > epoch else (last_sequence + 1) & SEQUENCE_MAX
    if sequence != expected:
        return Refusal(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"expected sequence {expected} from producer {producer_id} (epoch {epoch}), "
            f"found {sequence} (epoch {batch.producer_epoch})",
        )
    if transaction_open and not batch.is_transactional:
        return Refusal(
            ErrorCode.INVALID_TXN_STATE,
            f"expected a transactional batch while producer {producer_id} has a transaction open, found another",
        )
    return None


def _is_later(sequence: int, other: int) -> bool:
    """Return whether a sequence comes after the other; sequences wrap around after the last one."""
    return 0 < (sequence - other) % _SEQUENCES < _SEQUENCES // 2


def _old_epoch(producer_id: int, found: int, known: int) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_PRODUCER_EPOCH, f"expected epoch {known} or later from producer {producer_id}, found {found}"
    )
