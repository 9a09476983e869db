"""Untrusted text on one line: names, keys and messages for a log line or a table."""

from __future__ import annotations

import json
import unicodedata
from typing import Final

_SHOWN: Final = frozenset({"Zs", "Co", "Cn"})
"""Harmless Unicode categories that ``str.isprintable`` refuses: blanks, private use, not yet assigned."""
_JOINERS: Final = "\u200c\u200d"
"""Zero-width (non-)joiner: Persian and Indic words and many emoji need them."""


def escaped(text: str, *, keep: str = "") -> str:
    """Return ``text`` with everything that a terminal or a line reader acts on as a Python escape (``\\n``, ``\\x1b``,
    ``\\u202e``): C0 and C1 controls, DEL, line and paragraph separators, invisible formatting characters such as
    bidirectional overrides, and lone surrogates. Characters in ``keep`` stay, and so do backslashes.
    """
    if text.isprintable():
        return text
    return "".join(one if _harmless(one) or one in keep else _escape(one) for one in text)


def escaped_json(text: str) -> str:
    """Return JSON with the same characters as JSON escapes and an unchanged meaning. Line breaks of its layout stay."""
    if text.isprintable():
        return text
    return "".join(one if _harmless(one) or one == "\n" else json.dumps(one)[1:-1] for one in text)


def _harmless(one: str) -> bool:
    return one.isprintable() or one in _JOINERS or unicodedata.category(one) in _SHOWN


def _escape(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
