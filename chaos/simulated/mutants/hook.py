"""Loads modules with a mutant's replacements made; the files themselves are never touched.

The hook stands first on ``sys.meta_path``, so it must be installed in a fresh process, before any of the
mutant's modules is imported. Nothing that it compiles is written to a ``.pyc``.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant


class MutantError(Exception):
    """The mutant does not fit the source it names, or came too late; the text says which and why."""


def mutated_source(mutant: Mutant, module: str, source: str, file: str) -> str:
    """Return ``source`` with the mutant's replacements in ``module`` made.

    Raises :class:`MutantError` unless each ``old`` occurs exactly once and changes something.
    """
    changed = source
    for edit in mutant.edits:
        if edit.module != module:
            continue
        if edit.old == edit.new:
            raise MutantError(f"mutant {mutant.id}: old and new are the same text, {_shown(edit)}")
        if not edit.old or (count := source.count(edit.old)) != 1:
            found = f"occurs {count} times" if edit.old else "is empty"
            raise MutantError(f"mutant {mutant.id}: expected its text once in {file}, but it {found}: {_shown(edit)}")
        if changed.count(edit.old) != 1:
            raise MutantError(f"mutant {mutant.id}: two of its replacements in {file} overlap: {_shown(edit)}")
        changed = changed.replace(edit.old, edit.new)
    return changed


def _shown(edit: Edit) -> str:
    return repr(edit.old if len(edit.old) <= 100 else edit.old[:97] + "…")


class MutantFinder(MetaPathFinder):
    """Finds the modules of one mutant, and knows which of them were loaded."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.modules = frozenset(edit.module for edit in mutant.edits)
        self.loaded: set[str] = set()

    @property
    def never_loaded(self) -> list[str]:
        """Modules of the mutant that nothing has imported so far: a run without them proves nothing."""
        return sorted(self.modules - self.loaded)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.modules:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        if not isinstance(spec.loader, SourceFileLoader):
            raise MutantError(f"mutant {self.mutant.id}: {fullname} is no Python source but {spec.origin}")
        spec.loader = _MutantLoader(self, fullname, spec.loader.path)
        spec.cached = None
        return spec


class _MutantLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, finder: MutantFinder, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._finder = finder

    def get_source(self, fullname: str) -> str:
        with open(self.path, encoding="utf-8") as file:
            return mutated_source(self._finder.mutant, fullname, file.read(), self.path)

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname)
        try:
            code = compile(source, self.path, "exec", dont_inherit=True)
        except SyntaxError as trouble:
            raise MutantError(
                f"mutant {self._finder.mutant.id}: {self.path} is no Python with it: {trouble}"
            ) from trouble
        self._finder.loaded.add(fullname)
        return code


def install(mutant: Mutant) -> MutantFinder:
    """Have the mutant's modules loaded with its replacements made, from now on, in this process.

    Raises :class:`MutantError` if one of them is imported already. That a text does not occur exactly once
    shows when its module is imported (:class:`MutantError` out of the ``import``).
    """
    finder = MutantFinder(mutant)
    late = sorted(finder.modules & sys.modules.keys())
    if late:
        raise MutantError(f"mutant {mutant.id}: {', '.join(late)} imported before the mutant was installed")
    sys.meta_path.insert(0, finder)
    return finder
