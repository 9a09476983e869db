"""The definition of a link: its name, its source, its topics and groups. Pure.

A link is one item of the cluster-wide setting ``links``: five fields separated by semicolons, with blanks between
several addresses or patterns, and ``%`` escapes for characters with a special meaning. It does not contain credentials
for the source: whoever runs the link provides them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from tidelog.client.config.settings import parse_bootstrap
from tidelog.model.link_position import GROUP_PREFIX
from tidelog.model.settings.config_def import ConfigError

SETTING: Final = "links"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PLAIN: Final = r".*+?^$|()[]{}\_-:/@=!<>"


class LinkError(Exception):
    """A link cannot be created or continued; the text says what to do. Nothing was changed, unless the text says so."""


@dataclass(frozen=True, slots=True)
class LinkDefinition:
    """``cluster_id``: the source's. ``topics`` and ``groups``: regular expressions for full names."""

    name: str
    cluster_id: str
    bootstrap: tuple[str, ...]
    topics: tuple[str, ...]
    groups: tuple[str, ...]

    def item(self) -> str:
        """Return the text for the setting."""
        lists = (self.bootstrap, self.topics, self.groups)
        return ";".join((self.name, quote(self.cluster_id, safe=""), *(" ".join(map(_quoted, some)) for some in lists)))

    @property
    def group(self) -> str:
        return GROUP_PREFIX + self.name

    def takes_topic(self, name: str) -> bool:
        return _any(self.topics, name)

    def takes_group(self, name: str) -> bool:
        return not name.startswith(GROUP_PREFIX) and _any(self.groups, name)


def define(name: str, cluster_id: str, bootstrap: str, topics: Sequence[str], groups: Sequence[str]) -> LinkDefinition:
    """Validate a link's definition. Raises :class:`LinkError`."""
    if not _NAME.fullmatch(name):
        raise LinkError(f"expected 1 to 64 letters, digits, - and _ as a link's name, found {name!r}")
    for pattern in (*topics, *groups):
        try:
            re.compile(pattern)
        except re.error as error:
            raise LinkError(f"expected a regular expression for names, found {pattern!r}: {error}") from None
    try:
        addresses = tuple(map(str, parse_bootstrap(bootstrap)))
    except ConfigError as error:
        raise LinkError(str(error)) from None
    return LinkDefinition(name, cluster_id, addresses, tuple(topics), tuple(groups))


def read_item(item: str) -> LinkDefinition:
    """Parse an item of the setting. Raises :class:`LinkError`."""
    fields = item.split(";")
    if len(fields) != 5:
        raise LinkError(f"{SETTING}: expected name;cluster;addresses;topics;groups, found {item!r}")
    name, cluster_id, *lists = fields
    addresses, topics, groups = (tuple(map(unquote, found.split())) for found in lists)
    return LinkDefinition(name, unquote(cluster_id), addresses, topics, groups)


def _quoted(text: str) -> str:
    return quote(text, safe=_PLAIN)


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)
