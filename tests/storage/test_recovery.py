"""Recovery: single situations in which a rule of it matters (see also ``test_crash_safety.py``)."""

from __future__ import annotations

import errno
import random

import pytest

from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.decoder import decode_values
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.disk.memory_files import Faults, Killed, MemoryFiles
from tidelog.storage.log.log import Log
from tidelog.storage.producers.append_checks import LogAppend
from tidelog.storage.segments.log_read import LogRead, TimestampOffset

from .conftest import MakeBatch, Store

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
        assert isinstance(read, LogRead)
        for each in split_batches(read.records):
            found += [(value or b"").decode() for value in decode_values(each)]
        offset = read.next_offset
    return found


def log_file(log: Log, base: int = 0) -> str:
    return f"{log.directory}/{base:020d}.log"


def spoil(store: Store, log: Log, position: int, base: int = 0) -> None:
    """Flip a bit, as a disk would."""
    store.files.flip(log_file(log, base), position)


def write_behind(store: Store, log: Log, batch: Batch) -> None:
    """Put a batch behind the end of the log's file, as no log would."""
    path = log_file(log)
    store.files.open(path).pwritev((batch.view,), store.files.size(path))


@pytest.mark.parametrize(
    ("at", "epoch", "taken"),
    [(1, 5, True), (1, 6, True), (1, 4, False), (2, 5, False), (0, 5, False)],
    ids=["the next", "of a later epoch", "of an older epoch", "behind a gap", "a second time"],
)
def test_what_may_follow(store: Store, batch: MakeBatch, at: int, epoch: int, taken: bool) -> None:
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
def test_garbage_behind_the_end_goes(store: Store, batch: MakeBatch, tail: bytes) -> None:
    log = store.log()
    append(log, one(batch, "a"))
    path = log_file(log)
    store.files.open(path).pwritev((tail,), store.files.size(path))
    store.restart()
    assert texts(store.log()) == ["a"]
    append(store.log(), one(batch, "b"))
    store.restart()
    assert texts(store.log()) == ["a", "b"]


def test_a_valid_batch_behind_a_spoiled_one_never_comes_back(store: Store, batch: MakeBatch) -> None:
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


def test_what_a_sync_failed_to_write_is_written_in_the_end(store: Store, batch: MakeBatch) -> None:
    """The directory fails, the process ends, the machine goes on: its memory has what its disk has not, as clean."""
    for seed in range(40):
        again = type(store)()
        log = again.log()
        append(log, one(batch, "a"))
        log.flush()
        again.managers[-1].checkpoint()
        append(log, one(batch, "b"), one(batch, "c"))
        again.files.faults.rng = random.Random(seed)
        again.files.faults.failing["fdatasync"] = errno.EIO
        with pytest.raises(LogDirFailed):
            log.flush()
        again.disk.end_process()
        again.manager()
        assert texts(again.log()) == ["a", "b", "c"], seed
        again.log().flush()
        again.disk.end_process()
        again.disk.lose_power(random.Random(seed))
        again.manager()
        assert texts(again.log()) == ["a", "b", "c"], seed


def store_points_back(store: Store, log: Log, batch: MakeBatch) -> None:
    """Have the stored recovery point lie before the second batch."""
    path = "/a/recovery-point-offset-checkpoint"
    file = store.files.open(path)
    content = b"0\n1\nt 0 1\n"
    file.truncate(0)
    file.pwritev((content,), 0)
    file.fdatasync()


def test_a_segment_that_was_dropped_never_comes_back(store: Store, batch: MakeBatch) -> None:
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
def test_dropping_segments_can_be_killed_at_any_call(store: Store, batch: MakeBatch, power: bool) -> None:
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
def test_what_a_killed_process_did_is_durable_after_the_next_ones_flush(
    store: Store, batch: MakeBatch, later: str
) -> None:
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


def test_indexes_made_anew_are_durable_with_what_they_index(store: Store, batch: MakeBatch) -> None:
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
def test_what_retention_let_go_stays_gone(store: Store, batch: MakeBatch, of_all: bool) -> None:
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


def test_a_log_start_beyond_the_end_empties_the_log(store: Store, batch: MakeBatch) -> None:
    log = store.log()
    append(log, *(one(batch, text) for text in "abc"))
    log.advance_log_start(3)
    store.managers[-1].checkpoint()
    store.files.content(log_file(log)).clear()
    store.restart()
    assert (store.log().log_start_offset, store.log().log_end_offset) == (3, 3)
    append(store.log(), one(batch, "d"))
    assert texts(store.log()) == ["d"]


def test_a_missing_epoch_file_is_made_from_the_batches(store: Store, batch: MakeBatch) -> None:
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
def test_a_missing_or_spoiled_index_is_made_anew(
    store: Store, batch: MakeBatch, name: str, how: str, clean: bool
) -> None:
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
        assert isinstance(read, LogRead)
        assert (read.first_offset, read.next_offset) == (n, n + 1)
    for n in range(35):
        found = log.offset_for_timestamp(NOW + n, offset_end=35)
        assert isinstance(found, TimestampOffset)
        assert found.offset == n


def test_a_log_never_begins_in_its_midst_after_a_loss_of_power(store: Store, batch: MakeBatch) -> None:
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


@pytest.mark.parametrize("how", ["new", "a killed process's", "a killed process's, amid a flush"])
def test_a_log_whose_first_segment_was_never_flushed_does_not_begin_with_its_second(
    store: Store, batch: MakeBatch, how: str
) -> None:
    ends = set()
    for seed in range(60):
        again = type(store)()
        again.disk.names_in_order = False
        log = again.log()
        append(log, one(batch, "a"))
        if how != "new":
            again.restart()
            log = again.log()
        if "flush" in how:
            log.begin_flush()
        log.roll(NOW)
        append(log, one(batch, "b"))
        again.disk.end_process()
        again.disk.lose_power(random.Random(seed))
        again.manager()
        log = again.log()
        assert (log.log_start_offset, texts(log)) == (0, list("ab")[: log.log_end_offset]), seed
        ends.add(log.log_end_offset)
        again.managers[-1].close()
    assert ends == {0, 1, 2}, "the runs ended too much alike"


@pytest.mark.parametrize("clean", [False, True], ids=["kill", "clean stop"])
def test_a_copy_that_begins_later_is_as_durable_as_one_that_begins_at_zero(
    store: Store, batch: MakeBatch, clean: bool
) -> None:
    """Its process ended before the copy was ever flushed, but after a checkpoint: the next process's first flush must
    make the directory and its metadata durable all the same."""
    for seed in range(30):
        again = type(store)()
        log = again.log()
        log.truncate_fully_and_start_at(100)
        again.managers[-1].checkpoint()
        again.restart(clean=clean)
        log = again.log()
        append(log, one(batch, "a"))
        log.flush()
        again.managers[-1].close()
        again.disk.end_process()
        again.disk.lose_power(random.Random(seed))
        again.manager()
        log = again.log()
        assert (log.log_start_offset, texts(log)) == (100, ["a"]), seed
        again.managers[-1].close()


def test_gaps_in_a_copy_survive_with_what_is_behind_them(store: Store, batch: MakeBatch) -> None:
    """That the log has gaps must be as durable as they are: else recovery takes the first for the log's end."""
    for seed in range(20):
        again = type(store)()
        log = again.log(cleanup_policy=("compact",))
        for at, text in ((0, "a"), (10, "b")):
            assert isinstance(log.append_as_follower(bytes(one(batch, text, at=at).view), NOW), LogAppend)
            log.flush()
        again.managers[-1].close()
        again.disk.end_process()
        again.disk.lose_power(random.Random(seed))
        again.manager()
        assert texts(again.log()) == ["a", "b"], seed
        again.managers[-1].close()


def test_a_log_that_starts_over_at_a_lower_offset_is_not_emptied_by_its_former_start(
    store: Store, batch: MakeBatch
) -> None:
    log = store.log()
    log.truncate_fully_and_start_at(100)
    store.managers[-1].checkpoint()
    log.truncate_fully_and_start_at(50)
    append(log, one(batch, "a"))
    store.restart()
    assert (store.log().log_start_offset, texts(store.log())) == (50, ["a"])


@pytest.mark.parametrize("gaps", [False, True], ids=["dense", "with gaps"])
@pytest.mark.parametrize("boundary", [False, True], ids=["within a segment", "between two"])
def test_a_cut_can_end_at_every_single_call(store: Store, batch: MakeBatch, gaps: bool, boundary: bool) -> None:
    """A loss of power then leaves the log up to the cut, and nothing with a hole in it, whatever order names are lost
    in."""
    size = one(batch, "a").size
    config = TopicConfig(segment_bytes=2 * size, cleanup_policy=("compact",) if gaps else ("delete",))
    step = 0
    done = False
    while not done:
        step += 1
        for seed in range(6):
            again = type(store)()
            again.disk.names_in_order = False
            faults = Faults(random.Random(seed))
            again.manager_on(MemoryFiles(again.disk, faults))
            log = again.log(config)
            for n in range(8):
                log.append_as_follower(bytes(one(batch, f"{n}", at=n * (10 if gaps else 1)).view), NOW)
            assert log.segment_count == 4
            log.flush()
            again.managers[-1].checkpoint()
            faults.kill_at = faults.steps + step
            try:
                log.truncate_to((2 if boundary else 3) * (10 if gaps else 1))
            except Killed:
                least = 2
            else:
                done, least = True, 0
            again.disk.end_process()
            again.disk.lose_power(random.Random(seed))
            again.manager()
            found = texts(again.log(config))
            assert found == list("01234567")[: len(found)], (step, seed)
            assert len(found) >= least, (step, seed)
            assert not done or found == list("012")[: 2 if boundary else 3]
            again.managers[-1].close()
    assert step > 5


def test_a_segment_that_was_cut_off_never_comes_back(store: Store, batch: MakeBatch) -> None:
    """Appends after the cut end where the old segment began: it would fit again."""
    size = one(batch, "a").size
    config = TopicConfig(segment_bytes=2 * size)
    for seed in range(60):
        again = type(store)()
        log = again.log(config)
        append(log, *(one(batch, text) for text in "abcdef"))
        log.flush()
        again.managers[-1].checkpoint()
        assert log.truncate_to(1) == 1
        append(log, one(batch, "x"))
        again.managers[-1].close()
        again.disk.lose_power(random.Random(seed))
        again.manager()
        assert texts(again.log(config)) in (["a"], ["a", "x"]), seed


def producing(batch: MakeBatch, sequence: int) -> Batch:
    return one(batch, f"{sequence}", producer=(7, 0, sequence))


@pytest.mark.parametrize("how", ["recovery", "cut", "cut, then loss of power"])
def test_a_producer_snapshot_beyond_the_logs_end_is_not_believed(store: Store, batch: MakeBatch, how: str) -> None:
    """The batches that it names are gone: a producer that sends them again must not be told that they are
    duplicates."""
    size = producing(batch, 0).size
    other = batch(2)
    config = TopicConfig(segment_bytes=size + other.size)
    for seed in range(30 if "power" in how else 1):
        again = type(store)()
        log = again.log(config)
        append(log, *(producing(batch, n) for n in range(4)))
        assert log.segment_offsets == [0, 2]
        log.flush()
        again.managers[-1].checkpoint()
        if how == "recovery":
            spoil(again, log, size + 65)
            store_points_back(again, log, batch)
            again.restart()
        else:
            assert log.truncate_to(1) == 1
        if "power" in how:
            append(log, other)  # the log is longer again than the snapshot says, by another's records
            assert log.segment_offsets == [0]
            again.managers[-1].close()
            again.disk.lose_power(random.Random(seed))
            again.manager()
        log = again.log(config)
        end = log.log_end_offset
        outcome = log.append_as_leader([producing(batch, 1)], 0, NOW)
        assert isinstance(outcome, LogAppend)
        assert not outcome.duplicate, seed
        assert outcome.base_offset == end
        again.managers[-1].close()
