"""Moves dead letters back to where they came from, each once.

A chunk of copies and the commit that says which letters are redriven form one transaction, so an interrupted redrive
continues where it was, and a second, concurrent one is fenced. Letters that a filter skips remain for a later redrive:
the commit names the redriven ones by run lengths (:mod:`tidelog.client.workers.progress`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.config.trace_context import Tracer, traced
from tidelog.client.consumer.blocking import Consumer
from tidelog.client.errors import IllegalStateError
from tidelog.client.producer.blocking import Producer
from tidelog.client.record import ConsumerRecord
from tidelog.client.workers.dead_letters import Letter
from tidelog.client.workers.progress import Progress, says
from tidelog.model.ids import TopicPartition
from tidelog.proto.records.message_headers import REDRIVES

CHUNK: Final = 500
REDRIVES_MAX: Final = 3


@dataclass(slots=True)
class RedriveCounts:
    """``moved``; ``left``: not chosen; ``looping``: already redriven ``REDRIVES_MAX`` times; ``unknown``: without a
    known origin."""

    moved: int = 0
    left: int = 0
    looping: int = 0
    unknown: int = 0


class Redrive:
    """The dead letters in ``topic`` up to its current end. ``chosen(letter)`` selects which to move, ``to`` where if
    not to their origin, ``rate`` how many per second. With ``dry_run``, nothing is written. ``tracer`` keeps what was
    moved."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        chosen: Callable[[Letter], bool],
        to: str | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        tracer: Tracer | None = None,
        **settings: Any,
    ) -> None:
        self._bootstrap = bootstrap_servers
        self._topic = topic
        self._chosen = chosen
        self._to = to
        self._rate = rate
        self._dry_run = dry_run
        self._tracer = tracer
        self._settings = settings
        self._name: Final = f"redrive.{topic}"
        self.counts: Final = RedriveCounts()

    def run(self) -> RedriveCounts:
        """Run it. Raises ``ProducerFencedError`` if another redrive of the topic has started, ``IllegalStateError`` if
        a commit has no room to name what was moved."""
        with (
            Consumer(
                self._bootstrap, group_id=self._name, enable_auto_commit=False, auto_offset_reset="earliest",
                isolation_level="read_committed", allow_auto_create_topics=False, **self._settings,
            ) as consumer,
            Producer(self._bootstrap, transactional_id=self._name, **traced(self._settings, self._tracer)) as producer,
        ):  # fmt: skip
            partitions = [TopicPartition(self._topic, view.partition) for view in consumer.partitions_for(self._topic)]
            consumer.assign(partitions)
            if not self._dry_run:
                producer.init_transactions()
            ends = consumer.end_offsets(partitions)
            committed = consumer.committed(partitions)
            progress = {
                at: Progress() if (given := committed[at]) is None else Progress(given.offset, given.metadata)
                for at in partitions
            }
            while any(consumer.position(at) < end for at, end in ends.items()):
                began = time.monotonic()
                records = [r for r in consumer.poll(1.0, max_records=CHUNK) if r.offset < ends[r.topic_partition]]
                moved = self._move(consumer, producer, progress, records)
                if self._rate is not None:
                    time.sleep(max(0.0, moved / self._rate - (time.monotonic() - began)))
        return self.counts

    def _move(
        self,
        consumer: Consumer,
        producer: Producer,
        progress: dict[TopicPartition, Progress],
        records: list[ConsumerRecord],
    ) -> int:
        wanted: dict[TopicPartition, list[tuple[str, Letter]]] = {}
        for record in records:
            if progress[record.topic_partition].admit(record.offset, record.leader_epoch):
                target = self._target(letter := Letter(record))
                if target is not None:
                    wanted.setdefault(record.topic_partition, []).append((target, letter))
        moved = sum(map(len, wanted.values()))
        self.counts.moved += moved
        if not moved or self._dry_run:
            return 0
        offsets = {}
        for at, letters in wanted.items():
            news = progress[at].news(letter.record.offset for _, letter in letters)
            if news is None or not all(says(news, letter.record.offset) for _, letter in letters):
                raise IllegalStateError(
                    f"{at}: the commit has no room to name which letters were moved; the filter leaves too many gaps. "
                    "Redrive without a filter, or purge what is not wanted"
                )
            offsets[at] = news
        with producer.transaction():
            for letters in wanted.values():
                for target, letter in letters:
                    record = letter.record
                    headers = [*letter.original_headers(), (REDRIVES, b"%d" % (letter.redrives + 1))]
                    producer.send(target, record.value, record.key, headers=headers)
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        for at, letters in wanted.items():
            progress[at].committed(offsets[at])
            for _, letter in letters:
                progress[at].finish(letter.record.offset)
        return moved

    def _target(self, letter: Letter) -> str | None:
        if not self._chosen(letter):
            self.counts.left += 1
        elif letter.redrives >= REDRIVES_MAX:
            self.counts.looping += 1
        elif (target := self._to or letter.origin) is None:
            self.counts.unknown += 1
        else:
            return target
        return None
