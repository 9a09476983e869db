"""Judges the content of the sink after a case, and what a reader saw meanwhile. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

EXAMPLES_MAX: Final = 3


class Reading(NamedTuple):
    """A record of the sink as seen by a reader of committed data; ``at``: seconds of the monotonic clock."""

    partition: int
    offset: int
    value: bytes
    at: float


def judge(
    expected: Mapping[bytes, int | None],
    final: Sequence[Reading],
    watched: Sequence[Reading],
    decided: Mapping[int, float],
) -> list[str]:
    """Return the violations.

    ``expected``: each row that must be there once, all different, with its batch (None: not known). ``final``: what a
    reader finds at the end. ``watched``: what a reader saw that was there from the start. ``decided``: when the first
    request to commit a batch was passed to the coordinator; nothing of it can be seen before.
    """
    found: list[str] = []
    counts = Counter(one.value for one in final)
    _say(found, "lost", (row for row in expected if row not in counts))
    _say(found, "twice", (row for row, count in counts.items() if count > 1 and row in expected))
    _say(found, "wrong", (row for row in counts if row not in expected))
    places = {one[:3] for one in final}
    seen = Counter(one[:3] for one in watched)
    _say(found, "seen by a reader, and not there at the end", (place for place in seen if place not in places))
    _say(found, "there at the end, and passed over by a reader", (place for place in places if place not in seen))
    _say(found, "read twice at one place", (place for place, count in seen.items() if count > 1))
    early = []
    for one in watched:
        batch = expected.get(one.value)
        if batch is not None and one.at < decided.get(batch, float("inf")):
            early.append(one.value)
    _say(found, "seen before its batch was decided", early)
    return found


def _say(found: list[str], what: str, which: Iterable[object]) -> None:
    those = sorted(map(_text, which))
    if those:
        more = ", …" if len(those) > EXAMPLES_MAX else ""
        found.append(f"{what}: {len(those)}: {', '.join(those[:EXAMPLES_MAX])}{more}")


def _text(one: object) -> str:
    if isinstance(one, tuple):
        partition, offset, value = one
        return f"{partition}@{offset} {_text(value)}"
    assert isinstance(one, bytes)
    return one[:24].decode(errors="replace").rstrip(".")
