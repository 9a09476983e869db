"""``tidelog trace``: shows what became of a message, from topic to topic and from program to program."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import cluster_options, secured
from tidelog.cli.terminal.output import print_json, print_rows, say
from tidelog.cli.terminal.records import time_text
from tidelog.cli.terminal.times import time_ms

if TYPE_CHECKING:
    from tidelog.client.tracing.finding import Finder
    from tidelog.client.tracing.hops import Hop

READ_MAX: Final = 1_000_000
SINCE_MS: Final = 24 * 3_600_000
_PLACE: Final = re.compile(r"(.+):(\d{1,10}):(\d{1,19})")
_TRACE: Final = re.compile(r"[0-9a-f]{32}")


@click.command()
@click.argument("what", metavar="TOPIC:PARTITION:OFFSET|TRACE_ID", required=False)
@click.option("--key", help="Show the traces of records with this key instead, the newest ones.")
@click.option("--topic", metavar="NAME", help="With --key: of records in this topic.")
@click.option("--traces", metavar="TOPIC", help="The topic that TraceStore writes to.  [default: message-traces]")
@click.option("--from-time", metavar="TIME", help="Read what was stored at or after this time (default: a day ago).")
@click.option(
    "--max", "most", type=click.IntRange(1), default=READ_MAX, help=f"Read at most this many hops ({READ_MAX:,})."
)
@cluster_options
def trace(
    what: str | None,
    key: str | None,
    topic: str | None,
    traces: str | None,
    from_time: str | None,
    most: int,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Show the hops of a message: which program sent it where, and which handled it, when, and how that ended.

    Programs with a TraceStore store the hops in a topic. Needs READ on it, and on TOPIC if you name a record.
    """
    from tidelog import TopicPartition
    from tidelog.client.tracing.hops import key_hash
    from tidelog.client.tracing.store import TOPIC

    if (what is None) == (key is None) or (topic is not None and key is None):
        raise click.UsageError("expected TOPIC:PARTITION:OFFSET, a trace id, or --key (with or without --topic)")
    since_ms = max(0, round(time.time() * 1_000) - SINCE_MS) if from_time is None else time_ms(from_time, "--from-time")
    place = what and _PLACE.fullmatch(what)
    if what is not None and not place and not _TRACE.fullmatch(what):
        raise click.UsageError(f"expected TOPIC:PARTITION:OFFSET or 32 hexadecimal digits, found {what!r}")
    with _finder(bootstrap, traces or TOPIC, since_ms, most) as finder:
        if place:
            found = [finder.of_place(TopicPartition(place[1], int(place[2])), int(place[3]))]
        elif what is not None:
            found = [finder.of_trace(what)]
        else:
            found = finder.of_key(key_hash((key or "").encode()) or "", topic)
    found = [hops for hops in found if hops]
    if as_json:
        print_json({"whole": finder.whole, "traces": [[hop.json() for hop in hops] for hops in found]})
    else:
        for hops in found:
            _show(hops)
    if not finder.whole:
        say(f"read only {most:,} hops; --max reads more, --from-time begins later", err=True)
    if not found:
        hint = "; --from-time looks further back than a day" if from_time is None else ""
        raise CommandFailed(f"no hop of it is in {traces or TOPIC}{hint}")


@contextmanager
def _finder(bootstrap: str, traces: str, since_ms: int, most: int) -> Iterator[Finder]:
    from tidelog import Consumer
    from tidelog.client.errors import UnknownTopicOrPartitionError
    from tidelog.client.tracing.finding import Finder

    with Consumer(bootstrap, allow_auto_create_topics=False, **secured()) as consumer:
        try:
            yield Finder(consumer, traces, since_ms=since_ms, most=most)
        except UnknownTopicOrPartitionError as error:
            raise CommandFailed(f"{error}; --traces names the topic that TraceStore writes to") from None


def _show(hops: list[Hop]) -> None:
    say(f"trace {hops[0].trace}")
    columns = ("began", "hop", "record", "program", "group", "took", "outcome", "")
    print_rows(
        columns,
        [
            (
                time_text(hop.began_us // 1_000), hop.kind, _place(hop), hop.program, hop.group,
                f"{hop.took_us / 1_000:,.1f} ms", hop.outcome, hop.note,
            )
            for hop in hops
        ],
    )  # fmt: skip


def _place(hop: Hop) -> str:
    return hop.topic if hop.offset < 0 else f"{hop.topic}:{hop.partition}:{hop.offset}"
