"""The fenced code blocks of the documentation, and what their marks mean.

A mark stands behind the language and is not rendered. ``python no-run`` is only compiled, and of ``sh
no-run`` the commands are only looked up, while the lines of ``sh steps`` run in their order (``test_operations.py``);
``python after`` goes on with the names of the block before it; ``console needs-NAME`` runs where the program NAME is;
``text output`` is what the Python block before it prints.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
README: Final = ROOT / "README.md"
PAGES: Final = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ADDRESS: Final = "127.0.0.1:9092"
_FENCE: Final = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)$")


class CodeBlock(NamedTuple):
    page: Path
    line: int
    info: tuple[str, ...]
    text: str

    @property
    def where(self) -> str:
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return f"{page}:{self.line}"


def code_blocks(page: Path) -> list[CodeBlock]:
    """Return the fenced blocks of a Markdown file."""
    found: list[CodeBlock] = []
    opened: tuple[int, re.Match[str]] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = _FENCE.match(line)
        if opened is None:
            if match:
                opened, lines = (number, match), []
        elif match and match["fence"].startswith(opened[1]["fence"]) and not match["info"].strip():
            found.append(CodeBlock(page, opened[0], tuple(opened[1]["info"].split()), "\n".join(lines) + "\n"))
            opened = None
        else:
            lines.append(line.removeprefix(opened[1]["indent"]))
    assert opened is None, f"{page}:{opened[0]}: a code block without an end" if opened else ""
    return found


def blocks_of(*languages: str) -> list[CodeBlock]:
    return [block for page in PAGES for block in code_blocks(page) if block.info[:1] and block.info[0] in languages]
