"""The workload of a compacted topic: writers of few keys, and readers from its start, while nodes' cleaners work."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from tidelog.chaos.checkers.keyed_history import Scan
from tidelog.chaos.laboratory.history.keyed_lines import write_scan, write_sent
from tidelog.chaos.laboratory.workloads.client_world import Surroundings
from tidelog.chaos.laboratory.workloads.workload import ClientWork
from tidelog.chaos.workloads.keyed import KeyedReader, KeyedWriter
from tidelog.model.ids import TopicPartition

TOPIC: Final = "keyed"
PARTITIONS: Final = 3
WRITERS: Final = ("keyed-w0", "keyed-w1")
READERS: Final = ("keyed-r0", "keyed-r1")
KEYS: Final = (60, 200, 600)
"""With this many keys, some are written so seldom that their latest values are where cleaners work."""
CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "segment.ms": "1500",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "500",
    "delete.retention.ms": "120000",  # no fault keeps a replica away for that long
}


class KeyedWork(ClientWork):
    """Two writers, two readers, one compacted topic."""

    topics: Mapping[str, int] = {TOPIC: PARTITIONS}
    configs: Mapping[str, Mapping[str, str]] = {TOPIC: CONFIG}

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings, TOPIC, rates=len(WRITERS))
        self._history = surroundings.history
        self._keys = [b"k%d" % number for number in range(surroundings.rng("keyed").choice(KEYS))]
        self._scans = Counter(dict.fromkeys(READERS, 0))
        self._scanned: dict[tuple[str, TopicPartition], int] = {}
        """How far each reader got last."""
        self._cleaned = asyncio.Event()

    async def begin(self) -> None:
        written = partial(write_sent, self._history)
        self._appenders += [KeyedWriter(name, self.world, self.partitions, self._keys, written) for name in WRITERS]
        for name in READERS:
            KeyedReader(name, self.world, self.partitions, self._read)

    def _read(self, scan: Scan) -> None:
        write_scan(self._history, scan)
        self._scans[scan.reader] += 1
        self._scanned[scan.reader, scan.partition] = scan.end
        if len(scan.records) < scan.end:
            self._cleaned.set()

    def heard(self) -> Mapping[str, int]:
        return {**dict.fromkeys(WRITERS, 0), **super().heard(), **self._scans}

    async def finish(self, bound_s: float) -> None:
        """Let writers continue until a cleaner has removed something, in a short run too: it leaves the newest segment
        alone."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._cleaned.wait(), bound_s)
        await super().finish(bound_s)

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        return [name for name in READERS if any(self._scanned.get((name, at), 0) < ends[at] for at in self.partitions)]
