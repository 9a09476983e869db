"""Requests that are well formed and absurd, at every listener: each is answered or refused, and the node lives.

A handler that raises takes its node down, so this finds what a handler forgot to expect.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import random
import types
import typing
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from tidelog.model.buffer import Buffer
from tidelog.model.ids import BrokerEpoch, LeaderEpoch, NodeId, Offset, TopicId
from tidelog.proto.calls.convert import BadMessage, from_proto, to_proto
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.table import CALLS
from tidelog.proto.calls.user_api import SaslAuthenticateRequest
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import (
    FetchPartition,
    FetchRequest,
    ProducePartition,
    ProduceRequest,
    encode_fetch_request,
    encode_produce_request,
)
from tidelog.proto.transport.grpc_wire import SERVICE
from tidelog.proto.transport.network import Address, CallTimeout, Connection, ConnectionLost, Frame, StreamKind
from tidelog.testing.async_cluster import GRPC, AsyncCluster

NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 7, 1000, 2**31 - 1, 2**63 - 1)
TEXTS = (
    "",
    "t",
    "t",
    "1",
    "topic",
    "broker",
    "set",
    "retention.ms",
    "..",
    "a b",
    "x" * 300,
    "\x00",
    "é\u2028",
    "9" * 40,
)
ROUNDS = 25


def absurd(kind: object, rng: random.Random, known: bytes) -> Any:
    """A value of a declared type, drawn from its edges."""
    kind = bytes if kind == Buffer else getattr(kind, "__supertype__", kind)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return absurd(rng.choice(typing.get_args(kind)), rng, known)
    if origin is tuple:
        return tuple(absurd(typing.get_args(kind)[0], rng, known) for _ in range(rng.choice((0, 1, 1, 2))))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{f.name: absurd(hints[f.name], rng, known) for f in dataclasses.fields(kind)})  # type: ignore[operator]
    if kind is type(None):
        return None
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return rng.choice(list(kind))
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        return rng.choice(NUMBERS)
    if kind is float:
        return rng.choice((0.0, -1.0, float("inf"), float("nan")))
    if kind is str:
        return rng.choice(TEXTS)
    if kind is bytes:
        return rng.choice((b"", b"?", known, bytes(16), b"?" * 16, b"?" * 17))
    raise AssertionError(f"what is a {kind}?")


def absurd_request(kind: type[Request[Any]], rng: random.Random, known: bytes) -> Request[Any]:
    """One that fits its fields on the wire and does not ask to wait for long."""
    while True:
        made = absurd(kind, rng, known)
        for name in ("timeout_ms", "wait_ms"):
            if hasattr(made, name):
                made = dataclasses.replace(made, **{name: rng.choice((-1, 0, 50))})
        try:
            to_proto(made)
        except ValueError:
            continue
        return typing.cast(Request[Any], made)


@pytest.fixture
async def cluster() -> AsyncIterator[AsyncCluster]:
    async with AsyncCluster(1, transport=GRPC) as running:
        await running.create_topic("t")
        yield running


def known_topic(cluster: AsyncCluster) -> bytes:
    topic = cluster.image.topic("t")
    return bytes(16) if topic is None else topic.topic_id


def listeners(cluster: AsyncCluster) -> list[Address]:
    config = cluster.nodes[NodeId(1)].config
    return [Address(found.host, found.port) for found in config.listeners if found not in config.kafka_listeners]


async def lives(cluster: AsyncCluster) -> None:
    assert cluster.failures == []
    async with cluster.producer() as producer:
        await producer.send_and_wait("alive", b"still here")
    assert cluster.failures == []


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
async def test_an_absurd_call_is_answered(cluster: AsyncCluster, kind: type[Request[Any]]) -> None:
    rng = random.Random(kind.__name__)
    connections = [cluster.client_network().connect(address) for address in listeners(cluster)]

    async def ask(connection: Connection, request: Request[Any]) -> None:
        try:
            await connection.call(request, timeout_s=2)
        except (ConnectionLost, CallTimeout) as error:
            assert "internal error" not in str(error), f"{request}: {error}"

    for _ in range(ROUNDS):
        request = absurd_request(kind, rng, known_topic(cluster))
        await asyncio.gather(*(ask(connection, request) for connection in connections))
        assert cluster.failures == [], request
    await lives(cluster)
    for connection in connections:
        await connection.close()


async def test_garbage_calls_are_refused_with_what_was_expected(cluster: AsyncCluster) -> None:
    rng = random.Random(3)
    for address in listeners(cluster):
        async with grpc.aio.insecure_channel(str(address)) as channel:
            for kind in CALLS:
                method: Any = channel.unary_unary(SERVICE + kind.__name__.removesuffix("Request"), None, None)
                data = next(found for _ in range(1000) if not readable(kind, found := rng.randbytes(200)))
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await method(data, timeout=5)
                if refused.value.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                    expected = "a message of a login" if kind is SaslAuthenticateRequest else f"a {kind.__name__}"
                    assert f"expected {expected}" in str(refused.value.details())
    await lives(cluster)


def readable(kind: type[Request[Any]], data: bytes) -> bool:
    try:
        from_proto(kind, data)
    except BadMessage:
        return False
    return True


def absurd_produce(rng: random.Random, known: TopicId) -> Frame:
    batch = bytearray(encode_values([b"x" * 50] * 3, 1_700_000_000_000))
    for _ in range(rng.choice((0, 0, 1, 3))):
        batch[rng.randrange(len(batch))] = rng.randrange(256)
    items = [
        ProducePartition(rng.choice((known, TopicId(bytes(16)))), rng.choice((0, 0, 1, -1, 2**31 - 1)), bytes(batch))
        for _ in range(rng.choice((0, 1, 1, 2)))
    ]
    return encode_produce_request(0, ProduceRequest(rng.choice((-1, 0, 1, 7, -9)), rng.choice((0, 50)), items))


def absurd_fetch(rng: random.Random, known: TopicId) -> Frame:
    items = [
        FetchPartition(
            rng.choice((known, TopicId(bytes(16)))),
            rng.choice((0, 0, 1, -1, 2**31 - 1)),
            LeaderEpoch(rng.choice((-1, 0, 5, -7))),
            Offset(rng.choice((0, 1, -1, 2**62, -(2**62)))),
            LeaderEpoch(rng.choice((-1, 0, 5, -7))),
            Offset(rng.choice((-1, 0, 2**62))),
            rng.choice((0, 1, 2**20, 2**32 - 1)),
        )
        for _ in range(rng.choice((0, 1, 1, 2)))
    ]
    return encode_fetch_request(
        0,
        FetchRequest(
            NodeId(rng.choice((-1, -1, 1, 2, 99, -5))),
            BrokerEpoch(rng.choice((-1, 0, 2**40))),
            rng.choice((0, 20)),
            rng.choice((0, 1, 2**32 - 1)),
            rng.choice((0, 1, 2**32 - 1)),
            rng.random() < 0.5,
            items,
            [(known, 0)] if rng.random() < 0.3 else [],
        ),
    )


@pytest.mark.parametrize("kind", [StreamKind.PRODUCE, StreamKind.FETCH, StreamKind.REPLICA_FETCH])
async def test_an_absurd_frame_is_answered_or_ends_its_stream_with_a_reason(
    cluster: AsyncCluster, kind: StreamKind
) -> None:
    rng = random.Random(kind.value)
    known = TopicId(known_topic(cluster))
    replication = next(found for found in cluster.nodes[NodeId(1)].config.listeners if found.name == "REPLICATION")
    connection = cluster.client_network().connect(Address(replication.host, replication.port))
    make = absurd_produce if kind is StreamKind.PRODUCE else absurd_fetch
    refused = 0
    for at in range(150):
        frame = b"".join(make(rng, known))
        if at % 3 == 0:  # and bytes that are changed on the way
            changed = bytearray(frame)
            changed[rng.randrange(len(changed))] = rng.randrange(256)
            frame = bytes(changed)
        stream = await connection.open(kind, timeout_s=10)
        await stream.send((frame,))
        try:
            async with asyncio.timeout(5):
                await stream.receive()
        except ConnectionLost as error:
            refused += 1
            assert "internal error" not in str(error), frame
        except TimeoutError:
            pass  # a wait that was asked for
        stream.close()
        assert cluster.failures == [], frame
    assert 0 < refused < 150
    await connection.close()
    await lives(cluster)
