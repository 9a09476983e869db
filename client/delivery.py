"""The outcome of sent records: one shared :class:`Delivery` per batch, and light handles on it.

The sender resolves a whole batch with one call. A record's :class:`DeliveryFuture` is a pair (delivery,
index) that costs nothing to make; it computes its metadata on demand.
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
from tidelog.client.fast_path import Handle
from tidelog.model.ids import TopicPartition

log = logging.getLogger(__name__)

UNKNOWN_OFFSET: Final = -1


class RecordMetadata(NamedTuple):
    """A record's position in the log. ``offset`` is -1 if the broker did not say (acks=0, or a duplicate of an old
    batch). ``timestamp`` in ms: the record's own, or the broker's with LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Timestamps(NamedTuple):
    """Timestamps of consecutive records as runs: records from ``starts[i]`` on have ``times[i]``."""

    starts: list[int]
    times: list[int]

    def at(self, index: int) -> int:
        return self.times[bisect_right(self.starts, index) - 1]

    def expand(self, count: int) -> list[int]:
        """Return one timestamp for each of ``count`` records."""
        out: list[int] = []
        for time, start, stop in zip(self.times, self.starts, [*self.starts[1:], count], strict=True):
            out.extend(repeat(time, stop - start))
        return out


@dataclass(frozen=True, slots=True, order=True)
class DeliveredRange:
    """``count`` records, starting with number ``first`` of the delivery, written from ``base_offset`` on."""

    first: int
    count: int
    partition: int
    base_offset: int
    timestamp: int
    """The broker's append time, or -1 if the records keep their own timestamps."""


Callback = Callable[[RecordMetadata | None, BaseException | None], object]


class Delivery:
    """The outcome of ``count`` records of one topic, passed in together.

    Its pieces (batches, halves of a split batch) succeed or fail one by one through :meth:`succeed`
    and :meth:`fail`. It is done when every record has its answer. Thread-safe.
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
        """Set the number of records, once it is known and before any record has its answer."""
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
        self._failed.append((first, count, _copied(error)))
        self._finish(first, count, error)

    def _finish(self, first: int, count: int, error: BaseException | None) -> None:
        with self._lock:
            self._open -= count
            watchers = None
            if not self._open:
                watchers, self._watchers = self._watchers, None
            over = not self._open
        if self._callbacks:
            self._run_callbacks(self._callbacks, first, count, error)
        if over:
            self._callbacks = None  # they may refer to futures of this delivery
        for watcher in watchers or ():
            try:
                watcher()
            except Exception:
                log.exception("a callback on a delivery raised")

    def _run_callbacks(
        self, callbacks: dict[int, Callback], first: int, count: int, error: BaseException | None
    ) -> None:
        several = len(callbacks) > count
        for index in range(first, first + count) if several else sorted(callbacks):
            if not first <= index < first + count or (callback := callbacks.get(index)) is None:
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
        """The delivered ranges, ordered by index."""
        return sorted(self._ranges)

    def error_of(self, index: int) -> BaseException | None:
        for first, count, error in self._failed:
            if first <= index < first + count:
                return _copied(error)
        return None

    @property
    def first_error(self) -> BaseException | None:
        return _copied(min(self._failed, key=lambda failed: failed[0])[2]) if self._failed else None

    @property
    def failed_count(self) -> int:
        return sum(count for _, count, _ in self._failed)

    def metadata(self, index: int) -> RecordMetadata:
        """Return the metadata of a delivered record."""
        for found in self._ranges:
            if found.first <= index < found.first + found.count:
                offset = found.base_offset + index - found.first if found.base_offset >= 0 else UNKNOWN_OFFSET
                timestamp = found.timestamp if found.timestamp >= 0 else self.timestamps.at(index)
                return RecordMetadata(self.topic, found.partition, offset, timestamp)
        raise AssertionError(f"record {index} has no answer yet")

    def watch(self, watcher: Callable[[], object]) -> None:
        """Call ``watcher`` once everything is done; immediately if it already is."""
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


def _copied(error: BaseException) -> BaseException:
    """Copy an error. A raised error refers to frames, and they to futures, so what a delivery keeps is never raised."""
    found = error.__class__.__new__(error.__class__, *error.args)
    found.__dict__.update(error.__dict__)
    if error.__cause__ is not None:
        found.__cause__ = error.__cause__
    return found


class DeliveryFuture(Handle):
    """The outcome of one record. ``await`` it, or block on :meth:`result`, as often as you like."""

    __slots__ = ()
    _delivery: Delivery

    def done(self) -> bool:
        """Return whether the record's batch has been answered."""
        return self._delivery.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Block until the record is delivered; ``timeout`` in seconds.

        Raises the error that made it fail, or ``RequestTimedOutError`` after ``timeout`` (the record may
        still be delivered). On an event loop, use ``await`` instead.
        """
        if not self._delivery.wait(timeout):
            raise RequestTimedOutError(f"no answer for a record of topic {self._delivery.topic} within {timeout} s")
        return self._outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As :meth:`result`, but return the error, or ``None`` for a delivered record."""
        if not self._delivery.wait(timeout):
            raise RequestTimedOutError(f"no answer for a record of topic {self._delivery.topic} within {timeout} s")
        return self._delivery.error_of(self._index)

    def add_done_callback(self, callback: Callable[[DeliveryFuture], object]) -> None:
        """Call ``callback(self)`` once done, in the producer's IO thread; immediately if it already is."""
        self._delivery.watch(lambda: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._delivery.done:
            yield from self._delivery.wait_async().__await__()
        return self._outcome()

    def _outcome(self) -> RecordMetadata:
        error = self._delivery.error_of(self._index)
        if error is not None:
            raise error
        return self._delivery.metadata(self._index)

    def __repr__(self) -> str:
        delivery, index = self._delivery, self._index
        return f"<DeliveryFuture record {index} of a batch for {delivery.topic}, {'done' if delivery.done else 'open'}>"


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The records that ``send_many`` delivered: consecutive ranges, ordered by their index in the input."""

    topic: str
    count: int
    ranges: tuple[DeliveredRange, ...]

    def offsets(self) -> dict[TopicPartition, tuple[int, int]]:
        """The lowest and highest offset written to each partition."""
        out: dict[TopicPartition, tuple[int, int]] = {}
        for found in self.ranges:
            at = TopicPartition(self.topic, found.partition)
            last = found.base_offset + found.count - 1
            low, high = out.get(at, (found.base_offset, last))
            out[at] = (min(low, found.base_offset), max(high, last))
        return out


class BulkFuture:
    """The outcome of all records of one ``send_many``. ``await`` it, or block on :meth:`result`."""

    __slots__ = ("_count", "_delivery")

    def __init__(self, delivery: Delivery, count: int) -> None:
        self._delivery = delivery
        self._count = count

    def __repr__(self) -> str:
        state = "done" if self._delivery.done else "open"
        return f"<BulkFuture {self._count} records for {self._delivery.topic}, {state}>"

    def done(self) -> bool:
        """Whether every record has its outcome."""
        return self._delivery.done

    def result(self, timeout: float | None = None) -> BulkResult:
        """Block until every record has its answer; ``timeout`` in seconds.

        Raises the first failed record's error, with a note of how many failed; or
        ``RequestTimedOutError`` after ``timeout``.
        """
        if not self._delivery.wait(timeout):
            raise RequestTimedOutError(f"no answer for all {self._count} records within {timeout} s")
        return self._outcome()

    def __await__(self) -> Generator[Any, None, BulkResult]:
        if not self._delivery.done:
            yield from self._delivery.wait_async().__await__()
        return self._outcome()

    def partial(self) -> BulkResult:
        """The records delivered so far, whether or not others failed."""
        return BulkResult(self._delivery.topic, self._count, tuple(self._delivery.ranges))

    def _outcome(self) -> BulkResult:
        error = self._delivery.first_error
        if error is not None:
            if isinstance(error, TidelogError) and not getattr(error, "__notes__", None):
                error.add_note(f"{self._delivery.failed_count} of {self._count} records of one send_many failed")
            raise error
        return self.partial()
