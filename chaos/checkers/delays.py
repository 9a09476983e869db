"""What a delay topic owes its writers and the readers of its targets. Pure.

Each acknowledged record comes once, unless it was cancelled; one whose outcome is unknown at most once; none before it
is due by the clock of any node; none whose cancel was there in time; and those of one delay partition in the order in
which they are due, except one that came to the log when later ones had been delivered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.chaos.checkers.history import Outcome

MARGIN_MS: Final = 3_000
"""What is acknowledged so long before something is due is there, and readable, by then."""


@dataclass(frozen=True, slots=True)
class DelayedSend:
    """A record for later, or a cancel of one."""

    mark: bytes
    outcome: Outcome
    ended_ms: int
    """True time, once its outcome was known."""
    cancels: bytes | None = None


class Arrival(NamedTuple):
    """A record of a target, as a reader of what is committed got it."""

    mark: bytes
    target: tuple[str, int]
    offset: int
    origin: tuple[int, int]
    """The partition and the offset that it had in the delay topic."""
    due_ms: int
    moved_ms: int
    """When it was due at last: later than ``due_ms`` if it was put off because its target was away."""
    seen_ms: int
    """True time."""

    @property
    def put_off(self) -> bool:
        return self.moved_ms != self.due_ms


def judge_delays(
    sends: Sequence[DelayedSend], arrivals: Sequence[Arrival], clocks_ahead_ms: int, clock_spread_ms: int
) -> list[str]:
    """``clocks_ahead_ms``: how far any node's clock was ever ahead of true time; ``clock_spread_ms``: how far apart
    they were. ``arrivals``: all that there are, of one reader."""
    return [
        *_once(sends, arrivals),
        *_not_early(arrivals, clocks_ahead_ms),
        *_cancelled(sends, arrivals, clock_spread_ms),
        *_in_order(sends, arrivals, clock_spread_ms),
    ]


def _once(sends: Sequence[DelayedSend], arrivals: Sequence[Arrival]) -> Iterator[str]:
    counts = Counter(arrival.mark for arrival in arrivals)
    known = {send.mark for send in sends}
    cancelled = {send.cancels for send in sends}
    for mark, count in sorted(counts.items()):
        if mark not in known:
            yield f"delay: {mark!r} was never sent, and came"
        elif count > 1:
            yield f"delay: {mark!r} came {count} times"
    for send in sends:
        if send.cancels is None and send.outcome is Outcome.OK and send.mark not in cancelled | counts.keys():
            yield f"delay: {send.mark!r} was acknowledged, and never came"
        if send.outcome is Outcome.FAILED and send.mark in counts:
            yield f"delay: {send.mark!r} was refused, and came"


def _not_early(arrivals: Sequence[Arrival], ahead_ms: int) -> Iterator[str]:
    for arrival in arrivals:
        if arrival.seen_ms + ahead_ms < arrival.moved_ms:
            early = arrival.moved_ms - arrival.seen_ms - ahead_ms
            yield f"delay: {arrival.mark!r} came {early} ms early by every node's clock"


def _cancelled(sends: Sequence[DelayedSend], arrivals: Sequence[Arrival], spread_ms: int) -> Iterator[str]:
    came = {arrival.mark: arrival for arrival in arrivals}
    for send in sends:
        if send.cancels is None or send.outcome is not Outcome.OK:
            continue
        arrival = came.get(send.cancels)
        if arrival is not None and send.ended_ms + MARGIN_MS + spread_ms < arrival.due_ms:
            yield f"delay: {send.cancels!r} came although it was cancelled {arrival.due_ms - send.ended_ms} ms before"


def _in_order(sends: Sequence[DelayedSend], arrivals: Sequence[Arrival], spread_ms: int) -> Iterator[str]:
    acknowledged: Mapping[bytes, int] = {send.mark: send.ended_ms for send in sends if send.outcome is Outcome.OK}
    lanes: dict[tuple[tuple[str, int], int], list[Arrival]] = {}
    for arrival in sorted(arrivals, key=lambda each: each.offset):
        lanes.setdefault((arrival.target, arrival.origin[0]), []).append(arrival)
    for lane in lanes.values():
        furthest: Arrival | None = None
        for arrival in lane:
            if furthest is None or _key(arrival) > _key(furthest):
                furthest = arrival
                continue
            if arrival.moved_ms == furthest.moved_ms and (arrival.put_off or furthest.put_off):
                continue  # in the order of their copies in the delay topic, which nobody is told
            there_ms = max(acknowledged.get(arrival.mark, 1 << 62), arrival.moved_ms if arrival.put_off else 0)
            if _key(arrival) < _key(furthest) and there_ms + MARGIN_MS + spread_ms < furthest.moved_ms:
                due = f"{arrival.moved_ms} and {furthest.moved_ms}"
                yield f"delay: {arrival.mark!r} came after {furthest.mark!r}; they were due at {due}"


def _key(arrival: Arrival) -> tuple[int, tuple[int, int]]:
    return arrival.moved_ms, arrival.origin
