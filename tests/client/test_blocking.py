"""The blocking clients, and the admin client, against a real cluster in this process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tidelog import (
    Admin,
    ConfigChange,
    ConfigResource,
    Consumer,
    ConsumerInterceptor,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    Producer,
    ProducerInterceptor,
    TopicPartition,
)
from tidelog.client import background
from tidelog.client.background import BackgroundLoop
from tidelog.client.delivery import RecordMetadata
from tidelog.client.errors import (
    BrokerNotAvailableError,
    BufferExhaustedError,
    ClientClosedError,
    IllegalStateError,
    InvalidTopicError,
    RequestTimedOutError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    WakeupError,
    exception_for,
)
from tidelog.model.errors import ErrorCode
from tidelog.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as found:
        yield found


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    cluster.create_topic(name, 3)
    return str(name)


def parts(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, i) for i in range(3)]


def read_all(cluster: Cluster, topic: str, count: int) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
    deadline = time.monotonic() + 20
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(parts(topic))
        while sum(map(len, found.values())) < count:
            assert time.monotonic() < deadline, f"read {sum(map(len, found.values()))} of {count}"
            for batch in consumer.poll_batches(1):
                found[batch.partition] += batch.values()
    return found


# --- producer and consumer --------------------------------------------------------------------------


def test_send_poll_and_all_the_questions(cluster: Cluster, topic: str) -> None:
    now = int(time.time() * 1_000)
    with cluster.producer() as producer:
        sent = producer.send(topic, b"v", key=b"k", headers=[("h", b"1")], timestamp_ms=now, partition=1)
        assert sent.result(10) == RecordMetadata(topic, 1, 0, now)
        assert sent.exception() is None
        heard = threading.Event()
        sent.add_done_callback(lambda future: heard.set())
        assert heard.wait(5)
        assert producer.send_and_wait(topic, b"w", partition=1).offset == 1
        assert [view.partition for view in producer.partitions_for(topic)] == [0, 1, 2]
        assert producer.metrics()["record-send-total"] == 2
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        one = TopicPartition(topic, 1)
        consumer.assign([one])
        assert consumer.assignment() == {one}
        assert consumer.position(one) == 0
        (record, *_) = consumer.poll(10)
        assert (record.key, record.value, record.headers, record.timestamp) == (b"k", b"v", (("h", b"1"),), now)
        assert consumer.beginning_offsets([one]) == {one: 0}
        assert consumer.end_offsets([one]) == {one: 2}
        found = consumer.offsets_for_times({one: now - 500})[one]
        assert found is not None
        assert (found.offset, found.timestamp) == (0, now)
        consumer.seek(one, 1)
        assert [r.value for r in consumer.poll(10)] == [b"w"]
        consumer.seek_to_beginning()
        assert consumer.poll_values(10) == [b"v", b"w"]
        assert consumer.lag(one) == 0
        consumer.seek_to_end(one)
        assert consumer.position(one) == 2
        consumer.seek(one, 0)
        consumer.pause(one)
        assert consumer.paused() == {one}
        assert consumer.poll(0.1) == []
        consumer.resume(one)
        assert next(iter(consumer)).offset == 0
        assert len(consumer.partitions_for(topic)) == 3


def test_several_threads_send_through_one_producer(cluster: Cluster, topic: str) -> None:
    def send(name: int) -> None:
        for i in range(3_000):
            producer.send(topic, b"%d:%d" % (name, i), partition=name % 3)
            if i % 1_000 == 0:
                producer.flush()

    with cluster.producer(batch_size=2_000, buffer_memory=100_000) as producer:
        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = read_all(cluster, topic, 12_000)
    for name in range(4):
        mine = [int((v or b"").split(b":")[1]) for v in found[name % 3] if (v or b"").startswith(b"%d:" % name)]
        assert mine == list(range(3_000))


def test_send_many(cluster: Cluster, topic: str) -> None:
    with cluster.producer() as producer:
        result = producer.send_many(topic, [b"%d" % i for i in range(50_000)]).result(20)
        assert sum(r.count for r in result.ranges) == 50_000
        keyed = producer.send_many(topic, [b"v"] * 100, keys=[b"k"] * 100)
        assert len({r.partition for r in keyed.result(10).ranges}) == 1
        assert keyed.done()
    found = read_all(cluster, topic, 50_100)
    assert sorted(int(v) for values in found.values() for v in values if v and v != b"v") == list(range(50_000))


def test_callbacks_come_from_the_io_thread_and_must_not_block(cluster: Cluster, topic: str) -> None:
    raised: list[BaseException] = []
    told = threading.Event()

    def on_delivery(metadata: Any, error: Any) -> None:
        producer.send(topic, b"from the callback")
        try:
            producer.flush()
        except IllegalStateError as found:
            raised.append(found)
        told.set()

    with cluster.producer() as producer:
        producer.send(topic, b"first", on_delivery=on_delivery)
        producer.flush(10)
        assert told.wait(10)
    assert "wait for itself" in str(raised[0])
    assert sum(len(v) for v in read_all(cluster, topic, 2).values()) == 2


def test_a_full_buffer_blocks_then_raises(cluster: Cluster, topic: str) -> None:
    with cluster.producer(buffer_memory=20_000, max_block_ms=200, delivery_timeout_ms=40_000) as producer:
        producer.send_and_wait(topic, b"0")
        for node in cluster.node_ids:
            cluster.partition("client", node)
        queued = 1
        began = time.monotonic()
        try:
            with pytest.raises(BufferExhaustedError, match="buffer_memory = 20000"):  # noqa: PT012
                while True:
                    began = time.monotonic()
                    producer.send(topic, b"%0100d" % queued)
                    queued += 1
            assert 0.19 < time.monotonic() - began < 3
            with pytest.raises(RequestTimedOutError, match=r"within 0\.1 s"):
                producer.flush(0.1)
        finally:
            cluster.heal()
        producer.flush(30)
    found = read_all(cluster, topic, queued)
    assert sorted(int(v or b"") for values in found.values() for v in values) == list(range(queued))


def test_close_is_bounded(cluster: Cluster, topic: str) -> None:
    producer = cluster.producer()
    producer.send_and_wait(topic, b"0")
    for node in cluster.node_ids:
        cluster.partition("client", node)
    try:
        sent = producer.send(topic, b"1")
        began = time.monotonic()
        producer.close(0.2)
        assert time.monotonic() - began < 5
    finally:
        cluster.heal()
    with pytest.raises(ClientClosedError, match="closed before 1 records"):
        sent.result(1)
    with pytest.raises(ClientClosedError):
        producer.send(topic, b"2")
    producer.close()


def test_sending_blocked_for_room_ends_when_the_producer_closes(cluster: Cluster, topic: str) -> None:
    producer = cluster.producer(buffer_memory=20_000)
    producer.send_and_wait(topic, b"0")
    for node in cluster.node_ids:
        cluster.partition("client", node)
    raised: list[BaseException] = []

    def fill() -> None:
        try:
            while True:
                producer.send(topic, b"x" * 1_000)
        except ClientClosedError as error:
            raised.append(error)

    try:
        thread = threading.Thread(target=fill)
        thread.start()
        deadline = time.monotonic() + 10
        while not producer.metrics()["buffer-exhausted-wait-total"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        producer.close(0.1)
        thread.join(10)
    finally:
        cluster.heal()
    assert len(raised) == 1


def test_closing_wakes_a_poll_in_another_thread(cluster: Cluster, topic: str) -> None:
    consumer = cluster.consumer()
    consumer.assign(parts(topic))
    raised: list[BaseException] = []

    def poll() -> None:
        try:
            consumer.poll(60)
        except ClientClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    time.sleep(0.1)
    consumer.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(raised) == 1
    consumer.close()


@pytest.mark.parametrize("in_group", [False, True])
def test_wakeup_ends_a_poll_in_another_thread(cluster: Cluster, topic: str, in_group: bool) -> None:
    with cluster.consumer(**({"group_id": topic} if in_group else {})) as consumer:
        if in_group:
            consumer.subscribe([topic])
            while not consumer.assignment():
                consumer.poll(0.1)
        else:
            consumer.assign(parts(topic))
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll()
        ended = threading.Event()

        def poll() -> None:
            with pytest.raises(WakeupError):
                consumer.poll(300)
            ended.set()

        thread = threading.Thread(target=poll)
        thread.start()
        consumer.wakeup()
        assert ended.wait(60)
        thread.join(60)
        consumer.poll()


def test_more_than_a_mebibyte_may_be_waited_for(cluster: Cluster, topic: str) -> None:
    value = bytes(900_000)
    settings: Any = {"fetch_min_bytes": 2 << 20, "fetch_max_wait_ms": 60_000, "max_partition_fetch_bytes": 8 << 20}
    with cluster.producer(max_request_size=2_000_000, compression_type="none") as producer:
        for _ in range(2):
            producer.send(topic, value, partition=0).result(20)
        with cluster.consumer(auto_offset_reset="earliest", **settings) as consumer:
            consumer.assign(parts(topic)[:1])
            assert consumer.position(parts(topic)[0]) == 0
            assert not consumer.poll(0.3), "1.7 MiB are not enough"
            producer.send(topic, value, partition=0).result(20)
            assert len(consumer.poll(30)) == 3


def test_interceptors_learn_of_commits_and_the_end_in_the_users_thread(cluster: Cluster, topic: str) -> None:
    told: list[tuple[str, int]] = []

    class OfProducer(ProducerInterceptor):
        def close(self) -> None:
            told.append(("producer closed", threading.get_ident()))

    class OfConsumer(ConsumerInterceptor):
        def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
            told.append(("committed", threading.get_ident()))

        def close(self) -> None:
            told.append(("consumer closed", threading.get_ident()))

    with cluster.producer(interceptor_classes=[OfProducer]) as producer:
        producer.send(topic, b"v").result(20)
    settings: Any = {"group_id": topic, "enable_auto_commit": False, "interceptor_classes": [OfConsumer]}
    with cluster.consumer(**settings) as consumer:
        consumer.assign(parts(topic))
        consumer.commit({parts(topic)[0]: 1})
        consumer.commit_async({parts(topic)[0]: 0})
    consumer.close()
    me = threading.get_ident()
    assert told == [("producer closed", me), ("committed", me), ("committed", me), ("consumer closed", me)]


def test_a_leader_that_is_killed_costs_nothing_that_was_acknowledged(cluster: Cluster, topic: str) -> None:
    count = 6_000
    killed = None
    with cluster.producer(retry_backoff_ms=20, batch_size=1_000) as producer:
        futures = []
        for i in range(count):
            futures.append(producer.send(topic, b"%d" % i, partition=i % 3))
            if i == count // 2:
                killed = cluster.leader_of(topic, 0)
                assert killed is not None
                cluster.kill(killed)
        for future in futures:
            future.result(60)
    assert killed is not None
    cluster.restart(killed)
    cluster.wait_ready()
    found = read_all(cluster, topic, count)
    assert {p: [int(v or b"") for v in values] for p, values in found.items()} == {
        p: list(range(p, count, 3)) for p in range(3)
    }


# --- threads and processes --------------------------------------------------------------------------


def test_the_io_thread_is_shared_and_ends_with_its_last_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_shared", background._Shared())  # a session's cluster may use the process's own
    first = background.acquire()
    second = background.acquire()
    assert first is second
    background.release(first)
    assert first.run(_answer()) == 42
    background.release(second)
    with pytest.raises(ClientClosedError):
        first.run(_answer())
    third = background.acquire()
    assert third is not first
    background.release(third)


async def _answer() -> int:
    return 42


def test_a_run_has_a_bound() -> None:
    import asyncio

    loop = BackgroundLoop()
    try:
        with pytest.raises(RequestTimedOutError, match=r"not done within 0\.05 s"):
            loop.run(asyncio.sleep(60), 0.05)
    finally:
        loop.stop()
        loop.stop()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_fork_is_told_to_make_its_own_client(cluster: Cluster, topic: str) -> None:
    with cluster.producer() as producer:
        producer.send_and_wait(topic, b"0")
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            text = "nothing was raised"
            try:
                producer.send(topic, b"1")
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            try:
                producer._background.run(_answer())
            except BaseException as error:
                text += f" | {type(error).__name__}: {error}"
            os.write(write_end, text.encode())
            os._exit(0)
        os.waitpid(child, 0)
        text = os.read(read_end, 10_000).decode()
        os.close(read_end)
        os.close(write_end)
        assert text.startswith("ClientClosedError: this producer")
        assert "make a new one after fork()" in text
        assert producer.send_and_wait(topic, b"2").partition in (0, 1, 2)


FORGETFUL = """
import sys
from tidelog import Admin, Consumer, Producer, TopicPartition
producer = Producer(sys.argv[1], linger_ms=60_000, delivery_timeout_ms=100_000)
for number in range(100):
    producer.send("t", b"%d" % number)
consumer = Consumer(sys.argv[1])
consumer.assign([TopicPartition("t", 0)])
consumer.poll(0.05)
admin = Admin(sys.argv[1])
admin.list_topics()
"""


def test_a_program_that_closes_nothing_loses_nothing_and_ends_quietly() -> None:
    with Cluster(nodes=1, transport="grpc") as cluster:
        cluster.create_topic("t", 1)
        ended = subprocess.run(
            [sys.executable, "-X", "dev", "-c", FORGETFUL, cluster.bootstrap],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
        with cluster.consumer() as consumer:
            one = TopicPartition("t", 0)
            assert consumer.end_offsets([one]) == {one: 100}


def test_nobody_at_the_address() -> None:
    refused = pytest.raises(BrokerNotAvailableError, match=r"127\.0\.0\.1:1")
    with Producer("127.0.0.1:1", max_block_ms=300) as producer, refused:
        producer.send("t", b"v")
    with Consumer("127.0.0.1:1") as consumer, pytest.raises(BrokerNotAvailableError):
        consumer.partitions_for("t", timeout=0.3)
    with Admin("127.0.0.1:1") as admin, pytest.raises(RequestTimedOutError, match="DescribeCluster"):
        admin.describe_cluster(timeout=0.3)


# --- admin --------------------------------------------------------------------------------------------


def test_topics_from_birth_to_death(cluster: Cluster) -> None:
    with cluster.admin() as admin:
        (made,) = admin.create_topics([NewTopic("life", 2, 3, configs={"retention.ms": "1000000"})])
        assert (made.name, made.num_partitions, made.replication_factor) == ("life", 2, 3)
        cluster.wait_for_leader("life", 1)
        with pytest.raises(TopicExistsError, match="life"):
            admin.create_topics([NewTopic("life")])
        (listing,) = [t for t in admin.list_topics() if t.name == "life"]
        assert (listing.partition_count, listing.replication_factor, listing.topic_id) == (2, 3, made.topic_id)
        (described,) = admin.describe_topics(["life"])
        assert [p.partition for p in described.partitions] == [0, 1]
        assert all(len(p.replicas) == 3 and p.leader in p.isr for p in described.partitions)
        admin.create_partitions({"life": 4})
        cluster.wait_for_leader("life", 3)
        deadline = time.monotonic() + 10
        while len(admin.describe_topics(["life"])[0].partitions) < 4:
            assert time.monotonic() < deadline
        with pytest.raises(type(exception_for(ErrorCode.INVALID_PARTITIONS)), match="life"):
            admin.create_partitions({"life": 3})
        admin.delete_topics(["life"])
        while any(t.name == "life" for t in admin.list_topics()):
            assert time.monotonic() < deadline
        with pytest.raises(UnknownTopicOrPartitionError, match="life"):
            admin.delete_topics(["life"])
        with pytest.raises(UnknownTopicOrPartitionError, match="life"):
            admin.describe_topics(["life"])


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (NewTopic("bad name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("x", 1, 9), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("x", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("x", 1, 1, configs={"retention.mz": "1"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("x", 1, 1, configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("x", assignments={0: [77]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_topic_that_cannot_be(cluster: Cluster, wrong: NewTopic, code: ErrorCode) -> None:
    with cluster.admin() as admin, pytest.raises(type(exception_for(code)), match=wrong.name):
        admin.create_topics([wrong], timeout=10)


def test_of_several_failures_the_first_is_raised_and_the_others_noted(cluster: Cluster) -> None:
    with cluster.admin() as admin, pytest.raises(InvalidTopicError) as raised:
        admin.create_topics([NewTopic("bad name", 1, 1), NewTopic("y", 1, 99)])
    (note,) = raised.value.__notes__
    assert "also y" in note


def test_validate_only_makes_nothing(cluster: Cluster) -> None:
    with cluster.admin() as admin:
        admin.create_topics([NewTopic("never", 1, 1)], validate_only=True)
        assert all(t.name != "never" for t in admin.list_topics())


def test_configs(cluster: Cluster, topic: str) -> None:
    resource = ConfigResource("topic", topic)
    with cluster.admin() as admin:

        def retention() -> tuple[str | None, str]:
            found = admin.describe_configs([resource])[resource]["retention.ms"]
            return found.value, found.source

        def becomes(expected: str | None, source: str) -> None:
            deadline = time.monotonic() + 10
            while retention() != (expected, source):
                assert time.monotonic() < deadline, retention()

        before, source = retention()
        admin.alter_configs({resource: {"retention.ms": "12345"}})
        becomes("12345", "DYNAMIC_TOPIC_CONFIG")
        admin.alter_topic_configs(topic, {"retention.ms": None})
        becomes(before, source)
        admin.alter_configs({resource: [ConfigChange("cleanup.policy", "append", "compact")]})
        with pytest.raises(type(exception_for(ErrorCode.INVALID_CONFIG)), match=r"retention\.ms"):
            admin.alter_topic_configs(topic, {"retention.ms": "never"})
        own = ConfigResource("broker", "2")
        assert admin.describe_configs([own])[own]["node.id"].value == "2"


def test_records_offsets_and_log_directories(cluster: Cluster, topic: str) -> None:
    one = TopicPartition(topic, 0)
    now = int(time.time() * 1_000)
    with cluster.producer() as producer:
        for i in range(10):
            producer.send(topic, b"%d" % i, partition=0, timestamp_ms=now + i)
    with cluster.admin() as admin:
        assert admin.delete_records({one: 4}) == {one: 4}
        specs = {
            "earliest": OffsetSpec.earliest(),
            "latest": OffsetSpec.latest(),
            "time": OffsetSpec.for_timestamp(now + 7),
            "max": OffsetSpec.max_timestamp(),
        }
        found = {name: admin.list_offsets({one: spec})[one].offset for name, spec in specs.items()}
        assert found == {"earliest": 4, "latest": 10, "time": 7, "max": 9}
        with pytest.raises(ValueError, match="found -7"):
            OffsetSpec.for_timestamp(-7)
        with pytest.raises(type(exception_for(ErrorCode.OFFSET_OUT_OF_RANGE))):
            admin.delete_records({one: 99})
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_records({TopicPartition(topic, 9): 1}, timeout=1)
        dirs = admin.describe_log_dirs()
        assert set(dirs) == {1, 2, 3}
        assert any(r.topic == topic for r in admin.describe_log_dirs([1])[1][0].replicas)  # type: ignore[index]
        with pytest.raises(BrokerNotAvailableError, match="found 99"):
            admin.describe_log_dirs([99])
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([one])
        assert consumer.poll(10)[0].offset == 4


def test_the_cluster_itself(cluster: Cluster) -> None:
    with cluster.admin() as admin:
        found = admin.describe_cluster()
        assert {broker.node_id for broker in found.brokers} == {1, 2, 3}
        assert found.controller_id == cluster.controller()
        assert admin.describe_features().finalized_features["metadata.version"] >= 1
        with pytest.raises(exception_for(ErrorCode.INVALID_UPDATE_VERSION).__class__.__mro__[1]):
            admin.update_features({"metadata.version": 9_999})
        assert admin.metrics()["request-total"] > 0
    with pytest.raises(ClientClosedError):
        admin.describe_cluster()
    admin.close()
