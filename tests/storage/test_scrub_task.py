"""The scrub: every segment once in its time, at its pace, on across restarts, and at once where somebody complained."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from collections.abc import Callable

import pytest

from tidelog.broker.logs.log_scrubbing import LogScrubbing
from tidelog.model.errors import Refusal
from tidelog.model.ids import BrokerEpoch, TopicId
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.replication.flushing import run_inline
from tidelog.storage.log.log import Log

from .conftest import MakeBatch, Store

NOW = 1_000_000


class Task:
    """A scrub over the newest manager of a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.config = NodeConfig.parse({"node.id": "1"})
        self.set(log_scrub_interval_ms=0, log_scrub_io_max_bytes_per_second=1e12)
        self.begin()
        self.before_slice: Callable[[], object] = lambda: None

    def begin(self) -> None:
        self.manager = self.store.managers[-1] if self.store.managers else self.store.manager()
        self.scrubbing = LogScrubbing(lambda: self.config, self.manager, self.run_blocking)

    async def run_blocking(self, work: Callable[[], None]) -> None:
        self.before_slice()
        await run_inline(work)

    def set(self, **settings: object) -> None:
        self.config = dataclasses.replace(self.config, **settings)  # type: ignore[arg-type]

    def log(self, name: str, batch: MakeBatch, count: int = 100) -> Log:
        made: Log = self.manager.get_or_create(
            name, TopicId(name.encode().ljust(16)), 0, TopicConfig(segment_bytes=1000), self.manager.directory_ids[0]
        )
        for _ in range(count):
            assert not isinstance(made.append_as_leader([batch(3)], 0, NOW), Refusal)
        return made

    def spoil(self, log: Log, segment: int) -> None:
        path = f"{log.directory}/{log.segment_offsets[segment]:020d}.log"
        self.store.files.flip(path, 100)


@pytest.fixture
async def task(store: Store) -> Task:
    return Task(store)


async def test_every_segment_of_every_log_is_read_once_a_pass(task: Task, batch: MakeBatch) -> None:
    logs = [task.log(name, batch) for name in "abc"]
    for log in logs:
        for segment in (0, 1, log.segment_count - 1):
            task.spoil(log, segment)
    await task.scrubbing.examine_all()
    assert task.scrubbing.passes == 1
    assert task.scrubbing.damage_found == 9
    assert {log.name.topic: len(damage) for log, damage in task.scrubbing.damaged.items()} == {"a": 3, "b": 3, "c": 3}
    assert task.scrubbing.bytes_read >= sum(log.size_bytes for log in logs)
    await task.scrubbing.examine_all()
    assert task.scrubbing.passes == 2
    assert task.scrubbing.damage_found == 9


async def test_a_restart_goes_on_where_the_pass_was(task: Task, batch: MakeBatch) -> None:
    for name in "abcd":
        task.log(name, batch)
    size = sum(log.size_bytes for log in task.manager.logs())
    while task.scrubbing.bytes_read < size // 2:
        assert await task.scrubbing.go_on()
    read = task.scrubbing.bytes_read
    task.manager.store_scrub_offsets()
    task.manager.write_clean_shutdown(BrokerEpoch(1))
    task.store.restart()
    task.begin()
    await task.scrubbing.examine_all()
    assert task.scrubbing.passes == 1
    assert size - read <= task.scrubbing.bytes_read < size - read + 4_000
    await task.scrubbing.examine_all()
    assert task.scrubbing.passes == 2
    assert task.scrubbing.bytes_read > size


async def test_a_restart_begins_with_the_damage_that_was_known(task: Task, batch: MakeBatch) -> None:
    log = task.log("a", batch)
    task.spoil(log, 2)
    while len(task.scrubbing.damaged.get(log, ())) < 1 or task.manager.scrub_offset(log) < log.segment_offsets[8]:
        assert await task.scrubbing.go_on()
    [known] = task.scrubbing.damaged[log]
    task.manager.store_scrub_offsets()
    assert task.manager.scrub_offset(log) >= log.segment_offsets[8]  # this pass goes on
    task.manager.write_clean_shutdown(BrokerEpoch(1))
    task.store.restart()
    task.begin()
    log = task.log("a", batch, 0)
    assert not log.damage
    assert await task.scrubbing.go_on()
    assert [found for _, found in log.damage] == [known]


async def test_it_takes_its_time_and_keeps_to_its_budget(
    task: Task, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = task.log("a", batch, 400)
    now = asyncio.get_running_loop().time
    task.set(log_scrub_io_max_bytes_per_second=log.size_bytes * 2.0)
    running = asyncio.create_task(task.scrubbing.run())
    begun = now()
    while not task.scrubbing.passes:
        await asyncio.sleep(0.01)
    assert now() - begun > 0.4
    task.set(log_scrub_interval_ms=1000 * log.size_bytes, log_scrub_io_max_bytes_per_second=1e12)
    await asyncio.sleep(1.2)
    read = task.scrubbing.bytes_read
    await asyncio.sleep(0.3)
    assert task.scrubbing.bytes_read == read  # a byte a second is the pace now
    running.cancel()
    await asyncio.wait((running,))


async def test_where_somebody_met_damage_is_looked_at_though_no_pass_is_wanted(task: Task, batch: MakeBatch) -> None:
    log = task.log("a", batch)
    task.set(log_scrub_interval_ms=-1)
    task.spoil(log, 3)
    log.suspect(log.segment_offsets[3] + 1)
    running = asyncio.create_task(task.scrubbing.run())
    await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.wait((running,))
    assert len(task.scrubbing.damaged[log]) == 1
    assert 0 < task.scrubbing.bytes_read < log.size_bytes // 3


async def test_a_disk_that_fails_is_the_directorys_failure(task: Task, batch: MakeBatch) -> None:
    log = task.log("a", batch)
    task.before_slice = lambda: task.store.files.faults.failing.update(pread=errno.EIO)
    await task.scrubbing.examine_all()
    assert log.closed
    assert list(task.manager.failures) == ["/a"]


@pytest.mark.parametrize("what", ["delete", "truncate"])
async def test_a_log_that_changes_meanwhile_is_no_trouble(task: Task, batch: MakeBatch, what: str) -> None:
    log, other = task.log("a", batch), task.log("b", batch)
    task.spoil(other, 2)
    changes: dict[str, Callable[[], object]] = {
        "delete": lambda: task.manager.delete(log),
        "truncate": lambda: log.truncate_to(40),
    }

    def meanwhile() -> None:
        task.before_slice = lambda: None
        changes[what]()

    task.before_slice = meanwhile
    await task.scrubbing.examine_all()
    assert task.scrubbing.passes == 1
    assert list(task.scrubbing.damaged) == [other]
    assert not task.manager.failures


async def test_a_log_that_grows_all_the_time_does_not_keep_a_pass_from_its_end(task: Task, batch: MakeBatch) -> None:
    log = task.log("a", batch)
    task.before_slice = lambda: log.append_as_leader([batch(3)], 0, NOW)
    for _ in range(1000):
        if not await task.scrubbing.go_on():
            break
    assert task.scrubbing.passes == 1
    task.spoil(log, 1)
    for _ in range(1000):
        if not await task.scrubbing.go_on():
            break
    assert len(task.scrubbing.damaged[log]) == 1
