"""Headers of Kafka's protocol against kio's."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.request_header.v2.header import RequestHeader
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from tidelog.proto.kafka.headers import answered_body, is_flexible, read_request_header, response_header
from tidelog.proto.kafka.wire import BadMessage

API_VERSIONS = 18


@pytest.mark.parametrize("api_key", sorted(api_key_map), ids=lambda key: api_key_map[key])
def test_every_version_has_the_header_that_kio_says(api_key: int) -> None:
    for version in schema_name_map[api_key_map[api_key]]:
        request = load_request_schema(api_key, version).__header_schema__.__version__
        response = load_response_schema(api_key, version).__header_schema__.__version__
        assert is_flexible(api_key, version) == (request == 2)
        assert len(response_header(api_key, version, 1)) == (5 if response == 1 else 4)


def test_the_answer_to_api_versions_never_has_tagged_fields() -> None:
    assert [len(response_header(API_VERSIONS, version, 7)) for version in range(5)] == [4] * 5


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "ä" * 100])
def test_a_request_header_is_read_as_kio_writes_it(client_id: str | None) -> None:
    buffer = io.BytesIO()
    header = RequestHeader(
        request_api_key=i16(3), request_api_version=i16(12), correlation_id=i32(-5), client_id=client_id
    )
    entity_writer(RequestHeader)(buffer, header)
    frame = buffer.getvalue() + b"body"
    found = read_request_header(memoryview(frame))
    assert found == (3, 12, -5, client_id or "", len(frame) - 4)
    head, body = answered_body(memoryview(frame), flexible=True)
    assert (head, bytes(body)) == (response_header(3, 12, -5), b"body")


def test_tagged_fields_of_a_header_are_passed_over() -> None:
    frame = b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff" + b"\x01\x07\x02ab" + b"body"
    assert frame[read_request_header(memoryview(frame)).end :] == b"body"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\x00\x05abc",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xfe\x00",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff\x01\x07\x7fab",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff",
    ],
)
def test_a_header_that_ends_early_is_refused(frame: bytes) -> None:
    with pytest.raises(BadMessage, match="expected"):
        read_request_header(memoryview(frame))
    with pytest.raises(BadMessage, match="expected"):
        answered_body(memoryview(frame), flexible=True)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        found = read_request_header(memoryview(data))
    except BadMessage:
        if len(data) >= 4:
            with pytest.raises(BadMessage):
                answered_body(memoryview(data), flexible=is_flexible(*struct.unpack_from(">hh", data)))
        return
    assert 10 <= found.end <= len(data)
    flexible = is_flexible(found.api_key, found.api_version)
    head, body = answered_body(memoryview(data), flexible=flexible)
    assert head == data[4:8] + (b"\0" if flexible else b"")
    assert body == data[found.end :]
