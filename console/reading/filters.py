"""Selects the records that a search shows. Filters are plain text or RE2 patterns, which take linear time; no
expression is executed as code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.console.schemas.view import Searched
    from tidelog.proto.records.decoder import Record

PATTERN_CHARS_MAX: Final = 1_000
PATTERN_MEMORY_MAX: Final = 1 << 20
"""How much memory RE2 may use for a compiled pattern."""
TEXT, RE2 = "text", "re2"
MODES: Final = (TEXT, RE2)
Finds = Callable[[bytes], bool]


class PatternWrong(ValueError):
    """RE2 rejects the pattern; the text says why."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What each part must match; ``None`` matches anything. ``header`` is matched against each header as
    ``name=value``. Times are ms since 1970, from ``since`` (inclusive) to ``until`` (exclusive)."""

    key: Finds | None = None
    value: Finds | None = None
    header: Finds | None = None
    since: int | None = None
    until: int | None = None

    def passes(self, record: Record | Searched) -> bool:
        if self.since is not None and record.timestamp < self.since:
            return False
        if self.until is not None and record.timestamp >= self.until:
            return False
        if self.key is not None and (record.key is None or not self.key(record.key)):
            return False
        if self.value is not None and (record.value is None or not self.value(record.value)):
            return False
        return self.header is None or any(
            self.header(name.encode("utf-8", "surrogateescape") + b"=" + (value or b""))
            for name, value in record.headers
        )


def finder(text: str, mode: str) -> Finds | None:
    """Return a matcher for ``text``; ``None`` if it is empty. Raises :class:`PatternWrong`."""
    if not text:
        return None
    if len(text) > PATTERN_CHARS_MAX:
        raise PatternWrong(f"expected at most {PATTERN_CHARS_MAX:,} characters, found {len(text):,}")
    wanted = text.encode("utf-8", "surrogatepass")
    if mode == TEXT:
        return lambda data: wanted in data
    import re2

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_MAX
    options.log_errors = False
    try:
        pattern = re2.compile(wanted, options)
    except re2.error as error:
        why = error.args[0] if error.args else error
        said = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise PatternWrong(f"expected an RE2 pattern: {said}") from None
    return lambda data: pattern.search(data) is not None
