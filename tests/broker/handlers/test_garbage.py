"""Garbage on every port, and malformed frames and batches: refused, and nothing dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicId
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.frames import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.proto.transport.network import Address, ConnectionLost, StreamKind
from tidelog.testing.async_cluster import GRPC, AsyncCluster

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(scope="module")
def rng() -> random.Random:
    return random.Random(5)


@pytest.fixture
async def cluster() -> AsyncIterator[AsyncCluster]:
    async with AsyncCluster(1, transport=GRPC, config={"http.listener": "HTTP://127.0.0.1:0"}) as running:
        await running.create_topic("t")
        yield running


async def throw(address: Address, data: bytes) -> None:
    """Write to a port and read until the peer hangs up or says nothing more."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(data)
        await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(2):
            await reader.read()
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()


async def test_garbage_on_each_port_harms_nobody(cluster: AsyncCluster, rng: random.Random) -> None:
    node = cluster.nodes[NodeId(1)]
    config = node.config
    assert node.http_address is not None
    ports = [Address(found.host, found.port) for found in config.listeners] + [node.http_address]
    assert len(ports) == 5
    pieces = [
        b"\x00" * 64,
        rng.randbytes(4096),
        b"GET / HTTP/1.1\r\n\r\n",
        HTTP2_PREFACE + rng.randbytes(512),
        HTTP2_PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + rng.randbytes(64),
        b"\x00\x00\x00\x2f\x00\x12\x00\x03" + b"kafka-client" * 3,
    ]
    await asyncio.gather(*(throw(port, piece) for port in ports for piece in pieces))
    async with cluster.producer() as producer:
        assert (await producer.send_and_wait("t", b"still here")).offset == 0
    assert cluster.failures == []


@pytest.mark.parametrize("kind", [StreamKind.PRODUCE, StreamKind.FETCH, StreamKind.REPLICA_FETCH])
async def test_garbage_frames_end_their_stream_with_a_reason(
    cluster: AsyncCluster, kind: StreamKind, rng: random.Random
) -> None:
    node = cluster.nodes[NodeId(1)]
    listener = next(found for found in node.config.listeners if found.name == "REPLICATION")
    connection = cluster.client_network().connect(Address(listener.host, listener.port))
    for frame in (b"", b"\x01", b"\x07" + bytes(60), rng.randbytes(300)):
        stream = await connection.open(kind, timeout_s=10)
        await stream.send((frame,))
        with pytest.raises(ConnectionLost, match=r"expected|ends early|cannot be read|runs past"):
            await stream.receive()
        stream.close()
    await connection.close()
    assert cluster.failures == []


def damaged(data: bytearray, at: int, change: int = 0x55) -> bytes:
    copy = bytearray(data)
    copy[at] ^= change
    return bytes(copy)


GOOD = encode_values([b"x" * 100] * 5, 1_700_000_000_000)
BATCHES = {
    "flipped payload": (damaged(GOOD, len(GOOD) - 3), ErrorCode.CORRUPT_MESSAGE),
    "wrong magic": (damaged(GOOD, 16), ErrorCode.CORRUPT_MESSAGE),
    "cut short": (bytes(GOOD[:-7]), ErrorCode.CORRUPT_MESSAGE),
    "nothing": (b"", ErrorCode.INVALID_RECORD),
    "random": (random.Random(1).randbytes(500), ErrorCode.CORRUPT_MESSAGE),
    "too large": (bytes(encode_values([b"x" * 100_000] * 20, 1_700_000_000_000)), ErrorCode.MESSAGE_TOO_LARGE),
}


async def produce(cluster: AsyncCluster, records: bytes, topic_id: TopicId | None = None) -> ProducedPartition:
    node = cluster.nodes[NodeId(1)]
    assert node.client_address is not None
    topic = cluster.image.topic("t")
    assert topic is not None
    connection = cluster.client_network().connect(node.client_address)
    caller = FrameCaller(connection, StreamKind.PRODUCE)
    request = ProduceRequest(1, 5000, [ProducePartition(topic_id or topic.topic_id, 0, records)])
    try:
        frame = await caller.submit(lambda correlation: encode_produce_request(correlation, request))
        return decode_produce_response(frame)[1][0]
    finally:
        await caller.close()
        await connection.close()


@pytest.mark.parametrize("what", BATCHES)
async def test_a_bad_batch_is_refused_and_not_stored(cluster: AsyncCluster, what: str) -> None:
    records, code = BATCHES[what]
    answer = await produce(cluster, records)
    assert answer.error is code
    assert "expected" in answer.error_message
    assert (await produce(cluster, bytes(GOOD))).base_offset == 0, "nothing was stored before"


async def test_an_unknown_codec_is_refused(cluster: AsyncCluster) -> None:
    batch = encode_values([b"x"] * 5, 1_700_000_000_000, compression=Compression.GZIP)
    answer = await produce(cluster, with_codec(batch, 6))
    assert answer.error is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert "expected" in answer.error_message


async def test_an_unknown_topic_id_is_said(cluster: AsyncCluster) -> None:
    answer = await produce(cluster, bytes(GOOD), TopicId(b"?" * 16))
    assert answer.error is ErrorCode.UNKNOWN_TOPIC_ID


def with_codec(batch: bytearray, codec: int) -> bytes:
    """The same batch with another codec number in its attributes, and a CRC that fits."""
    from crc32c import crc32c

    copy = bytearray(batch)
    copy[22] = (copy[22] & ~7) | codec
    copy[17:21] = crc32c(bytes(copy[21:])).to_bytes(4, "big")
    return bytes(copy)
