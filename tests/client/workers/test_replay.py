"""Replays on a cluster: what range they read, and copies that are there once, whatever interrupts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidelog import Admin, ConsumerRecord, Producer, Replay, TopicPartition, is_replay
from tidelog.client.errors import IllegalStateError, TransactionAbortedError, UnknownTopicOrPartitionError
from tidelog.client.workers import replay as module
from tidelog.client.workers.replay import ReplayPart
from tidelog.testing import Cluster

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, transport="grpc") as made:
        yield made


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """20 records of value 0 to 19, each an hour after the one before, up to an hour ago, in two partitions."""
    name: str = request.node.name.replace("[", "-").replace("]", "")
    cluster.create_topic(name, partitions=2)
    fill(cluster, name, 20)
    return name


def fill(cluster: Cluster, topic: str, count: int) -> None:
    """In batches of two."""
    now_ms = int(time.time() * 1_000)
    with cluster.producer() as producer:
        for number in range(count):
            then_ms = now_ms - (count - number) * HOUR_MS
            value, headers = b"%d" % number, [("h", b"1")]
            producer.send(topic, value, key=b"k", partition=number % 2, timestamp_ms=then_ms, headers=headers)
            if number % 4 == 3:
                producer.flush()


def replay(cluster: Cluster, topic: str, **options: Any) -> Replay:
    return Replay(cluster.bootstrap, topic, **options)


def read(cluster: Cluster, topic: str) -> list[ConsumerRecord]:
    """Everything committed in a topic."""
    found: list[ConsumerRecord] = []
    with cluster.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, view.partition) for view in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        until = time.monotonic() + 60
        while any(consumer.position(at) < end for at, end in ends.items()):
            assert time.monotonic() < until
            found += consumer.poll(0.1)
    return found


def values(records: list[ConsumerRecord]) -> list[int]:
    return sorted(int(record.value or b"") for record in records)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, range(20)),
        ({"start": 7}, range(14, 20)),
        ({"start": 7, "end": 9}, range(14, 18)),
        ({"start": {1: 8}}, (17, 19)),
        ({"start": timedelta(hours=3, minutes=30)}, (17, 18, 19)),
        ({"start": timedelta(hours=5, minutes=30), "end": timedelta(hours=2, minutes=30)}, (15, 16, 17)),
        ({"start": datetime.now(UTC) - timedelta(hours=2, minutes=30), "partitions": [0]}, (18,)),
        ({"start": 8, "end": 3}, ()),
        ({"start": 99}, ()),
        ({"chosen": lambda record: record.offset == 4}, (8, 9)),
    ],
)
def test_the_range(cluster: Cluster, topic: str, options: dict[str, Any], wanted: Iterable[int]) -> None:
    if isinstance(options.get("start"), datetime):  # collection may be long ago
        options = options | {"start": datetime.now(UTC) - timedelta(hours=2, minutes=30)}
    handled: list[ConsumerRecord] = []
    job = replay(cluster, topic, **options)
    planned = job.plan()
    counts = job.to_handler(handled.append)
    assert values(handled) == list(wanted)
    assert counts.done == len(handled)
    assert counts.done + counts.left == sum(end - start for _, start, end in planned)


def test_a_handler_knows_that_it_is_a_replay_and_where_it_failed(cluster: Cluster, topic: str) -> None:
    seen: list[bool] = []

    def handler(record: ConsumerRecord) -> None:
        seen.append(is_replay())
        if record.offset == 3:
            raise KeyError("three")

    with pytest.raises(KeyError) as raised:
        replay(cluster, topic).to_handler(handler)
    assert raised.value.__notes__ == [f"the replay has ended at {topic}-0 offset 3"]
    assert seen == [True] * 4
    assert not is_replay()


def test_wrong_arguments(cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_UP_S", 0.5)
    with pytest.raises(ValueError, match=f"{topic}-7: expected a partition from 0 to 1"):
        replay(cluster, topic, partitions=[7]).plan()
    with pytest.raises(ValueError, match="expected a topic other than"):
        replay(cluster, topic).to_topic(topic)
    with pytest.raises(ValueError, match="rate: expected more than 0, found 0"):
        replay(cluster, topic, rate=0)
    with pytest.raises(UnknownTopicOrPartitionError):
        replay(cluster, topic).to_topic(f"not.{topic}")


def test_only_what_was_committed_before_the_start(cluster: Cluster) -> None:
    topic = "undecided"
    cluster.create_topic(topic)
    cluster.create_topic("copy.undecided")
    with Producer(cluster.bootstrap, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"0").result()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"1").result()
        producer.begin_transaction()
        producer.send(topic, b"2").result()
        counts = replay(cluster, topic).to_topic("copy.undecided")
        producer.commit_transaction()
    assert counts.done == 1
    assert values(read(cluster, "copy.undecided")) == [1]


# --- Groups -----------------------------------------------------------------------------------------


def test_a_new_group_begins_there_and_a_used_one_is_refused(cluster: Cluster, topic: str) -> None:
    group = f"again.{topic}"
    parts = replay(cluster, topic, start=timedelta(hours=2, minutes=30), partitions=[1]).to_group(group)
    assert parts == [ReplayPart(TopicPartition(topic, 1), 9, 10)]
    with cluster.consumer(group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        until = time.monotonic() + 60
        found: list[ConsumerRecord] = []
        while not found or consumer.position(TopicPartition(topic, 0)) < 10:
            assert time.monotonic() < until
            found += consumer.poll(0.1)
    assert values(found) == [19]
    with Admin(cluster.bootstrap) as admin:
        committed = admin.list_consumer_group_offsets(group)
    assert committed[TopicPartition(topic, 1)].metadata == "replay until 10"
    with pytest.raises(IllegalStateError, match="tidelog groups reset-offsets moves a group that is in use"):
        replay(cluster, topic).to_group(group)


# --- Copies -----------------------------------------------------------------------------------------


def test_a_copy_has_all_parts_and_is_made_once(cluster: Cluster, topic: str) -> None:
    to = f"copy.{topic}"
    cluster.create_topic(to, partitions=2)
    job = replay(cluster, topic, start=5)
    counts = job.to_topic(to)
    assert (counts.done, counts.resumed) == (10, False)
    copied = read(cluster, to)
    originals = {record.value: record for record in read(cluster, topic)}
    for copy in copied:
        original = originals[copy.value]
        assert copy[1:4] == original[1:4]
        assert copy.partition == original.partition
        origin = f"{topic}-{original.partition}-{original.offset}".encode()
        own = (("tidelog-replay-id", f"{topic}.{to}".encode()), ("tidelog-replay-origin", origin))
        assert copy.headers == (*original.headers, *own)
    assert values(copied) == list(range(10, 20))
    fill(cluster, topic, 3)
    counts = job.to_topic(to)
    assert (counts.done, counts.resumed) == (0, True)
    assert len(read(cluster, to)) == 10
    assert job.to_topic(to, replay_id=f"again.{topic}").done == 13


def test_a_copy_of_a_copy_does_not_come_back(cluster: Cluster, topic: str) -> None:
    to = f"copy.{topic}"
    cluster.create_topic(to, partitions=1)
    replay(cluster, topic).to_topic(to)
    with cluster.producer() as producer:
        producer.send(to, b"100")
    counts = replay(cluster, to).to_topic(topic)
    assert (counts.done, counts.looping) == (1, 20)
    assert values(read(cluster, topic)) == [*range(20), 100]


def test_an_id_belongs_to_one_copy(cluster: Cluster, topic: str) -> None:
    to, other = f"copy.{topic}", f"other.{topic}"
    for name in (to, other):
        cluster.create_topic(name, partitions=1)
    replay(cluster, topic, partitions=[0]).to_topic(to, replay_id=topic)
    with pytest.raises(IllegalStateError, match="choose another id"):
        replay(cluster, topic, partitions=[0]).to_topic(other, replay_id=topic)
    with pytest.raises(IllegalStateError, match=r"expected the partitions with which it was begun, \[0\]"):
        replay(cluster, topic, partitions=[1]).to_topic(to, replay_id=topic)
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topics([topic])
    cluster.create_topic(topic, partitions=2)
    assert not replay(cluster, topic, partitions=[0]).to_topic(to, replay_id=topic).resumed, "that is another topic"


class Died(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("at", [0, 6, 16])
def test_an_interrupted_copy_goes_on_to_its_first_end(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    to = f"copy.{topic}"
    cluster.create_topic(to, partitions=2)
    monkeypatch.setattr(module.Replay, "_CHUNK", 3)
    left = at
    send = module._Copy._send

    def dies(copy: module._Copy, record: ConsumerRecord) -> None:
        nonlocal left
        if not left:
            raise Died
        left -= 1
        send(copy, record)

    monkeypatch.setattr(module._Copy, "_send", dies)
    with pytest.raises(Died):
        replay(cluster, topic).to_topic(to)
    monkeypatch.setattr(module._Copy, "_send", send)
    fill(cluster, topic, 6)
    counts = replay(cluster, topic).to_topic(to)
    assert counts.resumed
    assert values(read(cluster, to)) == list(range(20))


def test_a_copy_that_dies_between_records_and_place_is_no_copy(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = f"copy.{topic}"
    cluster.create_topic(to, partitions=2)
    places: list[int] = []

    def dies(producer: Producer, *given: Any) -> None:
        places.append(len(places))
        if len(places) == 2:
            raise Died
        send_offsets(producer, *given)

    send_offsets = Producer.send_offsets_to_transaction
    monkeypatch.setattr(Producer, "send_offsets_to_transaction", dies)
    with pytest.raises(Died):
        replay(cluster, topic).to_topic(to)
    assert replay(cluster, topic).to_topic(to).resumed
    assert values(read(cluster, to)) == list(range(20))


def test_a_chunk_that_was_aborted_is_written_again(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = f"copy.{topic}"
    cluster.create_topic(to, partitions=2)
    aborts = [6, 14]
    send, sent = module._Copy._send, 0

    def aborted(copy: module._Copy, record: ConsumerRecord) -> None:
        nonlocal sent
        sent += 1
        if sent in aborts:
            error = TransactionAbortedError("its leader was away")
            error.abortable = True
            raise error
        send(copy, record)

    monkeypatch.setattr(module._Copy, "_send", aborted)
    assert replay(cluster, topic).to_topic(to).done == 20
    assert values(read(cluster, to)) == list(range(20))


def test_a_copy_knows_what_its_predecessor_wrote_up_to_the_fence(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = f"copy.{topic}"
    cluster.create_topic(to, partitions=2)
    fence = Producer.init_transactions

    def late(producer: Producer) -> None:
        monkeypatch.setattr(Producer, "init_transactions", fence)
        assert replay(cluster, topic).to_topic(to).done == 20
        fence(producer)

    monkeypatch.setattr(Producer, "init_transactions", late)
    counts = replay(cluster, topic).to_topic(to)
    assert (counts.done, counts.resumed) == (0, True)
    assert values(read(cluster, to)) == list(range(20))


def test_kill_9_again_and_again(cluster: Cluster) -> None:
    topic, to = "killed", "copy.killed"
    for name in (topic, to):
        cluster.create_topic(name, partitions=2)
    with cluster.producer() as producer:
        for number in range(4_000):
            producer.send(topic, b"%d" % number, partition=number % 2)
            if not number % 50:
                producer.flush()
    command = [sys.executable, "-m", "tidelog.cli.main", "replay", topic, "--from-beginning", "--copy-to", to]
    command += ["--rate", "3000", "--execute", "--bootstrap", cluster.bootstrap]
    until = time.monotonic() + 120
    kills = ended = 0
    with cluster.consumer() as consumer:
        places = [TopicPartition(to, number) for number in range(2)]
        while not ended:
            before = sum(consumer.end_offsets(places).values())
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as program:
                while program.poll() is None:
                    assert time.monotonic() < until
                    if kills < 2 and sum(consumer.end_offsets(places).values()) > before + 700:
                        os.kill(program.pid, signal.SIGKILL)
                        program.wait()
                        kills += 1
                    time.sleep(0.01)
                ended = program.returncode == 0
                assert ended or program.returncode == -signal.SIGKILL
    assert kills == 2
    assert Counter(values(read(cluster, to))) == Counter(range(4_000))


# --- The command ------------------------------------------------------------------------------------
