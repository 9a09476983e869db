"""Spans of OpenTelemetry for what is sent and handled, with its semantic conventions for messaging.

Source: OpenTelemetry, semantic conventions for messaging spans and for Kafka (1.30). The package ``opentelemetry-api``
is loaded with the first :class:`OpenTelemetry`, and with no SDK set up, spans cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.config.interceptors import ProducerRecord
from tidelog.client.config.trace_context import (
    SpanContext,
    Tracer,
    context_here,
    context_of,
    has_context,
    next_context,
    state_of,
)
from tidelog.client.delivery import Callback, RecordMetadata
from tidelog.client.producer.batch import Headers
from tidelog.client.record import ConsumerRecord
from tidelog.model.version import VERSION
from tidelog.proto.records.walk import RecordHeaders

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context

SYSTEM: Final = "tidelog"
KEY_MAX: Final = 256
"""Keys that are longer, or not text, are no attributes."""


class OpenTelemetry(Tracer):
    """Begins spans with ``tracer_provider``, by default the global one; for ``TraceContext(OpenTelemetry())``,
    ``Workers(tracer=OpenTelemetry())`` and others.

    ``send TOPIC`` lasts until a record is acknowledged, ``process TOPIC`` as long as its handler, for which it is the
    current span. A record is in the trace that its ``traceparent`` says. Raises ``ModuleNotFoundError`` without
    ``opentelemetry-api``.
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "OpenTelemetry needs a package that is not installed: pip install 'tidelog[otel]'"
            ) from None
        self._provider = tracer_provider
        self._tracer = trace.get_tracer("tidelog", VERSION, tracer_provider)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._provider is not None:
            raise TypeError(
                "OpenTelemetry: expected the global tracer provider for handlers in other processes, found another; "
                "set the global one in a module that they import"
            )
        return OpenTelemetry, ()

    def sending(self, record: ProducerRecord) -> tuple[RecordHeaders, Callback]:
        """The record keeps a context that it has, and the span is a child of it."""
        from opentelemetry import trace

        own = has_context(record)
        around = not own and trace.get_current_span().get_span_context().is_valid
        parent = None if around else _parent(record.headers if own else context_here())  # None: the current one
        attributes = _attributes("send", record.topic, record.key, record.value)
        span = self._tracer.start_span(f"send {record.topic}", parent, trace.SpanKind.PRODUCER, attributes)

        def sent(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            if metadata is not None:
                span.set_attributes(_place(metadata.partition, metadata.offset))
            if error is not None:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(trace.StatusCode.ERROR, str(error))
            span.end()

        return () if own else _headers(span, context_here()), sent

    @contextmanager
    def processing(self, record: ConsumerRecord, group_id: str | None) -> Iterator[RecordHeaders]:
        from opentelemetry import trace

        attributes = _attributes("process", record.topic, record.key, record.value)
        attributes |= _place(record.partition, record.offset)
        if group_id is not None:
            attributes["messaging.consumer.group.name"] = group_id
        with self._tracer.start_as_current_span(
            f"process {record.topic}", _parent(record.headers), trace.SpanKind.CONSUMER, attributes
        ) as span:
            try:
                yield _headers(span, record.headers)
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise


def _parent(headers: Headers) -> Context:
    """Return a context with the span of the headers, or with none: then a new trace begins."""
    from opentelemetry import trace
    from opentelemetry.context import Context

    found = context_of(headers)
    if found is None:
        return Context()
    context = trace.SpanContext(
        int(found.trace_id, 16),
        int(found.span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(found.sampled),
        trace_state=trace.TraceState.from_header([state_of(headers)]),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context())


def _headers(span: trace.Span, before: Headers) -> RecordHeaders:
    """Return the headers with the span's context. Without an SDK, the span has none of its own: return those of the
    next span after ``before``."""
    context = span.get_span_context()
    if not context.is_valid or context.is_remote:
        return next_context(before)[1]
    own = SpanContext(f"{context.trace_id:032x}", f"{context.span_id:016x}", bool(context.trace_flags.sampled))
    return own.headers(context.trace_state.to_header())


def _attributes(operation: str, topic: str, key: bytes | None, value: bytes | None) -> dict[str, str | int | bool]:
    found: dict[str, str | int | bool] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        "messaging.message.body.size": len(value or b""),
    }
    if value is None:
        found["messaging.kafka.message.tombstone"] = True
    if key is not None and len(key) <= KEY_MAX:
        try:
            found["messaging.kafka.message.key"] = key.decode()
        except UnicodeDecodeError:
            pass
    return found


def _place(partition: int, offset: int) -> dict[str, str | int | bool]:
    found: dict[str, str | int | bool] = {"messaging.destination.partition.id": str(partition)}
    if offset >= 0:
        found["messaging.kafka.offset"] = offset
    return found
