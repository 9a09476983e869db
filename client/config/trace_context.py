"""W3C trace context in record headers: a record that is sent while another one is handled belongs to its trace.

Source: W3C Trace Context, level 1: ``traceparent`` is ``VERSION-TRACE_ID-PARENT_ID-FLAGS`` in hexadecimal, and
``tracestate`` is passed on unread. Without a valid ``traceparent`` a new trace begins.
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.client.config.interceptors import ProducerInterceptor, ProducerRecord
from tidelog.client.record import ConsumerRecord
from tidelog.proto.records.walk import RecordHeaders

if TYPE_CHECKING:
    from tidelog.client.delivery import Callback

_PARENT: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1
_handled: ContextVar[RecordHeaders] = ContextVar("tidelog_handled", default=())
"""Headers of the record that this thread or task handles."""


class SpanContext(NamedTuple):
    """What ``traceparent`` says; ids in hexadecimal."""

    trace_id: str
    span_id: str
    sampled: bool

    def headers(self, state: str = "") -> RecordHeaders:
        parent = f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}".encode()
        return (("traceparent", parent), *((("tracestate", state.encode()),) if state else ()))


class Tracer(ABC):
    """Keeps what becomes of records. :class:`TraceContext` and :func:`handling` call it, in the threads that send,
    handle and acknowledge, so it must be quick."""

    @abstractmethod
    def sending(self, record: ProducerRecord) -> tuple[RecordHeaders, Callback]:
        """A record is about to be sent, with key and value in bytes. Return headers to add, and what to call with its
        outcome."""

    @abstractmethod
    def processing(self, record: ConsumerRecord, group_id: str | None) -> AbstractContextManager[RecordHeaders]:
        """Surround the work on a record. Gives headers with the context of what is sent meanwhile; lets exceptions
        through."""


@contextmanager
def handling(record: ConsumerRecord, tracer: Tracer | None = None, group_id: str | None = None) -> Iterator[None]:
    """Let what is sent within belong to the trace of ``record``, and tell ``tracer`` of the work.
    :class:`tidelog.Workers` and :class:`tidelog.Transform` do so around each call; loops of your own do it themselves.
    """
    with nullcontext(record.headers) if tracer is None else tracer.processing(record, group_id) as headers:
        token = _handled.set(headers)
        try:
            yield
        finally:
            _handled.reset(token)


def trace_headers() -> dict[str, str]:
    """Return the headers of the next message in the trace of the record that is handled here, or of a new trace: a
    ``traceparent``, and the record's ``tracestate``. For messages that go another way, such as an outbox."""
    _, headers = next_context(_handled.get())
    return {name: (value or b"").decode() for name, value in headers}


class TraceContext(ProducerInterceptor):
    """Gives each record of ``send()`` without a ``traceparent`` the one that :func:`trace_headers` returns. ``tracer``
    keeps what becomes of the records."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer

    def on_serialized(self, record: ProducerRecord) -> tuple[RecordHeaders, Callback | None]:
        if self._tracer is not None:
            return self._tracer.sending(record)
        return (() if has_context(record) else next_context(_handled.get())[1]), None


def traced(producer_settings: Mapping[str, Any] | None, tracer: Tracer | None) -> dict[str, Any]:
    """Return the settings of a producer whose records the tracer, if there is one, keeps."""
    settings = dict(producer_settings or {})
    if tracer is not None:
        settings["interceptor_classes"] = [*settings.get("interceptor_classes", ()), TraceContext(tracer)]
    return settings


def has_context(record: ProducerRecord) -> bool:
    return any(name == "traceparent" for name, _ in record.headers)


def context_here() -> RecordHeaders:
    """Return the headers with the context of what is handled in this thread or task."""
    return _handled.get()


def context_of(headers: Sequence[tuple[str, bytes | None]]) -> SpanContext | None:
    """Return what a valid ``traceparent`` says."""
    parents = [value for name, value in headers if name == "traceparent" and value is not None]
    found = _PARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if found is None or (found[1] == b"00" and found[5]):
        return None
    return SpanContext(found[2].decode(), found[3].decode(), bool(int(found[4], 16) & _SAMPLED))


def state_of(headers: Sequence[tuple[str, bytes | None]]) -> str:
    return ",".join(value.decode("ascii", "replace") for name, value in headers if name == "tracestate" and value)


def next_context(headers: Sequence[tuple[str, bytes | None]]) -> tuple[SpanContext, RecordHeaders]:
    """Return a new span of the headers' trace, or of a new trace, and its headers."""
    parent = context_of(headers)
    if parent is None:
        made = SpanContext(new_id(16), new_id(8), True)
        return made, made.headers()
    made = parent._replace(span_id=new_id(8))
    return made, made.headers(state_of(headers))


def new_id(size: int) -> str:
    """Return so many random bytes in hexadecimal; not zero."""
    while True:
        if any(made := secrets.token_bytes(size)):
            return made.hex()
