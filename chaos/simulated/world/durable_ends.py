"""Log ends as the disks have them: computed from the synced bytes, whatever the node says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.proto.records.batches import HEADER_SIZE, Batch, CorruptBatch, split_batches
from tidelog.storage.disk.memory_files import Disk, MemoryFiles

_SUFFIX: Final = ".log"


@dataclass(slots=True)
class _Read:
    """How much of a file was read: whole batches up to ``size``, the last one's header, the offset behind it."""

    size: int = 0
    header: bytes = b""
    header_at: int = 0
    end: int = -1


class DurableEnds:
    """Reads the new part of each file since the last call."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], _Read] = {}

    def end(self, host: str, disk: Disk, directory: str, *, sparse: bool = False) -> int:
        """Return the offset behind the last batch of a log up to which everything is on the disk.

        ``sparse``: a cleaner may have left gaps between segments; missing data shows in the files' sizes.
        """
        files = MemoryFiles(disk)
        if not files.exists(directory):
            return 0
        end = 0
        for path in files.paths(directory):
            name = path.rpartition("/")[2]
            if not name.endswith(_SUFFIX):
                continue
            base = int(name.removesuffix(_SUFFIX))
            if base > end and end and not sparse:
                break
            file = files._file(path)
            found = self._file_end(host, path, file.durable)
            if sparse and found < 0 and not len(file.content):
                found = base  # nothing was left of it, or it is still empty
            if found < 0:
                break
            end = found
            if sparse and len(file.durable) < len(file.content):
                break
        return end

    def _file_end(self, host: str, path: str, content: bytearray) -> int:
        read = self._read.setdefault((host, path), _Read())
        if len(content) < read.size or content[read.header_at : read.header_at + len(read.header)] != read.header:
            read = self._read[host, path] = _Read()  # the file was truncated since, and perhaps rewritten
        if len(content) > read.size:
            try:
                batches = split_batches(bytes(memoryview(content)[read.size :]), allow_partial_tail=True)
            except CorruptBatch:
                batches = []
            for batch in batches:
                if not batch.crc_ok():
                    break
                _note(read, batch, content)
        return read.end


def _note(read: _Read, batch: Batch, content: bytearray) -> None:
    read.header_at = read.size
    read.header = bytes(content[read.size : read.size + HEADER_SIZE])
    read.size += batch.size
    read.end = batch.next_offset
