"""A backup's files: what closes them, how they are read from any offset, and that every kind of damage is found."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.page_cache import cached_pages, drop_cached_pages, needs_mincore
from tidelog.client.backup.cut import NoCut, expect_held
from tidelog.model.ids import LeaderEpoch, NodeId, TopicPartition
from tidelog.proto.backups import place
from tidelog.proto.backups.copying import Examination, OpenTransactions, PartitionFile, closing, examine
from tidelog.proto.backups.manifest import (
    NAME,
    BackupError,
    CommittedPart,
    Damaged,
    LedgerPart,
    Manifest,
    QuotaPart,
    TopicPart,
)
from tidelog.proto.backups.place import Directory, key_of, read_manifest
from tidelog.proto.backups.verifying import fault_of, verify
from tidelog.proto.calls.backup_api import HeldPartition
from tidelog.proto.records.batches import Batch, patch_batch, split_batches
from tidelog.proto.records.control_batches import ControlKind, decode_control, encode_control_batch
from tidelog.proto.records.encoder import BatchBuilder

AT = TopicPartition("t", 0)


def data(offset: int, producer_id: int = -1, *, is_transactional: bool = False, count: int = 1) -> Batch:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1_000 + number, b"k", b"v" * 100)
    return placed(
        builder.build(
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=0 if producer_id >= 0 else -1,
            is_transactional=is_transactional,
        ),
        offset,
    )


def marker(offset: int, producer_id: int, kind: ControlKind = ControlKind.COMMIT) -> Batch:
    return placed(
        encode_control_batch(kind, timestamp=1, producer_id=producer_id, producer_epoch=1, coordinator_epoch=1), offset
    )


def placed(batch: bytearray, offset: int) -> Batch:
    patch_batch(batch, 0, base_offset=offset, leader_epoch=3)
    return Batch(memoryview(bytes(batch)))


STEPS = st.lists(
    st.tuples(st.sampled_from(["plain", "open", "commit", "abort", "gap"]), st.integers(0, 3), st.integers(1, 5)),
    max_size=30,
)


def log_of(steps: list[tuple[str, int, int]]) -> tuple[list[Batch], set[int], int]:
    """Batches, the producers whose transactions are open at the end by a model of its own, and the log's end."""
    found: list[Batch] = []
    begun: set[int] = set()
    offset = 0
    for what, producer_id, count in steps:
        if what == "gap":
            offset += count
            continue
        if what == "plain":
            found.append(data(offset, count=count))
        elif what == "open":
            found.append(data(offset, producer_id, is_transactional=True, count=count))
            begun.add(producer_id)
        else:
            found.append(marker(offset, producer_id, ControlKind.COMMIT if what == "commit" else ControlKind.ABORT))
            begun.discard(producer_id)
        offset = found[-1].next_offset
    return found, begun, offset


@settings(deadline=None, max_examples=150)
@given(STEPS)
def test_whatever_is_open_at_the_end_is_aborted_there(steps: list[tuple[str, int, int]]) -> None:
    batches, begun, end = log_of(steps)
    transactions = OpenTransactions()
    for batch in batches:
        transactions.take(batch)
    assert transactions.producer_id_max == max((batch.producer_id for batch in batches), default=-1)
    position = batches[-1].next_offset if batches else 0
    closed = [Batch(memoryview(one)) for one in closing(transactions, position, end, 5)]
    due = position
    for batch in closed:
        assert batch.crc_ok()
        assert batch.base_offset == due, "no offset is left out"
        due = batch.next_offset
        transactions.take(batch)
    assert due == end + len(begun)
    assert not transactions.open
    markers = [batch for batch in closed if batch.is_control]
    assert {batch.producer_id for batch in markers} == begun
    assert all(decode_control(batch).kind is ControlKind.ABORT for batch in markers)


@settings(deadline=None, max_examples=60)
@given(STEPS, st.integers(1, 2_000), st.data())
def test_a_file_is_read_from_any_batch_on(steps: list[tuple[str, int, int]], size: int, drawn: st.DataObject) -> None:
    batches, _, _ = log_of(steps)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
        patch.setattr(place, "READ_BYTES", size)
        (Path(directory) / "f").write_bytes(b"".join(batch.view for batch in batches))
        start = drawn.draw(st.sampled_from([0, *(batch.next_offset for batch in batches)]))
        found = [
            batch.base_offset
            for piece in Examination(Directory(Path(directory)), "f").pieces(start)
            for batch in split_batches(piece.batches)
        ]
        assert found == [batch.base_offset for batch in batches if batch.base_offset >= start]


@pytest.mark.parametrize("refused", ["never", "when it is opened", "when it is read"])
def test_a_file_is_read_with_and_without_direct_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    content = random.Random(1).randbytes(100_000)
    (tmp_path / "f").write_bytes(content)
    real_open, real_read = os.open, os.preadv
    direct = getattr(os, "O_DIRECT", 0)

    def open_(path: Path, flags: int, *more: Any) -> int:
        if flags & direct and refused == "when it is opened":
            raise OSError(errno.EINVAL, "no direct reads")
        return real_open(path, flags, *more)

    def read(*arguments: Any) -> int:
        if refused == "when it is read":
            raise OSError(errno.EINVAL, "other alignment")
        return real_read(*arguments)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(place, "READ_BYTES", 9_000)
    assert b"".join(map(bytes, Directory(tmp_path).read("f"))) == content
    reading, found, rest = Directory(tmp_path).read("f"), bytearray(), 0
    piece = next(reading)
    with suppress(StopIteration):
        for rest in (1, 4_095, 8_999, 9_000, 0, 17_000, *[7] * 99):
            rest = min(rest, len(piece))
            found += piece[: len(piece) - rest]
            piece = reading.send(rest)
    assert found + piece[len(piece) - rest :] == content


@needs_mincore
@pytest.mark.parametrize("direct", [True, False])
def test_what_was_read_does_not_stay_in_the_systems_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """A restore writes as much as it reads; cached pages of the backup would only be in the way."""
    if not direct:
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    path = tmp_path / "f"
    path.write_bytes(bytes(3 * place.READ_BYTES))
    drop_cached_pages(path)
    assert sum(map(len, Directory(tmp_path).read("f"))) == 3 * place.READ_BYTES
    assert cached_pages(path) == []


def test_a_place_within_a_batch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(data(0, count=5).view)
    with pytest.raises(BackupError, match="expected a batch to begin at offset 3"):
        list(Examination(Directory(tmp_path), "f").pieces(3))


def test_a_log_that_has_lost_its_last_records_keeps_its_end(tmp_path: Path) -> None:
    file = PartitionFile(AT, Directory(tmp_path))
    file.append([data(0), data(4)])
    part = file.finish(9, 1)
    assert (part.start, part.end, part.batches) == (0, 9, 3)
    empty = PartitionFile(TopicPartition("t", 1), Directory(tmp_path))
    empty.begin(300)
    part = empty.finish(300, 1)
    assert (part.start, part.end, part.batches) == (300, 300, 1)
    assert PartitionFile(TopicPartition("t", 2), Directory(tmp_path)).finish(0, 1).end == 0


def test_records_that_do_not_match_their_crc_are_not_taken(tmp_path: Path) -> None:
    broken = bytearray(data(0).view)
    broken[-1] ^= 1
    with pytest.raises(BackupError, match="match their CRC"):
        PartitionFile(AT, Directory(tmp_path)).append([Batch(memoryview(broken))])


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    directory = Directory(tmp_path / "backup")
    directory.make()
    file = PartitionFile(AT, directory)
    file.append([data(0, count=3), data(3, 5, is_transactional=True), marker(4, 5), data(5, 6, is_transactional=True)])
    part = file.finish(6, 1)
    topic = TopicPart("t", "00" * 16, 1, {"retention.ms": "-1"}, (part,))
    groups = {"g": (CommittedPart("t", 0, 6, "ü"),)}
    acls = (("TOPIC", "t", "LITERAL", "User:a", "*", "READ", "ALLOW"),)
    quotas = (QuotaPart(("a", None, None), {"producer_byte_rate": 1.5}),)
    made = Manifest("c", 1, 2, 7, (topic,), groups, (LedgerPart("s", 1, "j"),), acls, quotas, ("bob",))
    directory.write_manifest(made.to_json())
    return directory.path


def test_a_whole_one_is_found_whole_and_reads_back_as_written(whole: Path) -> None:
    found = verify(Directory(whole))
    assert found == read_manifest(Directory(whole))
    assert Manifest.from_json(found.to_json()) == found
    assert found.topics[0].partitions[0].end == 7, "with the abort of what was open"
    assert [path.stat().st_mode & 0o77 for path in sorted(whole.rglob("*"))] == [0] * 4


def test_any_flipped_byte_is_found(whole: Path) -> None:
    for path in (whole / key_of(*AT), whole / NAME):
        sound = path.read_bytes()
        for position in range(0, len(sound), max(1, len(sound) // 150)):
            spoiled = bytearray(sound)
            spoiled[position] ^= 0x04
            path.write_bytes(spoiled)
            if path.name == NAME and _same(spoiled, sound):
                continue
            with pytest.raises(BackupError):
                verify(Directory(whole))
        path.write_bytes(sound)
    verify(Directory(whole))


def test_crcs_and_a_hash_of_the_headers_find_any_flipped_byte(whole: Path) -> None:
    """A restore hashes no more than that."""
    (part,) = read_manifest(Directory(whole)).topics[0].partitions
    path = whole / key_of(*AT)
    sound = path.read_bytes()

    def fault() -> str:
        examination = Examination(Directory(whole), key_of(*AT), only_headers=True)
        try:
            for _ in examination.pieces():
                pass
        except Damaged as error:
            return str(error)
        return fault_of("it", examination.found(), part)

    assert fault() == ""
    for position in range(len(sound)):
        path.write_bytes(sound[:position] + bytes((sound[position] ^ 0x04,)) + sound[position + 1 :])
        assert fault(), f"byte {position}"


def test_a_backup_of_an_earlier_release_has_hashes_of_whole_files(whole: Path) -> None:
    found = read_manifest(Directory(whole))
    content = json.loads((whole / NAME).read_text())
    del content["sha256"], content["topics"][0]["partitions"][0]["headers_sha256"]
    content["format"] = 1
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (whole / NAME).write_text(json.dumps({**content, "sha256": digest}))
    (part,) = verify(Directory(whole)).topics[0].partitions
    assert part == replace(found.topics[0].partitions[0], headers_sha256="")
    assert fault_of("it", examine(Directory(whole), key_of(*AT)), part) == ""
    headers = Examination(Directory(whole), key_of(*AT), only_headers=True)
    assert len(list(headers.pieces())) == 1
    assert "of all headers" in fault_of("it", headers.found(), part), "nothing to compare these with"


def _same(one: bytes | bytearray, other: bytes) -> bool:
    """White space between JSON's words means nothing."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_missing_cut_and_grown_files_are_found(whole: Path) -> None:
    path = whole / key_of(*AT)
    sound = path.read_bytes()
    path.write_bytes(sound[:-100])
    with pytest.raises(BackupError, match=r"0\.batches: "):
        verify(Directory(whole))
    path.write_bytes(sound + marker(7, 9).view)
    with pytest.raises(BackupError, match=r"expected a file of \d+ bytes, found \d+"):
        verify(Directory(whole))
    path.unlink()
    with pytest.raises(BackupError, match="found none"):
        verify(Directory(whole))


def test_without_a_manifest_it_is_no_backup(whole: Path) -> None:
    (whole / NAME).unlink()
    with pytest.raises(BackupError, match="an unfinished one"):
        verify(Directory(whole))


def test_another_format_is_refused_by_its_number(whole: Path) -> None:
    content = json.loads((whole / NAME).read_text())
    (whole / NAME).write_text(json.dumps({**content, "format": 3}))
    with pytest.raises(BackupError, match="expected a backup of format 2 at most, found format 3: use the release"):
        verify(Directory(whole))


def test_an_offset_beyond_the_end_is_damage_too(whole: Path) -> None:
    found = read_manifest(Directory(whole))
    groups = {"g": (CommittedPart("t", 0, 8, ""),)}
    other = Manifest(found.cluster_id, found.created_ms, found.held_ms, found.producer_ids_below, found.topics, groups)
    Directory(whole).write_manifest(other.to_json())
    with pytest.raises(BackupError, match="group g: expected offsets up to the backup's end"):
        verify(Directory(whole))


@pytest.mark.parametrize(
    ("held", "good"),
    [
        ([(0, 3), (1, 5)], True),
        ([(0, 3), (1, 5), (0, 2)], True),
        ([(0, 3)], False),
        ([(0, 3), (1, 4)], False),
        ([], False),
    ],
)
def test_the_hold_is_that_of_every_partitions_present_leader(held: list[tuple[int, int]], good: bool) -> None:
    leaders = {
        TopicPartition("__transaction_state", 0): (NodeId(1), LeaderEpoch(3)),
        TopicPartition("__transaction_state", 1): (NodeId(2), LeaderEpoch(5)),
        TopicPartition("t", 0): (NodeId(2), LeaderEpoch(9)),
    }
    parts = [HeldPartition(number, LeaderEpoch(epoch), settled=True, unbroken=True) for number, epoch in held]
    if good:
        expect_held(parts, leaders)
    else:
        with pytest.raises(NoCut):
            expect_held(parts, leaders)


def test_examine_says_what_is_undecided(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(data(0, 5, is_transactional=True).view)
    assert examine(Directory(tmp_path), "f").undecided == 1
