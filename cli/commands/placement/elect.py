"""``tidelog elect``: lets preferred replicas lead, or any live replica where there is no leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.numbers import INT32_MAX
from tidelog.cli.terminal.output import count_of, print_json, print_rows, say
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog import Admin


@click.command(short_help="Elect preferred leaders, or any leader where there is none.")
@click.option("--all", "every", is_flag=True, help="All partitions.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic's partitions; repeatable.")
@click.option(
    "--partition", "-p", "numbers", type=click.IntRange(0, INT32_MAX), multiple=True, help="Only this; repeatable."
)
@click.option(
    "--unclean", is_flag=True, help="If there is no leader, elect any live replica. Records that it lacks are lost."
)
@click.option("--yes", is_flag=True, help="Do not ask before an unclean election.")
@cluster_options
def elect(
    every: bool,
    topics: tuple[str, ...],
    numbers: tuple[int, ...],
    unclean: bool,
    yes: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Make the first replica of each partition its leader, if it is live and in sync and another replica leads."""
    from tidelog.model.errors import TidelogError

    if every is bool(topics):
        raise click.UsageError("expected either --all or --topic")
    if numbers and len(topics) != 1:
        raise click.UsageError("expected one --topic with --partition")
    if unclean and not yes:
        click.confirm("Records that the elected replicas lack are lost for good. Continue?", abort=True, err=True)
    with admin_client(bootstrap) as admin:
        chosen = None if every else _chosen(admin, topics, numbers)
        try:
            elected = admin.elect_leaders(chosen, unclean=unclean)
            refused: list[str] = []
        except TidelogError as error:
            if not error.failures:
                raise
            refused = [f"{one.code.name}: {one}" for one in error.failures.values()]
            elected = {}
        leaders = _leaders(admin, [at for at, made in elected.items() if made])
    if as_json:
        print_json(
            [{"topic": at.topic, "partition": at.partition, "leader": node} for at, node in sorted(leaders.items())]
        )
    elif leaders:
        print_rows(
            ("topic", "partition", "leader"),
            [(at.topic, at.partition, "none" if node < 0 else node) for at, node in sorted(leaders.items())],
        )
    elif not refused:
        say("no election was needed")
    if refused:
        more = f"; and {count_of(len(refused) - 10, 'partition')} more" if len(refused) > 10 else ""
        raise CommandFailed("; ".join(refused[:10]) + more + " (the others that needed an election were elected)")


def _chosen(admin: Admin, topics: tuple[str, ...], numbers: tuple[int, ...]) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, number)
        for topic in admin.describe_topics(topics)
        for number in (numbers or [part.partition for part in topic.partitions])
    ]


def _leaders(admin: Admin, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    described = admin.describe_topics(sorted({at.topic for at in places})) if places else []
    return {
        at: int(part.leader)
        for topic in described
        for part in topic.partitions
        if (at := TopicPartition(topic.name, part.partition)) in places
    }
