"""The checkers judge what they are handed: they may be used by whatever runs a cluster, so they know no part of it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import tidelog.chaos.checkers as checkers

FOLDER = Path(str(checkers.__file__)).parent
IO_AND_TIME = {"asyncio", "io", "os", "pathlib", "random", "socket", "threading", "time", "datetime"}


def imported(path: Path) -> set[str]:
    """Return every module that a source file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_imports_only_ids_and_plain_python(path: Path) -> None:
    for name in imported(path):
        if name.startswith("tidelog."):
            assert name.startswith(("tidelog.chaos.checkers.", "tidelog.model."))
        else:
            root = name.partition(".")[0]
            assert root in sys.stdlib_module_names
            assert root not in IO_AND_TIME


def test_the_rule_sees_imports(tmp_path: Path) -> None:
    source = tmp_path / "some.py"
    source.write_text("import os.path\nfrom tidelog.storage.log.log import Log\n", "utf-8")
    assert imported(source) == {"os.path", "tidelog.storage.log.log"}
