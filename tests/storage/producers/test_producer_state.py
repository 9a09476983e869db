"""Idempotence, case by case. Cases are those of Kafka's ``ProducerStateManagerTest`` by their meaning.

The name of Kafka's case stands at each of ours that has one.
"""

from __future__ import annotations

import random

import pytest

from tests.storage.conftest import MakeBatch
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.proto.records.batches import Batch
from tidelog.storage.producers.snapshot import CorruptSnapshot, decode_snapshot, encode_snapshot
from tidelog.storage.producers.state import RUNS_KEPT, SEQUENCE_MAX, CompletedTransaction, ProducerStates, Run

P = 1
LAST = SEQUENCE_MAX


class Partition:
    """Appends batches to a log that exists only as offsets."""

    def __init__(self, states: ProducerStates | None = None) -> None:
        self.states = ProducerStates() if states is None else states
        self.offset = 0
        self.now_ms = 0

    def first_open_offset(self) -> int | None:
        return self.states.first_open_offset

    def append(self, batch: Batch, *, gap: int = 0) -> int | ErrorCode:
        """As a leader does: the offset of the batch, the first one's if it is a duplicate, or why not."""
        outcome = self.states.check([batch])
        if isinstance(outcome, Refusal):
            return outcome.code
        if outcome is not None:
            return outcome[0]
        return self.replicate(batch, gap=gap)

    def replicate(self, batch: Batch, *, gap: int = 0) -> int:
        """As a follower does: nothing is questioned."""
        self.offset += gap
        at = self.offset
        self.offset += batch.last_offset_delta + 1
        self.states.apply(
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            at,
            batch.last_offset_delta + 1,
            batch.is_transactional,
            self.now_ms,
        )
        return at

    def marker(self, epoch: int, *, abort: bool = False) -> CompletedTransaction | None:
        at = self.offset
        self.offset += 1
        return self.states.apply_marker(P, epoch, 0, at, abort=abort, now_ms=self.now_ms)


OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH

# (first: what is in the log as (epoch, sequence, count)…, then: the batch that comes, outcome)
CASES = {
    "testBasicIdMapping: the next sequence": ([(0, 0, 1)], (0, 1, 1), 1),
    "testBasicIdMapping: a gap": ([(0, 0, 1), (0, 1, 1)], (0, 5, 1), OUT_OF_ORDER),
    "testBasicIdMapping: a new epoch from 0": ([(0, 0, 1), (0, 1, 1)], (1, 0, 1), 2),
    "testBasicIdMapping: an old epoch": ([(0, 0, 1), (1, 0, 1)], (0, 1, 1), OLD_EPOCH),
    "an old epoch's duplicate": ([(0, 0, 1), (1, 0, 1)], (0, 0, 1), OLD_EPOCH),
    "a new epoch from another sequence": ([(0, 0, 1)], (1, 1, 1), OUT_OF_ORDER),
    "a new epoch going on with the sequence": ([(0, 0, 3)], (1, 3, 1), OUT_OF_ORDER),
    "an unknown producer from 0": ([], (0, 0, 1), 0),
    "testRemoveExpiredPidsOnReload: an unknown producer from elsewhere": ([], (0, 17, 1), 0),
    "testProducerSequenceWrapAround": ([(0, LAST, 1)], (0, 0, 1), 1),
    "testProducerSequenceWithWrapAroundBatchRecord": ([(0, LAST - 10, 20)], (0, 9, 1), 20),
    "testProducerSequenceInvalidWrapAround": ([(0, LAST, 1)], (0, 1, 1), OUT_OF_ORDER),
    "a duplicate of the last": ([(0, 0, 3), (0, 3, 3)], (0, 3, 3), 3),
    "a duplicate of one before": ([(0, 0, 3), (0, 3, 3)], (0, 0, 3), 0),
    "a duplicate of several at once": ([(0, 0, 3), (0, 3, 3)], (0, 0, 6), 0),
    "a duplicate that goes on": ([(0, 0, 3), (0, 3, 3)], (0, 3, 6), OUT_OF_ORDER),
    "a duplicate over the wrap": ([(0, LAST, 1), (0, 0, 3)], (0, LAST, 2), 0),
    "a sequence behind": ([(0, 5, 1)], (0, 4, 1), OUT_OF_ORDER),
}


@pytest.mark.parametrize(("before", "then", "outcome"), CASES.values(), ids=CASES)
def test_what_a_leader_does_with_a_batch(
    batch: MakeBatch, before: list[tuple[int, int, int]], then: tuple[int, int, int], outcome: int | ErrorCode
) -> None:
    partition = Partition()
    for epoch, sequence, count in before:
        partition.replicate(batch(count, producer=(P, epoch, sequence)))
    epoch, sequence, count = then
    assert partition.append(batch(count, producer=(P, epoch, sequence))) == outcome


def test_a_refused_batch_changes_nothing(batch: MakeBatch) -> None:
    """testPrepareUpdateDoesNotMutate."""
    partition = Partition()
    partition.append(batch(3, producer=(P, 0, 0)))
    before = encode_snapshot(partition.states.all())
    for epoch, sequence in ((0, 9), (1, 2), (0, 0)):
        partition.states.check([batch(3, producer=(P, epoch, sequence))])
    assert encode_snapshot(partition.states.all()) == before


def test_five_requests_in_flight_are_known_whatever_lies_between(batch: MakeBatch) -> None:
    partition = Partition()
    offsets = []
    for number in range(RUNS_KEPT + 1):
        partition.replicate(batch(1))  # another producer's, so that runs do not join
        offsets.append(partition.append(batch(2, producer=(P, 0, 2 * number))))
    for number in range(1, RUNS_KEPT + 1):
        assert partition.append(batch(2, producer=(P, 0, 2 * number))) == offsets[number]
    assert partition.append(batch(2, producer=(P, 0, 0))) == OUT_OF_ORDER  # the sixth last


def test_a_request_of_many_batches_counts_as_one(batch: MakeBatch) -> None:
    partition = Partition()
    first = [batch(2, producer=(P, 0, 2 * number)) for number in range(20)]
    for each in first:
        partition.append(each)
    partition.replicate(batch(1))
    assert [partition.append(each) for each in first] == list(range(0, 40, 2))


def test_several_batches_are_judged_one_after_the_other(batch: MakeBatch) -> None:
    states = ProducerStates()
    new = [batch(2, producer=(P, 0, 0)), batch(1), batch(2, producer=(P, 0, 2)), batch(1, producer=(2, 0, 0))]
    assert states.check(new) is None
    gap = [batch(2, producer=(P, 0, 0)), batch(2, producer=(P, 0, 3))]
    refusal = states.check(gap)
    assert isinstance(refusal, Refusal)
    assert refusal.code == OUT_OF_ORDER
    assert "expected sequence 2" in refusal.message


def test_duplicates_and_new_batches_in_one_request(batch: MakeBatch) -> None:
    partition = Partition()
    partition.append(batch(2, producer=(P, 0, 0)))
    partition.append(batch(2, producer=(P, 0, 2)))
    outcome = partition.states.check([batch(2, producer=(P, 0, 2)), batch(2, producer=(P, 0, 4))])
    assert outcome == [2, -1]


def test_fencing_and_sequence_after_a_marker(batch: MakeBatch) -> None:
    """testAppendTxnMarkerWithNoProducerState, testOutOfSequenceAfterControlRecordEpochBump."""
    partition = Partition()
    partition.marker(2)
    assert partition.append(batch(1, producer=(P, 0, 0))) == OLD_EPOCH
    assert partition.append(batch(1, producer=(P, 2, 17))) == OUT_OF_ORDER
    assert partition.append(batch(1, producer=(P, 2, 0))) == 1


def test_a_marker_of_a_later_epoch_forgets_the_batches(batch: MakeBatch) -> None:
    """testControlRecordBumpsProducerEpoch."""
    partition = Partition()
    partition.append(batch(1, producer=(P, 0, 0)))
    partition.marker(1, abort=True)
    producer = partition.states.get(P)
    assert producer is not None
    assert (producer.epoch, producer.runs, producer.last_sequence) == (1, [], -1)
    assert partition.append(batch(1, producer=(P, 1, 0))) == 2


def test_transactions_open_and_end(batch: MakeBatch) -> None:
    """testNonTransactionalAppendWithOngoingTransaction and updating of an entry's transaction."""
    partition = Partition()
    assert partition.append(batch(2, producer=(P, 0, 0), transactional=True)) == 0
    assert partition.first_open_offset() == 0
    assert partition.append(batch(1, producer=(P, 0, 2))) == ErrorCode.INVALID_TXN_STATE
    assert partition.append(batch(1, producer=(P, 0, 2), transactional=True)) == 2
    assert partition.marker(0) == CompletedTransaction(P, 0, 3, False, 4)
    assert partition.first_open_offset() is None
    assert partition.append(batch(1, producer=(P, 0, 3))) == 4
    assert partition.marker(0, abort=True) is None


def test_markers_of_older_epochs_are_refused() -> None:
    partition = Partition()
    partition.states.apply_marker(P, 3, 7, 0, abort=False, now_ms=0)
    old = partition.states.check_marker(P, 2, 8)
    assert isinstance(old, Refusal)
    assert old.code == OLD_EPOCH
    zombie = partition.states.check_marker(P, 3, 6)
    assert isinstance(zombie, Refusal)
    assert zombie.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert partition.states.check_marker(P, 3, 7) is None


def test_idle_producers_are_forgotten_unless_a_transaction_is_open(batch: MakeBatch) -> None:
    """testRemoveExpiredPidsOnReload, testProducersWithOngoingTransactionsDontExpire."""
    partition = Partition()
    partition.append(batch(1, producer=(1, 0, 0)))
    partition.append(batch(1, producer=(2, 0, 0), transactional=True))
    partition.now_ms = 50
    partition.append(batch(1, producer=(3, 0, 0)))
    assert partition.states.expire(99, 100) == 0
    assert partition.states.expire(100, 100) == 1
    assert [producer.producer_id for producer in partition.states.all()] == [2, 3]
    assert partition.append(batch(1, producer=(1, 0, 1))) == 3  # unknown again: taken as it comes


def test_old_timestamps_do_not_make_a_producer_idle(batch: MakeBatch) -> None:
    partition = Partition()
    partition.now_ms = 1_000_000
    partition.append(batch(1, producer=(P, 0, 0), timestamp=5))
    assert partition.states.expire(1_000_050, 100) == 0


def test_the_longest_unused_goes_when_there_are_too_many(batch: MakeBatch) -> None:
    partition = Partition(ProducerStates(producers_max=3))
    partition.append(batch(1, producer=(1, 0, 0), transactional=True))
    for producer in (2, 3, 2, 4):
        partition.replicate(batch(1, producer=(producer, 0, 0)))
    assert [producer.producer_id for producer in partition.states.all()] == [1, 2, 4]


def test_a_snapshot_holds_everything(batch: MakeBatch) -> None:
    """testRecoverFromSnapshot…: unlike Kafka's, all runs are there, not the last batch alone."""
    partition = Partition()
    partition.now_ms = 77
    for sequence in range(4):
        partition.append(batch(1, producer=(P, 0, sequence)), gap=1)
    partition.append(batch(3, producer=(2, 5, LAST - 1), transactional=True))
    partition.states.apply_marker(3, 1, 9, 50, abort=False, now_ms=78)
    found = decode_snapshot(encode_snapshot(partition.states.all()))
    assert found == list(partition.states.all())
    again = ProducerStates(found)
    assert again.first_open_offset == partition.states.first_open_offset == 8
    assert again.check([batch(1, producer=(P, 0, 1))]) == [3]


def test_a_snapshot_as_kafka_writes_it() -> None:
    """Built by hand from Kafka's ``ProducerSnapshot.json``, version 1: no older runs behind the entries."""
    import struct

    from crc32c import crc32c

    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 9, 2, 4, 104, 3, 1234, -1, -1)
    raw = struct.pack(">hI", 1, crc32c(body)) + body
    (producer,) = decode_snapshot(raw)
    assert (producer.producer_id, producer.epoch, producer.last_used_ms) == (9, 2, 1234)
    assert producer.runs == [Run(1, 101, 4)]
    assert producer.last_sequence == 4
    ours = encode_snapshot([producer])
    assert ours[6:][: len(body)] == body


def test_spoiled_snapshots_are_refused(batch: MakeBatch) -> None:
    """testLoadFromCorruptSnapshot, testCorrupted…."""
    partition = Partition()
    partition.append(batch(3, producer=(P, 0, 0)))
    raw = encode_snapshot(partition.states.all())
    for size in range(len(raw)):
        with pytest.raises(CorruptSnapshot, match=r"expected|early"):
            decode_snapshot(raw[:size])
    for at in range(len(raw)):
        spoiled = bytearray(raw)
        spoiled[at] ^= 0x10
        with pytest.raises(CorruptSnapshot, match="expected"):
            decode_snapshot(bytes(spoiled))


@pytest.mark.parametrize("seed", range(20))
def test_no_record_twice_and_none_out_of_order_whatever_is_sent(batch: MakeBatch, seed: int) -> None:
    """Against a list of sequences: retries and reordering of up to five requests never spoil it."""
    rng = random.Random(seed)
    partition = Partition()
    stored: list[int] = []
    at: dict[int, int] = {}
    sequence = start = LAST - 20
    pending: list[tuple[int, int]] = []
    answered: list[tuple[int, int]] = []
    for _ in range(300):
        if len(pending) < 5 and rng.random() < 0.5:
            count = rng.randint(1, 4)
            pending.append((sequence, count))
            sequence = (sequence + count) & LAST
        sent = pending + answered[-5:]
        if not sent:
            continue
        first, count = request = rng.choice(sent)
        if rng.random() < 0.3:
            partition.replicate(batch(1))
        outcome = partition.append(batch(count, producer=(P, 0, first)))
        records = [(first + n) & LAST for n in range(count)]
        if isinstance(outcome, ErrorCode):
            assert outcome == OUT_OF_ORDER
            assert request in pending[1:]
        elif request in answered:
            assert [at[each] for each in records] == list(range(outcome, outcome + count))
        else:
            stored += records
            at.update(zip(records, range(outcome, outcome + count), strict=True))
            pending.remove(request)
            answered.append(request)
    assert stored == [(start + n) & LAST for n in range(len(stored))]
    assert len(stored) > 50


# --- The earliest sequence that has waited (KIP-890) ------------------------------------------------------


def test_of_an_unknown_producer_the_earliest_that_waited_comes_first(batch: MakeBatch) -> None:
    """``VerificationStateEntryTest`` and ``testLastSequence``: the lowest one seen, until something is appended."""
    partition = Partition()
    for sequence in (7, 5, 9):
        partition.states.waits(batch(1, producer=(P, 0, sequence)), 0)
    assert partition.append(batch(1, producer=(P, 0, 7))) is OUT_OF_ORDER
    assert partition.append(batch(1, producer=(P + 1, 0, 7))) == 0
    assert partition.append(batch(1, producer=(P, 0, 5))) == 1
    assert partition.append(batch(1, producer=(P, 0, 6))) == 2
    partition.states.waits(batch(1, producer=(P, 0, 1)), 0)
    assert partition.append(batch(1, producer=(P, 0, 7))) == 3, "of a known producer nothing is kept"


def test_an_earlier_one_than_what_waited_may_come(batch: MakeBatch) -> None:
    partition = Partition()
    partition.states.waits(batch(1, producer=(P, 0, 5)), 0)
    assert partition.append(batch(1, producer=(P, 0, 3))) == 0


def test_sequences_that_begin_anew_are_later(batch: MakeBatch) -> None:
    partition = Partition()
    partition.states.waits(batch(1, producer=(P, 0, 0)), 0)
    partition.states.waits(batch(1, producer=(P, 0, LAST)), 0)
    assert partition.append(batch(1, producer=(P, 0, 0))) is OUT_OF_ORDER
    assert partition.append(batch(1, producer=(P, 0, LAST))) == 0
    assert partition.append(batch(1, producer=(P, 0, 0))) == 1


def test_what_waited_under_another_epoch_counts_no_more(batch: MakeBatch) -> None:
    partition = Partition()
    partition.states.waits(batch(1, producer=(P, 1, 5)), 0)
    partition.states.waits(batch(1, producer=(P, 0, 2)), 0)
    assert partition.append(batch(1, producer=(P, 1, 6))) is OUT_OF_ORDER
    partition.states.waits(batch(1, producer=(P, 2, 8)), 0)
    assert partition.append(batch(1, producer=(P, 2, 8))) == 0


def test_a_marker_ends_the_wait(batch: MakeBatch) -> None:
    partition = Partition()
    partition.states.waits(batch(1, producer=(P, 0, 5)), 0)
    partition.marker(1)
    assert partition.append(batch(1, producer=(P, 1, 0))) == 1


def test_what_waited_expires_and_is_bounded_like_producers(batch: MakeBatch) -> None:
    partition = Partition(ProducerStates(producers_max=2))
    for producer_id, now_ms in ((1, 0), (2, 10), (3, 20)):
        partition.states.waits(batch(1, producer=(producer_id, 0, 5)), now_ms)
    assert [partition.append(batch(1, producer=(each, 0, 6))) for each in (1, 2, 3)] == [0, OUT_OF_ORDER, OUT_OF_ORDER]
    partition.states.expire(110, 100)
    assert partition.append(batch(1, producer=(3, 0, 6))) is OUT_OF_ORDER
    assert partition.append(batch(1, producer=(2, 0, 6))) == 1
    partition.states.expire(120, 100)
    assert partition.append(batch(1, producer=(3, 0, 6))) == 2
