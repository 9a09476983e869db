"""The front door tells the truth: every file, function and import that the pages and pictures show is there."""

from __future__ import annotations

import ast
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("architecture", "glossary", "index", "style")),
]
PICTURES: Final = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
SVG: Final = "{http://www.w3.org/2000/svg}"
_NAMED: Final = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+)?|[\w-]+\.(?:toml|md))(?:::([\w.]+))?`")
WIDTH: Final = {"title": 0.631, "note": 0.548, "module": 0.605}
"""How wide a character is on average, by font size: DejaVu's widths, which few fonts exceed."""


def defined(source: str) -> set[str]:
    """Return every class, function, method and assigned name of a module; methods as ``Class.method``."""
    found: set[str] = set()

    def look(body: list[ast.stmt], within: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef():
                    found.add(within + node.name)
                    look(node.body, f"{within}{node.name}.")
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found.add(within + node.name)
                case ast.Assign():
                    found.update(within + target.id for target in node.targets if isinstance(target, ast.Name))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(within + name)

    look(ast.parse(source).body, "")
    return found


def faults(text: str) -> list[str]:
    """Return what a page names and the repository has not got."""
    found = []
    for path, name in _NAMED.findall(text):
        if not (ROOT / path).exists():
            found.append(path)
        elif name and name not in defined((ROOT / path).read_text(encoding="utf-8")):
            found.append(f"{path}::{name}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_function_that_a_page_names_is_there(page: Path) -> None:
    assert faults(page.read_text(encoding="utf-8")) == []


def test_a_name_that_is_not_there_is_found() -> None:
    log = "storage/log/log.py"
    text = f"`{log}` `{log}::Log.read` `storage/lag.py` `{log}::Log.reed` `storag/` `x.toml`"
    assert faults(text) == ["storage/lag.py", "storage/log/log.py::Log.reed", "storag/", "x.toml"]


def test_the_table_of_places_answers_what_newcomers_ask() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = page.split("## Find it in a minute")[1].splitlines()
    for asked in (
        "where the high watermark advances",
        "where a Kafka fetch enters",
        "where a transaction is ended",
        "which test shows that an acknowledged record survives its leader's death",
        *(f"how to add {what}" for what in ("a setting", "a metric", "a nemesis", "a request")),
    ):
        (row,) = (row for row in rows if row.startswith(f"| {asked} |"))
        assert "::" in row


# --- Pictures -----------------------------------------------------------------------------------------


class Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    texts: tuple[tuple[str, float, float, str], ...]
    """Class, x, y and content of each."""


def boxes(picture: Path, kind: str) -> Iterator[Box]:
    for group in ET.parse(picture).getroot().iter(f"{SVG}g"):
        if group.get("class") == kind:
            rect = group.find(f"{SVG}rect")
            assert rect is not None
            texts = tuple(
                (text.get("class", ""), float(text.get("x", 0)), float(text.get("y", 0)), text.text or "")
                for text in group.iter(f"{SVG}text")
            )
            x, y, width, height = (float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
            yield Box(x, y, width, height, texts)


def test_there_are_five_pictures_and_the_page_shows_each() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert re.findall(r"\(pictures/(\w+)\.svg\)", page) == ["floors", "record", "metadata", "transaction", "spark"]
    assert sorted(path.stem for path in PICTURES) == ["floors", "metadata", "record", "spark", "transaction"]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_every_module_in_a_picture_is_there_and_fits_its_box(picture: Path) -> None:
    named = [
        text.text or "" for text in ET.parse(picture).getroot().iter(f"{SVG}text") if text.get("class") == "module"
    ]
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
    sizes = re.findall(r"^    ([^@{}]+) \{ font-size: ([\d.]+)px", picture.read_text(encoding="utf-8"), re.MULTILINE)
    size = {style.strip(" ."): float(found) for styles, found in sizes for style in styles.split(",")}
    wide = [
        text
        for kind in ("step", "floor")
        for box in boxes(picture, kind)
        for style, x, y, text in box.texts
        if style != "number"
        and (x + len(text) * WIDTH[style] * size[style] > box.x + box.width or not box.y < y < box.y + box.height - 3)
    ]
    assert wide == [], "make the box larger, or the text shorter"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_works_in_light_and_dark_and_loads_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme: dark)" in text
    assert re.findall(r"href|@import|<image|url\((?!#)", text) == []
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    coloured = re.findall(r"\.(\w+)[^{}\n]*\{[^}]*(?:fill|stroke): #", light.split("</style>")[0])
    assert set(coloured) <= set(re.findall(r"\.(\w+)", dark.split("</style>")[0])), "a colour without its dark one"


def test_the_floors_are_the_imports_that_are_there() -> None:
    """A folder imports only what it stands on in the picture, directly or through what lies between."""
    floors = {box.texts[0][3].rstrip("/"): box for box in boxes(ROOT / "docs/pictures/floors.svg", "floor")}
    assert sorted(floors) == sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    on = {
        name: {
            other
            for other, lower in floors.items()
            if lower.y >= upper.y + upper.height and lower.x < upper.x + upper.width and upper.x < lower.x + lower.width
        }
        for name, upper in floors.items()
    }
    for name in sorted(floors, key=lambda name: -floors[name].y):
        on[name].update(*(on[other] for other in on[name]))
    wrong = {
        f"{name} imports {imported}"
        for name in floors
        for path in (ROOT / name).rglob("*.py")
        for imported in re.findall(
            r"^\s*(?:from|import) tidelog\.(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        if imported != name and imported.replace("aio", "client") not in on[name]
    }
    assert wrong == set()
    assert "broker" not in on["client"]
    assert "storage" not in on["metadata_quorum"]
