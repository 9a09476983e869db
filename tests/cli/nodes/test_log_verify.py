"""``tidelog log verify`` names every damaged place of segments, and nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tidelog.cli.root import run
from tidelog.model.clock import SystemClock
from tidelog.model.ids import BrokerEpoch, NodeId, TopicId
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import patch_batch, split_batches
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.storage.disk.files import SystemFiles
from tidelog.storage.disk.format import format_directory
from tidelog.storage.log.log_manager import LogManager
from tidelog.storage.producers.append_checks import Origin

SIZES = (3, 2, 4)
NOW = 1_700_000_000_000


def batch(base: int, count: int) -> bytearray:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1_700_000_000_000 + number, b"k%d" % number, b"v%d" % (base + number))
    made = bytearray(builder.build())
    patch_batch(made, 0, base_offset=base, leader_epoch=0)
    return made


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log directory with one partition of two segments: offsets 0..8 and 9..17; all is durable before 14."""
    partition = tmp_path / "flights-0"
    partition.mkdir()
    for first in (0, 9):
        content, offset = bytearray(), first
        for count in SIZES:
            content += batch(offset, count)
            offset += count
        (partition / f"{first:020d}.log").write_bytes(content)
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nflights 0 14\n")
    return tmp_path


def verify(capsys: pytest.CaptureFixture[str], path: Path) -> tuple[int, dict[str, Any]]:
    code = run(["log", "verify", "--json", str(path)])
    return code, json.loads(capsys.readouterr().out)


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 4
    file.write_bytes(content)


def test_whole_files(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (directory, directory / "flights-0", directory / "flights-0" / f"{0:020d}.log"):
        code, found = verify(capsys, path)
        assert (code, found["damage"], found["unfinished"]) == (0, [], [])
        assert found["segments"] == (1 if path.suffix else 2)
    assert found["bytes"] == path.stat().st_size


def test_each_damaged_place_is_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = directory / "flights-0" / f"{0:020d}.log", directory / "flights-0" / f"{9:020d}.log"
    sizes = [len(batch(0, count)) for count in SIZES]
    flip(first, sizes[0] + 70)  # a record
    flip(second, 8)  # a length
    code, found = verify(capsys, directory)
    assert code == 1
    assert not found["unfinished"]
    one, two = found["damage"]
    assert (one["file"], one["position"], one["end"]) == (str(first), sizes[0], sizes[0] + sizes[1])
    assert (one["base_offset"], one["next_offset"]) == (3, 5)
    assert "expected a batch that matches its CRC" in one["reason"]
    assert (two["file"], two["position"], two["end"]) == (str(second), 0, len(batch(9, SIZES[0])))
    assert (two["base_offset"], two["next_offset"]) == (9, 12)
    assert run(["log", "verify", str(directory)]) == 1
    text = capsys.readouterr().out
    assert str(first) in text
    assert "2 damaged places" in text


def test_a_leader_epoch_that_is_none_is_damage(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(directory / "flights-0" / f"{0:020d}.log", 15)
    code, found = verify(capsys, directory)
    assert code == 1
    assert "expected leader epoch 0 at offset 0, found 4" in found["damage"][0]["reason"]


def test_what_is_being_written_is_no_damage(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = directory / "flights-0" / f"{9:020d}.log"
    last.write_bytes(last.read_bytes()[:-5])
    code, found = verify(capsys, directory)
    assert code == 0
    assert [entry["base_offset"] for entry in found["unfinished"]] == [14]
    (directory / ".kafka_cleanshutdown").write_text("0")
    code, found = verify(capsys, directory)
    assert code == 1
    assert [entry["base_offset"] for entry in found["damage"]] == [14]


def test_what_was_durable_and_is_gone_is_damage(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for base, behind in ((9, bytes(100)), (0, b"")):
        file = directory / "flights-0" / f"{base:020d}.log"
        file.write_bytes(bytes(batch(base, SIZES[0])) + behind)
        code, found = verify(capsys, directory)
        assert code == 1
        assert base + SIZES[0] in [entry["base_offset"] for entry in found["damage"]]


def test_aborted_transactions_and_producer_snapshots_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, directory = SystemFiles(), str(tmp_path / "log")
    format_directory(files, directory, "c", NodeId(1), random.Random(1))
    manager = LogManager(
        files,
        SystemClock(),
        random.Random(1),
        [directory],
        cluster_id="c",
        node_id=NodeId(1),
        defaults=TopicConfig(),
        producers_max=100,
    )
    manager.start()
    log = manager.get_or_create("flights", TopicId(b"t" * 16), 0, TopicConfig(), manager.directory_ids[0])
    for producer in (7, 8):
        builder = BatchBuilder()
        builder.append(NOW, None, b"v")
        builder.append(NOW, None, b"w")
        data = builder.build(producer_id=producer, producer_epoch=0, base_sequence=0, is_transactional=True)
        marker = encode_control_batch(
            ControlKind.ABORT, timestamp=NOW, producer_id=producer, producer_epoch=0, coordinator_epoch=0
        )
        for made in (data, marker):
            log.append_as_leader(split_batches(made), 0, NOW, origin=Origin.COORDINATOR)
    log.roll(NOW)
    manager.write_clean_shutdown(BrokerEpoch(1))
    manager.close()
    partition_directory = tmp_path / "log" / "flights-0"
    index, snapshot = partition_directory / f"{0:020d}.txnindex", partition_directory / f"{6:020d}.snapshot"
    assert verify(capsys, tmp_path / "log")[0] == 0
    spoiled = [(index, 34 * entry + at) for entry in (0, 1) for at in range(26)]  # all but the last stable offset
    for path, position in [*spoiled, *((snapshot, at) for at in range(snapshot.stat().st_size))]:
        flip(path, position)
        code, found = verify(capsys, tmp_path / "log")
        assert code == 1, (path, position)
        assert {each["file"] for each in found["damage"]} == {str(path)}
        flip(path, position)
    index.write_bytes(index.read_bytes()[:26] + bytes(7) + b"\x09" + index.read_bytes()[34:])
    wrong, *_ = verify(capsys, index.with_suffix(".log"))[1]["damage"]
    assert wrong["reason"] == "expected a last stable offset of 0 to 3, found 9"


def test_another_path_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "verify", str(tmp_path)]) == 1
    assert "expected a log directory or a partition's directory" in capsys.readouterr().err
