"""The trace store's bounds and choices; ``tests/cli/records/test_trace.py`` finds what it stores."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.workers.test_workers import letters
from tidelog import ConsumerRecord, ProducerRecord, RecordMetadata, TraceContext, TraceStore, aio, handling
from tidelog.client.tracing.hops import Hop, unpacked
from tidelog.testing import Cluster

CHOSEN = "00000000000000000000000000000001"
LEFT_OUT = "0000000000000000ffffffffffffffff"
BOUND_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, transport="grpc") as made:
        yield made


def record(trace_id: str, flags: str = "01", *headers: tuple[str, bytes]) -> ConsumerRecord:
    parent = f"00-{trace_id}-00f067aa0ba902b7-{flags}".encode()
    return ConsumerRecord(7, 0, b"k", b"v", (("traceparent", parent), *headers), "t", 3, 0)


def stored(cluster: Cluster, topic: str) -> list[Hop]:
    return [hop for each in letters(cluster, topic) if (hop := unpacked(each.value)) is not None]


def test_a_share_of_traces_and_everything_that_went_wrong(cluster: Cluster) -> None:
    cluster.create_topic("some", partitions=1)
    store = TraceStore(cluster.bootstrap, topic="some", sample=0.5, program="p")
    for each in (record(LEFT_OUT), record(CHOSEN, "00"), record(CHOSEN)):
        with handling(each, store, "g"):
            pass
    with pytest.raises(ZeroDivisionError), handling(record(LEFT_OUT), store, "g"):
        raise ZeroDivisionError
    for header in ("tidelog-retry-attempt", "tidelog-redrives", "tidelog-dlq-reason"):
        with handling(record(LEFT_OUT, "00", (header, b"2")), store, "g"):
            pass
    store.close(BOUND_S)
    hops = stored(cluster, "some")
    assert [(hop.trace, hop.outcome, hop.note) for hop in hops] == [
        (CHOSEN, "ok", ""),
        (LEFT_OUT, "ZeroDivisionError", ""),
        (LEFT_OUT, "ok", "retry 2"),
        (LEFT_OUT, "ok", "redrive 2"),
        (LEFT_OUT, "ok", "dead letter, 2"),
    ]
    assert (store.counts.stored, store.counts.dropped) == (5, 0)
    assert {(hop.topic, hop.partition, hop.offset, hop.parent) for hop in hops} == {("t", 3, 7, "00f067aa0ba902b7")}


async def test_the_asyncio_forms_tell_it_too(cluster: Cluster) -> None:
    for name in ("in", "between", "aio"):
        cluster.create_topic(name, partitions=1)
    store = TraceStore(cluster.bootstrap, topic="aio", sample=1.0, program="p")

    async def to_between(found: ConsumerRecord) -> ProducerRecord:
        transform.stop()
        return ProducerRecord("between", found.value)

    async def handle(found: ConsumerRecord) -> None:
        job.stop()

    async with aio.Producer(cluster.bootstrap, interceptor_classes=[TraceContext(store)]) as producer:
        await producer.send_and_wait("in", b"v")
    transform = aio.Transform(to_between, cluster.bootstrap, topics="in", group_id="t", tracer=store)
    await transform.run()
    job = aio.Workers(handle, cluster.bootstrap, topics="between", group_id="w", tracer=store)
    await job.run()
    await asyncio.to_thread(store.close, BOUND_S)
    hops = sorted(await asyncio.to_thread(stored, cluster, "aio"), key=lambda hop: hop.began_us)
    assert [(hop.kind, hop.topic, hop.group) for hop in hops] == [
        ("send", "in", None),
        ("process", "in", "t"),
        ("send", "between", None),
        ("process", "between", "w"),
    ]
    assert [hop.parent for hop in hops] == [None, *(hop.span for hop in hops[:3])]


def test_it_never_holds_up_who_sends_and_counts_what_it_drops(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody answers at the address."""
    settings: dict[str, Any] = {"max_block_ms": 200}
    store = TraceStore("127.0.0.1:1", sample=1.0, queue_max=5, **settings)
    _, told = store.sending(ProducerRecord("t"))
    sending = threading.Thread(target=lambda: [told(RecordMetadata("t", 0, n, 0), None) for n in range(1_000)])
    sending.start()
    sending.join(5)
    assert not sending.is_alive()
    assert store.counts.dropped >= 900
    assert len([line for line in caplog.records if "hops of traces are dropped" in line.message]) == 1
    store.close(BOUND_S)
    assert (store.counts.stored, store.counts.dropped) == (0, 1_000)


def test_in_another_process_there_is_one() -> None:
    store = TraceStore("127.0.0.1:1", sample=1.0, program="p", client_id="c")
    one, other = (pickle.loads(pickle.dumps(TraceContext(store)._tracer)) for _ in range(2))
    assert one is other is not store
    assert one.__reduce__()[1] == store.__reduce__()[1]


@pytest.mark.parametrize("settings", [{"sample": 1.5}, {"sample": -0.1}, {"queue_max": 0}])
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))}: expected"):
        TraceStore("127.0.0.1:1", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"[]", b"7", b'{"v":1}', b'{"v":2,"trace":"a"}'])
def test_other_records_are_no_hops(value: bytes | None) -> None:
    assert unpacked(value) is None
