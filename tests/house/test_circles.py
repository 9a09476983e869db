"""No module imports, by whatever way, a module that imports it; nor does a folder a folder that imports it.

Imports for type checkers only and imports inside functions count too: they hide a circle, they do not untie it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def modules() -> dict[str, Path]:
    """Every Python file of the product and its tests, by the name that it is imported under."""
    found = {"tidelog": ROOT / "src/tidelog/__init__.py", "tidelog.aio": ROOT / "src/tidelog/aio.py"}
    for folder in ("tests", *(path.parent.name for path in ROOT.glob("*/__init__.py"))):
        for path in (ROOT / folder).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name if folder == "tests" else f"tidelog.{name}"] = path
    return found


def imported(name: str, path: Path) -> Iterator[str]:
    """The dotted names that a file asks for, wherever in the file it does so."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


@cache
def whole() -> dict[str, set[str]]:
    return imports(modules())


def imports(found: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which of these modules each of them imports."""
    graph: dict[str, set[str]] = {}
    for name, path in found.items():
        asked = ((each, each.rpartition(".")[0]) for each in imported(name, path))
        graph[name] = {next((each for each in names if each in found), name) for names in asked} - {name}
    return graph


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Some circle, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]][::-1]
    return []


def rooms(graph: Mapping[str, set[str]]) -> dict[str, dict[str, set[str]]]:
    """For each folder: which of its modules and folders, with all that lies beneath them, import which others.

    What a folder's own ``__init__.py`` has is one of them, so nothing in a folder may import from a front door that
    opens on it.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for name, targets in graph.items():
        for target in targets:
            one, other = [*name.split("."), "__init__"], [*target.split("."), "__init__"]
            depth = next(depth for depth, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs)
            found.setdefault(".".join(one[:depth]), {}).setdefault(one[depth], set()).add(other[depth])
    return found


def test_no_module_is_in_a_circle_of_imports() -> None:
    assert sum(map(len, whole().values())) > 2 * len(modules()), "expected to see the imports"
    assert circle(whole()) == []


def test_no_room_is_in_a_circle_of_imports() -> None:
    inside = rooms(whole())
    assert len(inside["tidelog"]) > 15, "expected to see the folders"
    assert {folder: found for folder, graph in inside.items() if (found := circle(graph))} == {}


@pytest.mark.parametrize(
    "back",
    [
        "from tidelog.a import one",
        "from tidelog.a.one import A",
        "import tidelog.a.one",
        "from ..a import one",
        "if TYPE_CHECKING:\n    from tidelog.a.one import A",
        "def use():\n    from tidelog.a.one import A",
    ],
)
def test_a_circle_is_found_however_it_is_hidden(tmp_path: Path, back: str) -> None:
    texts = {"tidelog.a.one": "from tidelog.b import two", "tidelog.b.two": back, "tidelog.b.three": "import os"}
    found = {}
    for name, text in texts.items():
        found[name] = tmp_path / f"{name}.py"
        found[name].write_text(text)
    assert sorted(set(circle(imports(found)))) == ["tidelog.a.one", "tidelog.b.two"]


@pytest.mark.parametrize(
    ("graph", "folder", "expected"),
    [
        ({"t.a.b.one": {"t.c"}, "t.c": {"t.a.two"}}, "t", ["a", "c"]),
        ({"t.a.b.one": {"t.c.d.two"}, "t.c.three": {"t.a.e.four"}}, "t", ["a", "c"]),
        ({"t.a.b.one": {"t.a.c.two"}, "t.a.c.three": {"t.a.b.four"}}, "t.a", ["b", "c"]),
        ({"t": {"t.a.one"}, "t.a.b.two": {"t"}}, "t", ["__init__", "a"]),
    ],
)
def test_a_circle_of_rooms_is_found_however_deep_its_ends_lie(
    graph: dict[str, set[str]], folder: str, expected: list[str]
) -> None:
    assert circle(graph) == [], "no module is in a circle"
    assert sorted(set(circle(rooms(graph)[folder]))) == expected
