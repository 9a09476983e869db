"""Judges of transactions: their records in the logs, the records shown to readers of ``read_committed``, and fencing.

===================  ========================================================================================
one decision         a transaction has one outcome, in every partition; nothing of it comes after its marker;
                     a producer's epochs and its coordinators' epochs never fall along a log
all or none          of a committed transaction everything counts, once and in order; of an aborted one nothing;
                     of one with an unknown end, everything or nothing
only what counts     a reader of ``read_committed`` sees what counts, all of it, in order, and not before the
                     commit was requested
fenced               once InitProducerId was answered, neither a log nor a coordinator accepts anything from that
                     transactional id's earlier identities; no identity is handed out twice
offsets              a group's committed offset at the end is from the last committed transaction with its offsets
exactly once         each input has one output
the sum              the balances of a bank keep their initial sum, whenever a new teller reads them
stable               the last stable offset never passes the high watermark, nor the start of an open
                     transaction; it reaches the former when none is open any more, and while nothing is
                     disturbed it stays nowhere for longer than a transaction may be open
ends                 a leader that nobody has replaced reports to readers of ``read_committed`` no older end than
                     any replica knew to be stable when it was asked
===================  ========================================================================================

Values are unique over a run, and times are those of the world, in seconds. A judge gets whole logs as
:class:`LogEntry`, one per batch, from log start to end, all of them committed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.chaos.checkers.history import Outcome, Polled, TransactionKey
from tidelog.model.ids import TopicPartition


class LogEntry(NamedTuple):
    """A batch of a log. ``committed`` is the decision of a marker, ``None`` for data."""

    offset: int
    producer_id: int
    producer_epoch: int
    transactional: bool
    committed: bool | None = None
    records: Sequence[tuple[int, bytes]] = ()
    """Offset and value each."""
    coordinator_epoch: int = -1


Logs = Mapping[TopicPartition, Sequence[LogEntry]]
Visible = Mapping[TopicPartition, Sequence[tuple[int, bytes]]]
"""The records of each partition that count: offset and value."""


@dataclass(slots=True)
class Attempt:
    """One transaction as its producer knows it. ``OK`` is committed, ``FAILED`` aborted."""

    key: TransactionKey
    writes: list[tuple[TopicPartition, bytes]] = field(default_factory=list)
    """In the order sent."""
    outcome: Outcome = Outcome.UNKNOWN
    committing_s: float = math.inf
    """When its commit was first requested."""
    group: str = ""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The group's offsets that it commits, for partitions that it writes to as well; no two attempts commit the
    same."""


class Identified(NamedTuple):
    """An answer to InitProducerId: from then on nothing from earlier identities may be accepted."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    ends: Mapping[TopicPartition, int]
    """The ends of the logs at the time of the answer."""


def visible(log: Iterable[LogEntry]) -> list[tuple[int, bytes]]:
    """Return the records of a log that count, in the order of offsets: not those held back by a transaction that is
    open at the end, nor those behind it."""
    shown: list[tuple[int, bytes]] = []
    waiting: dict[int, list[tuple[int, bytes]]] = {}
    for entry in log:
        if entry.committed is not None:
            held = waiting.pop(entry.producer_id, [])
            if entry.committed:
                shown += held
        elif entry.transactional:
            waiting.setdefault(entry.producer_id, []).extend(entry.records)
        else:
            shown += entry.records
    first = min((held[0][0] for held in waiting.values() if held), default=math.inf)
    return sorted(record for record in shown if record[0] < first)


def one_decision(logs: Logs) -> list[str]:
    """Judge each log separately, and the markers of all of them together."""
    found: list[str] = []
    decided: dict[tuple[int, int], tuple[bool, TopicPartition]] = {}
    for at, log in sorted(logs.items()):
        epochs: dict[int, int] = {}
        ended: dict[int, int] = {}
        coordinators: dict[int, int] = {}
        open_since: dict[int, int] = {}
        for entry in log:
            producer, epoch = entry.producer_id, entry.producer_epoch
            if producer < 0:
                continue
            what = f"{at} offset {entry.offset}: producer {producer}"
            # A marker that ends nothing may come late: nobody remembers a producer forever.
            if epoch < epochs.get(producer, -1) and (entry.committed is None or producer in open_since):
                found.append(f"one decision: {what} under epoch {epoch} after epoch {epochs[producer]}")
            epochs[producer] = max(epoch, epochs.get(producer, -1))
            if entry.committed is None:
                if entry.transactional:
                    open_since.setdefault(producer, entry.offset)
                    if epoch < ended.get(producer, -1):
                        found.append(f"one decision: {what} goes on under epoch {epoch} after its marker")
                continue
            ended[producer] = max(epoch, ended.get(producer, -1))
            if entry.coordinator_epoch < coordinators.get(producer, -1) and producer in open_since:
                found.append(f"one decision: {what} has a marker of coordinator epoch {entry.coordinator_epoch}")
            coordinators[producer] = max(entry.coordinator_epoch, coordinators.get(producer, -1))
            open_since.pop(producer, None)
            first, where = decided.setdefault((producer, epoch), (entry.committed, at))
            if first != entry.committed:
                words = ("committed", "aborted")
                said, other = words[not entry.committed], words[not first]
                found.append(f"one decision: {what} epoch {epoch} is {said} there and {other} in {where}")
        found += [
            f"one decision: {at}: the transaction of producer {producer} from offset {offset} never ended"
            for producer, offset in open_since.items()
        ]
    return found


def all_or_none(attempts: Iterable[Attempt], counts: Visible) -> list[str]:
    """Judge the records that count at the end, in the partitions that only these attempts write to."""
    found: list[str] = []
    places: dict[bytes, list[tuple[TopicPartition, int]]] = {}
    for at, records in sorted(counts.items()):
        for offset, value in records:
            places.setdefault(value, []).append((at, offset))
    for attempt in attempts:
        name = _named(attempt)
        here = [(at, value, places.pop(value, [])) for at, value in attempt.writes]
        there = sum(bool(where) for _, _, where in here)
        if attempt.outcome is Outcome.FAILED and there:
            found.append(f"all or none: {name} was aborted, and {there} of {len(here)} records count")
        elif attempt.outcome is Outcome.OK and there < len(here):
            missing = [f"{value!r} in {at}" for at, value, where in here if not where]
            found.append(f"all or none: {name} was committed, and {', '.join(missing[:3])} do not count")
        elif attempt.outcome is Outcome.UNKNOWN and 0 < there < len(here):
            missing = [f"{value!r} in {at}" for at, value, where in here if not where]
            found.append(f"all or none: {name} is torn: {', '.join(missing[:3])} do not count, and others do")
        last: dict[TopicPartition, int] = {}
        for at, value, where in here:
            if len(where) > 1:
                found.append(f"all or none: {name}: {value!r} counts {len(where)} times")
            elif where and where[0][0] != at:
                found.append(f"all or none: {name}: {value!r} counts in {where[0][0]}, and was sent to {at}")
            elif where and where[0][1] <= last.get(at, -1):
                found.append(f"all or none: {name}: {value!r} counts before what was sent to {at} earlier")
            if where:
                last[at] = where[0][1]
    found += [f"all or none: {value!r} counts, and nobody sent it" for value in places]
    return found


def only_what_counts(
    attempts: Iterable[Attempt], reads: Iterable[Polled], counts: Visible, *, complete: bool
) -> list[str]:
    """Judge the records of ``read_committed`` readers that read each partition from its start.

    ``complete``: they have read up to the end.
    """
    found: list[str] = []
    asked = {value: attempt for attempt in attempts for _, value in attempt.writes}
    read: dict[tuple[str, TopicPartition], list[tuple[int, bytes]]] = {}
    for poll in reads:
        read.setdefault((poll.consumer, poll.partition), []).extend(poll.records)
        for offset, value in poll.records:
            attempt = asked.get(value)
            if attempt is not None and poll.ended_s < attempt.committing_s:
                found.append(
                    f"only what counts: {poll.consumer} was shown {value!r} of {_named(attempt)} in {poll.partition} "
                    f"at {offset} before its commit was asked for"
                )
    consumers = sorted({consumer for consumer, _ in read})
    for consumer in consumers:
        for at, records in sorted(counts.items()):
            got = read.get((consumer, at), [])
            want = list(records) if complete else list(records)[: len(got)]
            if got == want:
                continue
            index = next((n for n, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), None)
            if index is None:
                index = min(len(got), len(want))
            is_given = got[index] if index < len(got) else None
            is_due = want[index] if index < len(want) else None
            found.append(f"only what counts: {consumer} was shown {is_given} of {at} where {is_due} was due")
    return found


def fenced(identified: Iterable[Identified], logs: Logs) -> list[str]:
    """Judge the parts of the logs behind their ends at the time when a newer identity was handed out."""
    found: list[str] = []
    earlier: dict[str, list[tuple[int, int]]] = {}
    for given in identified:
        before = earlier.setdefault(given.transactional_id, [])
        identity = (given.producer_id, given.producer_epoch)
        old_ids = {producer_id for producer_id, _ in before if producer_id != given.producer_id}
        for at, log in sorted(logs.items()):
            end = given.ends.get(at)
            if end is None:
                continue
            for entry in log:
                is_old = entry.producer_id in old_ids or (
                    entry.producer_id == given.producer_id and entry.producer_epoch < given.producer_epoch
                )
                if is_old and entry.transactional and entry.committed is None and entry.offset >= end:
                    found.append(
                        f"fenced: {at} offset {entry.offset}: {given.transactional_id} under {entry.producer_id}/"
                        f"{entry.producer_epoch}, though {identity[0]}/{identity[1]} was given out when the log ended "
                        f"at {end}"
                    )
        before.append(identity)
    return found


def offsets_follow(
    attempts: Iterable[Attempt], counts: Visible, committed: Mapping[tuple[str, TopicPartition], int]
) -> list[str]:
    """Judge the offsets that are committed at the end (-1: none) for groups whose offsets one transactional id at a
    time commits: its transactions follow one another in every log."""
    places = {value: (at, offset) for at, records in counts.items() for offset, value in records}
    last: dict[tuple[str, TopicPartition], tuple[int, int, Attempt]] = {}
    for attempt in attempts:
        for at, value in attempt.writes:
            where, offset = places.get(value, (at, -1))
            key = (attempt.group, at)
            if at in attempt.offsets and where == at and offset > last.get(key, (-1, 0, attempt))[0]:
                last[key] = (offset, attempt.offsets[at], attempt)
    found = []
    for (group, at), has in sorted(committed.items()):
        _, due, of = last.get((group, at), (-1, -1, None))
        if has != due:
            by = "no transaction" if of is None else _named(of)
            found.append(f"offsets: {group} has {has} committed for {at}; {due} is due, by {by}")
    return found


class Fences:
    """Judges answers of coordinators as they arrive. Times are those of one clock."""

    def __init__(self) -> None:
        self._given: dict[str, list[tuple[int, int, float]]] = {}
        self._told: set[tuple[str, int, int]] = set()

    def told(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Record the identity in an answer to EndTxn: it is the producer's from now on."""
        self._told.add((transactional_id, producer_id, producer_epoch))

    def given(
        self, transactional_id: str, producer_id: int, producer_epoch: int, now_s: float, *, anew: bool
    ) -> list[str]:
        """Judge the answer to InitProducerId. ``anew``: to a producer that did not identify itself."""
        has_it = (transactional_id, producer_id, producer_epoch) in self._told
        self.told(transactional_id, producer_id, producer_epoch)
        self._given.setdefault(transactional_id, []).append((producer_id, producer_epoch, now_s))
        if not (anew and has_it):
            return []
        return [f"fenced: {producer_id}/{producer_epoch} of {transactional_id} was given to another one before"]

    def taken_in(
        self, what: str, transactional_id: str, producer_id: int, producer_epoch: int, asked_s: float
    ) -> list[str]:
        """Judge a request under an identity that was answered without an error; ``asked_s`` is when it arrived."""
        known = [given for given in self._given.get(transactional_id, ()) if given[2] <= asked_s]
        since = max((number for number, given in enumerate(known) if given[0] == producer_id), default=len(known))
        newer = [given for given in known if given[0] == producer_id and given[1] > producer_epoch]
        newer += known[since + 1 :]
        if not newer:
            return []
        return [
            f"fenced: {what} of {transactional_id} under {producer_id}/{producer_epoch} is answered, asked at "
            f"{asked_s:.3f}; {newer[0][0]}/{newer[0][1]} was given out at {newer[0][2]:.3f}"
        ]


def exactly_once(inputs: Iterable[bytes], outputs: Iterable[bytes]) -> list[str]:
    """Judge outputs against the inputs that they name, each as often as it occurs."""
    due, made = Counter(inputs), Counter(outputs)
    return [
        f"exactly once: {made[value]} outputs for {value!r}, which is there {due[value]} times"
        for value in {**due, **made}
        if made[value] != due[value]
    ]


def sum_holds(who: str, balances: Mapping[int, int], total: int) -> list[str]:
    """Judge the balances that a teller found."""
    found = sum(balances.values())
    if found == total:
        return []
    return [f"the sum: {who} found {found} in the bank, and {total} was put into it: {dict(sorted(balances.items()))}"]


def stable(
    node: str, at: TopicPartition, last_stable: int, high_watermark: int, open_since: int | None = None
) -> list[str]:
    """Judge a replica at any time. ``open_since``: the start of the first transaction in its log without a marker."""
    found: list[str] = []
    if last_stable > high_watermark:
        found.append(
            f"stable: on {node} the last stable offset of {at} is {last_stable}, the high watermark {high_watermark}"
        )
    if open_since is not None and last_stable > open_since:
        found.append(
            f"stable: on {node} the last stable offset of {at} is {last_stable}, though a transaction is open from "
            f"{open_since}"
        )
    return found


class StableProgress:
    """Judges last stable offsets while nothing is disturbed: they may stay at the start of a transaction for as long as
    one may be open, not longer.

    ``bounds_s``: that time by topic; topics without a bound are not judged. Times are those of the world.
    """

    def __init__(self, bounds_s: Mapping[str, float]) -> None:
        self._bounds_s = bounds_s
        self._since: dict[TopicPartition, tuple[int, float]] = {}

    def observe(
        self, now_s: float, quiet_since_s: float | None, marks: Mapping[TopicPartition, tuple[int, int]]
    ) -> list[str]:
        """Judge the current marks. ``quiet_since_s``: since when nothing is disturbed, None: something is now.
        ``marks``: last stable offset and high watermark of each partition at its leader."""
        found: list[str] = []
        for at, (last_stable, high_watermark) in sorted(marks.items()):
            bound_s = self._bounds_s.get(at.topic)
            offset, since_s = self._since.get(at, (-1, now_s))
            if bound_s is None or quiet_since_s is None or last_stable == high_watermark or last_stable != offset:
                self._since[at] = (last_stable, now_s)
                continue
            stays_s = now_s - max(since_s, quiet_since_s)
            if stays_s > bound_s:
                found.append(
                    f"stable: {at} stays at {last_stable} of {high_watermark} for {stays_s:.1f} s, though nothing is "
                    f"in the way and a transaction is open for {bound_s:g} s at most"
                )
        return found


class StableEnds:
    """Judges the ends that leaders report to readers of ``read_committed``. Times are those of the world."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, list[tuple[float, int]]] = {}

    def known(self, now_s: float, at: TopicPartition, last_stable: int) -> None:
        """Record a replica's last stable offset; every later leader knows as much."""
        known = self._known.setdefault(at, [])
        if not known or last_stable > known[-1][1]:
            known.append((now_s, last_stable))

    def told(self, node: str, at: TopicPartition, end: int, asked_s: float) -> list[str]:
        """Judge the end reported by a leader that nobody has replaced; ``asked_s`` is when it was asked."""
        due = max((offset for now_s, offset in self._known.get(at, ()) if now_s < asked_s), default=0)
        if end >= due:
            return []
        return [
            f"ends: {node} leads {at}, and says at {asked_s:.3f} that it ends at {end}, which is stable up to {due}"
        ]


def all_stable(marks: Mapping[TopicPartition, tuple[int, int]]) -> list[str]:
    """Judge last stable offset and high watermark of each partition when no transaction is open any more."""
    return [
        f"stable: {at} stays at {last_stable} of {high_watermark}, and no transaction is open"
        for at, (last_stable, high_watermark) in sorted(marks.items())
        if last_stable != high_watermark
    ]


def _named(attempt: Attempt) -> str:
    return f"{attempt.key.producer}'s transaction {attempt.key.number}"
