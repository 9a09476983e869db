"""Each rule of compacted partitions: replicas and readers that break it, and some like them that do not."""

from __future__ import annotations

import pytest

from tidelog.chaos.checkers.compaction import (
    CleanedReplica,
    CompactedLogJudge,
    CompactionRules,
    KeyedRecord,
    Marker,
    apart,
    sure_retention_ms,
)
from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.checkers.keyed_history import KeyedHistory, KeyedWrite, ReadRecord, Scan, final_scans
from tidelog.model.ids import NodeId, TopicPartition

P = TopicPartition("t", 0)
A, B = NodeId(1), NodeId(2)
NOW = 100_000
RULES = CompactionRules(min_lag_ms=1_000, delete_retention_ms=5_000)


def record(offset: int, key: bytes, value: bytes | None, *, age_ms: int = 50_000, epoch: int = 1) -> KeyedRecord:
    return KeyedRecord(offset, NOW - age_ms, epoch, key, value, b"m%d" % offset)


LOG = [
    record(0, b"x", b"x0"),
    record(1, b"y", b"y1"),
    record(2, b"x", b"x2"),
    record(3, b"y", None),
    record(4, b"z", b"z4"),
    record(5, b"z", b"z5"),
]


def replica(node: NodeId, records: list[KeyedRecord], *, mark: int = 6, end: int = 6, start: int = 0) -> CleanedReplica:
    batches = [(each.offset, each.offset, each.leader_epoch) for each in records]
    return CleanedReplica(node, start, mark, end, batches, records)


def without(*offsets: int) -> list[KeyedRecord]:
    return [each for each in LOG if each.offset not in offsets]


WRITTEN = [
    record(0, b"x", b"x0"),
    record(1, b"x", b"x1")._replace(producer=7),
    record(3, b"y", b"y3")._replace(producer=8),
    record(5, b"y", b"y5")._replace(producer=7),
    record(7, b"z", b"z7")._replace(producer=9),
]
COMMITTED, ABORTED, LATER = Marker(2, 7, True), Marker(4, 8, False), Marker(6, 7, False)


class TestTransactions:
    """Producer 7 commits offset 1 and aborts 5, producer 8 aborts 3, producer 9 has 7 open."""

    def replica(self, node: NodeId, *gone: int, mark: int = 8) -> CleanedReplica:
        records = [each for each in WRITTEN if each.offset not in gone]
        markers = (COMMITTED, ABORTED, LATER)
        offsets = [each.offset for each in records] + [each.offset for each in markers]
        batches = [(offset, offset, 1) for offset in sorted(offsets)]
        return CleanedReplica(node, 0, mark, 8, batches, records, markers)

    def judged(self, *gone: int, first_mark: int = 8) -> list[str]:
        judge = CompactedLogJudge(RULES)
        assert judge.observe(P, self.replica(A, mark=first_mark), NOW) == []
        return judge.observe(P, self.replica(B, *gone), NOW)

    @pytest.mark.parametrize(
        ("gone", "first_mark"),
        [
            (gone, mark)
            for gone in ((), (0,), (3,), (5,), (0, 3, 5))
            for mark in (8, 6, 4, 2)
            if mark > max(gone, default=-1)
        ],
    )
    def test_what_was_aborted_may_go_and_supersedes_nothing(self, gone: tuple[int, ...], first_mark: int) -> None:
        assert self.judged(*gone, first_mark=first_mark) == []

    @pytest.mark.parametrize(
        ("gone", "rule"),
        [((1,), "latest stays"), ((0, 1), "latest stays"), ((7,), "transactions")],
    )
    def test_what_was_committed_or_is_open_stays(self, gone: tuple[int, ...], rule: str) -> None:
        assert [text for text in self.judged(*gone) if text.startswith(f"{rule}: ")]

    def test_an_undecided_record_supersedes_nothing(self) -> None:
        judge = CompactedLogJudge(RULES)
        assert judge.observe(P, self.replica(A, mark=2), NOW) == []
        assert [
            text
            for text in judge.observe(P, self.replica(B, 0, mark=2), NOW)
            if "superseded only" in text or "latest" in text
        ]

    def test_replicas_differ_in_what_counts_alone(self) -> None:
        judge = CompactedLogJudge(RULES)
        for node, gone in ((A, ()), (B, (3, 5))):
            assert judge.observe(P, self.replica(node, *gone), NOW) == []
        held = {node: [each for each in WRITTEN if each.offset not in gone] for node, gone in ((A, ()), (B, (3, 5)))}
        assert apart(P, held) != []
        assert apart(P, {node: judge.counted(P, records) for node, records in held.items()}) == []


def judged(*replicas: CleanedReplica, now_ms: int = NOW) -> list[str]:
    judge = CompactedLogJudge(RULES)
    assert judge.observe(P, replica(A, LOG), now_ms) == []
    return [text for each in replicas for text in judge.observe(P, each, now_ms)]


@pytest.mark.parametrize(
    ("seen", "rule"),
    [
        (replica(B, [*LOG[:2], LOG[2]._replace(value=b"other"), *LOG[3:]]), "as it was"),
        (replica(B, [*LOG[:2], LOG[2]._replace(timestamp=5), *LOG[3:]]), "as it was"),
        (replica(B, [*LOG[:2], LOG[2]._replace(mark=b"?"), *LOG[3:]]), "as it was"),
        (replica(B, [LOG[0]._replace(leader_epoch=0), *LOG[1:]]), "as it was"),
        (replica(B, without(2)), "latest stays"),
        (replica(B, without(0, 2)), "latest stays"),
        (replica(B, without(3)), "tombstones"),
        (replica(B, without(5)), "latest stays"),
        (replica(B, LOG, end=7), "no holes"),
        (replica(B, [*LOG, record(7, b"x", b"x7")], end=8), "no holes"),
        (replica(B, [LOG[1], LOG[0], *LOG[2:]]), "no holes"),
        (replica(B, [LOG[0], LOG[1]._replace(leader_epoch=0), *LOG[2:]]), "no holes"),
    ],
)
def test_a_replica_that_lacks_what_it_must_have(seen: CleanedReplica, rule: str) -> None:
    assert [text for text in judged(seen) if text.startswith(f"{rule}: ")]


@pytest.mark.parametrize(
    "seen",
    [
        replica(B, LOG),
        replica(B, without(0)),
        replica(B, without(0, 1, 4)),
        replica(B, without(1, 3)),
        replica(B, without(0, 1, 2, 3, 4), start=3),
        replica(B, without(3, 4, 5), mark=3, end=3),
        replica(B, [*LOG, record(6, b"x", b"x6")], end=7),
    ],
)
def test_a_replica_that_was_cleaned(seen: CleanedReplica) -> None:
    assert judged(seen) == []


def test_what_is_gone_is_counted() -> None:
    judge = CompactedLogJudge(RULES)
    judge.observe(P, replica(A, LOG), NOW)
    assert judge.gone == 0
    judge.observe(P, replica(B, without(0, 1)), NOW)
    assert judge.gone == 2
    assert judge.committed_end(P) == 6


def test_nothing_goes_before_its_time() -> None:
    young = [LOG[0], record(1, b"x", b"new", age_ms=500)]
    judge = CompactedLogJudge(RULES)
    assert judge.observe(P, replica(A, young, mark=2, end=2), NOW) == []
    assert "min.compaction.lag.ms" in judge.observe(P, replica(B, young[1:], mark=2, end=2), NOW)[0]
    assert judge.observe(P, replica(B, young[1:], mark=2, end=2), NOW + 600) == []


def test_who_copies_a_cleaned_log_lacks_what_is_superseded_by_what_is_still_to_come() -> None:
    half = LOG[:4]
    assert judged(replica(B, half, mark=5, end=5)) == [], "z5 is still to come"
    assert [text for text in judged(replica(B, [LOG[0], *LOG[3:4]], mark=5, end=5)) if text.startswith("latest stays")]
    assert [text for text in judged(replica(B, half)) if text.startswith("latest stays")], "nothing is to come"
    young = [*LOG[:5], record(5, b"z", b"z5", age_ms=500)]
    judge = CompactedLogJudge(RULES)
    assert judge.observe(P, replica(A, young), NOW) == []
    assert judge.observe(P, replica(B, half, mark=5, end=5), NOW)[0].startswith("superseded only: ")


def test_a_tombstone_that_went_is_not_missed_when_its_key_is_written_again() -> None:
    log = [record(0, b"x", None, age_ms=5_000), record(1, b"x", b"new", age_ms=100)]
    judge = CompactedLogJudge(RULES)
    assert judge.observe(P, replica(A, log, mark=2, end=2), NOW) == []
    assert judge.observe(P, replica(B, log[1:], mark=2, end=2), NOW) == []
    younger = [record(0, b"x", None, age_ms=4_000), record(1, b"x", b"new", age_ms=100)]
    judge = CompactedLogJudge(RULES)
    assert judge.observe(P, replica(A, younger, mark=2, end=2), NOW) == []
    assert judge.observe(P, replica(B, younger[1:], mark=2, end=2), NOW) != []


def test_a_tombstone_stays_for_its_time() -> None:
    young = [record(0, b"x", b"x"), record(1, b"x", None, age_ms=4_000)]
    judge = CompactedLogJudge(RULES)
    assert judge.observe(P, replica(A, young, mark=2, end=2), NOW) == []
    gone = replica(B, [], mark=2, end=2)
    assert "delete.retention.ms" in judge.observe(P, gone, NOW)[0]
    assert judge.observe(P, gone, NOW + 1_000) == []


class TestClocks:
    """The losses that jumping clocks may cause, and those that they may not."""

    @pytest.mark.parametrize(
        ("spread_ms", "away_ms", "sure_ms"),
        [(0, 0, 5_000), (0, 9_000, 5_000), (2_000, 2_000, 3_000), (2_000, 3_000, 0), (5_000, 0, 0), (90_000, 0, 0)],
    )
    def test_how_long_a_tombstone_stays_for_sure(self, spread_ms: int, away_ms: int, sure_ms: int) -> None:
        assert sure_retention_ms(RULES._replace(away_ms=away_ms), spread_ms) == sure_ms

    def judged(self, log: list[KeyedRecord], *gone: int, spread_ms: int, away_ms: int = 0) -> list[str]:
        judge = CompactedLogJudge(RULES._replace(away_ms=away_ms))
        end = len(log)
        assert judge.observe(P, replica(A, log, mark=end, end=end), NOW, spread_ms=spread_ms) == []
        left = [each for each in log if each.offset not in gone]
        return judge.observe(P, replica(B, left, mark=end, end=end), NOW, spread_ms=spread_ms)

    def test_a_tombstone_may_go_earlier_by_as_much_as_clocks_were_apart(self) -> None:
        young = [record(0, b"x", b"x"), record(1, b"x", None, age_ms=4_000)]
        assert self.judged(young, 0, 1, spread_ms=1_000) == []
        assert "of which 4001 ms are sure" in self.judged(young, 0, 1, spread_ms=999)[0]

    def test_a_replica_may_have_missed_it_where_nothing_is_sure(self) -> None:
        assert self.judged(LOG, 3, spread_ms=1_000, away_ms=4_000) == []
        assert self.judged(LOG, 3, spread_ms=1_000, away_ms=3_999)[0].startswith("tombstones: ")

    def test_then_replicas_may_differ_in_what_was_deleted_and_in_nothing_else(self) -> None:
        for spread_ms, lasting in ((1_000, 4), (5_000, 3)):
            judge = CompactedLogJudge(RULES)
            assert judge.observe(P, replica(A, LOG), NOW, spread_ms=spread_ms) == []
            assert len(judge.lasting(P, [LOG[1], *LOG[2:3], *LOG[4:]])) == lasting

    @pytest.mark.parametrize("gone", [(2,), (0, 2), (5,)])
    def test_the_latest_value_stays_whatever_clocks_do(self, gone: tuple[int, ...]) -> None:
        assert self.judged(LOG, *gone, spread_ms=10**9)[0].startswith("latest stays: ")

    def test_what_is_too_young_by_every_clock_stays(self) -> None:
        young = [LOG[0], record(1, b"x", b"new", age_ms=999)]
        assert "min.compaction.lag.ms" in self.judged(young, 0, spread_ms=10**9)[0]


def test_what_is_not_committed_supersedes_nothing() -> None:
    judge = CompactedLogJudge(RULES)
    log = [record(0, b"x", b"old"), record(1, b"x", b"new")]
    assert judge.observe(P, replica(A, log, mark=1, end=2), NOW) == []
    found = judge.observe(P, replica(B, log[1:], mark=1, end=2), NOW)
    assert [text for text in found if text.startswith("latest stays: ")]
    judge = CompactedLogJudge(RULES)
    assert judge.observe(P, replica(A, log, mark=2, end=2), NOW) == []
    assert judge.observe(P, replica(B, log[1:], mark=1, end=2), NOW) == []


def test_replicas_that_end_alike_and_apart() -> None:
    assert apart(P, {A: LOG, B: without(0, 1, 3, 4)}) == []
    assert apart(P, {}) == []
    assert apart(P, {A: LOG, B: without(0, 1, 3)}, tombstones_equal=True) != []
    assert "differ" in apart(P, {A: LOG, B: without(5)})[0]


# --- clients --------------------------------------------------------------------------------------------


def write(offset: int, key: bytes, value: bytes | None, outcome: Outcome = Outcome.OK) -> KeyedWrite:
    told = offset if outcome is Outcome.OK else -1
    return KeyedWrite(b"m%d" % offset, P, key, value, NOW - 50_000, outcome, told)


WRITES = [write(each.offset, each.key or b"", each.value) for each in LOG]


def read(*offsets: int) -> list[ReadRecord]:
    return [ReadRecord(e.offset, e.timestamp, e.key, e.value, e.mark) for e in LOG if e.offset in offsets]


def scanned(*offsets: int, end: int = 6, seconds: float = 1.0) -> Scan:
    return Scan("c", P, read(*offsets), end, seconds)


HISTORY = KeyedHistory(WRITES, 5.0, {P: 6})


@pytest.mark.parametrize(
    "scan",
    [
        scanned(0, 1, 3, 4, 5),
        scanned(2, 3, 4),
        scanned(0, 1, 2, 4, 5),
        scanned(0, 1, end=3),
        scanned(),
        Scan("c", P, [read(0)[0]._replace(value=b"other"), *read(1, 2, 3, 4, 5)], 6),
        Scan("c", P, [read(0)[0]._replace(timestamp=1), *read(1, 2, 3, 4, 5)], 6),
        Scan("c", P, [read(0)[0]._replace(offset=7)], 8),
        Scan("c", P, [read(0)[0]._replace(mark=b"nobody's")], 6),
        Scan("c", P, [*read(2), *read(1)], 6),
    ],
)
def test_a_reader_that_ends_with_something_else(scan: Scan) -> None:
    assert len(HISTORY.judge(scan)) == 1


@pytest.mark.parametrize(
    "scan",
    [
        scanned(0, 1, 2, 3, 4, 5),
        scanned(2, 3, 5),
        scanned(2, 5),
        scanned(0, 1, 2, 4, 5, seconds=6.0),
        scanned(2, end=4),
        scanned(1, 2, end=3),
        scanned(0, end=2),
        scanned(end=1),
    ],
)
def test_a_reader_that_ends_with_the_latest(scan: Scan) -> None:
    assert HISTORY.judge(scan) == []


def test_a_write_of_unknown_outcome_may_be_there() -> None:
    tombstone = write(7, b"x", None, Outcome.UNKNOWN)
    history = KeyedHistory([*WRITES, tombstone], 5.0, {P: 8})
    assert history.judge(scanned(5, end=8)) == []
    value = write(7, b"x", b"late", Outcome.UNKNOWN)
    history = KeyedHistory([*WRITES, value], 5.0, {P: 8})
    assert history.judge(scanned(5, end=8)) != []
    assert history.judge(scanned(5, end=6)) == []
    late = ReadRecord(7, NOW - 50_000, b"x", b"late", b"m7")
    assert history.judge(Scan("c", P, [*read(5), late], 8)) == []
    failed = KeyedHistory([*WRITES, write(7, b"x", b"late", Outcome.FAILED)], 5.0, {P: 8})
    assert failed.judge(Scan("c", P, [*read(2, 5), late], 8)) != []


def test_what_is_left_at_the_end_is_a_scan() -> None:
    (scan,) = final_scans({P: read(2, 5)}, {P: 6})
    assert HISTORY.judge(scan) == []
    (scan,) = final_scans({P: read(5)}, {P: 6})
    assert HISTORY.judge(scan) != []
