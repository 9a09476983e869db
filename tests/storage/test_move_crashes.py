"""A log that moves between directories is whole in one of them, whatever happens: a kill between any two calls to the
disk, a loss of power, appends, truncation, retention, compaction, other moves, restarts, a directory that fails.

The workloads of :mod:`.test_crash_safety` and :mod:`.test_clean_crashes`, beside their models, with moves among their
steps. As in a cluster, what is appended after a crash or a truncation is of a later leader epoch.
"""

from __future__ import annotations

import errno
import os
import random

import pytest

from tidelog.model.errors import Refusal
from tidelog.model.ids import BrokerEpoch, TopicIdPartition
from tidelog.storage.disk.checkpoints import PARTITION_METADATA, decode_partition_metadata
from tidelog.storage.disk.files import read_file
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.disk.memory_files import Faults, Killed, MemoryFiles
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager

from . import test_crash_safety
from .cleaner import test_clean_crashes
from .crashing import run_until_killed

SEEDS = range(int(os.environ.get("TIDELOG_CRASH_SEEDS", "20")))
"""Set the variable for a longer search."""
DIRECTORIES = ("/a", "/b", "/c")


class Mover:
    """Moves logs at random. ``decided``: how often one came to its end."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.decided = 0

    def step(self, manager: LogManager, log: Log) -> None:
        key = TopicIdPartition(log.topic_id, log.partition)
        actions = (self.begin, self.copy, self.flush, self.decide, self.settle)
        self.rng.choices(actions, (3, 20, 4, 25, 12))[0](manager, log, key)

    def begin(self, manager: LogManager, log: Log, key: TopicIdPartition) -> None:
        """Or go back."""
        target = self.rng.choice(DIRECTORIES)
        assert manager.move(key, log.name, target) is None
        assert (key in manager.moves.under_way) == (not log.directory.startswith(f"{target}/"))

    def copy(self, manager: LogManager, log: Log, key: TopicIdPartition) -> None:
        if key in manager.moves.under_way:
            assert not isinstance(manager.moves.copy(key, self.rng.choice((1, 300, 3_000))), Refusal)

    def flush(self, manager: LogManager, log: Log, key: TopicIdPartition) -> None:
        """Of the copy; or begin one of the log, that a move may overtake."""
        move = manager.moves.under_way.get(key)
        if move is not None:
            move.copy.flush()

    def decide(self, manager: LogManager, log: Log, key: TopicIdPartition) -> None:
        if key not in manager.moves.under_way:
            return
        log.flush()
        for _ in range(self.rng.choice((0, 1, 100))):
            if not manager.moves.copy(key, 3_000):
                break
        if manager.moves.is_ready(key):
            self.finish(manager, log, key)

    def finish(self, manager: LogManager, log: Log, key: TopicIdPartition) -> None:
        target = manager.moves.under_way[key].target.path
        before = (log.log_start_offset, log.log_end_offset, log.epoch_entries, log.producers.all())
        durable = log.recovery_point
        manager.moves.decide(key)
        self.decided += 1
        assert log.directory == f"{target}/{log.name}"
        assert manager.get(log.topic_id, log.partition) is log
        after = (log.log_start_offset, log.log_end_offset, log.epoch_entries, log.producers.all())
        assert after == before
        assert log.recovery_point >= durable

    def settle(self, manager: LogManager, log: Log, key: TopicIdPartition) -> None:
        manager.moves.settle(key)


class MovingWorkload(test_crash_safety.Workload):
    """Logs that are led, followed, cut off and moved."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.mover = Mover(self.rng)

    def step(self) -> None:
        if self.rng.random() < 0.5:
            super().step()
            return
        number = self.rng.randrange(len(self.logs))
        log, partition = self.logs[number], self.partitions[number]
        floor = log.log_end_offset
        flushed = log.recovery_point
        self.mover.step(self.manager, log)
        if log.recovery_point > flushed:
            partition.floor = floor

    def boot(self, faults: Faults) -> None:
        super().boot(faults)
        self.epoch += 1

    def truncate(self, log: Log, partition: test_crash_safety.Partition) -> None:
        super().truncate(log, partition)
        self.epoch += 1

    def check(self, *, power_lost: bool, spoiled: bool = False) -> None:
        super().check(power_lost=power_lost, spoiled=spoiled)
        self.check_only_once()

    def check_only_once(self) -> None:
        """Each log is in one directory, by its name. (One of the name of another topic may be back after a loss of
        power.)"""
        files = MemoryFiles(self.disk)
        for log in self.logs:
            paths = [f"{path}/{log.name}" for path in DIRECTORIES if f"{log.name}" in files.listdir(path)]
            ids = [(path, read_file(files, f"{path}/{PARTITION_METADATA}")) for path in paths]
            there = [log.directory] if log.on_disk else []
            assert [path for path, found in ids if decode_partition_metadata(found) == log.topic_id] == there


@pytest.fixture(autouse=True)
def three_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_crash_safety, "DIRECTORIES", DIRECTORIES)


@pytest.mark.parametrize("how", ["kill", "power loss", "power loss, names in any order"])
@pytest.mark.parametrize("seed", SEEDS)
def test_moving_logs_survive_crash_after_crash(seed: int, how: str) -> None:
    rng = random.Random(seed)
    work = MovingWorkload(seed)
    work.disk.names_in_order = "any" not in how
    for _ in range(8):
        faults = Faults(rng)
        faults.kill_at = rng.choice((20, 200, 1_000)) + rng.randrange(200)
        with pytest.raises(Killed):
            run_until_killed(work, faults)
        test_crash_safety.crash(work, rng, power="power" in how)
        work.manager.close()
    work.boot(Faults())
    for steps in range(4_000):
        work.step()
        if steps > 300 and work.mover.decided > 1:
            break
    work.check(power_lost=False)
    work.manager.close()
    assert work.mover.decided > 1


class MovingCleanWorkload(test_clean_crashes.Workload):
    """A log that is compacted and moved."""

    directories = DIRECTORIES

    def __init__(self, seed: int, *, ordered: bool = True) -> None:
        super().__init__(seed, ordered=ordered)
        self.mover = Mover(self.rng)

    def boot(self, faults: Faults) -> None:
        super().boot(faults)
        self.epoch += 1

    def truncate(self) -> None:
        super().truncate()
        self.epoch += 1

    def step(self) -> None:
        if self.rng.random() < 0.6:
            super().step()
            return
        self.mover.step(self.manager, self.log)
        self.model.floor = max(self.model.floor, self.log.recovery_point)


@pytest.mark.parametrize("how", ["kill", "power loss", "power loss, names in any order"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_compacted_log_that_moves_keeps_the_latest_of_each_key(seed: int, how: str) -> None:
    rng = random.Random(seed)
    work = MovingCleanWorkload(seed, ordered="any" not in how)
    for _ in range(6):
        faults = Faults(rng)
        faults.kill_at = rng.choice((60, 400, 1_500)) + rng.randrange(400)
        with pytest.raises(Killed):
            run_until_killed(work, faults)
        work.crash(power="power" in how)
        work.manager.close()
    work.boot(Faults())
    for steps in range(4_000):
        work.step()
        if steps > 300 and work.mover.decided > 1:
            break
    work.check()
    work.manager.close()
    assert work.mover.decided > 1
    assert work.swaps > 1


def ready(seed: int, faults: Faults) -> tuple[MovingWorkload, TopicIdPartition]:
    """A log with all that a log can have, whose copy has all of it."""
    work = MovingWorkload(seed)
    work.boot(faults)
    log, partition = work.logs[0], work.partitions[0]
    for _ in range(25):
        work.lead(log, partition)
    log.advance_log_start(7)
    work.flush(log, partition)
    work.checkpoint(log, partition)
    key = TopicIdPartition(log.topic_id, 0)
    assert work.manager.move(key, log.name, "/b") is None
    while work.manager.moves.copy(key, 3_000):
        pass
    return work, key


@pytest.mark.parametrize("how", ["kill", "power loss", "power loss, names in any order"])
def test_a_move_can_end_at_every_single_call(how: str) -> None:
    """And the next start at every single call of its own."""
    for step in range(1, 200):
        for restart in (0, 1 + step % 60):
            faults = Faults(random.Random(step))
            work, key = ready(1, faults)
            work.disk.names_in_order = "any" not in how
            faults.kill_at = faults.steps + step
            try:
                work.mover.finish(work.manager, work.logs[0], key)
            except Killed:
                rng = random.Random(step)
                if restart:
                    work.disk.lose_power(rng) if "power" in how else work.disk.end_process()
                    again = Faults(random.Random(step))
                    again.kill_at = restart
                    try:
                        work.boot(again)
                    except Killed:
                        work.manager.close()
                test_crash_safety.crash(work, rng, power="power" in how)
                work.manager.close()
                continue
            assert step > 15, "the move took next to no calls"
            return
    raise AssertionError("the move took more calls than were tried")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_an_error_at_every_single_call_leaves_one_log(number: int) -> None:
    """In the directory that works or in the one that failed; a start at which both work has it."""
    for step in range(1, 200):
        faults = Faults(random.Random(step))
        work, key = ready(1, faults)
        log = work.logs[0]
        work.lead(log, work.partitions[0])
        work.manager.moves.copy(key, 3_000)
        faults.fail_at, faults.number = faults.steps + step, number
        told: list[bytes] = []
        work.manager.moves.on_moved = lambda key, directory_id, told=told: told.append(directory_id)  # type: ignore[misc]
        try:
            work.mover.finish(work.manager, log, key)
        except LogDirFailed as failure:
            assert failure.cause.errno == number
            lies_in = log.directory.rpartition("/")[0]
            assert (lies_in == "/b") == bool(told)
            in_service = work.manager.get(log.topic_id, 0)
            assert in_service is (None if lies_in in work.manager.failures else log)
            assert not work.manager.moves.under_way
            work.manager.close()
        else:
            if not work.manager.failures:
                assert step > 15, "the move took next to no calls"
                return
            assert list(work.manager.failures) == ["/a"], "the move is decided, only what is left there is not tidy"
            assert work.manager.get(log.topic_id, 0) is log
            work.manager.close()
        test_crash_safety.crash(work, random.Random(step), power=False)
        work.manager.close()
    raise AssertionError("the move took more calls than were tried")


def test_a_clean_stop_keeps_moves_and_what_they_left() -> None:
    work, key = ready(1, Faults())
    log = work.logs[0]
    work.mover.finish(work.manager, log, key)
    assert work.manager.move(key, log.name, "/c") is None
    assert work.manager.moves.copy(key, 500)
    work.manager.write_clean_shutdown(BrokerEpoch(5))
    work.manager.close()
    work.disk.end_process()
    work.boot(Faults())
    assert work.manager.clean_shutdown_epoch() == 5
    assert work.logs[0].directory == f"/b/{log.name}"
    move = work.manager.moves.under_way[key]
    assert move.target.path == "/c"
    assert move.copy.log_end_offset > move.copy.log_start_offset
    while work.manager.moves.copy(key, 500):
        pass
    assert not work.manager.moves.is_ready(key), "the controller does not know of the first move yet"
    work.manager.moves.settle(key)
    work.mover.finish(work.manager, work.logs[0], key)
    work.manager.close()
    test_crash_safety.crash(work, random.Random(1), power=True)
    assert work.logs[0].directory == f"/c/{log.name}"
