"""The ``.filterindex`` of a segment: for each block of batches, which values of one header are in it.

Only full segments have one, built in the background once they are durable. It is a hint that may be missing, and is
never repaired: a reader without it reads everything. A wrong one would hide records, so each page of 4,096 bytes says
what it belongs to, and has a CRC. Big-endian:

- 28 bytes: CRC of the segment's base offset (u64) and of the rest u32, checksum of the header's name u32, size of the
  segment's log u32, page number u32, pages of the file u32, start of the first block u32 (relative to the segment's
  base), number of blocks u32;
- 12 bytes a block: its end u32 (relative, exclusive), its mask u64 (:mod:`tidelog.proto.records.header_filter`).

A block is a batch of at least :data:`BLOCK_BYTES`, or several smaller ones, up to about as many bytes together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from tidelog.proto.records.header_filter import HeaderMask
from tidelog.storage.disk.handles import HandlePool, PooledFile

PAGE: Final = 4_096
BLOCK_BYTES: Final = 4_096
_HEAD: Final = struct.Struct(">IIIIIII")
_BLOCK: Final = struct.Struct(">IQ")
BLOCKS_A_PAGE: Final = (PAGE - _HEAD.size) // _BLOCK.size


class DamagedIndex(Exception):
    """A page that is not what it should be."""


class Stretch(NamedTuple):
    """Relative offsets from ``start`` to ``end`` may hold wanted records; before ``start`` there are none.

    ``pages``: how many were read.
    """

    start: int
    end: int
    pages: int


class FilterIndexWriter:
    """Collects a segment's blocks; :meth:`content` is the file."""

    def __init__(self, base_offset: int, header: int, log_size: int, end: int) -> None:
        """``end``: of the segment, relative to its base."""
        self._base_crc = _base_crc(base_offset)
        self._header = header
        self._log_size = log_size
        self._end = end
        self._blocks: list[tuple[int, int]] = []
        self._size = 0
        self._mask = 0
        self._added_until = 0

    def add(self, end: int, size: int, mask: int) -> None:
        """Add the next batch; ``end``: relative, exclusive."""
        if size >= BLOCK_BYTES and self._size:
            self._close(self._added_until)  # a small batch before a large one would bring it along
        self._added_until = end
        self._size += size
        self._mask |= mask
        if self._size >= BLOCK_BYTES:
            self._close(end)

    def _close(self, end: int) -> None:
        self._blocks.append((end, self._mask))
        self._size = self._mask = 0

    def content(self) -> bytes:
        if self._size or not self._blocks:
            self._blocks.append((self._end, self._mask))
        blocks = self._blocks
        blocks[-1] = (self._end, blocks[-1][1])
        pages = -(-len(blocks) // BLOCKS_A_PAGE)
        out, start = bytearray(), 0
        for page in range(pages):
            some = blocks[page * BLOCKS_A_PAGE : (page + 1) * BLOCKS_A_PAGE]
            rest = bytearray(_HEAD.pack(0, self._header, self._log_size, page, pages, start, len(some))[4:])
            for block in some:
                rest += _BLOCK.pack(*block)
            rest += bytes(PAGE - 4 - len(rest))
            out += crc32(rest, self._base_crc).to_bytes(4, "big") + rest
            start = some[-1][0]
        return bytes(out)


class FilterIndex:
    """One segment's index, read page by page, so it takes no memory. Everything raises ``OSError``."""

    __slots__ = ("_base_crc", "_belongs_to", "_pages", "file")

    def __init__(self, pool: HandlePool, path: str, base_offset: int) -> None:
        self.file = PooledFile(pool, path)
        self._base_crc = _base_crc(base_offset)
        self._pages = -1
        """Pages of the file; 0 without one, -1 if unknown."""
        self._belongs_to: tuple[int, int] | None = None
        """What its first page belongs to."""

    def is_of(self, header: int, log_size: int) -> bool:
        """Return whether there is an index of this header, as far as the first page tells."""
        if self.pages and self._belongs_to is None:
            try:
                self._page(0, header, log_size)
                self._belongs_to = (header, log_size)
            except DamagedIndex:
                self._pages = 0
        return bool(self.pages) and self._belongs_to == (header, log_size)

    @property
    def pages(self) -> int:
        if self._pages < 0:
            try:
                self._pages = self.file.get().size() // PAGE
            except FileNotFoundError:
                self._pages = 0
        return self._pages

    def forget(self) -> None:
        """Note that the file was replaced, or removed."""
        self.file.close()
        self._pages, self._belongs_to = -1, None

    def give_up(self) -> None:
        """Use the file no more: it is damaged. It will be replaced."""
        self.file.close()
        self._pages, self._belongs_to = 0, None

    def find(self, offset: int, wanted: HeaderMask, log_size: int, pages_max: int) -> Stretch:
        """Return the next stretch from ``offset`` (relative) on, after at most ``pages_max`` pages; its start is its
        end if there is none in them. Raises :class:`DamagedIndex`."""
        number, begins, used = self._page_of(offset), -1, 0
        end, is_there = offset, False
        while used < pages_max and number < self.pages:
            used += 1
            for start, end, mask in self._page(number, wanted.header, log_size):
                if end <= offset:
                    continue
                if not is_there and start > offset:
                    raise DamagedIndex(f"{self.file.path}: expected a block at {offset}, found {start}")
                is_there = True
                if mask & wanted.mask:
                    if begins < 0:
                        begins = max(start, offset)
                elif begins >= 0:
                    return Stretch(begins, start, used)
            number += 1
        if not is_there:
            raise DamagedIndex(f"{self.file.path}: expected a block at {offset}, found none")
        if begins < 0:
            return Stretch(end, end, used)
        return Stretch(begins, end, used)

    def _page_of(self, offset: int) -> int:
        """Return the number of the page that should have ``offset``; its blocks tell whether it has."""
        low, high = 0, self.pages
        while high - low > 1:
            middle = (low + high) // 2
            raw = self.file.get().pread(_HEAD.size, middle * PAGE)
            if len(raw) == _HEAD.size and _HEAD.unpack(raw)[5] <= offset:
                low = middle
            else:
                high = middle
        return low

    def _page(self, number: int, header: int, log_size: int) -> Iterator[tuple[int, int, int]]:
        """Return (start, end, mask) of a page's blocks. Raises :class:`DamagedIndex`."""
        raw = self.file.get().pread(PAGE, number * PAGE)
        found = _HEAD.unpack_from(raw) if len(raw) == PAGE else None
        if (
            found is None
            or found[1:5] != (header, log_size, number, self._pages)
            or found[6] > BLOCKS_A_PAGE
            or crc32(memoryview(raw)[4:], self._base_crc) != found[0]
        ):
            raise DamagedIndex(f"{self.file.path}: expected page {number} of a log of {log_size} bytes, found another")
        return self._blocks(raw, found[5], found[6])

    def _blocks(self, raw: bytes, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        for end, mask in _BLOCK.iter_unpack(memoryview(raw)[_HEAD.size : _HEAD.size + count * _BLOCK.size]):
            yield start, end, mask
            start = end


def _base_crc(base_offset: int) -> int:
    return crc32(base_offset.to_bytes(8, "big"))
