"""Arbitrary input in calls: the node answers or refuses, and lives on.

Requests are made from their types, with names, ids and epochs that exist mixed in, so that the fuzz
gets past the first check.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import random
import types
import typing
from typing import Any

import pytest

from tidelog.broker.node.node import Node
from tidelog.model.buffer import Buffer
from tidelog.model.ids import NodeId
from tidelog.proto.calls.convert import BadMessage, from_proto, to_proto
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.table import CALLS
from tidelog.proto.transport.network import CallContext
from tidelog.testing.async_cluster import AsyncCluster

ROUNDS = 150
INTEGERS = (-(2**63), -(2**31), -3, -2, -1, 0, 1, 2, 3, 7, 2**15, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
SMALL = (-(2**31), -3, -2, -1, 0, 1, 2, 3, 2**15, 2**31 - 1)
TEXTS = (
    "",
    "t",
    "u",
    "..",
    "__consumer_offsets",
    "x" * 300,
    "ü \x00\n",
    "topic",
    "broker",
    "1",
    "set",
    "append",
    "subtract",
    "delete",
    "retention.ms",
    "cleanup.policy",
    "log.retention.ms",
    "compact,delete",
    "-1",
    "metadata.version",
    "CLIENT",
    "127.0.0.1",
)


class Maker:
    """Makes values of a type, seeded."""

    def __init__(self, seed: int, node: Node) -> None:
        self.rng = random.Random(seed)
        topic = node.view.image.topic("t")
        assert topic is not None
        broker = node.view.image.brokers[NodeId(1)]
        self.known_bytes = [topic.topic_id, broker.log_dirs[0], broker.record.incarnation_id, bytes(16)]
        self.known_ints = [broker.broker_epoch, node.view.image.offset, node.view.image.epoch]
        self.known_texts = [node.cluster_id]

    def make(self, kind: object) -> Any:
        rng = self.rng
        while hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        if kind == Buffer:
            kind = bytes
        if kind is bool:
            return rng.random() < 0.5
        if kind is int:
            return rng.choice((*INTEGERS, *SMALL, *self.known_ints, *self.known_ints))
        if kind is float:
            return rng.choice((0.0, -1.5, 1e300))
        if kind is str:
            return rng.choice((*TEXTS, *self.known_texts))
        if kind is bytes:
            return rng.choice((b"", b"\xff" * 3, rng.randbytes(16), *self.known_bytes, *self.known_bytes))
        if isinstance(kind, enum.EnumType):
            members: list[enum.Enum] = list(kind)
            return rng.choice(members)
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin in (types.UnionType, typing.Union):
            return self.make(rng.choice(args))
        if kind is type(None):
            return None
        if origin is tuple:
            return tuple(self.make(args[0]) for _ in range(rng.choice((0, 1, 1, 2, 4))))
        assert isinstance(kind, type)
        assert dataclasses.is_dataclass(kind), kind
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: self.make(hints[field.name]) for field in dataclasses.fields(kind)})


def requests(kind: type[Request[Any]], maker: Maker) -> list[Request[Any]]:
    """Requests as a peer could bring them over the wire."""
    found: list[Request[Any] | None] = []
    while len(found) < ROUNDS:
        try:
            found.append(from_proto(kind, to_proto(maker.make(kind))))
        except (BadMessage, ValueError, TypeError, UnicodeError):
            found.append(None)  # not to be put on the wire, or refused by the codec
    return [request for request in found if request is not None]


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
async def test_no_request_takes_the_node_down(kind: type[Request[Any]]) -> None:
    async with AsyncCluster(1, config={"controlled.shutdown.enable": "false"}) as cluster:
        await cluster.create_topic("t", 2)
        node = cluster.nodes[NodeId(1)]
        assert node.broker is not None
        assert node.controller is not None
        made = requests(kind, Maker(7, node))
        asked = 0
        for calls in (node.broker._calls(), node.controller.service().calls):
            handler = calls.get(kind)
            if handler is None:
                continue
            for request in made:
                if hasattr(request, "timeout_ms"):
                    request = dataclasses.replace(request, timeout_ms=min(request.timeout_ms, 20))  # type: ignore[type-var]
                try:
                    async with asyncio.timeout(0.2):
                        answer = await handler(request, CallContext("CLIENT", "fuzz"))
                except TimeoutError:
                    continue  # a long poll, or no controller left to ask: bounded by its own timeout
                assert isinstance(answer, CALLS[kind])
                to_proto(answer)
                asked += 1
        assert asked > ROUNDS / 10
        assert cluster.failures == []
