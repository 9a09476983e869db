"""What readers with a header filter are owed. Pure.

From where it began to where it is, a reader has exactly the records that its filter wants: each one that the log still
holds there, in order and once, and none that nobody wrote or that it does not want. How brokers found them, and which
broker it was, makes no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.chaos.checkers.history import Outcome, Sent
from tidelog.model.ids import TopicPartition

TAG: Final = "tag"
"""The header by which readers choose."""
TAGGED: Final = b"t"
"""Producers whose names begin so write the header; others do not."""
STRETCHES: Final = (25, 3)
"""So many records of a producer have the same tag, one after the other: by the last digit of its name."""
TAGS: Final = (b"often", b"often", None, b"rare", b"often", b"seldom")
KEYS: Final = 12


def tag_of(value: bytes) -> bytes | None:
    """Return the tag of the record with this value, as :class:`~tidelog.chaos.workloads.appending.Appender` makes
    it."""
    name, number, _ = value.split(b":", 2)
    if not name.startswith(TAGGED):
        return None
    return TAGS[int(number) // STRETCHES[name[-1] % len(STRETCHES)] % len(TAGS)]


def key_of(value: bytes) -> bytes:
    """Return the key of the record with this value."""
    return b"k%d" % (int(value.split(b":", 2)[1]) % KEYS)


@dataclass(slots=True)
class FilteredReading:
    """What a reader got of one partition from offset ``start`` to before ``end``."""

    reader: str
    partition: TopicPartition
    wanted: Collection[bytes | None]
    start: int
    end: int
    records: list[tuple[int, bytes]] = field(default_factory=list)
    """Offset and value each, in the order received."""


def judge_filters(
    sends: Sequence[Sent],
    readings: Sequence[FilteredReading],
    final: Mapping[TopicPartition, Sequence[tuple[int, bytes]]],
    compacted: Collection[TopicPartition] = (),
) -> Iterator[str]:
    """``final``: what the logs hold in the end. In ``compacted`` partitions, a replica may have lost earlier what was
    superseded, so only the last record of each key counts."""
    sent = {(each.partition, each.value): each for each in sends}
    held = {at: _latest(records) if at in compacted else records for at, records in final.items()}
    for one in readings:
        who = f"filter: {one.reader} of {', '.join(map(str, one.wanted))} in {one.partition}"
        yield from (f"{who}: {text}" for text in _as_written(one, sent))
        got = {offset for offset, _ in one.records}
        for offset, value in held.get(one.partition, ()):
            if one.start <= offset < one.end and offset not in got and tag_of(value) in one.wanted:
                yield f"{who}: did not get {value[:20]!r} at {offset}, and read on to {one.end}"


def _latest(records: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    last = {key_of(value): (offset, value) for offset, value in records}
    return list(last.values())


def _as_written(one: FilteredReading, sent: Mapping[tuple[TopicPartition, bytes], Sent]) -> Iterator[str]:
    before = one.start - 1
    values: dict[bytes, int] = {}
    for offset, value in one.records:
        write = sent.get((one.partition, value))
        if offset <= before:
            yield f"got offset {offset} after {before}"
        elif value in values and (write is None or write.durable):
            yield f"got {value[:20]!r} at {values[value]} and again at {offset}"
        elif write is None or write.outcome is Outcome.FAILED:
            yield f"got {value[:20]!r} at {offset}, which nobody wrote"
        elif write.outcome is Outcome.OK and write.durable and write.offset != offset:
            yield f"got {value[:20]!r} at {offset}, which was acknowledged at {write.offset}"
        elif tag_of(value) not in one.wanted:
            yield f"got {value[:20]!r} at {offset}, which it does not want"
        before, values[value] = max(offset, before), offset
    if before >= one.end:
        yield f"got offset {before}, and has read only to {one.end}"
