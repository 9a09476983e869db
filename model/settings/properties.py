"""Java's ``.properties`` syntax, which Kafka's configuration files use.

Source: ``java.util.Properties.load``. One deviation: a repeated key is refused, because its first value would silently
be ignored.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidelog.model.settings.config_def import ConfigError

_BLANK: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """A value, and the line of its key, counted from 1."""

    value: str
    line: int


def parse_properties(text: str) -> dict[str, Property]:
    """Return every property of ``text``. Raises :class:`ConfigError` naming the line."""
    found: dict[str, Property] = {}
    for number, logical in _logical_lines(text):
        raw_key, raw_value = _split(logical)
        key = _unescape(raw_key, number)
        if not key:
            raise ConfigError(f"line {number}: expected name=value, found {logical.strip()[:80]!r}")
        if key in found:
            raise ConfigError(f"line {number}: {key} is set already in line {found[key].line}")
        found[key] = Property(_unescape(raw_value, number), number)
    return found


def format_properties(values: dict[str, str]) -> str:
    """Format properties so that :func:`parse_properties` reads them back."""
    return "".join(f"{_escape(key, is_key=True)}={_escape(value, is_key=False)}\n" for key, value in values.items())


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Join continued lines; leave out blank ones and comments."""
    lines: list[tuple[int, str]] = []
    held, held_at = "", 0
    natural = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(natural, start=1):
        line = line.lstrip(_BLANK)
        if held_at:
            held += line
        elif not line or line[0] in "#!":
            continue
        else:
            held, held_at = line, number
        trailing = len(held) - len(held.rstrip("\\"))
        if trailing % 2 and number < len(natural):
            held = held[:-1]
            continue
        lines.append((held_at, held[:-1] if trailing % 2 else held))
        held, held_at = "", 0
    if held_at and held:
        lines.append((held_at, held))
    return lines


def _split(line: str) -> tuple[str, str]:
    """Split at the first ``=``, ``:`` or blank that is not escaped."""
    at = 0
    while at < len(line):
        if line[at] == "\\":
            at += 2
            continue
        if line[at] in "=:" or line[at] in _BLANK:
            break
        at += 1
    rest = line[at:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:at], rest


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    made: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\" or at + 1 == len(text):
            made.append(text[at])
            at += 1
            continue
        escaped = text[at + 1]
        if escaped == "u":
            digits = text[at + 2 : at + 6]
            if len(digits) != 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise ConfigError(f"line {line}: expected \\u and four hexadecimal digits, found {text[at : at + 6]!r}")
            made.append(chr(int(digits, 16)))
            at += 6
            continue
        made.append(_ESCAPES.get(escaped, escaped))
        at += 2
    return "".join(made)


def _escape(text: str, *, is_key: bool) -> str:
    made: list[str] = []
    for at, char in enumerate(text):
        if char in "\t\n\r\f":
            made.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[char])
        elif char == "\\" or (char == " " and (is_key or at == 0)) or (char in "=:#!" and is_key):
            made.append("\\" + char)
        else:
            made.append(char)
    return "".join(made)
