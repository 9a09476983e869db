"""A link's progress in a partition, as stored in the target cluster. Pure.

It is a committed offset of the link's own group: the offset is the position, the leader epoch that of the source's
previous batch, the metadata the rest. A pair of position and epoch that was once valid stays valid as long as the
source's log is the same, so reading an older one is harmless.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from tidelog.model.classes.frozen import dataclass

GROUP_PREFIX: Final = "tidelog.link."
"""Prefix of the group, named after the link, whose committed offsets hold the link's state of its partitions."""
REASON_CHARS_MAX: Final = 600
"""Maximum length of a reason, so that it fits in a committed offset's metadata."""


@dataclass(frozen=True, slots=True)
class Position:
    """The link's position. ``offset``: before it, the target equals the source. ``epoch``: the source's leader epoch of
    the last batch before it, -1 if there is none. ``source_end``: the source's high watermark at ``told_ms``.
    ``level_ms``: when nothing was left to fetch. ``reason``: why the link has stopped here, or "". ``copied_ms``: when
    nothing was left to fetch, before groups' commits were copied with success. Times are in milliseconds since 1970."""

    offset: int
    epoch: int
    source_id: str
    source_end: int
    told_ms: int
    level_ms: int
    reason: str = ""
    copied_ms: int = 0

    @property
    def lag(self) -> int:
        """How far the source was ahead, in offsets."""
        return max(0, self.source_end - self.offset)

    def lag_ms(self, now_ms: int) -> int:
        """Return for how long something was left to fetch, or no check has been made."""
        return max(0, now_ms - self.level_ms)

    @property
    def metadata(self) -> str:
        """The committed offset's metadata: everything but offset and epoch."""
        rest = {name: value for name, value in asdict(self).items() if name not in ("offset", "epoch")}
        rest["reason"] = self.reason[:REASON_CHARS_MAX]
        return json.dumps(rest, ensure_ascii=False)


def read_position(offset: int, epoch: int, metadata: str) -> Position | None:
    """Parse a stored position; ``None`` for anything that our links did not write."""
    try:
        return Position(offset, epoch, **json.loads(metadata))
    except (ValueError, TypeError):
        return None
