"""Judges a finished run that sent every source row once: was any lost, duplicated, reordered or changed?

Pure: it takes the sent rows, the acknowledgements and the log's records, and returns the verdict. The anomalies are
those of Jepsen's Kafka workload that a run of single sends can show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from tidelog.demo.log.flights import content_digest

EXAMPLES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Source:
    """The rows to send. ``digests`` is by row; ``keys`` gives each row's key."""

    keys: Sequence[bytes]
    digests: Sequence[bytes]


class LogRecord(NamedTuple):
    """A record as it was read back. ``row`` is -1 if its header is missing or wrong."""

    partition: int
    offset: int
    row: int
    key: bytes | None
    digest: bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's findings. Every count but the first three should be 0."""

    sent: int
    acknowledged: int
    read: int
    lost: int
    """Acknowledged rows that are not in the log."""
    duplicated: int
    """Rows at more than one offset."""
    out_of_order: int
    """Records after a later row of the same key."""
    misplaced: int
    """Rows whose acknowledgement gave a wrong position."""
    changed: int
    """Records whose key or content differs from the source's."""
    foreign: int
    """Records without a source row."""
    split_keys: int
    """Keys with rows in more than one partition."""
    unread: int
    """Unread offsets below the end of a partition."""
    source_digest: str
    log_digest: str
    examples: tuple[str, ...] = field(default=())
    """Some of the faults, in words."""

    @property
    def complete(self) -> bool:
        """Whether every sent row was acknowledged."""
        return self.acknowledged == self.sent

    @property
    def passed(self) -> bool:
        faults = (
            self.lost, self.duplicated, self.out_of_order, self.misplaced,
            self.changed, self.foreign, self.split_keys, self.unread,
        )  # fmt: skip
        return self.complete and not any(faults) and self.source_digest == self.log_digest and self.sent > 0


def judge(
    source: Source,
    sent: int,
    acknowledged: Mapping[int, tuple[int, int]],
    log: Sequence[LogRecord],
    ends: Mapping[int, tuple[int, int]],
) -> Verdict:
    """Judge a run. Rows 0 to ``sent`` - 1 were sent; ``acknowledged`` has each row's acknowledged partition and offset;
    ``log`` is in any order; ``ends`` has each partition's first offset and the one after its last."""
    examples: list[str] = []

    def note(kind: str, text: str) -> None:
        if sum(example.startswith(kind) for example in examples) < EXAMPLES_MAX:
            examples.append(f"{kind}: {text}")

    places: dict[int, list[tuple[int, int]]] = {}
    latest_of_key: dict[bytes, int] = {}
    partition_of_key: dict[bytes, int] = {}
    split: set[bytes] = set()
    read_digests: dict[int, bytes] = {}
    offsets_seen: dict[int, set[int]] = {partition: set() for partition in ends}
    out_of_order = changed = foreign = 0
    for record in sorted(log, key=attrgetter("partition", "offset")):
        offsets_seen.setdefault(record.partition, set()).add(record.offset)
        if not 0 <= record.row < sent:
            foreign += 1
            note("foreign", f"partition {record.partition} offset {record.offset} names row {record.row}")
            continue
        row, key = record.row, source.keys[record.row]
        if record.key != key or record.digest != source.digests[row]:
            changed += 1
            note("changed", f"row {row} at partition {record.partition} offset {record.offset}")
        places.setdefault(row, []).append((record.partition, record.offset))
        read_digests[row] = record.digest
        if row < latest_of_key.get(key, -1):
            out_of_order += 1
            note("out of order", f"row {row} of {key!r} stands behind row {latest_of_key[key]}, offset {record.offset}")
        latest_of_key[key] = max(row, latest_of_key.get(key, -1))
        if partition_of_key.setdefault(key, record.partition) != record.partition:
            split.add(key)
            note("split key", f"{key!r} stands in partitions {partition_of_key[key]} and {record.partition}")
    lost = misplaced = 0
    for row, place in acknowledged.items():
        if row not in places:
            lost += 1
            note("lost", f"row {row}, acknowledged at partition {place[0]} offset {place[1]}")
        elif place not in places[row]:
            misplaced += 1
            note("misplaced", f"row {row}, acknowledged at {place}, stands at {places[row][0]}")
    duplicated = 0
    for row, found in places.items():
        if len(set(found)) > 1:
            duplicated += 1
            note("duplicated", f"row {row} stands at {found}")
    unread = 0
    for partition, (start, end) in ends.items():
        missing = (end - start) - len([offset for offset in offsets_seen[partition] if start <= offset < end])
        if missing:
            unread += missing
            note("unread", f"{missing} offsets of partition {partition} between {start} and {end}")
    return Verdict(
        sent=sent,
        acknowledged=len(acknowledged),
        read=len(log),
        lost=lost,
        duplicated=duplicated,
        out_of_order=out_of_order,
        misplaced=misplaced,
        changed=changed,
        foreign=foreign,
        split_keys=len(split),
        unread=unread,
        source_digest=content_digest(dict(enumerate(source.digests[:sent]))),
        log_digest=content_digest(read_digests),
        examples=tuple(examples),
    )
