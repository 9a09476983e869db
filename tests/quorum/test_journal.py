"""The journal under every fault that a disk can do to a small file."""

import errno
import random
import struct

import pytest

from tidelog.metadata_quorum.raft.journal import JOURNAL_NAME, JournalEntry, RaftJournal
from tidelog.metadata_quorum.raft.types import (
    QuorumConfigurationError,
    QuorumDamaged,
    QuorumFailure,
    QuorumIdentity,
)
from tidelog.model.ids import DirectoryId, NodeId
from tidelog.storage.disk.files import SystemFiles
from tidelog.storage.disk.memory_files import Faults, Killed, MemoryFiles

DIRECTORY = "/q"
PATH = f"{DIRECTORY}/{JOURNAL_NAME}"


def identity(cluster: str = "c", node: int = 1, voters: tuple[int, ...] = (1, 2, 3)) -> QuorumIdentity:
    return QuorumIdentity(
        cluster, NodeId(node), tuple(NodeId(voter) for voter in voters), DirectoryId(bytes([node]) * 16)
    )


def new_disk(seed: int = 0) -> MemoryFiles:
    disk = MemoryFiles(faults=Faults(random.Random(seed)))
    disk.makedirs(DIRECTORY)
    disk.fsync_dir("/")
    return disk


def opened(disk: MemoryFiles) -> RaftJournal:
    return RaftJournal(disk, DIRECTORY, identity())


def written(disk: MemoryFiles, syncs: int = 4) -> list[tuple[list[tuple[bytes, int, int]], int, int | None]]:
    """Write a journal in a few syncs; returns what it held after each of them."""
    journal = opened(disk)
    states = []
    journal.add(b"\x01", 1, 0)
    for sync in range(syncs):
        journal.setCurrentTerm(sync + 1, NodeId(sync % 3))
        for _ in range(sync + 1):
            journal.add(b"\x00" + bytes([sync]) * 20, journal.last_index + 1, sync + 1)
        if sync == 2:
            journal.deleteEntriesFrom(len(journal) - 2)
        journal.sync()
        states.append(state_of(journal))
    journal.close(clean=False)
    disk.restart()
    return states


def entries_of(journal: RaftJournal) -> list[JournalEntry]:
    return [journal[position] for position in range(len(journal))]


def state_of(journal: RaftJournal) -> tuple[list[JournalEntry], int, int | None]:
    return entries_of(journal), journal.getCurrentTerm(), journal.getVotedForNodeId()


def test_what_was_synced_is_there_after_reopening() -> None:
    disk = new_disk()
    states = written(disk)
    journal = opened(disk)
    assert state_of(journal) == states[-1]
    assert journal.entry_bytes == sum(len(entry[0]) for entry in entries_of(journal))


def test_torn_at_every_byte_leaves_a_prefix_of_syncs() -> None:
    disk = new_disk()
    states = written(disk)
    whole = bytes(disk.content(PATH))
    reached = set()
    first = whole.index(struct.pack("<I", 0x544C514A), 1)
    for size in range(first, len(whole) + 1):
        disk.put(PATH, whole[:size])
        journal = opened(disk)
        found = state_of(journal)
        reached.add(states.index(found) if found in states else -1)
        journal.setCurrentTerm(99, None)
        journal.sync()
        disk.restart()
        assert state_of(opened(disk)) == (found[0], 99, None)  # goes on where the torn record was
        disk.restart()
    assert reached == {-1, 0, 1, 2, 3}


@pytest.mark.parametrize("tail", [b"\0" * 700, b"\xff" * 9, struct.pack("<III", 0x544C514A, 40, 1) + b"x" * 40])
def test_garbage_behind_the_last_record_is_cut_off(tail: bytes) -> None:
    disk = new_disk()
    states = written(disk)
    whole = bytes(disk.content(PATH))
    disk.put(PATH, whole + tail)
    assert state_of(opened(disk)) == states[-1]
    assert len(disk.content(PATH)) == len(whole)


def test_flipped_byte_at_every_position_is_refused_or_was_never_synced() -> None:
    disk = new_disk()
    states = written(disk)
    journal = opened(disk)
    sealed_from = journal.bytes_on_disk
    journal.seal()
    disk.restart()
    whole = bytes(disk.content(PATH))
    assert len(whole) > sealed_from
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 0x40
        disk.put(PATH, bytes(flipped))
        if position >= sealed_from:
            assert state_of(opened(disk)) == states[-1]
        else:
            with pytest.raises(QuorumDamaged, match=rf"{PATH}: .*offset \d+|expected a quorum journal"):
                opened(disk)
            assert disk.content(PATH) == bytes(flipped)  # refused, and not touched
        disk.restart()


def test_flip_in_an_unsealed_last_record_is_a_torn_tail() -> None:
    disk = new_disk()
    states = written(disk)
    whole = bytearray(disk.content(PATH))
    whole[-1] ^= 1
    disk.put(PATH, bytes(whole))
    assert state_of(opened(disk)) == states[-2]


def test_damage_names_file_and_offset() -> None:
    disk = new_disk()
    written(disk)
    whole = bytearray(disk.content(PATH))
    second = whole.index(struct.pack("<I", 0x544C514A), 1)
    whole[second + 14] ^= 1
    disk.put(PATH, bytes(whole))
    with pytest.raises(QuorumDamaged, match=f"{PATH}: damaged at offset {second}"):
        opened(disk)


@pytest.mark.parametrize("content", [b"", b"garbage" * 30, b"\0" * 4096])
def test_a_file_that_is_no_journal_is_refused(content: bytes) -> None:
    disk = new_disk()
    disk.put(PATH, content)
    with pytest.raises(QuorumDamaged, match="expected a quorum journal"):
        opened(disk)


def test_a_payload_that_looks_like_records_is_no_record() -> None:
    disk = new_disk()
    written(disk)
    copied = bytes(disk.content(PATH))
    journal = opened(disk)
    journal.add(b"\x00" + copied, journal.last_index + 1, 9)
    journal.sync()
    disk.restart()
    whole = bytes(disk.content(PATH))
    disk.put(PATH, whole[: len(copied) + 12] + b"\xff" + whole[len(copied) + 13 :])
    opened(disk)  # a torn last record, though it holds valid records of another position


@pytest.mark.parametrize("seed", range(40))
def test_power_loss_in_any_call_keeps_every_completed_sync(seed: int) -> None:
    rng = random.Random(seed)
    disk = new_disk(seed)
    synced: list[tuple[list[tuple[bytes, int, int]], int, int | None]] = []
    pending: list[tuple[list[tuple[bytes, int, int]], int, int | None]] = []
    disk.faults.kill_at = disk.faults.steps + rng.randrange(1, 40)
    try:
        journal = opened(disk)
        journal.add(b"\x01", 1, 0)
        while True:
            pending = [state_of(journal)]
            journal.sync()
            synced = pending
            step = rng.randrange(5)
            if step == 0:
                journal.reset(entries_of(journal)[-3:])
                synced = [state_of(journal)]
            elif step == 1:
                journal.seal()
            elif step == 2 and len(journal) > 2:
                journal.deleteEntriesFrom(len(journal) - 1)
            for _ in range(rng.randrange(4)):
                journal.add(bytes(rng.randrange(1500)), journal.last_index + 1, 1)
            journal.setCurrentTerm(journal.getCurrentTerm() + 1, NodeId(rng.randrange(3)))
    except Killed:
        disk.restart(power_loss=True)
    found = state_of(opened(disk))
    if synced:
        # Compaction may be durable or not; either way the same entries from where both begin.
        allowed = [*synced, *pending]
        assert any(found[1:] == state[1:] and same_suffix(found[0], state[0]) for state in allowed)


def same_suffix(one: list[tuple[bytes, int, int]], other: list[tuple[bytes, int, int]]) -> bool:
    shorter = min(len(one), len(other))
    return one[-shorter:] == other[-shorter:]


def test_crash_between_any_two_calls_of_a_compaction_loses_nothing() -> None:
    for crash_at in range(1, 30):
        for power in (False, True):
            disk = new_disk(crash_at)
            journal = opened(disk)
            journal.add(b"\x01", 1, 0)
            for index in range(2, 50):
                journal.add(b"\x00" + bytes(30), index, 3)
            journal.setCurrentTerm(7, NodeId(2))
            journal.sync()
            whole = entries_of(journal)
            disk.faults.kill_at = disk.faults.steps + crash_at
            crashed = False
            try:
                journal.reset(whole[40:])
            except Killed:
                crashed = True
            disk.restart(power_loss=power)
            found = opened(disk)
            assert entries_of(found) in ([whole, whole[40:]] if crashed else [whole[40:]])
            assert (found.getCurrentTerm(), found.getVotedForNodeId()) == (7, 2)
        if not crashed:
            return
    pytest.fail("the compaction never completed")


def test_damage_that_recovery_has_seen_is_durable_before_it_is_built_upon() -> None:
    """A kill leaves an unsynced seal in the page cache; the next process must not append behind it unsynced."""
    refused = 0
    for seed in range(60):
        disk = new_disk(seed)
        written(disk)
        journal = opened(disk)
        journal.seal()
        disk.restart()
        journal = opened(disk)
        journal.add(b"\x00" + bytes(2000), journal.last_index + 1, 9)
        disk.faults.kill_at = disk.faults.steps + 2  # written, not synced
        with pytest.raises(Killed):
            journal.sync()
        disk.restart(power_loss=True)
        try:
            opened(disk)
        except QuorumDamaged:
            refused += 1
    assert refused == 0


def test_what_a_failed_sync_left_in_the_page_cache_is_written_again_by_the_next_process() -> None:
    """Linux marks the pages of a failed sync clean: a later one succeeds and writes nothing of them."""
    for seed in range(30):
        disk = new_disk(seed)
        written(disk)
        journal = opened(disk)
        journal.add(b"\x00" + bytes(1500), journal.last_index + 1, 9)
        disk.faults.failing["fdatasync"] = errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            journal.sync()
        disk.restart()
        journal = opened(disk)  # sees the entry
        if seed % 2:
            journal.add(b"\x00" + bytes(10), journal.last_index + 1, 9)
            journal.sync()
        seen = state_of(journal)
        disk.restart(power_loss=True)
        assert state_of(opened(disk)) == seen


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(5, "Input/output error")])
def test_after_a_failed_sync_nothing_more_is_believed(error: OSError) -> None:
    disk = new_disk()
    journal = opened(disk)
    journal.add(b"\x01", 1, 0)
    assert error.errno is not None
    disk.faults.fail_at, disk.faults.number = disk.faults.steps + 1, error.errno
    with pytest.raises(OSError, match=error.strerror or ""):
        journal.sync()
    with pytest.raises(QuorumFailure, match="unusable after"):
        journal.sync()
    with pytest.raises(QuorumFailure, match="unusable after"):
        journal.reset([])


@pytest.mark.parametrize(
    ("mine", "text"),
    [
        (identity(cluster="other"), "another cluster: expected other, found c"),
        (identity(node=2), "another node: expected 2, found 1"),
        (identity(voters=(1, 2, 4)), r"another voters: expected \(1, 2, 4\), found \(1, 2, 3\)"),
    ],
)
def test_a_journal_of_somebody_else_is_refused(mine: QuorumIdentity, text: str) -> None:
    disk = new_disk()
    written(disk)
    with pytest.raises(QuorumConfigurationError, match=text):
        RaftJournal(disk, DIRECTORY, mine)


def test_a_gap_is_refused() -> None:
    journal = opened(new_disk())
    journal.add(b"\x01", 1, 0)
    with pytest.raises(QuorumFailure, match="expected entry 2, found 3"):
        journal.add(b"\x01", 3, 0)


def test_the_commit_index_rides_along_and_never_exceeds_the_log() -> None:
    disk = new_disk()
    journal = opened(disk)
    journal.add(b"\x01", 1, 0)
    journal.add(b"\x01", 2, 1)
    journal.setRaftCommitIndex(2)
    journal.setRaftCommitIndex(1)
    trace: list[str] = []
    disk.faults.trace = trace
    journal.sync()
    journal.setRaftCommitIndex(9)
    journal.sync()
    assert sum(" fdatasync " in step for step in trace) == 1  # a commit index alone is no reason to wait for the disk
    journal.close(clean=True)
    disk.restart()
    assert opened(disk).getRaftCommitIndex() == 2


def test_entries_from_respects_its_bounds() -> None:
    journal = opened(new_disk())
    for index in range(1, 11):
        journal.add(bytes(100), index, 1)
    assert [entry[1] for entry in journal.entries_from(4, 100, 250)] == [4, 5]
    assert [entry[1] for entry in journal.entries_from(4, 1, 10_000)] == [4]
    assert [entry[1] for entry in journal.entries_from(4, 5, 1)] == [4]
    assert journal.entries_from(11, 5, 100) == []
    assert journal.entries_from(0, 5, 100) == []
    assert (journal.term_at(10), journal.term_at(11), journal.term_at(0)) == (1, None, None)


def test_on_a_real_disk(tmp_path: object) -> None:
    journal = RaftJournal(SystemFiles(), str(tmp_path), identity())
    journal.add(b"\x01", 1, 0)
    journal.setCurrentTerm(4, NodeId(3))
    journal.reset(entries_of(journal))
    journal.add(b"\x00abc", 2, 4)
    journal.close(clean=True)
    again = RaftJournal(SystemFiles(), str(tmp_path), identity())
    assert state_of(again) == ([(b"\x01", 1, 0), (b"\x00abc", 2, 4)], 4, 3)
    again.close(clean=False)
