"""The disk in memory is no kinder than a real one."""

import errno
import random

import pytest

from tidelog.storage.disk.memory_files import SECTOR, Faults, Killed, MemoryFile, MemoryFiles

PATH = "/d/file"


def opened(files: MemoryFiles) -> MemoryFile:
    return files.open(PATH, create=True)


def made(seed: int) -> MemoryFiles:
    files = MemoryFiles(faults=Faults(random.Random(seed)))
    files.makedirs("/d")
    files.put(PATH, b"")
    for path in ("/", "/d"):
        files.fsync_dir(path)
    return files


def left_of(content: bytes, *, offset: int = 0, seeds: int = 300) -> set[bytes]:
    """What losses of power make of one unsynced write."""
    found = set()
    for seed in range(seeds):
        files = made(seed)
        opened(files).pwritev((content,), offset)
        files.restart(power_loss=True)
        found.add(bytes(files.content(PATH)))
    return found


def test_a_write_is_kept_lost_cut_at_a_sector_or_has_holes() -> None:
    pieces = [bytes([letter]) * SECTOR for letter in b"abc"]
    left = left_of(b"".join(pieces))
    assert {b"", pieces[0], pieces[0] + pieces[1], b"".join(pieces)} <= left
    assert pieces[0] + bytes(SECTOR) + pieces[2] in left
    assert all(part in (*pieces, bytes(SECTOR)) for found in left for part in sectors(found))


def sectors(content: bytes) -> list[bytes]:
    return [content[at : at + SECTOR] for at in range(0, len(content), SECTOR)]


def test_sectors_are_those_of_the_file_not_of_the_write() -> None:
    assert left_of(b"x" * 10, offset=SECTOR - 4) == {
        b"",
        bytes(SECTOR - 4) + b"x" * 4,
        bytes(SECTOR) + b"x" * 6,
        bytes(SECTOR - 4) + b"x" * 10,
    }


def test_what_was_synced_survives_and_changes_since_are_lost_one_by_one() -> None:
    found = set()
    for seed in range(100):
        files = made(seed)
        file = opened(files)
        file.pwritev((b"aaaa",), 0)
        file.fdatasync()
        file.pwritev((b"b",), 0)
        file.pwritev((b"c",), 3)
        file.truncate(3)
        files.restart()  # a kill loses nothing
        assert bytes(files.content(PATH)) == b"baa"
        files.restart(power_loss=True)
        found.add(bytes(files.content(PATH)))
    assert found == {b"aaaa", b"baaa", b"aaac", b"baac", b"aaa", b"baa"}


def test_a_failed_fdatasync_is_not_made_good_by_a_later_one() -> None:
    found = set()
    for seed in range(50):
        files = made(seed)
        file = opened(files)
        file.pwritev((b"first",), 0)
        files.faults.failing["fdatasync"] = errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            file.fdatasync()
        files.faults.failing.clear()
        file.pwritev((b"later",), 5)
        file.fdatasync()
        assert file.pread(10, 0) == b"firstlater"
        files.restart(power_loss=True)
        found.add(bytes(files.content(PATH)))
    assert found == {b"firstlater", bytes(5) + b"later"}


def test_a_full_disk_takes_a_part_of_a_write_at_most() -> None:
    files = made(1)
    file = opened(files)
    files.faults.failing["pwritev"] = errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        file.pwritev((b"x" * 100,), 0)
    assert len(files.content(PATH)) < 100


def test_a_process_that_is_gone_changes_nothing() -> None:
    files = made(1)
    old = opened(files)
    files.restart()
    new = opened(files)
    for step in (lambda: old.pwritev((b"x",), 0), lambda: old.truncate(9), old.fdatasync, old.size):
        with pytest.raises(Killed):
            step()
    assert new.size() == 0


def test_a_flipped_bit_outlives_the_machine() -> None:
    files = made(1)
    file = opened(files)
    file.pwritev((b"abc",), 0)
    file.fdatasync()
    files.flip(PATH, 1, 0x20)
    files.restart(power_loss=True)
    assert bytes(files.content(PATH)) == b"aBc"
