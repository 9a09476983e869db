"""Produce and Fetch as a socket sees them: versions, refusals, waiting, every size of fetch."""

from __future__ import annotations

import struct

import pytest

from tidelog.broker.node.node import Node
from tidelog.model.errors import ErrorCode
from tidelog.proto.kafka import fetch_codec
from tidelog.proto.kafka.headers import API_VERSIONS
from tidelog.proto.kafka.messages import encode_request
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.compression import Compression
from tidelog.testing.cluster import Cluster

from .test_server import FETCH, PRODUCE, batch, fetch_values, node, peer, produce_values, request, response, topic

__all__ = ["node", "topic"]

# --- Produce ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_the_formats_before_record_batches_are_refused_by_partition(
    kafka_cluster: Cluster, topic: str, version: int
) -> None:
    body = encode_request(PRODUCE, 3, produce_values(topic, b"\0" * 30))[2:]  # without the transactional id
    with peer(kafka_cluster) as one:
        one.send(struct.pack(">ihhih", 10 + len(body), PRODUCE, version, 5, -1) + body)
        correlation, data = one.answer()
    assert correlation == 5
    assert struct.unpack_from(">ih4sii", data) == (1, 4, b"wire", 1, 0)
    assert struct.unpack_from(">hq", data, 18) == (ErrorCode.UNSUPPORTED_VERSION, -1)


@pytest.mark.parametrize(
    ("version", "records", "error"),
    [
        (3, b"\0" * 16 + b"\x01" + b"\0" * 60, ErrorCode.INVALID_RECORD),
        (9, b"\0" * 16 + b"\x00" + b"\0" * 60, ErrorCode.INVALID_RECORD),
        (9, None, ErrorCode.INVALID_RECORD),
        (9, b"", ErrorCode.INVALID_RECORD),
        (9, b"\0" * 16 + b"\x02" + b"\0" * 60, ErrorCode.CORRUPT_MESSAGE),
        (6, batch(compression=Compression.ZSTD), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (7, batch(compression=Compression.ZSTD), ErrorCode.NONE),
    ],
)
def test_records_that_a_version_cannot_carry_are_refused(
    kafka_cluster: Cluster, topic: str, version: int, records: bytes | None, error: ErrorCode
) -> None:
    with peer(kafka_cluster) as one:
        found = one.ask(PRODUCE, version, produce_values(topic, records))
    assert found.responses[0].partition_responses[0].error_code == error


def test_when_too_many_appends_wait_producers_are_told_to_try_again(
    kafka_cluster: Cluster, node: Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.broker is not None
    monkeypatch.setattr(node.broker.replicas.producing.budget, "maximum", 0)
    with peer(kafka_cluster) as one:
        (item,) = one.ask(PRODUCE, 9, produce_values(topic, batch())).responses[0].partition_responses
    assert item.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "expected at most 0 appends to wait" in item.error_message


def test_unknown_partitions_do_not_keep_the_known_ones_waiting(kafka_cluster: Cluster, topic: str) -> None:
    values = produce_values(topic, batch())
    values["topic_data"][0]["partition_data"].append({"index": 7, "records": batch()})
    values["topic_data"].insert(0, produce_values("nobody", batch())["topic_data"][0])
    with peer(kafka_cluster) as one:
        found = one.ask(PRODUCE, 9, values)
    errors = [[item.error_code for item in each.partition_responses] for each in found.responses]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == [[unknown], [0, unknown]]


def test_who_wants_no_answer_gets_none_and_learns_of_a_refusal_by_the_end(kafka_cluster: Cluster, topic: str) -> None:
    with peer(kafka_cluster) as one:
        one.send(request(PRODUCE, 9, produce_values(topic, batch(), acks=0))[1])
        assert one.ask(API_VERSIONS, 0, {}).error_code == 0
        one.send(request(PRODUCE, 9, produce_values("nobody", batch(), acks=0))[1])
        assert one.is_ended()


# --- Fetch ------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_records_and_gets_them(kafka_cluster: Cluster) -> None:
    kafka_cluster.create_topic("awaited")
    with peer(kafka_cluster) as reader, peer(kafka_cluster) as writer:
        number, frame = request(FETCH, 12, fetch_values("awaited", wait_ms=15_000))
        reader.send(frame)
        writer.ask(PRODUCE, 9, produce_values("awaited", batch(3)))
        correlation, data = reader.answer()
        (part,) = response(FETCH, 12, data).responses[0].partitions
        assert (correlation, part.error_code, part.high_watermark) == (number, 0, 3)
        assert [each.record_count for each in split_batches(part.records)] == [3]


def test_a_fetch_from_the_middle_of_a_batch_returns_the_whole_of_it(kafka_cluster: Cluster) -> None:
    kafka_cluster.create_topic("middle")
    with peer(kafka_cluster) as one:
        for _ in range(3):
            one.ask(PRODUCE, 9, produce_values("middle", batch(10)))
        (part,) = one.ask(FETCH, 12, fetch_values("middle", offset=15)).responses[0].partitions
        assert [each.base_offset for each in split_batches(part.records)] == [10, 20]
        (part,) = one.ask(FETCH, 12, fetch_values("middle", offset=15, size=1)).responses[0].partitions
        assert [each.base_offset for each in split_batches(part.records)] == [10]
        (part,) = one.ask(FETCH, 12, fetch_values("middle", offset=31)).responses[0].partitions
        assert (part.error_code, part.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")


@pytest.mark.parametrize(("batches", "count", "size"), [(200, 1, 300), (40, 100, 100), (3, 2000, 100)])
def test_every_size_of_fetch_reads_the_log_without_gaps(
    kafka_cluster: Cluster, batches: int, count: int, size: int
) -> None:
    """From one batch at a time, which is read, to all of it, which the system sends from the file."""
    name = f"sizes-{batches}"
    kafka_cluster.create_topic(name)
    written = b""
    with peer(kafka_cluster) as one:
        for number in range(batches):
            data = batch(count, size)
            one.ask(PRODUCE, 9, produce_values(name, data))
            patched = bytearray(data)
            struct.pack_into(">qii", patched, 0, number * count, len(data) - 12, 0)
            written += patched
        for most in (1, 5_000, 50_000, 1 << 23):
            offset, found = 0, b""
            while offset < batches * count:
                (part,) = one.ask(FETCH, 12, fetch_values(name, offset=offset, size=most)).responses[0].partitions
                whole = split_batches(part.records)
                assert whole[0].base_offset == offset
                assert len(whole) == 1 or len(part.records) <= most
                offset = whole[-1].next_offset
                found += part.records
            assert found == written


def test_topics_are_fetched_by_id_too(kafka_cluster: Cluster, topic: str, node: Node) -> None:
    values = fetch_values(topic)
    with peer(kafka_cluster) as one:
        assert one.ask(FETCH, 13, values).responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        values["topics"][0]["topic_id"] = node.view.image.topic_ids[topic]
        one.ask(PRODUCE, 9, produce_values(topic, batch()))
        (found,) = one.ask(FETCH, fetch_codec.MOST, values).responses
        assert found.topic_id == values["topics"][0]["topic_id"]
        assert found.partitions[0].error_code == 0
        assert len(found.partitions[0].records) > 0


def test_what_is_unknown_ends_the_wait_of_the_rest(kafka_cluster: Cluster, topic: str) -> None:
    values = fetch_values(topic, offset=10**6, wait_ms=30_000)
    values["topics"] += fetch_values("nobody")["topics"]
    with peer(kafka_cluster) as one:
        known, unknown = one.ask(FETCH, 12, values).responses
    assert known.partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_clients_that_do_not_know_zstd_are_told_so(kafka_cluster: Cluster) -> None:
    kafka_cluster.create_topic("zstd", config={"compression.type": "zstd"})
    with peer(kafka_cluster) as one:
        one.ask(PRODUCE, 9, produce_values("zstd", batch()))
        (part,) = one.ask(FETCH, 9, fetch_values("zstd")).responses[0].partitions
        assert (part.error_code, part.records) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"")
        (part,) = one.ask(FETCH, 10, fetch_values("zstd")).responses[0].partitions
        assert [each.compression for each in split_batches(part.records)] == [Compression.ZSTD]


def test_followers_are_sent_away(kafka_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with peer(kafka_cluster) as one:
        one.send(request(FETCH, 12, fetch_values(topic, replica_id=2))[1])
        assert one.is_ended()
    assert "expected a consumer's fetch (replica id -1), found replica id 2" in caplog.text
