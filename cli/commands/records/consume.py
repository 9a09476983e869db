"""``tidelog consume``: prints a topic's records, following new ones or up to the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.failure import EXIT_INTERRUPTED, CommandFailed
from tidelog.cli.terminal.connection import bootstrap_option, secured
from tidelog.cli.terminal.numbers import INT32_MAX, INT64_MAX, Seconds
from tidelog.cli.terminal.output import json_line
from tidelog.cli.terminal.records import record_json, time_text
from tidelog.cli.terminal.settings import CLIENT_TAKEN, settings_option
from tidelog.cli.terminal.times import time_ms
from tidelog.model.escaping import escaped

if TYPE_CHECKING:
    from tidelog import Consumer, ConsumerRecord, HeaderFilter, TopicPartition

POLL_S: Final = 0.5
TAKEN: Final = {**CLIENT_TAKEN, "group_id": "--group names it"}
LOOK_UP_TIMEOUT_S: Final = 1.5
"""How long to look for a topic. The broker may not know a brand new topic yet, but a typo should be reported soon."""


@click.command()
@click.argument("topic")
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Start at the first record (in a group: if nothing is committed). Default: at the end, new records only.",
)
@click.option("--offset", type=click.IntRange(0, INT64_MAX), help="Start at this offset, in every partition.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Start N offsets before the end of each partition.")
@click.option(
    "--from-time", metavar="TIME", help="Start at the first record at or after this time: ISO 8601, or ms since 1970."
)
@click.option(
    "--partition", "-p", "partitions", type=click.IntRange(0, INT32_MAX), multiple=True, help="Only this; repeatable."
)
@click.option(
    "--group",
    metavar="GROUP",
    help="Join this group: share partitions with its other members, resume where the group stopped.",
)
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="Only records whose header NAME has this value; repeatable, for several values of one header.",
)
@click.option("--max", "records_max", type=click.IntRange(1), metavar="N", help="Stop after N records.")
@click.option("--until-end", is_flag=True, help="Stop at the end offset as of the start of the command.")
@click.option("--timeout", type=Seconds(0), metavar="SECONDS", help="Stop when no record has arrived for this long.")
@click.option("--keys", is_flag=True, help="Print the key before the value, separated by a tab.")
@click.option("--details", is_flag=True, help="Print partition, offset, time, key and headers too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@settings_option("A setting of the consumer, e.g. fetch_max_bytes=1000000; repeatable.", taken=TAKEN)
@bootstrap_option
def consume(
    topic: str,
    from_beginning: bool,
    offset: int | None,
    last: int | None,
    from_time: str | None,
    partitions: tuple[int, ...],
    group: str | None,
    headers: tuple[str, ...],
    records_max: int | None,
    until_end: bool,
    timeout: float | None,
    keys: bool,
    details: bool,
    as_json: bool,
    settings: dict[str, Any],
    bootstrap: str,
) -> int:
    """Print the records of TOPIC, in order within each partition, until Ctrl-C unless told otherwise.

    Values are written to a pipe or file unchanged. On a terminal, control characters other than line breaks and tabs,
    and bytes that are not UTF-8, appear as escapes. --json writes such bytes as {"base64": …}. With --group, the
    command commits printed records every few seconds and at the end; --until-end then applies to this member's own
    partitions.
    """
    starts = [from_beginning, offset is not None, last is not None, from_time is not None]
    if sum(starts) > 1:
        raise click.UsageError("expected one of --from-beginning, --offset, --last and --from-time, found several")
    if group is not None and (sum(starts) > from_beginning or partitions):
        raise click.UsageError(
            "expected a group to resume where it stopped, found --group with --offset, --last, --from-time or "
            "--partition; `tidelog groups reset-offsets` moves a group"
        )
    since_ms = None if from_time is None else time_ms(from_time, "--from-time")

    from tidelog import Consumer

    settings.setdefault("allow_auto_create_topics", False)  # a typo should not create a topic
    if headers:
        settings["header_filter"] = _filter(headers)
    bounded = until_end or records_max is not None or timeout is not None
    show = _printer(as_json, keys, details)
    if group is not None:
        if from_beginning:
            settings.setdefault("auto_offset_reset", "earliest")
        try:
            with Consumer(bootstrap, group_id=group, **secured() | settings) as member:
                everything = _partitions(member, topic, ())
                last_ends = member.end_offsets(everything) if until_end else None
                member.subscribe([topic])
                _print_as_member(member, show, last_ends, records_max, timeout)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED if bounded else 0
        return 0
    with Consumer(bootstrap, **secured() | settings) as consumer:
        chosen = _partitions(consumer, topic, partitions)
        ends = consumer.end_offsets(chosen)
        begins = consumer.beginning_offsets(chosen)
        times = consumer.offsets_for_times(dict.fromkeys(chosen, since_ms)) if since_ms is not None else {}
        starts_at = {}
        for at in chosen:
            if from_beginning:
                starts_at[at] = begins[at]
            elif offset is not None:
                starts_at[at] = offset
            elif last is not None:
                starts_at[at] = max(begins[at], ends[at] - last)
            else:
                found = times.get(at)
                starts_at[at] = found.offset if found is not None else ends[at]
            if not begins[at] <= starts_at[at] <= ends[at]:
                raise CommandFailed(f"{at}: expected an offset from {begins[at]} to {ends[at]}, found {starts_at[at]}")
        consumer.assign(chosen)
        for at, start in starts_at.items():
            consumer.seek(at, start)
        left = {at: end for at, end in ends.items() if starts_at[at] < end} if until_end else None
        try:
            _print_all(consumer, show, left, records_max, timeout)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED if bounded else 0
    return 0


def _filter(headers: tuple[str, ...]) -> HeaderFilter:
    from tidelog import HeaderFilter

    pairs = [header.partition("=") for header in headers]
    names = {name for name, _, _ in pairs}
    if len(names) > 1 or not all(name and equals for name, equals, _ in pairs):
        raise click.UsageError(f"--header: expected NAME=VALUE, with one NAME in all, found {' '.join(headers)}")
    return HeaderFilter(names.pop(), [value for _, _, value in pairs])


def _partitions(consumer: Consumer, topic: str, wanted: tuple[int, ...]) -> list[TopicPartition]:
    from tidelog import TopicPartition

    there = {view.partition for view in consumer.partitions_for(topic, LOOK_UP_TIMEOUT_S)}
    for number in wanted:
        if number not in there:
            raise CommandFailed(f"{topic}: expected a partition from 0 to {len(there) - 1}, found {number}")
    return [TopicPartition(topic, number) for number in sorted(wanted or there)]


def _print_all(
    consumer: Consumer,
    show: Any,
    left: dict[TopicPartition, int] | None,
    records_max: int | None,
    timeout: float | None,
) -> None:
    count = 0
    heard = time.monotonic()
    while left is None or left:
        records = consumer.poll(POLL_S if timeout is None else min(POLL_S, timeout))
        if records_max is not None:
            records = records[: records_max - count]
        wanted = records if left is None else [r for r in records if r.offset < left.get(r.topic_partition, 0)]
        show(wanted)
        count += len(wanted)
        if records_max is not None and count >= records_max:
            return
        if left is not None:
            for at in list(left):
                if consumer.position(at) >= left[at]:
                    del left[at]
        now = time.monotonic()
        if records:
            heard = now
        elif timeout is not None and now - heard >= timeout:
            return


def _print_as_member(
    consumer: Consumer,
    show: Any,
    ends: Mapping[TopicPartition, int] | None,
    records_max: int | None,
    timeout: float | None,
) -> None:
    """Print as :func:`_print_all` does, but what the group assigns. If printing fails, the last poll is not
    committed."""
    count = 0
    heard = time.monotonic()
    while records_max is None or count < records_max:
        left = None if records_max is None else records_max - count
        records = consumer.poll(POLL_S if timeout is None else min(POLL_S, timeout), max_records=left)
        show(records)
        count += len(records)
        if ends is not None:
            assigned = consumer.assignment()
            if assigned and all(consumer.position(at) >= ends.get(at, 0) for at in assigned):
                return
        now = time.monotonic()
        if records:
            heard = now
        elif timeout is not None and now - heard >= timeout:
            return


def _printer(as_json: bool, keys: bool, details: bool) -> Any:
    out = sys.stdout

    def as_lines(records: Iterable[ConsumerRecord]) -> None:
        for record in records:
            out.write(json_line({"partition": record.partition, **record_json(record)}) + "\n")
        out.flush()

    def as_values(records: Iterable[ConsumerRecord]) -> None:
        for record in records:
            if keys:
                out.buffer.write((record.key or b"") + b"\t")
            out.buffer.write((record.value or b"") + b"\n")
        out.buffer.flush()

    def as_values_on_a_terminal(records: Iterable[ConsumerRecord]) -> None:
        for record in records:
            parts = (record.key or b"", record.value or b"") if keys else (record.value or b"",)
            out.write("\t".join(escaped(_decoded(part), keep="\t\n") for part in parts) + "\n")
        out.flush()

    def as_details(records: Iterable[ConsumerRecord]) -> None:
        for record in records:
            headers = "".join(f" {escaped(name)}={_text(value)}" for name, value in record.headers)
            out.write(
                f"{record.partition}@{record.offset} {time_text(record.timestamp)} "
                f"{_text(record.key)}: {_text(record.value)}{headers}\n"
            )
        out.flush()

    values = as_values_on_a_terminal if out.isatty() else as_values
    return as_lines if as_json else as_details if details else values


def _text(data: bytes | None) -> str:
    return "null" if data is None else escaped(_decoded(data))


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")
