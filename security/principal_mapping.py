"""``ssl.principal.mapping.rules``: maps a certificate's subject to a principal's name. Pure.

Source: Kafka's ``SslPrincipalMapper`` (KIP-371). Stricter in one point: only a comma or the end may follow a rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)|DEFAULT")
_BETWEEN: Final = re.compile(r"\s*(?:,\s*|$)")


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None
    """None means DEFAULT: the subject as it is."""
    replace: Callable[[re.Match[str]], str]
    case: str


class PrincipalMapping:
    """The rules, in order. Raises ``ValueError`` for text that contains none."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._rules = _parse(text)

    def name_of(self, subject: str) -> str | None:
        """Return the principal's name for a subject in RFC 2253 form; ``None`` if no rule matches."""
        for pattern, replace, case in self._rules:
            if pattern is None:
                return subject
            if pattern.fullmatch(subject) is not None:
                name = pattern.sub(replace, subject)
                return name.lower() if case == "L" else name.upper() if case == "U" else name
        return None


def _parse(text: str) -> list[_Rule]:
    text, at = text.strip(), 0
    rules: list[_Rule] = []
    while at < len(text):
        found = _RULE.match(text, at)
        end = None if found is None else _BETWEEN.match(text, found.end())
        if found is None or end is None:
            raise ValueError(f"expected RULE:pattern/replacement/[LU] or DEFAULT, found {text[at : at + 80]!r}")
        if found[0] == "DEFAULT":
            rules.append(_Rule(None, str, ""))
        else:
            try:
                pattern = re.compile(found[1])
            except re.error as error:
                raise ValueError(f"expected a regular expression, found {found[1][:80]!r}: {error}") from None
            rules.append(_Rule(pattern, _replacement(found[2], pattern.groups), found[3]))
        at = end.end()
    if not rules:
        raise ValueError("expected at least one rule, found none")
    return rules


def _replacement(text: str, groups: int) -> Callable[[re.Match[str]], str]:
    """Compile a Java replacement: ``$1`` is a group, with as many digits as there are groups for; a backslash escapes
    the next character. A ``$`` that names no group is literal."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text):
            parts.append(text[at])
            at += 1
        elif char == "$" and at < len(text) and text[at] in "0123456789" and int(text[at]) <= groups:
            group = int(text[at])
            at += 1
            while at < len(text) and text[at] in "0123456789" and group * 10 + int(text[at]) <= groups:
                group = group * 10 + int(text[at])
                at += 1
            parts.append(group)
        else:
            parts.append(char)
    return lambda match: "".join(part if isinstance(part, str) else match[part] or "" for part in parts)
