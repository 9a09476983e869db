"""Each anomaly of a log: a small history that shows it, and one like it that does not.

A pair is the definition: what differs between the two is what the anomaly is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tidelog.chaos.checkers.anomalies.kinds import (
    ALLOWED,
    ALWAYS_ALLOWED,
    EXAMPLES_MAX,
    Anomaly,
    AnomalyKind,
    not_allowed,
)
from tidelog.chaos.checkers.anomalies.log import judge_history, violations
from tidelog.chaos.checkers.history import (
    NO_OFFSET,
    Circumstances,
    ConsumerStep,
    FinalLog,
    History,
    Loss,
    Outcome,
    Polled,
    Positioned,
    Sent,
    Transaction,
    TransactionKey,
)
from tidelog.model.ids import TopicPartition

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
T1, T2, T3 = TransactionKey("x", 1), TransactionKey("y", 1), TransactionKey("x", 2)


def send(number: int, value: str, offset: int = NO_OFFSET, outcome: Outcome = OK, **others: Any) -> Sent:
    transaction = others.get("transaction")
    others.setdefault("producer", "p" if transaction is None else transaction.producer)
    others.setdefault("partition", P)
    return Sent(number=number, value=value.encode(), offset=offset, outcome=outcome, **others)


def poll(*records: tuple[int, str], consumer: str = "c", partition: TopicPartition = P, **others: Any) -> Polled:
    return Polled(consumer, partition, [(offset, value.encode()) for offset, value in records], **others)


def committed(key: TransactionKey, outcome: Outcome = OK, ending_s: float = 0.0) -> Transaction:
    return Transaction(key, f"id of {key.producer}", outcome, ending_s=ending_s, ended_s=ending_s)


def log(*values: str, start: int = 0) -> FinalLog:
    return {P: [(offset, value.encode()) for offset, value in enumerate(values, start)]}


class Case(NamedTuple):
    sends: list[Sent]
    reads: list[ConsumerStep] = []  # noqa: RUF012  # a tuple's default that nobody changes
    final: FinalLog | None = None
    transactions: list[Transaction] = []  # noqa: RUF012
    circumstances: Circumstances = Circumstances()

    def judged(self) -> list[Anomaly]:
        return judge_history(History(self.sends, self.reads, self.transactions), self.final, self.circumstances)

    def violations(self) -> list[str]:
        return violations(History(self.sends, self.reads, self.transactions), self.final, self.circumstances)


A, B, C = send(1, "a", 0), send(2, "b", 1), send(3, "c", 2)
A_OF_1, B_OF_1 = send(1, "a", 0, transaction=T1), send(2, "b", 2, transaction=T1)
C_OF_2 = send(1, "c", 1, transaction=T2)
OTHER: dict[str, Any] = {"producer": "q"}
RC: dict[str, Any] = {"read_committed": True}
K = AnomalyKind

SHOWN: dict[str, tuple[AnomalyKind, Case, Case]] = {
    "two reads of an offset differ": (
        K.INCONSISTENT_OFFSETS,
        Case([A, send(2, "b", outcome=UNKNOWN)], [poll((0, "a")), poll((0, "b"), consumer="d")]),
        Case([A, send(2, "b", outcome=UNKNOWN)], [poll((0, "a")), poll((0, "a"), (1, "b"), consumer="d")]),
    ),
    "a read and an acknowledgement differ": (
        K.INCONSISTENT_OFFSETS,
        Case([A, send(1, "b", outcome=UNKNOWN, **OTHER)], [poll((0, "b"))]),
        Case([send(1, "a", 0, durable=False), send(1, "b", outcome=UNKNOWN, **OTHER)], [poll((0, "b"))]),
    ),
    "a value at two offsets": (
        K.DUPLICATE,
        Case([A, B], final=log("a", "b", "a")),
        Case([A, B, send(3, "a2", 2)], final=log("a", "b", "a2")),
    ),
    "a value of unknown outcome at two offsets": (
        K.DUPLICATE,
        Case([send(1, "a", outcome=UNKNOWN)], final=log("a", "a")),
        Case([send(1, "a", outcome=UNKNOWN)], final=log("a")),
    ),
    "passed over by the only reader": (
        K.LOST_WRITE,
        Case([A, B, C], [poll((0, "a"), (2, "c"))]),
        Case([A, B, C], [poll((0, "a"), (1, "b"), (2, "c")), Positioned("d", P, 2), poll((2, "c"), consumer="d")]),
    ),
    "not in the final log": (
        K.LOST_WRITE,
        Case([A, B, C], final={P: [(0, b"a"), (2, b"c")]}),
        Case([A, B, C], final=log("a", "b", "c")),
    ),
    "a committed transaction lacks a part": (
        K.LOST_WRITE,
        Case([A_OF_1, B_OF_1, send(9, "z", 4)], final={P: [(0, b"a"), (4, b"z")]}, transactions=[committed(T1)]),
        Case([A_OF_1, B_OF_1, send(9, "z", 4)], final={P: [(4, b"z")]}, transactions=[committed(T1, FAILED)]),
    ),
    "an unknown transaction of which a part was read lacks another": (
        K.LOST_WRITE,
        Case(
            [A_OF_1, B_OF_1, send(9, "z", 4)], final={P: [(0, b"a"), (4, b"z")]}, transactions=[committed(T1, UNKNOWN)]
        ),
        Case([A_OF_1, B_OF_1, send(9, "z", 4)], final={P: [(4, b"z")]}, transactions=[committed(T1, UNKNOWN)]),
    ),
    "the acknowledged end is not in the final log": (
        K.UNSEEN,
        Case([A, B, C], final=log("a", "b")),
        Case([A, B, send(3, "c", outcome=UNKNOWN)], final=log("a", "b")),
    ),
    "a failed send was read": (
        K.ABORTED_READ,
        Case([send(1, "a", outcome=FAILED)], [poll((0, "a"))]),
        Case([send(1, "a", outcome=UNKNOWN)], [poll((0, "a"))]),
    ),
    "a failed send is in the final log": (
        K.ABORTED_READ,
        Case([send(1, "a", outcome=FAILED)], final=log("a")),
        Case([send(1, "a", outcome=UNKNOWN)], final=log("a")),
    ),
    "an aborted transaction was read": (
        K.ABORTED_READ,
        Case([A_OF_1], [poll((0, "a"), **RC)], transactions=[committed(T1, FAILED)]),
        Case([A_OF_1], [poll((0, "a"), **RC)], transactions=[committed(T1, UNKNOWN)]),
    ),
    "a transaction read what it sent": (
        K.PRECOMMITTED_READ,
        Case([A_OF_1], [poll((0, "a"), transaction=T1, **RC)], transactions=[committed(T1)]),
        Case([A_OF_1], [poll((0, "a"), transaction=T3, **RC)], transactions=[committed(T1), committed(T3)]),
    ),
    "read before the commit was asked for": (
        K.PRECOMMITTED_READ,
        Case([A_OF_1], [poll((0, "a"), ended_s=1.0, **RC)], transactions=[committed(T1, ending_s=2.0)]),
        Case([A_OF_1], [poll((0, "a"), ended_s=3.0, **RC)], transactions=[committed(T1, ending_s=2.0)]),
    ),
    "writes in a circle": (
        K.WRITE_CYCLE,
        Case([A_OF_1, C_OF_2, B_OF_1], final=log("a", "c", "b"), transactions=[committed(T1), committed(T2)]),
        Case(
            [A_OF_1, send(2, "b", 1, transaction=T1), send(1, "c", 2, transaction=T2)],
            final=log("a", "b", "c"),
            transactions=[committed(T1), committed(T2)],
        ),
    ),
    "two transactions read from one another": (
        K.CIRCULAR_INFORMATION_FLOW,
        Case(
            [A_OF_1, C_OF_2],
            [poll((1, "c"), transaction=T1, **RC), poll((0, "a"), consumer="d", transaction=T2, **RC)],
            transactions=[committed(T1), committed(T2)],
        ),
        Case(
            [A_OF_1, C_OF_2],
            [poll((0, "a"), consumer="d", transaction=T2, **RC)],
            transactions=[committed(T1), committed(T2)],
        ),
    ),
    "read before it was sent": (
        K.CIRCULAR_IN_REAL_TIME,
        Case([send(1, "a", 0, began_s=2.0)], [poll((0, "a"), ended_s=1.0)]),
        Case([send(1, "a", 0, began_s=2.0)], [poll((0, "a"), ended_s=2.5)]),
    ),
    "a poll leaves out a known value": (
        K.POLL_SKIP,
        Case([A, B, C], [poll((0, "a")), poll((2, "c"))]),
        Case([A, send(2, "b", outcome=UNKNOWN), C], [poll((0, "a")), poll((2, "c"))]),
    ),
    "the first poll after a seek leaves out a known value": (
        K.POLL_SKIP,
        Case([A, B, C], [Positioned("c", P, 1), poll((2, "c"))]),
        Case([A, B, C], [Positioned("c", P, 2), poll((2, "c"))]),
    ),
    "a read_committed poll leaves out a committed value": (
        K.POLL_SKIP,
        Case([A_OF_1, B, C], [Positioned("c", P, 0), poll((1, "b"), **RC)], transactions=[committed(T1)]),
        Case([A_OF_1, B, C], [Positioned("c", P, 0), poll((1, "b"), **RC)], transactions=[committed(T1, FAILED)]),
    ),
    "a poll begins with what was had": (
        K.NONMONOTONIC_POLL,
        Case([A, B], [poll((0, "a"), (1, "b")), poll((1, "b"))]),
        Case([A, B], [poll((0, "a"), (1, "b")), Positioned("c", P, 1), poll((1, "b"))]),
    ),
    "a poll begins before the position that was sought": (
        K.NONMONOTONIC_POLL,
        Case([A, B], [Positioned("c", P, 1), poll((0, "a"))]),
        Case([A, B], [Positioned("c", P), poll((0, "a"))]),
    ),
    "one poll leaves out a known value": (
        K.INT_POLL_SKIP,
        Case([A, B, C], [poll((0, "a"), (2, "c"))]),
        Case([A, send(2, "b", outcome=UNKNOWN), C], [poll((0, "a"), (2, "c"))]),
    ),
    "the polls of one transaction leave out a known value": (
        K.INT_POLL_SKIP,
        Case([A, B, C], [poll((0, "a"), transaction=T1), poll((2, "c"), transaction=T1)]),
        Case([A, B, C], [poll((0, "a"), transaction=T1), poll((1, "b"), (2, "c"), transaction=T1)]),
    ),
    "one poll goes back": (
        K.INT_NONMONOTONIC_POLL,
        Case([A, B], [poll((1, "b"), (0, "a"))]),
        Case([A, B], [poll((0, "a"), (1, "b"))]),
    ),
    "the polls of one transaction go back": (
        K.INT_NONMONOTONIC_POLL,
        Case([A, B], [poll((0, "a"), (1, "b"), transaction=T1), poll((1, "b"), transaction=T1)]),
        Case([A, B, C], [poll((0, "a"), (1, "b"), transaction=T1), poll((2, "c"), transaction=T1)]),
    ),
    "a producer's records stand in another order": (
        K.NONMONOTONIC_SEND,
        Case([send(1, "a", 1), send(2, "b", 0)], final=log("b", "a")),
        Case([send(1, "a", 1), send(2, "b", 0, **OTHER)], final=log("b", "a")),
    ),
    "records of unknown outcome stand in another order": (
        K.NONMONOTONIC_SEND,
        Case([send(1, "a", outcome=UNKNOWN), send(2, "b", outcome=UNKNOWN)], final=log("b", "a")),
        Case([send(1, "a", outcome=UNKNOWN), send(2, "b", outcome=UNKNOWN)], final=log("b")),
    ),
    "a transaction's records stand in another order": (
        K.INT_NONMONOTONIC_SEND,
        Case(
            [send(1, "a", 1, transaction=T1), send(2, "b", 0, transaction=T1)],
            final=log("b", "a"),
            transactions=[committed(T1)],
        ),
        Case(
            [send(1, "a", 0, transaction=T1), send(2, "b", 1, transaction=T1)],
            final=log("a", "b"),
            transactions=[committed(T1)],
        ),
    ),
    "others between a producer's records": (
        K.SEND_SKIP,
        Case([A, send(1, "b", 1, **OTHER), send(2, "c", 2)], final=log("a", "b", "c")),
        Case([A, B, send(1, "c", 2, **OTHER)], final=log("a", "b", "c")),
    ),
    "others between a transaction's records": (
        K.INT_SEND_SKIP,
        Case([A_OF_1, C_OF_2, B_OF_1], final=log("a", "c", "b"), transactions=[committed(T1), committed(T2)]),
        Case([A_OF_1, send(2, "b", 1, transaction=T1)], final=log("a", "b"), transactions=[committed(T1)]),
    ),
    "acknowledged elsewhere": (
        K.MISPLACED,
        Case([send(1, "a", 1), send(2, "b", outcome=UNKNOWN)], final=log("a")),
        Case([send(1, "a", 0), send(2, "b", outcome=UNKNOWN)], final=log("a")),
    ),
    "read and then gone": (
        K.VANISHED,
        Case([A, send(2, "b", outcome=UNKNOWN)], [poll((0, "a"), (1, "b"))], log("a")),
        Case([A, send(2, "b", outcome=UNKNOWN)], [poll((0, "a"), (1, "b"))], log("a", "b")),
    ),
    "nobody sent it": (
        K.PHANTOM,
        Case([A], [poll((0, "a"), (1, "z"))]),
        Case([A, send(1, "z", outcome=UNKNOWN, **OTHER)], [poll((0, "a"), (1, "z"))]),
    ),
    "sent to another partition": (
        K.PHANTOM,
        Case([send(1, "a", 0, partition=Q)], [poll((0, "a"))]),
        Case([send(1, "a", 0, partition=Q)], [poll((0, "a"), partition=Q)]),
    ),
    "an offset without a record": (
        K.HOLE,
        Case([A, C], final={P: [(0, b"a"), (2, b"c")]}),
        Case([A, send(2, "c", 1)], final=log("a", "c")),
    ),
    "the log begins late": (
        K.HOLE,
        Case([C], final=log("c", start=2)),
        Case([C], final=log("c", start=2), circumstances=Circumstances(log_starts={P: 2})),
    ),
}

BOTH = [pytest.param(*pair, id=name) for name, pair in SHOWN.items()]


@pytest.mark.parametrize(("kind", "bad", "good"), BOTH)
def test_is_found(kind: AnomalyKind, bad: Case, good: Case) -> None:
    found = {anomaly.kind for anomaly in bad.judged()}
    assert kind in found
    assert bool(bad.violations()) is any(not anomaly.allowed for anomaly in bad.judged())


@pytest.mark.parametrize(("kind", "bad", "good"), BOTH)
def test_its_neighbour_passes(kind: AnomalyKind, bad: Case, good: Case) -> None:
    assert kind not in {anomaly.kind for anomaly in good.judged()}
    assert good.violations() == []


@pytest.mark.parametrize(("kind", "bad", "good"), BOTH)
def test_is_reported_unless_always_allowed(kind: AnomalyKind, bad: Case, good: Case) -> None:
    reported = [text for text in bad.violations() if text.startswith(f"{kind.value}: ")]
    assert bool(reported) is (kind not in ALWAYS_ALLOWED)


def test_every_kind_has_both() -> None:
    assert {kind for kind, _, _ in SHOWN.values()} == set(AnomalyKind)
    assert set(ALLOWED) == set(AnomalyKind)


LOST = Circumstances(losses=(Loss(P, 1, 5.0),))
COMPACTED = Circumstances(compacted=frozenset({P}))
RETRYING = Circumstances(without_idempotence=frozenset({"p"}))
STARTS_AT_1 = Circumstances(log_starts={P: 1})
MARKED = [committed(T1), committed(T2)]

LEGAL: dict[str, tuple[AnomalyKind, Case]] = {
    "an offset given anew after a loss": (
        K.INCONSISTENT_OFFSETS,
        Case([A, B, send(1, "c", outcome=UNKNOWN, **OTHER)], final=log("a", "c"), circumstances=LOST),
    ),
    "a retry without idempotence": (K.DUPLICATE, Case([A], final=log("a", "a"), circumstances=RETRYING)),
    "acknowledged and lost legally": (
        K.LOST_WRITE,
        Case([A, B, C], final={P: [(0, b"a"), (2, b"c")]}, circumstances=LOST),
    ),
    "lost and compacted": (K.LOST_WRITE, Case([A, B], final={P: [(1, b"b")]}, circumstances=COMPACTED)),
    "lost below log start": (K.LOST_WRITE, Case([A, B], final=log("b", start=1), circumstances=STARTS_AT_1)),
    "lost where nobody read": (K.LOST_WRITE, Case([A, B, C], [Positioned("c", P, 2), poll((2, "c"))])),
    "lost with acks=1": (
        K.LOST_WRITE,
        Case([send(1, "a", 0, durable=False), send(1, "b", 0, **OTHER)], final=log("b")),
    ),
    "unseen without a final read": (K.UNSEEN, Case([A, B], [poll((0, "a"))])),
    "aborted and read at read_uncommitted": (
        K.ABORTED_READ,
        Case([A_OF_1], [poll((0, "a"))], transactions=[committed(T1, FAILED)]),
    ),
    "precommitted at read_uncommitted": (
        K.PRECOMMITTED_READ,
        Case([A_OF_1], [poll((0, "a"), transaction=T1)], transactions=[committed(T1)]),
    ),
    "circular at read_uncommitted": (
        K.CIRCULAR_INFORMATION_FLOW,
        Case(
            [A_OF_1, C_OF_2],
            [poll((1, "c"), transaction=T1), poll((0, "a"), consumer="d", transaction=T2)],
            transactions=MARKED,
        ),
    ),
    "circular by the order of writes": (
        K.CIRCULAR_INFORMATION_FLOW,
        Case(
            [A_OF_1, C_OF_2, send(1, "d", 0, transaction=T2, partition=Q)],
            [poll((0, "d"), partition=Q, transaction=T1, **RC)],
            transactions=MARKED,
        ),
    ),
    "a skip across a rebalance": (
        K.POLL_SKIP,
        Case(
            [A, B, C],
            [poll((0, "a")), poll((2, "c"))],
            log("a", "b", "c"),
            circumstances=Circumstances(rebalanced=frozenset({"c"})),
        ),
    ),
    "back across a rebalance": (
        K.NONMONOTONIC_POLL,
        Case([A], [poll((0, "a")), poll((0, "a"))], circumstances=Circumstances(rebalanced=frozenset({"c"}))),
    ),
    "overtaken without idempotence": (
        K.NONMONOTONIC_SEND,
        Case([send(1, "a", 1), send(2, "b", 0)], final=log("b", "a"), circumstances=RETRYING),
    ),
    "read and lost legally": (
        K.VANISHED,
        Case([A, send(2, "b", outcome=UNKNOWN)], [poll((0, "a"), (1, "b"))], log("a"), circumstances=LOST),
    ),
    "read and deleted": (K.VANISHED, Case([A, B], [poll((0, "a"))], log("b", start=1), circumstances=STARTS_AT_1)),
    "markers between records": (
        K.HOLE,
        Case([A_OF_1, send(9, "z", 3)], final={P: [(0, b"a"), (3, b"z")]}, transactions=[committed(T1)]),
    ),
}


@pytest.mark.parametrize(("kind", "case"), [pytest.param(*each, id=name) for name, each in LEGAL.items()])
def test_is_legal_here(kind: AnomalyKind, case: Case) -> None:
    assert kind in {anomaly.kind for anomaly in case.judged()}
    assert case.violations() == []


def test_a_loss_excuses_only_what_was_there() -> None:
    later = send(2, "b", 1, began_s=6.0)
    found = Case([A, later, C], final={P: [(0, b"a"), (2, b"c")]}, circumstances=LOST).violations()
    assert [text.partition(":")[0] for text in found] == ["lost-write"]


def test_a_loss_excuses_nothing_below_it() -> None:
    found = Case([A, B, C], final={P: [(1, b"b"), (2, b"c")]}, circumstances=LOST).violations()
    assert {text.partition(":")[0] for text in found} == {"lost-write", "hole"}


def test_examples_are_few_and_counted() -> None:
    found = [Anomaly(AnomalyKind.HOLE, str(number)) for number in range(EXAMPLES_MAX + 3)]
    lines = not_allowed([*found, Anomaly(AnomalyKind.HOLE, "legal", "so it is")])
    assert lines == [*map(str, found[:EXAMPLES_MAX]), "hole: and 3 more"]
