"""The index of decisions: every note, once, under its title."""

from __future__ import annotations

import re

from .code_blocks import ROOT

DECISIONS = ROOT / "docs" / "decisions"


def test_the_index_lists_every_note_once_under_its_title() -> None:
    listed = re.findall(r"^- \[(.+)\]\((.+\.md)\) \((.+)\)$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    notes = sorted(DECISIONS.glob("2*.md"))
    assert sorted(name for _, name, _ in listed) == [note.name for note in notes]
    for title, name, date in listed:
        heading = (DECISIONS / name).read_text().splitlines()[0]
        assert heading.lower().endswith(title.lower()), f"{name} is called {heading}"
        assert name.startswith(f"{date}-")
