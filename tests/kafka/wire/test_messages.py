"""Kafka's messages against kio, whose own readers and writers are the witness."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

import tidelog.proto.kafka.schemas
from tidelog.proto.kafka.messages import decode_request, decode_response, encode_request, encode_response, field
from tidelog.proto.kafka.schema_file import schema_file
from tidelog.proto.kafka.schemas import Schema, Shape, load_schemas, schema_of
from tidelog.proto.kafka.wire import ITEMS_MAX, BadMessage, write_compact_length

METADATA = 3
API_VERSIONS = 18
DESCRIBE_TOPIC_PARTITIONS = 75
SAMPLES = 2


def test_schemas_are_kios() -> None:
    """Mend: ``python -m tidelog.proto.kafka.schema_file``."""
    written = Path(tidelog.proto.kafka.schemas.__file__).parent / "schemas.json"
    assert written.read_text(encoding="utf-8") == schema_file()


@pytest.mark.parametrize("api_key", sorted(api_key_map), ids=lambda key: api_key_map[key])
def test_every_message_is_read_and_written_as_kio_does(api_key: int) -> None:
    rng = random.Random(api_key)
    for version in schema_name_map[api_key_map[api_key]]:
        for kind, load, encode, decode in (
            ("request", load_request_schema, encode_request, decode_request),
            ("response", load_response_schema, encode_response, decode_response),
        ):
            theirs: Any = load(api_key, version)
            schema = schema_of(api_key, version, kind)
            for _ in range(SAMPLES):
                values = random_values(schema, rng)
                data = encode(api_key, version, values)
                entity, size = entity_reader(theirs)(data, 0)
                assert size == len(data)
                again = io.BytesIO()
                entity_writer(theirs)(again, entity)
                assert again.getvalue() == data
                assert same(values, decode(api_key, version, memoryview(data)), schema)


def test_what_a_version_lacks_is_left_out_and_what_is_missing_takes_the_default() -> None:
    values = {"brokers": [{"node_id": 1, "host": "h", "port": 9}], "cluster_id": "c", "not_a_field": 1}
    old = decode_response(METADATA, 0, encode_response(METADATA, 0, values))
    assert field(old, "cluster_id", "lacking") == "lacking"
    assert (old.brokers[0].host, old.topics) == ("h", ())
    new = decode_response(METADATA, 12, encode_response(METADATA, 12, values))
    assert (new.cluster_id, new.controller_id, new.brokers[0].rack) == ("c", -1, None)


def test_tagged_fields_that_nobody_knows_are_passed_over() -> None:
    plain = encode_request(API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "b"})
    assert plain.endswith(b"\0")
    tagged = plain[:-1] + b"\x02\x63\x03xyz\x64\x00"
    assert decode_request(API_VERSIONS, 3, tagged) == decode_request(API_VERSIONS, 3, plain)


def test_bytes_behind_a_request_are_passed_over_and_behind_a_response_refused() -> None:
    """librdkafka 2.16 asks for the metadata of all topics with three bytes too many."""
    assert decode_request(METADATA, 13, b"\0\0\0\0\x01\0\0").topics is None
    answer = encode_response(METADATA, 13, {})
    with pytest.raises(BadMessage, match=rf"expected a response of {len(answer)} bytes"):
        decode_response(METADATA, 13, answer + b"\0")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "expected"),
        (b"\x05", "expected 4 items of topics, found 0 bytes"),
        (b"\xff\xff\xff\xff\x0f", "items of topics"),
        (b"\xff\xff\xff\xff\xff\x0f", "expected a number of at most 32 bits"),
        (b"\x02" + bytes(16) + b"\x03a", "expected a string within"),
        (b"\x02" + bytes(16) + b"\x03\xff\xfe\0", "expected UTF-8"),
    ],
)
def test_lying_lengths_are_refused(body: bytes, said: str) -> None:
    with pytest.raises(BadMessage, match=said):
        decode_request(METADATA, 12, body)


def test_a_request_may_not_become_more_objects_than_the_bound() -> None:
    count = ITEMS_MAX + 1
    body = bytearray()
    write_compact_length(body, count)
    with pytest.raises(BadMessage, match=f"at most {ITEMS_MAX} array items"):
        decode_request(METADATA, 12, bytes(body) + bytes(20 * count))


def test_null_where_there_must_be_a_value_is_refused_both_ways() -> None:
    with pytest.raises(BadMessage, match="found null"):
        decode_request(DESCRIBE_TOPIC_PARTITIONS, 0, b"\0" + bytes(5))
    with pytest.raises(ValueError, match="expected a value for host, found None"):
        encode_response(METADATA, 0, {"brokers": [{"node_id": 1, "host": None, "port": 1}]})


KINDS_OF_REQUEST = sorted(
    (int(name.split()[0]), int(version))
    for name, versions in load_schemas().items()
    if name.endswith("request")
    for version in versions
)


@given(st.sampled_from(KINDS_OF_REQUEST), st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(which: tuple[int, int], data: bytes) -> None:
    try:
        decode_request(*which, data)
    except BadMessage as bad:
        assert "expected" in str(bad)


@given(st.sampled_from(KINDS_OF_REQUEST), st.integers(0), st.integers(0), st.integers(0, 255))
def test_a_request_with_one_byte_changed_is_a_request_or_refused(
    which: tuple[int, int], seed: int, at: int, byte: int
) -> None:
    data = bytearray(encode_request(*which, random_values(schema_of(*which, "request"), random.Random(seed))))
    if data:
        data[at % len(data)] = byte
    try:
        decode_request(*which, bytes(data))
    except BadMessage as bad:
        assert "expected" in str(bad)


# --- Random values ----------------------------------------------------------------------------------

_WIDTHS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_PRIMITIVES: dict[str, Callable[[random.Random], object]] = {
    **{kind: lambda rng, bits=bits: rng.randint(-(1 << bits), (1 << bits) - 1) for kind, bits in _WIDTHS.items()},  # type: ignore[misc]
    "uint8": lambda rng: rng.randrange(1 << 8),
    "uint16": lambda rng: rng.randrange(1 << 16),
    "float64": lambda rng: rng.random(),
    "bool": lambda rng: rng.random() < 0.5,
    "uuid": lambda rng: rng.choice([bytes(16), rng.randbytes(16)]),
    "error_code": lambda rng: rng.randint(-1, 100),
    "timedelta_i32": lambda rng: rng.randrange(1 << 31),
    "timedelta_i64": lambda rng: rng.randrange(1 << 40),
    "datetime_i64": lambda rng: rng.randrange(1 << 40),
    "string": lambda rng: "ä" * rng.randint(0, 100),
    "bytes": lambda rng: rng.randbytes(rng.randint(0, 200)),
    "records": lambda rng: rng.randbytes(100),
}


def random_values(schema: Schema, rng: random.Random) -> dict[str, Any]:
    return {shape.name: random_value(shape, rng) for shape in schema.shapes}


def random_value(shape: Shape, rng: random.Random) -> Any:
    def one() -> Any:
        return random_values(shape.of, rng) if shape.of is not None else _PRIMITIVES[shape.kind](rng)

    if shape.nullable and shape.kind not in ("uuid", "datetime_i64") and rng.random() < 0.3:
        return None
    return tuple(one() for _ in range(rng.randint(0, 3))) if shape.array else one()


def same(values: Any, found: Any, schema: Schema) -> bool:
    return all(same_value(values[shape.name], getattr(found, shape.name), shape) for shape in schema.shapes)


def same_value(value: Any, found: Any, shape: Shape) -> bool:
    if value is None or shape.of is None:
        return bool(value == found)
    if not shape.array:
        return same(value, found, shape.of)
    of = shape.of
    return len(value) == len(found) and all(same(one, other, of) for one, other in zip(value, found, strict=True))
