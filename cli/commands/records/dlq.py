"""``tidelog dlq``: inspects, redrives and deletes dead letters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options, secured
from tidelog.cli.terminal.output import print_json, print_rows, say
from tidelog.cli.terminal.records import record_json, time_text
from tidelog.cli.terminal.settings import options
from tidelog.model.escaping import escaped

if TYPE_CHECKING:
    from tidelog import Consumer, TopicPartition
    from tidelog.client.workers.dead_letters import Letter

READ_MAX: Final = 100_000
SHOWN_MAX: Final = 2_000
"""Maximum characters of a value to show."""
_PLACE: Final = re.compile(r"(\d+):(\d+)")


@click.group()
def dlq() -> None:
    """Inspect a dead letter topic, move letters back to where they came from, delete them.

    Workers write such topics (`dead_letters=`), and so do Kafka's share groups (KIP-1191).
    """


_filters: Final = options(
    click.option("--exception", metavar="TEXT", help="Only letters whose exception name or text contains this."),
    click.option("--origin", metavar="TOPIC", help="Only letters that came from this topic."),
    click.option("--reason", help="Only letters with this reason: attempts, rejected, invalid, expired."),
)


def _chosen(reason: str | None, origin: str | None, exception: str | None) -> Callable[[Letter], bool]:
    def chosen(letter: Letter) -> bool:
        return (
            (reason is None or letter.reason == reason)
            and (origin is None or letter.origin == origin)
            and (exception is None or exception in f"{letter.exception or ''} {letter.message or ''}")
        )

    return chosen


@contextmanager
def _reader(address: str, topic: str, **connection: Any) -> Iterator[tuple[Consumer, list[TopicPartition]]]:
    from tidelog import Consumer, TopicPartition

    settings = {"isolation_level": "read_committed", "allow_auto_create_topics": False, **connection}
    with Consumer(address, **settings) as consumer:
        partitions = [TopicPartition(topic, view.partition) for view in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        yield consumer, partitions


@dlq.command("list")
@click.argument("topic")
@click.option("--max", "most", type=click.IntRange(1), default=READ_MAX, help=f"Read at most this many ({READ_MAX:,}).")
@_filters
@cluster_options
def list_letters(
    topic: str, most: int, reason: str | None, origin: str | None, exception: str | None, bootstrap: str, as_json: bool
) -> None:
    """Count the letters in TOPIC by reason, origin and exception, with the times of the first and last."""
    from tidelog.client.workers.dead_letters import Letter

    chosen, read = _chosen(reason, origin, exception), 0
    counts: Counter[tuple[str | None, str | None, str | None]] = Counter()
    times: dict[tuple[str | None, str | None, str | None], tuple[int, int]] = {}
    with _reader(bootstrap, topic, **secured()) as (consumer, partitions):
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while read < most and any(consumer.position(at) < end for at, end in ends.items()):
            for record in consumer.poll(1.0, max_records=min(1_000, most - read)):
                read += 1
                letter = Letter(record)
                if chosen(letter):
                    kind = letter.reason, letter.origin, letter.exception
                    counts[kind] += 1
                    first, last = times.get(kind, (letter.last_failed_ms, letter.last_failed_ms))
                    times[kind] = min(first, letter.last_failed_ms), max(last, letter.last_failed_ms)
        whole = all(consumer.position(at) >= end for at, end in ends.items())
    if as_json:
        print_json(
            {
                "read": read,
                "whole": whole,
                "letters": [
                    {"reason": kind[0], "origin": kind[1], "exception": kind[2], "count": count,
                     "first_ms": times[kind][0], "last_ms": times[kind][1]}
                    for kind, count in counts.most_common()
                ],
            }
        )  # fmt: skip
        return
    rows = [(*kind, count, *map(time_text, times[kind])) for kind, count in counts.most_common()]
    print_rows(("reason", "origin", "exception", "letters", "first", "last"), rows)
    if not whole:
        say(f"only read the first {read:,}; use --max to read more")


@dlq.command()
@click.argument("topic")
@click.argument("place", metavar="PARTITION:OFFSET")
@cluster_options
def show(topic: str, place: str, bootstrap: str, as_json: bool) -> None:
    """Show one letter of TOPIC: its origin, why it died, its key, headers and value."""
    from tidelog import TopicPartition
    from tidelog.client.consumer.single import record_at
    from tidelog.client.workers.dead_letters import Letter

    match = _PLACE.fullmatch(place)
    if match is None:
        raise click.UsageError(f"expected PARTITION:OFFSET, such as 0:17, found {place!r}")
    at, offset = TopicPartition(topic, int(match[1])), int(match[2])
    with _reader(bootstrap, topic, **secured()) as (consumer, partitions):
        if at not in partitions:
            raise CommandFailed(f"{topic}: expected a partition from 0 to {len(partitions) - 1}, found {at.partition}")
        record = record_at(consumer, at, offset)
        first, end = consumer.beginning_offsets([at])[at], consumer.end_offsets([at])[at]
    if record is None:
        raise CommandFailed(f"{at}: expected the offset of a record from {first} to {end - 1}, found {offset}")
    letter = Letter(record)
    told = record_json(letter.record)
    if as_json:
        print_json(told)
        return
    rows = [
        ("came from", f"{letter.origin}-{letter.origin_partition} offset {letter.origin_offset}, group {letter.group}"),
        ("reason", f"{letter.reason}, after {letter.deliveries} tries, {time_text(letter.last_failed_ms)}"),
        ("exception", f"{letter.exception}: {letter.message}"),
        ("redriven", f"{letter.redrives} times"),
        ("key", str(told["key"])),
        *((f"header {name}", str(value)) for name, value in _headers(letter)),
        ("value", str(told["value"])[:SHOWN_MAX]),
    ]
    for name, value in rows:
        click.echo(f"{escaped(name)}: {escaped(value)}")
    if letter.stack:
        click.echo("\n".join(escaped(line) for line in letter.stack.splitlines()))


def _headers(letter: Letter) -> list[tuple[str, Any]]:
    from tidelog.cli.terminal.records import text_or_base64

    return [(name, text_or_base64(value)) for name, value in letter.original_headers()]


@dlq.command(short_help="Move letters back to where they came from.")
@click.argument("topic")
@click.option("--to", metavar="TOPIC", help="Move them to this topic instead.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="At most N letters a second.")
@click.option("--dry-run", is_flag=True, help="Count what would be moved; move nothing.")
@click.option("--traces", metavar="TOPIC", help="Store what was moved in this topic of traces (`tidelog trace`).")
@_filters
@cluster_options
def redrive(
    topic: str,
    to: str | None,
    rate: float | None,
    dry_run: bool,
    traces: str | None,
    reason: str | None,
    origin: str | None,
    exception: str | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move the letters of TOPIC back, each once, with their original headers.

    An interrupted redrive resumes where it was. Letters that a filter skips remain for a later redrive. A record that
    was already redriven three times remains too: another try will not fix what kills it each time.
    """
    from tidelog.client.tracing.store import TraceStore
    from tidelog.client.workers.redrive import REDRIVES_MAX, Redrive

    if to == topic:
        raise click.UsageError(f"--to: expected a topic other than {topic}, found the same")
    store = traces and TraceStore(bootstrap, topic=traces, program="tidelog dlq redrive", **secured())
    job = Redrive(
        bootstrap, topic, chosen=_chosen(reason, origin, exception), to=to, rate=rate, dry_run=dry_run,
        tracer=store or None, **secured(),
    )  # fmt: skip
    counts = job.run()
    if store:
        store.close()
    if as_json:
        print_json(
            {"moved": counts.moved, "left": counts.left, "looping": counts.looping, "unknown": counts.unknown,
             "dry_run": dry_run}
        )  # fmt: skip
        return
    would = "would be moved" if dry_run else "moved"
    say(f"{counts.moved} letters {would}")
    for count, why in (
        (counts.left, "left: skipped by the filter"),
        (counts.looping, f"left: redriven {REDRIVES_MAX} times already"),
        (counts.unknown, "left: their origin is unknown; name a topic with --to"),
    ):
        if count:
            say(f"{count} {why}")


@dlq.command()
@click.argument("topic")
@click.option("--before-offset", "places", metavar="PARTITION:OFFSET", multiple=True, help="Up to here; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Everything that is in the topic now.")
@cluster_options
def purge(topic: str, places: tuple[str, ...], everything: bool, bootstrap: str, as_json: bool) -> None:
    """Delete letters of TOPIC for good, from the start of each partition."""
    from tidelog import TopicPartition

    if everything == bool(places):
        raise click.UsageError("expected --all or --before-offset, found neither or both")
    wanted: dict[TopicPartition, int] = {}
    for place in places:
        match = _PLACE.fullmatch(place)
        if match is None:
            raise click.UsageError(f"--before-offset: expected PARTITION:OFFSET, such as 0:17, found {place!r}")
        wanted[TopicPartition(topic, int(match[1]))] = int(match[2])
    if everything:
        with _reader(bootstrap, topic, **secured()) as (_, partitions):
            wanted = dict.fromkeys(partitions, -1)
    with admin_client(bootstrap) as admin:
        first = admin.delete_records(wanted)
    if as_json:
        print_json([{"partition": at.partition, "first_offset": offset} for at, offset in sorted(first.items())])
        return
    for at, offset in sorted(first.items()):
        say(f"{at}: now begins at offset {offset}")
