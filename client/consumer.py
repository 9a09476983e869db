"""The consumer for asyncio: partitions are assigned by hand, positions kept by the consumer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar, Unpack

from tidelog.client.consumer_config import ConsumerConfig, ConsumerSettings
from tidelog.client.consumer_core import ConsumerCore
from tidelog.client.errors import IllegalStateError, RequestTimedOutError
from tidelog.client.metadata import PartitionView
from tidelog.client.offset_lookup import OffsetAndTimestamp, look_up
from tidelog.client.producer import default_network
from tidelog.client.record import ConsumerBatch, ConsumerRecord
from tidelog.client.settings import parse_bootstrap
from tidelog.model.clock import Clock, SystemClock
from tidelog.model.ids import TopicPartition
from tidelog.proto.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsetsResult
from tidelog.proto.network import Network

C = TypeVar("C", bound="AsyncConsumer")


class AsyncConsumer:
    """Reads partitions that are assigned to it; ``tidelog.aio.Consumer``.

    Use it on one event loop and from one task at a time, as ``async with Consumer("localhost:9092") as
    consumer:``, or call :meth:`start` and :meth:`close`. Settings are keyword arguments
    (:class:`ConsumerSettings`); a wrong one raises ``ConfigError``.

    ``async for record in consumer`` reads on without end.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        _network: Network | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        _on_data: Callable[[], None] | None = None,
        _wake: Callable[[], None] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self._config = ConsumerConfig.of(settings)
        self._data = asyncio.Event()
        self._also = _on_data
        self._wake = _wake or self._wake_fetcher
        self._core = ConsumerCore(
            parse_bootstrap(bootstrap_servers),
            self._config,
            _network or default_network(),
            _clock or SystemClock(),
            _rng or random.Random(),
            on_data=self._on_data,
            on_wake=self._wake,
        )
        self._started = False

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin; returns at once, the connection is made in the background."""
        if not self._started:
            self._started = True
            self._core.start()

    async def close(self) -> None:
        """Stop. A poll that waits raises ``ClientClosedError``. May be called twice."""
        if not self._core.closed:
            self._core.closed = True
            self._data.set()
            await self._core.close()

    async def __aenter__(self: C) -> C:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- assignment and positions -------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions from now on, and no others. Those that stay keep their positions; new
        ones start where ``auto_offset_reset`` says, or where :meth:`seek` is told."""
        self._core.assign(TopicPartition(*p) for p in partitions)
        self._wake()

    def assignment(self) -> set[TopicPartition]:
        """What is assigned."""
        return set(self._core.assignment.partitions)

    def seek(self, partition: TopicPartition, offset: int, *, leader_epoch: int = -1) -> None:
        """Read on from ``offset``. With the ``leader_epoch`` of the record before it, a log that was cut
        below it in the meantime is noticed (KIP-320)."""
        self._core.seek(partition, offset, leader_epoch)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read these (or all assigned) partitions from their first record; looked up in the background."""
        self._core.seek_by(partitions, "earliest")

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read these (or all assigned) partitions from their end; looked up in the background."""
        self._core.seek_by(partitions, "latest")

    async def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The offset of the next record that poll hands out, looking it up if need be.

        ``timeout`` in seconds (default ``default_api_timeout_ms``); then ``RequestTimedOutError``.
        """
        self._check_started()
        self._wake()
        limit = self._api_timeout_ms(timeout)
        try:
            async with asyncio.timeout(limit / 1_000):
                while (found := self._core.position(partition)) is None:
                    self._data.clear()
                    await self._data.wait()
                return found
        except TimeoutError:
            raise RequestTimedOutError(f"{partition}: no position within {limit} ms") from None

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing from these until :meth:`resume`; positions stay."""
        self._core.set_paused(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        self._core.set_paused(partitions, False)
        self._data.set()

    def paused(self) -> set[TopicPartition]:
        return self._core.paused()

    def lag(self, partition: TopicPartition) -> int | None:
        """Records between the position and the high watermark, as of the last fetch; ``None`` before one."""
        return self._core.lag(partition)

    # --- polling --------------------------------------------------------------------------------------

    async def poll(self, timeout: float = 0.0, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return up to ``max_records`` (default ``max_poll_records``) records, waiting up to ``timeout``
        seconds for the first. Records of one partition come in order of their offsets.

        Raises ``OffsetOutOfRangeError``, ``LogTruncationError`` and ``NoOffsetForPartitionError`` where
        ``auto_offset_reset`` is ``none``; ``CorruptRecordError``; ``UnknownTopicOrPartitionError``;
        ``SerializationError``. After one of these :meth:`seek` to go on.
        """
        self._check_polling()
        count = self._config.max_poll_records if max_records is None else max_records
        found = self._core.take_records(count)
        if found or timeout <= 0:
            await asyncio.sleep(0)
            return found
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not found and await self._news(deadline):
            found = self._core.take_records(count)
        return found

    async def poll_batches(self, timeout: float = 0.0) -> list[ConsumerBatch]:
        """Return everything that has been fetched, as batches that are unpacked when looked at: the fast
        form. Waits up to ``timeout`` seconds for the first. Raises as :meth:`poll`."""
        self._check_polling()
        found = self._core.take_batches()
        if found or timeout <= 0:
            await asyncio.sleep(0)
            return found
        deadline = asyncio.get_running_loop().time() + timeout
        while not found and await self._news(deadline):
            found = self._core.take_batches()
        return found

    async def poll_values(self, timeout: float = 0.0) -> list[bytes | None]:
        """As :meth:`poll_batches`, the values alone. Deserializers do not apply."""
        return self._core.values_of(await self.poll_batches(timeout))

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        while True:
            for record in await self.poll(60.0):
                yield record

    async def _news(self, deadline: float) -> bool:
        """Wait until the fetcher has something; false when time is over."""
        self._data.clear()
        if self._core.assignment.next_with_data() is not None:
            return True
        try:
            async with asyncio.timeout_at(deadline):
                await self._data.wait()
        except TimeoutError:
            return False
        return True

    # --- asking -------------------------------------------------------------------------------------

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionView]:
        """The topic's partitions with their leaders. Raises ``UnknownTopicOrPartitionError``."""
        self._check_started()
        view = await self._core.cluster.topic(topic, self._api_timeout_ms(timeout))
        return list(view.partitions)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each."""
        return await self._offsets({TopicPartition(*p): EARLIEST_TIMESTAMP for p in partitions}, timeout)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record that can be read (the high watermark) of each."""
        return await self._offsets({TopicPartition(*p): LATEST_TIMESTAMP for p in partitions}, timeout)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Per partition the first record at or after a time (ms since the epoch); ``None`` if there is none."""
        for at, timestamp in timestamps.items():
            if timestamp < 0:
                raise ValueError(f"{at}: expected a time of 0 or more, found {timestamp}")
        found = await self._look_up(timestamps, timeout)
        return {
            at: None if r.offset < 0 else OffsetAndTimestamp(r.offset, r.timestamp, r.leader_epoch)
            for at, r in found.items()
        }

    def metrics(self) -> dict[str, int]:
        """Counters by Kafka's metric names."""
        return self._core.metrics.snapshot()

    # --- inside ---------------------------------------------------------------------------------------

    async def _offsets(self, wanted: dict[TopicPartition, int], timeout: float | None) -> dict[TopicPartition, int]:
        return {at: result.offset for at, result in (await self._look_up(wanted, timeout)).items()}

    async def _look_up(
        self, wanted: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, ListOffsetsResult]:
        self._check_started()
        self._core.check()
        timeout_ms = self._api_timeout_ms(timeout)
        return await look_up(
            self._core.cluster, wanted, read_committed=self._config.read_committed, timeout_ms=timeout_ms
        )

    def _api_timeout_ms(self, timeout: float | None) -> int:
        return self._config.default_api_timeout_ms if timeout is None else int(timeout * 1_000)

    def _on_data(self) -> None:
        self._data.set()
        if self._also is not None:
            self._also()

    def _wake_fetcher(self) -> None:
        self._core.fetcher.wake()

    def _check_started(self) -> None:
        if not self._started:
            raise IllegalStateError("start() it first, or use it as 'async with Consumer(...) as consumer'")

    def _check_polling(self) -> None:
        self._check_started()
        self._core.check_assigned()
