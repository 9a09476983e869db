"""The tests that the documentation names are there, under that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_NAMED = re.compile(r"\b(tests/[\w/]+\.py)(?:::(\w+))?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_tests_are_there(page: Path) -> None:
    for file, function in _NAMED.findall(page.read_text(encoding="utf-8")):
        path = ROOT / file
        assert path.is_file(), f"{file} is not there"
        if function:
            assert re.search(rf"^(async )?def {function}\(", path.read_text(encoding="utf-8"), re.MULTILINE), (
                f"{file} has no {function}"
            )


def test_there_are_some() -> None:
    named = [found for page in PAGES for found in _NAMED.findall(page.read_text(encoding="utf-8"))]
    assert len(named) > 50
