"""Pushed metrics, written by protobuf's own runtime from OpenTelemetry's field numbers, and damaged ones."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from tidelog.proto.kafka import otlp
from tidelog.proto.kafka.otlp import BadMetrics, Figure, figures

_MESSAGES: dict[str, list[tuple[str, int, str]]] = {
    "KeyValue": [("key", 1, "string")],
    "NumberDataPoint": [
        ("attributes", 7, "KeyValue*"),
        ("start_time_unix_nano", 2, "fixed64"),
        ("time_unix_nano", 3, "fixed64"),
        ("as_double", 4, "double?"),
        ("as_int", 6, "sfixed64?"),
    ],
    "Gauge": [("data_points", 1, "NumberDataPoint*")],
    "Sum": [
        ("data_points", 1, "NumberDataPoint*"),
        ("aggregation_temporality", 2, "int32"),
        ("is_monotonic", 3, "bool"),
    ],
    "Metric": [("name", 1, "string"), ("unit", 3, "string"), ("gauge", 5, "Gauge"), ("sum", 7, "Sum")],
    "ScopeMetrics": [("metrics", 2, "Metric*"), ("schema_url", 3, "string")],
    "ResourceMetrics": [("scope_metrics", 2, "ScopeMetrics*")],
    "MetricsData": [("resource_metrics", 1, "ResourceMetrics*")],
}


def _classes() -> dict[str, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    types = {
        "string": field.TYPE_STRING, "fixed64": field.TYPE_FIXED64, "double": field.TYPE_DOUBLE,
        "sfixed64": field.TYPE_SFIXED64, "int32": field.TYPE_INT32, "bool": field.TYPE_BOOL,
    }  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(name="otlp_test.proto", package="otlptest", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            plain = kind.rstrip("*?")
            added = message.field.add(name=field_name, number=number)
            added.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            if plain in types:
                added.type = types[plain]
                if kind.endswith("?"):
                    message.oneof_decl.add(name=f"_{field_name}")
                    added.oneof_index, added.proto3_optional = len(message.oneof_decl) - 1, True
            else:
                added.type, added.type_name = field.TYPE_MESSAGE, f".otlptest.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"otlptest.{name}")) for name in _MESSAGES}


CLASSES = _classes()
CUMULATIVE, DELTA = 2, 1


def pushed(*metrics: dict[str, Any]) -> bytes:
    """A push of these metrics."""
    scope = {"metrics": list(metrics), "schema_url": "x"}
    data: bytes = CLASSES["MetricsData"](resource_metrics=[{"scope_metrics": [scope]}]).SerializeToString()
    return data


def test_gauges_and_sums_are_read_and_the_rest_is_passed_over() -> None:
    point = {"as_int": 7, "time_unix_nano": 5, "attributes": [{"key": "node.id"}]}
    data = pushed(
        {"name": "a.gauge", "unit": "1", "gauge": {"data_points": [{"as_double": 1.5}, point]}},
        {"name": "a.counter", "sum": {"data_points": [point], "is_monotonic": True, "aggregation_temporality": 2}},
        {"name": "a.delta", "sum": {"data_points": [point], "is_monotonic": True, "aggregation_temporality": 1}},
        {"name": "up.and.down", "sum": {"data_points": [{"as_int": -1}], "aggregation_temporality": 1}},
        {"name": "no.value", "gauge": {"data_points": [{"time_unix_nano": 1}]}},
        {"name": "no.number", "gauge": {"data_points": [{"as_double": float("nan")}]}},
    )
    assert list(figures(data)) == [
        Figure("a.gauge", 1.5, False, False),
        Figure("a.gauge", 7.0, False, False),
        Figure("a.counter", 7.0, True, False),
        Figure("a.delta", 7.0, True, True),
        Figure("up.and.down", -1.0, False, False),
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x0a\x05abc", "expected a field within 3 bytes"),
        (b"\x0a", "found its end missing"),
        (b"\xff" * 11, "at most 64 bits"),
        (b"\x0b", "kind 0, 1, 2 or 5, found 3"),
        (pushed({"name": "n" * 257, "gauge": {}}), "at most 256 bytes, found 257"),
    ],
)
def test_what_is_no_such_message_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(BadMetrics, match=said):
        list(figures(data))


def test_fields_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    point = {"as_int": 1}
    data = pushed({"name": "many", "gauge": {"data_points": [point] * 50}})
    assert len(list(figures(data))) == 50
    monkeypatch.setattr(otlp, "FIELDS_MAX", 50)
    with pytest.raises(BadMetrics, match="expected at most 50 fields"):
        list(figures(data))


@given(st.binary(max_size=200), st.integers(0, 120), st.integers(0, 255))
def test_damage_is_refused_or_read(noise: bytes, at: int, byte: int) -> None:
    good = bytearray(pushed({"name": "org.apache.kafka.x", "sum": {"data_points": [{"as_double": 2.0}]}}))
    good[at % len(good)] = byte
    for data in (noise, bytes(good), struct.pack("<B", 10) + noise):
        try:
            list(figures(data))
        except BadMetrics:
            continue
