"""``tidelog produce``: sends lines as records."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from tidelog.cli.failure import EXIT_INTERRUPTED, CommandFailed
from tidelog.cli.terminal.connection import cluster_options, secured
from tidelog.cli.terminal.numbers import INT32_MAX, INT64_MAX
from tidelog.cli.terminal.output import count_of, print_json, say
from tidelog.cli.terminal.settings import CLIENT_TAKEN, settings_option

if TYPE_CHECKING:
    from tidelog.client.delivery import RecordMetadata

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longer lines are refused, so that they cannot fill the memory."""
INTERRUPTED_FLUSH_S: Final = 5.0
"""How long to wait after Ctrl-C for the acknowledgements of sent records."""


@dataclass(frozen=True, slots=True)
class InputRecord:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@click.command()
@click.argument("topic")
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Read this file instead of stdin."
)
@click.option(
    "--key-separator", metavar="TEXT", help="Split each line into KEY TEXT VALUE. Default: lines have no key."
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record; repeatable.")
@click.option("--null-marker", metavar="TEXT", help="A key or value that is exactly this is null (a tombstone).")
@click.option(
    "--json-lines", is_flag=True,
    help="Each line is an object: value, key, headers, partition, timestamp, as printed by `consume --json`.",
)  # fmt: skip
@click.option("--partition", type=click.IntRange(0, INT32_MAX), help="Send to this partition, whatever the key.")
@settings_option("A setting of the producer, e.g. acks=1 or compression_type=lz4; repeatable.", taken=CLIENT_TAKEN)
@cluster_options
def produce(
    topic: str,
    file: Path | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    null_marker: str | None,
    json_lines: bool,
    partition: int | None,
    settings: dict[str, Any],
    bootstrap: str,
    as_json: bool,
) -> int:
    """Send each line of a file or standard input to TOPIC as a record, and wait until all are acknowledged.

    A line that cannot be sent ends the command, as does Ctrl-C. It still waits for the records sent before, and counts
    them.
    """
    from tidelog import Producer
    from tidelog.model.errors import TidelogError

    fixed = tuple(_header(item) for item in headers)
    separator = key_separator.encode() if key_separator is not None else None
    null = null_marker.encode() if null_marker is not None else None
    if separator == b"":
        raise click.BadParameter("expected a separator, found an empty one", param_hint="--key-separator")
    sent = acknowledged = number = 0
    failures: list[tuple[int, BaseException]] = []
    trouble: str | None = None
    interrupted = False

    def settled(line: int, _: RecordMetadata | None, error: BaseException | None) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        elif not failures:
            failures.append((line, error))

    opened = file.open("rb") if file is not None else nullcontext(sys.stdin.buffer)
    with opened as source, Producer(bootstrap, **secured() | settings) as producer:
        try:
            for line in _lines(source):
                number += 1
                record = _from_json(line) if json_lines else _from_text(line, separator, null)
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    headers=record.headers + fixed,
                    partition=partition if partition is not None else record.partition,
                    timestamp_ms=record.timestamp_ms,
                    on_delivery=partial(settled, number),
                )
                sent += 1
            producer.flush()
        except _BadLine as wrong:
            trouble = f"line {number + 1}: {wrong}"
        except TidelogError as refused:
            trouble = f"line {number}: {refused.code.name}: {refused}"
        except (ValueError, OSError) as wrong:
            trouble = f"line {number}: {wrong}"
        except KeyboardInterrupt:
            interrupted = True
            producer.close(INTERRUPTED_FLUSH_S)
    if as_json:
        print_json({"sent": sent, "acknowledged": acknowledged, "failed": sent - acknowledged})
    how_many = f"{acknowledged} of {count_of(sent, 'record')}"
    if interrupted:
        say(f"interrupted: {how_many} acknowledged", err=True)
        return EXIT_INTERRUPTED
    lost = f"line {failures[0][0]}: {type(failures[0][1]).__name__}: {failures[0][1]}" if failures else None
    if trouble is not None:
        before = f"records sent before it: {sent}, acknowledged: {acknowledged}"
        raise CommandFailed("; ".join(filter(None, (trouble, before, lost))))
    if lost is not None:
        raise CommandFailed(f"{how_many} acknowledged; {lost}")
    if not as_json:
        say(f"{how_many} acknowledged", err=True)
    return 0


class _BadLine(ValueError):
    """The next line is unreadable."""


def _lines(source: IO[bytes]) -> Iterator[bytes]:
    while line := source.readline(LINE_BYTES_MAX):
        if len(line) >= LINE_BYTES_MAX:
            raise _BadLine(f"expected less than {LINE_BYTES_MAX} bytes, found more")
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _from_text(line: bytes, separator: bytes | None, null: bytes | None) -> InputRecord:
    key: bytes | None = None
    value: bytes | None = line
    if separator is not None:
        key, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"expected KEY{separator.decode()}VALUE, found {line[:80].decode(errors='replace')!r}")
    return InputRecord(None if value == null else value, None if key == null else key)


def _from_json(line: bytes) -> InputRecord:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as wrong:
        raise ValueError(f"expected a JSON object, found something else ({wrong})") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, found {type(found).__name__}")
    if unknown := found.keys() - _FIELDS:
        raise ValueError(f"expected {', '.join(sorted(_FIELDS))}, found {sorted(unknown)[0]!r}")
    partition, timestamp = found.get("partition"), found.get("timestamp")
    for name, number, most in (("partition", partition, INT32_MAX), ("timestamp", timestamp, INT64_MAX)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise ValueError(f"{name}: expected a whole number, found {number!r}")
        if number is not None and not 0 <= number <= most:
            raise ValueError(f"{name}: expected 0 to {most}, found {number}")
    pairs = found.get("headers") or []
    if isinstance(pairs, dict):
        pairs = list(pairs.items())
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise ValueError("headers: expected [[name, value], …] or an object, found something else")
    return InputRecord(
        _bytes("value", found.get("value")),
        _bytes("key", found.get("key")),
        tuple((name, _bytes("headers", value)) for name, value in pairs),
        partition,
        timestamp,
    )


_FIELDS: Final = {"value", "key", "headers", "partition", "timestamp", "offset", "topic"}
"""``offset`` and ``topic`` are accepted but ignored, so that the output of `consume --json` can be sent again."""


def _bytes(name: str, found: object) -> bytes | None:
    if found is None:
        return None
    if isinstance(found, str):
        return found.encode()
    if isinstance(found, dict) and found.keys() == {"base64"}:
        if not isinstance(found["base64"], str):
            raise ValueError(f"{name}: expected base64 as a string, found {found['base64']!r}")
        return base64.b64decode(found["base64"], validate=True)
    if name == "value":  # a nested object is itself the value, sent as JSON
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
    raise ValueError(f'{name}: expected a string, null or {{"base64": …}}, found {found!r}')


def _header(item: str) -> tuple[str, bytes]:
    name, equals, value = item.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"expected NAME=VALUE, found {item!r}", param_hint="--header")
    return name, value.encode()
