"""Spans of the real SDK of OpenTelemetry, kept in memory, for what a cluster's clients send and handle."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import queue
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from tests.client.workers.test_workers import Running, letters, workers
from tidelog import (
    ConsumerRecord,
    OpenTelemetry,
    Producer,
    ProducerRecord,
    TopicPartition,
    TraceContext,
    Transform,
    handling,
    trace_headers,
)
from tidelog.client.errors import TidelogError
from tidelog.testing import Cluster

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, transport="grpc") as made:
        for name in ("orders", "bills", "mails", "dlq", "cars", "keys"):
            made.create_topic(name, partitions=1)
        yield made


class Spans:
    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._kept = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = OpenTelemetry(self.provider)

    def named(self, name: str) -> ReadableSpan:
        (found,) = (span for span in self._kept.get_finished_spans() if span.name == name)
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def record(*headers: tuple[str, bytes | None]) -> ConsumerRecord:
    return ConsumerRecord(7, 0, b"k", b"v", headers, "t", 3, 0)


def test_spans_of_producer_transform_workers_and_dead_letters(cluster: Cluster, spans: Spans) -> None:
    def to_bills(found: ConsumerRecord) -> ProducerRecord:
        job.stop()
        with trace.get_tracer("shop", tracer_provider=spans.provider).start_as_current_span("own"):
            pass
        return ProducerRecord("bills", found.value, found.key)

    def fail(found: ConsumerRecord) -> None:
        raise KeyError("no customer")

    with Producer(cluster.bootstrap, interceptor_classes=[TraceContext(spans.tracer)]) as producer:
        sent = producer.send_and_wait("orders", b"lamp", b"anna")
    job = Transform(to_bills, cluster.bootstrap, topics="orders", group_id="billing", tracer=spans.tracer)
    job.run()
    running = Running(workers(cluster, "bills", fail, dead_letters="dlq", tracer=spans.tracer))
    while not running.of.counts.dead:
        running.check()
    running.of.stop()
    running.ended()

    send, process = spans.named("send orders"), spans.named("process orders")
    assert (send.kind, process.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert dict(send.attributes or {}) == {
        "messaging.system": "tidelog",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": sent.offset,
        "messaging.kafka.message.key": "anna",
        "messaging.message.body.size": 4,
    }
    assert (process.attributes or {}) == {
        **(send.attributes or {}),
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing",
    }
    chain = [send, process, spans.named("send bills"), spans.named("process bills")]
    for before, after in itertools.pairwise(chain):
        assert after.parent is not None
        assert before.context is not None
        assert after.parent.span_id == before.context.span_id, after.name
    letter, own = spans.named("send dlq"), spans.named("own")
    assert letter.parent is not None
    assert chain[2].context is not None
    assert letter.parent.span_id == chain[2].context.span_id, "its header is that of the record that died"
    assert own.parent == process.context
    assert {span.context.trace_id for span in (*chain, letter, own) if span.context} == {send.context.trace_id}

    failed = chain[-1]
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "KeyError"
    assert [event.name for event in failed.events] == ["exception"]
    assert all(span.status.status_code is trace.StatusCode.UNSET for span in (*chain[:-1], letter))
    (header,) = (value for name, value in letters(cluster, "bills")[0].headers if name == "traceparent")
    context = chain[2].context
    assert context is not None
    assert header == f"00-{context.trace_id:032x}-{context.span_id:016x}-01".encode()


class Collector:
    """The receiving end of OTLP, on loopback."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[ExportTraceServiceRequest] = queue.SimpleQueue()
        export = grpc.unary_unary_rpc_method_handler(
            self._export, ExportTraceServiceRequest.FromString, ExportTraceServiceResponse.SerializeToString
        )
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._server = grpc.server(ThreadPoolExecutor(1))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": export}),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        self._requests.put(request)
        return ExportTraceServiceResponse()

    def spans(self, count: int) -> dict[str, tuple[str, Span]]:
        """Wait for so many; each by its name, with the service that sent it."""
        found: dict[str, tuple[str, Span]] = {}
        while len(found) < count:
            for resource in self._requests.get(timeout=30).resource_spans:
                told = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                for scope in resource.scope_spans:
                    found |= {span.name: (told["service.name"], span) for span in scope.spans}
        return found

    def close(self) -> None:
        self._server.stop(None).wait()


def test_a_collector_gets_what_programs_made_of_a_record(cluster: Cluster) -> None:
    """Three programs with an exporter each, which share nothing but the headers of the records."""
    collector = Collector()
    shop, factory, office = (
        TracerProvider(resource=Resource.create({"service.name": name})) for name in ("shop", "factory", "office")
    )
    for provider in (shop, factory, office):
        exporter = OTLPSpanExporter(endpoint=collector.address, insecure=True)
        provider.add_span_processor(BatchSpanProcessor(exporter))

    def made(found: ConsumerRecord) -> ProducerRecord:
        job.stop()
        return ProducerRecord("keys", found.value, found.key)

    with Producer(cluster.bootstrap, interceptor_classes=[TraceContext(OpenTelemetry(shop))]) as producer:
        sent = producer.send_and_wait("cars", b"red", b"anna")
    job = Transform(made, cluster.bootstrap, topics="cars", group_id="making", tracer=OpenTelemetry(factory))
    job.run()
    with cluster.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("keys", 0)])
        (key,) = consumer.poll(30.0)
        with handling(key, OpenTelemetry(office)):
            pass
    for provider in (shop, factory, office):
        provider.shutdown()
    spans = collector.spans(4)
    collector.close()

    chain = [spans[name] for name in ("send cars", "process cars", "send keys", "process keys")]
    assert [service for service, _ in chain] == ["shop", "factory", "factory", "office"]
    assert [span.kind for _, span in chain] == [Span.SPAN_KIND_PRODUCER, Span.SPAN_KIND_CONSUMER] * 2
    assert chain[0][1].parent_span_id == b""
    for (_, before), (_, after) in itertools.pairwise(chain):
        assert after.parent_span_id == before.span_id, after.name
        assert after.trace_id == before.trace_id
        assert after.start_time_unix_nano >= before.start_time_unix_nano
    told = {pair.key: pair.value for pair in chain[1][1].attributes}
    assert told["messaging.consumer.group.name"].string_value == "making"
    assert told["messaging.kafka.offset"].int_value == sent.offset


def test_a_foreign_context_is_continued_with_its_state(spans: Spans) -> None:
    with handling(record(("traceparent", PARENT.encode()), ("tracestate", b"a=1")), spans.tracer, "g"):
        headers = trace_headers()
    process = spans.named("process t")
    assert process.context is not None
    assert process.context.trace_id == int(TRACE, 16)
    assert process.parent is not None
    assert process.parent.span_id == 0x00F067AA0BA902B7
    assert headers["tracestate"] == "a=1"
    assert headers["traceparent"].startswith(f"00-{TRACE}-")


async def test_tasks_have_contexts_of_their_own(spans: Spans) -> None:
    async def handle(number: int) -> str:
        with handling(record(("traceparent", PARENT.replace(TRACE, f"{number:032x}").encode())), spans.tracer):
            await asyncio.sleep(0)
            return f"{trace.get_current_span().get_span_context().trace_id:032x}"

    assert await asyncio.gather(*map(handle, range(1, 9))) == [f"{number:032x}" for number in range(1, 9)]
    assert not trace.get_current_span().get_span_context().is_valid


def test_what_is_not_delivered_is_an_error(spans: Spans) -> None:
    _, told = spans.tracer.sending(ProducerRecord("t", None, b"\xff"))
    told(None, TidelogError("away"))
    span = spans.named("send t")
    assert (span.status.status_code, span.status.description) == (trace.StatusCode.ERROR, "away")
    attributes = dict(span.attributes or {})
    assert attributes["error.type"] == "TidelogError"
    assert attributes["messaging.kafka.message.tombstone"] is True
    assert not {"messaging.kafka.message.key", "messaging.kafka.offset"} & attributes.keys()


def test_a_trace_that_the_sdk_leaves_out_stays_left_out() -> None:
    added, _ = OpenTelemetry(TracerProvider(sampler=ALWAYS_OFF)).sending(ProducerRecord("t"))
    assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-00", dict(added)["traceparent"] or b"")


def test_without_an_sdk_a_trace_is_carried_all_the_same() -> None:
    tracer = OpenTelemetry(trace.NoOpTracerProvider())
    with handling(record(("traceparent", PARENT.encode())), tracer):
        added, told = tracer.sending(ProducerRecord("t"))
    told(None, None)
    parent = (dict(added)["traceparent"] or b"").decode()
    assert parent.startswith(f"00-{TRACE}-")
    assert "00f067aa0ba902b7" not in parent
    added, _ = tracer.sending(ProducerRecord("t"))
    assert TRACE not in (dict(added)["traceparent"] or b"").decode(), "a new one"


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tidelog\[otel\]'"):
        OpenTelemetry()


def test_other_processes_have_the_global_provider(spans: Spans, cluster: Cluster) -> None:
    assert isinstance(pickle.loads(pickle.dumps(OpenTelemetry())), OpenTelemetry)
    with pytest.raises(TypeError, match="expected the global tracer provider"):
        workers(cluster, "bills", print, processes=True, tracer=spans.tracer)
