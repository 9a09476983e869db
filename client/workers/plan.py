"""The common part of both forms of :class:`Workers`: settings, counts, and what happens to a record whose handler
raised."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidelog.client.cluster.backoff import Backoff
from tidelog.client.config.trace_context import Tracer, traced
from tidelog.client.errors import ConfigError, TidelogError
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.record import ConsumerRecord
from tidelog.client.workers.board import Board, OrderedBy, Work
from tidelog.client.workers.dead_letters import comes_again, dead_letter, past_of
from tidelog.client.workers.handling import Failure, Handler, Handling
from tidelog.client.workers.retry import ONCE, RetryPolicy
from tidelog.client.workers.seen_ids import Deduplicate
from tidelog.client.workers.time_to_live import TimeToLive
from tidelog.model.clock import Clock, SystemClock
from tidelog.model.ids import TopicPartition

POLL_S: Final = 0.5
LOOK_S: Final = 0.1
COMMIT_INTERVAL_MS: Final = 1_000
ABORTS_MAX: Final = 10
"""After this many aborted transactions of dead letters in a row, the last one's error ends the program."""
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""A member that dies within a transaction of dead letters holds back the next owner of its partitions for this long."""
CLOSE_S: Final = 1.0
"""What the producer has not delivered so long after the end belongs to a transaction that is not committed."""
DEAD_LETTERS_AT_ONCE: Final = 100
_BACKOFF: Final = Backoff(20, 1_000)
_OURS: Final = {"enable_auto_commit": "commits finished records itself", "group_id": "has it as an argument"}

log = logging.getLogger(__name__)


@dataclass(slots=True)
class WorkersCounts:
    """The progress so far. ``handled``: the handler returned; ``retried``: it raised, and got the record again;
    ``dead``: dead letters written; ``duplicates``: skipped by their id; ``skipped``: finished by a former owner of the
    partition, as its commit says; ``expired``: not handled because their time to live was over."""

    read: int = 0
    handled: int = 0
    retried: int = 0
    dead: int = 0
    duplicates: int = 0
    skipped: int = 0
    expired: int = 0


class Letters(NamedTuple):
    """Copies of records that are not tried here any more: the records, the arguments for ``Producer.send``, the
    commit. ``dead`` of them are dead letters, the others come again."""

    works: list[Work]
    arguments: list[dict[str, Any]]
    offsets: dict[TopicPartition, OffsetAndMetadata]
    dead: int


class Plan:
    """Raises ``ConfigError`` and ``ValueError`` for invalid settings."""

    def __init__(
        self,
        handler: Handler,
        topics: Sequence[str] | str,
        group_id: str,
        workers: int,
        ordered_by: OrderedBy,
        retry: RetryPolicy | None,
        dead_letters: str | None,
        deduplicate: Deduplicate | None,
        time_to_live: TimeToLive | None,
        tracer: Tracer | None,
        in_flight_max: int,
        drain_timeout: float,
        consumer_settings: dict[str, Any] | None,
        producer_settings: dict[str, Any] | None,
        clock: Clock | None,
        rng: random.Random | None,
    ) -> None:
        self.clock: Final = clock or SystemClock()
        self.rng: Final = rng or random.Random()
        self.topics: Final = [topics] if isinstance(topics, str) else list(topics)
        if retry is not None and retry.back is not None and retry.back not in self.topics:
            self.topics.append(retry.back)
        self.group_id: Final = group_id
        self.workers: Final = workers
        self.retry: Final = retry or ONCE
        self.dead_letters: Final = dead_letters
        self.deduplicate: Final = deduplicate
        self.time_to_live: Final = time_to_live
        self.drain_s: Final = drain_timeout
        self.counts: Final = WorkersCounts()
        given = {name.replace(".", "_"): value for name, value in (consumer_settings or {}).items()}
        self._check(given, ordered_by, in_flight_max)
        self.handling: Final = Handling(
            handler,
            given.pop("key_deserializer", None),
            given.pop("value_deserializer", None),
            self.retry.fatal,
            tracer,
            group_id,
        )
        # leaders of delay topics write in transactions, and an aborted copy is not to be handled
        level = {} if self.retry.through is None else {"isolation_level": "read_committed"}
        self.consumer_settings: Final = {
            "auto_offset_reset": "earliest", **level, **given, "group_id": group_id, "enable_auto_commit": False,
        }  # fmt: skip
        name = f"{group_id}-{given.get('group_instance_id') or f'{self.rng.getrandbits(64):016x}'}"
        self.producer_settings: Final = {
            "transactional_id": name, "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
            **traced(producer_settings, tracer),
        }  # fmt: skip
        self.board: Final = Board(ordered_by, in_flight_max, deduplicate)
        self.error: Exception | None = None
        self._given_up: dict[Work, Failure] = {}
        self._aborted_in_a_row = 0

    def _check(self, given: dict[str, Any], ordered_by: str, in_flight_max: int) -> None:
        for name in _OURS.keys() & given.keys():
            raise ConfigError(f"{name}: leave it out of consumer_settings; Workers {_OURS[name]}")
        if self.workers < 1:
            raise ValueError(f"workers: expected 1 or more, found {self.workers}")
        if ordered_by not in ("key", "partition", "none"):
            raise ValueError(f"ordered_by: expected 'key', 'partition' or 'none', found {ordered_by!r}")
        if in_flight_max < self.workers:
            raise ValueError(f"in_flight_max: expected workers ({self.workers}) or more, found {in_flight_max}")
        if self.retry.through is not None and given.get("isolation_level", "read_committed") != "read_committed":
            raise ConfigError(
                "isolation_level: expected 'read_committed' with RetryPolicy(through=…), whose records come again in "
                f"transactions, found {given['isolation_level']!r}"
            )
        if self.dead_letters in self.topics:
            raise ValueError(f"dead_letters: expected a topic that is not being read, found {self.dead_letters!r}")
        if self.time_to_live is not None and self.time_to_live.dead_letters and self.dead_letters is None:
            raise ValueError("time_to_live: expected dead_letters, a topic for expired records, found none")
        if self.deduplicate is not None and given.get("auto_offset_reset", "earliest") != "earliest":
            raise ConfigError(
                "auto_offset_reset: expected 'earliest' with deduplicate, which reads back and must skip nothing, "
                f"found {given['auto_offset_reset']!r}"
            )

    # --- partitions -----------------------------------------------------------------------------------

    def own(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata | None], first: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Note that this member owns these partitions now. Returns where to read from, so that ids before the commit
        are known; ``first``: the partitions' first offsets."""
        found = {}
        for at, given in committed.items():
            self.board.own(at, given)
            if given is not None and at in first and self.deduplicate is not None:
                found[at] = min(given.offset, max(first[at], given.offset - self.deduplicate.window))
        return found

    def stop(self, partitions: Iterable[TopicPartition]) -> int:
        """Stop handing out records of these. Returns until when records in progress may finish, in ms of the monotonic
        clock."""
        for at in partitions:
            self.board.stop(at)
        return self.clock.monotonic_ms() + int(self.drain_s * 1_000)

    def is_drained(self, partitions: Iterable[TopicPartition], deadline_ms: int) -> bool:
        left = self.board.in_work(partitions)
        late = self.clock.monotonic_ms() >= deadline_ms
        if left and late:
            log.warning("%d records are unfinished after %g s; they will be handled again", left, self.drain_s)
        return late or not left

    def disown(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            self.board.disown(at)

    def flow(
        self, assigned: set[TopicPartition], paused: set[TopicPartition]
    ) -> tuple[int, set[TopicPartition], set[TopicPartition]]:
        """Return how many records may come in, and which partitions to pause and to resume."""
        room = self.board.room()
        hold = self.board.held_back() & assigned
        return room, hold - paused, paused - hold

    # --- records --------------------------------------------------------------------------------------

    def admit(
        self, records: Sequence[ConsumerRecord], positions: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]]
    ) -> None:
        """``positions``: the consumer's, after these records."""
        self.board.admit(records)
        if self.consumer_settings.get("header_filter") is not None:
            self.board.passed(positions())
        self.counts.read += len(records)
        self.counts.duplicates, self.counts.skipped = self.board.duplicates, self.board.skipped

    def expired(self, work: Work) -> Failure | None:
        """Why a record is not to be handled any more, if that is so."""
        until_ms = None if self.time_to_live is None else self.time_to_live.expires_ms(work.record)
        if until_ms is None or self.clock.now_ms() < until_ms:
            return None
        text = f"expected to be handled before {until_ms} ms, found {self.clock.now_ms()} ms"
        return Failure("expired", "", text, "", None)

    def done(self, work: Work, failure: Failure | None) -> bool:
        """Take a worker's result. Returns False if the record is to be given up, which the polling side does."""
        board, counts = self.board, self.counts
        if not board.is_current(work):
            return True
        if failure is None:
            board.finish(work)
            counts.handled += 1
            return True
        if failure.reason == "expired":
            assert self.time_to_live is not None
            self.time_to_live.skipped += 1
            counts.expired += 1
            if not self.time_to_live.dead_letters:
                board.finish(work)
                return True
            self._given_up[work] = failure
            return False
        at, cause = work.record.topic_partition, f"{failure.exception}: {failure.message}"
        log.info("%s: the handler failed at offset %d: %s", at, work.record.offset, cause)
        wait_ms = self._wait_ms(work, failure)
        if wait_ms is None or self.retry.through is not None:
            self._given_up[work] = failure
            return False
        board.again(work, self.clock.monotonic_ms() + wait_ms, self.clock.now_ms())
        counts.retried += 1
        return True

    def _wait_ms(self, work: Work, failure: Failure) -> int | None:
        failures = past_of(work.record).failures + work.failures + 1
        return self.retry.wait_ms(failures, self.rng) if failure.reason == "attempts" else None

    @property
    def writes(self) -> bool:
        """Whether a producer is needed."""
        return self.dead_letters is not None or self.retry.through is not None

    def _argument(self, work: Work, now_ms: int) -> dict[str, Any] | None:
        """The record's copy; ``None`` without a topic for it."""
        failure, retry = self._given_up[work], self.retry
        if retry.through is not None and retry.back is not None:
            wait_ms = self._wait_ms(work, failure)
            if wait_ms is not None:
                return comes_again(work, retry.through, retry.back, wait_ms, now_ms=now_ms)
        if self.dead_letters is None:
            return None
        return dead_letter(self.dead_letters, work, failure, group_id=self.group_id, now_ms=now_ms)

    def news(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what to commit: for these partitions, or for all."""
        news = self.board.news()
        return news if partitions is None else {at: what for at, what in news.items() if at in partitions}

    def letters(self) -> Letters | None:
        """Return the dead letters to write, with the commit that belongs to their transaction; ``None`` for nothing.
        Without a topic for them, the first given-up record ends the program."""
        self._given_up = {work: failure for work, failure in self._given_up.items() if self.board.is_current(work)}
        if not self._given_up:
            return None
        now_ms = self.clock.now_ms()
        copies = {work: self._argument(work, now_ms) for work in list(self._given_up)[:DEAD_LETTERS_AT_ONCE]}
        for work, copy in copies.items():
            if copy is None:
                self.end(self._given_up[work].raised())
                return None
        works, offsets = self.board.given_up(copies)
        arguments = [copy for work in works if (copy := copies[work]) is not None]
        dead = sum(argument["topic"] == self.dead_letters for argument in arguments)
        return Letters(works, arguments, offsets, dead) if works else None

    def buried(self, letters: Letters) -> None:
        """Note that these, and the commit with them, are written."""
        self._aborted_in_a_row = 0
        self.board.committed(letters.offsets)
        for work in letters.works:
            self.board.finish(work)
            self._given_up.pop(work, None)
        self.counts.dead += letters.dead
        self.counts.retried += len(letters.works) - letters.dead

    def aborted(self, error: TidelogError) -> float:
        """Return seconds to wait before the dead letters are written again. If that is of no use, end the program."""
        log.info("dead letters are not written yet: %s", error)
        self._aborted_in_a_row += 1
        if not error.abortable or self._aborted_in_a_row >= ABORTS_MAX:
            topics = " and ".join(filter(None, (self.retry.through, self.dead_letters)))
            error.add_note(f"failed records could not be copied to {topics}; they come again at the next run")
            self.end(error)
            return 0.0
        return _BACKOFF.after(self._aborted_in_a_row, self.rng) / 1_000

    def end(self, error: Exception) -> None:
        """Stop; :meth:`Workers.run` raises ``error`` once records in progress have finished."""
        self.error = self.error or error
        for work in self._given_up:
            self.board.let_go(work)
        self._given_up = {}
        self.board.close()
