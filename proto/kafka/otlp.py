"""The data points of an OpenTelemetry ``MetricsData`` message, as Kafka's clients push it (KIP-714): gauges and sums.

It is read field by field, so that only the needed parts become objects; the rest is skipped. Pure. Source:
``opentelemetry/proto/metrics/v1/metrics.proto``, and the encoding of Protocol Buffers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

FIELDS_MAX: Final = 50_000
"""Most fields in one message, including skipped ones."""
NAME_BYTES_MAX: Final = 256
"""Longest name of a metric."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE: Final = struct.Struct("<d")
_INT64: Final = struct.Struct("<q")
_DELTA: Final = 1


class BadMetrics(ValueError):
    """Bytes that are not such a message; the text says why."""


class Figure(NamedTuple):
    """One data point. ``sums``: a monotonic sum. ``delta``: the increase since the previous push."""

    name: str
    value: float
    sums: bool
    delta: bool


class _Message:
    """Reads the fields of one message, within the budget of all."""

    __slots__ = ("_at", "_budget", "_data", "_end")

    def __init__(self, data: memoryview, start: int, end: int, budget: list[int]) -> None:
        self._data = data
        self._at = start
        self._end = end
        self._budget = budget

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield each field: its number, its kind, then start and end of its bytes, or its value twice for a varint."""
        data = self._data
        while self._at < self._end:
            self._budget[0] -= 1
            if self._budget[0] < 0:
                raise BadMetrics(f"expected at most {FIELDS_MAX} fields, found more")
            tag = self._varint()
            kind = tag & 7
            if kind == _VARINT:
                value = self._varint()
                yield tag >> 3, kind, value, value
                continue
            if kind == _BYTES:
                size = self._varint()
            elif kind == _FIXED64:
                size = 8
            elif kind == _FIXED32:
                size = 4
            else:
                raise BadMetrics(f"expected a field of kind 0, 1, 2 or 5, found {kind}")
            start = self._at
            self._at = start + size
            if self._at > self._end:
                raise BadMetrics(f"expected a field within {self._end - start} bytes, found one of {size}")
            yield tag >> 3, kind, start, self._at
        assert len(data) >= self._end

    def within(self, start: int, end: int) -> _Message:
        return _Message(self._data, start, end, self._budget)

    def bytes(self, start: int, end: int) -> memoryview:
        return self._data[start:end]

    def _varint(self) -> int:
        data, at, end, value = self._data, self._at, self._end, 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise BadMetrics("expected a whole number, found its end missing")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._at = at
                return value
        raise BadMetrics("expected a number of at most 64 bits, found more")


def figures(data: bytes) -> Iterator[Figure]:
    """Return every data point of gauges and monotonic sums, in the order of the message. Raises :class:`BadMetrics`."""
    whole = _Message(memoryview(data), 0, len(data), [FIELDS_MAX])
    for resource in _inner(whole, 1):
        for scope in _inner(resource, 2):
            for metric in _inner(scope, 2):
                yield from _metric(metric)


def _inner(message: _Message, number: int) -> Iterator[_Message]:
    for found, kind, start, end in message:
        if found == number and kind == _BYTES:
            yield message.within(start, end)


def _metric(metric: _Message) -> Iterator[Figure]:
    name = ""
    kinds: list[tuple[bool, _Message]] = []
    for number, kind, start, end in metric:
        if kind != _BYTES:
            continue
        if number == 1:
            if end - start > NAME_BYTES_MAX:
                raise BadMetrics(f"expected a name of at most {NAME_BYTES_MAX} bytes, found {end - start}")
            try:
                name = str(metric.bytes(start, end), "utf-8")
            except UnicodeDecodeError:
                raise BadMetrics("expected a name in UTF-8, found other bytes") from None
        elif number in (5, 7):
            kinds.append((number == 7, metric.within(start, end)))
    for is_sum, body in kinds:
        points: list[_Message] = []
        monotonic = delta = False
        for number, kind, start, end in body:
            if number == 1 and kind == _BYTES:
                points.append(body.within(start, end))
            elif is_sum and number == 2:
                delta = start == _DELTA
            elif is_sum and number == 3:
                monotonic = bool(start)
        for point in points:
            value = _value(point)
            if name and value is not None:
                yield Figure(name, value, monotonic, monotonic and delta)


def _value(point: _Message) -> float | None:
    found: float | None = None
    for number, kind, start, end in point:
        if kind == _FIXED64 and number == 4:
            (found,) = _DOUBLE.unpack(point.bytes(start, end))
        elif kind == _FIXED64 and number == 6:
            (whole,) = _INT64.unpack(point.bytes(start, end))
            found = float(whole)
    return found if found is not None and math.isfinite(found) else None
