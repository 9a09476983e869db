"""Foreign clients on both sides of each pattern of docs/patterns.md that has a topic: they write, and they read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from tests.delay_topics import create_delay_topic
from tests.kafka.clients.test_clients_transactions import COMMITTED, transactional
from tests.kafka.kafka_clients import Sent, confluent_produce, confluent_read
from tidelog import (
    ConsumerRecord,
    Deduplicate,
    HeaderFilter,
    OutboxRelay,
    Replay,
    SqliteOutbox,
    TimeToLive,
    TopicPartition,
    Workers,
)
from tidelog.testing.cluster import Cluster

NOW_MS = int(time.time() * 1_000)
FAR_MS = 4_000_000_000_000


def test_a_foreign_client_writes_for_later_and_another_one_reads_it_once(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    later, bills, dead, bootstrap = (
        topic_name("later"),
        topic_name("bills"),
        topic_name("dead"),
        kafka_cluster.kafka_bootstrap,
    )
    create_delay_topic(kafka_cluster, later, dead, delay_target=bills)
    with transactional(bootstrap, later) as producer:
        for commits, values in ((False, [b"never"]), (True, [b"second", b"first"])):
            producer.begin_transaction()
            for number, value in enumerate(values):
                producer.produce(
                    later, value, key=b"k", partition=0, headers={"tidelog-delay-ms": f"{600 - 300 * number}"}
                )
            if commits:
                producer.commit_transaction(20)
            else:
                producer.flush(20)
                producer.abort_transaction(20)
    found = confluent_read(bootstrap, bills, 0, 2, **COMMITTED)
    assert [one.value for one in found] == [b"first", b"second"]
    told = {name: value or b"" for name, value in found[0].headers}
    assert told["tidelog-delay-id"].startswith(f"{later}-0-".encode())
    assert int(told["tidelog-delay-due"]) == int(told["tidelog-delay-timestamp"]) + 300


def test_workers_handle_what_a_foreign_client_writes_and_it_reads_their_dead_letters(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    """Ids for de-duplication, times to live and traces are headers that any client can write."""
    tasks, dead, bootstrap = topic_name("tasks"), topic_name("dead"), kafka_cluster.kafka_bootstrap
    for name in (tasks, dead):
        kafka_cluster.create_topic(name)

    def task(value: bytes, message_id: bytes, expires_ms: int = FAR_MS) -> Sent:
        headers = (("id", message_id), ("tidelog-expires-at", b"%d" % expires_ms))
        return Sent(b"k", value, headers, NOW_MS)

    written = [task(b"1", b"a"), task(b"1", b"a"), task(b"late", b"b", 1), task(b"bad", b"c"), task(b"2", b"d")]
    confluent_produce(bootstrap, tasks, 0, written, "none")
    done: list[bytes | None] = []

    def handler(record: ConsumerRecord) -> None:
        if record.value == b"bad":
            raise ValueError("no number")
        done.append(record.value)
        if record.value == b"2":
            job.stop()

    job = Workers(
        handler, kafka_cluster.bootstrap, topics=tasks, group_id=tasks, dead_letters=dead, ordered_by="partition",
        deduplicate=Deduplicate("id", 100), time_to_live=TimeToLive(dead_letters=True),
    )  # fmt: skip
    counts = job.run()
    assert done == [b"1", b"2"]
    assert (counts.duplicates, counts.dead) == (1, 2)
    letters = confluent_read(bootstrap, dead, 0, 2, **COMMITTED)
    told = [dict(letter.headers) for letter in letters]
    assert [letter.value for letter in letters] == [b"late", b"bad"]
    assert [about["tidelog-dlq-reason"] for about in told] == [b"expired", b"attempts"]
    assert [about["__dlq.errors.offset"] for about in told] == [b"2", b"3"]
    assert told[1]["id"] == b"c", "its own headers are kept"


def test_a_filter_finds_what_a_foreign_client_tagged_and_foreign_readers_see_everything(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    deals, bootstrap = topic_name("deals"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(deals, config={"filter.header": "kind"})
    written = [Sent(None, b"%d" % n, (("kind", b"rare" if n == 4 else b"often"),), NOW_MS) for n in range(6)]
    confluent_produce(bootstrap, deals, 0, written, "lz4")
    with kafka_cluster.consumer(auto_offset_reset="earliest", header_filter=HeaderFilter("kind", ["rare"])) as consumer:
        consumer.assign([TopicPartition(deals, 0)])
        [found] = consumer.poll(30.0)
    assert (found.offset, found.value) == (4, b"4")
    assert confluent_read(bootstrap, deals, 0, 6) == written


def test_a_replay_copies_a_foreign_clients_transactions_and_sets_up_its_group(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    source, copy, group = topic_name("source"), topic_name("copy"), topic_name("again")
    bootstrap = kafka_cluster.kafka_bootstrap
    for name in (source, copy):
        kafka_cluster.create_topic(name)
    with transactional(bootstrap, source) as producer:
        for commits, value in ((True, b"a"), (False, b"never"), (True, b"b")):
            producer.begin_transaction()
            producer.produce(source, value, partition=0)
            producer.flush(20)
            if commits:
                producer.commit_transaction(20)
            else:
                producer.abort_transaction(20)
    job = Replay(kafka_cluster.bootstrap, source)
    assert job.to_topic(copy).done == 2
    assert [one.value for one in confluent_read(bootstrap, copy, 0, 2, **COMMITTED)] == [b"a", b"b"]
    [(_, start, _)] = Replay(kafka_cluster.bootstrap, source, start=2).to_group(group)
    assert start == 2
    from confluent_kafka import Consumer

    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", **COMMITTED})
    reader.subscribe([source])
    message = reader.poll(30.0)
    reader.close()
    assert message is not None
    assert message.value() == b"b", "the first that counts from there on"


def test_a_foreign_client_reads_the_rows_of_an_outbox_once(
    kafka_cluster: Cluster, topic_name: Callable[..., str], tmp_path: Path
) -> None:
    kind, shop = topic_name("order"), tmp_path / "shop.db"
    for name in (f"outbox.{kind}", f"outbox.event.{kind}"):
        kafka_cluster.create_topic(name)
    with sqlite3.connect(shop) as connection:
        SqliteOutbox.create(connection)
        for number in range(3):
            SqliteOutbox.put(connection, kind, str(number), "placed", b"lamp %d" % number)
    connection.close()
    assert OutboxRelay(SqliteOutbox(shop), kafka_cluster.bootstrap, name=kind).run(until_empty=True).sent == 3
    found = confluent_read(kafka_cluster.kafka_bootstrap, f"outbox.event.{kind}", 0, 3, **COMMITTED)
    assert [(one.key, one.value) for one in found] == [(b"%d" % n, b"lamp %d" % n) for n in range(3)]
    assert len({dict(one.headers)["id"] for one in found}) == 3
