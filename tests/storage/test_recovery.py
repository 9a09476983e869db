"""Recovery: single situations in which a rule of it matters (see also ``test_crash_safety.py``)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tidelog.model.topic_config import TopicConfig
from tidelog.proto.record_decoder import decode_values
from tidelog.proto.records import Batch, split_batches
from tidelog.storage.append_checks import LogAppend
from tidelog.storage.log import Log
from tidelog.storage.memory_files import Faults, Killed, MemoryFiles

MakeBatch = Callable[..., Batch]
NOW = 1_000_000


def one(batch: MakeBatch, text: str, **settings: object) -> Batch:
    """A batch of one record; all of them are of one size."""
    return batch(values=[text.encode()], **settings)


def append(log: Log, *batches: Batch, epoch: int = 0) -> None:
    for each in batches:
        assert isinstance(log.append_as_leader([each], epoch, NOW), LogAppend)


def texts(log: Log) -> list[str]:
    found: list[str] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20, offset_end=log.log_end_offset)
        for each in split_batches(read.records):
            found += [(value or b"").decode() for value in decode_values(each)]
        offset = read.next_offset
    return found


def log_file(log: Log, base: int = 0) -> str:
    return f"{log.directory}/{base:020d}.log"


def spoil(store, log: Log, position: int, base: int = 0) -> None:
    """Flip a bit, as a disk would."""
    store.files.flip(log_file(log, base), position)


def write_behind(store, log: Log, batch: Batch) -> None:
    """Put a batch behind the end of the log's file, as no log would."""
    path = log_file(log)
    store.files.open(path).pwritev((batch.view,), store.files.size(path))


@pytest.mark.parametrize(
    ("at", "epoch", "taken"),
    [(1, 5, True), (1, 6, True), (1, 4, False), (2, 5, False), (0, 5, False)],
    ids=["the next", "of a later epoch", "of an older epoch", "behind a gap", "a second time"],
)
def test_what_may_follow(store, batch: MakeBatch, at: int, epoch: int, taken: bool) -> None:
    log = store.log()
    append(log, one(batch, "a"), epoch=5)
    write_behind(store, log, one(batch, "b", at=at, epoch=epoch))
    store.restart()
    assert texts(store.log()) == ["a", "b"][: 1 + taken]
    assert store.files.size(log_file(log)) == (1 + taken) * one(batch, "a").size


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 10, b"\0" * 5_000, b"\xff" * 100, b"\x7f" * 61],
    ids=["short", "zeros", "ones", "a length beyond the end"],
)
def test_garbage_behind_the_end_goes(store, batch: MakeBatch, tail: bytes) -> None:
    log = store.log()
    append(log, one(batch, "a"))
    path = log_file(log)
    store.files.open(path).pwritev((tail,), store.files.size(path))
    store.restart()
    assert texts(store.log()) == ["a"]
    append(store.log(), one(batch, "b"))
    store.restart()
    assert texts(store.log()) == ["a", "b"]


def test_a_valid_batch_behind_a_spoiled_one_never_comes_back(store, batch: MakeBatch) -> None:
    """It was cut off; the batch written in the place of the spoiled one has the same size, so it would fit again."""
    size = one(batch, "a").size
    for seed in range(60):
        again = type(store)()
        log = again.log()
        append(log, *(one(batch, text) for text in "abc"))
        log.flush()
        again.managers[-1].checkpoint()
        spoil(again, log, size + 65)
        store_points_back(again, log, batch)
        again.restart()
        assert texts(again.log()) == ["a"]
        append(again.log(), one(batch, "x"))
        again.managers[-1].close()
        again.disk.lose_power(random.Random(seed))
        again.manager()
        assert texts(again.log()) in (["a"], ["a", "x"]), seed


def store_points_back(store, log: Log, batch: MakeBatch) -> None:
    """Have the stored recovery point lie before the second batch."""
    path = "/a/recovery-point-offset-checkpoint"
    file = store.files.open(path)
    content = b"0\n1\nt 0 1\n"
    file.truncate(0)
    file.pwritev((content,), 0)
    file.fdatasync()


def test_a_segment_that_was_dropped_never_comes_back(store, batch: MakeBatch) -> None:
    size = one(batch, "a").size
    config = TopicConfig(segment_bytes=2 * size)
    for seed in range(60):
        again = type(store)()
        log = again.log(config)
        append(log, *(one(batch, text) for text in "abcd"))
        log.flush()
        again.managers[-1].checkpoint()
        spoil(again, log, size + 65)
        store_points_back(again, log, batch)
        again.restart()
        assert texts(again.log(config)) == ["a"]
        append(again.log(config), one(batch, "x"))  # ends where the dropped segment began
        again.managers[-1].close()
        again.disk.lose_power(random.Random(seed))
        again.manager()
        assert texts(again.log(config)) in (["a"], ["a", "x"]), seed


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
def test_dropping_segments_can_be_killed_at_any_call(store, batch: MakeBatch, power: bool) -> None:
    """In a log with gaps a later segment would fit behind any earlier one."""
    size = one(batch, "a").size
    config = TopicConfig(segment_bytes=2 * size, cleanup_policy=("compact",))
    for step in range(1, 200):
        again = type(store)()
        log = again.log(config)
        for n in range(8):
            log.append_as_follower(bytes(one(batch, f"{n}", at=10 * n).view), NOW)
        assert log.segment_count == 4
        log.flush()
        assert log.segment_offsets == [0, 11, 31, 51]
        spoil(again, log, size + 65, base=11)
        again.managers[-1].close()
        again.disk.end_process()
        faults = Faults(random.Random(step))
        faults.kill_at = step
        try:
            again.manager_on(MemoryFiles(again.disk, faults))
        except Killed:
            again.disk.end_process()
            if power:
                again.disk.lose_power(random.Random(step))
            again.manager()
        else:
            assert step > 20
            return
        assert texts(again.log(config)) == ["0", "1", "2"], step
        again.managers[-1].close()
    raise AssertionError("the start took more calls than were tried")


@pytest.mark.parametrize("later", ["b", "bcdef"])
def test_what_a_killed_process_did_is_durable_after_the_next_ones_flush(store, batch: MakeBatch, later: str) -> None:
    """New segments of the old process are in no directory on disk until somebody syncs their names."""
    size = one(batch, "a").size
    config = TopicConfig(segment_bytes=size)
    for seed in range(30):
        again = type(store)()
        log = again.log(config)
        append(log, one(batch, "a"))
        log.flush()
        again.managers[-1].checkpoint()
        append(log, *(one(batch, text) for text in later))
        again.restart()
        log = again.log(config)
        log.flush()
        assert log.recovery_point == 1 + len(later)
        again.managers[-1].close()
        again.disk.lose_power(random.Random(seed))
        again.manager()
        assert texts(again.log(config)) == list("a" + later)


def test_indexes_made_anew_are_durable_with_what_they_index(store, batch: MakeBatch) -> None:
    size = one(batch, "a").size
    config = TopicConfig(segment_bytes=4 * size, index_interval_bytes=size // 2)
    for seed in range(20):
        again = type(store)()
        again.manager(defaults=config)
        log = again.log(config)
        append(log, *(one(batch, text, timestamp=NOW + n) for n, text in enumerate("abcdefghij")))
        again.managers[-1].close()
        again.manager(defaults=config)
        log = again.log(config)
        log.flush()
        again.managers[-1].checkpoint()
        indexes = [path for path in again.files.paths(log.directory) if "index" in path and f"{8:020d}" not in path]
        whole = [bytes(again.files.content(path)) for path in indexes]
        assert len(whole) == 4
        assert all(whole)
        again.managers[-1].close()
        again.disk.lose_power(random.Random(seed))
        assert [bytes(again.files.content(path)) for path in indexes] == whole


@pytest.mark.parametrize("of_all", [False, True], ids=["one log", "all logs"])
def test_what_retention_let_go_stays_gone(store, batch: MakeBatch, of_all: bool) -> None:
    size = one(batch, "a").size
    config = TopicConfig(segment_bytes=size, retention_ms=-1, retention_bytes=2 * size)
    for seed in range(20):
        again = type(store)()
        log = again.log(config)
        append(log, *(one(batch, text) for text in "abcdef"))
        log.flush()
        if of_all:
            assert again.managers[-1].run_retention(NOW, lambda log: log.log_end_offset) == 4
        else:
            assert log.apply_retention(NOW, 6) == 4
        again.managers[-1].close()
        again.disk.lose_power(random.Random(seed))
        again.manager()
        assert texts(again.log(config)) == ["e", "f"], seed


def test_a_log_start_beyond_the_end_empties_the_log(store, batch: MakeBatch) -> None:
    log = store.log()
    append(log, *(one(batch, text) for text in "abc"))
    log.advance_log_start(3)
    store.managers[-1].checkpoint()
    store.files.content(log_file(log)).clear()
    store.restart()
    assert (store.log().log_start_offset, store.log().log_end_offset) == (3, 3)
    append(store.log(), one(batch, "d"))
    assert texts(store.log()) == ["d"]


def test_a_missing_epoch_file_is_made_from_the_batches(store, batch: MakeBatch) -> None:
    size = one(batch, "a").size
    config = TopicConfig(segment_bytes=2 * size)
    log = store.log(config)
    for epoch, text in enumerate("abcde"):
        append(log, one(batch, text), epoch=epoch)
    for spoiled in (None, b"", b"0\n9\n1 1\n"):
        store.restart(clean=True)
        path = f"{log.directory}/leader-epoch-checkpoint"
        store.managers[-1].close()
        if spoiled is None:
            store.files.unlink(path)
        else:
            store.files.content(path)[:] = spoiled
        store.manager()
        assert store.log(config).epoch_entries == [(epoch, epoch) for epoch in range(5)]


@pytest.mark.parametrize("name", ["index", "timeindex"])
@pytest.mark.parametrize("how", ["missing", "empty", "short", "zeros", "noise", "one too far"])
@pytest.mark.parametrize("clean", [False, True], ids=["kill", "clean stop"])
def test_a_missing_or_spoiled_index_is_made_anew(store, batch: MakeBatch, name: str, how: str, clean: bool) -> None:
    size = one(batch, "00").size
    config = TopicConfig(segment_bytes=10 * size, index_interval_bytes=1)
    log = store.log(config)
    append(log, *(one(batch, f"{n:02}", timestamp=NOW + n) for n in range(35)))
    log.flush()
    store.managers[-1].checkpoint()
    if clean:
        store.restart(clean=True)
    store.managers[-1].close()
    for path in store.files.paths(log.directory):
        if path.endswith("." + name):
            content = store.files.content(path)
            if how == "missing":
                store.files.unlink(path)
            elif how == "empty":
                content.clear()
            elif how == "short":
                del content[len(content) // 2 :]
            elif how == "zeros":
                content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
            elif how == "noise":
                content[:] = random.Random(1).randbytes(len(content))
            elif len(content) > 48:
                # the entry in the middle names the place that belongs to a later one
                entry = 8 if name == "index" else 12
                at = len(content) // entry // 2 * entry
                content[at + entry - 4 : at + entry] = content[at + 4 * entry - 4 : at + 4 * entry]
    store.manager()
    log = store.log(config)
    assert texts(log) == [f"{n:02}" for n in range(35)]
    for n in reversed(range(35)):  # in this order no read knows where the one before it ended
        read = log.read(n, 1, offset_end=35)
        assert (read.first_offset, read.next_offset) == (n, n + 1)
    for n in range(35):
        assert log.offset_for_timestamp(NOW + n, offset_end=35).offset == n


def test_a_log_never_begins_in_its_midst_after_a_loss_of_power(store, batch: MakeBatch) -> None:
    """On a disk where the names in a directory become durable in any order, too."""
    ends = set()
    for seed in range(80):
        again = type(store)()
        again.disk.names_in_order = False
        log = again.log()
        for text in "abcd":
            append(log, one(batch, text))
            log.roll(NOW)
            if seed % 3 == 0:
                again.managers[-1].checkpoint()
        again.managers[-1].close()
        again.disk.lose_power(random.Random(seed))
        again.manager()
        log = again.log()
        assert log.log_start_offset == 0
        assert texts(log) == list("abcd")[: log.log_end_offset]
        ends.add(log.log_end_offset)
    assert len(ends) > 2, "every run ended alike"
