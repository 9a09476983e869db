"""The clients of both clusters. Each measurement is a separate process, so none inherits another's memory and
caches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import Any, Final

from tidelog.bench.kafka_side.kafka import LATENCY_PACE, java
from tidelog.bench.listener.librdkafka import producer
from tidelog.cli.work.workload import consume_all, produce_many, produce_one_by_one, values_of

TIMEOUT_S: Final = 300.0
SECONDS: Final = 6.0
JAVA_RECORDS: Final = {100: 5_000_000, 1024: 800_000}
JAVA_WARM_UP: Final = {100: 1_000_000, 1024: 200_000}
"""Warm-up records that do not count, for the client's own JIT."""
LIBRDKAFKA_RECORDS: Final = {100: 8_000_000, 1024: 1_000_000}
LIBRDKAFKA_WARM_UP: Final = 100_000
LATENCY_RECORDS: Final = 12_000
_BATCH: Final = 10_000
_RATE: Final = re.compile(r"([\d.]+) records/sec")
_PERCENTILES: Final = re.compile(r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th")


# --- Java -------------------------------------------------------------------------------------------


def java_produce(classes: str, bootstrap: str, topic: str, size: int) -> float:
    """Return records per second of Kafka's producer with its defaults (acks=all, batches of 16 KiB, linger 5 ms)."""
    out = _perf(classes, bootstrap, topic, size, JAVA_RECORDS[size], JAVA_WARM_UP[size], -1)
    return float(_RATE.findall(out)[-1])


def java_latency(classes: str, bootstrap: str, topic: str) -> tuple[float, float]:
    """Return median and 99th percentile in ms of one-record requests, :data:`LATENCY_PACE` per second."""
    out = _perf(classes, bootstrap, topic, 100, LATENCY_RECORDS, 2 * LATENCY_PACE, LATENCY_PACE, "linger.ms=0")
    half, _, most = _PERCENTILES.findall(out)[-1]
    return float(half), float(most)


def _perf(
    classes: str, bootstrap: str, topic: str, size: int, count: int, warm_up: int, pace: int, *properties: str
) -> str:
    return java(
        classes, "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", bootstrap, "--topic", topic,
        "--num-records", str(count + warm_up), "--warmup-records", str(warm_up), "--record-size", str(size),
        "--throughput", str(pace), "--command-property", "acks=all", *properties,
    )  # fmt: skip


def java_consume(classes: str, bootstrap: str, topic: str, count: int) -> float:
    """Return records per second of Kafka's consumer, by its own clock: joining the group does not count."""
    out = java(
        classes, "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", bootstrap, "--topic", topic,
        "--num-records", str(count), "--timeout", "60000",
    )  # fmt: skip
    head, row = (line.split(", ") for line in out.strip().splitlines()[-2:])
    found = dict(zip(head, row, strict=True))
    return float(found["fetch.nMsg.sec"])


# --- Python, each in a separate process ---------------------------------------------------------------


def apart(name: str, *given: Any) -> float:
    """Run one of :data:`LOOPS` in a separate process; return its result."""
    command = [sys.executable, "-P", "-m", "tidelog.bench.kafka_side.clients", name, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return float(done.stdout)


def sdk_send(bootstrap: str, topic: str, size: int) -> float:
    return produce_one_by_one(bootstrap, topic, size, SECONDS, acks="all").per_second


def sdk_send_many(bootstrap: str, topic: str, size: int) -> float:
    return produce_many(bootstrap, topic, size, SECONDS, acks="all").per_second


def sdk_records(bootstrap: str, topic: str, count: int) -> float:
    return consume_all(bootstrap, topic, count, as_records=True).per_second


def librdkafka_produce(bootstrap: str, topic: str, size: int, partitions: int) -> float:
    """Return records per second of librdkafka in C, linger 20 ms."""
    settings = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "linger.ms": "20",
        "batch.num.messages": "10000",
        "queue.buffering.max.messages": "1000000",
        "queue.buffering.max.kbytes": "1000000",
        "log_level": "3",
    }
    with producer(settings) as client:
        client.produce(topic, partitions, size, LIBRDKAFKA_WARM_UP, TIMEOUT_S)
        return client.produce(topic, partitions, size, LIBRDKAFKA_RECORDS[size], TIMEOUT_S)


def confluent_produce(bootstrap: str, topic: str, size: int) -> float:
    """Return records per second of ``produce()`` in confluent-kafka for Python."""
    import confluent_kafka

    values = values_of(size, 10_000)
    client = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    )
    client.produce(topic, values[0])
    client.flush()
    sent, produce, started = 0, client.produce, time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        for value in values:
            try:
                produce(topic, value)
            except BufferError:
                client.poll(0.01)
                produce(topic, value)
        client.poll(0)
        sent += len(values)
    client.flush()
    return sent / (time.perf_counter() - started)


def confluent_consume(bootstrap: str, topic: str, partitions: int, count: int) -> float:
    """Return records per second of ``consume(batch)`` in confluent-kafka for Python, with values accessed."""
    import confluent_kafka

    client = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "side", "queued.min.messages": 1_000_000}
    )
    client.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    read = len(client.consume(1, 60))
    started, size = time.perf_counter(), 0
    while read < count:
        batch = client.consume(_BATCH, 60)
        if not batch:
            raise RuntimeError(f"expected {count} records, found {read}")
        for record in batch:
            size += len(record.value() or b"")
        read += len(batch)
    took = time.perf_counter() - started
    client.close()
    return read / took


LOOPS: Final = {
    loop.__name__: loop
    for loop in (sdk_send, sdk_send_many, sdk_records, librdkafka_produce, confluent_produce, confluent_consume)
}


if __name__ == "__main__":
    print(LOOPS[sys.argv[1]](*json.loads(sys.argv[2])))
