"""No request holds the event loop for long, however it is built: tags and counts that cost next to nothing."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.wire_client import WireClient
from tidelog.chaos.fuzz.fuzz_run import address
from tidelog.chaos.fuzz.loop_probe import LoopProbe
from tidelog.chaos.fuzz.watched_node import WatchedNode, watched_node
from tidelog.proto.kafka import fetch_codec, produce_codec
from tidelog.proto.kafka.fetch_codec import decode_fetch
from tidelog.proto.kafka.headers import API_VERSIONS, answered_body, read_request_header
from tidelog.proto.kafka.messages import decode_request, decode_response, encode_request, encode_response
from tidelog.proto.kafka.produce_codec import decode_produce
from tidelog.proto.kafka.wire import ITEMS_MAX, TAGS_MAX, BadMessage, write_compact_length
from tidelog.proto.records.batches import HEADER, HEADER_SIZE, LENGTH_OVERHEAD
from tidelog.proto.records.varint import write_uvarint

METADATA, FETCH_NEWEST, PRODUCE_NEWEST = 3, fetch_codec.MOST, produce_codec.MOST
HOLD_MAX_S = 1.0
"""Processor time of one request; the widest of those within the bounds takes 0.3 s, and 4 MiB of tags took 3 s."""


def tags(count: int) -> bytes:
    """This many unknown tagged fields, two bytes each, with their number before them."""
    out = bytearray()
    write_uvarint(out, count)
    return bytes(out) + b"\x63\0" * count


def header(count: int) -> memoryview:
    return memoryview(struct.pack(">hhih", METADATA, 12, 1, -1) + tags(count))


def request_with(api_key: int, version: int, values: dict[str, Any]) -> Callable[[int], memoryview]:
    """A request whose last structure, the whole one, has so many tags."""
    body = encode_request(api_key, version, values)
    assert body.endswith(b"\0")
    return lambda count: memoryview(body[:-1] + tags(count))


READERS: dict[str, tuple[Callable[[Any], object], Callable[[int], memoryview]]] = {
    "header": (read_request_header, header),
    "header of produce and fetch": (lambda frame: answered_body(frame, flexible=True), header),
    "message": (lambda body: decode_request(METADATA, 12, body), request_with(METADATA, 12, {"topics": None})),
    "fetch": (lambda body: decode_fetch(FETCH_NEWEST, body), request_with(1, FETCH_NEWEST, {"topics": ()})),
    "produce": (lambda body: decode_produce(PRODUCE_NEWEST, body), request_with(0, PRODUCE_NEWEST, {"acks": 1})),
}


@pytest.mark.parametrize("name", READERS)
def test_a_structure_has_at_most_so_many_tagged_fields(name: str) -> None:
    read, made = READERS[name]
    read(made(TAGS_MAX))
    with pytest.raises(BadMessage, match=rf"at most {TAGS_MAX} tagged fields in a structure, found {TAGS_MAX + 1}"):
        read(made(TAGS_MAX + 1))


def many_structures(structure: bytes, before: bytes, count: int) -> memoryview:
    out = bytearray(before)
    write_compact_length(out, count)
    return memoryview(bytes(out) + structure * count + b"\0\0\0\0\0\0\0")


STRUCTURES: dict[str, tuple[Callable[[Any], object], bytes, bytes]] = {
    "message": (lambda body: decode_request(METADATA, 12, body), bytes(16) + b"\x02t" + tags(TAGS_MAX), b""),
    "topics of a fetch": (
        lambda body: decode_fetch(FETCH_NEWEST, body),
        bytes(16) + b"\x01" + tags(TAGS_MAX),
        encode_request(1, FETCH_NEWEST, {})[: 4 + 4 + 4 + 1 + 8],
    ),
    "topics of a produce": (
        lambda body: decode_produce(PRODUCE_NEWEST, body),
        bytes(16) + b"\x01" + tags(TAGS_MAX),
        b"\0" + bytes(6),
    ),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_tagged_fields_of_all_structures_count_together(name: str) -> None:
    read, structure, before = STRUCTURES[name]
    few = ITEMS_MAX // (TAGS_MAX + 1)
    read(many_structures(structure, before, few))
    with pytest.raises(BadMessage, match=f"at most {ITEMS_MAX} array items and tagged fields"):
        read(many_structures(structure, before, ITEMS_MAX // TAGS_MAX + 1))


def test_a_fetch_has_at_most_so_many_topics_and_partitions() -> None:
    most = fetch_codec.PARTITIONS_MAX
    item = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    for topics in ([{"partitions": [item] * (most + 1)}], [{"partitions": ()}] * (most + 1)):
        body = encode_request(1, FETCH_NEWEST, {"topics": topics})
        with pytest.raises(BadMessage, match=f"at most {most}"):
            decode_fetch(FETCH_NEWEST, memoryview(body))


def test_the_partitions_of_all_topics_of_a_fetch_count_together() -> None:
    most = fetch_codec.PARTITIONS_MAX
    item = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    body = encode_request(1, FETCH_NEWEST, {"topics": [{"partitions": [item] * (most // 2)}] * 3})
    with pytest.raises(BadMessage, match=f"at most {most}"):
        decode_fetch(FETCH_NEWEST, memoryview(body))
    decode_fetch(FETCH_NEWEST, memoryview(encode_request(1, FETCH_NEWEST, {"topics": [{"partitions": [item] * most}]})))


def test_an_answer_may_have_more_items_than_a_request() -> None:
    brokers = [{"node_id": 1, "host": "h", "port": 9}] * (ITEMS_MAX + 1)
    assert len(decode_response(METADATA, 12, encode_response(METADATA, 12, {"brokers": brokers})).brokers) > ITEMS_MAX


# --- At a node -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNode]:
    with watched_node(Path(tmp_path_factory.mktemp("watched"))) as node:
        yield node


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def produce_of(records: bytes) -> bytes:
    topics = [{"name": "fuzz", "partition_data": [{"index": 0, "records": records}]}]
    body = encode_request(0, PRODUCE_NEWEST, {"acks": 1, "topic_data": topics})
    return framed(struct.pack(">hhih", 0, PRODUCE_NEWEST, 1, -1) + b"\0" + body)


MIB = 2**20
GREETING = framed(struct.pack(">hhih", API_VERSIONS, 0, 0, -1))
HOLDERS = {
    "tags in a header": framed(bytes(header(2 * MIB))),
    "tags in a message": framed(bytes(header(0)) + bytes(request_with(METADATA, 12, {"topics": None})(2 * MIB))),
    "tags in an ApiVersions": framed(
        struct.pack(">hhih", API_VERSIONS, 3, 1, -1)
        + b"\0"
        + bytes(request_with(API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "b"})(2 * MIB))
    ),
    "tags in a produce": framed(
        struct.pack(">hhih", 0, PRODUCE_NEWEST, 1, -1) + b"\0" + bytes(READERS["produce"][1](2 * MIB))
    ),
    "tags in a fetch": framed(
        struct.pack(">hhih", 1, FETCH_NEWEST, 1, -1) + b"\0" + bytes(READERS["fetch"][1](2 * MIB))
    ),
    "tags in each of many structures": framed(
        bytes(header(0)) + bytes(many_structures(STRUCTURES["message"][1], b"", 4 * MIB // 150))
    ),
    "zeros for records": produce_of(bytes(12 * MIB)),
    "records of tiny batches": produce_of(
        HEADER.pack(0, HEADER_SIZE - LENGTH_OVERHEAD, -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 0) * (12 * MIB // HEADER_SIZE)
    ),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_no_request_holds_the_loop(watched: WatchedNode, name: str) -> None:
    host, port = address(watched.kafka_bootstrap)
    with LoopProbe(host, port, watched.pid) as probe, socket.create_connection((host, port), 30) as hostile:
        hostile.sendall(GREETING)
        assert hostile.recv(1)
        hostile.sendall(HOLDERS[name])
        hostile.shutdown(socket.SHUT_WR)
        while hostile.recv(MIB):
            continue
    assert 0 < probe.longest_s < HOLD_MAX_S


def test_what_a_request_names_often_is_answered_once(watched: WatchedNode) -> None:
    """Some answers are far larger than what asks for them: the settings of a topic, the offsets of a group."""
    with WireClient(watched.kafka_bootstrap) as wire:
        topics = wire.ask(METADATA, 12, topics=[{"topic_id": bytes(16), "name": "fuzz"}] * 50).topics
        assert [topic.name for topic in topics] == ["fuzz"]
        resources = [{"resource_type": 2, "resource_name": "fuzz", "configuration_keys": [str(n)]} for n in range(50)]
        assert len(wire.ask(32, 4, resources=resources, include_synonyms=True).results) == 1
        assert len(wire.ask(15, 5, groups=["g"] * 50).groups) == 1
        groups = [{"group_id": "g", "member_id": str(number), "topics": None} for number in range(50)]
        assert len(wire.ask(9, 9, groups=groups).groups) == 1
        assert len(wire.ask(65, 0, transactional_ids=["t"] * 50).transaction_states) == 1
        (found,) = wire.ask(61, 0, topics=[{"name": "fuzz", "partition_indexes": [0] * 50}]).topics
        assert len(found.partitions) == 1
