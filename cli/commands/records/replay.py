"""``tidelog replay``: reads a part of a topic again, by a new group or as a copy. Without ``--execute`` it only shows
what would be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from tidelog.cli.terminal.connection import cluster_options, secured
from tidelog.cli.terminal.numbers import INT64_MAX
from tidelog.cli.terminal.output import count_of, print_json, print_rows, say
from tidelog.cli.terminal.times import duration_ms, time_ms
from tidelog.cli.work.reset_plan import parse_topic

if TYPE_CHECKING:
    from tidelog.client.workers.replay import Place, ReplayPart


@click.command()
@click.argument("topic", metavar="TOPIC[:0,1]")
@click.option("--from-beginning", is_flag=True, help="From the first record.")
@click.option("--from-offset", type=click.IntRange(0, INT64_MAX), metavar="N", help="From this offset on.")
@click.option("--from-time", metavar="TIME", help="From this time on: ISO 8601, or ms since 1970.")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="From this long ago on, e.g. PT1H30M.")
@click.option("--until-offset", type=click.IntRange(0, INT64_MAX), metavar="N", help="To before this offset.")
@click.option("--until-time", metavar="TIME", help="To before this time. Default: the end now.")
@click.option("--group", metavar="GROUP", help="Let a new group begin there; its consumers go on past the end.")
@click.option("--copy-to", metavar="TOPIC", help="Copy the records into this topic, each once.")
@click.option("--id", "replay_id", metavar="ID", help="Name of the copy. Default: both topics' names.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Copy at most N records a second.")
@click.option("--execute", is_flag=True, help="Do it.")
@click.option("--dry-run", is_flag=True, help="Only show what would be read; the default.")
@cluster_options
def replay(
    topic: str,
    from_beginning: bool,
    from_offset: int | None,
    from_time: str | None,
    by_duration: str | None,
    until_offset: int | None,
    until_time: str | None,
    group: str | None,
    copy_to: str | None,
    replay_id: str | None,
    rate: float | None,
    execute: bool,
    dry_run: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Read a part of TOPIC again, of all or the named partitions. Without --execute, only show what would be read.

    A copy that was interrupted goes on where it ended, to the end that it was begun with; a finished one needs another
    --id to be made again. To move a group that is in use, see `tidelog groups reset-offsets`.
    """
    from tidelog.client.workers.replay import Replay

    starts: list[Place] = [0] if from_beginning else []
    starts += [] if from_offset is None else [from_offset]
    starts += [] if from_time is None else [_time(from_time, "--from-time")]
    starts += [] if by_duration is None else [timedelta(milliseconds=duration_ms(by_duration, "--by-duration"))]
    if len(starts) != 1:
        raise click.UsageError(
            "expected one of --from-beginning, --from-offset, --from-time and --by-duration, found "
            f"{'several' if starts else 'none'}"
        )
    if until_offset is not None and until_time is not None:
        raise click.UsageError("expected --until-offset or --until-time, found both")
    if execute and (dry_run or (group is None) == (copy_to is None)):
        raise click.UsageError("expected --execute with one of --group and --copy-to, and without --dry-run")
    if copy_to is None and (replay_id is not None or rate is not None):
        raise click.UsageError("expected --copy-to with --id and --rate, found none")
    end: Place | None = until_offset if until_time is None else _time(until_time, "--until-time")
    try:
        name, partitions = parse_topic(topic)
        if copy_to == name:
            raise ValueError(f"--copy-to: expected a topic other than {name}, found the same")
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    job = Replay(bootstrap, name, start=starts[0], end=end, partitions=partitions or None, rate=rate, **secured())
    if execute and copy_to is not None:
        counts = job.to_topic(copy_to, replay_id=replay_id)
        if as_json:
            print_json({"executed": True, "copied": counts.done, "looping": counts.looping, "resumed": counts.resumed})
            return
        say(f"{count_of(counts.done, 'record')} copied{', after what was copied before' if counts.resumed else ''}")
        if counts.looping:
            say(f"{counts.looping} left: copied out of {copy_to} before")
        if counts.resumed and not counts.done:
            say("this copy was finished before: use another --id to make it again")
        return
    parts = job.to_group(group) if execute and group is not None else job.plan()
    _show(parts, execute, as_json)


def _time(text: str, option: str) -> datetime:
    return datetime.fromtimestamp(time_ms(text, option) / 1_000, UTC)


def _show(parts: list[ReplayPart], executed: bool, as_json: bool) -> None:
    if as_json:
        told = [{"partition": at.partition, "start": start, "end": end} for at, start, end in parts]
        print_json({"executed": executed, "partitions": told})
        return
    print_rows(
        ("partition", "from offset", "to before", "offsets"),
        [(at.partition, start, end, end - start) for at, start, end in parts],
    )
    if not executed:
        say("nothing was done: use --execute with --group or --copy-to")
