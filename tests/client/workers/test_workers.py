"""Workers on a cluster: order by key, retries, dead letters, hand-over between members, processes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog import Admin, ConsumerRecord, Deduplicate, HeaderFilter, RetryPolicy, TopicPartition, Workers
from tidelog.client.errors import ConfigError, HandlerError, RecordTooLargeError
from tidelog.client.workers import plan
from tidelog.client.workers import workers as module
from tidelog.testing import Cluster

from . import handlers

Handler = Callable[[ConsumerRecord], Any]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes find the handlers of the tests."""
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "group.min.session.timeout.ms": "1000",
    }
    with Cluster(1, transport="grpc", config=config) as made:
        yield made


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", "-").replace("]", "")
    cluster.create_topic(name, partitions=2)
    return name


def fill(cluster: Cluster, topic: str, count: int, keys: int = 5) -> None:
    with cluster.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=b"%d" % (number % keys))
        producer.flush()


def workers(cluster: Cluster, topic: str, handler: Handler, **options: Any) -> Workers:
    return Workers(handler, cluster.bootstrap, topics=topic, group_id=topic, **options)


class Running:
    """Workers in a thread; ``ended`` returns what ``run`` returned or raises what it raised."""

    def __init__(self, of: Workers) -> None:
        self.of = of
        self._error: BaseException | None = None
        self._deadline = time.monotonic() + 60
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.of.run()
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Wait a little; fail if it has ended, or if a minute has passed."""
        self._thread.join(0.02)
        assert self._thread.is_alive()
        assert time.monotonic() < self._deadline

    def ended(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self.of.counts


class Noted:
    """A handler that notes what it got, and stops the workers at ``count`` records."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self.by_key: dict[bytes | None, list[int]] = defaultdict(list)
        self.enough = threading.Event()

    @property
    def values(self) -> Counter[int]:
        return Counter(value for values in self.by_key.values() for value in values)

    def __call__(self, record: ConsumerRecord) -> None:
        with self._lock:
            self.by_key[record.key].append(int(record.value or b""))
            if self.values.total() >= self._count:
                self.enough.set()


def committed(cluster: Cluster, topic: str) -> int:
    with cluster.consumer(group_id=topic) as consumer:
        found = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    return sum(one.offset for one in found.values() if one is not None)


def letters(cluster: Cluster, topic: str) -> list[ConsumerRecord]:
    """All records of a topic that readers of committed records see."""
    with cluster.consumer(isolation_level="read_committed") as consumer:
        partitions = [TopicPartition(topic, view.partition) for view in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        found: list[ConsumerRecord] = []
        while any(consumer.position(at) < end for at, end in ends.items()):
            found += consumer.poll(1.0)
    return found


def test_a_filter_leaves_records_out_and_commits_move_past_them(cluster: Cluster, topic: str) -> None:
    with cluster.producer() as producer:
        for number in range(40):
            headers = [("kind", b"rare")] if number == 7 else []
            producer.send(topic, b"%d" % number, partition=number % 2, headers=headers)
    handler = Noted(1)
    settings = {"header_filter": HeaderFilter("kind", ["rare"])}
    running = Running(workers(cluster, topic, handler, consumer_settings=settings))
    while committed(cluster, topic) < 40:
        running.check()
    running.of.stop()
    assert running.ended().handled == 1
    assert handler.values == Counter([7])


def test_each_record_once_in_the_order_of_its_key(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 500, keys=7)
    noted = Noted(500)
    running = Running(workers(cluster, topic, noted, workers=6, in_flight_max=50))
    assert noted.enough.wait(60)
    running.of.stop()
    counts = running.ended()
    assert (counts.read, counts.handled) == (500, 500)
    assert noted.values == Counter(range(500))
    assert all(values == sorted(values) for values in noted.by_key.values())
    assert committed(cluster, topic) == 500


def test_workers_of_different_keys_work_at_the_same_time(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 4, keys=4)
    together = threading.Barrier(4)
    running = Running(workers(cluster, topic, lambda _: together.wait(60), workers=4))
    while running.of.counts.handled < 4:
        running.check()
    running.of.stop()
    assert running.ended().handled == 4


def test_a_slow_key_holds_back_itself_alone_and_the_next_owner_repeats_nothing_finished(
    cluster: Cluster, topic: str
) -> None:
    fill(cluster, topic, 60, keys=6)
    let_go, noted = threading.Event(), Noted(50)

    def handler(record: ConsumerRecord) -> None:
        if record.key == b"0":
            let_go.wait(60)
            raise ValueError("this one gets no further")
        noted(record)

    running = Running(workers(cluster, topic, handler, workers=3))
    assert noted.enough.wait(60), "other keys go on"
    let_go.set()
    with pytest.raises(ValueError, match="no further"):
        running.ended()
    assert 0 not in [n for values in noted.by_key.values() for n in values]

    later = Noted(10)
    running = Running(workers(cluster, topic, later, workers=3))
    assert later.enough.wait(60)
    running.of.stop()
    counts = running.ended()
    assert later.values == Counter(range(0, 60, 6)), "what was finished above the failed record is not repeated"
    assert counts.skipped > 0
    assert committed(cluster, topic) == 60


def test_retries_then_a_dead_letter_with_cause_and_origin(cluster: Cluster, topic: str) -> None:
    dead = f"dlq.{topic}"
    cluster.create_topic(dead, partitions=1)
    with cluster.producer() as producer:
        producer.send(topic, b"bad", key=b"k", headers=[("trace", b"1"), ("trace", b"2")], partition=1).result(60)
        producer.send(topic, b"good", key=b"k", partition=1).result(60)
    tries: list[bytes | None] = []
    good = threading.Event()

    def handler(record: ConsumerRecord) -> None:
        tries.append(record.value)
        if record.value == b"bad":
            raise KeyError("no such account")
        good.set()

    policy = RetryPolicy(attempts=3, backoff_ms=1, backoff_max_ms=2)
    running = Running(workers(cluster, topic, handler, retry=policy, dead_letters=dead))
    assert good.wait(60)
    running.of.stop()
    counts = running.ended()
    assert tries == [b"bad", b"bad", b"bad", b"good"], "the key's next record waited"
    assert (counts.handled, counts.retried, counts.dead) == (1, 2, 1)
    (letter,) = letters(cluster, dead)
    assert (letter.key, letter.value, letter.headers[:2]) == (b"k", b"bad", (("trace", b"1"), ("trace", b"2")))
    headers = dict(letter.headers)
    assert headers["__dlq.errors.topic"] == topic.encode()
    assert headers["__dlq.errors.partition"] == b"1"
    assert headers["__dlq.errors.offset"] == b"0"
    assert headers["__dlq.errors.group"] == topic.encode()
    assert headers["__dlq.errors.delivery.count"] == b"3"
    assert b"no such account" in (headers["__dlq.errors.message"] or b"")
    assert headers["tidelog-dlq-reason"] == b"attempts"
    assert headers["tidelog-dlq-exception"] == b"builtins.KeyError"
    assert b"in handler" in (headers["tidelog-dlq-stack"] or b"")
    assert committed(cluster, topic) == 2


def test_a_topic_that_takes_no_dead_letters_ends_the_program_and_nothing_is_lost(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "ABORTS_MAX", 3)
    dead = f"dlq.{topic}"
    cluster.create_topic(dead, config={"max.message.bytes": "100"})
    fill(cluster, topic, 20)
    handled: Counter[int] = Counter()

    def handler(record: ConsumerRecord) -> None:
        number = int(record.value or b"")
        handled[number] += 1
        if number == 3:
            raise ValueError("three")

    with pytest.raises(RecordTooLargeError):
        Running(workers(cluster, topic, handler, dead_letters=dead)).ended()
    assert letters(cluster, dead) == []
    with Admin(cluster.bootstrap) as admin:
        admin.alter_topic_configs(dead, {"max.message.bytes": None})
    running = Running(workers(cluster, topic, handler, dead_letters=dead))
    while len(handled) < 20 or not running.of.counts.dead:
        running.check()
    running.of.stop()
    running.ended()
    assert committed(cluster, topic) == 20
    assert [letter.value for letter in letters(cluster, dead)] == [b"3"]


def test_poison_and_fatal_errors_are_not_tried_again(cluster: Cluster, topic: str) -> None:
    dead = f"dlq.{topic}"
    cluster.create_topic(dead, partitions=1)
    with cluster.producer() as producer:
        for value in (b"{", b'"refused"', b'"fine"'):
            producer.send(topic, value, partition=0).result(60)
    fine = threading.Event()

    def handler(record: ConsumerRecord) -> None:
        value: object = record.value
        if value == "refused":
            raise PermissionError("never")
        fine.set()

    running = Running(
        workers(
            cluster,
            topic,
            handler,
            retry=RetryPolicy(fatal=(PermissionError,)),
            dead_letters=dead,
            ordered_by="partition",
            consumer_settings={"value_deserializer": _json},
        )
    )
    assert fine.wait(60)
    running.of.stop()
    assert running.ended().retried == 0
    found = {letter.value: dict(letter.headers)["tidelog-dlq-reason"] for letter in letters(cluster, dead)}
    assert found == {b"{": b"invalid", b'"refused"': b"rejected"}, "the values are the bytes that were fetched"


def _json(_topic: str, data: bytes | None) -> Any:
    return json.loads(data or b"null")


def test_a_program_that_dies_after_its_dead_letter_writes_no_second_one(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = f"dlq.{topic}"
    cluster.create_topic(dead, partitions=1)
    fill(cluster, topic, 40, keys=4)
    blocked, let_go = threading.Event(), threading.Event()

    def handler(record: ConsumerRecord) -> None:
        if record.value == b"0":  # the lowest record stays in hand: the commit cannot pass it
            blocked.set()
            let_go.wait(60)
        elif int(record.value or b"") % 4 == 1:
            raise ValueError("not this key")

    running = Running(workers(cluster, topic, handler, workers=4, dead_letters=dead, drain_timeout=0.2))
    while running.of.counts.dead < 10:
        running.check()
    assert blocked.is_set()
    monkeypatch.setattr(module.Workers, "_commit", lambda *_: None)  # as after kill -9: nothing more is committed
    running.of.stop()
    running.ended()
    let_go.set()
    monkeypatch.undo()

    noted = Noted(30)
    running = Running(workers(cluster, topic, noted, workers=4, dead_letters=dead))
    while committed(cluster, topic) < 40:
        running.check()
    running.of.stop()
    running.ended()
    assert not [n for n in noted.values if n % 4 == 1], "the commit said that these are finished"
    found = Counter(int(letter.value or b"") for letter in letters(cluster, dead))
    assert found == Counter(range(1, 40, 4)), "one dead letter each"


def test_partitions_go_to_another_member_when_work_in_hand_has_ended(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 300, keys=20)
    lock, seen = threading.Lock(), Counter[int]()
    all_seen, some = threading.Event(), threading.Event()

    def handler(record: ConsumerRecord) -> None:
        threading.Event().wait(0.002)
        with lock:
            seen[int(record.value or b"")] += 1
            if len(seen) > 30:
                some.set()
            if len(seen) == 300:
                all_seen.set()

    first = Running(workers(cluster, topic, handler, workers=2, in_flight_max=20))
    assert some.wait(60)
    second = Running(workers(cluster, topic, handler, workers=2, in_flight_max=20))
    assert all_seen.wait(60)
    first.of.stop()
    second.of.stop()
    total = first.ended().handled + second.ended().handled
    assert seen == Counter(range(300)), "a hand-over in peace repeats nothing"
    assert total == 300
    assert committed(cluster, topic) == 300


def test_duplicates_are_left_out_also_after_a_restart(cluster: Cluster, topic: str) -> None:
    with cluster.producer() as producer:
        for message_id in (b"a", b"b", b"a"):
            producer.send(topic, b"1", partition=0, headers=[("id", message_id)]).result(60)
    noted = Noted(2)
    running = Running(workers(cluster, topic, noted, deduplicate=Deduplicate(window=100), ordered_by="partition"))
    while running.of.counts.duplicates < 1:
        running.check()
    running.of.stop()
    assert running.ended().handled == 2
    with cluster.producer() as producer:
        producer.send(topic, b"2", partition=0, headers=[("id", b"b")]).result(60)
        producer.send(topic, b"3", partition=0, headers=[("id", b"c")]).result(60)
    later = Noted(1)
    running = Running(workers(cluster, topic, later, deduplicate=Deduplicate(window=100)))
    assert later.enough.wait(60)
    running.of.stop()
    assert running.ended().duplicates == 1
    assert later.values == Counter([3])


@pytest.mark.usefixtures("processes")
def test_processes(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    with cluster.producer() as producer:
        for number in range(4):
            producer.send(topic, b"%d" % number, key=str(tmp_path).encode(), partition=number % 2).result(60)
    running = Running(workers(cluster, topic, handlers.note_process, workers=2, processes=True, ordered_by="none"))
    while len(list(tmp_path.iterdir())) < 4:
        running.check()
    running.of.stop()
    running.ended()
    assert str(os.getpid()) not in {file.read_text() for file in tmp_path.iterdir()}


@pytest.mark.usefixtures("processes")
def test_a_handlers_error_comes_from_its_process(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 1)
    with pytest.raises(HandlerError, match=r"ValueError: not b'0'"):
        Running(workers(cluster, topic, handlers.refuse, workers=1, processes=True)).ended()


@pytest.mark.usefixtures("processes")
def test_a_worker_process_that_is_killed_costs_a_try(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    with cluster.producer() as producer:
        producer.send(topic, b"x", key=str(tmp_path).encode()).result(60)
    policy = RetryPolicy(attempts=2, backoff_ms=1)
    running = Running(workers(cluster, topic, handlers.die_once, workers=1, processes=True, retry=policy))
    while not (tmp_path / "x").exists() or (tmp_path / "x").read_text() != "done":
        running.check()
    running.of.stop()
    assert running.ended().retried == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": 0}, "workers: expected 1 or more, found 0"),
        ({"ordered_by": "value"}, "ordered_by: expected 'key', 'partition' or 'none', found 'value'"),
        ({"in_flight_max": 3}, "in_flight_max: expected workers"),
        ({"dead_letters": "t"}, "dead_letters: expected a topic that is not being read"),
        ({"consumer_settings": {"enable.auto.commit": True}}, "enable_auto_commit: leave it out"),
        ({"deduplicate": Deduplicate(), "consumer_settings": {"auto_offset_reset": "latest"}}, "auto_offset_reset"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=text):
        Workers(print, "localhost:1", topics="t", group_id="g", **options)


def test_policies_that_make_no_sense() -> None:
    for make in (
        lambda: RetryPolicy(attempts=0),
        lambda: RetryPolicy(backoff_ms=0),
        lambda: RetryPolicy(backoff_ms=10, backoff_max_ms=5),
        lambda: Deduplicate(window=0),
        lambda: Deduplicate(header=""),
    ):
        with pytest.raises(ValueError, match="expected"):
            make()
