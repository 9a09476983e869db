"""A node as a process of its own: signals, exit codes, bad settings, and life under a memory limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_LEADER_EPOCH, NO_NODE, NO_OFFSET, BrokerEpoch, Offset, TopicId
from tidelog.proto.calls.api import ConfigEntry, CreateTopicsRequest, MetadataRequest, NewTopic
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.frames import (
    FetchPartition,
    FetchRequest,
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_fetch_request,
    encode_produce_request,
)
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.network import Address, CallTimeout, Connection, ConnectionLost, FrameStream, StreamKind
from tidelog.testing.ports import free_ports

START_TIMEOUT_S = 30.0
MIB = 2**20


class Process:
    """One node started by the command, with its own directory and ports."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
    ) -> None:
        self.arguments = arguments
        client, replication, controller, http = free_ports(4, random.Random())
        self.client = Address("127.0.0.1", client)
        self.http = Address("127.0.0.1", http)
        self.directory = directory
        self.config = directory / "node.properties"
        values = {
            "node.id": "1",
            "listeners": f"CLIENT://127.0.0.1:{client},REPLICATION://127.0.0.1:{replication},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "http.listener": f"HTTP://{self.http}",
            "log.dirs": str(directory / "data"),
            **(settings or {}),
        }
        self.config.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self.process: subprocess.Popen[bytes] | None = None
        self.output = directory / "output.txt"

    def start(self) -> None:
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidelog.cli.main", "server", "--config", str(self.config), *self.arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.output.read_text()
            try:
                with urllib.request.urlopen(f"http://{self.http}/ready", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.02)
        raise TimeoutError(self.output.read_text())

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=10) as answer:
            return str(answer.read(), "utf-8")

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(START_TIMEOUT_S)

    def memory_peak(self) -> int:
        assert self.process is not None
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_good_order(node: Process, number: signal.Signals) -> None:
    node.start()
    node.wait_ready()
    assert node.end(number) == 0
    assert (node.directory / "data" / ".kafka_cleanshutdown").exists()
    assert "Traceback" not in node.output.read_text(), node.output.read_text()


def test_it_starts_again_after_kill_9(node: Process) -> None:
    for _ in range(2):
        node.start()
        node.wait_ready()
        assert node.end(signal.SIGKILL) == -signal.SIGKILL
        assert not (node.directory / "data" / ".kafka_cleanshutdown").exists()


def test_a_signal_while_it_starts_ends_it(tmp_path: Path) -> None:
    node = Process(tmp_path, {"process.roles": "broker", "controller.quorum.voters": "9@127.0.0.1:1"})
    text = node.config.read_text()
    node.config.write_text(re.sub(r",CONTROLLER://\S+", "", text))
    cluster = ("--cluster-id", "AAAAAAAAAAAAAAAAAAAAAQ")
    with node.output.open("ab") as out:
        node.process = subprocess.Popen(
            [sys.executable, "-m", "tidelog.cli.main", "server", "--config", str(node.config), *cluster],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (tmp_path / "data" / "meta.properties").exists():
        assert time.monotonic() < deadline, node.output.read_text()
        assert node.process.poll() is None, node.output.read_text()
        time.sleep(0.01)
    assert node.end(signal.SIGTERM) == 0
    assert "Traceback" not in node.output.read_text(), node.output.read_text()


async def test_a_node_whose_metadata_cannot_be_written_ends_with_an_error(node: Process) -> None:
    node.start()
    node.wait_ready()
    assert node.process is not None
    # From here on every write past the first byte of a file fails with EFBIG.
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (1, 1))
    connection = GrpcNetwork().connect(node.client)
    try:
        await connection.call(CreateTopicsRequest((NewTopic("t", 1, 1),), timeout_ms=5_000), timeout_s=10)
    except (ConnectionLost, CallTimeout):
        pass
    finally:
        await connection.close()
    # What it says of it goes to a file as well, and is lost.
    assert await asyncio.to_thread(node.process.wait, START_TIMEOUT_S) == 1


def refused(node: Process) -> str:
    """Start a node that must not start; return what it said."""
    node.start()
    assert node.process is not None
    assert node.process.wait(START_TIMEOUT_S) not in (0, -signal.SIGKILL)
    said = node.output.read_text()
    assert "Traceback" not in said, said
    return said


def test_a_taken_port_is_one_clear_line(node: Process, tmp_path: Path) -> None:
    node.start()
    node.wait_ready()
    (tmp_path / "second").mkdir()
    second = Process(tmp_path / "second")
    second.config.write_text(re.sub(r"CLIENT://127\.0\.0\.1:\d+", f"CLIENT://{node.client}", second.config.read_text()))
    assert str(node.client.port) in refused(second)
    node.wait_ready()


def test_a_typo_in_the_file_names_line_and_meaning(tmp_path: Path) -> None:
    node = Process(tmp_path, {"log.retention.mss": "5"})
    said = refused(node)
    assert "line 5" in said
    assert "log.retention.ms" in said


def test_a_node_that_lets_anybody_in_starts_only_if_that_is_meant(tmp_path: Path) -> None:
    node = Process(tmp_path)
    node.config.write_text(node.config.read_text().replace("CLIENT://127.0.0.1", "CLIENT://0.0.0.0"))
    with node.config.open("a") as config:
        config.write(f"advertised.listeners=CLIENT://{node.client}\n")
    said = refused(node)
    assert f"found CLIENT://0.0.0.0:{node.client.port} (PLAINTEXT)" in said
    assert "allow.anonymous=true" in said
    assert not (tmp_path / "data").exists(), "nothing was formatted"
    with node.config.open("a") as config:
        config.write("listener.name.client.allow.anonymous=true\n")
    node.start()
    node.wait_ready()
    node.end(signal.SIGTERM)


def test_a_directory_of_another_node_is_refused(node: Process) -> None:
    node.start()
    node.wait_ready()
    node.end(signal.SIGTERM)
    node.config.write_text(node.config.read_text().replace("node.id=1", "node.id=4"))
    assert "expected a directory of node 4, found one of node 1" in refused(node)


# --- Memory ------------------------------------------------------------------------------------------


QUEUED_MAX = 16 * MIB
DATA_LIMIT = 1024 * MIB
"""Less than what is pushed. The stacks of threads count towards it, 8 MiB each, and gRPC starts more of them where they
get little of the processor."""
"""Private memory the node may have, of which 300 MiB are the stacks and arenas of an idle one."""


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Process]:
    """A node under a hard limit: one allocation too many and it dies."""
    made = Process(tmp_path, {"queued.max.request.bytes": str(QUEUED_MAX)})
    made.start()
    made.wait_ready()
    assert made.process is not None
    resource.prlimit(made.process.pid, resource.RLIMIT_DATA, (DATA_LIMIT, DATA_LIMIT))
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()


async def topic_on(connection: Connection, name: str, **configs: str) -> TopicId:
    entries = tuple(ConfigEntry(key.replace("_", "."), value) for key, value in configs.items())
    made = await connection.call(CreateTopicsRequest((NewTopic(name, 1, 1, (), entries),)), timeout_s=30)
    assert made.topics[0].error is ErrorCode.NONE, made
    known = await connection.call(MetadataRequest((name,)), timeout_s=30)
    assert known.topics[0].partitions[0].leader == 1
    return made.topics[0].topic_id


async def starve(node: Process) -> None:
    """Give a node a tenth of a second of the processor, then none for half a second."""
    assert node.process is not None
    while True:
        node.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(0.5)
        finally:
            node.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(("frames", "starved"), [(380, False), (80, True)])
async def test_producers_faster_than_the_disk_are_slowed_down(limited: Process, frames: int, starved: bool) -> None:
    """Four streams push 1.5 GiB at a topic that syncs every batch; unheld it would not fit the limit. A node that
    gets little of the processor holds no more: what gRPC reads ahead does not grow with the time until it is read."""
    streams, frame_bytes = 4, MIB
    network = GrpcNetwork()
    connection = network.connect(limited.client)
    topic = await topic_on(connection, "t", flush_messages="1", max_message_bytes=str(2 * MIB))
    records = bytes(encode_values([b"x" * 1000] * (frame_bytes // 1010), 1_700_000_000_000))
    request = ProduceRequest(-1, 120_000, [ProducePartition(topic, 0, records)])

    async def push(own: Connection) -> int:
        caller = FrameCaller(own, StreamKind.PRODUCE, in_flight_max=frames)
        try:
            answers = [caller.submit(lambda at: encode_produce_request(at, request)) for _ in range(frames)]
            done = [decode_produce_response(await answer)[1][0] for answer in answers]
        except ConnectionLost as error:
            assert limited.process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                limited.process.wait(2)
            error.add_note(f"the node ended with {limited.process.returncode}: {limited.output.read_text()[-2000:]}")
            raise
        finally:
            await caller.close()
            await own.close()
        return sum(answer.error is ErrorCode.NONE for answer in done)

    starving = asyncio.ensure_future(starve(limited) if starved else asyncio.sleep(0))
    try:
        stored = await asyncio.gather(*(push(network.connect(limited.client)) for _ in range(streams)))
    finally:
        starving.cancel()
        await asyncio.wait([starving])
    await connection.close()
    assert sum(stored) == streams * frames
    figures = limited.page("/metrics")
    peak = float(re.search(r"^tidelog_request_bytes_held_peak (\S+)", figures, re.MULTILINE)[1])  # type: ignore[index]
    waits = float(re.search(r"^tidelog_request_waits_total (\S+)", figures, re.MULTILINE)[1])  # type: ignore[index]
    assert waits > 0, "the bound was never reached: this test shows nothing"
    assert peak <= QUEUED_MAX + streams * 2 * frame_bytes
    assert limited.memory_peak() < 200 * MIB
    assert limited.end(signal.SIGTERM) == 0


async def test_consumers_that_do_not_read_cost_no_memory(limited: Process) -> None:
    """Forty streams ask for 8 MiB twenty times over and read nothing: 6 GiB of answers, were they made."""
    network = GrpcNetwork()
    connection = network.connect(limited.client)
    topic = await topic_on(connection, "t")
    records = bytes(encode_values([b"x" * 1000] * 900, 1_700_000_000_000))
    caller = FrameCaller(connection, StreamKind.PRODUCE)
    for _ in range(20):
        request = ProduceRequest(1, 30_000, [ProducePartition(topic, 0, records)])
        answer = await caller.submit(lambda at, request=request: encode_produce_request(at, request))  # type: ignore[misc]
        assert decode_produce_response(answer)[1][0].error is ErrorCode.NONE
    await caller.close()
    fetch = FetchRequest(
        NO_NODE,
        BrokerEpoch(-1),
        0,
        1,
        8 * MIB,
        False,
        [FetchPartition(topic, 0, NO_LEADER_EPOCH, Offset(0), NO_LEADER_EPOCH, NO_OFFSET, 8 * MIB)],
    )
    connections = [network.connect(limited.client) for _ in range(40)]
    opened: list[FrameStream] = []
    for own in connections:
        stream = await own.open(StreamKind.FETCH, timeout_s=30)
        opened.append(stream)
        for at in range(20):
            await stream.send(encode_fetch_request(at, fetch))
    asked = re.compile(r"^tidelog_request_waits_total ([1-9]\d*)", re.MULTILINE)
    async with asyncio.timeout(60):
        while asked.search(await asyncio.to_thread(limited.page, "/metrics")) is None:
            await asyncio.sleep(0.05)
    # They hold up no producer, and another consumer is served once they are gone.
    producer = FrameCaller(connection, StreamKind.PRODUCE)
    more = ProduceRequest(1, 30_000, [ProducePartition(topic, 0, records)])
    async with asyncio.timeout(100):
        answer = await producer.submit(lambda at: encode_produce_request(at, more))
    assert decode_produce_response(answer)[1][0].error is ErrorCode.NONE
    await producer.close()
    for each in opened:
        each.close()
    for own in connections:
        await own.close()
    reader = FrameCaller(connection, StreamKind.FETCH)
    async with asyncio.timeout(100):
        frame = await reader.submit(lambda at: encode_fetch_request(at, fetch))
    assert len(frame) > MIB
    await reader.close()
    await connection.close()
    assert limited.memory_peak() < 250 * MIB
    assert limited.end(signal.SIGTERM) == 0


def test_the_limit_would_be_felt(limited: Process) -> None:
    """The limit that the tests above rely on does bind a process of this machine."""
    limit = f"resource.setrlimit(resource.RLIMIT_DATA, ({DATA_LIMIT}, {DATA_LIMIT}))"
    code = f"import resource; {limit}; bytearray({DATA_LIMIT})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, env=dict(os.environ))
    assert b"MemoryError" in done.stderr
