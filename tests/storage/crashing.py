"""What the crash tests share: a log on a disk in memory beside a model, and one process after another, each killed."""

from __future__ import annotations

import random
from typing import Generic, Protocol, TypeVar

from tidelog.model.ids import NodeId
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.storage.cleaner.cleaning import Cleaning, CleaningLimits
from tidelog.storage.disk.format import format_directory
from tidelog.storage.disk.memory_files import Disk, Faults, MemoryFiles
from tidelog.storage.log.cleaner import LogCleaner
from tidelog.storage.log.log_manager import LogManager

from .conftest import CLUSTER, TOPIC_ID, ManualClock


class CrashModel(Protocol):
    """What the log must hold."""

    high_watermark: int
    floor: int
    """What is before it must survive a loss of power."""
    cutting_to: int | None
    """A truncation to here is under way."""

    @property
    def end(self) -> int: ...


ModelT = TypeVar("ModelT", bound=CrashModel)


class CrashWorkload(Generic[ModelT]):
    """The log of ``t``-0 and its cleaner, in one process after the other."""

    directories: tuple[str, ...] = ("/a",)

    def __init__(self, seed: int, config: TopicConfig, model: ModelT, *, names_in_order: bool = True) -> None:
        self.rng = random.Random(seed)
        self.config = config
        self.clock = ManualClock()
        self.disk = Disk()
        self.disk.names_in_order = names_in_order
        for path in self.directories:
            format_directory(MemoryFiles(self.disk), path, CLUSTER, NodeId(1), self.rng)
        self.model = model
        self.under_way: Cleaning | None = None
        self.swaps = 0

    def boot(self, faults: Faults) -> None:
        """Start the next process."""
        self.under_way = None
        self.manager = LogManager(
            MemoryFiles(self.disk, faults),
            self.clock,
            random.Random(self.rng.random()),
            self.directories,
            cluster_id=CLUSTER,
            node_id=NodeId(1),
            defaults=self.config,
            open_files_max=6,
        )
        self.manager.start()
        self.log = self.manager.get_or_create("t", TOPIC_ID, 0, self.config)
        self.cleaner = LogCleaner(self.manager, lambda log: self.model.high_watermark)
        self.faults = faults

    def end(self) -> None:
        """End the process in good order. Until the next one starts, the workload can be copied with ``deepcopy``."""
        self.manager.close()
        self.disk.end_process()
        del self.manager, self.log, self.cleaner, self.faults

    def flush(self) -> None:
        self.log.flush()
        self.model.floor = self.log.recovery_point

    def checkpoint(self) -> None:
        checkpoint(self.manager)

    def pass_limits(self) -> CleaningLimits:
        """The limits of the cleaner's next pass."""
        raise NotImplementedError

    def begin_pass(self) -> bool:
        """Whether a pass of the cleaner is under way now."""
        if self.under_way is None:
            due = self.cleaner.due(self.clock.ms)
            if not due:
                return False
            (candidate,) = due
            if self.log.stored_recovery_point < candidate.dirt.decided_before_offset:
                self.flush()
                self.manager.store_points(self.log)
            self.under_way = self.cleaner.begin(candidate, self.pass_limits(), self.clock.ms)
            assert self.under_way is not None
        return True

    def reopen(self, *, power: bool) -> None:
        """The process has ended, or the machine has lost its power; the next one starts."""
        self.manager.close()
        if power:
            self.disk.lose_power(self.rng)
        else:
            self.disk.end_process()
        self.boot(Faults())

    def check_end(self, *, power: bool) -> None:
        """Nothing is lost that had to survive."""
        log, model = self.log, self.model
        least = model.floor if power else model.end
        if model.cutting_to is not None:
            least = min(least, model.cutting_to)
            model.cutting_to = None
        assert log.log_end_offset >= least, f"lost: expected {least}, ends at {log.log_end_offset}"


class Steps(Protocol):
    """A workload of any kind."""

    def boot(self, faults: Faults) -> None: ...

    def step(self) -> None: ...


def run_until_killed(work: Steps, faults: Faults) -> None:
    """Raises ``Killed`` when ``faults`` say so."""
    work.boot(faults)
    while True:
        work.step()


def checkpoint(manager: LogManager) -> None:
    """Store what a node stores now and then, and remove what is to go."""
    manager.checkpoint({})
    for job in manager.take_removals():
        job.run()
        manager.finish_removal(job)
