"""Stores what became of messages in a topic, for ``tidelog trace``.

A thread writes, with a producer of its own. What comes faster than it can write is counted and dropped: a handler or a
``send()`` never waits for it.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from tidelog.client.config.interceptors import ProducerRecord
from tidelog.client.config.trace_context import (
    SpanContext,
    Tracer,
    context_here,
    context_of,
    has_context,
    next_context,
)
from tidelog.client.delivery import Callback, RecordMetadata
from tidelog.client.errors import TidelogError
from tidelog.client.producer.batch import Headers
from tidelog.client.producer.blocking import Producer
from tidelog.client.record import ConsumerRecord
from tidelog.client.tracing.hops import OK, Hop, key_hash, note_of
from tidelog.proto.records.walk import RecordHeaders

TOPIC: Final = "message-traces"
SAMPLE: Final = 0.01
QUEUE_MAX: Final = 10_000
CLOSE_S: Final = 5.0
"""How long the end of a program waits for the last hops."""
SAY_S: Final = 60.0
_ALL: Final = 1 << 56
log = logging.getLogger(__name__)


@dataclass(slots=True)
class TraceCounts:
    """``dropped``: the queue was full, or the cluster refused them."""

    stored: int = 0
    dropped: int = 0


class TraceStore(Tracer):
    """Stores hops of traces in ``topic``; for ``TraceContext(store)``, ``Workers(tracer=store)`` and others.

    ``sample`` is the share of traces to store, the same ones in each program that has the same share. Whatever the
    share: failures, retries, dead letters and redriven records are stored. A trace whose ``traceparent`` says that it
    is not sampled counts as not chosen. ``program`` names the program in what is shown (default: its file). At most
    ``queue_max`` hops wait in memory. ``settings`` are the producer's.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        topic: str = TOPIC,
        sample: float = SAMPLE,
        program: str | None = None,
        queue_max: int = QUEUE_MAX,
        **settings: Any,
    ) -> None:
        if not 0 <= sample <= 1:
            raise ValueError(f"sample: expected a share from 0 to 1, found {sample}")
        if queue_max < 1:
            raise ValueError(f"queue_max: expected 1 or more, found {queue_max}")
        name = program or os.path.basename(sys.argv[0]) or "python"
        self._made: Final = (bootstrap_servers, topic, sample, name, queue_max, settings)
        self._program: Final = f"{name}@{socket.gethostname()}"
        self._chosen_below: Final = int(sample * _ALL)
        self._hops: Final[deque[Hop]] = deque()
        self._changed: Final = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._say_at = 0.0
        self.counts: Final = TraceCounts()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, such as one of ``Workers(processes=True)``, it is one store for all who ask."""
        return _store_here, self._made

    def close(self, timeout: float = CLOSE_S) -> None:
        """Write what is left, for at most ``timeout`` seconds, then stop. The end of the program does so too."""
        atexit.unregister(self.close)
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)

    # --- what it is told ------------------------------------------------------------------------------

    def sending(self, record: ProducerRecord) -> tuple[RecordHeaders, Callback]:
        """The record keeps a context that it has, and the hop is a child of it."""
        own = has_context(record)
        before = record.headers if own else context_here()
        context, added = next_context(before)
        began_us = _now_us()

        def sent(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            place = (record.topic, -1, -1) if metadata is None else metadata[:3]
            self._note(context, before, "send", None, place, record.key, record.headers, began_us, error)

        return () if own else added, sent

    @contextmanager
    def processing(self, record: ConsumerRecord, group_id: str | None) -> Iterator[RecordHeaders]:
        context, headers = next_context(record.headers)
        began_us = _now_us()
        error: BaseException | None = None
        try:
            yield headers
        except BaseException as raised:
            error = raised
            raise
        finally:
            place = (record.topic, record.partition, record.offset)
            self._note(context, record.headers, "process", group_id, place, record.key, record.headers, began_us, error)

    def _note(
        self,
        context: SpanContext,
        before: Headers,
        kind: Literal["send", "process"],
        group_id: str | None,
        place: tuple[str, int, int],
        key: bytes | None,
        headers: Headers,
        began_us: int,
        error: BaseException | None,
    ) -> None:
        note = note_of(headers)
        chosen = context.sampled and int(context.trace_id[-14:], 16) < self._chosen_below
        if not (chosen or error or note):
            return
        parent = context_of(before)
        outcome = OK if error is None else type(error).__name__
        self._put(
            Hop(
                context.trace_id, context.span_id, parent and parent.span_id, kind, self._program, group_id, *place,
                key_hash(key), began_us, max(0, _now_us() - began_us), outcome, note,
            )
        )  # fmt: skip

    # --- the thread -----------------------------------------------------------------------------------

    def _put(self, hop: Hop) -> None:
        with self._changed:
            if self._closed or len(self._hops) >= self._made[4]:
                self._drop(1, "the queue is full")
                return
            self._hops.append(hop)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="traces", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _drop(self, count: int, why: object) -> None:
        self.counts.dropped += count
        if time.monotonic() >= self._say_at:
            self._say_at = time.monotonic() + SAY_S
            log.warning("hops of traces are dropped, %d up to now: %s", self.counts.dropped, why)

    def _write(self) -> None:
        bootstrap, topic, _, _, _, settings = self._made
        with Producer(bootstrap, **{"acks": 1, "linger_ms": 100, "compression_type": "lz4", **settings}) as producer:
            atexit.register(self.close)  # now, so that it runs before the producer's own
            while (hop := self._next()) is not None:
                try:
                    producer.send(topic, hop.packed(), hop.trace.encode(), on_delivery=self._stored)
                except TidelogError as error:
                    self._stored(None, error)

    def _next(self) -> Hop | None:
        with self._changed:
            while not self._hops and not self._closed:
                self._changed.wait()
            return self._hops.popleft() if self._hops else None

    def _stored(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        with self._changed:
            if error is None:
                self.counts.stored += 1
            else:
                self._drop(1, error)


_here: dict[str, TraceStore] = {}


def _store_here(
    bootstrap_servers: str | Sequence[str],
    topic: str,
    sample: float,
    program: str,
    queue_max: int,
    settings: dict[str, Any],
) -> TraceStore:
    name = repr((bootstrap_servers, topic, sample, program, queue_max, sorted(settings)))
    if name not in _here:
        _here[name] = TraceStore(
            bootstrap_servers, topic=topic, sample=sample, program=program, queue_max=queue_max, **settings
        )
    return _here[name]


def _now_us() -> int:
    return time.time_ns() // 1_000
