"""Reads the logs of a simulated node from outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidelog.proto.records.batches import Batch, split_batches
from tidelog.storage.disk.memory_files import MemoryFiles
from tidelog.storage.log.log import Log
from tidelog.storage.segments.log_read import LogRead

READ_BYTES: Final = 1 << 20


class Undisturbed:
    """Keeps a node's disk from failing or counting while its log is read from outside."""

    def __init__(self, files: MemoryFiles | None) -> None:
        assert files is not None
        self._faults = files.faults

    def __enter__(self) -> None:
        faults = self._faults
        self._saved = (faults.steps, faults.kill_at, faults.kill_in, faults.fail_at, faults.broken, faults.failing)
        faults.kill_at = faults.kill_in = faults.fail_at = None
        faults.broken, faults.failing = {}, {}

    def __exit__(self, *raised: object) -> None:
        faults = self._faults
        faults.steps, faults.kill_at, faults.kill_in, faults.fail_at, faults.broken, faults.failing = self._saved


def batches_of(log: Log, offset: int, end: int) -> Iterator[Batch]:
    """Yield the batches of a log from the one that contains an offset up to an end. Raises ``LogDirFailed``."""
    while offset < end:
        read = log.read(offset, READ_BYTES, offset_end=end)
        assert isinstance(read, LogRead), read
        if not len(read.records):
            return  # a compacted log may have nothing up to its end
        yield from split_batches(bytes(read.records))
        offset = read.next_offset
