"""The listener as a socket sees it: order, bounds, junk, and misbehaving clients."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker.kafka.wire.kafka_traffic import KafkaTraffic
from tidelog.broker.kafka.wire.limits import KafkaLimits
from tidelog.broker.node.node import Node
from tidelog.broker.notices import Notices
from tidelog.model.errors import ErrorCode
from tidelog.proto.kafka import fetch_codec, produce_codec
from tidelog.proto.kafka.headers import API_VERSIONS, is_flexible
from tidelog.proto.kafka.messages import decode_response, request_frame
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.encoder import encode_values
from tidelog.testing.cluster import Cluster

PRODUCE, FETCH, METADATA, HEARTBEAT = 0, 1, 3, 12
TIMEOUT_S = 20.0
NOTICES = "tidelog.broker.notices"
_correlations = itertools.count(1)


class Peer:
    """A socket that says what it is told to."""

    def __init__(self, cluster: Cluster, node: int = 0) -> None:
        host, _, port = cluster.kafka_bootstrap.split(",")[node].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, bytes]:
        """The next answer: correlation id and the rest."""
        (size,) = struct.unpack(">i", self.read(4))
        data = self.read(size)
        return struct.unpack_from(">i", data)[0], data[4:]

    def ask(self, api_key: int, version: int, values: Mapping[str, Any]) -> Any:
        number, frame = request(api_key, version, values)
        self.send(frame)
        correlation, data = self.answer()
        assert correlation == number
        return response(api_key, version, data)

    def read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self.socket.recv(min(size - len(found), 1 << 20))
            assert piece, "the connection was closed instead of an answer"
            found += piece
        return bytes(found)

    def is_ended(self) -> bool:
        """Whether the node ends the connection, with an end and no reset, and without a word before it."""
        return self.socket.recv(1) == b""

    def close(self) -> None:
        self.socket.close()


def request(api_key: int, version: int, values: Mapping[str, Any]) -> tuple[int, bytes]:
    number = next(_correlations)
    return number, request_frame(api_key, version, number, values, b"peer")


def response(api_key: int, version: int, data: bytes) -> Any:
    tagged = is_flexible(api_key, version) and api_key != API_VERSIONS
    return decode_response(api_key, version, data[tagged:])


def produce_values(topic: str, records: bytes | None, acks: int = 1) -> dict[str, Any]:
    item = {"index": 0, "records": records}
    return {"acks": acks, "timeout": 5000, "topic_data": [{"name": topic, "partition_data": [item]}]}


def fetch_values(topic: str, offset: int = 0, wait_ms: int = 0, size: int = 1 << 20, **more: Any) -> dict[str, Any]:
    item = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": size}
    topics = [{"topic": topic, "topic_id": bytes(16), "partitions": [item]}]
    return {"max_wait": wait_ms, "min_bytes": 1, "max_bytes": size, "topics": topics, "session_epoch": -1, **more}


def batch(count: int = 1, size: int = 10, compression: Compression = Compression.NONE) -> bytes:
    return bytes(encode_values([bytes(size)] * count, 0, compression=compression))


@contextmanager
def peer(cluster: Cluster) -> Iterator[Peer]:
    with closing(Peer(cluster)) as made:
        yield made


@pytest.fixture(scope="module")
def topic(kafka_cluster: Cluster) -> str:
    kafka_cluster.create_topic("wire")
    return "wire"


@pytest.fixture
def node(kafka_cluster: Cluster) -> Node:
    return kafka_cluster.node(1)


def traffic(node: Node) -> KafkaTraffic:
    assert node.broker is not None
    return node.broker.kafka_traffic


def settle(cluster: Cluster, node: Node, *, connections: int = 0) -> None:
    """Wait until so many connections are left and nothing is held for any."""
    broker = node.broker
    assert broker is not None
    cluster.wait_for(lambda: broker.kafka_traffic.connections == connections, "connections closed")
    cluster.wait_for(lambda: broker.produce_budget.bytes_used == 0, "no bytes held")


# --- Clients that do not speak the protocol -------------------------------------------------------


def tls_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (tls_hello(), "a TLS hello"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"POST / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (
            struct.pack(">i", 100 * 2**20 + 1) + b"x",
            "expected a request of 8 to 104857600 bytes (socket.request.max.bytes)",
        ),
        (struct.pack(">i", -1), "found a length of -1"),
        (struct.pack(">i", 7), "found a length of 7"),
        (struct.pack(">ihhih", 10, 9999, 0, 1, -1), "found key 9999, version 0"),
        (
            struct.pack(">ihhihb", 11, METADATA, 99, 1, -1, 0),
            "a version of API 3 that ApiVersions names, found version 99",
        ),
        (
            struct.pack(">ihhihb", 11, PRODUCE, 99, 1, -1, 0),
            "a version of API 0 that ApiVersions names, found version 99",
        ),
        (struct.pack(">ihhih", 10, METADATA, 12, 1, -1), "expected a number of at most 32 bits, found no end of it"),
        (struct.pack(">ihhih", 10, HEARTBEAT, 0, 1, 77), "expected a client id within 10 bytes, found a length of 77"),
        (struct.pack(">ihhihh", 12, HEARTBEAT, 0, 1, -1, 77), "expected a string within"),
    ],
    # Without what is random in a TLS hello: two workers must give a test the same name.
    ids=lambda value: value[:11].decode("latin1") if isinstance(value, bytes) else "",
)
def test_junk_is_cut_off_cleanly_and_named_in_one_line(
    kafka_cluster: Cluster,
    node: Node,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    first: bytes,
    said: str,
) -> None:
    assert node.broker is not None
    monkeypatch.setattr(node.broker._servers["KAFKA"], "_notices", Notices())  # no line is held back for earlier ones
    before = traffic(node).malformed
    caplog.set_level(logging.WARNING, NOTICES)
    with peer(kafka_cluster) as one:
        address = ":".join(map(str, one.socket.getsockname()))
        one.send(first)
        assert one.is_ended()
        kafka_cluster.wait_for(lambda: traffic(node).malformed == before + 1, "counted")
    lines = [record.getMessage() for record in caplog.records if record.name == NOTICES]
    assert len(lines) == 1
    assert address in lines[0]
    assert said in lines[0]
    settle(kafka_cluster, node)


def test_log_lines_about_junk_are_few_however_much_of_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, NOTICES)
    notices = Notices()
    for number in range(1000):
        notices.say(5.0 + number / 1001, "KAFKA", "peer", "junk")
    notices.say(7.0, "KAFKA", "peer", "junk")
    assert len(caplog.records) == 12
    assert "990 more peers" in caplog.records[10].getMessage()


def test_what_was_right_before_the_junk_is_answered(kafka_cluster: Cluster, topic: str) -> None:
    with peer(kafka_cluster) as one:
        number, frame = request(PRODUCE, 9, produce_values(topic, batch()))
        one.send(frame + b"\0\0\0\x01x")
        assert one.answer()[0] == number
        assert one.is_ended()


def test_junk_does_not_disturb_others(kafka_cluster: Cluster, topic: str) -> None:
    with peer(kafka_cluster) as good, peer(kafka_cluster) as bad:
        bad.send(b"\0\0\0\x40" + b"\xff" * 64)
        assert bad.is_ended()
        assert good.ask(API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"}).error_code == 0


# --- What every client asks first -----------------------------------------------------------------


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(kafka_cluster: Cluster) -> None:
    with peer(kafka_cluster) as one:
        one.send(struct.pack(">ihhihb", 11 + 20, API_VERSIONS, 99, 7, -1, 0) + bytes(20))
        correlation, data = one.answer()
        found = decode_response(API_VERSIONS, 0, data)
        assert (correlation, found.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
        assert {key.api_key for key in found.api_keys} >= {PRODUCE, FETCH, METADATA, API_VERSIONS}
        again = one.ask(API_VERSIONS, 4, {"client_software_name": "a", "client_software_version": "1"})
    ranges = {key.api_key: (key.min_version, key.max_version) for key in again.api_keys}
    assert ranges[PRODUCE] == (0, produce_codec.MOST)
    assert ranges[FETCH] == (fetch_codec.LEAST, fetch_codec.MOST)
    assert [tuple(level) for level in again.finalized_features] == [
        ("group.version", 1, 1),
        ("metadata.version", 2, 2),
        ("transaction.version", 2, 2),
    ]


def test_clients_without_a_name_are_told_so(kafka_cluster: Cluster) -> None:
    with peer(kafka_cluster) as one:
        assert one.ask(API_VERSIONS, 3, {}).error_code == ErrorCode.INVALID_REQUEST


# --- Order ------------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_requests_whatever_they_wait_for(kafka_cluster: Cluster, topic: str) -> None:
    kafka_cluster.create_topic("empty")
    with peer(kafka_cluster) as one:
        wanted = [
            (FETCH, 12, fetch_values("empty", wait_ms=300)),
            (METADATA, 12, {"topics": None}),
            (PRODUCE, 9, produce_values(topic, batch())),
            (API_VERSIONS, 0, {}),
            (FETCH, 4, fetch_values("empty", wait_ms=100)),
            (PRODUCE, 3, produce_values(topic, batch())),
        ]
        sent = [request(*each) for each in wanted]
        one.send(b"".join(frame for _, frame in sent))
        for (number, _), (api_key, version, _) in zip(sent, wanted, strict=True):
            correlation, data = one.answer()
            assert correlation == number
            response(api_key, version, data)


def test_pipelined_produces_are_appended_in_order(kafka_cluster: Cluster) -> None:
    kafka_cluster.create_topic("ordered")
    count = 500
    with peer(kafka_cluster) as one:
        sent = [request(PRODUCE, 9, produce_values("ordered", batch())) for _ in range(count)]
        one.send(b"".join(frame for _, frame in sent))
        for offset, (number, _) in enumerate(sent):
            correlation, data = one.answer()
            (item,) = response(PRODUCE, 9, data).responses[0].partition_responses
            assert (correlation, item.error_code, item.base_offset) == (number, 0, offset)


@pytest.mark.parametrize("step", [1, 3, 7])
def test_requests_may_arrive_in_any_pieces(kafka_cluster: Cluster, topic: str, step: int) -> None:
    frames = b"".join(request(PRODUCE, 9, produce_values(topic, batch()))[1] for _ in range(3))
    with peer(kafka_cluster) as one:
        one.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(frames), step):
            one.send(frames[at : at + step])
        for _ in range(3):
            _, data = one.answer()
            assert response(PRODUCE, 9, data).responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("size", [65_000, 65_536, 70_000, 900_000])
def test_large_requests_between_small_ones(kafka_cluster: Cluster, size: int) -> None:
    name = f"large-{size}"
    kafka_cluster.create_topic(name)
    records = [batch(), batch(1, size), batch(), batch(1, size), batch()]
    with peer(kafka_cluster) as one:
        one.send(b"".join(request(PRODUCE, 9, produce_values(name, each))[1] for each in records))
        for offset in range(len(records)):
            _, data = one.answer()
            (item,) = response(PRODUCE, 9, data).responses[0].partition_responses
            assert (item.error_code, item.base_offset) == (0, offset)
        found = one.ask(FETCH, 12, fetch_values(name, size=1 << 23))
    (part,) = found.responses[0].partitions
    assert [each.record_count for each in split_batches(part.records)] == [1] * 5
    assert len(part.records) == sum(map(len, records))


# --- Bounds -----------------------------------------------------------------------------------------


def fill(cluster: Cluster, name: str, mib: int) -> int:
    """Make a topic of so many MiB; returns its records."""
    cluster.create_topic(name)
    with peer(cluster) as one:
        for _ in range(mib):
            answer = one.ask(PRODUCE, 9, produce_values(name, batch(100, 10_000)))
            assert answer.responses[0].partition_responses[0].error_code == 0
    return 100 * mib


def pinned(node: Node) -> int:
    assert node.broker is not None
    return node.broker.logs._pool.pinned


def test_a_reader_that_stops_costs_no_memory_and_holds_up_nobody(
    kafka_cluster: Cluster, node: Node, topic: str
) -> None:
    fill(kafka_cluster, "slow", 8)
    before = pinned(node)
    with peer(kafka_cluster) as slow, peer(kafka_cluster) as quick:
        frames = [request(FETCH, 12, fetch_values("slow", size=1 << 23)) for _ in range(30)]
        slow.send(b"".join(frame for _, frame in frames))
        kafka_cluster.wait_for(lambda: pinned(node) > before, "answers under way")
        for _ in range(20):
            assert quick.ask(PRODUCE, 9, produce_values(topic, batch())).responses[0].partition_responses
        assert node.broker is not None
        assert node.broker.fetch_budget.bytes_used == 0
        for number, _ in frames:
            correlation, data = slow.answer()
            (part,) = response(FETCH, 12, data).responses[0].partitions
            assert (correlation, len(split_batches(part.records))) == (number, 8)
        kafka_cluster.wait_for(lambda: pinned(node) == before, "files let go")
        slow.send(frames[0][1] * 30)
        kafka_cluster.wait_for(lambda: pinned(node) > before, "answers under way")
    settle(kafka_cluster, node)
    assert pinned(node) == before


def test_records_are_sent_whole_though_their_topic_is_deleted_meanwhile(kafka_cluster: Cluster, node: Node) -> None:
    fill(kafka_cluster, "doomed", 8)
    before = pinned(node)
    with peer(kafka_cluster) as slow, kafka_cluster.admin() as admin:
        frames = [request(FETCH, 12, fetch_values("doomed", size=1 << 23)) for _ in range(4)]
        slow.send(b"".join(frame for _, frame in frames))
        kafka_cluster.wait_for(lambda: pinned(node) > before, "answers under way")
        admin.delete_topics(["doomed"])
        kafka_cluster.wait_for(lambda: "doomed" not in node.view.image.topic_ids, "the topic is gone")
        for _ in frames:
            _, data = slow.answer()
            (part,) = response(FETCH, 12, data).responses[0].partitions
            if part.error_code:
                assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                assert all(each.crc_ok() for each in split_batches(part.records))
        kafka_cluster.wait_for(lambda: pinned(node) == before, "files let go")


@pytest.mark.skipif(not hasattr(os, "sendfile"), reason="the system cannot send from files: records are read there")
def test_records_leave_their_file_by_sendfile(
    kafka_cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, straight from the segment; only what surrounds them passes through this process."""
    fill(kafka_cluster, "straight", 2)
    assert node.broker is not None
    log = next(found for found in node.broker.logs.logs() if found.topic == "straight")
    segments = {os.stat(path).st_ino for path in Path(log.directory).glob("*.log")}
    sent: list[tuple[int, int]] = []
    real = os.sendfile

    def sendfile(to: int, source: int, offset: int, count: int) -> int:
        done = real(to, source, offset, count)
        sent.append((os.fstat(source).st_ino, done))
        return done

    monkeypatch.setattr(os, "sendfile", sendfile)
    traffic = node.broker.kafka_traffic
    before = traffic.bytes_from_files
    with peer(kafka_cluster) as one:
        (part,) = one.ask(FETCH, 12, fetch_values("straight", size=1 << 23)).responses[0].partitions
    assert len(part.records) == log.size_bytes > 1 << 20
    assert all(each.crc_ok() for each in split_batches(part.records))
    assert {inode for inode, _ in sent} <= segments
    assert sum(count for _, count in sent) == len(part.records)
    kafka_cluster.wait_for(lambda: traffic.bytes_from_files - before == len(part.records), "counted")


def test_when_too_many_files_are_held_records_are_copied_and_counted(
    kafka_cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(kafka_cluster, "crowd", 8)
    broker = node.broker
    assert broker is not None
    monkeypatch.setattr(broker.logs._pool, "open_max", 0)
    sent_before = broker.kafka_traffic.bytes_from_files
    with peer(kafka_cluster) as slow:
        frames = [request(FETCH, 12, fetch_values("crowd", size=1 << 23)) for _ in range(30)]
        slow.send(b"".join(frame for _, frame in frames))
        kafka_cluster.wait_for(lambda: broker.fetch_budget.bytes_used > 0, "copies are counted")
        assert broker.fetch_budget.bytes_used <= broker.fetch_budget.bytes_max + (8 << 20)
        for _ in frames:
            _, data = slow.answer()
            assert len(split_batches(response(FETCH, 12, data).responses[0].partitions[0].records)) == 8
        kafka_cluster.wait_for(lambda: broker.fetch_budget.bytes_used == 0, "copies are given back")
    assert broker.kafka_traffic.bytes_from_files == sent_before


def test_a_length_alone_costs_nothing_and_what_came_is_counted(kafka_cluster: Cluster, node: Node) -> None:
    broker = node.broker
    assert broker is not None
    with peer(kafka_cluster) as one:
        one.send(struct.pack(">i", 100 * 2**20) + bytes(1000))
        kafka_cluster.wait_for(lambda: broker.produce_budget.bytes_used > 0, "counted")
        assert broker.produce_budget.bytes_used <= 1 << 20
        one.send(bytes(3 << 20))
        kafka_cluster.wait_for(lambda: broker.produce_budget.bytes_used >= 3 << 20, "counted")
        assert broker.produce_budget.bytes_used <= 7 << 20
    settle(kafka_cluster, node)


def test_calls_larger_than_their_bound_are_refused(
    kafka_cluster: Cluster, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with peer(kafka_cluster) as one:
        one.ask(API_VERSIONS, 0, {})
        size = KafkaLimits().call_bytes_max + 1
        one.send(struct.pack(">ihhih", size, METADATA, 1, 1, -1))
        piece = bytes(1 << 20)
        for at in range(10, size, len(piece)):
            one.send(piece[: size - at])
        assert one.is_ended()
    assert f"expected a request of API {METADATA} of at most {size - 1} bytes" in caplog.text
    settle(kafka_cluster, node)


def test_no_more_requests_of_a_connection_are_begun_than_may_be_unanswered() -> None:
    with Cluster(config={"queued.max.requests": "2"}) as cluster:
        cluster.create_topic("t")
        begun = traffic(cluster.node(1)).requests
        with peer(cluster) as one, peer(cluster) as other:
            frames = [request(FETCH, 12, fetch_values("t", wait_ms=2_000)) for _ in range(3)]
            one.send(b"".join(frame for _, frame in frames))
            cluster.wait_for(lambda: begun[FETCH] >= 2, "two are begun")
            other.ask(API_VERSIONS, 0, {})
            assert begun[FETCH] == 2
            assert [one.answer()[0] for _ in frames] == [number for number, _ in frames]
            assert begun[FETCH] == 3


def test_connections_beyond_the_bound_are_closed_and_those_that_stand_still_too() -> None:
    config = {"max.connections": "2", "connections.max.idle.ms": "700"}
    with Cluster(config=config) as cluster:
        cluster.create_topic("t")
        counters = traffic(cluster.node(1))
        with peer(cluster) as waiting, peer(cluster) as half:
            waiting.ask(API_VERSIONS, 0, {})
            half.ask(API_VERSIONS, 0, {})
            with peer(cluster) as third:
                assert third.is_ended()
            assert counters.refused == 1
            # One sends half a request and no more; the other waits for an answer all that time and longer.
            half.send(b"\0\0\0\x40abc")
            number, frame = request(FETCH, 12, fetch_values("t", wait_ms=2_000))
            waiting.send(frame)
            assert half.is_ended()
            assert counters.idle_closed == 1
            assert waiting.answer()[0] == number
            assert waiting.is_ended()
        cluster.wait_for(lambda: counters.connections == 0, "both are gone")
        assert counters.idle_closed == 2


def test_a_reader_that_stands_still_in_the_midst_of_an_answer_is_closed() -> None:
    with Cluster(config={"connections.max.idle.ms": "700"}) as cluster:
        fill(cluster, "slow", 8)
        counters = traffic(cluster.node(1))
        with peer(cluster) as slow:
            slow.send(b"".join(request(FETCH, 12, fetch_values("slow", size=1 << 23))[1] for _ in range(8)))
            cluster.wait_for(lambda: counters.idle_closed == 1, "the slow reader is closed")
        assert pinned(cluster.node(1)) == 0


def test_a_node_that_goes_away_ends_its_connections_and_answers_what_waits() -> None:
    with Cluster(2, controllers=1) as cluster:
        cluster.create_topic("t", replication_factor=1)
        leader = cluster.leader_of("t", 0)
        assert leader is not None
        gone = 2
        with closing(Peer(cluster, node=gone - 1)) as one:
            one.ask(API_VERSIONS, 0, {})
            one.send(request(FETCH, 12, fetch_values("t", wait_ms=30_000))[1])
            cluster.kill(gone)
            try:
                while one.socket.recv(1 << 16):
                    pass
            except ConnectionResetError:
                pass


@pytest.mark.parametrize("size", [60_000, 200_000])
def test_while_followers_stay_away_producers_wait_outside_and_others_do_not(size: int) -> None:
    config = {
        "queued.max.request.bytes": "200000",
        "replica.lag.time.max.ms": "60000",
        "broker.session.timeout.ms": "60000",
    }
    count = 30
    with Cluster(2, controllers=1, config=config) as cluster:
        cluster.create_topic("t", replication_factor=2)
        cluster.wait_for_isr("t", 0, 2)
        leader = cluster.leader_of("t", 0)
        assert leader is not None
        budget = cluster.node(leader).broker.produce_budget  # type: ignore[union-attr]
        cluster.partition(1, 2)
        with closing(Peer(cluster, leader - 1)) as one, closing(Peer(cluster, leader - 1)) as other:
            one.socket.setblocking(False)
            frames = [request(PRODUCE, 9, produce_values("t", batch(1, size), acks=-1)) for _ in range(count)]
            waiting = memoryview(b"".join(frame for _, frame in frames))

            def sent_as_far_as_it_goes() -> bool:
                nonlocal waiting
                try:
                    waiting = waiting[one.socket.send(waiting) :]
                except BlockingIOError:
                    pass
                return budget.full

            cluster.wait_for(sent_as_far_as_it_goes, "the budget is used up")
            late, frame = request(PRODUCE, 9, produce_values("t", batch(), acks=-1))
            other.send(frame)
            assert budget.bytes_used <= 200_000 + size + 2 * 65_536
            with closing(Peer(cluster, leader - 1)) as asking:
                assert asking.ask(METADATA, 12, {"topics": None}).topics
            assert budget.full
            cluster.heal()
            one.socket.settimeout(TIMEOUT_S)
            one.send(bytes(waiting))
            for number, _ in frames:
                correlation, data = one.answer()
                (item,) = response(PRODUCE, 9, data).responses[0].partition_responses
                assert (correlation, item.error_code) == (number, 0)
            assert other.answer()[0] == late
        cluster.wait_for(lambda: budget.bytes_used == 0, "everything is given back")
