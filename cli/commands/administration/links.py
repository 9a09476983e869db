"""``tidelog links``: mirrors topics of another cluster with their offsets, until they are promoted."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import bootstrap_option, cluster_options, read_command_config, secured
from tidelog.cli.terminal.output import count_of, megabytes, print_json, print_rows, say

if TYPE_CHECKING:
    from tidelog.client.links.definition import LinkDefinition
    from tidelog.client.links.linked import LinkAdmin
    from tidelog.client.links.managing import LinkStatus, OpenTransaction, Promotion
    from tidelog.client.links.source import Source

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
_CLIENT_ID: Final = "tidelog-link"
_NAME: Final = click.argument("name")
_TOPIC: Final = click.option("--topic", "topics", multiple=True, help="Only this topic. Default: all of the link's.")


def _source_config(command: F) -> F:
    return click.option(
        "--source-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="How to connect to the source: a .properties file as for --command-config. It stays on this machine.",
    )(command)


@click.group()
def links() -> None:
    """Mirror topics of another cluster with their offsets, and promote them.

    --bootstrap is the target cluster, --source the source cluster: Tidelog or Apache Kafka.
    """


@links.command(short_help="Make a link and its topics.")
@_NAME
@click.option("--source", required=True, metavar="HOST:PORT,...", help="Source brokers, at their Kafka listener.")
@click.option(
    "--topics", multiple=True, required=True, metavar="REGEX", help="Topics to link, matched by full name; repeatable."
)
@click.option(
    "--groups", multiple=True, default=(".*",), metavar="REGEX", help="Groups whose offsets are copied. Default: all."
)
@_source_config
@cluster_options
def create(
    name: str,
    source: str,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    source_config: Path | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Make the link NAME and its topics. `tidelog links run NAME` then fills them.

    The topics get the source's partitions and settings. Nobody can write to them until they are promoted. Matching
    topics that the source gets later are linked too.
    """
    from tidelog.client.links.managing import create_link

    async def make(admin: LinkAdmin) -> Any:
        async with _Opened(source, source_config) as opened:
            return await create_link(admin, opened, name, source, topics, groups)

    kept = _with_admin(bootstrap, make)
    if as_json:
        print_json({"link": name, "topics": sorted(kept.topics), "problems": dict(kept.problems)})
        return
    say(f"link {name} has {count_of(len(kept.topics), 'topic')}: {', '.join(sorted(kept.topics)) or 'none yet'}")
    for problem in kept.problems.values():
        say(problem, err=True)


@links.command(short_help="Fill a link's topics, until it is stopped.")
@_NAME
@_source_config
@bootstrap_option
def run(name: str, source_config: Path | None, bootstrap: str) -> None:
    """Copy the source's existing and new records, until SIGTERM or SIGINT. Reports on standard error.

    It may be killed and restarted at any time, here or elsewhere. Several instances may run at once.
    """
    from tidelog.client.links.linking import LinkRunner

    async def work(admin: LinkAdmin) -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        definition = await admin.definition(name)
        async with _Opened(",".join(definition.bootstrap), source_config) as opened:
            say(f"link {name} is running", err=True)
            await LinkRunner(admin, opened, definition, partial(say, err=True)).run(stopping)
        say(f"link {name} has stopped", err=True)

    _with_admin(bootstrap, work)


@links.command("list", short_help="List links.")
@cluster_options
def list_links(bootstrap: str, as_json: bool) -> None:
    """List the links whose target is this cluster."""
    found = _with_admin(bootstrap, lambda admin: admin.definitions())
    rows = [
        (one.name, one.cluster_id, ",".join(one.bootstrap), " ".join(one.topics), " ".join(one.groups))
        for one in found.values()
    ]
    columns = ("link", "source", "addresses", "topics", "groups")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_rows(columns, rows)


@links.command(short_help="Show a link's progress.")
@_NAME
@click.option(
    "--until-level",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait up to this long until all records and groups' commits are here; else exit code 1.",
)
@cluster_options
def status(name: str, until_level: float | None, bootstrap: str, as_json: bool) -> None:
    """Show each partition of the link NAME, as last reported by `tidelog links run`, and open transactions.

    If you promoted now, these transactions would be aborted here. One that has already ended in other partitions would
    be torn.
    """
    from tidelog.client.links.managing import level_status, status_of

    async def look(admin: LinkAdmin) -> LinkStatus:
        return await (status_of(admin, name) if until_level is None else level_status(admin, name, until_level))

    found = _with_admin(bootstrap, look)
    rows = _status_rows(found, int(time.time() * 1000))
    if as_json:
        print_json(
            {"link": name, "partitions": rows, "transactions": [_transaction(one) for one in found.transactions]}
        )
        return
    columns = ("topic", "partition", "state", "offset", "source end", "lag", "lag s", "heard of s ago")
    print_rows(columns, [tuple(row[column.replace(" ", "_")] for column in columns) for row in rows])
    for row in rows:
        if row["reason"]:
            say(f"{row['topic']}-{row['partition']}: {row['reason']}")
    _print_transactions(found.transactions, "open")


@links.command(short_help="Compare a link's topics with the source, batch by batch.")
@_NAME
@_TOPIC
@_source_config
@cluster_options
def verify(name: str, topics: tuple[str, ...], source_config: Path | None, bootstrap: str, as_json: bool) -> None:
    """Read all records of the link's topics in both clusters and compare them. Exit code 1 if there is a difference."""
    from tidelog.client.links.managing import verify_link

    async def compare(admin: LinkAdmin) -> Any:
        definition = await admin.definition(name)
        async with _Opened(",".join(definition.bootstrap), source_config) as opened:
            return await verify_link(admin, opened, name, topics)

    found = _with_admin(bootstrap, compare)
    rows = [
        {"topic": at.topic, "partition": at.partition, "batches": one.batches, "bytes": one.size, "fault": one.fault}
        for at, one in sorted(found.items())
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(
            ("topic", "partition", "batches", "data"),
            [(row["topic"], row["partition"], row["batches"], megabytes(row["bytes"])) for row in rows],
        )
    faults = [f"{row['topic']}-{row['partition']}: {row['fault']}" for row in rows if row["fault"]]
    if faults:
        raise CommandFailed("; ".join(faults))


@links.command(short_help="Make a link's topics writable.")
@_NAME
@_TOPIC
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="First stop producers at the source (Tidelog), and wait until everything is copied.",
)
@_source_config
@cluster_options
def promote(
    name: str,
    topics: tuple[str, ...],
    drain: float | None,
    source_config: Path | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Take topics out of the link NAME: copying stops, open transactions are aborted, and clients may write.

    Without --drain, records that the source has beyond the link's position are not copied. If the command is
    interrupted, run it again; without --drain, if it says that a promotion has begun.
    """
    from tidelog.client.links import reversing
    from tidelog.client.links.managing import promote as make_writable

    async def work(admin: LinkAdmin) -> Promotion:
        if drain is None:
            return await make_writable(admin, name, topics)
        async with _old_source(await admin.definition(name), source_config) as old:
            return await reversing.drain(admin, old, name, topics, drain)

    found = _with_admin(bootstrap, work)
    rows = [
        {
            "topic": at.topic,
            "partition": at.partition,
            "end": end,
            "behind_source": found.positions[at].lag if at in found.positions else None,
        }
        for at, end in sorted(found.ends.items())
    ]
    if as_json:
        print_json({"link": name, "partitions": rows, "aborted": [_transaction(one) for one in found.aborted]})
        return
    columns = ("topic", "partition", "end", "behind source")
    print_rows(columns, [tuple(row[column.replace(" ", "_")] for column in columns) for row in rows])
    _print_transactions(found.aborted, "aborted")


@links.command(short_help="Let a link's old source follow this cluster.")
@_NAME
@click.option(
    "--source", required=True, metavar="HOST:PORT,...", help="Some brokers of this cluster, at their Kafka listener."
)
@_source_config
@cluster_options
def reverse(name: str, source: str, source_config: Path | None, bootstrap: str, as_json: bool) -> None:
    """Create the link NAME at its old source, once its topics were promoted here. `tidelog links run NAME --bootstrap
    OLD` then copies what is written here to the topics there.

    Each log there must be a prefix of the log here, as it is after `promote --drain`. The command compares all of it.
    --source-config says how to connect to the old source.
    """
    from tidelog.client.links import reversing

    async def work(admin: LinkAdmin) -> list[str]:
        async with _old_source(await admin.definition(name), source_config) as old, _Opened(source, secured()) as here:
            return (await reversing.reverse(admin, here, old, name, source))[1]

    found = _with_admin(bootstrap, work)
    if as_json:
        print_json({"link": name, "topics": found})
        return
    say(f"link {name} now fills {count_of(len(found), 'topic')} at its old source: {', '.join(found)}")


@links.command(short_help="Forget a link whose topics were promoted.")
@_NAME
@cluster_options
def delete(name: str, bootstrap: str, as_json: bool) -> None:
    """Forget the link NAME. Its topics must have been promoted or deleted; a running `tidelog links run` stops."""
    from tidelog.client.links.managing import delete_link

    _with_admin(bootstrap, lambda admin: delete_link(admin, name))
    if as_json:
        print_json({"link": name, "deleted": True})
    else:
        say(f"link {name} is deleted")


class _Opened:
    """The source, open within a block."""

    def __init__(self, bootstrap: str, config: Path | dict[str, Any] | None) -> None:
        from tidelog.client.config.admin import AdminConfig
        from tidelog.client.config.settings import parse_bootstrap
        from tidelog.client.links.source import Source

        settings = AdminConfig.of(_settings(config))
        self._source: Source = Source(parse_bootstrap(bootstrap), settings, _CLIENT_ID)

    async def __aenter__(self) -> Source:
        return self._source

    async def __aexit__(self, *_: object) -> None:
        self._source.close()


def _settings(config: Path | dict[str, Any] | None) -> dict[str, Any]:
    return dict(read_command_config(config)) if isinstance(config, Path) else config or {}


def _old_source(definition: LinkDefinition, config: Path | None) -> LinkAdmin:
    """Return the source as a Tidelog cluster."""
    from tidelog.client.links.linked import LinkAdmin

    return LinkAdmin(definition.bootstrap, **_settings(config))


def _with_admin(bootstrap: str, work: Callable[[LinkAdmin], Coroutine[Any, Any, R]]) -> R:
    from tidelog.client.links.definition import LinkError
    from tidelog.client.links.kafka_connection import SourceLost, SourceRefused
    from tidelog.client.links.linked import LinkAdmin

    async def do() -> R:
        async with LinkAdmin(bootstrap, **secured()) as admin:
            return await work(admin)

    try:
        return asyncio.run(do())
    except (LinkError, SourceLost, SourceRefused) as error:
        raise CommandFailed(str(error)) from None


def _status_rows(found: LinkStatus, now_ms: int) -> list[dict[str, Any]]:
    rows = []
    for topic in found.topics.values():
        for at in topic.places:
            one = found.positions.get(at)
            state = "promoting" if not topic.takes_link else "waiting" if one is None else "copying"
            rows.append(
                {
                    "topic": at.topic,
                    "partition": at.partition,
                    "state": "stopped" if one is not None and one.reason else state,
                    "offset": None if one is None else one.offset,
                    "source_end": None if one is None else one.source_end,
                    "lag": None if one is None else one.lag,
                    "lag_s": None if one is None else one.lag_ms(one.told_ms) / 1000,
                    "heard_of_s_ago": None if one is None else max(0, now_ms - one.told_ms) / 1000,
                    "reason": "" if one is None else one.reason,
                }
            )
    return rows


def _transaction(one: OpenTransaction) -> dict[str, Any]:
    return {
        "topic": one.at.topic,
        "partition": one.at.partition,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "start_offset": one.start_offset,
        "ended_in": [str(at) for at in one.elsewhere],
    }


def _print_transactions(found: Any, how: str) -> None:
    for one in found:
        torn = f", ended in {', '.join(map(str, one.elsewhere))}: torn if it was committed" if one.elsewhere else ""
        say(f"{how}: transaction of producer {one.producer_id} in {one.at} from offset {one.start_offset} on{torn}")
