"""``tidelog delay``: shows what waits in a delay topic, and cancels it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from tidelog.broker.coordinators.delays.orders import Asked, asked_of
from tidelog.broker.coordinators.delays.pending import START, Mark, Pending, key_of, offset_of
from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import admin_client, cluster_options, secured
from tidelog.cli.terminal.output import count_of, print_json, print_rows, say, shown
from tidelog.cli.terminal.records import text_or_base64, time_text
from tidelog.cli.terminal.settings import options
from tidelog.model.ids import Offset, id_text
from tidelog.model.names import DELAY_PREFIX

if TYPE_CHECKING:
    from tidelog import Consumer, ConsumerRecord, TopicPartition

READ_MAX: Final = 1_000_000
SHOWN_MAX: Final = 1_000
"""Most records to show, or to cancel by their key: each is read again."""
SURE_MS: Final = 1_000
"""A cancel that is written so long before a record is due takes effect."""
_PLACE: Final = re.compile(r"(\d+):(\d+)")


@click.group()
def delay() -> None:
    """Show what waits in a delay topic, and take something out of it."""


_reads: Final = options(
    click.option("--key", help="Only records with this key."),
    click.option(
        "--read", type=click.IntRange(1), default=READ_MAX, help=f"Read at most this many records ({READ_MAX:,})."
    ),
)


class Waiting(NamedTuple):
    """A record that is not delivered yet."""

    at: TopicPartition
    record: ConsumerRecord
    asked: Asked

    def json(self, default_target: str) -> dict[str, Any]:
        return {
            "partition": self.at.partition,
            "offset": self.record.offset,
            "due_ms": self.asked.due_ms,
            "target": self.asked.target or default_target,
            "put_off": self.asked.attempt,
            "fault": self.asked.fault,
            "key": text_or_base64(self.record.key),
        }


class Delayed:
    """A delay topic and a consumer of it."""

    def __init__(self, consumer: Consumer, target: str, marks: Mapping[TopicPartition, Mark]) -> None:
        self.target = target
        self.marks = marks
        self._consumer = consumer

    def scan(self, key: bytes | None, read_max: int) -> tuple[dict[TopicPartition, Pending], bool]:
        """What is not delivered in each partition, and whether all of the topic was read."""
        consumer, read = self._consumer, 0
        consumer.assign(list(self.marks))
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(list(self.marks))
        found = {at: Pending(mark, Offset(consumer.position(at))) for at, mark in self.marks.items()}
        while read < read_max and any(consumer.position(at) < end for at, end in ends.items()):
            for record in consumer.poll(1.0, max_records=min(1_000, read_max - read)):
                read += 1
                asked, pending = asked_of(record), found[record.topic_partition]
                if asked.cancels is not None and asked.cancels < record.offset:
                    pending.cancel(asked.cancels)
                elif asked.cancels is None and (key is None or record.key == key):
                    pending.take([(record.offset, asked.due_ms)])
        return found, all(consumer.position(at) >= end for at, end in ends.items())

    def soonest(self, found: Mapping[TopicPartition, Pending], most: int) -> list[Waiting]:
        """Read those again that are due first."""
        keys = sorted((key, at) for at, pending in found.items() for key in pending.soonest(most))
        read = (self.read(at, offset_of(key)) for key, at in keys[:most])
        return [each for each in read if each is not None]

    def read(self, at: TopicPartition, offset: int) -> Waiting | None:
        """The record at this offset; ``None`` if there is none."""
        consumer = self._consumer
        consumer.assign([at])
        first, end = consumer.beginning_offsets([at])[at], consumer.end_offsets([at])[at]
        if not first <= offset < end:
            return None
        consumer.seek(at, offset)
        records = consumer.poll(10.0, max_records=1)
        if not records or records[0].offset != offset:
            return None
        return Waiting(at, records[0], asked_of(records[0]))


@contextmanager
def _opened(address: str, topic: str) -> Iterator[Delayed]:
    from tidelog import ConfigResource, Consumer, TopicPartition

    with admin_client(address) as admin:
        [described] = admin.describe_topics([topic])
        [settings] = admin.describe_configs([ConfigResource("topic", topic)]).values()
        if settings["delay.enable"].value != "true":
            raise CommandFailed(f"{topic}: expected a delay topic (delay.enable=true), found another one")
        group = f"{DELAY_PREFIX}{id_text(described.topic_id)}"
        partitions = [TopicPartition(topic, view.partition) for view in described.partitions]
        committed = admin.list_consumer_group_offsets(group, partitions, require_stable=True)
    marks = dict.fromkeys(partitions, START)
    for at, found in committed.items():
        mark = Mark.read(found.offset, found.metadata)
        if mark is None:
            raise CommandFailed(f"{at}: expected the mark of a delay topic in {group}, found {found.metadata[:80]!r}")
        marks[at] = mark
    with Consumer(address, isolation_level="read_committed", allow_auto_create_topics=False, **secured()) as consumer:
        yield Delayed(consumer, settings["delay.target"].value or "", marks)


@delay.command("list")
@click.argument("topic")
@click.option("--max", "most", type=click.IntRange(1, SHOWN_MAX), default=100, help="Show at most this many (100).")
@_reads
@cluster_options
def list_waiting(topic: str, most: int, key: str | None, read: int, bootstrap: str, as_json: bool) -> None:
    """Show the undelivered records of TOPIC, those due first, and count them.

    Reads the topic from its start. Places are PARTITION:OFFSET, as `tidelog delay cancel` takes them.
    """
    with _opened(bootstrap, topic) as delayed:
        found, whole = delayed.scan(None if key is None else key.encode(), read)
        waiting = delayed.soonest(found, most)
        whole = whole and all(pending.horizon is None for pending in found.values())
        count = sum(map(len, found.values()))
    told = [each.json(delayed.target) for each in waiting]
    if as_json:
        print_json({"pending": count, "whole": whole, "records": told})
        return
    rows = [
        (
            f"{one['partition']}:{one['offset']}",
            time_text(one["due_ms"]),
            one["target"] if not one["fault"] else f"dead letters: {one['fault']}",
            shown(one["key"]),
            one["put_off"],
        )
        for one in told
    ]
    print_rows(("place", "due", "target", "key", "put off"), rows)
    say(f"{count_of(count, 'record')} pending" + ("" if whole else " among those that were read; there may be more"))


@delay.command(short_help="Take undelivered records out.")
@click.argument("topic")
@click.argument("places", metavar="[PARTITION:OFFSET]...", nargs=-1)
@_reads
@cluster_options
def cancel(topic: str, places: tuple[str, ...], key: str | None, read: int, bootstrap: str, as_json: bool) -> None:
    """Cancel records of TOPIC: those at these places, or the undelivered ones with a key.

    The cancel is a record of the topic itself. It takes effect if it is there before the record is due. Fails unless
    all of them are cancelled for sure.
    """
    from tidelog import Producer, RecordMetadata, TopicPartition

    if bool(places) == (key is not None):
        raise click.UsageError("expected places or --key, found neither or both")
    wanted: list[tuple[TopicPartition, int]] = []
    for place in places:
        match = _PLACE.fullmatch(place)
        if match is None:
            raise click.UsageError(f"expected PARTITION:OFFSET, such as 0:17, found {place!r}")
        wanted.append((TopicPartition(topic, int(match[1])), int(match[2])))
    outcomes: list[tuple[TopicPartition, int, str]] = []
    whole = True
    with _opened(bootstrap, topic) as delayed, Producer(bootstrap, **secured()) as producer:
        if key is not None:
            found, whole = delayed.scan(key.encode(), read)
            wanted = [(each.at, each.record.offset) for each in delayed.soonest(found, SHOWN_MAX)]
            whole = whole and len(wanted) == sum(map(len, found.values()))
        for at, offset in wanted:
            if at not in delayed.marks:
                raise CommandFailed(f"{at}: expected a partition from 0 to {len(delayed.marks) - 1}")
            waiting = delayed.read(at, offset)
            outcome = _refusal(waiting, delayed.marks[at])
            if not outcome and waiting is not None:
                sent = RecordMetadata(at.topic, at.partition, offset, waiting.record.timestamp)
                written = producer.cancel_later(sent).result()
                in_time = waiting.asked.due_ms - written.timestamp >= SURE_MS
                outcome = "cancelled" if in_time else f"perhaps too late: due at {time_text(waiting.asked.due_ms)}"
            outcomes.append((at, offset, outcome))
    if as_json:
        print_json([{"partition": at.partition, "offset": offset, "outcome": told} for at, offset, told in outcomes])
    else:
        for at, offset, told in outcomes:
            say(f"{at} offset {offset}: {told}")
        if not outcomes and whole:
            say("nothing with this key is pending")
    left = sum(told != "cancelled" for _, _, told in outcomes)
    if left:
        raise CommandFailed(f"{left} of {count_of(len(outcomes), 'record')} not cancelled for sure")
    if not whole:
        raise CommandFailed(
            f"there may be more with this key: repeat the command, which cancels up to {SHOWN_MAX:,} records at once, "
            "or read more with --read"
        )


def _refusal(waiting: Waiting | None, mark: Mark) -> str:
    """Why a record cannot be cancelled; "" if it can."""
    if waiting is None:
        return "not found: no committed record there"
    if waiting.asked.cancels is not None:
        return "not found: a cancel itself"
    if waiting.record.offset < mark.position and key_of(waiting.asked.due_ms, waiting.record.offset) <= mark.done:
        return f"already dealt with: due at {time_text(waiting.asked.due_ms)}"
    return ""
