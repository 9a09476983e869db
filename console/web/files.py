"""The page and its files, read once and held with an ETag and a compressed form each."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.console.web.messages import Answer, Request

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "static"
INDEX: Final = "index.html"
PREFIX: Final = "/static/"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""By file extension; other files are not served."""


@dataclass(frozen=True, slots=True)
class File:
    content_type: str
    body: bytes
    packed: bytes
    tag: str


class Files:
    """Serves :data:`DIRECTORY`."""

    def __init__(self) -> None:
        self.by_name: Final = {
            str(path.relative_to(DIRECTORY)): _read(path)
            for path in sorted(DIRECTORY.rglob("*"))
            if path.suffix in TYPES and path.is_file()
        }

    def answer(self, request: Request) -> Answer | None:
        """Return the file at ``/static/…``; ``None`` if there is none."""
        found = self.by_name.get(request.path.removeprefix(PREFIX))
        return None if found is None or not request.path.startswith(PREFIX) else _answer(found, request)

    def page(self, request: Request) -> Answer:
        """Return the page, which renders what the address names."""
        return _answer(self.by_name[INDEX], request)


def _read(path: Path) -> File:
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    return File(TYPES[path.suffix], body, gzip.compress(body, mtime=0), tag)


def _answer(file: File, request: Request) -> Answer:
    headers = [("ETag", file.tag), ("Cache-Control", "no-cache"), ("Vary", "Accept-Encoding")]
    if request.headers.get("if-none-match") == file.tag:
        return Answer(304, b"", file.content_type, tuple(headers))
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Answer(200, file.packed, file.content_type, (*headers, ("Content-Encoding", "gzip")))
    return Answer(200, file.body, file.content_type, tuple(headers))
