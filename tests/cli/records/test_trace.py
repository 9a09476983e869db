"""``tidelog trace``: a message through a handler that fails, the dead letters, a redrive, and a program behind it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tests.client.workers.test_workers import Running, workers
from tidelog import ConsumerRecord, Producer, ProducerRecord, TopicPartition, TraceContext, TraceStore, Transform
from tidelog.client.tracing import finding
from tidelog.testing import Cluster

BOUND_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, transport="grpc") as made:
        for name in ("orders", "bills", "mails", "dlq.orders", "traces", "nothing"):
            made.create_topic(name, partitions=2)
        yield made


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    monkeypatch.setattr(finding, "LOOK_UP_S", 0.2)
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def work(cluster: Cluster, tracer: TraceStore, *, fails_at: bytes | None, handled: int, dead: int) -> None:
    """Handle ``orders`` until so many are handled and dead."""

    def bill(record: ConsumerRecord) -> None:
        if record.value == fails_at:
            raise KeyError(record.value)
        producer.send("bills", record.value, record.key).result()

    with Producer(cluster.bootstrap, interceptor_classes=[TraceContext(tracer)]) as producer:
        running = Running(workers(cluster, "orders", bill, dead_letters="dlq.orders", tracer=tracer))
        while (running.of.counts.handled, running.of.counts.dead) != (handled, dead):
            running.check()
        running.of.stop()
        running.ended()


def mail(cluster: Cluster, tracer: TraceStore, last: bytes) -> None:
    def to_mails(record: ConsumerRecord) -> ProducerRecord:
        if record.value == last:
            job.stop()
        return ProducerRecord("mails", record.value, record.key)

    job = Transform(to_mails, cluster.bootstrap, topics="bills", group_id="mailing", tracer=tracer)
    job.run()


def test_a_message_is_found_by_its_place_its_trace_and_its_key(cluster: Cluster, tidelog: Tidelog) -> None:
    began_us = time.time_ns() // 1_000
    shop, billing, mailing = (
        TraceStore(cluster.bootstrap, topic="traces", sample=1.0, program=name) for name in ("shop", "billing", "mail")
    )
    with Producer(cluster.bootstrap, interceptor_classes=[TraceContext(shop)]) as producer:
        lamp = producer.send_and_wait("orders", b"lamp", b"anna")
        chair = producer.send_and_wait("orders", b"chair", b"berta")
    work(cluster, billing, fails_at=b"chair", handled=1, dead=1)
    assert as_json(tidelog("dlq", "redrive", "dlq.orders", "--traces", "traces", "--json"))["moved"] == 1
    work(cluster, billing, fails_at=None, handled=1, dead=0)
    mail(cluster, mailing, b"chair")
    for store in (shop, billing, mailing):
        store.close(BOUND_S)
        assert store.counts.dropped == 0

    place = f"orders:{chair.partition}:{chair.offset}"
    told = as_json(tidelog("trace", place, "--traces", "traces", "--json"))
    assert told["whole"]
    (hops,) = told["traces"]
    assert [
        (hop["kind"], hop["topic"], hop["program"].partition("@")[0], hop["outcome"], hop["note"]) for hop in hops
    ] == [
        ("send", "orders", "shop", "ok", ""),
        ("process", "orders", "billing", "KeyError", ""),
        ("send", "dlq.orders", "billing", "ok", "dead letter, attempts"),
        ("send", "orders", "tidelog dlq redrive", "ok", "redrive 1"),
        ("process", "orders", "billing", "ok", "redrive 1"),
        ("send", "bills", "billing", "ok", ""),
        ("process", "bills", "mail", "ok", ""),
        ("send", "mails", "mail", "ok", ""),
    ]
    sent, failed, _, again, handled, bill, mailed, _ = hops
    assert (sent["partition"], sent["offset"]) == (failed["partition"], failed["offset"]) == chair[1:3]
    assert (again["partition"], again["offset"]) == (handled["partition"], handled["offset"]) != chair[1:3]
    assert (failed["group"], sent["group"]) == ("orders", None)
    assert [hop["parent"] for hop in hops] == [
        None,
        *4 * [sent["span"]],
        handled["span"],
        bill["span"],
        mailed["span"],
    ]
    assert len({hop["span"] for hop in hops}) == 8
    assert began_us < sent["began_us"] <= failed["began_us"] <= hops[-1]["began_us"] < time.time_ns() // 1_000

    trace_id = sent["trace"]
    assert {hop["trace"] for hop in hops} == {trace_id}
    assert as_json(tidelog("trace", trace_id, "--traces", "traces", "--json"))["traces"] == [hops]
    assert as_json(tidelog("trace", "--key", "berta", "--traces", "traces", "--json"))["traces"] == [hops]
    (others,) = as_json(tidelog("trace", "--key", "anna", "--topic", "mails", "--traces", "traces", "--json"))["traces"]
    assert (others[0]["offset"], len(others)) == (lamp.offset, 5)
    code, out, _ = tidelog("trace", place, "--traces", "traces")
    assert code == 0
    assert f"trace {trace_id}" in out
    assert place in out
    assert "dead letter, attempts" in out

    with cluster.admin() as admin:
        admin.delete_records({TopicPartition("orders", chair.partition): chair.offset + 1})
    found = as_json(tidelog("trace", place, "--traces", "traces", "--json"))["traces"]
    assert found == [hops], "the record itself is gone"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "expected TOPIC:PARTITION:OFFSET, a trace id, or --key"),
        (("orders:0:0", "--key", "a"), 2, "expected TOPIC:PARTITION:OFFSET, a trace id, or --key"),
        (("orders:0",), 2, "or 32 hexadecimal digits, found 'orders:0'"),
        (("f" * 32,), 1, "no hop of it is in nothing; --from-time looks further back than a day"),
        (("nowhere:0:0", "--from-time", "0"), 1, "no hop of it is in nothing\n"),
        (("--key", "anna", "--traces", "nowhere"), 1, "--traces names the topic that TraceStore writes to"),
    ],
)
def test_what_is_not_there_is_said(tidelog: Tidelog, arguments: tuple[str, ...], code: int, text: str) -> None:
    if "--traces" not in arguments and arguments:
        arguments = (*arguments, "--traces", "nothing")
    found, _, err = tidelog("trace", *arguments)
    assert (found, text in " ".join(err.split(" "))) == (code, True), err


def test_it_reads_no_more_than_it_is_told(cluster: Cluster, tidelog: Tidelog) -> None:
    cluster.create_topic("many", partitions=1)
    settings: dict[str, Any] = {"topic": "many", "sample": 1.0, "program": "many"}
    store = TraceStore(cluster.bootstrap, **settings)
    with Producer(cluster.bootstrap, interceptor_classes=[TraceContext(store)]) as producer:
        for _ in range(30):
            last = producer.send_and_wait("mails", b"", b"carla")
    store.close(BOUND_S)
    code, _, err = tidelog("trace", "--key", "carla", "--traces", "many", "--max", "0")
    assert code == 2, err
    code, out, err = tidelog("trace", "--key", "carla", "--traces", "many", "--max", "10", "--json")
    found = json.loads(out)
    assert (code, found["whole"], len(found["traces"])) == (0, False, 10)
    assert "read only 10 hops; --max reads more" in err
    found = as_json(tidelog("trace", "--key", "carla", "--traces", "many", "--json"))
    assert (found["whole"], len(found["traces"])) == (True, 20), "the newest"
    assert sorted(hops[0]["offset"] for hops in found["traces"]) == list(range(last.offset - 19, last.offset + 1))
