"""Histories of a log that is obviously right are passed; one change to such a history is caught."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.chaos.checkers.anomalies.log import violations
from tidelog.chaos.checkers.history import (
    NO_OFFSET,
    History,
    Outcome,
    Polled,
    Positioned,
    Sent,
    Transaction,
    TransactionKey,
)
from tidelog.model.ids import TopicPartition

PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1))
STEPS = 120
EXAMPLES = settings(max_examples=60, deadline=None)
Final = dict[TopicPartition, list[tuple[int, bytes]]]


@dataclass(slots=True)
class ToyProducer:
    """Sends in order; what is asked of the log happens at once or never."""

    name: str
    transactional: bool
    sent: int = 0
    transactions: int = 0
    open: TransactionKey | None = None
    began_s: float = 0.0
    touched: dict[TopicPartition, None] = field(default_factory=dict)


class ToyCluster:
    """Logs that are lists: one clock, nothing under way. What its clients are told is the history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.history = History()
        self.now = 0.0
        self.logs: dict[TopicPartition, list[tuple[bytes | None, TransactionKey | None]]] = {
            partition: [] for partition in PARTITIONS
        }
        """Value (``None`` for a marker) and transaction of each offset."""
        self.ended: dict[TransactionKey, bool] = {}
        self.producers = [ToyProducer("plain", False), ToyProducer("other", False)]
        self.producers += [ToyProducer(name, True) for name in ("x", "y") if seed % 2]
        self.consumers = [("reads-all", False), ("reads-committed", True)]
        self.positions = {(name, partition): 0 for name, _ in self.consumers for partition in PARTITIONS}

    def run(self) -> Final:
        """Let clients act in any order, end what is open, and read everything to its end."""
        for _ in range(STEPS):
            self.now += 1.0
            if self.rng.random() < 0.6:
                self._produce(self.rng.choice(self.producers))
            else:
                self._consume(*self.rng.choice(self.consumers))
        for producer in self.producers:
            if producer.open is not None:
                self._end(producer)
        return {partition: self._visible(partition, 0, committed=True) for partition in PARTITIONS}

    def _produce(self, producer: ToyProducer) -> None:
        if producer.transactional and producer.open is None:
            producer.transactions += 1
            producer.open, producer.began_s = TransactionKey(producer.name, producer.transactions), self.now
        elif producer.open is not None and self.rng.random() < 0.3:
            self._end(producer)
            return
        partition = self.rng.choice(PARTITIONS)
        value = f"{producer.name}:{producer.sent}".encode()
        outcome = self.rng.choices([Outcome.OK, Outcome.UNKNOWN, Outcome.FAILED], [8, 2, 1])[0]
        offset = NO_OFFSET
        if outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and self.rng.random() < 0.5):
            self.logs[partition].append((value, producer.open))
            producer.touched[partition] = None
            offset = len(self.logs[partition]) - 1 if outcome is Outcome.OK else NO_OFFSET
        self.history.sends.append(
            Sent(
                producer.name, producer.sent, partition, value, outcome, offset, self.now, self.now + 0.5, producer.open
            )
        )
        producer.sent += 1

    def _end(self, producer: ToyProducer) -> None:
        assert producer.open is not None
        commits = self.rng.random() < 0.6
        outcome = Outcome.OK if commits else Outcome.FAILED
        if self.rng.random() < 0.3:
            outcome = Outcome.UNKNOWN
        self.ended[producer.open] = commits
        for partition in producer.touched:
            self.logs[partition].append((None, producer.open))
        self.history.transactions.append(
            Transaction(producer.open, producer.name, outcome, producer.began_s, self.now, self.now + 0.5)
        )
        producer.open = None
        producer.touched.clear()

    def _visible(self, partition: TopicPartition, start: int, *, committed: bool) -> list[tuple[int, bytes]]:
        found = []
        for offset, (value, transaction) in enumerate(self.logs[partition]):
            if committed and transaction is not None and transaction not in self.ended:
                break
            aborted = committed and transaction is not None and not self.ended[transaction]
            if offset >= start and value is not None and not aborted:
                found.append((offset, value))
        return found

    def _consume(self, name: str, committed: bool) -> None:
        partition = self.rng.choice(PARTITIONS)
        if self.rng.random() < 0.1:
            offset = self.rng.randint(0, len(self.logs[partition]))
            self.positions[name, partition] = offset
            self.history.reads.append(Positioned(name, partition, offset))
            return
        records = self._visible(partition, self.positions[name, partition], committed=committed)
        records = records[: self.rng.randint(1, 10)]
        if records:
            self.positions[name, partition] = records[-1][0] + 1
        self.history.reads.append(Polled(name, partition, records, self.now, self.now + 0.5, committed))


def run(seed: int) -> tuple[History, Final, random.Random]:
    cluster = ToyCluster(seed)
    return cluster.history, cluster.run(), cluster.rng


@EXAMPLES
@given(seed=st.integers(0, 2**32))
def test_right_histories_pass(seed: int) -> None:
    history, final, _ = run(seed)
    assert violations(history, final) == []
    assert violations(history) == []


def acknowledged(history: History, final: Final) -> list[Sent]:
    """Records that must be in the final log, and are: none of a transaction with an unknown outcome."""
    there = {value for records in final.values() for _, value in records}
    unknown = {each.key for each in history.transactions if each.outcome is Outcome.UNKNOWN}
    return [
        sent
        for sent in history.sends
        if sent.outcome is Outcome.OK and sent.value in there and sent.transaction not in unknown
    ]


def drop_from_final(history: History, final: Final, rng: random.Random) -> None:
    """An acknowledged record is gone."""
    sent = rng.choice(acknowledged(history, final))
    final[sent.partition].remove((sent.offset, sent.value))


def cut_final(history: History, final: Final, rng: random.Random) -> None:
    """A log ends before an acknowledged record."""
    sent = rng.choice(acknowledged(history, final))
    final[sent.partition] = [record for record in final[sent.partition] if record[0] < sent.offset]


def double(history: History, final: Final, rng: random.Random) -> None:
    """A record stands a second time at the end."""
    partition = rng.choice([partition for partition, records in final.items() if records])
    last = final[partition][-1][0]
    final[partition].append((last + 1, rng.choice(final[partition])[1]))


def exchange(history: History, final: Final, rng: random.Random) -> None:
    """Two records stand in each other's place, at least one of which was acknowledged."""
    sent = rng.choice([sent for sent in acknowledged(history, final) if len(final[sent.partition]) > 1])
    records = final[sent.partition]
    position = records.index((sent.offset, sent.value))
    other = position - 1 if position else 1
    (offset, value), (other_offset, other_value) = records[position], records[other]
    records[position], records[other] = (offset, other_value), (other_offset, value)


def forge(history: History, final: Final, rng: random.Random) -> None:
    """A record is not what anybody sent."""
    partition = rng.choice([partition for partition, records in final.items() if records])
    position = rng.randrange(len(final[partition]))
    final[partition][position] = (final[partition][position][0], b"flipped")


def call_it_failed(history: History, final: Final, rng: random.Random) -> None:
    """A producer is told that a record which is there was definitely not written."""
    sent = rng.choice(acknowledged(history, final))
    history.sends[history.sends.index(sent)] = sent._replace(outcome=Outcome.FAILED, offset=NO_OFFSET)


def acknowledge_elsewhere(history: History, final: Final, rng: random.Random) -> None:
    """A producer is told another offset."""
    sent = rng.choice(acknowledged(history, final))
    history.sends[history.sends.index(sent)] = sent._replace(offset=sent.offset + 1)


def acknowledge_what_is_not_there(history: History, final: Final, rng: random.Random) -> None:
    """A producer is told that a record is written which is not."""
    partition = rng.choice(PARTITIONS)
    end = final[partition][-1][0] + 1 if final[partition] else 0
    history.sends.append(Sent("late", 0, partition, b"late:0", Outcome.OK, rng.randint(0, end + 1)))


def skip(history: History, final: Final, rng: random.Random) -> None:
    """A poll leaves out one in its midst that everybody must be given."""
    sure = {sent.value for sent in acknowledged(history, final)}
    fitting = [
        (number, position)
        for number, step in enumerate(history.reads)
        if isinstance(step, Polled)
        for position in range(1, len(step.records) - 1)
        if step.records[position][1] in sure
    ]
    number, position = rng.choice(fitting)
    step = history.reads[number]
    assert isinstance(step, Polled)
    history.reads[number] = step._replace(records=[*step.records[:position], *step.records[position + 1 :]])


def poll_again(history: History, final: Final, rng: random.Random) -> None:
    """A consumer is given the same twice."""
    number = rng.choice([n for n, step in enumerate(history.reads) if isinstance(step, Polled) and step.records])
    history.reads.insert(number, history.reads[number])


def turn_around(history: History, final: Final, rng: random.Random) -> None:
    """A poll brings its records in another order."""
    fitting = [(n, s) for n, s in enumerate(history.reads) if isinstance(s, Polled) and len(s.records) > 1]
    number, step = rng.choice(fitting)
    history.reads[number] = step._replace(records=list(reversed(step.records)))


def read_early(history: History, final: Final, rng: random.Random) -> None:
    """A poll was over before the producer began."""
    number, step = next((n, s) for n, s in enumerate(history.reads) if isinstance(s, Polled) and s.records)
    history.reads[number] = step._replace(began_s=-1.0, ended_s=-0.5)


CAUGHT: dict[Callable[[History, Final, random.Random], None], set[str]] = {
    drop_from_final: {"lost-write", "unseen", "vanished"},
    cut_final: {"lost-write", "unseen", "vanished"},
    double: {"duplicate"},
    exchange: {"inconsistent-offsets", "misplaced"},
    forge: {"phantom"},
    call_it_failed: {"G1a"},
    acknowledge_elsewhere: {"misplaced"},
    acknowledge_what_is_not_there: {"lost-write", "unseen"},
    skip: {"int-poll-skip"},
    poll_again: {"nonmonotonic-poll"},
    turn_around: {"int-nonmonotonic-poll"},
    read_early: {"G1c-realtime"},
}


@pytest.mark.parametrize("change", CAUGHT, ids=lambda each: each.__name__)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_one_change_is_caught(change: Callable[[History, Final, random.Random], None], seed: int) -> None:
    history, final, rng = run(seed)
    change(history, final, rng)
    found = {text.partition(":")[0] for text in violations(history, final)}
    assert found & CAUGHT[change]
