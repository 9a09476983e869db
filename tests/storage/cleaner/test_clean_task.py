"""The background task that compacts: one log after the other, at its pace, and nothing stops it but its node."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable

import pytest

from tests.storage.conftest import MakeBatch, Store
from tests.storage.producers.test_transaction_index import marker, put
from tidelog.broker.logs.log_cleaning import STUCK_MS, LogCleaning
from tidelog.model.ids import TopicId
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.replication.flushing import run_inline
from tidelog.storage.log.log import Log
from tidelog.storage.producers.append_checks import LogAppend

NOW = 1_000_000
CONFIG = TopicConfig(cleanup_policy=("compact",), segment_bytes=1_000, min_cleanable_dirty_ratio=0.0)


class Task:
    """A cleaner over the newest manager of a store, and its settings."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.config = NodeConfig.parse({"node.id": "1"})
        self.manager = store.managers[-1] if store.managers else store.manager()
        self.cleaning = LogCleaning(
            lambda: self.config, self.manager, lambda log: log.log_end_offset, store.clock, self.run_blocking
        )
        self.slices = 0
        self.before_slice: Callable[[], None] = lambda: None

    async def run_blocking(self, work: Callable[[], None]) -> None:
        self.slices += 1
        self.before_slice()
        await asyncio.sleep(0)
        await run_inline(work)

    def set(self, **settings: object) -> None:
        self.config = dataclasses.replace(self.config, **settings)  # type: ignore[arg-type]

    def log(self, name: str, batch: MakeBatch, count: int = 100) -> Log:
        rng = random.Random(name)
        made: Log = self.manager.get_or_create(
            name, TopicId(name.encode().ljust(16)), 0, CONFIG, self.manager.directory_ids[0]
        )
        for number in range(count):
            keyed = batch(values=[b"%d" % number], keys=[b"k%d" % rng.randrange(5)])
            assert isinstance(made.append_as_leader([keyed], 0, NOW), LogAppend)
        return made


@pytest.fixture
async def task(store: Store) -> Task:
    return Task(store)


async def test_the_dirtiest_log_comes_first_and_all_are_cleaned_in_the_end(task: Task, batch: MakeBatch) -> None:
    small, large = task.log("small", batch, 60), task.log("large", batch, 200)
    assert await task.cleaning.clean_dirtiest()
    assert task.manager.clean_offset(large) > 0
    task.log("large", batch, 20)
    assert [found.log for found in task.cleaning.cleaner.due(NOW)] == [small, large]
    while await task.cleaning.clean_dirtiest():
        pass
    assert small.size_bytes < 2_000
    assert large.size_bytes < 2_000
    assert task.cleaning.passes == 3
    assert 0 < task.cleaning.bytes_written < task.cleaning.bytes_read
    assert task.cleaning.last.buffer_use > 0
    assert task.cleaning.cleaner.dirty_ratio_max == 0


async def test_several_at_once(task: Task, batch: MakeBatch) -> None:
    task.set(log_cleaner_threads=3)
    logs = [task.log(name, batch) for name in ("a", "b", "c", "d")]
    assert await task.cleaning.clean_dirtiest()
    assert sum(task.manager.clean_offset(log) > 0 for log in logs) == 3


async def test_the_log_is_made_durable_before_it_is_cleaned(task: Task, batch: MakeBatch) -> None:
    log = task.log("a", batch)
    assert log.stored_recovery_point == 0
    assert await task.cleaning.clean_dirtiest()
    assert log.stored_recovery_point >= task.manager.clean_offset(log) > 0


async def test_the_marker_that_decided_is_durable_before_the_log_is_cleaned(task: Task, batch: MakeBatch) -> None:
    """A loss of power must not take a marker behind the cleaned part and leave what went because of it."""
    log = task.log("a", batch, 1)
    aborted = batch(values=[b"v"], keys=[b"k"], producer=(7, 0, 0), transactional=True)
    begun = put(log, aborted)
    while log.segment_offsets[-1] <= begun.base_offset:
        put(log, batch(values=[b"v"], keys=[b"k"]))
    log.flush()
    decided = put(log, marker(7, 0, abort=True))
    assert await task.cleaning.clean_dirtiest()
    assert task.manager.clean_offset(log) > begun.base_offset, "nothing was cleaned"
    task.store.restart(power_lost=True)
    (again,) = task.store.managers[-1].logs()
    assert again.log_end_offset > decided.base_offset
    assert again.last_stable_offset(again.log_end_offset) == again.log_end_offset


async def test_it_looks_again_after_the_backoff_and_no_sooner(task: Task, batch: MakeBatch) -> None:
    task.set(log_cleaner_backoff_ms=50)
    running = asyncio.create_task(task.cleaning.run())
    await asyncio.sleep(0)
    looked = task.store.clock.ms
    log = task.log("a", batch)
    await asyncio.sleep(0.01)
    assert task.manager.clean_offset(log) == -1
    task.store.clock.ms += 7
    assert task.cleaning.since_moved_ms == task.store.clock.ms - looked
    async with asyncio.timeout(100):
        while task.manager.clean_offset(log) < 0:
            await asyncio.sleep(0.01)
    assert task.cleaning.since_moved_ms == 0
    assert task.cleaning.running
    running.cancel()
    await asyncio.wait((running,))
    assert not task.cleaning.running


async def test_a_disk_that_does_not_answer_is_told(task: Task, batch: MakeBatch) -> None:
    log = task.log("a", batch)
    task.set(log_cleaner_io_buffer_size=4096)
    answers = asyncio.Event()
    work = task.run_blocking

    async def hang(step: Callable[[], None]) -> None:
        await work(step)
        if task.slices > 3:
            await answers.wait()

    task.cleaning._run_blocking = hang
    running = asyncio.create_task(task.cleaning.run())
    allowed_ms = STUCK_MS + task.config.log_cleaner_backoff_ms
    async with asyncio.timeout(100):
        while task.slices <= 3:
            task.store.clock.ms += 1_000
            await asyncio.sleep(0)
    assert task.cleaning.since_moved_ms < 10_000, "each slice counts"
    task.store.clock.ms += allowed_ms - task.cleaning.since_moved_ms
    told = [task.cleaning.dead]
    task.store.clock.ms += 1
    told.append(task.cleaning.dead)
    answers.set()
    async with asyncio.timeout(100):
        while task.manager.clean_offset(log) < 0:
            await asyncio.sleep(0)
    told.append(task.cleaning.dead)
    running.cancel()
    await asyncio.wait((running,))
    told.append(task.cleaning.dead)
    assert told == [False, True, False, True]


async def test_the_rate_is_kept(task: Task, batch: MakeBatch) -> None:
    log = task.log("a", batch, 400)
    rate = 4 * log.size_bytes  # a pass reads it twice and writes little
    task.set(log_cleaner_io_max_bytes_per_second=float(rate), log_cleaner_io_buffer_size=4096)
    now = asyncio.get_running_loop().time
    begun = now()
    assert await task.cleaning.clean_dirtiest()
    assert now() - begun >= 0.25


async def test_a_bug_in_one_logs_pass_leaves_the_task_and_the_others(
    task: Task, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = task.log("bad", batch, 200), task.log("good", batch, 100)
    real = Log.swap_in

    def swap_in(log: Log, cleaning: object) -> bool:
        if log is bad:
            raise RuntimeError("a bug")
        return real(log, cleaning)  # type: ignore[arg-type]

    monkeypatch.setattr(Log, "swap_in", swap_in)
    while await task.cleaning.clean_dirtiest() or task.manager.clean_offset(good) < 0:
        pass
    assert "a bug" in caplog.text
    assert [(each.directory, each.logs) for each in task.cleaning.uncleanable()] == [("/a", 1), ("/b", 0)]
    assert task.manager.clean_offset(bad) == -1
    task.manager.delete(bad)
    assert [each.logs for each in task.cleaning.uncleanable()] == [0, 0]


async def test_a_task_that_is_cancelled_gives_back_what_it_held(task: Task, batch: MakeBatch) -> None:
    log = task.log("a", batch)
    running = asyncio.create_task(task.cleaning.run())
    while task.slices < 3:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait((running,))
    assert running.cancelled()
    assert await task.cleaning.clean_dirtiest()
    assert task.manager.clean_offset(log) > 0


@pytest.mark.parametrize("name", ["delete", "truncate", "close"])
async def test_what_happens_to_the_log_meanwhile_ends_the_pass(task: Task, batch: MakeBatch, name: str) -> None:
    log = task.log("a", batch)
    what: dict[str, Callable[[], object]] = {
        "delete": lambda: task.manager.delete(log),
        "truncate": lambda: log.truncate_to(40),
        "close": log.close,
    }

    def meanwhile() -> None:
        if task.slices == 3:
            what[name]()

    task.before_slice = meanwhile
    assert not await task.cleaning.clean_dirtiest()
    assert task.cleaning.passes == 0
    assert [each.logs for each in task.cleaning.uncleanable()] == [0, 0]
