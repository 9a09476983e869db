"""The consumer in plain blocking form: ``tidelog.Consumer``."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar, Unpack

from tidelog.client import background
from tidelog.client.background import BackgroundLoop
from tidelog.client.consumer import AsyncConsumer
from tidelog.client.consumer_config import ConsumerSettings
from tidelog.client.metadata import PartitionView
from tidelog.client.offset_lookup import OffsetAndTimestamp
from tidelog.client.record import ConsumerBatch, ConsumerRecord
from tidelog.model.clock import Clock
from tidelog.model.ids import TopicPartition
from tidelog.proto.network import Network

C = TypeVar("C", bound="Consumer")
T = TypeVar("T")


class Consumer:
    """Reads partitions that are assigned to it.

        with Consumer("localhost:9092", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            for record in consumer.poll(1.0):
                print(record.offset, record.value)

    A background thread, one per process, fetches ahead; records are unpacked in the thread that polls.
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
        self._inner = AsyncConsumer(
            bootstrap_servers,
            _network=_network,
            _clock=_clock,
            _rng=_rng,
            _on_data=self._news.set,
            _wake=self._wake,
            **settings,
        )
        self._core = self._inner._core
        self._max_poll_records = self._inner._config.max_poll_records
        self._wake_requested = False
        self._owns_background = _background is None
        self._background = _background or background.acquire()
        self._background.run(self._inner.start())

    # --- life ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop. A poll in another thread raises ``ClientClosedError``. May be called twice."""
        if self._core.closed:
            return
        self._core.closed = True
        self._news.set()
        try:
            self._background.run(self._core.close())
        finally:
            if self._owns_background:
                background.release(self._background)

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        """Read on without end."""
        while True:
            yield from self.poll(60.0)

    def _take(self, take: Callable[[], list[T]], timeout: float) -> list[T]:
        self._core.check_assigned()
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
            found = take()
        return found

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

    def metrics(self) -> dict[str, int]:
        """Counters by Kafka's metric names."""
        return self._inner.metrics()

    # --- inside ---------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._wake_requested:
            self._wake_requested = True
            self._background.call(self._woken)

    def _woken(self) -> None:
        self._wake_requested = False
        self._core.fetcher.wake()
