"""``tidelog log verify``: checks segments and their companion files for damage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.output import count_of, json_option, print_json, print_rows, say
from tidelog.cli.work.segment_files import base_offset
from tidelog.model.ids import TopicPartition
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.control_batches import ControlKind, decode_control
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.storage.disk.checkpoints import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    decode_epochs,
    decode_offsets,
)
from tidelog.storage.log.recovery import SPARSE_MARK
from tidelog.storage.producers.snapshot import CorruptSnapshot, decode_snapshot
from tidelog.storage.segments.examination import OFFSET_MAX, DamagedRange, Expected, PlacedBatch, examine
from tidelog.storage.segments.leader_epochs import LeaderEpochs
from tidelog.storage.segments.segment import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX
from tidelog.storage.segments.transaction_index import ENTRY, VERSION

_PARTITION: Final = re.compile(r"(.+)-(\d+)")


@dataclass(slots=True)
class _Verified:
    """The ranges that were read, and their damage. ``tails``: ends that were never durable, or are being written."""

    segments: int = 0
    bytes: int = 0
    damage: list[tuple[Path, DamagedRange]] = field(default_factory=list)
    tails: list[tuple[Path, DamagedRange]] = field(default_factory=list)


@click.command(short_help="Check every batch of partitions against its CRC.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@json_option
def verify(paths: tuple[Path, ...], as_json: bool) -> int:
    """Read every batch in log directories, partition directories or single segments, and check its CRC, offset and
    leader epoch. Also checks indexes of aborted transactions and, in directories, producer snapshots.

    The command only reads, so it can run beside the node. Batches that the node is appending may look unfinished; they
    are listed separately. Other indexes are not checked, because a node repairs them when it uses them. Exit code 1 if
    anything is damaged.
    """
    verified = _Verified()
    for path in paths:
        for directory, segments in _partitions(path):
            _verify(directory, segments, verified)
            if path.is_dir():
                _verify_snapshots(directory, verified)
    if as_json:
        print_json(
            {
                "segments": verified.segments,
                "bytes": verified.bytes,
                "damage": [_entry(*found) for found in verified.damage],
                "unfinished": [_entry(*found) for found in verified.tails],
            }
        )
    else:
        _print(verified)
    return 1 if verified.damage else 0


def _partitions(path: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield partition directories with the segments to check."""
    if not path.is_dir():
        if path.suffix != ".log":
            raise CommandFailed(f"{path}: expected a directory or a segment (.log), found another file")
        yield path.parent, [path]
        return
    segments = _segments(path)
    if segments:
        yield path, segments
        return
    found = sorted(child for child in path.iterdir() if child.is_dir() and _segments(child))
    if not found:
        raise CommandFailed(f"{path}: expected a log directory or a partition's directory, found no segments (.log)")
    for child in found:
        yield child, _segments(child)


def _segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("[0-9]*.log"))


def _verify(directory: Path, wanted: list[Path], verified: _Verified) -> None:
    # Read the epochs first: a running node stores them before the recovery point that makes them valid.
    recovery_point = _recovery_point(directory)
    clean = (directory.parent / CLEAN_SHUTDOWN).exists()
    epochs = _epochs(directory)
    dense = not (directory / SPARSE_MARK).exists()
    segments = _segments(directory)
    for segment in wanted:
        later = [each for each in segments if each > segment]
        base = _base(segment)
        end_offset = _base(later[0]) if later else OFFSET_MAX
        expected = Expected(base, end_offset, dense, epochs, OFFSET_MAX if clean else recovery_point)
        index = _AbortedIndex(segment)
        try:
            found, due = _examine(segment, expected, verified, index.see)
        except FileNotFoundError:
            continue  # retention or compaction removed it in the meantime
        # A damaged or compacted log does not show which markers there were.
        wrong = index.damage(expected, against_log=dense and not found)
        verified.damage += [(index.path, each) for each in wrong]
        size = segment.stat().st_size if segment.exists() else 0
        if later and dense and due < end_offset and segment.exists():
            reason = f"expected batches up to offset {end_offset}, found the end of the file"
            found.append(DamagedRange(size, size, due, end_offset, reason))
        for each in found:
            durable = clean or each.first_offset < recovery_point
            is_tail = not later and each.next_offset == OFFSET_MAX and not durable
            (verified.tails if is_tail else verified.damage).append((segment, each))


class _AbortedIndex:
    """A segment's index of aborted transactions, compared with the segment's batches as they are read."""

    def __init__(self, segment: Path) -> None:
        self.path = segment.with_suffix(TXN_INDEX_SUFFIX)
        raw = self.path.read_bytes() if self.path.exists() else b""
        self._entries = list(ENTRY.iter_unpack(raw[: len(raw) // ENTRY.size * ENTRY.size]))
        self._markers = {(last, producer) for _, producer, _, last, _ in self._entries}
        """What was not found yet: markers by offset and producer, and first batches."""
        self._begun = {(first, producer) for _, producer, first, _, _ in self._entries}

    def see(self, batch: Batch) -> None:
        place = (batch.base_offset, batch.producer_id)
        if not batch.is_control:
            if place in self._begun and batch.is_transactional:
                self._begun.discard(place)
        elif place in self._markers and batch.record_count:
            try:
                if decode_control(batch).kind is ControlKind.ABORT:
                    self._markers.discard(place)
            except CorruptBatch:
                pass  # no marker then

    def damage(self, expected: Expected, *, against_log: bool) -> Iterator[DamagedRange]:
        """Yield durable entries that are invalid."""
        before, stable_before = -1, 0
        durable = max((n + 1 for n, entry in enumerate(self._entries) if entry[3] < expected.epochs_end), default=0)
        for number, (version, producer, first, last, stable) in enumerate(self._entries[:durable]):
            fault = ""
            if version != VERSION:
                fault = f"expected version {VERSION}, found {version}"
            elif not (0 <= first < last and max(before + 1, expected.first_offset) <= last < expected.end_offset):
                fault = f"expected a transaction that ends behind {before} in this segment, found {first}..{last}"
            elif not stable_before <= stable <= last + 1:
                fault = f"expected a last stable offset of {stable_before} to {last + 1}, found {stable}"
            elif against_log and (last, producer) in self._markers:
                fault = f"expected producer {producer}'s marker at offset {last}, which aborts; found none"
            elif against_log and first >= expected.first_offset and (first, producer) in self._begun:
                fault = f"expected producer {producer}'s transaction to begin at offset {first}, found no such batch"
            if fault:
                yield DamagedRange(number * ENTRY.size, (number + 1) * ENTRY.size, first, OFFSET_MAX, fault)
            before, stable_before = max(before, last), max(stable_before, stable)


def _verify_snapshots(directory: Path, verified: _Verified) -> None:
    """Check the snapshots of durable state. A newer snapshot may be torn after a power loss; a start skips it."""
    durable = OFFSET_MAX if (directory.parent / CLEAN_SHUTDOWN).exists() else _recovery_point(directory)
    for path in sorted(directory.glob(f"[0-9]*{SNAPSHOT_SUFFIX}")):
        offset = _base(path)
        if offset > durable:
            continue
        try:
            raw = path.read_bytes()
            decode_snapshot(raw)
        except FileNotFoundError:
            continue  # the node removed it in the meantime
        except CorruptSnapshot as error:
            verified.damage.append((path, DamagedRange(0, len(raw), offset, OFFSET_MAX, str(error))))


def _examine(
    segment: Path, expected: Expected, verified: _Verified, see: Callable[[Batch], None]
) -> tuple[list[DamagedRange], int]:
    """Return the damage of a segment, and the offset after its last batch. Calls ``see`` with each intact batch."""
    damage, due = [], expected.first_offset
    with segment.open("rb") as file:
        size = segment.stat().st_size

        def read(count: int, position: int) -> bytes:
            file.seek(position)
            return file.read(count)

        for found in examine(read, 0, size, expected):
            if isinstance(found, PlacedBatch):
                due = found.batch.next_offset
                see(found.batch)
            elif found is not None:
                damage.append(found)
                due = found.next_offset
    verified.segments += 1
    verified.bytes += size
    return damage, due


def _base(segment: Path) -> int:
    try:
        return base_offset(segment)
    except ValueError as trouble:
        raise CommandFailed(f"{segment}: {trouble}") from None


def _recovery_point(directory: Path) -> int:
    """Return the offset before which the node's checkpoint says that everything is durable; 0 without a checkpoint."""
    match = _PARTITION.fullmatch(directory.name)
    file = directory.parent / RECOVERY_POINTS
    if match is None or not file.exists():
        return 0
    try:
        points: Mapping[TopicPartition, int] = decode_offsets(file.read_bytes())
    except CorruptCheckpoint as error:
        raise CommandFailed(f"{file}: {error}") from None
    return points.get(TopicPartition(match[1], int(match[2])), 0)


def _epochs(directory: Path) -> LeaderEpochs:
    """Return the epochs as the node stored them. Empty if it stored none or they are unreadable; then they are not
    checked."""
    try:
        return LeaderEpochs(decode_epochs((directory / LEADER_EPOCHS).read_bytes()))
    except (FileNotFoundError, CorruptCheckpoint):
        return LeaderEpochs()


def _entry(segment: Path, found: DamagedRange) -> dict[str, Any]:
    return {
        "file": str(segment),
        "position": found.position,
        "end": found.end,
        "base_offset": found.first_offset,
        "next_offset": None if found.next_offset == OFFSET_MAX else found.next_offset,
        "reason": found.reason,
    }


def _print(verified: _Verified) -> None:
    rows = [
        (
            str(segment),
            found.position,
            found.end - found.position,
            found.first_offset,
            "?" if found.next_offset == OFFSET_MAX else str(found.next_offset - 1),
            found.reason + (" (not durable yet: a start after a crash would drop it)" if unfinished else ""),
        )
        for entries, unfinished in ((verified.damage, False), (verified.tails, True))
        for segment, found in entries
    ]
    if rows:
        print_rows(("file", "position", "bytes", "base offset", "last offset", "problem"), rows)
    places = count_of(len(verified.damage), "damaged place") if verified.damage else "no damage"
    say(f"{count_of(verified.segments, 'segment')}, {verified.bytes:,} bytes read: {places}")
