"""What becomes of records that were sent: one shared :class:`Delivery` per batch, and light handles on it.

The sender resolves a whole batch with one call; a record's :class:`DeliveryFuture` is a pair (delivery,
index) made without work, and its metadata is computed when somebody asks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, NamedTuple

from tidelog.client.errors import RequestTimedOutError, TidelogError
from tidelog.model.ids import TopicPartition

log = logging.getLogger(__name__)

UNKNOWN_OFFSET: Final = -1


class RecordMetadata(NamedTuple):
    """Where a record stands. ``offset`` is -1 where the broker did not say (acks=0, or a duplicate of
    an old batch). ``timestamp`` in ms: the record's own, or the broker's with LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Timestamps(NamedTuple):
    """Timestamps of consecutive records as runs: record ``starts[i]`` and those after it have ``times[i]``."""

    starts: list[int]
    times: list[int]

    def at(self, index: int) -> int:
        return self.times[bisect_right(self.starts, index) - 1]

    def expand(self, count: int) -> list[int]:
        """One timestamp for each of ``count`` records."""
        out: list[int] = []
        for time, start, stop in zip(self.times, self.starts, [*self.starts[1:], count], strict=True):
            out.extend(repeat(time, stop - start))
        return out


@dataclass(frozen=True, slots=True, order=True)
class DeliveredRange:
    """``count`` records from ``first`` (index within the delivery) on lie at ``base_offset`` and after it."""

    first: int
    count: int
    partition: int
    base_offset: int
    timestamp: int
    """The broker's append time, or -1: the records' own timestamps hold."""


Callback = Callable[[RecordMetadata | None, BaseException | None], object]


class Delivery:
    """The fate of ``count`` records of one topic, handed over together.

    Pieces of it (batches, halves of a split batch) succeed or fail one by one through :meth:`succeed`
    and :meth:`fail`; it is done when every record has its answer. Thread-safe.
    """

    __slots__ = ("_callbacks", "_failed", "_lock", "_open", "_ranges", "_watchers", "timestamps", "topic")

    def __init__(self, topic: str, timestamps: Timestamps) -> None:
        self.topic = topic
        self.timestamps = timestamps
        self._open = -1
        self._ranges: list[DeliveredRange] = []
        self._failed: list[tuple[int, int, BaseException]] = []
        self._watchers: list[Callable[[], object]] | None = None
        self._callbacks: dict[int, Callback] | None = None
        self._lock = threading.Lock()

    # --- the sender's side ----------------------------------------------------------------------

    def expect(self, count: int) -> None:
        """Say how many records it has, once that is known and before any of them has its answer."""
        self._open = count

    def call_back(self, index: int, callback: Callback) -> None:
        """Remember a record's callback; only before the record's batch can be sent."""
        if self._callbacks is None:
            self._callbacks = {}
        self._callbacks[index] = callback

    def succeed(self, first: int, count: int, partition: int, base_offset: int, append_time: int = -1) -> None:
        self._ranges.append(DeliveredRange(first, count, partition, base_offset, append_time))
        self._finish(first, count, None)

    def fail(self, first: int, count: int, error: BaseException) -> None:
        self._failed.append((first, count, error))
        self._finish(first, count, error)

    def _finish(self, first: int, count: int, error: BaseException | None) -> None:
        with self._lock:
            self._open -= count
            watchers = None
            if not self._open:
                watchers, self._watchers = self._watchers, None
        if self._callbacks:
            self._run_callbacks(first, count, error)
        for watcher in watchers or ():
            try:
                watcher()
            except Exception:
                log.exception("a callback on a delivery raised")

    def _run_callbacks(self, first: int, count: int, error: BaseException | None) -> None:
        assert self._callbacks is not None
        several = len(self._callbacks) > count
        for index in range(first, first + count) if several else sorted(self._callbacks):
            if not first <= index < first + count or (callback := self._callbacks.get(index)) is None:
                continue
            try:
                callback(None if error else self.metadata(index), error)
            except Exception:
                log.exception("a delivery callback raised")

    # --- the user's side --------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return not self._open

    @property
    def ranges(self) -> list[DeliveredRange]:
        """What was delivered, ordered by index."""
        return sorted(self._ranges)

    def error_of(self, index: int) -> BaseException | None:
        for first, count, error in self._failed:
            if first <= index < first + count:
                return error
        return None

    @property
    def first_error(self) -> BaseException | None:
        return min(self._failed, key=lambda failed: failed[0])[2] if self._failed else None

    @property
    def failed_count(self) -> int:
        return sum(count for _, count, _ in self._failed)

    def metadata(self, index: int) -> RecordMetadata:
        """Of a delivered record."""
        for found in self._ranges:
            if found.first <= index < found.first + found.count:
                offset = found.base_offset + index - found.first if found.base_offset >= 0 else UNKNOWN_OFFSET
                timestamp = found.timestamp if found.timestamp >= 0 else self.timestamps.at(index)
                return RecordMetadata(self.topic, found.partition, offset, timestamp)
        raise AssertionError(f"record {index} has no answer yet")

    def watch(self, watcher: Callable[[], object]) -> None:
        """Call ``watcher`` once all is done; at once if it is."""
        with self._lock:
            if self._open:
                if self._watchers is None:
                    self._watchers = []
                self._watchers.append(watcher)
                return
        watcher()

    def unwatch(self, watcher: Callable[[], object]) -> None:
        with self._lock:
            if self._watchers and watcher in self._watchers:
                self._watchers.remove(watcher)

    def wait(self, timeout_s: float | None) -> bool:
        """Block this thread until done; false on timeout."""
        if not self._open:
            return True
        event = threading.Event()
        self.watch(event.set)
        if event.wait(timeout_s):
            return True
        self.unwatch(event.set)
        return False

    async def wait_async(self) -> None:
        if not self._open:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not future.done():
                future.set_result(None)

        def wake() -> None:
            if asyncio._get_running_loop() is loop:
                resolve()
            else:
                loop.call_soon_threadsafe(resolve)

        self.watch(wake)
        try:
            await future
        finally:
            self.unwatch(wake)


class DeliveryFuture(tuple[Delivery, int]):
    """The fate of one record. ``await`` it, or block on :meth:`result`; both may be done many times."""

    __slots__ = ()

    def done(self) -> bool:
        """Whether the record's batch has its answer."""
        return self[0].done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Block until the record is delivered; ``timeout`` in seconds.

        Raises what made it fail, or ``RequestTimedOutError`` when ``timeout`` is over (the record may
        still be delivered). Not for use on an event loop: ``await`` there.
        """
        if not self[0].wait(timeout):
            raise RequestTimedOutError(f"no answer for a record of topic {self[0].topic} within {timeout} s")
        return self._outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As :meth:`result`, but return the error, or ``None`` for a delivered record."""
        delivery, index = self
        if not delivery.wait(timeout):
            raise RequestTimedOutError(f"no answer for a record of topic {delivery.topic} within {timeout} s")
        return delivery.error_of(index)

    def add_done_callback(self, callback: Callable[[DeliveryFuture], object]) -> None:
        """Call ``callback(self)`` once done, in the thread of the producer's IO; at once if it is."""
        self[0].watch(lambda: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self[0].done:
            yield from self[0].wait_async().__await__()
        return self._outcome()

    def _outcome(self) -> RecordMetadata:
        delivery, index = self
        error = delivery.error_of(index)
        if error is not None:
            raise error
        return delivery.metadata(index)

    def __repr__(self) -> str:
        delivery, index = self
        return f"<DeliveryFuture record {index} of a batch for {delivery.topic}, {'done' if delivery.done else 'open'}>"


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What ``send_many`` delivered: ranges of consecutive records, ordered by their index in the input."""

    topic: str
    count: int
    ranges: tuple[DeliveredRange, ...]

    def offsets(self) -> dict[TopicPartition, tuple[int, int]]:
        """Per partition the lowest and the highest offset written."""
        out: dict[TopicPartition, tuple[int, int]] = {}
        for found in self.ranges:
            at = TopicPartition(self.topic, found.partition)
            last = found.base_offset + found.count - 1
            low, high = out.get(at, (found.base_offset, last))
            out[at] = (min(low, found.base_offset), max(high, last))
        return out


class BulkFuture:
    """The fate of all records of one ``send_many``. ``await`` it, or block on :meth:`result`."""

    __slots__ = ("_count", "_delivery")

    def __init__(self, delivery: Delivery, count: int) -> None:
        self._delivery = delivery
        self._count = count

    def done(self) -> bool:
        return self._delivery.done

    def result(self, timeout: float | None = None) -> BulkResult:
        """Block until every record has its answer; ``timeout`` in seconds.

        Raises the error of the first record that failed, with a note of how many did; or
        ``RequestTimedOutError`` when ``timeout`` is over.
        """
        if not self._delivery.wait(timeout):
            raise RequestTimedOutError(f"no answer for all {self._count} records within {timeout} s")
        return self._outcome()

    def __await__(self) -> Generator[Any, None, BulkResult]:
        if not self._delivery.done:
            yield from self._delivery.wait_async().__await__()
        return self._outcome()

    def partial(self) -> BulkResult:
        """What was delivered so far, errors or not."""
        return BulkResult(self._delivery.topic, self._count, tuple(self._delivery.ranges))

    def _outcome(self) -> BulkResult:
        error = self._delivery.first_error
        if error is not None:
            if isinstance(error, TidelogError) and not getattr(error, "__notes__", None):
                error.add_note(f"{self._delivery.failed_count} of {self._count} records of one send_many failed")
            raise error
        return self.partial()
