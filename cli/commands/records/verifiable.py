"""``tidelog verifiable-producer`` and ``verifiable-consumer``: clients that report one event per line.

For testing a cluster from outside. Events, names and fields are those of Kafka's ``VerifiableProducer`` and
``VerifiableConsumer``, so programs that read their output can read this too.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.terminal.connection import bootstrap_option, secured
from tidelog.cli.terminal.numbers import INT32_MAX, INT64_MAX
from tidelog.cli.terminal.output import json_line
from tidelog.cli.terminal.settings import CLIENT_TAKEN, settings_option

if TYPE_CHECKING:
    from tidelog import Consumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
    from tidelog.client.delivery import RecordMetadata

POLL_S: Final = 0.5


@click.command("verifiable-producer", short_help="Send numbers and report each acknowledgement.")
@click.argument("topic")
@click.option(
    "--max-messages", type=click.IntRange(1, INT64_MAX), help="Stop after N records.  [default: until SIGTERM]"
)
@click.option(
    "--throughput", type=click.IntRange(1, INT32_MAX), help="Records per second, roughly.  [default: no limit]"
)
@click.option("--acks", type=click.Choice(["0", "1", "-1"]), default="-1", show_default=True, help="-1: all replicas.")
@click.option("--value-prefix", type=int, help="Send PREFIX.0, PREFIX.1, … instead of 0, 1, …")
@click.option("--repeating-keys", type=click.IntRange(1, INT32_MAX), help="Keys 0 to N-1 in turn.  [default: no keys]")
@click.option(
    "--message-create-time",
    type=click.IntRange(0, INT64_MAX),
    help="Milliseconds since 1970 of the first record; later ones advance as records are sent.  [default: now]",
)
@settings_option("A setting of the producer, e.g. retries=0; repeatable.", taken={**CLIENT_TAKEN, "acks": "--acks"})
@bootstrap_option
def verifiable_producer(
    topic: str,
    max_messages: int | None,
    throughput: int | None,
    acks: str,
    value_prefix: int | None,
    repeating_keys: int | None,
    message_create_time: int | None,
    settings: dict[str, Any],
    bootstrap: str,
) -> int:
    """Send the numbers 0, 1, 2, … to TOPIC. Each event is a JSON object on a line: startup_complete,
    producer_send_success or producer_send_error for each record, shutdown_complete, and tool_data with the sums.

    SIGTERM and Ctrl-C shut it down cleanly: it waits for the sent records and reports them too. Exit code 1 if a record
    failed.
    """
    from tidelog import Producer

    tell = _Events()
    sent = acknowledged = 0
    begin = time.monotonic()

    def settled(key: str | None, value: str) -> Any:
        def told(found: RecordMetadata | None, error: BaseException | None) -> None:
            nonlocal acknowledged
            if found is None:
                tell.failed(topic, key, value, error)
                return
            acknowledged += 1
            tell(
                "producer_send_success", key=key, value=value, topic=found.topic, partition=found.partition,
                offset=found.offset,
            )  # fmt: skip

        return told

    with Producer(bootstrap, **secured() | {"acks": int(acks), **settings}) as producer:
        tell("startup_complete")
        with _ends_in_order() as ends:
            for number in count() if max_messages is None else range(max_messages):
                due = begin if throughput is None else begin + number / throughput
                if ends.wait(max(0.0, due - time.monotonic())):
                    break
                key = None if repeating_keys is None else str(number % repeating_keys)
                value = str(number) if value_prefix is None else f"{value_prefix}.{number}"
                at = None if message_create_time is None else message_create_time + _ms(time.monotonic() - begin)
                key_bytes = None if key is None else key.encode()
                sent += 1
                try:
                    producer.send(topic, value.encode(), key_bytes, timestamp_ms=at, on_delivery=settled(key, value))
                except Exception as error:
                    tell.failed(topic, key, value, error)
    tell("shutdown_complete")
    seconds = time.monotonic() - begin
    tell(
        "tool_data", sent=sent, acked=acknowledged, target_throughput=-1 if throughput is None else throughput,
        avg_throughput=acknowledged / seconds,
    )  # fmt: skip
    return 0 if acknowledged == sent else 1


@click.command("verifiable-consumer", short_help="Read as a group member and report records and commits.")
@click.argument("topic")
@click.option("--group-id", required=True, help="The group to join.")
@click.option("--group-instance-id", help="Join as a static member with this id.")
@click.option(
    "--max-messages", type=click.IntRange(1, INT64_MAX), help="Stop after N records.  [default: until SIGTERM]"
)
@click.option("--session-timeout", type=click.IntRange(1, INT32_MAX), help="session_timeout_ms of the member.")
@click.option("--enable-autocommit", is_flag=True, help="Commit every few seconds instead of after each poll.")
@click.option(
    "--reset-policy",
    type=click.Choice(["earliest", "latest", "none"]),
    default="earliest",
    show_default=True,
    help="Where to start if nothing is committed.",
)
@click.option("--assignment-strategy", default="range", show_default=True, help="The assignor's name.")
@click.option("--verbose", is_flag=True, help="Print a record_data event for each record.")
@settings_option(
    "A setting of the consumer, e.g. isolation_level=read_committed; repeatable.",
    taken={
        **CLIENT_TAKEN, "group_id": "--group-id", "group_instance_id": "--group-instance-id",
        "session_timeout_ms": "--session-timeout", "enable_auto_commit": "--enable-autocommit",
        "auto_offset_reset": "--reset-policy", "partition_assignment_strategy": "--assignment-strategy",
    },
)  # fmt: skip
@bootstrap_option
def verifiable_consumer(
    topic: str,
    group_id: str,
    group_instance_id: str | None,
    max_messages: int | None,
    session_timeout: int | None,
    enable_autocommit: bool,
    reset_policy: str,
    assignment_strategy: str,
    verbose: bool,
    settings: dict[str, Any],
    bootstrap: str,
) -> int:
    """Read TOPIC as a member of a group. Each event is a JSON object on a line: startup_complete, partitions_assigned,
    partitions_revoked, records_consumed (count and offset range per partition), offsets_committed, shutdown_complete.

    SIGTERM and Ctrl-C shut it down cleanly: it commits and leaves the group.
    """
    from tidelog import Consumer

    given = {"group_instance_id": group_instance_id, "session_timeout_ms": session_timeout}
    settings |= {name: value for name, value in given.items() if value is not None}
    tell = _Events()
    read = 0
    with Consumer(
        bootstrap,
        group_id=group_id,
        enable_auto_commit=enable_autocommit,
        auto_offset_reset=reset_policy,
        partition_assignment_strategy=assignment_strategy,
        **secured() | settings,
    ) as consumer:
        tell("startup_complete")
        with _ends_in_order() as ends:
            consumer.subscribe([topic], listener=_told_by(tell))
            while not ends.is_set() and (max_messages is None or read < max_messages):
                found = consumer.poll(POLL_S, max_records=None if max_messages is None else max_messages - read)
                if found:
                    read += len(found)
                    _tell_records(tell, found, verbose)
                    if not enable_autocommit:
                        _commit(consumer, tell, found)
    tell("shutdown_complete")
    return 0


class _Events:
    """Prints events from any thread, each as one whole line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, name: str, **fields: Any) -> None:
        line = json_line({"timestamp": _ms(time.time()), "name": name, **fields})
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def failed(self, topic: str, key: str | None, value: str, error: BaseException | None) -> None:
        self(
            "producer_send_error", topic=topic, key=key, value=value, exception=type(error).__name__,
            message=str(error),
        )  # fmt: skip


def _told_by(tell: _Events) -> ConsumerRebalanceListener:
    from tidelog import ConsumerRebalanceListener

    class Told(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            tell("partitions_assigned", partitions=list(map(_place, partitions)))

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            tell("partitions_revoked", partitions=list(map(_place, partitions)))

    return Told()


def _tell_records(tell: _Events, found: list[ConsumerRecord], verbose: bool) -> None:
    if verbose:
        for record in found:
            key, value = (None if raw is None else raw.decode(errors="replace") for raw in (record.key, record.value))
            tell("record_data", key=key, value=value, **_place(record.topic_partition), offset=record.offset)
    summaries: list[dict[str, Any]] = []
    for at, group in groupby(sorted(found, key=lambda record: record.topic_partition), lambda r: r.topic_partition):
        offsets = [record.offset for record in group]
        summaries.append({**_place(at), "count": len(offsets), "minOffset": min(offsets), "maxOffset": max(offsets)})
    tell("records_consumed", count=len(found), partitions=summaries)


def _commit(consumer: Consumer, tell: _Events, found: list[ConsumerRecord]) -> None:
    from tidelog.model.errors import TidelogError

    ends = {record.topic_partition: record.offset + 1 for record in found}
    offsets = [{**_place(at), "offset": end} for at, end in ends.items()]
    try:
        consumer.commit(ends)
    except TidelogError as error:
        tell("offsets_committed", offsets=offsets, success=False, error=str(error))
    else:
        tell("offsets_committed", offsets=offsets, success=True)


def _place(at: TopicPartition) -> dict[str, Any]:
    return {"topic": at.topic, "partition": at.partition}


def _ms(seconds: float) -> int:
    return int(seconds * 1_000)


@contextmanager
def _ends_in_order() -> Iterator[threading.Event]:
    """Make SIGTERM and Ctrl-C set the event without interrupting anything."""
    ends = threading.Event()
    before = {at: signal.signal(at, lambda *_: ends.set()) for at in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ends
    finally:
        for at, handler in before.items():
            signal.signal(at, handler)
