"""The Kafka listener under librdkafka's own loops, and a node's processor time for requests.

A million records a second need a client without Python objects: see :mod:`tidelog.bench.listener.librdkafka`. In the
same run, librdkafka's mock cluster (a C broker in the client's process, which stores almost nothing) takes the same
records: the limit of this machine and the client.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidelog.bench.clusters import create_topic, running, with_topics
from tidelog.bench.listener import kafka_consumer, librdkafka
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.process import use_of
from tidelog.testing.kafka_requests import fetch_request, produce_request

RECORDS: Final = 6_000_000
VALUE_BYTES: Final = 100
PARTITIONS: Final = 4
SMALL_REQUESTS: Final = 40_000
PACE: Final = 1_000
"""One-record requests per second, and for how many seconds."""
PACED_S: Final = 10
IN_FLIGHT: Final = 8
FETCHES: Final = 2_000
MIB: Final = 2**20
_TIMEOUT_S: Final = 60.0
_TOPIC: Final = "bench"
PRODUCER: Final = {
    "acks": "1",
    "linger.ms": "20",
    "batch.num.messages": "10000",
    "queue.buffering.max.messages": "1000000",
    "queue.buffering.max.kbytes": "1000000",
    "log_level": "3",
}
_CONSUMER: Final = {"queued.min.messages": "1000000", "log_level": "3", "group.id": "bench"}


def kafka_throughput(root: Path) -> Mapping[str, float]:
    """Measure records per second in and out of one node, and into the mock cluster."""
    with with_topics(root, 1, _TOPIC, partitions=PARTITIONS) as cluster:
        node = {"bootstrap.servers": cluster.bootstrap}
        with librdkafka.producer({**PRODUCER, **node}) as client:
            produced = client.produce(_TOPIC, PARTITIONS, VALUE_BYTES, RECORDS, _TIMEOUT_S)
            ends = client.ends(_TOPIC, PARTITIONS)
        if sum(ends) != RECORDS:
            raise RuntimeError(f"expected {RECORDS} records in the log, found {sum(ends)}")
        consumed = kafka_consumer.consume({**_CONSUMER, **node}, _TOPIC, PARTITIONS, RECORDS, _TIMEOUT_S)
    with librdkafka.producer({**PRODUCER, "test.mock.num.brokers": "1"}) as client:
        mock = client.produce(_TOPIC, PARTITIONS, VALUE_BYTES, RECORDS // 2, _TIMEOUT_S)
    return {"kafka_produce_100b": produced, "kafka_consume_100b": consumed, "kafka_mock_produce_100b": mock}


def kafka_requests(root: Path) -> Mapping[str, float]:
    """Measure the node's processor time for a produce request with one small record, and for a 1 MiB fetch."""
    from tidelog import Admin

    with running(root, 1) as cluster:
        with Admin(cluster.bootstrap) as admin:
            create_topic(admin, _TOPIC, partitions=1)
            create_topic(admin, "big", partitions=1, settings={"max.message.bytes": str(2 * MIB)})
        with _connection(cluster) as plain:
            small = produce_request(_TOPIC, [b"." * VALUE_BYTES], 1)
            ask(plain, small, 2_000, IN_FLIGHT)
            before = _cpu_s(cluster)
            ask(plain, small, SMALL_REQUESTS, IN_FLIGHT)
            small_us = (_cpu_s(cluster) - before) / SMALL_REQUESTS * 1e6
            ask(plain, produce_request("big", [b"." * (MIB - 200)], 1), 2, 1)
            fetch = fetch_request("big", MIB, 1)
            got = ask(plain, fetch, 50, 1) / 50
            if not 0.9 * MIB < got < 1.1 * MIB:
                raise RuntimeError(f"expected answers of 1 MiB, found {got:,.0f} bytes")
            before = _cpu_s(cluster)
            ask(plain, fetch, FETCHES, 1)
            fetch_ms = (_cpu_s(cluster) - before) / FETCHES * 1e3
    return {"kafka_small_produce_cpu": small_us, "kafka_fetch_1m_cpu": fetch_ms}


def one_record_requests(root: Path) -> Mapping[str, float]:
    """Measure the processor time of all three brokers for a single record, RF 3, acks=all, at a steady pace."""
    return {
        "one_record_cpu": _one_record_us(root / "grpc", {}),
        "one_record_cpu_tcp": _one_record_us(root / "tcp", {"replication.transport": "tcp"}),
    }


def _one_record_us(root: Path, settings: Mapping[str, str]) -> float:
    from tidelog import Admin

    with running(root, 3, settings) as cluster:
        with Admin(cluster.bootstrap) as admin:
            create_topic(admin, _TOPIC, partitions=1, copies=3)
            leader = admin.describe_topics([_TOPIC])[0].partitions[0].leader
        small = produce_request(_TOPIC, [b"." * VALUE_BYTES], 1, acks=-1)
        with _connection(cluster, leader) as plain:
            _paced(plain, small, 2 * PACE)
            time.sleep(1)
            before = _cpu_s(cluster, *cluster.nodes)
            time.sleep(PACED_S)
            idle_s = _cpu_s(cluster, *cluster.nodes) - before
            before = _cpu_s(cluster, *cluster.nodes)
            _paced(plain, small, PACED_S * PACE)
            return (_cpu_s(cluster, *cluster.nodes) - before - idle_s) / (PACED_S * PACE) * 1e6


def _paced(plain: socket.socket, request: bytes, count: int) -> None:
    """Send a request ``count`` times at :data:`PACE`; return once all answers have arrived."""
    reading = threading.Thread(target=ask, args=(plain, b"", count, 0))
    reading.start()
    begun = time.monotonic()
    for number in range(count):
        if (wait := begun + number / PACE - time.monotonic()) > 0:
            time.sleep(wait)
        plain.sendall(request)
    reading.join()


@contextmanager
def _connection(cluster: LocalCluster, node: int = 1) -> Iterator[socket.socket]:
    host, _, port = cluster.bootstrap.split(",")[node - 1].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield plain


def ask(plain: socket.socket, request: bytes, count: int, in_flight: int) -> int:
    """Send a request ``count`` times, with ``in_flight`` unanswered; return the bytes of all answers."""
    room = memoryview(bytearray(4 * MIB))
    sent = answered = total = 0
    filled = 0
    while answered < count:
        if sent < count and sent - answered < in_flight:
            more = min(in_flight - (sent - answered), count - sent)
            plain.sendall(request * more)
            sent += more
        read = plain.recv_into(room[filled:])
        if not read:
            raise ConnectionError("the node closed the connection")
        filled += read
        at = 0
        while filled - at >= 4:
            size = 4 + int.from_bytes(room[at : at + 4], "big")
            if filled - at < size:
                break
            at += size
            answered += 1
            total += size
        room[: filled - at] = room[at:filled]
        filled -= at
    return total


def _cpu_s(cluster: LocalCluster, *nodes: int) -> float:
    """Return the processor time that nodes have used, by default the first."""
    used = 0.0
    for node in nodes or (1,):
        mark = cluster.nodes[node].mark
        use = None if mark is None else use_of(mark)
        if use is None:
            raise RuntimeError(f"node {node} ended during the measurement: {cluster.nodes[node].last_words()}")
        used += use.cpu_s
    return used
