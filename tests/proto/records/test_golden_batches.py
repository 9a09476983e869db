"""Batches that foreign implementations wrote, and ours read by foreign implementations (tests/golden/README.md)."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiokafka.record
import pytest

from tidelog.proto.records.batches import Batch, patch_batch, set_log_append_time, split_batches
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.control_batches import ControlKind, decode_control, encode_control_batch
from tidelog.proto.records.decoder import decode_fields, decode_records, decode_values
from tidelog.proto.records.encoder import BatchBuilder, encode_values

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas the old way
    import kafka.record

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def load_cases() -> dict[str, dict[str, Any]]:
    spec = importlib.util.spec_from_file_location("cases_as_text", GOLDEN / "generate" / "cases_as_text.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {case["name"]: case for case in module.load()}


CASES = load_cases()
FILES = sorted(path.name for path in GOLDEN.glob("*.bin"))
OURS = [(name, Compression.from_name(kind)) for name, case in CASES.items() for kind in case["compressions"]]


def read(name: str) -> tuple[dict[str, Any], Compression, bytes, Batch]:
    case_name, compression, writer, _ = name.split(".")
    raw = (GOLDEN / name).read_bytes()
    (batch,) = split_batches(raw)
    case = dict(CASES[case_name])
    if writer == "kafka-python":
        case["leader_epoch"] = 0  # where the others write -1; a broker overwrites it
    return case, Compression.from_name(compression), raw, batch


def encode(case: dict[str, Any], compression: Compression) -> bytearray:
    """Write a case with our encoder."""
    records = case["records"]
    producer = {name: case[name] for name in ("producer_id", "producer_epoch")}
    if case["control"]:
        kind = ControlKind[case["control"]["kind"].upper()]
        epoch = case["control"]["coordinator_epoch"]
        out = encode_control_batch(kind, timestamp=records[0][0], coordinator_epoch=epoch, **producer)
    else:
        builder = BatchBuilder(compression)
        for timestamp, key, value, headers in records:
            builder.append(timestamp, key, value, headers)
        out = builder.build(base_sequence=case["base_sequence"], is_transactional=case["is_transactional"], **producer)
    if case["log_append_time"] is not None:
        out = set_log_append_time(split_batches(out)[0], case["log_append_time"])
    patch_batch(out, 0, base_offset=case["base_offset"], leader_epoch=case["leader_epoch"])
    return out


def expected_records(case: dict[str, Any]) -> list[tuple[Any, ...]]:
    fixed = case["log_append_time"]
    return [
        (case["base_offset"] + index, timestamp if fixed is None else fixed, *rest)
        for index, (timestamp, *rest) in enumerate(case["records"])
    ]


def test_every_codec_and_writer_is_present() -> None:
    written = {tuple(name.split(".")[1:3]) for name in FILES}
    codecs = {kind.kafka_name for kind in Compression}
    assert {codec for codec, writer in written if writer == "java"} == codecs
    assert {codec for codec, writer in written if writer == "aiokafka"} == codecs
    assert {codec for codec, writer in written if writer == "kafka-python"} >= {"none", "gzip", "lz4"}
    assert {name.split(".")[0] for name in FILES} == set(CASES)


@pytest.mark.parametrize("name", FILES)
def test_foreign_batch_decodes(name: str) -> None:
    case, compression, _, batch = read(name)
    assert batch.crc_ok()
    assert batch.compression is compression
    for field in ("base_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence", "is_transactional"):
        assert getattr(batch, field) == case[field], field
    assert batch.record_count == len(case["records"])
    assert batch.next_offset == case["base_offset"] + len(case["records"])
    assert batch.is_control == bool(case["control"])
    assert batch.is_log_append_time == (case["log_append_time"] is not None)
    expected = expected_records(case)
    assert batch.max_timestamp == max(record[1] for record in expected)
    assert decode_fields(batch) == expected
    assert decode_records(batch) == expected
    assert decode_values(batch) == [record[3] for record in expected]
    if case["control"]:
        marker = decode_control(batch)
        assert (marker.kind.name.lower(), marker.coordinator_epoch) == tuple(case["control"].values())


@pytest.mark.parametrize("name", [name for name in FILES if ".none." in name])
def test_foreign_uncompressed_batch_is_encoded_to_the_same_bytes(name: str) -> None:
    case, compression, raw, _ = read(name)
    assert encode(case, compression).hex() == raw.hex()


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("three-byte-deltas.none")])
def test_bulk_form_is_encoded_to_the_same_bytes(name: str) -> None:
    case, _, raw, _ = read(name)
    out = encode_values([value for _, _, value, _ in case["records"]], case["records"][0][0])
    patch_batch(out, 0, base_offset=0, leader_epoch=case["leader_epoch"])
    assert out == raw


def foreign_records(records: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in records]


@pytest.mark.parametrize(("name", "compression"), OURS)
def test_ours_is_read_by_aiokafka(name: str, compression: Compression) -> None:
    case = CASES[name]
    memory = aiokafka.record.MemoryRecords(bytes(encode(case, compression)))
    batch = memory.next_batch()
    assert batch.validate_crc()
    assert batch.next_offset == case["base_offset"] + len(case["records"])
    assert (batch.producer_id, batch.base_sequence) == (case["producer_id"], case["base_sequence"])
    assert (batch.is_control_batch, batch.is_transactional) == (bool(case["control"]), case["is_transactional"])
    assert foreign_records(batch) == expected_records(case)
    assert not memory.has_next()


@pytest.mark.parametrize(
    ("name", "compression"),
    [entry for entry in OURS if entry[1] in (Compression.NONE, Compression.GZIP, Compression.LZ4)],
)
def test_ours_is_read_by_kafka_python(name: str, compression: Compression) -> None:
    case = CASES[name]
    memory = kafka.record.MemoryRecords(bytes(encode(case, compression)))
    batch = memory.next_batch()
    assert batch.validate_crc()
    assert (batch.base_offset, batch.leader_epoch) == (case["base_offset"], case["leader_epoch"])
    assert (batch.producer_id, batch.base_sequence) == (case["producer_id"], case["base_sequence"])
    assert foreign_records(batch) == expected_records(case)
    assert not memory.has_next()
