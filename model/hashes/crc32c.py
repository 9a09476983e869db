"""CRC-32C, as in record batches (RFC 3720, appendix B.4): the compiled function of the package ``crc32c``.

The package's own ``__init__`` reads the metadata of installed packages to know its version, which takes 20 ms of
processor time at each start of a program. So its extension is loaded without it, if it is where we know it.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

__all__ = ["crc32c"]


def _load() -> object:
    package = find_spec("crc32c")
    inner = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if inner and inner.loader:
        extension = module_from_spec(inner)
        inner.loader.exec_module(extension)
        if found := getattr(extension, "crc32c", None):
            return found
    import crc32c

    return crc32c.crc32c


if TYPE_CHECKING:
    from crc32c import crc32c
else:
    crc32c = _load()
