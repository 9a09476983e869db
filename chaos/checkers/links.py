"""Judges of a link: the target's copy of the source, the promised positions, and the offsets that groups get there.

==============  =============================================================================================
copied          below where the target's own records begin, both logs have the same records and markers, at
                the same offsets
promised        the target's log reaches every position that the link has stored
left behind     after a drained promotion, the target has everything that was acknowledged at the source, and
                decides every transaction that is decided there in the same way
shown           readers of ``read_committed`` see nothing at the target that they do not see at the source
told            nor, at any time, anything that does not count in the end
groups          a group's offset at the target is never beyond the records that are there; the link leaves it
                alone once the topic is promoted
==============  =============================================================================================

Logs are whole, one :class:`~tidelog.chaos.checkers.transactions.LogEntry` per batch, from log start to end, all of it
committed. Producer ids differ between the clusters on purpose and are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from tidelog.chaos.checkers.history import Outcome, Polled, Sent
from tidelog.chaos.checkers.transactions import LogEntry, Logs, visible
from tidelog.model.ids import TopicPartition

Ends = Mapping[TopicPartition, int]


class Told(NamedTuple):
    """A group's offset, as the target returned it, and the furthest known end of a log there until then."""

    group: str
    at: TopicPartition
    offset: int
    furthest: int


def copied(source: Logs, target: Logs, ends: Ends) -> list[str]:
    """Judge the log below ``ends`` at the target: where its own records begin, or where its log ends."""
    found = []
    for at, end in sorted(ends.items()):
        theirs, ours = (_shown(log.get(at, ()), end) for log in (source, target))
        for number, (there, here) in enumerate(zip_longest(theirs, ours)):
            if there == here:
                continue
            # A promotion ends transactions that are open there: its markers are the first of the target's own.
            if not ours[number:] or not all(one.aborts for one in ours[number:]):
                found.append(f"{at}: expected below {end} what the source has, {there}, found {here} at the target")
            break
    return found


def promised(positions: Ends, ends: Ends) -> list[str]:
    """Judge the link's positions. ``positions``: the furthest that the link has stored or was told. ``ends``: of the
    target's logs."""
    return [
        f"{at}: the link was to have position {position}, the target's log ends at {ends.get(at, 0)}"
        for at, position in sorted(positions.items())
        if position > ends.get(at, 0)
    ]


def left_behind(sends: Iterable[Sent], source: Logs, target: Logs, ends: Ends) -> list[str]:
    """Judge a drained promotion whose own records begin at ``ends``."""
    found = [
        f"{sent.partition}: {sent.value[:40]!r} was acknowledged at offset {sent.offset} of the source, and the target "
        f"was promoted at {ends[sent.partition]} once everything was to be there"
        for sent in sends
        if sent.outcome is Outcome.OK and sent.partition in ends and sent.offset >= ends[sent.partition]
    ]
    for at, end in sorted(ends.items()):
        theirs, ours = (_seen(log.get(at, ()), end) for log in (source, target))
        if theirs != ours:
            found.append(f"{at}: readers of read_committed are shown {sorted(theirs ^ ours)[:3]} on one side only")
    return found


def shown(source: Logs, target: Logs, ends: Ends) -> list[str]:
    """Judge what readers of ``read_committed`` see at the target below ``ends``."""
    found = []
    for at, end in sorted(ends.items()):
        theirs, ours = (_seen(log.get(at, ()), end) for log in (source, target))
        if more := sorted(ours - theirs):
            found.append(f"{at}: the target shows {more[0]} to readers of read_committed, the source does not")
    return found


def told(polls: Iterable[Polled], target: Logs) -> list[str]:
    """Judge ``polls`` by readers of ``read_committed`` at the target, at any time."""
    seen = {at: set(visible(log)) for at, log in target.items()}
    return [
        f"{poll.partition}: {poll.consumer} was shown {record}, which does not count in the end"
        for poll in polls
        for record in poll.records
        if record not in seen[poll.partition]
    ][:5]


def groups(told: Iterable[Told], kept: Mapping[tuple[str, TopicPartition], int]) -> list[str]:
    """Judge the groups' offsets. ``kept``: offsets that were committed at the target after the promotion, and that
    nobody else was to change."""
    found = []
    for each in told:
        expected = kept.get((each.group, each.at))
        if each.offset > each.furthest:
            found.append(
                f"{each.group} {each.at}: told offset {each.offset}, and no log reaches beyond {each.furthest}"
            )
        elif expected is not None and each.offset != expected:
            found.append(
                f"{each.group} {each.at}: expected {expected}, committed after the promotion, found {each.offset}"
            )
    return found


class _Shown(NamedTuple):
    """A record or a marker, as both clusters must have it."""

    offset: int
    value: bytes
    transactional: bool
    committed: bool | None

    @property
    def aborts(self) -> bool:
        return self.committed is False


def _shown(log: Sequence[LogEntry], end: int) -> list[_Shown]:
    found: list[_Shown] = []
    for entry in log:
        records = entry.records if entry.committed is None else ((entry.offset, b""),)
        found += [_Shown(*record, entry.transactional, entry.committed) for record in records if record[0] < end]
    return found


def _seen(log: Sequence[LogEntry], end: int) -> set[tuple[int, bytes]]:
    return {record for record in visible(log) if record[0] < end}
