"""The operations of a history that belong to a violation: sends, answers, reads and the final state.

A violation is a sentence; it names values in quotes, partitions, offsets, clients and transactions. The history's
entries about those are the evidence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tidelog.chaos.checkers.history import Polled, Positioned, Sent, TransactionKey
from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.chaos.laboratory.judge.timeline import FaultSpan
from tidelog.model.ids import TopicPartition

OPERATIONS_MAX: Final = 16
"""Maximum operations per violation; the earliest are shown, and how many more there are."""
NUMBERS_MAX: Final = 8
VALUE_SHOWN: Final = 40
"""Judges name a value by its first bytes, this many."""
NEAR_S: Final = 2.0
"""An operation that began this long after the end of a fault may still have been affected by it."""
_QUOTED: Final = re.compile(r"b?'(?:[^'\\]|\\.)*'|b?\"(?:[^\"\\]|\\.)*\"")
_NUMBER: Final = re.compile(r"(?<![\w.:-])\d+(?![\w:])")
_TRANSACTION: Final = re.compile(r"([\w.+-]+)'s transaction (\d+)")


class Operation(NamedTuple):
    """One operation of a client, or a finding at the end (times of ``None``)."""

    began_s: float | None
    ended_s: float | None
    who: str
    what: str
    where: str
    offset: int | None
    value: str
    outcome: str


class Evidence(NamedTuple):
    """The evidence for a violation. ``more`` operations are left out; ``faults`` were active during the shown ones."""

    violation: str
    operations: list[Operation]
    more: int
    faults: list[FaultSpan]


class Witness:
    """A history, indexed by values, offsets and transactions."""

    def __init__(self, recorded: Recorded, faults: Sequence[FaultSpan]) -> None:
        self._recorded = recorded
        self._faults = faults
        self._topics = recorded.run["topics"]
        self._by_value: dict[bytes, list[Sent]] = {}
        self._by_place: dict[tuple[TopicPartition, int], list[Sent]] = {}
        self._by_transaction: dict[TransactionKey, list[Sent]] = {}
        for sent in recorded.history.sends:
            self._by_value.setdefault(sent.value[:VALUE_SHOWN], []).append(sent)
            self._by_place.setdefault((sent.partition, sent.offset), []).append(sent)
            if sent.transaction is not None:
                self._by_transaction.setdefault(sent.transaction, []).append(sent)
        self._names = {sent.producer for sent in recorded.history.sends}
        self._names |= {step.consumer for step in recorded.history.reads}

    def of(self, violation: str) -> Evidence:
        """Return the operations that a violation mentions, in order of time."""
        words = set(re.split(r"[\s,:;()]+", violation))
        partitions = {at for at in self._partitions() if str(at) in words}
        names = self._names & words
        values = set(_values(violation))
        numbers = {int(text) for text in _NUMBER.findall(_QUOTED.sub("", violation))[:NUMBERS_MAX]}
        places = {(at, number) for at in partitions for number in numbers}
        sends = [sent for value in values for sent in self._by_value.get(value, ())]
        sends += [sent for index in places for sent in self._by_place.get(index, ())]
        transactions = {TransactionKey(name, int(number)) for name, number in _TRANSACTION.findall(violation)}
        transactions |= {sent.transaction for sent in sends if sent.transaction is not None}
        if not sends:
            sends = [sent for key in sorted(transactions) for sent in self._by_transaction.get(key, ())]
        found = {_sent(sent) for sent in sends}
        found |= set(self._transactions(transactions))
        found |= set(_once(self._reads(values, places, names)))
        found |= set(self._final(values, places))
        ordered = sorted(found, key=_order)
        kept = ordered[:OPERATIONS_MAX]
        return Evidence(violation, kept, len(ordered) - len(kept), self._met(kept))

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic, count in self._topics.items() for number in range(count)]

    def _transactions(self, keys: set[TransactionKey]) -> Iterator[Operation]:
        for each in self._recorded.history.transactions:
            if each.key in keys:
                what = f"transaction {each.key.number} of {each.transactional_id}"
                yield Operation(each.began_s, each.ended_s, each.key.producer, what, "", None, "", each.outcome.value)

    def _reads(
        self, values: set[bytes], places: set[tuple[TopicPartition, int]], names: set[str]
    ) -> Iterator[Operation]:
        """Yield only the reads of the named clients, if any of them reads."""
        steps = self._recorded.history.reads
        readers = names & {step.consumer for step in steps}
        for step in steps:
            if readers and step.consumer not in readers:
                continue
            if isinstance(step, Positioned):
                continue
            for offset, value in step.records:
                if value[:VALUE_SHOWN] in values or (step.partition, offset) in places:
                    yield _read(step, offset, value)

    def _final(self, values: set[bytes], places: set[tuple[TopicPartition, int]]) -> Iterator[Operation]:
        for at, records in self._recorded.final.items():
            for offset, value in records:
                if value[:VALUE_SHOWN] in values or (at, offset) in places:
                    yield Operation(None, None, "the log at the end", "holds", str(at), offset, _shown(value), "")

    def _met(self, operations: Sequence[Operation]) -> list[FaultSpan]:
        times = [(one.began_s, one.ended_s) for one in operations if one.began_s is not None]
        return [
            fault
            for fault in self._faults
            if any(
                began is not None and ended is not None and fault.begin_s <= ended and began <= fault.end_s + NEAR_S
                for began, ended in times
            )
        ]


def _once(reads: Iterable[Operation]) -> Iterator[Operation]:
    """Yield a record that one client received repeatedly only the first time, with the count."""
    times: dict[tuple[str, str, int | None, str], list[Operation]] = {}
    for one in reads:
        times.setdefault((one.who, one.where, one.offset, one.value), []).append(one)
    for every in times.values():
        first = min(every, key=_order)
        yield first if len(every) == 1 else first._replace(what=f"{first.what}, {len(every)} times")


def _order(one: Operation) -> tuple[bool, float, str, str, int, str]:
    """Sort by time; findings at the end come last."""
    offset = -1 if one.offset is None else one.offset
    return one.ended_s is None, one.ended_s or 0.0, one.who, one.where, offset, one.value


def _values(text: str) -> Iterator[bytes]:
    for quoted in _QUOTED.findall(text):
        try:
            value = ast.literal_eval(quoted)
        except (ValueError, SyntaxError):
            continue
        yield (value if isinstance(value, bytes) else str(value).encode())[:VALUE_SHOWN]


def _sent(sent: Sent) -> Operation:
    offset = sent.offset if sent.offset >= 0 else None
    what = "sends" if sent.transaction is None else f"sends (transaction {sent.transaction.number})"
    at, outcome = str(sent.partition), sent.outcome.value
    return Operation(sent.began_s, sent.ended_s, sent.producer, what, at, offset, _shown(sent.value), outcome)


def _read(polled: Polled, offset: int, value: bytes) -> Operation:
    what = "is given (read_committed)" if polled.read_committed else "is given"
    at = str(polled.partition)
    return Operation(polled.began_s, polled.ended_s, polled.consumer, what, at, offset, _shown(value), "")


def _shown(value: bytes) -> str:
    return value[:VALUE_SHOWN].decode("utf-8", "backslashreplace")
