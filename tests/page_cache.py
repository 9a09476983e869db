"""What the system's page cache holds of a file. Asked without reading: a read that must not wait (``RWF_NOWAIT``) makes
Linux fetch the page, which may be there before the answer."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest

needs_mincore = pytest.mark.skipif(sys.platform != "linux", reason="the system does not say what its cache holds")


def cached_pages(path: Path) -> list[int]:
    """Return the numbers of the pages of a file that are in the cache. The file must not be empty."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        found = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(mapped)), found)
        del start  # or the mapping could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore failed")
    return [number for number, state in enumerate(found) if state & 1]


def drop_cached_pages(path: Path) -> None:
    """Drop a file's pages from the cache. Skips the test if the file system keeps them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_pages(path):
        pytest.skip("this file system keeps every page; another one for the tests' files brings this back")
