"""W3C trace context in record headers: a record that is sent while another one is handled belongs to its trace.

Source: W3C Trace Context, level 1: ``traceparent`` is ``VERSION-TRACE_ID-PARENT_ID-FLAGS`` in hexadecimal, and
``tracestate`` is passed on unread. Without a valid ``traceparent`` a new trace begins.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from tidelog.client.config.interceptors import ProducerInterceptor, ProducerRecord
from tidelog.client.record import ConsumerRecord
from tidelog.proto.records.walk import RecordHeaders

_PARENT: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1
_handled: ContextVar[RecordHeaders] = ContextVar("tidelog_handled", default=())
"""Headers of the record that this thread or task handles."""


@contextmanager
def handling(record: ConsumerRecord) -> Iterator[None]:
    """Let what is sent within belong to the trace of ``record``. :class:`tidelog.Workers` and
    :class:`tidelog.Transform` do so around each call; a loop of your own does it itself."""
    token = _handled.set(record.headers)
    try:
        yield
    finally:
        _handled.reset(token)


def trace_headers() -> dict[str, str]:
    """Return the headers of the next message in the trace of the record that is handled here, or of a new trace: a
    ``traceparent``, and the record's ``tracestate``. For messages that go another way, such as an outbox."""
    return _next(_handled.get())


class TraceContext(ProducerInterceptor):
    """Gives each record of ``send()`` without a ``traceparent`` the one that :func:`trace_headers` returns."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        if any(name == "traceparent" for name, _ in record.headers):
            return record
        added = [(name, value.encode()) for name, value in trace_headers().items()]
        return dataclasses.replace(record, headers=[*record.headers, *added])


def _next(headers: RecordHeaders) -> dict[str, str]:
    parents = [value for name, value in headers if name == "traceparent" and value is not None]
    found = _PARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if found is None or (found[1] == b"00" and found[4]):
        return {"traceparent": f"00-{_id(16)}-{_id(8)}-{_SAMPLED:02x}"}
    sampled = int(found[3], 16) & _SAMPLED
    made = {"traceparent": f"00-{found[2].decode()}-{_id(8)}-{sampled:02x}"}
    states = [value.decode("ascii", "replace") for name, value in headers if name == "tracestate" and value]
    return made | ({"tracestate": ",".join(states)} if states else {})


def _id(size: int) -> str:
    while True:
        if any(made := secrets.token_bytes(size)):
            return made.hex()
