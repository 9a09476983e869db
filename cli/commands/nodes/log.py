"""``tidelog log``: shows the content of a partition's files. Read-only, so it can run beside the node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tidelog.cli.commands.nodes.log_compare import compare
from tidelog.cli.commands.nodes.log_verify import verify
from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.output import json_line, say
from tidelog.cli.terminal.records import record_json, time_text
from tidelog.cli.work import segment_files
from tidelog.cli.work.segment_files import Damage, PlacedBatch
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.control_batches import decode_control
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.decoder import decode_records


@click.group()
def log() -> None:
    """Inspect the log files of a stopped or running node."""


log.add_command(verify)
log.add_command(compare)


@log.command(short_help="Print batches, index entries and checkpoints.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--records", "-r", is_flag=True, help="Print the records of each batch too.")
@click.option("--from", "offset_from", type=int, default=0, help="Skip batches that end before this offset.")
@click.option("--max", "entries_max", type=click.IntRange(1), help="Stop after this many entries in each file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def dump(paths: tuple[Path, ...], records: bool, offset_from: int, entries_max: int | None, as_json: bool) -> int:
    """Print batches, index entries and checkpoints in files, or in all files of partition directories.

    Exit code 1 if a log file holds a damaged batch.
    """
    damaged = False
    for path in [found for given in paths for found in _files(given)]:
        if not as_json:
            say(f"{path}")
        for count, entry in enumerate(_entries(path, records, offset_from)):
            if entries_max is not None and count >= entries_max:
                break
            damaged |= "damage" in entry or entry.get("crc_ok") is False
            if as_json:
                click.echo(json_line({"file": str(path), **entry}))
            else:
                _print(entry)
    return 1 if damaged else 0


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    kinds = (".log", ".index", ".timeindex", ".txnindex")
    found = sorted(child for child in path.iterdir() if child.suffix in kinds or child.name in _TEXTS)
    if not found:
        raise CommandFailed(f"{path}: expected a partition's directory (with .log files), found none of its files")
    return found


_TEXTS = ("leader-epoch-checkpoint", "partition.metadata")


def _entries(path: Path, records: bool, offset_from: int) -> Iterator[dict[str, Any]]:
    try:
        match path.suffix:
            case ".log":
                yield from _batches(path, records, offset_from)
            case ".index":
                for offset, position in segment_files.read_offset_index(path):
                    yield {"offset": offset, "position": position}
            case ".timeindex":
                for timestamp, offset in segment_files.read_time_index(path):
                    yield {"timestamp": timestamp, "offset": offset}
            case ".txnindex":
                for producer_id, first, last, stable in segment_files.read_transaction_index(path):
                    yield {"producer_id": producer_id, "first": first, "last": last, "last_stable_offset": stable}
            case _ if path.name in _TEXTS:
                for line in path.read_text(encoding="utf-8").splitlines():
                    yield {"line": line}
            case _:
                raise CommandFailed(f"{path}: expected a .log, .index, .timeindex or .txnindex file, found another")
    except ValueError as trouble:
        raise CommandFailed(f"{path}: {trouble}") from None


def _batches(path: Path, records: bool, offset_from: int) -> Iterator[dict[str, Any]]:
    for found in segment_files.read_batches(path):
        if isinstance(found, Damage):
            yield {"position": found.position, "damage": found.reason}
        elif found.batch.last_offset >= offset_from:
            yield _batch_json(found, records)


def _batch_json(placed: PlacedBatch, records: bool) -> dict[str, Any]:
    batch = placed.batch
    made: dict[str, Any] = {
        "position": placed.position,
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "count": batch.record_count,
        "size": batch.size,
        "leader_epoch": batch.leader_epoch,
        "compression": _codec(batch.attributes),
        "max_timestamp": batch.max_timestamp,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "crc_ok": placed.crc_ok,
    }
    try:
        if batch.is_control and batch.record_count:  # compaction leaves batches without records
            made["marker"] = decode_control(batch).kind.name
        elif records:
            made["records"] = [record_json(record) for record in decode_records(batch)]
    except CorruptBatch as corrupt:
        made["damage"] = str(corrupt)
    return made


def _codec(attributes: int) -> str:
    number = attributes & 0x07
    return Compression(number).name.lower() if number in set(Compression) else f"unknown codec {number}"


def _print(entry: dict[str, Any]) -> None:
    entry = dict(entry)
    records = entry.pop("records", ())
    if "count" in entry:
        flags = [name for name in ("transactional", "control") if entry.pop(name)]
        if not entry.pop("crc_ok"):
            flags.append("CRC WRONG")
        when = time_text(entry.pop("max_timestamp"))
        producer = (entry.pop("producer_id"), entry.pop("producer_epoch"), entry.pop("base_sequence"))
        line = (
            f"  @{entry.pop('position'):<10} offsets {entry.pop('base_offset')}..{entry.pop('last_offset')} "
            f"({entry.pop('count')} records, {entry.pop('size')} bytes, {entry.pop('compression')}) "
            f"epoch {entry.pop('leader_epoch')} to {when}"
        )
        if producer[0] >= 0:
            line += f" producer {producer[0]}/{producer[1]} sequence {producer[2]}"
        say(" ".join([line, *flags, *(f"{name}={value}" for name, value in entry.items())]))
    elif "damage" in entry:
        say(f"  @{entry['position']:<10} DAMAGED: {entry['damage']}")
    elif "line" in entry:
        say(f"  {entry['line']}")
    else:
        say("  " + "  ".join(f"{name} {value}" for name, value in entry.items()))
    for record in records:
        headers = "".join(f" {name}={value}" for name, value in record["headers"])
        say(
            f"      {record['offset']} {time_text(record['timestamp'])} {record['key']!r}: {record['value']!r}{headers}"
        )
