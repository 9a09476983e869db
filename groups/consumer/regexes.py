"""Subscriptions by regular expression, matched against full names with RE2, in portions. Pure.

Source: ``GroupMetadataManager.resolveRegularExpressions``; KIP-848 takes RE2/J.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tidelog.groups.consumer.change import PUT_UNITS, Change
from tidelog.groups.consumer.steps import Steps, Work
from tidelog.groups.state.topics import Topics
from tidelog.model.moment import Moment
from tidelog.model.regular_expressions import compiled
from tidelog.proto.logs.consumer_group_records import REGEX, ConsumerKey, ResolvedRegex

_NAMES: Final = 64
"""Names that are matched in one go."""


class RegexWork:
    """A group's patterns, being matched against all topics as of ``version``. ``may_see``: the topics that the asking
    member may describe."""

    __slots__ = ("steps", "version", "wall_ms")

    def __init__(self, patterns: Iterable[str], topics: Topics, may_see: Callable[[str], bool], now: Moment) -> None:
        self.version = topics.version
        self.wall_ms = now.wall_ms
        self.steps: Steps[dict[str, tuple[str, ...]]] = Steps(
            matching(sorted(patterns), tuple(topics.names()), may_see)
        )


def matching(
    patterns: Iterable[str], names: Sequence[str], may_see: Callable[[str], bool]
) -> Work[dict[str, tuple[str, ...]]]:
    """Return, for each pattern, the names that all of it matches and that the member may see, in the given order."""
    found: dict[str, tuple[str, ...]] = {}
    for pattern in patterns:
        fullmatch = compiled(pattern).fullmatch
        mine: list[str] = []
        for start in range(0, len(names), _NAMES):
            matched = [name for name in names[start : start + _NAMES] if fullmatch(name) is not None]
            mine += filter(may_see, matched)
            yield 3 * _NAMES + 4 * len(matched)
        found[pattern] = tuple(mine)
    return found


def put_regexes(change: Change, work: RegexWork) -> Work[bool]:
    """Write what the patterns match now, if members still use them. Returns whether something changed."""
    group = change.group
    is_changed = False
    for pattern, names in work.steps.result.items():
        known = group.regexes.get(pattern)
        if pattern in group.regex_users and (known is None or known.topics != names):
            is_changed = True
            resolved = ResolvedRegex(names, work.version, work.wall_ms)
            change.put(ConsumerKey(REGEX, group.group_id, pattern), resolved)
            yield PUT_UNITS + len(names)
    return is_changed
