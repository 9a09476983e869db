"""``tidelog topics``: shows and changes topics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.commands.administration.verify_replicas import verify
from tidelog.cli.commands.placement.moves import lift_throttle, pace_options, take_back, telling
from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.numbers import INT32_MAX, INT64_MAX
from tidelog.cli.terminal.output import count_of, megabytes, print_json, print_rows, say
from tidelog.cli.terminal.settings import settings_option
from tidelog.cli.terminal.times import time_ms
from tidelog.cli.work.replicas.moving import Mover, Pace
from tidelog.cli.work.replicas.placement import overview_of
from tidelog.cli.work.replicas.safe_moves import resize_plan
from tidelog.cli.work.replicas.spreading import cost_of
from tidelog.model.ids import TopicPartition, id_text

if TYPE_CHECKING:
    from tidelog import Admin, OffsetSpec
    from tidelog.client.admin.types import TopicDescription


@click.group()
def topics() -> None:
    """List, create, describe, grow and delete topics."""


topics.add_command(verify)


@topics.command("list")
@click.option("--internal", is_flag=True, help="Include the cluster's own topics.")
@cluster_options
def list_topics(internal: bool, bootstrap: str, as_json: bool) -> None:
    """List topics with their partitions and replicas."""
    with admin_client(bootstrap) as admin:
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
@click.option(
    "--partitions", type=click.IntRange(1, INT32_MAX), help="Number of partitions.  [default: num.partitions]"
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 32_767),
    help="Replicas of each partition.  [default: default.replication.factor]",
)
@click.option(
    "--assign",
    "assignments",
    multiple=True,
    metavar="NODE,...",
    help="A partition's nodes, the leader first; repeatable.",
)
@settings_option("A setting of the topic, e.g. retention.ms=3600000; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@click.option("--dry-run", is_flag=True, help="Only check whether the topic could be created.")
@cluster_options
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
    from tidelog import NewTopic
    from tidelog.model.errors import ErrorCode, TidelogError

    if assignments and (partitions or replicas):
        raise click.UsageError("expected either --assign or --partitions and --replicas, found both")
    placed = {number: _nodes(text) for number, text in enumerate(assignments)}
    with admin_client(bootstrap) as admin:
        try:
            topic = NewTopic(name, partitions or -1, replicas or -1, settings, placed)
            (made,) = admin.create_topics([topic], validate_only=dry_run)
        except TidelogError as refused:
            if not (if_not_exists and refused.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                raise
            if as_json:
                print_json({"name": name, "created": False})
            else:
                say(f"{name} already exists")
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
        say(f"{name} {verb}: {partitions_made}, {count_of(made.replication_factor, 'replica')} each")


@topics.command(short_help="Show leader, replicas and offsets of partitions.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--unhealthy", is_flag=True, help="Only partitions without a leader or with replicas not in sync.")
@cluster_options
def describe(names: tuple[str, ...], unhealthy: bool, bootstrap: str, as_json: bool) -> None:
    """Show each partition of the named topics (default: all): leader, replicas, in-sync replicas, first and end
    offset."""
    with admin_client(bootstrap) as admin:
        wanted = names or tuple(topic.name for topic in admin.list_topics())
        found = admin.describe_topics(wanted) if wanted else []
        if unhealthy:
            found = _unhealthy(admin, found)
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
@click.option("--partitions", type=click.IntRange(1, INT32_MAX), help="The new total; it can only grow.")
@click.option("--replicas", type=click.IntRange(1, 32_767), help="New number of replicas of each partition.")
@click.option("--cancel", "cancels", is_flag=True, help="Cancel the topic's moves in progress.")
@pace_options
@cluster_options
def alter(
    name: str,
    partitions: int | None,
    replicas: int | None,
    cancels: bool,
    throttle: int | None,
    at_once: int,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Give topic NAME more partitions, or another number of replicas.

    With more partitions, keys map to different partitions from then on. New replicas go to the brokers and racks with
    the most room. When there are too many replicas, those on brokers that are down, or on crowded racks or brokers, go
    first. The command waits until the replicas are in sync. Ctrl-C leaves moves in progress running; the same command
    continues later.
    """
    if [partitions is not None, replicas is not None, cancels].count(True) != 1:
        raise click.UsageError("expected one of --partitions, --replicas and --cancel")
    with admin_client(bootstrap) as admin:
        if cancels:
            (described,) = admin.describe_topics([name])
            own = [TopicPartition(name, part.partition) for part in described.partitions]
            take_back(admin, admin.list_partition_reassignments(own), as_json)
            return
        if partitions is not None:
            admin.create_partitions({name: partitions})
            if as_json:
                print_json({"name": name, "partitions": partitions})
            else:
                say(f"{name} has {count_of(partitions, 'partition')}")
            return
        assert replicas is not None
        _alter_replicas(admin, name, replicas, Pace(throttle, at_once), as_json)


def _alter_replicas(admin: Admin, name: str, replicas: int, pace: Pace, as_json: bool) -> None:
    admin.describe_topics([name])  # raises if it does not exist
    found = overview_of(admin)
    wanted = resize_plan(admin, found, name, replicas)
    also = [at for at in found.ongoing if at.topic == name]
    if wanted and not as_json:
        cost = cost_of(found.parts(), wanted)
        say(f"to copy: {count_of(cost.replicas, 'replica')}, {megabytes(cost.size)}")
    moved = Mover(admin, found, wanted, pace, telling(as_json), also=also, changes_factor=True).run()
    moved.check()
    lifted = lift_throttle(admin)
    if as_json:
        print_json(
            {
                "name": name, "replicas": replicas, "changed": len(moved.done), "bytes": moved.size,
                "throttles_removed": lifted,
            }
        )  # fmt: skip
    else:
        say(f"{name} has {count_of(replicas, 'replica')} of each partition; {len(moved.done):,} changed")


@topics.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@cluster_options
def delete(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Delete topics and all their records. If one topic cannot be deleted, the others still are."""
    from tidelog.model.errors import TidelogError

    deleted: list[str] = []
    refused: list[str] = []
    with admin_client(bootstrap) as admin:
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
        say(f"deleted {', '.join(deleted)}")
    if refused:
        raise CommandFailed("; ".join(refused))


@topics.command("delete-records")
@click.argument("name")
@click.option(
    "--before", type=click.IntRange(-1, INT64_MAX), required=True, help="The first offset to keep; -1 keeps none."
)
@click.option(
    "--partition", "-p", "partitions", type=click.IntRange(0, INT32_MAX), multiple=True, help="Only this; repeatable."
)
@cluster_options
def delete_records(name: str, before: int, partitions: tuple[int, ...], bootstrap: str, as_json: bool) -> None:
    """Delete the records of topic NAME before an offset."""
    with admin_client(bootstrap) as admin:
        there = [part.partition for part in admin.describe_topics([name])[0].partitions]
        starts = admin.delete_records({TopicPartition(name, number): before for number in partitions or there})
    if as_json:
        print_json([{"partition": at.partition, "first_offset": start} for at, start in sorted(starts.items())])
    else:
        print_rows(("partition", "first"), [(at.partition, start) for at, start in sorted(starts.items())])


@topics.command(short_help="Look up offsets: first, end, by time.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--time",
    "when",
    metavar="TIME",
    default="latest",
    show_default=True,
    help="earliest, latest, max-timestamp (the record with the highest), or the first record at or after a time: "
    "ISO 8601, or ms since 1970.",
)
@click.option(
    "--partition", "-p", "partitions", type=click.IntRange(0, INT32_MAX), multiple=True, help="Only this; repeatable."
)
@click.option("--internal", is_flag=True, help="Include the cluster's own topics if no topic is named.")
@cluster_options
def offsets(
    names: tuple[str, ...], when: str, partitions: tuple[int, ...], internal: bool, bootstrap: str, as_json: bool
) -> None:
    """Show an offset of each partition of the named topics (default: all), with the time of its record if it was
    looked up by time. There is none if no record qualifies, or if the partition has no leader."""
    spec = _spec(when)
    with admin_client(bootstrap) as admin:
        wanted = names or tuple(topic.name for topic in admin.list_topics(internal=internal))
        described = admin.describe_topics(wanted) if wanted else []
        parts = {
            TopicPartition(topic.name, part.partition): part
            for topic in described
            for part in topic.partitions
            if not partitions or part.partition in partitions
        }
        if missing := set(partitions) - {at.partition for at in parts}:
            raise CommandFailed(
                f"expected partitions that exist, found {min(missing)}: none of the named topics has it"
            )
        led = [at for at, part in parts.items() if part.leader >= 0]
        found = admin.list_offsets(dict.fromkeys(led, spec)) if led else {}
    rows: list[dict[str, Any]] = []
    for at, part in parts.items():
        one = found.get(at)
        there = one is not None and one.offset >= 0
        rows.append(
            {
                "topic": at.topic, "partition": at.partition, "leader": None if part.leader < 0 else part.leader,
                "offset": one.offset if one and there else None,
                "timestamp": one.timestamp if one and there and one.timestamp >= 0 else None,
            }
        )  # fmt: skip
    if as_json:
        print_json(rows)
    else:
        columns = ("topic", "partition", "offset", "timestamp")
        print_rows(columns, [(*(row[name] for name in columns[:3]), _plain(row["timestamp"])) for row in rows])
    for row in rows:
        if row["leader"] is None:
            say(f"{row['topic']}-{row['partition']} has no leader, so its offsets are unknown", err=True)


def _spec(when: str) -> OffsetSpec:
    from tidelog import OffsetSpec

    named = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest, "max-timestamp": OffsetSpec.max_timestamp}
    if when in named:
        return named[when]()
    try:
        return OffsetSpec.for_timestamp(time_ms(when, "--time"))
    except click.BadParameter as wrong:
        raise click.BadParameter(
            f"expected earliest, latest, max-timestamp, or a time; {wrong.message}", param_hint="--time"
        ) from None


def _plain(number: int | None) -> str | None:
    """Format without separators, so that the number can be copied into another command."""
    return None if number is None else str(number)


def _unhealthy(admin: Admin, found: list[TopicDescription]) -> list[TopicDescription]:
    """Only what the rules of health find something about. Replicas that are being added are not missed yet."""
    from tidelog.broker.health.cluster_rules import whole
    from tidelog.broker.health.facts import Partition
    from tidelog.client.errors import TidelogError

    try:
        moves = admin.list_partition_reassignments()
    except TidelogError:  # a person who may not ask sees such partitions as well
        moves = {}
    kept = []
    for topic in found:
        parts = []
        for part in topic.partitions:
            at = TopicPartition(topic.name, part.partition)
            adding = tuple(map(int, moves[at].adding_replicas)) if at in moves else ()
            if not whole(Partition(at, part.leader, tuple(part.replicas), tuple(part.isr), adding)):
                parts.append(part)
        kept.append(replace(topic, partitions=tuple(parts)))
    return kept


def _offsets(admin: Admin, found: list[TopicDescription]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first and end offset of every partition that has a leader."""
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
            f"expected node ids separated by commas, found {text!r}", param_hint="--assign"
        ) from None
