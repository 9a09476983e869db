"""Delay topics: how late records come, how many come in a second, how soon after a restart with many that wait."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.bench.clusters import running
from tidelog.cli.work.workload import percentile, values_of
from tidelog.proto.records.message_headers import DELAY_DUE

if TYPE_CHECKING:
    from tidelog import Consumer, ConsumerRecord
    from tidelog.cli.local.cluster import LocalCluster

PARTITIONS: Final = 4
LATE_A_SECOND: Final = 5_000
LATE_S: Final = 10.0
LATE_WARM_UP_S: Final = 4.0
LATE_DELAYS_MS: Final = (500, 3_500)
TICK_S: Final = 0.02
AT_ONCE: Final = 100_000
WAITING: Final = 1_000_000
HOUR_MS: Final = 3_600_000
BOUND_S: Final = 120.0
_LATER: Final = "later"
_TARGET: Final = "bench"
_VALUE: Final = values_of(100, 1)[0]


@contextmanager
def _delaying(root: Path) -> Iterator[LocalCluster]:
    """One node with a delay topic and its target."""
    from tidelog import Admin, NewTopic

    delays = {
        "delay.enable": "true",
        "delay.target": _TARGET,
        "delay.dead.letter.topic": "dead",
        "message.timestamp.type": "LogAppendTime",
    }
    with running(root, 1) as cluster:
        with Admin(cluster.bootstrap) as admin:
            for name in (_TARGET, "dead"):
                admin.create_topics([NewTopic(name, PARTITIONS, configs={"delay.sources": _LATER})])
            admin.create_topics([NewTopic(_LATER, PARTITIONS, configs=delays)])
        yield cluster


@contextmanager
def _reader(cluster: LocalCluster) -> Iterator[Consumer]:
    from tidelog import Consumer, TopicPartition

    with Consumer(cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(_TARGET, partition) for partition in range(PARTITIONS)])
        yield consumer


def lateness(root: Path) -> Mapping[str, float]:
    """Measure in ms how long after its due time a reader has a record, while 5,000 fall due in each second."""
    late: list[float] = []
    with _delaying(root) as cluster, _reader(cluster) as consumer:
        began = time.time()
        writer = threading.Thread(target=_write_steadily, args=(cluster.bootstrap,))
        writer.start()
        from_s, to_s = began + LATE_WARM_UP_S, began + LATE_WARM_UP_S + LATE_S
        while time.time() < to_s + BOUND_S:
            records = consumer.poll(1.0)
            now = time.time()
            due = [_due_s(record) for record in records]
            late += [(now - each) * 1_000 for each in due if from_s <= each < to_s]
            if not records and not writer.is_alive():
                break
        writer.join()
    return {"delay_late_p50": percentile(late, 0.5), "delay_late_p99": percentile(late, 0.99)}


def _write_steadily(bootstrap: str) -> None:
    from tidelog import Producer

    rng, sent = random.Random(1), 0
    with Producer(bootstrap, linger_ms=5) as producer:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < LATE_WARM_UP_S + LATE_S:
            while sent < passed * LATE_A_SECOND:
                at = sent % PARTITIONS
                producer.send_later(_LATER, _VALUE, deliver_after_ms=rng.randint(*LATE_DELAYS_MS), partition=at)
                sent += 1
            time.sleep(TICK_S)


def _due_s(record: ConsumerRecord) -> float:
    return int(dict(record.headers)[DELAY_DUE] or 0) / 1_000


def at_once(root: Path) -> Mapping[str, float]:
    """Measure how many records reach a reader per second, when 100,000 fall due at the same time."""
    with _delaying(root) as cluster, _reader(cluster) as consumer:
        due_s = _write(cluster.bootstrap, AT_ONCE, wait_s=20.0)
        _wait_until(due_s)
        count = 0
        while count < AT_ONCE:
            assert time.time() < due_s + BOUND_S, f"{count} of {AT_ONCE} came"
            count += len(consumer.poll(1.0))
        return {"delay_rate": AT_ONCE / (time.time() - due_s)}


def restart(root: Path) -> Mapping[str, float]:
    """Measure the time from the start of a node with a million records that wait for an hour, until a reader has one
    that fell due meanwhile."""
    with _delaying(root) as cluster:
        _write(cluster.bootstrap, WAITING, wait_s=HOUR_MS / 1_000)
        due_s = _write(cluster.bootstrap, 1, wait_s=3.0)
        cluster.stop()
        _wait_until(due_s)
        started = time.perf_counter()
        cluster.start()
        with _reader(cluster) as consumer:
            while not consumer.poll(0.1):
                assert time.time() < due_s + BOUND_S, "the record did not come"
            return {"delay_restart": time.perf_counter() - started}


def _write(bootstrap: str, count: int, *, wait_s: float) -> float:
    """Write records that fall due together, and return when, in seconds since the epoch."""
    from tidelog import Producer

    due_ms = int((time.time() + wait_s) * 1_000)
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send_later(_LATER, _VALUE, deliver_at_ms=due_ms, partition=number % PARTITIONS)
        producer.flush(BOUND_S)
    assert time.time() * 1_000 < due_ms, f"writing {count} records took longer than {wait_s:g} s"
    return due_ms / 1_000


def _wait_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.time()))
