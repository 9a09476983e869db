"""Snapshots: the file, its transfer in parts, and crashes in between."""

import random

import pytest

from tidelog.metadata_quorum.raft.snapshot import Snapshot, SnapshotReceiver, SnapshotSender, SnapshotStore
from tidelog.metadata_quorum.raft.types import QuorumConfigurationError, QuorumDamaged, QuorumLimits
from tidelog.model.ids import NodeId
from tidelog.proto.transport.raft_messages import SnapshotPart, SnapshotResult
from tidelog.storage.disk.memory_files import Faults, Killed, MemoryFiles

PEER = NodeId(2)
STATE = bytes(range(256)) * 5
LIMITS = QuorumLimits(snapshot_part_bytes=300, snapshot_parts_under_way=2)


def store(seed: int = 0, cluster: str = "c") -> tuple[MemoryFiles, SnapshotStore]:
    disk = MemoryFiles(faults=Faults(random.Random(seed)))
    disk.makedirs("/q")
    disk.fsync_dir("/")
    return disk, SnapshotStore(disk, "/q", cluster)


def parts(state: bytes = STATE) -> list[SnapshotPart]:
    _, source = store()
    source.write(Snapshot(7, 3, state))
    sender = SnapshotSender(source, QuorumLimits(snapshot_part_bytes=300, snapshot_parts_under_way=100))
    found = []
    while (part := sender.next_part(PEER)) is not None:
        found.append(SnapshotPart(4, 9, *part.snapshot, part.offset, part.data))
    return found


def test_what_was_written_is_read() -> None:
    disk, snapshots = store()
    assert snapshots.load() is None
    snapshots.write(Snapshot(7, 3, STATE))
    disk.restart(power_loss=True)
    assert snapshots.load() == Snapshot(7, 3, STATE)


def test_every_flipped_byte_is_refused() -> None:
    disk, snapshots = store()
    snapshots.write(Snapshot(7, 3, b"state"))
    whole = bytes(disk.content(snapshots.path))
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 0x10
        disk.put(snapshots.path, bytes(flipped))
        with pytest.raises(QuorumDamaged, match=f"{snapshots.path}: damaged"):
            snapshots.load()


def test_every_truncation_is_refused() -> None:
    disk, snapshots = store()
    snapshots.write(Snapshot(7, 3, b"state"))
    whole = bytes(disk.content(snapshots.path))
    for size in range(len(whole)):
        disk.put(snapshots.path, whole[:size])
        with pytest.raises(QuorumDamaged, match=f"{snapshots.path}: damaged"):
            snapshots.load()


def test_a_snapshot_of_another_cluster_is_refused() -> None:
    disk, snapshots = store()
    snapshots.write(Snapshot(7, 3, b"state"))
    with pytest.raises(QuorumConfigurationError, match="another cluster: expected d, found c"):
        SnapshotStore(disk, "/q", "d").load()


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_in_any_call_leaves_the_old_or_the_new_one(power: bool) -> None:
    for crash_at in range(1, 30):
        disk, snapshots = store(crash_at)
        snapshots.write(Snapshot(7, 3, b"old"))
        disk.faults.kill_at = disk.faults.steps + crash_at
        crashed = False
        try:
            snapshots.write(Snapshot(9, 4, b"new" * 1000))
        except Killed:
            crashed = True
        disk.restart(power_loss=power)
        found = snapshots.load()
        assert found == Snapshot(9, 4, b"new" * 1000) or (crashed and found == Snapshot(7, 3, b"old"))
        if not crashed:
            return
    pytest.fail("the write never completed")


def test_parts_make_the_same_snapshot() -> None:
    disk, target = store()
    receiver = SnapshotReceiver(target)
    sent = parts()
    assert len(sent) > 3
    for part in sent[:-1]:
        assert receiver.take(part) == part.offset + len(part.data)
        assert receiver.complete() is None
    receiver.take(sent[-1])
    assert receiver.complete() == Snapshot(7, 3, STATE)
    target.install_incoming()
    disk.restart(power_loss=True)
    assert target.load() == Snapshot(7, 3, STATE)


def test_gaps_duplicates_and_strangers_change_nothing() -> None:
    _, target = store()
    receiver = SnapshotReceiver(target)
    sent = parts()
    other = parts(b"\xff" * len(STATE))
    assert receiver.take(sent[1]) == 0  # does not begin a transfer
    assert receiver.take(sent[0]) == 300
    assert receiver.take(sent[2]) == 300  # gap
    assert receiver.take(sent[0]) == 300  # again
    assert receiver.take(other[1]) == 0  # a part of another
    assert receiver.take(sent[1]) == 600
    for part in sent[2:]:
        receiver.take(part)
    assert receiver.complete() == Snapshot(7, 3, STATE)


def test_a_snapshot_that_does_not_check_is_thrown_away() -> None:
    _, target = store()
    receiver = SnapshotReceiver(target)
    for part in parts():
        data = part.data[:-1] + bytes([part.data[-1] ^ 1])
        receiver.take(
            SnapshotPart(4, 9, part.snapshot_index, 3, part.snapshot_crc, part.snapshot_size, part.offset, data)
        )
    assert receiver.complete() is None
    assert receiver.take(parts()[0]) == 300  # and may begin anew


def test_a_part_beyond_the_announced_size_is_not_taken() -> None:
    _, target = store()
    receiver = SnapshotReceiver(target)
    first = parts()[0]
    assert receiver.take(SnapshotPart(4, 9, 7, 3, first.snapshot_crc, 100, 0, first.data)) == 0
    assert receiver.take(SnapshotPart(4, 9, 7, 3, first.snapshot_crc, 1 << 60, 0, first.data)) == 0


def test_the_sender_keeps_its_window_and_goes_back_at_a_gap() -> None:
    _, source = store()
    source.write(Snapshot(7, 3, STATE))
    sender = SnapshotSender(source, LIMITS)
    first, second = sender.next_part(PEER), sender.next_part(PEER)
    assert first is not None
    assert second is not None
    assert (first.offset, second.offset) == (0, 300)
    assert sender.next_part(PEER) is None
    crc = first.snapshot.crc
    assert sender.on_result(PEER, SnapshotResult(4, 7, 3, crc, 300, gap=False))
    third = sender.next_part(PEER)
    assert third is not None
    assert third.offset == 600
    assert sender.on_result(PEER, SnapshotResult(4, 7, 3, crc, 300, gap=True))
    again = sender.next_part(PEER)
    assert again is not None
    assert again.offset == 300
    assert not sender.on_result(PEER, SnapshotResult(4, 7, 3, crc + 1, 900, gap=False))  # of another transfer
    assert not sender.on_result(PEER, SnapshotResult(4, 7, 3, crc, 1 << 40, gap=False))
    assert sender.question(PEER).data == b""


def test_a_transfer_goes_on_with_its_snapshot_when_a_newer_one_is_written() -> None:
    _, source = store()
    source.write(Snapshot(7, 3, STATE))
    sender = SnapshotSender(source, LIMITS)
    sender.next_part(PEER)
    source.write(Snapshot(9, 3, b"newer"))
    part = sender.next_part(PEER)
    assert part is not None
    assert part.snapshot.last_index == 7
    sender.end(PEER)
    part = sender.next_part(PEER)
    assert part is not None
    assert part.snapshot.last_index == 9
