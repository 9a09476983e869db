"""The consumer for asyncio: in a group, or with manually assigned partitions."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

from tidelog.client.cluster.metadata import PartitionView
from tidelog.client.cluster.networks import default_network
from tidelog.client.config.consumer import CONSUMER_DEFINITION, ConsumerConfig, ConsumerSettings
from tidelog.client.config.settings import parse_bootstrap
from tidelog.client.consumer.core import ConsumerCore
from tidelog.client.description import describes
from tidelog.client.errors import ClientClosedError, IllegalStateError, RequestTimedOutError
from tidelog.client.fetching.offset_lookup import OffsetAndTimestamp, look_up
from tidelog.client.group.io_loop import BackgroundThread, IoLoop, SameLoop
from tidelog.client.group.poll_steps import Steps, Wait, nested
from tidelog.client.group_types import (
    CommitCallback,
    ConsumerGroupMetadata,
    ConsumerRebalanceListener,
    OffsetAndMetadata,
    offsets_given,
)
from tidelog.client.record import ConsumerBatch, ConsumerRecord
from tidelog.model.clock import Clock, SystemClock
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsetsResult
from tidelog.proto.transport.network import Network

C = TypeVar("C", bound="AsyncConsumer")
T = TypeVar("T")


@describes(CONSUMER_DEFINITION)
class AsyncConsumer:
    """Reads topics as a member of a group, or partitions that you assign; ``tidelog.aio.Consumer``.

    Use it on one event loop and from one task at a time, as ``async with Consumer("localhost:9092") as
    consumer:``, or call :meth:`start` and :meth:`close`. Settings are keyword arguments
    (:class:`ConsumerSettings`); a wrong one raises ``ConfigError``.

    ``async for record in consumer`` never ends. With a ``group_id`` all IO runs in a background thread, one per
    process, so that heartbeats continue while the program blocks its loop.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        _network: Network | None = None,
        _io_loop: IoLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        _on_data: Callable[[], None] | None = None,
        _wake: Callable[[], None] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self._config = ConsumerConfig.of(settings)
        self._data = asyncio.Event()
        self._telling = False
        self._also = _on_data
        elsewhere = _network is None and self._config.group_id is not None
        self._io_loop = _io_loop or (BackgroundThread() if elsewhere else SameLoop())
        self._wake = _wake or self._wake_fetcher
        self._core = ConsumerCore(
            parse_bootstrap(bootstrap_servers),
            self._config,
            _network or default_network(self._config.tls(), self._config.login(), self._config.client_id),
            _clock or SystemClock(),
            _rng or random.Random(),
            self._io_loop,
            on_data=self._on_data,
            on_wake=self._wake,
        )
        self._started = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver: asyncio.Task[Any] | None = None
        """The task that is within a rebalance, perhaps in a listener."""
        self._rested = asyncio.Event()

    def __repr__(self) -> str:
        return self._core.shown("aio.Consumer")

    # --- lifecycle ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start. Returns immediately; the consumer connects in the background."""
        if not self._started:
            self._started = True
            self._loop = asyncio.get_running_loop()
            self._io_loop.open()
            self._io_loop.call(self._core.start)

    async def close(self, timeout: float = 30.0) -> None:
        """Stop. In a group: commit (if ``enable_auto_commit``), tell the listener, and leave, within ``timeout``
        seconds. A waiting poll raises ``ClientClosedError``. May be called twice. Raises the listener's exception once
        everything is closed."""
        await self._close(timeout)

    async def _close(self, timeout: float, *, failed: bool = False) -> None:
        core = self._core
        if core.closing:
            return
        self._check_not_nested()
        core.closing = True
        self._data.set()
        try:
            if self._started and core.group is not None:
                await self._leave("the consumer is being closed", timeout, failed=failed)
        finally:
            try:
                if self._started:
                    await self._io_loop.run(core.close())
                core.closed = True
                self._data.set()
            finally:
                self._io_loop.release()
                core.close_interceptors()

    async def __aenter__(self: C) -> C:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(30.0, failed=error is not None)

    # --- subscription -----------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Read these topics, or all whose whole name matches ``pattern``, together with the group's other members.
        Replaces the previous subscription. Takes effect with the next poll. With ``group_protocol="consumer"`` the
        coordinator matches a pattern given as text, in RE2's syntax.

        Raises ``InvalidGroupIdError`` without a ``group_id``, ``IllegalStateError`` if partitions were assigned
        manually, ``ValueError`` without topics or a pattern.
        """
        self._core.subscribe(topics, pattern, listener)

    def subscription(self) -> set[str]:
        """Return the subscribed topics: the named ones, or the known ones that match the pattern."""
        group = self._core.group
        return set(group.subscription.topics) if group is not None else set()

    async def unsubscribe(self, timeout: float | None = None) -> None:
        """Give up all partitions and leave the group. Commits, and calls the listener, as :meth:`close` does."""
        self._check_started()
        self._core.check()
        self._check_not_nested()
        if self._core.group is not None:
            await self._leave(
                "the consumer unsubscribed from all topics", self._api_timeout_ms(timeout) / 1_000, failed=False
            )
        self._core.unsubscribe()

    async def _leave(self, reason: str, timeout: float, *, failed: bool) -> None:
        core, group = self._core, self._core.require_group()
        deadline = core.cluster.clock.monotonic_ms() + int(timeout * 1_000)
        while self._driver is not None:
            self._rested.clear()
            await self._rested.wait()
        offsets = core.settled_before_last_poll() if failed else core.settled()
        try:
            await self._drive(group.leaving(deadline, offsets))
        finally:
            left_ms = max(0, deadline - core.cluster.clock.monotonic_ms())
            await self._io_loop.run(group.leave(reason, left_ms))

    def enforce_rebalance(self, reason: str = "") -> None:
        """Make the group rebalance, starting with the next poll (KIP-568)."""
        self._core.require_group().enforce_rebalance(reason or "rebalance enforced by user")

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return this consumer's current identity in its group."""
        return self._core.require_group().metadata()

    # --- commits ------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit ``offsets`` (the next to read), by default everything returned so far, and wait until that is done.
        Retries for up to ``timeout`` seconds (default ``default_api_timeout_ms``).

        Raises ``CommitFailedError`` if this consumer is no longer in the group, ``RebalanceInProgressError``
        (poll, then commit again), ``FencedInstanceIdError``, ``OffsetMetadataTooLargeError``, and
        ``RequestTimedOutError`` if the outcome is unknown.
        """
        self._check_started()
        self._core.check()
        group = self._core.require_group()
        wanted = self._core.handed_out() if offsets is None else offsets_given(offsets)
        if wanted:
            sender = group.commits.sender()
            await self._io_loop.run(group.committer.commit(wanted, sender, self._api_timeout_ms(timeout)))
            self._core.told_committed(wanted)
        await self._drive(group.tell_commits())

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Do the same as :meth:`commit`, without waits or retries. A later poll, commit or close calls
        ``callback(offsets, error)``; after ``RetriableCommitFailedError`` you may try again. Commits take effect in the
        order of the calls."""
        self._check_started()
        self._core.check()
        group = self._core.require_group()
        wanted = self._core.handed_out() if offsets is None else offsets_given(offsets)
        group.commits.send(wanted, callback)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset for each partition; ``None`` if there is none."""
        self._check_started()
        self._core.check()
        group = self._core.require_group()
        wanted = [TopicPartition(*p) for p in partitions]
        return await self._io_loop.run(group.committer.committed(wanted, self._api_timeout_ms(timeout)))

    # --- assignment and positions -------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions from now on, and no others. Partitions that stay keep their positions; new ones start
        where ``auto_offset_reset`` or :meth:`seek` says."""
        self._core.assign(TopicPartition(*p) for p in partitions)
        self._wake()

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return set(self._core.assignment.partitions)

    def seek(self, partition: TopicPartition, offset: int, *, leader_epoch: int = -1) -> None:
        """Continue reading from ``offset``. With the ``leader_epoch`` of the record before it, the consumer notices if
        the log was truncated below it in the meantime (KIP-320), and reads nothing until it knows a leader with that
        epoch or a later one."""
        self._core.seek(partition, offset, leader_epoch)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read these (or all assigned) partitions from their first record. The look-up runs in the background."""
        self._core.seek_by(partitions, "earliest")

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read these (or all assigned) partitions from their end. The look-up runs in the background."""
        self._core.seek_by(partitions, "latest")

    async def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """Return the offset of the next record that poll will return; looked up if necessary.

        Raises ``RequestTimedOutError`` after ``timeout`` seconds (default ``default_api_timeout_ms``).
        """
        self._check_started()
        found = self._core.position(partition)
        return found if found is not None else await self._find_position(partition, timeout)

    async def _find_position(self, partition: TopicPartition, timeout: float | None) -> int:
        self._wake()
        limit = self._api_timeout_ms(timeout)
        try:
            async with asyncio.timeout(limit / 1_000):
                while (found := self._core.position(partition)) is None:
                    self._data.clear()
                    self._core.check_woken()
                    await self._data.wait()
                return found
        except TimeoutError:
            raise RequestTimedOutError(f"{partition}: no position within {limit} ms") from None

    def pause(self, *partitions: TopicPartition) -> None:
        """Return nothing from these until :meth:`resume`; positions are kept."""
        self._core.set_paused(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo :meth:`pause`."""
        self._core.set_paused(partitions, False)
        self._data.set()

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return self._core.paused()

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the records between the position and the high watermark, as of the last fetch; ``None`` before one."""
        return self._core.lag(partition)

    # --- polling --------------------------------------------------------------------------------------

    async def poll(self, timeout: float = 0.0, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return up to ``max_records`` (default ``max_poll_records``) records, waiting up to ``timeout``
        seconds for the first. Records of one partition come in order of their offsets.

        Raises ``OffsetOutOfRangeError``, ``LogTruncationError`` and ``NoOffsetForPartitionError`` if
        ``auto_offset_reset`` is ``none``; ``CorruptRecordError``; ``UnknownTopicOrPartitionError``;
        ``RecordDeserializationError``. After one of these, :meth:`seek` to continue. ``WakeupError`` after
        :meth:`wakeup`.
        """
        count = self._config.max_poll_records if max_records is None else max_records
        return await self._poll(lambda: self._core.take_records(count), timeout)

    async def poll_batches(self, timeout: float = 0.0) -> list[ConsumerBatch]:
        """Return everything fetched so far, in batches that unpack when you look at them: the fast form. Waits up to
        ``timeout`` seconds for the first. Raises the same errors as :meth:`poll`."""
        return await self._poll(self._core.take_batches, timeout)

    async def poll_values(self, timeout: float = 0.0) -> list[bytes | None]:
        """Do the same as :meth:`poll_batches`, but return only the values. Deserializers and interceptors do not
        apply."""
        return await self._poll(self._core.take_values, timeout)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Iterate without end. For automatic commits, a record counts as returned when you request the next one."""
        core = self._core
        while True:
            records = await self.poll(60.0)
            iteration = core.iterate(records)
            for iteration.at, record in enumerate(records):
                yield record
                if core.iteration is not iteration:
                    break  # somebody polled or iterated elsewhere in the meantime, and continues there

    async def _poll(self, take: Callable[[], list[T]], timeout: float) -> list[T]:
        self._check_started()
        self._core.check_assigned()
        group = self._core.group
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if group is not None:
            group.poll_began()
        last = timeout <= 0
        try:
            while True:
                self._data.clear()
                self._core.check_woken()
                if group is not None:
                    await self._drive(group.turn())
                found = take()
                if found or last:
                    break
                left = deadline - loop.time()
                wait = left if group is None else min(left, group.due_in_s)
                last = not await self._news(wait) and wait == left
                if self._core.closing:
                    raise ClientClosedError("this consumer was closed")
        finally:
            if group is not None:
                group.poll_ended()
        if timeout <= 0 or found:
            await asyncio.sleep(0)
        return found

    async def _news(self, seconds: float) -> bool:
        """Wait until there may be something new. Returns false on timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self._data.wait()
        except TimeoutError:
            return False
        return True

    async def _drive(self, steps: Steps) -> None:
        """Carry out the group's steps: call the user's functions, wait. Raises the group's errors."""
        outermost = self._driver is None
        if outermost:
            self._driver = asyncio.current_task()
        answer: BaseException | None = None
        try:
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration:
                    return
                answer = None
                if isinstance(step, Wait):
                    await self._news(max(0, step.until_ms - self._core.cluster.clock.monotonic_ms()) / 1_000)
                    self._data.clear()
                    continue
                try:
                    result = step()
                    if inspect.isawaitable(result):
                        await result
                except Exception as error:
                    answer = error
                except BaseException as error:
                    steps.throw(error)
                    raise
        finally:
            if outermost:
                self._driver = None
                self._rested.set()

    def wakeup(self) -> None:
        """End a wait from any thread: the current ``poll`` (also an iteration's) or ``position`` raises
        ``WakeupError``, or the next one if there is none. A rebalance's steps are not interrupted."""
        self._core.woken = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: nobody waits
                self._loop.call_soon_threadsafe(self._data.set)
        if self._also is not None:
            self._also()

    # --- asking -------------------------------------------------------------------------------------

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionView]:
        """Return the topic's partitions with their leaders. Raises ``UnknownTopicOrPartitionError``."""
        self._check_started()
        view = await self._io_loop.run(self._core.cluster.topic(topic, self._api_timeout_ms(timeout)))
        return list(view.partitions)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return await self._offsets({TopicPartition(*p): EARLIEST_TIMESTAMP for p in partitions}, timeout)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last readable record (the high watermark) of each partition."""
        return await self._offsets({TopicPartition(*p): LATEST_TIMESTAMP for p in partitions}, timeout)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return, per partition, the first record at or after a time (ms since the epoch); ``None`` if there is
        none."""
        for at, timestamp in timestamps.items():
            if timestamp < 0:
                raise ValueError(f"{at}: expected a time of 0 or more, found {timestamp}")
        found = await self._look_up(timestamps, timeout)
        return {
            at: None if r.offset < 0 else OffsetAndTimestamp(r.offset, r.timestamp, r.leader_epoch)
            for at, r in found.items()
        }

    def metrics(self) -> dict[str, float]:
        """Return counters and gauges by Kafka's metric names; those of a partition begin with its name, such as
        ``orders-0.records-lag``."""
        return self._core.metrics_now()

    # --- inside ---------------------------------------------------------------------------------------

    async def _offsets(self, wanted: dict[TopicPartition, int], timeout: float | None) -> dict[TopicPartition, int]:
        return {at: result.offset for at, result in (await self._look_up(wanted, timeout)).items()}

    async def _look_up(
        self, wanted: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, ListOffsetsResult]:
        self._check_started()
        self._core.check()
        timeout_ms = self._api_timeout_ms(timeout)
        return await self._io_loop.run(
            look_up(self._core.cluster, wanted, read_committed=self._config.read_committed, timeout_ms=timeout_ms)
        )

    def _api_timeout_ms(self, timeout: float | None) -> int:
        return self._config.default_api_timeout_ms if timeout is None else int(timeout * 1_000)

    def _on_data(self) -> None:
        """Signal new data. Runs where IO runs."""
        if not self._telling:
            self._telling = True
            self._io_loop.tell(self._told)
        if self._also is not None:
            self._also()

    def _told(self) -> None:
        self._telling = False
        self._data.set()

    def _wake_fetcher(self) -> None:
        self._io_loop.call(self._core.fetcher.wake)

    def _check_not_nested(self) -> None:
        if self._driver is not None and self._driver is asyncio.current_task():
            raise nested()

    def _check_started(self) -> None:
        if not self._started:
            raise IllegalStateError("call start() first, or use it as 'async with Consumer(...) as consumer'")
