"""Filters on a log, on its own thread: skip what no reader of a filter wants, and index full segments for that."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from tidelog.model.ids import Offset
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.header_filter import HeaderMask, header_sum, mask_of_batch
from tidelog.storage.disk.files import FileLayer
from tidelog.storage.disk.handles import HandlePool, PooledFile
from tidelog.storage.log.movable_log import MovableLog
from tidelog.storage.segments.batch_walk import walk_whole
from tidelog.storage.segments.filter_index import DamagedIndex, FilterIndexWriter
from tidelog.storage.segments.log_read import segment_of
from tidelog.storage.segments.segment import Segment

SLICE_BYTES: Final = 256 * 1024
"""A slice of indexing ends after this many bytes: a few milliseconds."""

logger = logging.getLogger(__name__)


class WantedStretch(NamedTuple):
    """There is nothing for the reader before ``start``, and there may be something up to ``end``; nothing was found if
    they are equal. ``pages``: how many pages of indexes were read."""

    start: Offset
    end: Offset
    pages: int


class FilterIndexing:
    """Reads one full segment for its index. :meth:`step` may run in another thread, until ``content`` is there."""

    def __init__(self, files: FileLayer, segment: Segment, end_offset: int, header: str, cuts: int) -> None:
        self.segment = segment
        self.header = header
        self.cuts = cuts
        """How often the log's end had been truncated: a truncation voids the index."""
        self.content: bytes | None = None
        self.bytes_read = 0
        base = segment.base_offset
        self._writer = FilterIndexWriter(base, header_sum(header), segment.size, end_offset - base)
        self._file = PooledFile(HandlePool(files), segment.log.path)
        self._walk: Iterator[tuple[int, Batch]] = walk_whole(self._file, 0, segment.size)

    def step(self) -> None:
        """Read the next few batches. Raises ``OSError``, and :class:`CorruptBatch`."""
        begun = self.bytes_read
        for _, batch in self._walk:
            mask = mask_of_batch(batch, self.header)
            self._writer.add(batch.next_offset - self.segment.base_offset, batch.size, mask)
            self.bytes_read += batch.size
            if self.bytes_read - begun >= SLICE_BYTES:
                return
        self.content = self._writer.content()

    def close(self) -> None:
        self._file.close()


class FilteredLog(MovableLog):
    """The part of :class:`tidelog.storage.log.log.Log` that filters use."""

    __slots__ = ()

    def next_wanted(self, offset: Offset, offset_end: Offset, wanted: HeaderMask, pages_max: int) -> WantedStretch:
        """Find the next stretch from ``offset`` on, below ``offset_end``, that may hold wanted records, and read at
        most ``pages_max`` pages of indexes for that. Segments without an index may hold some anywhere.

        Raises :class:`LogDirFailed`.
        """
        self._check_usable()
        segments = self._chain.segments
        number, pages = segment_of(segments, offset), 0
        while offset < offset_end:
            segment = segments[number]
            if number == len(segments) - 1 or segment.damage or not self._is_indexed(segment, wanted.header):
                end = offset_end if number == len(segments) - 1 else segments[number + 1].base_offset
                return WantedStretch(offset, min(Offset(end), offset_end), pages)
            if pages >= pages_max:
                break
            base = segment.base_offset
            try:
                start, end, read = segment.filters.find(max(offset - base, 0), wanted, segment.size, pages_max - pages)
            except DamagedIndex as error:
                logger.warning("%s: reading without it, until it is made again: %s", self.name, error)
                segment.filters.give_up()
                continue
            except OSError as error:
                raise self._failed(error) from error
            pages += read
            offset = min(max(Offset(base + start), offset), offset_end)
            if start < end:
                return WantedStretch(offset, min(Offset(base + end), offset_end), pages)
            if base + end >= segments[number + 1].base_offset:
                number += 1
        return WantedStretch(offset, offset, pages)

    def _is_indexed(self, segment: Segment, header: int) -> bool:
        try:
            return segment.filters.is_of(header, segment.size)
        except OSError as error:
            raise self._failed(error) from error

    def begin_filter_index(self) -> FilterIndexing | None:
        """Return the work on the next full, durable segment without an index of ``filter.header``; ``None`` if there is
        none. Raises :class:`LogDirFailed`."""
        header = self.config.filter_header
        if not header or self.moving:
            return None
        self._check_usable()
        for segment, following in pairwise(self._chain.segments):
            if following.base_offset > self.recovery_point:
                break
            if segment.size and not segment.damage and not self._is_indexed(segment, header_sum(header)):
                return FilterIndexing(self._pool.files, segment, following.base_offset, header, self._cuts)
        return None

    def finish_filter_index(self, indexing: FilterIndexing) -> bool:
        """Store a finished index. Returns false, and does nothing, if the log has changed meanwhile. Raises
        :class:`LogDirFailed`."""
        indexing.close()
        if (
            indexing.content is None
            or self._owner.failure is not None
            or self._closed
            or self.moving
            or indexing.cuts != self._cuts
            or indexing.segment not in self._chain.segments
        ):
            return False
        try:
            self._chain.store_filters(indexing.segment, indexing.content)
        except OSError as error:
            raise self._failed(error) from error
        return True
