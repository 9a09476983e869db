"""``tidelog produce``: lines become records."""

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

from tidelog.cli.connection import bootstrap_option
from tidelog.cli.failure import CommandFailed
from tidelog.cli.output import json_option, print_json
from tidelog.cli.settings import settings_option

if TYPE_CHECKING:
    from tidelog.client.delivery import RecordMetadata

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A longer line is refused instead of being gathered in memory."""


@dataclass(frozen=True, slots=True)
class InputRecord:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@click.command()
@click.argument("topic")
@click.option("--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Read this, not stdin.")
@click.option("--key-separator", metavar="TEXT", help="Each line is KEY TEXT VALUE; without it lines have no key.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record; repeatable.")
@click.option("--null-marker", metavar="TEXT", help="A key or value that is exactly this is null (a tombstone).")
@click.option(
    "--json-lines", is_flag=True,
    help="Each line is an object: value, key, headers, partition, timestamp; as `consume --json` prints them.",
)  # fmt: skip
@click.option("--partition", type=click.IntRange(0), help="Send to this partition, whatever the key.")
@settings_option("A setting of the producer, e.g. acks=1 or compression_type=lz4; may be given again.")
@bootstrap_option
@json_option
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
    """Send lines of a file or of standard input to TOPIC, one record each, and wait until all are acknowledged."""
    from tidelog import Producer

    fixed = tuple(_header(item) for item in headers)
    separator = key_separator.encode() if key_separator is not None else None
    null = null_marker.encode() if null_marker is not None else None
    if separator == b"":
        raise click.BadParameter("expected a text, found none", param_hint="--key-separator")
    sent = 0
    failures: list[tuple[int, BaseException]] = []
    failed = 0

    def settled(line: int, _: RecordMetadata | None, error: BaseException | None) -> None:
        nonlocal failed
        if error is not None:
            failed += 1
            if len(failures) < 5:
                failures.append((line, error))

    opened = file.open("rb") if file is not None else nullcontext(sys.stdin.buffer)
    with opened as source, Producer(bootstrap, **settings) as producer:
        for number, line in _lines(source):
            try:
                record = _from_json(line) if json_lines else _from_text(line, separator, null)
            except ValueError as wrong:
                raise CommandFailed(f"line {number}: {wrong}; {sent} records before it were sent") from None
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
    if as_json:
        print_json({"sent": sent, "acknowledged": sent - failed, "failed": failed})
    else:
        click.echo(f"{sent - failed} of {sent} records acknowledged", err=True)
    if failed:
        number, error = failures[0]
        raise CommandFailed(f"{failed} records were not acknowledged; line {number}: {type(error).__name__}: {error}")
    return 0


def _lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := source.readline(LINE_BYTES_MAX):
        number += 1
        if len(line) >= LINE_BYTES_MAX:
            raise CommandFailed(f"line {number}: expected less than {LINE_BYTES_MAX} bytes, found more")
        yield number, line.removesuffix(b"\n").removesuffix(b"\r")


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
    except ValueError as wrong:
        raise ValueError(f"expected a JSON object, found something else ({wrong})") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, found {type(found).__name__}")
    if unknown := found.keys() - _FIELDS:
        raise ValueError(f"expected {', '.join(sorted(_FIELDS))}, found {sorted(unknown)[0]!r}")
    partition, timestamp = found.get("partition"), found.get("timestamp")
    for name, number in (("partition", partition), ("timestamp", timestamp)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise ValueError(f"{name}: expected a whole number of at least 0, found {number!r}")
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
"""``offset`` and ``topic`` are there so that what `consume --json` printed can be sent again; they are not used."""


def _bytes(name: str, found: Any) -> bytes | None:
    if found is None:
        return None
    if isinstance(found, str):
        return found.encode()
    if isinstance(found, dict) and found.keys() == {"base64"}:
        return base64.b64decode(found["base64"], validate=True)
    if name == "value":  # a nested object is a value of its own, sent as JSON
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
    raise ValueError(f'{name}: expected a string, null or {{"base64": …}}, found {found!r}')


def _header(item: str) -> tuple[str, bytes]:
    name, equals, value = item.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"expected NAME=VALUE, found {item!r}", param_hint="--header")
    return name, value.encode()
