"""Release 0.1 in the process of the current release: its modules come from its wheel, under a package name of their
own.

Only its imports are rewritten, and the pool in which protobuf registers contracts: both releases have contracts with
the same names.
"""

from __future__ import annotations

import importlib
import re
import sys
import zipfile
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

PACKAGE: Final = "tidelog.release_0_1"
"""``tidelog.x`` of release 0.1 is ``tidelog.release_0_1.x`` here."""
WHEEL: Final = Path(__file__).resolve().parents[3] / "tests" / "upgrade" / "tidelog-0.1.0-py3-none-any.whl"
_IMPORT: Final = re.compile(r"^(\s*)(from|import) tidelog(?=[. ])", re.MULTILINE)
_POOL: Final = "_descriptor_pool.Default()"
_OWN_POOL: Final = f"__import__('{__name__}', fromlist=['contracts']).contracts()"


def module(name: str) -> Any:
    """Return a module of release 0.1, such as ``broker.node``. Raises ``FileNotFoundError`` without the wheel."""
    _install()
    return importlib.import_module(f"{PACKAGE}.{name}")


@cache
def contracts() -> Any:
    """Return the module in which release 0.1 keeps its contracts."""
    from google.protobuf.descriptor_pool import DescriptorPool

    return DescriptorPool()


@cache
def _install() -> None:
    sys.meta_path.insert(0, _Finder(WHEEL))


class _Finder(MetaPathFinder, Loader):
    def __init__(self, wheel: Path) -> None:
        self._wheel = wheel
        with zipfile.ZipFile(wheel) as found:
            self._sources = {name: found.read(name).decode() for name in found.namelist() if name.endswith(".py")}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != PACKAGE and not fullname.startswith(f"{PACKAGE}."):
            return None
        inside = f"tidelog{fullname.removeprefix(PACKAGE)}".replace(".", "/")
        for name in (f"{inside}/__init__.py", f"{inside}.py"):
            if name in self._sources:
                return ModuleSpec(fullname, self, origin=name, is_package=name.endswith("/__init__.py"))
        return None

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        assert module.__spec__.origin is not None
        name = module.__spec__.origin
        source = _IMPORT.sub(rf"\1\2 {PACKAGE}", self._sources[name]).replace(_POOL, _OWN_POOL)
        exec(compile(source, f"{self._wheel}/{name}", "exec", dont_inherit=True), module.__dict__)
