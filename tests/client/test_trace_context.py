"""W3C trace context: what is read from headers, and that a trace goes from topic to topic."""

from __future__ import annotations

import re

import pytest

from tidelog import (
    Consumer,
    ConsumerRecord,
    Producer,
    ProducerRecord,
    TopicPartition,
    TraceContext,
    Transform,
    Workers,
    handling,
    trace_headers,
)
from tidelog.testing import Cluster

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
VALID = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]")


def record(*headers: tuple[str, bytes | None]) -> ConsumerRecord:
    return ConsumerRecord(0, 0, None, None, headers, "t", 0, 0)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (PARENT, "01"),
        (PARENT[:-2] + "00", "00"),
        (PARENT[:-2] + "03", "01"),
        ("01" + PARENT[2:] + "-what a later version adds", "01"),
    ],
)
def test_a_trace_goes_on(given: str, flags: str) -> None:
    with handling(record(("traceparent", given.encode()), ("tracestate", b"a=1"), ("tracestate", b"b=2"))):
        one, other = trace_headers(), trace_headers()
    assert VALID.fullmatch(one["traceparent"])
    assert one["traceparent"].startswith(f"00-{TRACE}-")
    assert one["traceparent"].endswith(flags)
    assert given[36:52] not in one["traceparent"], "a span of its own"
    assert one["traceparent"] != other["traceparent"]
    assert one["tracestate"] == "a=1,b=2"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("traceparent", None)],
        [("traceparent", b"")],
        [("traceparent", PARENT.upper().encode())],
        [("traceparent", b"ff" + PARENT[2:].encode())],
        [("traceparent", PARENT.replace(TRACE, "0" * 32).encode())],
        [("traceparent", PARENT.replace("00f067aa0ba902b7", "0" * 16).encode())],
        [("traceparent", f"{PARENT}-more".encode())],
        [("traceparent", f"{PARENT}\n".encode())],
        [("traceparent", PARENT.encode()), ("traceparent", PARENT.encode())],
        [("traceparent", b"\xff\xfe")],
    ],
)
def test_otherwise_a_new_one_begins(headers: list[tuple[str, bytes | None]]) -> None:
    with handling(record(*headers, ("tracestate", b"a=1"))):
        made = trace_headers()
    assert VALID.fullmatch(made["traceparent"])
    assert TRACE not in made["traceparent"]
    assert "tracestate" not in made, "it belongs to the trace that could not be read"


def test_behind_a_record_its_trace_is_over() -> None:
    with pytest.raises(ZeroDivisionError), handling(record(("traceparent", PARENT.encode()))):
        raise ZeroDivisionError
    assert TRACE not in trace_headers()["traceparent"]


def test_a_trace_goes_through_transform_and_workers() -> None:
    with Cluster(1, transport="grpc") as cluster:
        for topic in ("a", "b", "c"):
            cluster.create_topic(topic, partitions=1)
        with Producer(cluster.bootstrap, interceptor_classes=[TraceContext]) as producer:
            producer.send("a", b"of another tracer", headers=[("traceparent", PARENT.encode())])
            producer.send("a", b"first")

            def to_b(found: ConsumerRecord) -> list[ProducerRecord]:
                if found.value == b"first":
                    transform.stop()
                return [ProducerRecord("b", found.value)]

            def to_c(found: ConsumerRecord) -> None:
                producer.send("c", found.value)
                if found.value == b"first":
                    workers.stop()

            traced = {"interceptor_classes": [TraceContext]}
            transform = Transform(to_b, cluster.bootstrap, topics="a", group_id="b", producer_settings=traced)
            transform.run()
            workers = Workers(to_c, cluster.bootstrap, topics="b", group_id="c", ordered_by="partition")
            workers.run()
        parents: dict[bytes | None, list[str]] = {}
        with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0) for topic in ("a", "b", "c")])
            found: list[ConsumerRecord] = []
            while len(found) < 6:
                found += consumer.poll(30)
    for each in sorted(found, key=lambda each: each.topic):
        ((_, parent),) = each.headers
        parents.setdefault(each.value, []).append((parent or b"").decode())
    assert parents[b"of another tracer"][0] == PARENT, "what is there stays"
    for spans in parents.values():
        assert len({span[3:35] for span in spans}) == 1, "one trace"
        assert len({span[36:52] for span in spans}) == 3, "three spans"
    assert parents[b"first"][0][3:35] != TRACE
