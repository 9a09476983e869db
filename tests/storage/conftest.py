"""A node's logs over a disk in memory, and batches to put into them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypedDict, cast

import pytest

from tidelog.model.ids import NodeId, TopicId
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, patch_batch, split_batches
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.encoder import encode_columns, encode_values
from tidelog.storage.disk.format import format_directory
from tidelog.storage.disk.memory_files import Disk, MemoryFiles
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager

CLUSTER = "cluster"
TOPIC_ID = TopicId(b"t" * 16)


class ProducerFields(TypedDict, total=False):
    """The producer fields of an idempotent batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class ManualClock:
    """Both clocks stand still until they are moved."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class Store:
    """A disk with formatted directories ``/a`` and ``/b``, and one process after the other on it."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.clock = ManualClock()
        self.files = MemoryFiles(self.disk)
        self.managers: list[LogManager] = []
        for path in ("/a", "/b"):
            format_directory(self.files, path, CLUSTER, NodeId(1), random.Random(path))

    def manager(self, **options: Any) -> LogManager:
        """Start a new process's manager."""
        return self.manager_on(MemoryFiles(self.disk), **options)

    def manager_on(self, files: MemoryFiles, **options: Any) -> LogManager:
        """The same, of a process that sees the disk in a way of its own."""
        settings: dict[str, Any] = {"cluster_id": CLUSTER, "node_id": NodeId(1), "directories": ("/a", "/b")}
        self.files = files
        manager = LogManager(files, self.clock, random.Random(5), **(settings | options))
        self.managers.append(manager)
        manager.start()
        return manager

    def restart(self, *, clean: bool = False, power_lost: bool = False) -> LogManager:
        """End the process and start the next one."""
        old = self.managers[-1]
        if clean:
            from tidelog.model.ids import BrokerEpoch

            old.write_clean_shutdown(BrokerEpoch(3))
        old.close()
        self.disk.end_process()
        if power_lost:
            self.disk.lose_power(random.Random(1))
        return self.manager()

    def log(self, config: TopicConfig | None = None, **settings: Any) -> Log:
        """The log of topic ``t``, partition 0, in the newest manager (started if need be)."""
        manager = self.managers[-1] if self.managers else self.manager()
        made = config or TopicConfig(**settings)
        return manager.get_or_create("t", TOPIC_ID, 0, made, manager.directory_ids[0])


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    for manager in made.managers:
        manager.close()


MakeBatch = Callable[..., Batch]


@pytest.fixture
def batch() -> MakeBatch:
    """Makes a client's batch: ``batch(count=1, timestamp=…, producer=(id, epoch, sequence), …)``."""

    def make(
        count: int = 1,
        *,
        timestamp: int = 1_000_000,
        values: Sequence[bytes | None] | None = None,
        keys: Sequence[bytes | None] | None = None,
        producer: tuple[int, int, int] | None = None,
        transactional: bool = False,
        compression: Compression = Compression.NONE,
        at: int | None = None,
        epoch: int = 0,
    ) -> Batch:
        found = [b"value %d" % n for n in range(count)] if values is None else values
        ids: ProducerFields = {}
        if producer is not None:
            ids = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": producer[2]}
        if keys is None:
            without_none = cast(Sequence[bytes], found)  # a None is refused
            raw = encode_values(without_none, timestamp, compression=compression, is_transactional=transactional, **ids)
        else:
            times = [timestamp] * len(found)
            raw = encode_columns(times, keys, found, compression=compression, is_transactional=transactional, **ids)
        if at is not None:
            patch_batch(raw, 0, base_offset=at, leader_epoch=epoch)
        return split_batches(bytes(raw))[0]

    return make
