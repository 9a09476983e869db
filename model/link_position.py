"""A link's progress in a partition, as stored in the target cluster. Pure.

It is a committed offset of the link's own group: the offset is the position, the leader epoch is that of the source's
previous batch, the metadata is the rest. A pair of position and epoch that was once valid stays valid as long as the
source's log is the same, so finding an older one is harmless.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

GROUP_PREFIX: Final = "tidelog.link."
"""A link keeps what it knows of its partitions as the committed offsets of a group, which is named after it."""
REASON_CHARS_MAX: Final = 600
"""Maximum length of a reason, so that it fits into a committed offset's metadata."""


@dataclass(frozen=True, slots=True)
class Position:
    """``offset``: before it, the target has what the source has. ``epoch``: the source's leader epoch of the last batch
    before it, -1 if there is none. ``source_end``: the source's high watermark at ``told_ms``; that and ``level_ms``,
    when nothing was left to fetch, are in milliseconds since 1970. ``reason``: why the link has stopped here, or ""."""

    offset: int
    epoch: int
    source_id: str
    source_end: int
    told_ms: int
    level_ms: int
    reason: str = ""

    @property
    def lag(self) -> int:
        """How many more records the source had, by offsets."""
        return max(0, self.source_end - self.offset)

    def lag_ms(self, now_ms: int) -> int:
        """Return for how long something was left to fetch, or nobody has checked."""
        return max(0, now_ms - self.level_ms)

    @property
    def metadata(self) -> str:
        """What is kept as the committed offset's metadata: all but offset and epoch."""
        rest = {name: value for name, value in asdict(self).items() if name not in ("offset", "epoch")}
        rest["reason"] = self.reason[:REASON_CHARS_MAX]
        return json.dumps(rest, ensure_ascii=False)


def read_position(offset: int, epoch: int, metadata: str) -> Position | None:
    """The position that is kept so; ``None`` for what no link of ours has written."""
    try:
        return Position(offset, epoch, **json.loads(metadata))
    except (ValueError, TypeError):
        return None
