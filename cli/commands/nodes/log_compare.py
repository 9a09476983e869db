"""``tidelog log compare``: checks that the replicas of partitions hold the same records, like Kafka's
``kafka-replica-verification``, but by their files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.output import count_of, json_option, print_json, print_rows, say
from tidelog.cli.work.segment_files import Damage, base_offset, read_batches
from tidelog.model.ids import TopicPartition
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.decoder import decode_records
from tidelog.storage.disk.checkpoints import HIGH_WATERMARKS, CorruptCheckpoint, decode_offsets
from tidelog.storage.disk.format import META_PROPERTIES
from tidelog.storage.log.recovery import SPARSE_MARK

_PARTITION: Final = re.compile(r"(.+)-(\d+)")
_OFFSET_END: Final = 2**63


@dataclass(frozen=True, slots=True)
class _Replica:
    """One partition's directory. ``high_watermark``: from the checkpoint of its log directory."""

    directory: Path
    segments: list[Path]
    high_watermark: int
    compacted: bool

    @property
    def start(self) -> int:
        return base_offset(self.segments[0])


@dataclass(frozen=True, slots=True)
class _Compared:
    """Two replicas up to the offset ``end``; ``difference``: the first one, if they differ."""

    partition: str
    replicas: tuple[_Replica, _Replica]
    start: int
    end: int
    difference: tuple[int, str] | None = None


@click.command(short_help="Check that replicas of partitions hold the same records.")
@click.argument(
    "directories", metavar="DIRECTORY...", nargs=-1, required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)  # fmt: skip
@json_option
def compare(directories: tuple[Path, ...], as_json: bool) -> int:
    """Compare the replicas of each partition in the log directories of several brokers, up to the high watermark that
    both replicas have checkpointed. Later records may still be truncated, or may not be copied yet.

    Batches are compared by offsets, CRC and leader epoch. If a replica has been compacted, only records that both
    replicas have are compared. The command only reads, so it can run beside the nodes. Exit code 1 if replicas differ.
    """
    found: defaultdict[str, list[_Replica]] = defaultdict(list)
    for directory in dict.fromkeys(path.resolve() for path in directories):
        for name, replica in _replicas(directory):
            found[name].append(replica)
    compared = [
        _compare(name, replicas[0], other) for name, replicas in sorted(found.items()) for other in replicas[1:]
    ]
    if not compared:
        raise CommandFailed(
            "expected log directories of several brokers with replicas of the same partitions, found no partition "
            f"twice ({count_of(len(found), 'partition')})"
        )
    different = [each for each in compared if each.difference is not None]
    if as_json:
        print_json(list(map(_json, compared)))
    else:
        if different:
            rows = [(d.partition, *(str(r.directory) for r in d.replicas), *(d.difference or ())) for d in different]
            print_rows(("partition", "replica", "other replica", "offset", "difference"), rows)
        offsets = sum(max(0, each.end - each.start) for each in compared)
        differ = f"{len(different):,} differ" if different else "no difference"
        say(f"{count_of(len(compared), 'pair')} of replicas, {offsets:,} offsets compared: {differ}")
    return 1 if different else 0


def _replicas(directory: Path) -> Iterator[tuple[str, _Replica]]:
    marks = directory / HIGH_WATERMARKS
    try:
        watermarks = decode_offsets(marks.read_bytes())
    except FileNotFoundError:  # a broker first writes them after it has run for a while
        if not (directory / META_PROPERTIES).exists():
            raise CommandFailed(f"{directory}: expected a broker's log directory, found no {META_PROPERTIES}") from None
        watermarks = {}
    except CorruptCheckpoint as error:
        raise CommandFailed(f"{marks}: {error}") from None
    for child in sorted(directory.iterdir()):
        match = _PARTITION.fullmatch(child.name)
        segments = sorted(child.glob("[0-9]*.log"))
        if match is not None and segments:
            watermark = watermarks.get(TopicPartition(match[1], int(match[2])), 0)
            yield child.name, _Replica(child, segments, watermark, (child / SPARSE_MARK).exists())


def _compare(name: str, one: _Replica, other: _Replica) -> _Compared:
    start = max(one.start, other.start)
    end = min(one.high_watermark, other.high_watermark)
    compare = _compare_records if one.compacted or other.compacted else _compare_batches
    return _Compared(name, (one, other), start, end, compare(_between(one, start, end), _between(other, start, end)))


def _between(replica: _Replica, start: int, end: int) -> Iterator[Batch]:
    """Yield the batches of a range of offsets; an empty one at the end."""
    later = [base_offset(path) for path in replica.segments[1:]]
    for path, next_base in zip(replica.segments, [*later, _OFFSET_END], strict=True):
        if next_base <= start or base_offset(path) >= end:
            continue
        for found in read_batches(path):
            if isinstance(found, Damage):
                raise CommandFailed(f"{path}: damaged at position {found.position}: {found.reason}; see `log verify`")
            if found.batch.last_offset >= start and found.batch.base_offset < end:
                if not found.crc_ok:
                    raise CommandFailed(f"{path}: damaged at position {found.position}: wrong CRC; see `log verify`")
                yield found.batch


def _compare_batches(one: Iterator[Batch], other: Iterator[Batch]) -> tuple[int, str] | None:
    while True:
        first, second = next(one, None), next(other, None)
        if first is None or second is None:
            missing = first or second
            return None if missing is None else (missing.base_offset, "only one has a batch")
        for what, at, there in (
            ("first offset", first.base_offset, second.base_offset),
            ("last offset", first.last_offset, second.last_offset),
            ("CRC", first.crc, second.crc),
            ("leader epoch", first.leader_epoch, second.leader_epoch),
        ):
            if at != there:
                return min(first.base_offset, second.base_offset), f"{what} of a batch: {at} and {there}"


def _compare_records(one: Iterator[Batch], other: Iterator[Batch]) -> tuple[int, str] | None:
    """Walk both by offset and skip records that only one has: compaction may have reached the other first."""
    first, second = _records(one), _records(other)
    a, b = next(first, None), next(second, None)
    while a is not None and b is not None:
        if a[0] == b[0]:
            if a != b:
                return a[0], "the record"
            a, b = next(first, None), next(second, None)
        elif a[0] < b[0]:
            a = next(first, None)
        else:
            b = next(second, None)
    return None


def _records(batches: Iterator[Batch]) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        try:
            for record in decode_records(batch):
                yield record.offset, (record, batch.leader_epoch, batch.producer_id, batch.is_control)
        except CorruptBatch as corrupt:
            raise CommandFailed(f"offset {batch.base_offset}: {corrupt}") from None


def _json(compared: _Compared) -> dict[str, Any]:
    return {
        "partition": compared.partition,
        "replicas": [str(replica.directory) for replica in compared.replicas],
        "start_offset": compared.start,
        "end_offset": max(compared.start, compared.end),
        "difference": None
        if compared.difference is None
        else {"offset": compared.difference[0], "reason": compared.difference[1]},
    }
