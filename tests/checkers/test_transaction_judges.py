"""Each rule of transactions: a run that breaks it, and one like it that does not."""

from __future__ import annotations

from typing import Final

import pytest

from tidelog.chaos.checkers.history import Outcome, Polled, TransactionKey
from tidelog.chaos.checkers.transactions import (
    Attempt,
    Fences,
    Identified,
    LogEntry,
    StableEnds,
    StableProgress,
    all_or_none,
    all_stable,
    exactly_once,
    fenced,
    offsets_follow,
    one_decision,
    only_what_counts,
    stable,
    sum_holds,
    visible,
)
from tidelog.model.ids import TopicPartition

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


def data(offset: int, *values: bytes, producer: int = 7, epoch: int = 0, transactional: bool = True) -> LogEntry:
    return LogEntry(
        offset, producer, epoch, transactional, None, [(offset + index, value) for index, value in enumerate(values)]
    )


def marker(
    offset: int, *, committed: bool = True, producer: int = 7, epoch: int = 1, coordinator_epoch: int = 5
) -> LogEntry:
    return LogEntry(offset, producer, epoch, True, committed, (), coordinator_epoch)


def attempt(
    outcome: Outcome, *writes: tuple[TopicPartition, bytes], number: int = 1, committing_s: float = 10.0
) -> Attempt:
    return Attempt(TransactionKey("w", number), list(writes), outcome, committing_s)


class TestVisible:
    def test_committed_counts_and_aborted_does_not(self) -> None:
        log = [
            data(0, b"a", b"b"),
            data(2, b"c", producer=8),
            marker(3),
            marker(4, committed=False, producer=8),
            data(5, b"d", producer=-1, epoch=-1, transactional=False),
        ]
        assert visible(log) == [(0, b"a"), (1, b"b"), (5, b"d")]

    def test_what_is_open_holds_back_what_comes_after_it(self) -> None:
        log = [data(0, b"a"), marker(1), data(2, b"b"), data(3, b"c", producer=8), marker(4, producer=8)]
        assert visible(log) == [(0, b"a")]

    def test_a_marker_ends_its_own_producer_alone(self) -> None:
        assert visible([data(0, b"a"), data(1, b"b", producer=8), marker(2)]) == [(0, b"a")]


class TestOneDecision:
    def test_two_transactions_one_after_the_other(self) -> None:
        log = [data(0, b"a"), marker(1), data(2, b"b", epoch=1), marker(3, committed=False, epoch=2)]
        assert one_decision({P: log, Q: [data(0, b"c"), marker(1)]}) == []

    def test_a_marker_twice_is_harmless(self) -> None:
        assert one_decision({P: [data(0, b"a"), marker(1), marker(2, coordinator_epoch=6)]}) == []

    @pytest.mark.parametrize(
        ("log", "words"),
        [
            ([data(0, b"a"), marker(1), data(2, b"b"), marker(3)], "goes on under epoch 0 after its marker"),
            ([data(0, b"a"), data(1, b"b", epoch=1), data(2, b"c"), marker(3, epoch=2)], "under epoch 0 after epoch 1"),
            (
                [data(0, b"a"), marker(1), data(2, b"b", epoch=1), marker(3, epoch=2, coordinator_epoch=4)],
                "a marker of coordinator epoch 4",
            ),
            ([data(0, b"a", epoch=3), marker(1)], "under epoch 1 after epoch 3"),
            ([data(0, b"a")], "from offset 0 never ended"),
        ],
    )
    def test_what_one_log_shows(self, log: list[LogEntry], words: str) -> None:
        assert any(words in text for text in one_decision({P: log}))

    def test_a_marker_that_ends_nothing_may_come_late(self) -> None:
        assert one_decision({P: [data(0, b"a"), marker(1), marker(2, coordinator_epoch=4)]}) == []

    def test_committed_here_and_aborted_there(self) -> None:
        found = one_decision({P: [data(0, b"a"), marker(1)], Q: [data(0, b"b"), marker(1, committed=False)]})
        assert len(found) == 1
        assert "aborted there and committed in" in found[0]


class TestAllOrNone:
    BOTH = ((P, b"a"), (Q, b"b"))

    @pytest.mark.parametrize(
        ("outcome", "counts"),
        [
            (Outcome.OK, {P: [(0, b"a")], Q: [(4, b"b")]}),
            (Outcome.FAILED, {P: [], Q: []}),
            (Outcome.UNKNOWN, {P: [(0, b"a")], Q: [(4, b"b")]}),
            (Outcome.UNKNOWN, {P: []}),
        ],
    )
    def test_all_or_nothing(self, outcome: Outcome, counts: dict[TopicPartition, list[tuple[int, bytes]]]) -> None:
        assert all_or_none([attempt(outcome, *self.BOTH)], counts) == []

    @pytest.mark.parametrize(
        ("outcome", "counts", "words"),
        [
            (Outcome.OK, {P: [(0, b"a")]}, "was committed, and b'b' in t-1 do not count"),
            (Outcome.FAILED, {P: [(0, b"a")], Q: [(4, b"b")]}, "was aborted, and 2 of 2 records count"),
            (Outcome.UNKNOWN, {Q: [(0, b"b")]}, "is torn: b'a' in t-0"),
            (Outcome.OK, {P: [(0, b"a"), (1, b"a")], Q: [(4, b"b")]}, "counts 2 times"),
            (Outcome.OK, {P: [(0, b"a"), (1, b"b")]}, "counts in t-0, and was sent to t-1"),
            (Outcome.OK, {P: [(0, b"a")], Q: [(4, b"b"), (5, b"z")]}, "b'z' counts, and nobody sent it"),
        ],
    )
    def test_what_is_neither(
        self, outcome: Outcome, counts: dict[TopicPartition, list[tuple[int, bytes]]], words: str
    ) -> None:
        found = all_or_none([attempt(outcome, *self.BOTH)], counts)
        assert any(words in text for text in found), found

    def test_order_within_a_partition(self) -> None:
        twice = attempt(Outcome.OK, (P, b"a"), (P, b"b"))
        assert all_or_none([twice], {P: [(0, b"a"), (1, b"b")]}) == []
        assert "before what was sent" in all_or_none([twice], {P: [(0, b"b"), (1, b"a")]})[0]


class TestOffsets:
    FIRST: Final = Attempt(TransactionKey("w", 1), [(P, b"a"), (Q, b"b")], Outcome.OK, 1.0, "g", {P: 1, Q: 1})
    SECOND: Final = Attempt(TransactionKey("w", 2), [(P, b"c")], Outcome.UNKNOWN, 1.0, "g", {P: 2})
    WITHOUT: Final = Attempt(TransactionKey("w", 3), [(P, b"d")], Outcome.OK, 1.0)

    def judge(self, counts: dict[TopicPartition, list[tuple[int, bytes]]], p: int, q: int) -> list[str]:
        attempts = (self.SECOND, self.WITHOUT, self.FIRST)
        return offsets_follow(attempts, counts, {("g", P): p, ("g", Q): q})

    def test_the_last_that_counts(self) -> None:
        both = {P: [(0, b"a"), (4, b"c"), (6, b"d")], Q: [(0, b"b")]}
        assert self.judge(both, 2, 1) == []
        assert self.judge({P: [(0, b"a"), (6, b"d")], Q: [(0, b"b")]}, 1, 1) == []
        assert self.judge({P: [(6, b"d")]}, -1, -1) == []

    @pytest.mark.parametrize(("p", "q"), [(1, 1), (2, -1), (-1, 1)])
    def test_others(self, p: int, q: int) -> None:
        both = {P: [(0, b"a"), (4, b"c"), (6, b"d")], Q: [(0, b"b")]}
        assert len(self.judge(both, p, q)) == 1

    def test_of_what_does_not_count(self) -> None:
        assert "1 is due, by w's transaction 1" in self.judge({P: [(0, b"a")], Q: [(0, b"b")]}, 2, 1)[0]
        assert "by no transaction" in self.judge({}, 1, -1)[0]


class TestOnlyWhatCounts:
    COUNTS: Final = {P: [(0, b"a"), (3, b"b")]}
    ATTEMPTS: Final = (
        attempt(Outcome.OK, (P, b"a"), committing_s=10.0),
        attempt(Outcome.OK, (P, b"b"), committing_s=12.0),
    )

    def judge(self, *records: tuple[int, bytes], ended_s: float = 20.0, complete: bool = True) -> list[str]:
        reads = [Polled("r", P, [record], 0.0, ended_s, read_committed=True) for record in records]
        return only_what_counts(self.ATTEMPTS, reads, self.COUNTS, complete=complete)

    def test_all_of_it_in_order(self) -> None:
        assert self.judge((0, b"a"), (3, b"b")) == []
        assert self.judge((0, b"a"), complete=False) == []

    def test_too_early(self) -> None:
        assert "before its commit was asked for" in self.judge((0, b"a"), ended_s=9.0, complete=False)[0]

    def test_what_does_not_count(self) -> None:
        assert "was shown (1, b'x')" in self.judge((0, b"a"), (1, b"x"), (3, b"b"))[0]

    def test_what_is_left_out(self) -> None:
        assert "where (3, b'b') was due" in self.judge((0, b"a"))[0]
        assert "where (0, b'a') was due" in self.judge((3, b"b"), complete=False)[0]

    def test_twice(self) -> None:
        assert self.judge((0, b"a"), (0, b"a"), (3, b"b")) != []


class TestFenced:
    FIRST = Identified("w", 7, 0, {P: 0})
    SECOND = Identified("w", 7, 2, {P: 4})
    OTHER_ID = Identified("w", 9, 0, {P: 4})

    def test_what_was_there_before(self) -> None:
        log = [data(0, b"a"), marker(2, committed=False), data(4, b"b", epoch=2), marker(5, epoch=3)]
        assert fenced([self.FIRST, self.SECOND], {P: log}) == []

    def test_what_came_after(self) -> None:
        log = [data(0, b"a"), marker(2, committed=False), data(4, b"b"), marker(5, epoch=3)]
        assert "7/2 was given out when the log ended at 4" in fenced([self.FIRST, self.SECOND], {P: log})[0]

    def test_under_an_id_that_was_replaced(self) -> None:
        assert fenced([self.FIRST, self.OTHER_ID], {P: [data(3, b"a", epoch=9)]}) == []
        assert fenced([self.FIRST, self.OTHER_ID], {P: [data(4, b"a", epoch=9)]}) != []

    def test_another_producer_goes_on(self) -> None:
        assert fenced([self.FIRST, self.SECOND], {P: [data(6, b"a", producer=8)]}) == []


class TestFences:
    def test_an_identity_goes_to_one(self) -> None:
        fences = Fences()
        assert fences.given("w", 7, 0, 1.0, anew=True) == []
        assert fences.given("w", 7, 1, 2.0, anew=True) == []
        assert fences.given("v", 8, 0, 2.0, anew=True) == []
        assert fences.given("w", 7, 1, 3.0, anew=False) == []  # asked again by its owner
        assert "7/1 of w was given to another one" in fences.given("w", 7, 1, 4.0, anew=True)[0]
        fences.told("w", 7, 2)  # by the answer to an EndTxn
        assert "7/2 of w was given to another one" in fences.given("w", 7, 2, 5.0, anew=True)[0]

    @pytest.mark.parametrize(
        ("identity", "asked_s", "held"),
        [((7, 2), 9.0, True), ((7, 3), 9.0, True), ((7, 1), 1.9, True), ((7, 1), 2.0, False), ((7, 0), 9.0, False)],
    )
    def test_what_is_asked_under_an_old_epoch(self, identity: tuple[int, int], asked_s: float, held: bool) -> None:
        fences = Fences()
        fences.given("w", 7, 0, 1.0, anew=True)
        fences.given("w", 7, 2, 2.0, anew=True)
        assert (fences.taken_in("EndTxn", "w", *identity, asked_s) == []) is held
        assert fences.taken_in("EndTxn", "v", *identity, asked_s) == []

    def test_what_is_asked_under_an_id_that_was_replaced(self) -> None:
        fences = Fences()
        fences.given("w", 7, 5, 1.0, anew=True)
        fences.given("w", 9, 0, 2.0, anew=True)
        assert fences.taken_in("AddOffsetsToTxn", "w", 9, 0, 3.0) == []
        assert "9/0 was given out" in fences.taken_in("AddOffsetsToTxn", "w", 7, 8, 3.0)[0]


def test_exactly_once() -> None:
    assert exactly_once([b"a", b"b"], [b"b", b"a"]) == []
    assert exactly_once([b"a", b"a"], [b"a", b"a"]) == []
    assert "0 outputs for b'b', which is there 1 times" in exactly_once([b"a", b"b"], [b"a"])[0]
    assert "2 outputs for b'a', which is there 1 times" in exactly_once([b"a"], [b"a", b"a"])[0]
    assert "1 outputs for b'a', which is there 0 times" in exactly_once([], [b"a"])[0]


def test_the_sum() -> None:
    assert sum_holds("b1", {0: 90, 1: 110}, 200) == []
    assert "b1 found 210" in sum_holds("b1", {0: 100, 1: 110}, 200)[0]


def test_stable() -> None:
    assert stable("node 1", P, 5, 5) == []
    assert stable("node 1", P, 5, 9, open_since=5) == []
    assert "the high watermark 5" in stable("node 1", P, 6, 5)[0]
    assert "open from 4" in stable("node 1", P, 5, 9, open_since=4)[0]
    assert all_stable({P: (9, 9)}) == []
    assert "t-0 stays at 5 of 9" in all_stable({P: (5, 9), Q: (3, 3)})[0]


def test_a_leader_tells_no_older_end_than_was_stable_when_it_was_asked() -> None:
    judge = StableEnds()
    assert judge.told("node 1", P, 0, 1.0) == []
    for now_s, last_stable in ((2.0, 7), (2.5, 5), (3.0, 9)):  # the second by a replica that hears later
        judge.known(now_s, P, last_stable)
    assert judge.told("node 1", P, 9, 4.0) == []
    assert judge.told("node 1", P, 7, 3.0) == []
    assert judge.told("node 1", Q, 0, 4.0) == []
    assert "node 1 leads t-0, and says at 4.000 that it ends at 8, " in judge.told("node 1", P, 8, 4.0)[0]
    assert "stable up to 7" in judge.told("node 1", P, 5, 3.0)[0]


def test_what_is_open_holds_readers_back_for_as_long_as_it_may() -> None:
    judge = StableProgress({P.topic: 5.0})
    assert judge.observe(10.0, 0.0, {P: (3, 9)}) == []
    assert judge.observe(14.9, 0.0, {P: (3, 12)}) == []
    assert judge.observe(15.0, 0.0, {P: (4, 12)}) == []  # another one is open
    assert judge.observe(19.9, 0.0, {P: (4, 12)}) == []
    (text,) = judge.observe(20.1, 0.0, {P: (4, 12)})
    assert text.startswith(f"stable: {P} stays at 4 of 12 for 5.1 s")


@pytest.mark.parametrize(
    ("quiet_since_s", "marks", "bounds_s"),
    [
        (None, (3, 9), 5.0),  # a node is down
        (12.0, (3, 9), 5.0),  # it was, just now
        (0.0, (9, 9), 5.0),
        (0.0, (3, 9), None),
    ],
)
def test_what_may_hold_them_back_for_longer(
    quiet_since_s: float | None, marks: tuple[int, int], bounds_s: float | None
) -> None:
    judge = StableProgress({} if bounds_s is None else {P.topic: bounds_s})
    for now_s in (10.0, 12.0, 16.0):
        assert judge.observe(now_s, quiet_since_s, {P: marks}) == []


def test_trouble_begins_the_wait_anew() -> None:
    judge = StableProgress({P.topic: 5.0})
    judge.observe(10.0, 0.0, {P: (3, 9)})
    judge.observe(13.0, None, {P: (3, 9)})
    assert judge.observe(16.0, 15.0, {P: (3, 9)}) == []
    assert judge.observe(21.0, 15.0, {P: (3, 9)})
