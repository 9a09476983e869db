"""``tidelog perf``: throughput and latency of a running cluster through the SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from tidelog.cli.commands.records.consume import LOOK_UP_TIMEOUT_S
from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import cluster_options, secured
from tidelog.cli.terminal.numbers import Seconds
from tidelog.cli.terminal.output import print_json, print_pairs
from tidelog.cli.terminal.settings import CLIENT_TAKEN, settings_option
from tidelog.cli.work import workload
from tidelog.cli.work.workload import Rate, percentile

F = TypeVar("F", bound=Callable[..., Any])

SIZE_MAX: Final = 100_000_000
RATE_MAX: Final = 1_000_000
COUNT_MAX: Final = 10_000_000


def _size_option(default: int) -> Callable[[F], F]:
    return click.option(
        "--size", type=click.IntRange(1, SIZE_MAX), default=default, show_default=True, help="Bytes of each value."
    )


def _seconds_option(default: float) -> Callable[[F], F]:
    return click.option("--seconds", type=Seconds(0.1), default=default, show_default=True, help="Duration.")


@click.group()
def perf() -> None:
    """Measure the throughput and latency of a cluster. The topic must exist; the commands fill it with random
    records."""


@perf.command()
@click.argument("topic")
@_size_option(100)
@_seconds_option(10.0)
@click.option("--one-by-one", is_flag=True, help="Call send() for each record instead of send_many().")
@settings_option("A setting of the producer, e.g. acks=1 or compression_type=lz4; repeatable.", taken=CLIENT_TAKEN)
@cluster_options
def produce(
    topic: str, size: int, seconds: float, one_by_one: bool, settings: dict[str, Any], bootstrap: str, as_json: bool
) -> None:
    """Send to TOPIC as fast as possible."""
    _require_topic(bootstrap, topic)
    work = workload.produce_one_by_one if one_by_one else workload.produce_many
    _show(work(bootstrap, topic, size, seconds, **secured() | settings), as_json)


@perf.command()
@click.argument("topic")
@click.option("--records", "as_records", is_flag=True, help="Decode whole records, not just values.")
@click.option(
    "--max",
    "records_max",
    type=click.IntRange(1),
    help="Stop after this many records; batches are read whole.  [default: all]",
)
@settings_option(
    "A setting of the consumer, e.g. fetch_max_bytes=1000000; repeatable.",
    taken={**CLIENT_TAKEN, "auto_offset_reset": "reading begins at the first record"},
)
@cluster_options
def consume(
    topic: str, as_records: bool, records_max: int | None, settings: dict[str, Any], bootstrap: str, as_json: bool
) -> None:
    """Read TOPIC from its beginning as fast as possible."""
    from tidelog import Consumer, TopicPartition

    with Consumer(bootstrap, allow_auto_create_topics=False, **secured()) as consumer:
        partitions = [
            TopicPartition(topic, view.partition) for view in consumer.partitions_for(topic, LOOK_UP_TIMEOUT_S)
        ]
        first, last = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    there = sum(last[at] - first[at] for at in partitions)
    if not there:
        raise CommandFailed(f"{topic}: expected records to read, found none; `tidelog perf produce {topic}` makes some")
    count = there if records_max is None else min(there, records_max)
    _show(workload.consume_all(bootstrap, topic, count, as_records=as_records, **secured() | settings), as_json)


@perf.command(short_help="Measure time from send() to acknowledgement at a steady rate.")
@click.argument("topic")
@_size_option(1024)
@_seconds_option(10.0)
@click.option("--rate", type=click.IntRange(1, RATE_MAX), default=1_000, show_default=True, help="Records a second.")
@settings_option("A setting of the producer, e.g. acks=1; repeatable.", taken=CLIENT_TAKEN)
@cluster_options
def latency(
    topic: str, size: int, seconds: float, rate: int, settings: dict[str, Any], bootstrap: str, as_json: bool
) -> None:
    """Measure the time from send() to acknowledgement at a light, steady rate (after a warm-up of 3 s)."""
    _require_topic(bootstrap, topic)
    found = workload.latencies(bootstrap, topic, rate=rate, size=size, seconds=seconds, **secured() | settings)
    if not found:
        raise CommandFailed("expected at least one measured record, found none; increase --seconds or --rate")
    _show_latencies(found, as_json)


@perf.command("end-to-end", short_help="Measure time from send() until a consumer has the record.")
@click.argument("topic")
@_size_option(1024)
@click.option("--count", type=click.IntRange(1, COUNT_MAX), default=1_000, show_default=True, help="How many records.")
@settings_option("A setting of the producer, e.g. acks=1; repeatable.", taken=CLIENT_TAKEN)
@cluster_options
def end_to_end(topic: str, size: int, count: int, settings: dict[str, Any], bootstrap: str, as_json: bool) -> None:
    """Measure the time from send() until a consumer has the record, one record at a time (after a warm-up of 10).
    Nothing else may write to TOPIC in the meantime."""
    _require_topic(bootstrap, topic)
    found = workload.end_to_end(bootstrap, topic, count=count, size=size, settings=settings, **secured())
    _show_latencies(found, as_json)


def _show_latencies(found: list[float], as_json: bool) -> None:
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    values = {name: percentile(found, share) for name, share in shares.items()}
    if as_json:
        print_json({"records": len(found), "milliseconds": {name: round(value, 3) for name, value in values.items()}})
    else:
        print_pairs({"records": len(found), **{name: f"{value:.2f} ms" for name, value in values.items()}})


def _require_topic(bootstrap: str, topic: str) -> None:
    """Raise if a topic does not exist: sending would create it, even from a typo."""
    from tidelog import Consumer

    with Consumer(bootstrap, allow_auto_create_topics=False, **secured()) as consumer:
        consumer.partitions_for(topic, LOOK_UP_TIMEOUT_S)


def _show(rate: Rate, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "records": rate.records, "seconds": round(rate.seconds, 3), "value_bytes": rate.size,
                "records_per_second": round(rate.per_second), "mb_per_second": round(rate.megabytes_per_second, 2),
            }
        )  # fmt: skip
    else:
        print_pairs(
            {
                "records": rate.records, "seconds": rate.seconds, "records/s": round(rate.per_second),
                "MB/s": rate.megabytes_per_second,
            }
        )  # fmt: skip
