"""MirrorMaker 2 exactly once: from Apache Kafka to Tidelog and on to another Tidelog, killed on the way."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any, Final, NamedTuple

from tidelog import Admin
from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import WAIT_S, Check, Differs, expect, records, started, until
from tidelog.bench.ecosystem.checks.connect import JARS, VERSION
from tidelog.bench.ecosystem.installing import SMALL_JVM, jars, java
from tidelog.bench.kafka_side import kafka
from tidelog.client.errors import UnknownTopicOrPartitionError
from tidelog.testing.ports import LOOPBACK, free_ports

BROKER: Final = (("org.apache.kafka", "kafka_2.13", VERSION), ("org.slf4j", "slf4j-nop", "1.7.36"))
TOPIC: Final = "orders"
GROUP: Final = "readers"
PARTITIONS: Final = 3
RECORDS: Final = 3_000
IN_A_TRANSACTION: Final = 50
READ: Final = 700
COPIES: Final = (("here", 3), ("there", 1))
"""The clusters of ours, and their numbers of nodes and of replicas."""

Values = dict[int, list[str]]
"""By partition, in order."""


class Target(NamedTuple):
    bootstrap: str
    topic: str

    def values(self) -> Values:
        found: Values = {number: [] for number in range(PARTITIONS)}
        try:
            for record in records(self.bootstrap, self.topic):
                found[record.partition].append((record.value or b"").decode())
        except UnknownTopicOrPartitionError:
            pass  # MirrorMaker has not made it yet
        return found

    def holds(self, count: int) -> bool:
        return _size(self.values()) >= count


def _run(root: Path) -> str:
    command = [*java(jars("connect", *JARS)), "org.apache.kafka.connect.mirror.MirrorMaker"]
    classes = f"{jars('kafka', *BROKER)[0].parent}/*"
    with ExitStack() as stack:
        settings = {"transaction.state.log.min.isr": 1}
        source, _ = stack.enter_context(
            kafka.running(classes, root / "kafka", brokers=1, controllers=1, jvm=SMALL_JVM, settings=settings)
        )
        here, there = (stack.enter_context(clusters.running(root / name, nodes)) for name, nodes in COPIES)
        targets = (Target(here.bootstrap, f"kafka.{TOPIC}"), Target(there.bootstrap, f"here.kafka.{TOPIC}"))
        file = root / "mm2.properties"
        lines = _settings({"kafka": source, "here": here.bootstrap, "there": there.bootstrap})
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        _create(source)

        def mirror() -> Popen[bytes]:
            return stack.enter_context(started([*command, str(file)], root / "mm2.log"))

        def mirrored(wanted: Values, process: Popen[bytes]) -> None:
            for target in targets:
                condition = partial(target.holds, _size(wanted))
                until(f"all of {target.topic}", condition, process)

        process = mirror()
        wanted = _produce(source, 0, RECORDS // 2)
        read = _read(source)
        mirrored(wanted, process)
        process.kill()
        for number, values in _produce(source, RECORDS // 2, RECORDS).items():
            wanted[number] += values
        process = mirror()
        mirrored(wanted, process)
        for target in targets:
            expect(f"records of {target.topic}", wanted, target.values())
        again = _read_again(targets[0], read, process)
    return (
        f"{_size(wanted)} committed records of Apache Kafka are on the next cluster and on the one after it, once "
        "each and in order, and none of an aborted transaction, with kill -9 of MirrorMaker on the way; a group's "
        f"place came along: it would read {again} of {READ} records again and miss none"
    )


def _settings(addresses: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {
        "clusters": ",".join(addresses),
        "dedicated.mode.enable.internal.rest": "true",  # which exactly.once.source.support asks for
        "listeners": f"http://{LOOPBACK}:{free_ports(1)[0]}",
        "emit.heartbeats.enabled": "false",
        "refresh.topics.interval.seconds": 2,
        "refresh.groups.interval.seconds": 2,
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": 2,
        "emit.checkpoints.interval.seconds": 2,
        "offset.lag.max": 0,
    }
    copies = dict(COPIES) | {"kafka": 1}
    for name, bootstrap in addresses.items():
        found[f"{name}.bootstrap.servers"] = bootstrap
        found[f"{name}.exactly.once.source.support"] = "enabled"
        found[f"{name}.consumer.isolation.level"] = "read_committed"
        for what in ("offset", "config", "status"):
            found[f"{name}.{what}.storage.replication.factor"] = copies[name]
    for source, target, topic in (("kafka", "here", TOPIC), ("here", "there", f"kafka.{TOPIC}")):
        flow = f"{source}->{target}"
        found[f"{flow}.enabled"] = "true"
        found[f"{flow}.topics"] = topic.replace(".", r"\\.")
        found[f"{flow}.replication.factor"] = found[f"{flow}.checkpoints.topic.replication.factor"] = copies[target]
        found[f"{flow}.offset-syncs.topic.replication.factor"] = copies[source]
    return found


def _create(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        made.result(WAIT_S)


def _produce(bootstrap: str, first: int, end: int) -> Values:
    """Produce records in transactions, every fifth of which is aborted; return the committed ones."""
    from confluent_kafka import Producer

    found: Values = {number: [] for number in range(PARTITIONS)}
    producer: Any = Producer({"bootstrap.servers": bootstrap, "transactional.id": "orders", "log_level": 3})
    producer.init_transactions(WAIT_S)
    for start in range(first, end, IN_A_TRANSACTION):
        producer.begin_transaction()
        for number in range(start, start + IN_A_TRANSACTION):
            producer.produce(TOPIC, f"order {number}".encode(), partition=number % PARTITIONS)
        producer.flush(WAIT_S)
        if start // IN_A_TRANSACTION % 5 == 4:
            producer.abort_transaction(WAIT_S)
            continue
        producer.commit_transaction(WAIT_S)
        for number in range(start, start + IN_A_TRANSACTION):
            found[number % PARTITIONS].append(f"order {number}")
    return found


def _read(bootstrap: str) -> dict[int, int]:
    """Let a group read and commit :data:`READ` records; return how many of each partition."""
    from confluent_kafka import Consumer

    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    found = dict.fromkeys(range(PARTITIONS), 0)
    for _ in range(READ):
        message = consumer.poll(WAIT_S)
        if message is None or message.error():
            raise Differs(f"expected {READ} records, found {sum(found.values())}: {message and message.error()}")
        found[message.partition()] += 1
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def _read_again(target: Target, read: Mapping[int, int], process: Popen[bytes]) -> int:
    """Return how many records the group would read again on the target. Raises :class:`Differs` if it missed one."""

    def offsets() -> dict[int, int]:
        with Admin(target.bootstrap) as admin:
            found = admin.list_consumer_group_offsets(GROUP)
        return {place.partition: at.offset for place, at in found.items() if place.topic == target.topic}

    until(f"the place of {GROUP}", lambda: all(number in offsets() for number, count in read.items() if count), process)
    again, there = 0, records(target.bootstrap, target.topic)
    for number, offset in offsets().items():
        passed = sum(record.partition == number and record.offset < offset for record in there)
        if passed > read[number]:
            raise Differs(f"partition {number}: expected the group at record {read[number]} at most, found {passed}")
        again += read[number] - passed
    return again


def _size(values: Values) -> int:
    return sum(map(len, values.values()))


CHECK: Final = Check("mirrormaker", f"MirrorMaker {VERSION}", _run)
