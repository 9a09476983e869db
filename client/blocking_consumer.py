"""The consumer in plain blocking form: ``tidelog.Consumer``."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar, Unpack

from tidelog.client import background
from tidelog.client.background import BackgroundLoop
from tidelog.client.consumer import AsyncConsumer
from tidelog.client.consumer_config import ConsumerSettings
from tidelog.client.errors import ClientClosedError
from tidelog.client.group_types import (
    CommitCallback,
    ConsumerGroupMetadata,
    ConsumerRebalanceListener,
    OffsetAndMetadata,
    offsets_given,
)
from tidelog.client.metadata import PartitionView
from tidelog.client.offset_lookup import OffsetAndTimestamp
from tidelog.client.place import ThreadOfBlocking
from tidelog.client.poll_steps import Steps, Wait, nested
from tidelog.client.record import ConsumerBatch, ConsumerRecord
from tidelog.model.clock import Clock
from tidelog.model.ids import TopicPartition
from tidelog.proto.network import Network

C = TypeVar("C", bound="Consumer")
T = TypeVar("T")


class Consumer:
    """Reads topics as a member of a group, or partitions that are assigned to it.

        with Consumer("localhost:9092", group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            for record in consumer:
                print(record.offset, record.value)

    A background thread, one per process, fetches ahead and keeps the place in the group; records are unpacked,
    and listeners called, in the thread that polls.
    Not for several threads at once, but :meth:`close` may come from another. Settings are keyword
    arguments (:class:`ConsumerSettings`); a wrong one raises ``ConfigError``.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        _network: Network | None = None,
        _background: BackgroundLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self._news = threading.Event()
        self._in_use = threading.RLock()
        self._driver: int | None = None
        """The thread that is within a rebalance, perhaps in a listener."""
        self._wake_requested = False
        self._owns_background = _background is None
        self._background = _background or background.acquire()
        try:
            self._inner = AsyncConsumer(
                bootstrap_servers,
                _network=_network,
                _place=ThreadOfBlocking(self._background),
                _clock=_clock,
                _rng=_rng,
                _on_data=self._news.set,
                _wake=self._wake,
                **settings,
            )
            self._core = self._inner._core
            self._max_poll_records = self._inner._config.max_poll_records
            self._background.run(self._inner.start())
        except BaseException:
            if self._owns_background:
                background.release(self._background)
            raise

    # --- life ---------------------------------------------------------------------------------------

    def close(self, timeout: float = 30.0) -> None:
        """Stop. In a group: commit (if ``enable_auto_commit``), tell the listener, leave, within ``timeout``
        seconds. A poll in another thread raises ``ClientClosedError``. May be called twice. Raises what the
        listener raised, once all is closed."""
        self._close(timeout)

    def _close(self, timeout: float, *, failed: bool = False) -> None:
        core = self._core
        if core.closing:
            return
        self._check_not_nested()
        core.closing = True
        self._news.set()
        try:
            if core.group is not None and not self._background.is_own_thread:
                self._leave("the consumer is being closed", timeout, failed=failed)
        finally:
            try:
                self._background.run(core.close())
            finally:
                core.closed = True
                if self._owns_background:
                    background.release(self._background)

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(30.0, failed=error is not None)

    # --- subscription -----------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Read these topics, or all whose whole name matches ``pattern``, together with the others of the
        group; replaces what was subscribed to before. Takes effect with the next poll.

        Raises ``InvalidGroupIdError`` without a ``group_id``, ``IllegalStateError`` where partitions were
        assigned by hand, ``ValueError`` unless topics or a pattern are given.
        """
        self._inner.subscribe(topics, pattern=pattern, listener=listener)

    def subscription(self) -> set[str]:
        """The topics subscribed to: those named, or those that the pattern is known to match."""
        return self._inner.subscription()

    def unsubscribe(self, timeout: float | None = None) -> None:
        """Give up everything that is assigned, and leave the group: committed and told as by :meth:`close`."""
        self._core.check()
        self._check_not_nested()
        if self._core.group is not None:
            self._leave(
                "the consumer unsubscribed from all topics", self._inner._api_timeout_ms(timeout) / 1_000, failed=False
            )
        self._core.unsubscribe()

    def _leave(self, reason: str, timeout: float, *, failed: bool) -> None:
        core, group = self._core, self._core.require_group()
        deadline = core.cluster.clock.monotonic_ms() + int(timeout * 1_000)
        with self._in_use:
            offsets = core.settled_before_last_poll() if failed else core.settled()
            try:
                self._drive(group.leaving(deadline, offsets))
            finally:
                left_ms = max(0, deadline - core.cluster.clock.monotonic_ms())
                self._background.run(group.leave(reason, left_ms))

    def enforce_rebalance(self, reason: str = "") -> None:
        """Have the group rebalance, beginning with the next poll (KIP-568)."""
        self._inner.enforce_rebalance(reason)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who this consumer is in its group now."""
        return self._inner.group_metadata()

    # --- commits ------------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit ``offsets`` (the next to read), or else the positions behind all that was handed out; wait
        until it is done, trying again up to ``timeout`` seconds (default ``default_api_timeout_ms``).

        Raises ``CommitFailedError`` if this consumer is no longer in the group, ``RebalanceInProgressError``
        (poll, then commit again), ``FencedInstanceIdError``, ``OffsetMetadataTooLargeError``, and
        ``RequestTimedOutError``: it may have been done.
        """
        self._core.check()
        group = self._core.require_group()
        wanted = self._core.handed_out() if offsets is None else offsets_given(offsets)
        if wanted:
            sender = group.commits.sender()
            self._background.run(group.committer.commit(wanted, sender, self._inner._api_timeout_ms(timeout)))
        self._drive(group.tell_commits())

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """As :meth:`commit`, without waiting or trying again. ``callback(offsets, error)`` is called from
        within a later poll, commit or close; ``RetriableCommitFailedError`` says that it may be tried again.
        Commits are carried out in the order of the calls."""
        self._inner.commit_async(offsets, callback)

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for each; ``None`` for nothing."""
        return self._background.run(self._inner.committed(partitions, timeout))

    # --- assignment and positions -------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions from now on, and no others. Those that stay keep their positions; new
        ones start where ``auto_offset_reset`` says, or where :meth:`seek` is told."""
        self._inner.assign(partitions)

    def assignment(self) -> set[TopicPartition]:
        """What is assigned."""
        return self._inner.assignment()

    def seek(self, partition: TopicPartition, offset: int, *, leader_epoch: int = -1) -> None:
        """Read on from ``offset``. With the ``leader_epoch`` of the record before it, a log that was cut
        below it in the meantime is noticed (KIP-320)."""
        self._inner.seek(partition, offset, leader_epoch=leader_epoch)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read these (or all assigned) partitions from their first record; looked up in the background."""
        self._inner.seek_to_beginning(*partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read these (or all assigned) partitions from their end; looked up in the background."""
        self._inner.seek_to_end(*partitions)

    def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The offset of the next record that poll hands out, looking it up if need be.

        ``timeout`` in seconds (default ``default_api_timeout_ms``); then ``RequestTimedOutError``.
        """
        found = self._core.position(partition)
        return found if found is not None else self._background.run(self._inner.position(partition, timeout))

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing from these until :meth:`resume`; positions stay."""
        self._inner.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._core.set_paused(partitions, False)

    def paused(self) -> set[TopicPartition]:
        return self._inner.paused()

    def lag(self, partition: TopicPartition) -> int | None:
        """Records between the position and the high watermark, as of the last fetch; ``None`` before one."""
        return self._inner.lag(partition)

    # --- polling --------------------------------------------------------------------------------------

    def poll(self, timeout: float = 0.0, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return up to ``max_records`` (default ``max_poll_records``) records, waiting up to ``timeout``
        seconds for the first. Records of one partition come in order of their offsets.

        Raises ``OffsetOutOfRangeError``, ``LogTruncationError`` and ``NoOffsetForPartitionError`` where
        ``auto_offset_reset`` is ``none``; ``CorruptRecordError``; ``UnknownTopicOrPartitionError``;
        ``SerializationError``. After one of these :meth:`seek` to go on.
        """
        count = self._max_poll_records if max_records is None else max_records
        return self._take(lambda: self._core.take_records(count), timeout)

    def poll_batches(self, timeout: float = 0.0) -> list[ConsumerBatch]:
        """Return everything that has been fetched, as batches that are unpacked when looked at: the fast
        form. Waits up to ``timeout`` seconds for the first. Raises as :meth:`poll`."""
        return self._take(self._core.take_batches, timeout)

    def poll_values(self, timeout: float = 0.0) -> list[bytes | None]:
        """As :meth:`poll_batches`, the values alone. Deserializers do not apply."""
        return self._core.values_of(self.poll_batches(timeout))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Read on without end. A record counts as handed out, for automatic commits, when the next one is
        asked for."""
        core = self._core
        while True:
            records = self.poll(60.0)
            iteration = core.iterate(records)
            for iteration.at, record in enumerate(records):
                yield record
                if core.iteration is not iteration:
                    break  # polled or iterated elsewhere meanwhile: there it goes on

    def _take(self, take: Callable[[], list[T]], timeout: float) -> list[T]:
        core = self._core
        core.check_assigned()
        if core.group is not None:
            return self._take_in_group(take, timeout)
        self._news.clear()
        found = take()
        if found or timeout <= 0:
            return found
        self._background.check()
        deadline = time.monotonic() + timeout
        while not found:
            left = deadline - time.monotonic()
            if left <= 0 or not self._news.wait(left):
                break
            self._news.clear()
            if core.closing:
                raise ClientClosedError("this consumer was closed")
            found = take()
        return found

    def _take_in_group(self, take: Callable[[], list[T]], timeout: float) -> list[T]:
        group = self._core.require_group()
        self._background.check()
        deadline = time.monotonic() + timeout
        with self._in_use:
            group.poll_began()
            try:
                while True:
                    self._news.clear()
                    if self._core.closing:
                        raise ClientClosedError("this consumer was closed")
                    self._drive(group.turn())
                    found = take()
                    left = deadline - time.monotonic()
                    if found or left <= 0:
                        return found
                    self._news.wait(min(left, group.due_in_s))
            finally:
                group.poll_ended()

    def _drive(self, steps: Steps) -> None:
        """Do what the group asks for: call the user's functions, wait. Raises what it raises."""
        outermost = self._driver is None
        if outermost:
            self._driver = threading.get_ident()
        answer: BaseException | None = None
        try:
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration:
                    return
                answer = None
                try:
                    if isinstance(step, Wait):
                        left_ms = step.until_ms - self._core.cluster.clock.monotonic_ms()
                        self._news.wait(max(0, left_ms) / 1_000)
                        self._news.clear()
                    else:
                        step()
                except Exception as error:
                    answer = error
                except BaseException as error:
                    steps.throw(error)
                    raise
        finally:
            if outermost:
                self._driver = None

    def _check_not_nested(self) -> None:
        if self._driver == threading.get_ident():
            raise nested()

    # --- asking -------------------------------------------------------------------------------------

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionView]:
        """The topic's partitions with their leaders. Raises ``UnknownTopicOrPartitionError``."""
        return self._background.run(self._inner.partitions_for(topic, timeout))

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each."""
        return self._background.run(self._inner.beginning_offsets(partitions, timeout))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record that can be read (the high watermark) of each."""
        return self._background.run(self._inner.end_offsets(partitions, timeout))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Per partition the first record at or after a time (ms since the epoch); ``None`` if there is none."""
        return self._background.run(self._inner.offsets_for_times(timestamps, timeout))

    def metrics(self) -> dict[str, float]:
        """Counters and gauges by Kafka's metric names."""
        return self._inner.metrics()

    # --- inside ---------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._wake_requested:
            self._wake_requested = True
            self._background.call(self._woken)

    def _woken(self) -> None:
        self._wake_requested = False
        self._core.fetcher.wake()
