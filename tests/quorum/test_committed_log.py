"""The window of committed entries that brokers fetch from, against a plain list."""

import random

import pytest

from tidelog.metadata_quorum.raft import committed_log
from tidelog.metadata_quorum.raft.committed_log import CommittedEntry, CommittedLog, SnapshotNeeded
from tidelog.model.ids import ControllerEpoch, Offset

NOTHING = ControllerEpoch(-1)


def entry(offset: int, epoch: int = 1, size: int = 10) -> CommittedEntry:
    return CommittedEntry(Offset(offset), ControllerEpoch(epoch), bytes(size))


def offsets(found: tuple[CommittedEntry, ...] | SnapshotNeeded) -> list[int] | None:
    return None if isinstance(found, SnapshotNeeded) else [each.offset for each in found]


def filled(last: int = 10) -> CommittedLog:
    log = CommittedLog()
    for offset in range(2, last + 1):
        log.append(entry(offset, epoch=1 if offset < 6 else 2))
    return log


def test_who_has_nothing_gets_everything_from_the_beginning() -> None:
    assert offsets(filled().read(Offset(0), NOTHING, 10_000)) == list(range(2, 11))
    assert offsets(CommittedLog().read(Offset(0), NOTHING, 10_000)) == []


def test_who_is_up_to_date_gets_nothing() -> None:
    assert offsets(filled().read(Offset(11), ControllerEpoch(2), 10_000)) == []


def test_entries_from_an_offset_on() -> None:
    log = filled()
    assert offsets(log.read(Offset(6), ControllerEpoch(1), 10_000)) == [6, 7, 8, 9, 10]
    assert offsets(log.read(Offset(7), ControllerEpoch(2), 10_000)) == [7, 8, 9, 10]
    assert offsets(log.read(Offset(2), ControllerEpoch(0), 10_000)) == list(range(2, 11))


def test_another_epoch_at_the_last_offset_needs_a_snapshot() -> None:
    log = filled()
    assert offsets(log.read(Offset(6), ControllerEpoch(2), 10_000)) is None
    assert offsets(log.read(Offset(11), ControllerEpoch(1), 10_000)) is None


def test_an_offset_beyond_the_end_needs_a_snapshot() -> None:
    assert offsets(filled().read(Offset(12), ControllerEpoch(2), 10_000)) is None


def test_bytes_max_is_kept_but_for_the_first() -> None:
    log = filled()
    assert offsets(log.read(Offset(3), ControllerEpoch(1), 1)) == [3]
    assert offsets(log.read(Offset(3), ControllerEpoch(1), 250)) == [3, 4]


def test_what_was_trimmed_needs_a_snapshot() -> None:
    log = filled()
    log.trim_before(Offset(5))
    assert offsets(log.read(Offset(0), NOTHING, 10_000)) is None
    assert offsets(log.read(Offset(4), ControllerEpoch(1), 10_000)) is None
    assert offsets(log.read(Offset(5), ControllerEpoch(1), 10_000)) == [5, 6, 7, 8, 9, 10]
    assert offsets(log.read(Offset(5), ControllerEpoch(9), 10_000)) is None


def test_after_a_snapshot_the_window_begins_behind_it() -> None:
    log = filled()
    log.restart(Offset(50), ControllerEpoch(7))
    assert log.end == 51
    assert offsets(log.read(Offset(51), ControllerEpoch(7), 10_000)) == []
    assert offsets(log.read(Offset(51), ControllerEpoch(6), 10_000)) is None
    assert offsets(log.read(Offset(0), NOTHING, 10_000)) is None
    log.append(entry(51, epoch=8))
    assert offsets(log.read(Offset(51), ControllerEpoch(7), 10_000)) == [51]


def test_the_window_is_bounded() -> None:
    log = CommittedLog()
    size = committed_log.RETAINED_BYTES_MAX // 8
    for offset in range(2, 40):
        log.append(entry(offset, size=size))
        assert sum(len(each.payload) for each in log._entries) <= committed_log.RETAINED_BYTES_MAX
    assert offsets(log.read(Offset(39), ControllerEpoch(1), 1)) == [39]


def test_the_window_is_bounded_by_entries_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_log, "RETAINED_ENTRIES_MAX", 5)
    log = filled(last=10)
    assert offsets(log.read(Offset(6), ControllerEpoch(1), 10_000)) == [6, 7, 8, 9, 10]
    assert offsets(log.read(Offset(5), ControllerEpoch(1), 10_000)) is None


def test_against_a_list() -> None:
    rng = random.Random(3)
    log, model, first = CommittedLog(), {1: 0}, 2
    epoch = 1
    for offset in range(2, 400):
        epoch += rng.random() < 0.1
        model[offset] = epoch
        log.append(entry(offset, epoch))
        if rng.random() < 0.1:
            first = rng.randrange(first, offset + 2)
            log.trim_before(Offset(first))
        asked = rng.randrange(max(0, first - 3), offset + 3)
        said = model.get(asked - 1, 0) if rng.random() < 0.8 else rng.randrange(epoch + 1)
        gone = asked < first and not (asked <= 0 and first == 2)
        diverged = asked > 0 and model.get(asked - 1, -1) != said
        expected = None if gone or diverged else list(range(max(asked, 2), offset + 1))
        assert offsets(log.read(Offset(asked), ControllerEpoch(said), 1 << 40)) == expected
