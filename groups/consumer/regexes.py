"""Subscriptions by regular expression, matched against full names with RE2. Pure.

Source: ``GroupMetadataManager.resolveRegularExpressions``; KIP-848 takes RE2/J.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidelog.model.regular_expressions import compiled


def matching(pattern: str, names: Iterable[str], may_see: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the names that the whole pattern matches and that the member may see, in the given order."""
    matches = compiled(pattern).fullmatch
    return tuple(name for name in names if matches(name) is not None and may_see(name))
