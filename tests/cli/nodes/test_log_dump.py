"""``tidelog log dump`` shows what lies in a partition's files, and where damage begins."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from tidelog.cli.root import run
from tidelog.proto.records.batches import CONTROL, HEADER_SIZE, TRANSACTIONAL
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.records.encoder import BatchBuilder, finish_batch


def batch(base: int, count: int, compression: Compression = Compression.NONE) -> bytearray:
    builder = BatchBuilder(compression)
    for number in range(count):
        builder.append(1_700_000_000_000 + number, b"k%d" % number, b"v%d" % (base + number), (("h", b"\xff"),))
    made = bytearray(builder.build(producer_id=7, producer_epoch=0, base_sequence=base))
    struct.pack_into(">q", made, 0, base)
    return made


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    marker = bytearray(
        encode_control_batch(
            ControlKind.ABORT, timestamp=1_700_000_000_009, producer_id=7, producer_epoch=0, coordinator_epoch=1
        )
    )
    struct.pack_into(">q", marker, 0, 5)
    name = "0" * 20
    (tmp_path / f"{name}.log").write_bytes(batch(0, 3) + batch(3, 2, Compression.LZ4) + marker)
    (tmp_path / f"{name}.index").write_bytes(struct.pack(">ii", 3, len(batch(0, 3))) + bytes(64))
    (tmp_path / f"{name}.timeindex").write_bytes(struct.pack(">qi", 1_700_000_000_002, 2))
    (tmp_path / f"{name}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 0, 4, 0))
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return tmp_path


def dump(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    code = run(["log", "dump", "--json", *arguments])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_file_of_a_partition(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, entries = dump(capsys, str(partition), "--records")
    assert code == 0
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        by_kind.setdefault(Path(entry["file"]).suffix, []).append(entry)
    first, second, marker = by_kind[".log"]
    assert (first["base_offset"], first["last_offset"], first["compression"], first["crc_ok"]) == (0, 2, "none", True)
    assert (second["base_offset"], second["compression"], second["base_sequence"]) == (3, "lz4", 3)
    assert [record["value"] for record in second["records"]] == ["v3", "v4"]
    assert second["records"][0]["headers"] == [["h", {"base64": "/w=="}]]
    assert (marker["control"], marker["marker"]) == (True, "ABORT")
    assert [(entry["offset"], entry["position"]) for entry in by_kind[".index"]] == [(3, first["size"])]
    assert by_kind[".timeindex"][0]["offset"] == 2
    assert by_kind[".txnindex"][0]["last"] == 4
    assert [entry["line"] for entry in by_kind[""]] == ["0", "1", "0 0"]


def test_the_text_form_names_offsets_and_producer(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(partition / f"{'0' * 20}.log"), "-r"]) == 0
    out = capsys.readouterr().out
    assert "offsets 0..2 (3 records" in out
    assert "producer 7/0 sequence 3" in out
    assert "'k0': 'v3'" in out
    assert "control marker=ABORT" in out


def test_a_range_of_offsets(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, entries = dump(capsys, str(partition / f"{'0' * 20}.log"), "--from", "4", "--max", "1")
    assert (code, [entry["base_offset"] for entry in entries]) == (0, [3])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data + bytes(100), "found zeros"),
        (lambda data: data[:-5], "to the end"),
        (lambda data: data + b"\x01" * 30, "expected a header of 61 bytes, found 30"),
        (lambda data: data + data[:16] + b"\x01" + data[17:], "expected magic 2, found 1"),
        (lambda data: data + data[:8] + b"\x7f" + data[9:], "expected a batch of 61 to"),
        (lambda data: data + data[:8] + bytes(4) + data[12:], "expected a batch of 61 to"),
    ],
)
def test_damage_is_named_and_is_exit_code_1(
    partition: Path, capsys: pytest.CaptureFixture[str], damage: Any, reason: str
) -> None:
    path = partition / f"{'0' * 20}.log"
    path.write_bytes(damage(path.read_bytes()))
    code, entries = dump(capsys, str(path))
    assert code == 1
    assert reason in entries[-1]["damage"]
    assert entries[0]["crc_ok"]


def test_a_flipped_bit_is_a_wrong_crc(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = partition / f"{'0' * 20}.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    code, entries = dump(capsys, str(path))
    assert code == 1
    assert [entry["crc_ok"] for entry in entries] == [False, True, True]


def test_a_directory_without_log_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(tmp_path)]) == 1
    assert "expected a partition's directory" in capsys.readouterr().err


def test_a_marker_that_compaction_left_without_its_record_is_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = bytearray(HEADER_SIZE)
    finish_batch(
        left,
        attributes=TRANSACTIONAL | CONTROL,
        count=0,
        base_timestamp=-1,
        max_timestamp=-1,
        producer_id=7,
        producer_epoch=0,
        base_sequence=-1,
    )
    struct.pack_into(">i", left, 23, 0)  # the last offset's delta stays what it was
    struct.pack_into(">I", left, 17, crc32c(bytes(left[21:])))
    (tmp_path / f"{'0' * 20}.log").write_bytes(left)
    code, (entry,) = dump(capsys, str(tmp_path))
    assert (code, entry["control"], entry["crc_ok"]) == (0, True, True)
    assert not entry.keys() & {"marker", "damage"}
