"""``tidelog topics``: what there is, and changing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.connection import bootstrap_option
from tidelog.cli.failure import CommandFailed
from tidelog.cli.numbers import INT32_MAX, INT64_MAX
from tidelog.cli.output import count_of, json_option, print_json, print_rows
from tidelog.cli.settings import settings_option
from tidelog.model.ids import TopicPartition, id_text

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin_types import PartitionDescription, TopicDescription


@click.group()
def topics() -> None:
    """List, create, describe, grow and delete topics."""


@topics.command("list")
@click.option("--internal", is_flag=True, help="The cluster's own topics too.")
@bootstrap_option
@json_option
def list_topics(internal: bool, bootstrap: str, as_json: bool) -> None:
    """List topics with their partitions and replicas."""
    from tidelog import Admin

    with Admin(bootstrap) as admin:
        found = admin.list_topics(internal=internal)
    if as_json:
        print_json(
            [
                {
                    "name": topic.name, "id": id_text(topic.topic_id), "internal": topic.is_internal,
                    "partitions": topic.partition_count, "replication_factor": topic.replication_factor,
                }
                for topic in found
            ]
        )  # fmt: skip
        return
    rows = [(topic.name, topic.partition_count, topic.replication_factor, id_text(topic.topic_id)) for topic in found]
    print_rows(("topic", "partitions", "replicas", "id"), rows)


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1, INT32_MAX), help="How many.  [default: num.partitions]")
@click.option(
    "--replicas", type=click.IntRange(1, 32_767), help="Of each partition.  [default: default.replication.factor]"
)
@click.option(
    "--assign",
    "assignments",
    multiple=True,
    metavar="NODE,...",
    help="A partition's nodes, the leader first; repeatable.",
)
@settings_option("A setting of the topic, e.g. retention.ms=3600000; may be given again.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if it is there.")
@click.option("--dry-run", is_flag=True, help="Only say whether it could be made.")
@bootstrap_option
@json_option
def create(
    name: str,
    partitions: int | None,
    replicas: int | None,
    assignments: tuple[str, ...],
    settings: dict[str, str],
    if_not_exists: bool,
    dry_run: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create topic NAME."""
    from tidelog import Admin, NewTopic
    from tidelog.model.errors import ErrorCode, TidelogError

    if assignments and (partitions or replicas):
        raise click.UsageError("expected either --assign or --partitions and --replicas, found both")
    placed = {number: _nodes(text) for number, text in enumerate(assignments)}
    with Admin(bootstrap) as admin:
        try:
            topic = NewTopic(name, partitions or -1, replicas or -1, settings, placed)
            (made,) = admin.create_topics([topic], validate_only=dry_run)
        except TidelogError as refused:
            if not (if_not_exists and refused.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                raise
            if as_json:
                print_json({"name": name, "created": False})
            else:
                click.echo(f"{name} is there already")
            return
    if as_json:
        print_json(
            {
                "name": made.name, "created": not dry_run, "id": id_text(made.topic_id),
                "partitions": made.num_partitions, "replication_factor": made.replication_factor,
            }
        )  # fmt: skip
    else:
        verb = "could be created" if dry_run else "created"
        partitions_made = count_of(made.num_partitions, "partition")
        click.echo(f"{name} {verb}: {partitions_made}, {count_of(made.replication_factor, 'replica')} each")


@topics.command(short_help="Show leader, replicas and offsets of partitions.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--unhealthy", is_flag=True, help="Only partitions without a leader or with replicas not in sync.")
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], unhealthy: bool, bootstrap: str, as_json: bool) -> None:
    """Show each partition of the named topics (all): leader, replicas, in-sync replicas, first and end offset."""
    from tidelog import Admin

    with Admin(bootstrap) as admin:
        wanted = names or tuple(topic.name for topic in admin.list_topics())
        found = admin.describe_topics(wanted) if wanted else []
        offsets = _offsets(admin, found)
    rows: list[dict[str, Any]] = [
        {
            "topic": topic.name, "partition": part.partition, "leader": part.leader, "leader_epoch": part.leader_epoch,
            "replicas": list(part.replicas), "isr": list(part.isr),
            "eligible_leader_replicas": list(part.eligible_leader_replicas),
            "offline_replicas": list(part.offline_replicas),
            "first_offset": offsets.get((topic.name, part.partition), (None, None))[0],
            "end_offset": offsets.get((topic.name, part.partition), (None, None))[1],
        }
        for topic in found
        for part in topic.partitions
        if not unhealthy or _unhealthy(part)
    ]  # fmt: skip
    if as_json:
        print_json(rows)
        return
    columns = ("topic", "partition", "leader", "epoch", "replicas", "in sync", "eligible", "first", "end")
    print_rows(
        columns,
        [
            (
                row["topic"], row["partition"], "none" if row["leader"] < 0 else row["leader"], row["leader_epoch"],
                row["replicas"], row["isr"], row["eligible_leader_replicas"] or "-",
                row["first_offset"], row["end_offset"],
            )
            for row in rows
        ],
    )  # fmt: skip


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1, INT32_MAX), required=True, help="The new total; it can only grow.")
@bootstrap_option
@json_option
def alter(name: str, partitions: int, bootstrap: str, as_json: bool) -> None:
    """Give topic NAME more partitions. Keys go to other partitions from then on."""
    from tidelog import Admin

    with Admin(bootstrap) as admin:
        admin.create_partitions({name: partitions})
    if as_json:
        print_json({"name": name, "partitions": partitions})
    else:
        click.echo(f"{name} has {count_of(partitions, 'partition')}")


@topics.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@bootstrap_option
@json_option
def delete(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Delete topics with all their records. One that cannot be deleted does not keep the others."""
    from tidelog import Admin
    from tidelog.model.errors import TidelogError

    deleted: list[str] = []
    refused: list[str] = []
    with Admin(bootstrap) as admin:
        for name in dict.fromkeys(names):
            try:
                admin.delete_topics([name])
            except TidelogError as wrong:
                refused.append(f"{wrong.code.name}: {wrong}")
            else:
                deleted.append(name)
    if as_json:
        print_json({"deleted": deleted})
    elif deleted:
        click.echo(f"deleted {', '.join(deleted)}")
    if refused:
        raise CommandFailed("; ".join(refused))


@topics.command("delete-records")
@click.argument("name")
@click.option(
    "--before", type=click.IntRange(-1, INT64_MAX), required=True, help="The first offset to keep; -1: none are kept."
)
@click.option(
    "--partition", "-p", "partitions", type=click.IntRange(0, INT32_MAX), multiple=True, help="Only this; repeatable."
)
@bootstrap_option
@json_option
def delete_records(name: str, before: int, partitions: tuple[int, ...], bootstrap: str, as_json: bool) -> None:
    """Delete the records of topic NAME before an offset."""
    from tidelog import Admin

    with Admin(bootstrap) as admin:
        there = [part.partition for part in admin.describe_topics([name])[0].partitions]
        starts = admin.delete_records({TopicPartition(name, number): before for number in partitions or there})
    if as_json:
        print_json([{"partition": at.partition, "first_offset": start} for at, start in sorted(starts.items())])
    else:
        print_rows(("partition", "first"), [(at.partition, start) for at, start in sorted(starts.items())])


def _unhealthy(part: PartitionDescription) -> bool:
    return part.leader < 0 or len(part.isr) < len(part.replicas)


def _offsets(admin: Admin, found: list[TopicDescription]) -> dict[tuple[str, int], tuple[int, int]]:
    """First and end offset of every partition that has a leader."""
    from tidelog import OffsetSpec

    led = [TopicPartition(t.name, part.partition) for t in found for part in t.partitions if part.leader >= 0]
    if not led:
        return {}
    first = admin.list_offsets(dict.fromkeys(led, OffsetSpec.earliest()))
    last = admin.list_offsets(dict.fromkeys(led, OffsetSpec.latest()))
    return {(at.topic, at.partition): (first[at].offset, last[at].offset) for at in led}


def _nodes(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(item) for item in text.split(","))
        if not all(0 <= node <= INT32_MAX for node in found):
            raise ValueError
        return found
    except ValueError:
        raise click.BadParameter(
            f"expected node ids with commas between, found {text!r}", param_hint="--assign"
        ) from None
