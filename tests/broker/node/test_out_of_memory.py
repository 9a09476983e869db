"""Memory runs out: a sentence, a non-zero exit, and every acknowledged record still there."""

from __future__ import annotations

import asyncio
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from tidelog import Consumer, Producer, TopicPartition
from tidelog.broker.node.supervisor import Supervisor, out_of_memory
from tidelog.cli.local.cluster import LocalCluster
from tidelog.client.errors import RequestTimedOutError

MIB = 2**20
ROOM = 16 * MIB
"""Memory that a node may take beyond its use when it begins to serve: too little for a large request, enough for gRPC's
own needs, whose library aborts a process that has no memory."""
LARGE = 20 * MIB


def wrapped(cause: Exception) -> Exception:
    error = RuntimeError("an append failed")
    error.__cause__ = cause
    return error


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    found = LocalCluster.create(tmp_path / "cluster", nodes=1, settings={"message.max.bytes": str(2 * LARGE)})
    found.start()
    try:
        found.wait_ready()
        yield found
    finally:
        found.kill(1)


def send_with_the_sdk(bootstrap: str) -> None:
    with (
        Producer(
            bootstrap, max_request_size=2 * LARGE, delivery_timeout_ms=3_000, request_timeout_ms=2_000
        ) as producer,
        pytest.raises(RequestTimedOutError),
    ):
        producer.send("t", b"x" * LARGE, partition=0).result(30)


def send_with_a_kafka_client(bootstrap: str) -> None:
    async def send() -> None:
        settings = {"max_request_size": 2 * LARGE, "request_timeout_ms": 3_000}
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
            with pytest.raises(KafkaError):
                await producer.send_and_wait("t", b"x" * LARGE, partition=0)

    asyncio.run(send())


@pytest.mark.parametrize("send", [send_with_the_sdk, send_with_a_kafka_client])
def test_a_node_without_memory_says_so_and_keeps_what_it_acknowledged(cluster: LocalCluster, send: object) -> None:
    node = cluster.node(1)
    with Producer(cluster.bootstrap) as producer:
        acknowledged = [producer.send_and_wait("t", b"%d" % number, partition=0).offset for number in range(20)]
    assert acknowledged == list(range(20))
    limit_memory(node.pid, ROOM)
    assert callable(send)
    send(cluster.bootstrap)
    assert node.wait_gone(10)
    (last, *earlier) = reversed(node.log_path.read_text().splitlines())
    assert " CRITICAL " in last
    assert "the node is stopping: out of memory" in last
    assert not any("CRITICAL" in line or "Traceback" in line for line in earlier)
    cluster.start()
    cluster.wait_ready()
    assert values_in(cluster.bootstrap)[:20] == [b"%d" % number for number in range(20)]


def test_a_node_that_a_library_aborts_leaves_a_stack_and_keeps_what_it_acknowledged(cluster: LocalCluster) -> None:
    node = cluster.node(1)
    with Producer(cluster.bootstrap) as producer:
        assert producer.send_and_wait("t", b"first", partition=0).offset == 0
    limit_memory(node.pid, MIB // 2)
    send_with_the_sdk(cluster.bootstrap)
    assert node.wait_gone(10)
    assert "Fatal Python error: Aborted" in (node.directory / "server.err").read_text()
    cluster.start()
    cluster.wait_ready()
    assert values_in(cluster.bootstrap)[:1] == [b"first"]


def limit_memory(pid: int | None, room: int) -> None:
    assert pid is not None
    found = re.search(r"VmData:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    resource.prlimit(pid, resource.RLIMIT_DATA, (int(found[1]) * 1024 + room,) * 2)


def values_in(bootstrap: str) -> list[bytes | None]:
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        at = TopicPartition("t", 0)
        consumer.assign([at])
        end = consumer.end_offsets([at])[at]
        found: list[bytes | None] = []
        while consumer.position(at) < end:
            found += [record.value for record in consumer.poll(timeout=5.0)]
        return found


def limited(code: str, *arguments: str, room: int) -> subprocess.CompletedProcess[str]:
    """Run Python ``code`` in a process that may take ``room`` bytes more than it has after the imports."""
    first = (
        "import re, resource, sys; from tidelog import Producer; from tidelog.cli.root import run\n"
        "import tidelog.cli.commands.records.produce\n"
        "def limit(room):\n"
        "    data = int(re.search(r'VmData:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "    resource.setrlimit(resource.RLIMIT_DATA, (data + room,) * 2)\n"
    )
    command = [sys.executable, "-P", "-c", f"{first}room = {room}\n{code}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_a_command_without_memory_says_so(cluster: LocalCluster, tmp_path: Path) -> None:
    line = tmp_path / "line"
    with line.open("wb") as file:
        file.truncate(2**30)
    code = "limit(room); sys.exit(run(sys.argv[1:]))"
    done = limited(code, "produce", "t", "--file", str(line), "--bootstrap", cluster.bootstrap, room=100 * MIB)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("tidelog: out of memory")


def test_a_producer_without_memory_fails_its_records_instead_of_keeping_them_open(cluster: LocalCluster) -> None:
    code = (
        "producer = Producer(sys.argv[1], max_request_size=40_000_000)\n"
        "producer.send_and_wait('t', b'small', partition=0); large = b'x' * 20_000_000; limit(room)\n"
        "try: producer.send('t', large, partition=0).result(30)\n"
        "except MemoryError: sys.exit(17)"
    )
    done = limited(code, cluster.bootstrap, room=5 * MIB)
    assert done.returncode == 17, done.stderr


@pytest.mark.parametrize(
    "error", [MemoryError(), wrapped(MemoryError()), ValueError()], ids=["bare", "behind", "other"]
)
async def test_without_memory_a_node_that_stops_is_ended_before_it_marks_that_as_clean(error: Exception) -> None:
    heard: list[str] = []
    supervisor = Supervisor(lambda what, _: heard.append(what))
    held = asyncio.Event()

    async def work() -> None:
        try:
            await held.wait()
        finally:
            raise error

    supervisor.run("appending", work())
    await asyncio.sleep(0)
    await supervisor.stop()
    assert bool(heard) == out_of_memory(error)
