"""Plans a reset of a group's committed offsets from the target and the current state.

Pure. The rules follow Kafka's ``kafka-consumer-groups.sh --reset-offsets`` (``OffsetsUtils``): an offset outside the
log becomes the nearest valid one, with a note; a time after the last record means the log's end.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.numbers import INT32_MAX, INT64_MAX
from tidelog.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """The log's first record."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """The end: new records only."""


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """The current committed offset; the end if there is none."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    offset: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """Forward by this many records, or back if negative."""

    count: int


@dataclass(frozen=True, slots=True)
class ToTime:
    """The first record at or after this time."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class ToListed:
    """An offset for each partition, from a file."""

    offsets: Mapping[TopicPartition, int]


Target = ToEarliest | ToLatest | ToCurrent | ToOffset | ShiftBy | ToTime | ToListed


class Bounds(NamedTuple):
    """A partition's first offset and the one after its last."""

    first: int
    end: int


class Move(NamedTuple):
    """``current`` is ``None`` if nothing is committed."""

    partition: TopicPartition
    current: int | None
    new: int


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The offsets to commit, ordered by partition, and notes for the user."""

    moves: tuple[Move, ...]
    notes: tuple[str, ...]


def plan_reset(
    target: Target,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, Bounds],
    at_time: Mapping[TopicPartition, int],
) -> ResetPlan:
    """Plan a reset of these partitions. ``bounds`` contains each of them; ``at_time`` the offset found for a
    :class:`ToTime`, -1 if there is none. Raises :class:`CommandFailed` for a shift without a committed offset."""
    moves: list[Move] = []
    notes: list[str] = []
    for at in sorted(partitions):
        first, end = bounds[at]
        current = committed.get(at)
        match target:
            case ToEarliest():
                wanted = first
            case ToLatest():
                wanted = end
            case ToCurrent():
                if current is None:
                    notes.append(f"{at}: nothing is committed; using its end, {end}")
                wanted = end if current is None else current
            case ToOffset(offset):
                wanted = offset
            case ShiftBy(count):
                if current is None:
                    raise CommandFailed(f"{at}: expected a committed offset to shift, found none; use --to-offset")
                wanted = current + count
            case ToTime():
                wanted = at_time[at]
                if wanted < 0:
                    notes.append(f"{at}: no record is that late; using its end, {end}")
                    wanted = end
            case ToListed(offsets):
                wanted = offsets[at]
            case _:
                assert_never(target)
        new = min(max(wanted, first), end)
        if new != wanted:
            side = "before the first record" if wanted < first else "beyond the end"
            notes.append(f"{at}: {wanted} is {side}; using {new}")
        moves.append(Move(at, current, new))
    return ResetPlan(tuple(moves), tuple(notes))


def read_offsets_file(name: str, lines: Iterable[str], groups: tuple[str, ...]) -> dict[str, ToListed]:
    """Read rows of ``topic,partition,offset``, preceded by the group if there are several groups.

    ``name`` is the file's name, for errors. :class:`CommandFailed` names an invalid line, or a group without rows. Rows
    of other groups are ignored.
    """
    found: dict[str, dict[TopicPartition, int]] = {group: {} for group in groups}
    reader = csv.reader(lines)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as wrong:
            raise CommandFailed(f"{name}:{reader.line_num}: expected rows of CSV: {wrong}") from None
        if row is None:
            break
        if not row or row == [""]:
            continue
        where = f"{name}:{reader.line_num}"
        if len(row) == 3 and len(groups) == 1:
            row = [groups[0], *row]
        if len(row) != 4:
            expected = "topic,partition,offset" if len(groups) == 1 else "group,topic,partition,offset"
            raise CommandFailed(f"{where}: expected {expected}, found {','.join(row)!r}")
        group, topic, partition_text, offset_text = (cell.strip() for cell in row)
        partition = _number(where, "a partition", partition_text, INT32_MAX)
        offset = _number(where, "an offset", offset_text, INT64_MAX)
        if group in found:
            at = TopicPartition(topic, partition)
            if at in found[group]:
                raise CommandFailed(f"{where}: expected each partition once, found {at} twice")
            found[group][at] = offset
    for group, offsets in found.items():
        if not offsets:
            raise CommandFailed(f"{name}: expected rows for group {group}, found none")
    return {group: ToListed(offsets) for group, offsets in found.items()}


def _number(where: str, what: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= most):
        raise CommandFailed(f"{where}: expected {what} from 0 to {most}, found {text!r}")
    return int(text)


def parse_topic(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``NAME`` or ``NAME:0,1``; no partitions means all. Raises ``ValueError``."""
    topic, colon, numbers = text.partition(":")
    found = tuple(dict.fromkeys(numbers.split(","))) if colon else ()
    if not topic or not all(n.isascii() and n.isdecimal() and len(n) <= 10 and int(n) <= INT32_MAX for n in found):
        raise ValueError(f"expected NAME or NAME:0,1, found {text!r}")
    return topic, tuple(map(int, found))
