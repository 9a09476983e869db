"""``tidelog transactions``: lists open transactions, finds and ends hanging ones. Like ``kafka-transactions.sh``."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.commands.coordination.reset_offsets import Topics, topics_option
from tidelog.cli.commands.coordination.sinks import sinks
from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options
from tidelog.cli.terminal.numbers import INT32_MAX, INT64_MAX
from tidelog.cli.terminal.output import print_json, print_rows, say
from tidelog.cli.work.group_offsets import led_partitions
from tidelog.cli.work.hanging import OpenTransaction, coordinated, described, find_hanging, open_transactions
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.transaction_types import AbortTransactionSpec, ProducerState, TransactionDescription

STATES: Final = (
    "Empty", "Ongoing", "Prepared", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
)  # fmt: skip
INT16_MAX: Final = (1 << 15) - 1


@click.group()
def transactions() -> None:
    """List and describe transactions, find and end hanging ones."""


transactions.add_command(sinks)


@transactions.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="Only transactional ids in this state; repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=click.IntRange(0, INT64_MAX),
    multiple=True,
    help="Only the transactional id with this producer id; repeatable.",
)
@click.option(
    "--duration-filter",
    "duration_ms",
    metavar="MS",
    type=click.IntRange(0, INT64_MAX),
    help="Only those with a transaction open for longer than this, in ms.",
)
@cluster_options
def list_transactions(
    states: tuple[str, ...], producer_ids: tuple[int, ...], duration_ms: int | None, bootstrap: str, as_json: bool
) -> None:
    """List transactional ids with their states."""
    with admin_client(bootstrap) as admin:
        found = admin.list_transactions(states=states, producer_ids=producer_ids, duration_ms=duration_ms)
    if as_json:
        print_json(
            [
                {
                    "transactional_id": one.transactional_id, "coordinator": one.coordinator,
                    "producer_id": one.producer_id, "state": one.state,
                }
                for one in found
            ]
        )  # fmt: skip
        return
    rows = [(one.transactional_id, one.coordinator, str(one.producer_id), one.state) for one in found]
    print_rows(("transactional id", "coordinator", "producer id", "state"), rows)


@transactions.command(short_help="Show transactional ids and their open transactions.")
@click.argument("names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@cluster_options
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show the coordinator, state and identity of transactional ids, and the partitions of each open transaction."""
    with admin_client(bootstrap) as admin:
        found, missing = described(admin, tuple(dict.fromkeys(names)))
    if found:
        _show_descriptions(found.values(), as_json, _now_ms())
    if missing:
        raise CommandFailed("; ".join(missing.values()))


@transactions.command("describe-producers", short_help="Show the producers that a partition knows.")
@topics_option(required=True)
@cluster_options
def describe_producers(topics: Topics, bootstrap: str, as_json: bool) -> None:
    """Show what partition leaders know about producers: epoch, last sequence, start of an open transaction."""
    with admin_client(bootstrap) as admin:
        found = admin.describe_producers(_chosen(admin, topics))
    rows = [(at, one) for at, producers in found.items() for one in producers]
    if as_json:
        print_json([{"topic": at.topic, "partition": at.partition} | _producer_json(one) for at, one in rows])
        return
    columns = (
        "topic", "partition", "producer id", "epoch", "coordinator epoch", "last sequence", "last active",
        "transaction start",
    )  # fmt: skip
    print_rows(
        columns,
        [
            (
                at.topic, at.partition, str(one.producer_id), str(one.producer_epoch), _number(one.coordinator_epoch),
                str(one.last_sequence), _time(one.last_timestamp_ms), _number(one.current_transaction_start_offset),
            )
            for at, one in rows
        ],
    )  # fmt: skip


@transactions.command("find-hanging", short_help="Find transactions that no coordinator will end.")
@topics_option()
@click.option("--broker", type=click.IntRange(0, INT32_MAX), help="Search the partitions that this node leads.")
@click.option(
    "--max-transaction-timeout",
    "minutes",
    metavar="MINUTES",
    type=click.IntRange(0, INT32_MAX),
    default=15,
    show_default=True,
    help="Only if the producer is silent for longer; use at least the brokers' transaction.max.timeout.ms.",
)
@cluster_options
def find_hanging_transactions(topics: Topics, broker: int | None, minutes: int, bootstrap: str, as_json: bool) -> None:
    """Find transactions that are open in a partition but unknown to their coordinator. They block readers of committed
    records; `abort` ends them."""
    if not topics and broker is None:
        raise click.UsageError("expected --topic or --broker, found neither")
    with admin_client(bootstrap) as admin:
        partitions = _chosen(admin, topics) if topics else _all_partitions(admin)
        if broker is not None:
            partitions = _led_by(admin, broker, partitions)
        found = find_hanging(admin, partitions, minutes * 60_000, _now_ms)
    _show_hanging(found, as_json, _now_ms())


@transactions.command(short_help="End a hanging transaction in one partition.")
@click.option("--topic", metavar="NAME", required=True, help="The topic.")
@click.option("--partition", type=click.IntRange(0, INT32_MAX), required=True, help="The partition.")
@click.option("--start-offset", type=click.IntRange(0, INT64_MAX), help="Where the transaction began.")
@click.option("--producer-id", type=click.IntRange(0, INT64_MAX), help="Its producer id instead, with both epochs.")
@click.option("--producer-epoch", type=click.IntRange(0, INT16_MAX), help="The producer's epoch.")
@click.option(
    "--coordinator-epoch", type=click.IntRange(-1, INT32_MAX), help="The coordinator's epoch; -1 if none is known."
)
@cluster_options
def abort(
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Abort a transaction that hangs in a partition. Name it by its start offset there, or by its producer.

    `find-hanging` shows such transactions. The command refuses a transaction that its coordinator knows: use
    `force-terminate` to end it in all its partitions."""
    from tidelog.client.admin.transaction_types import AbortTransactionSpec

    identity = (producer_id, producer_epoch, coordinator_epoch)
    if (start_offset is None) == all(part is None for part in identity):
        found = "neither" if start_offset is None else "both"
        raise click.UsageError(f"expected --start-offset or --producer-id, found {found}")
    if start_offset is None and None in identity:
        raise click.UsageError("expected --producer-id, --producer-epoch and --coordinator-epoch together")
    with admin_client(bootstrap) as admin:
        (at,) = _chosen(admin, {topic: (partition,)})
        if start_offset is not None:
            spec = _starting_at(admin, at, start_offset)
        else:
            assert producer_id is not None
            assert producer_epoch is not None
            assert coordinator_epoch is not None
            spec = AbortTransactionSpec(at, producer_id, producer_epoch, max(0, coordinator_epoch))
        _require_hanging(admin, spec)
        admin.abort_transaction(spec)
    if as_json:
        print_json(
            {
                "topic": topic, "partition": partition, "producer_id": spec.producer_id,
                "producer_epoch": spec.producer_epoch, "coordinator_epoch": spec.coordinator_epoch,
            }
        )  # fmt: skip
    else:
        say(f"aborted the transaction of producer {spec.producer_id}, epoch {spec.producer_epoch}, in {at}")


@transactions.command("force-terminate", short_help="Abort a transactional id's open transaction.")
@click.argument("name", metavar="TRANSACTIONAL_ID")
@cluster_options
def force_terminate(name: str, bootstrap: str, as_json: bool) -> None:
    """Abort TRANSACTIONAL_ID's open transaction, even if it is prepared and waits for an external decision, and fence
    its producer."""
    with admin_client(bootstrap) as admin:
        admin.force_terminate_transaction(name)
        found = admin.describe_transactions([name])[name]
    if as_json:
        print_json({"transactional_id": name, "producer_id": found.producer_id, "producer_epoch": found.producer_epoch})
    else:
        say(f"{name} has no open transaction now; its producer is fenced")


# --- Asking ----------------------------------------------------------------------------------------------


def _chosen(admin: Admin, topics: Topics) -> list[TopicPartition]:
    """Return the named partitions; a topic alone means all of its partitions. Raises :class:`CommandFailed` for an
    unknown one."""
    there = sorted(led_partitions(admin, topics))
    chosen: list[TopicPartition] = []
    for topic, numbers in topics.items():
        own = [at for at in there if at.topic == topic]
        if not own:
            raise CommandFailed(f"{topic}: expected a topic that exists")
        for number in numbers:
            if TopicPartition(topic, number) not in own:
                raise CommandFailed(f"{topic}-{number}: expected a partition from 0 to {len(own) - 1}")
        chosen += [at for at in own if not numbers or at.partition in numbers]
    return chosen


def _all_partitions(admin: Admin) -> list[TopicPartition]:
    return sorted(led_partitions(admin, [topic.name for topic in admin.list_topics(internal=True)]))


def _led_by(admin: Admin, broker: int, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions that this node leads. Raises :class:`CommandFailed` for an unknown node."""
    nodes = sorted(one.node_id for one in admin.describe_cluster().brokers)
    if broker not in nodes:
        raise CommandFailed(f"--broker: expected one of the brokers {', '.join(map(str, nodes))}, found {broker}")
    wanted = set(partitions)
    return [
        at
        for topic in admin.describe_topics(sorted({at.topic for at in partitions}))
        for one in topic.partitions
        if one.leader == broker and (at := TopicPartition(topic.name, one.partition)) in wanted
    ]


def _starting_at(admin: Admin, at: TopicPartition, start_offset: int) -> AbortTransactionSpec:
    from tidelog.client.admin.transaction_types import AbortTransactionSpec

    found = open_transactions(admin.describe_producers([at]))
    for one in found:
        if one.start_offset == start_offset:
            return AbortTransactionSpec.of(at, one.producer)
    offsets = ", ".join(str(one.start_offset) for one in found)
    there = f"those at {offsets}" if found else "no open transaction at all"
    raise CommandFailed(f"{at}: expected an open transaction that began at offset {start_offset}, found {there}")


def _require_hanging(admin: Admin, spec: AbortTransactionSpec) -> None:
    """Refuse if the coordinator may yet commit the transaction: ending it in one partition would tear it apart."""
    known = coordinated(admin, [spec.producer_id]).get(spec.producer_id)
    if known is not None and spec.topic_partition in known.topic_partitions:
        raise CommandFailed(
            f"{spec.topic_partition}: expected a hanging transaction, found one of {known.transactional_id} that its "
            f"coordinator will end ({known.state}); `tidelog transactions force-terminate {known.transactional_id}` "
            "aborts all of it now"
        )


# --- Showing ---------------------------------------------------------------------------------------------


def _show_descriptions(found: Iterable[TransactionDescription], as_json: bool, now_ms: int) -> None:
    if as_json:
        print_json(
            [
                {
                    "transactional_id": one.transactional_id, "coordinator": one.coordinator.node_id,
                    "producer_id": one.producer_id, "producer_epoch": one.producer_epoch, "state": one.state,
                    "timeout_ms": one.transaction_timeout_ms, "start_time_ms": one.transaction_start_time_ms,
                    "duration_ms": _since_ms(one, now_ms),
                    "partitions": [{"topic": at.topic, "partition": at.partition} for at in one.topic_partitions],
                }
                for one in found
            ]
        )  # fmt: skip
        return
    columns = (
        "transactional id", "coordinator", "producer id", "epoch", "state", "timeout", "begun", "open for",
        "partitions",
    )  # fmt: skip
    rows = [
        (
            one.transactional_id, one.coordinator.node_id, str(one.producer_id), str(one.producer_epoch), one.state,
            f"{one.transaction_timeout_ms:,} ms", _time(one.transaction_start_time_ms),
            None if (open_ms := _since_ms(one, now_ms)) is None else f"{open_ms:,} ms",
            " ".join(map(str, one.topic_partitions)) or "-",
        )
        for one in found
    ]  # fmt: skip
    print_rows(columns, rows)


def _since_ms(one: TransactionDescription, now_ms: int) -> int | None:
    """Return how long ago, never negative: a coordinator's clock may be ahead of ours."""
    return None if one.transaction_start_time_ms is None else max(0, now_ms - one.transaction_start_time_ms)


def _show_hanging(found: Iterable[OpenTransaction], as_json: bool, now_ms: int) -> None:
    if as_json:
        print_json(
            [
                {"topic": one.partition.topic, "partition": one.partition.partition} | _producer_json(one.producer)
                for one in found
            ]
        )
        return
    columns = (
        "topic", "partition", "producer id", "epoch", "coordinator epoch", "start offset", "last active", "quiet for",
    )  # fmt: skip
    rows = [
        (
            one.partition.topic, one.partition.partition, str(one.producer.producer_id),
            str(one.producer.producer_epoch), _number(one.producer.coordinator_epoch), str(one.start_offset),
            _time(one.producer.last_timestamp_ms), f"{max(0, now_ms - one.producer.last_timestamp_ms) // 60_000:,} min",
        )
        for one in found
    ]  # fmt: skip
    print_rows(columns, rows)


def _producer_json(one: ProducerState) -> dict[str, int | None]:
    return {
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "coordinator_epoch": one.coordinator_epoch,
        "last_sequence": one.last_sequence,
        "last_timestamp_ms": one.last_timestamp_ms,
        "transaction_start_offset": one.current_transaction_start_offset,
    }


def _number(value: int | None) -> str | None:
    """Format without separators, so that the number can be copied into another command."""
    return None if value is None else str(value)


def _time(at_ms: int | None) -> str | None:
    return (
        None if at_ms is None or at_ms < 0 else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
