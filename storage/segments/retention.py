"""Which segments are old enough to go. Pure; source: Kafka's ``UnifiedLog.deleteOldSegments``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class SegmentAge(NamedTuple):
    """A segment up to ``end_offset`` (exclusive); ``last_ms``: its highest timestamp, or when it was last written."""

    end_offset: int
    size: int
    last_ms: int


def expired_count(
    segments: Sequence[SegmentAge],
    *,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    retention_ms: int,
    retention_bytes: int,
) -> int:
    """Return how many segments from the first one on may be deleted; perhaps all (the caller rolls first).

    A segment may go if all its records are older than ``retention_ms``, if the log without it still has at least
    ``retention_bytes``, or if it ends at or before the log start offset; never beyond the high watermark, and never an
    empty last one. -1 means no limit.
    """
    count = 0

    def may_go() -> bool:
        if count == len(segments) or segments[count].end_offset > high_watermark:
            return False
        return count < len(segments) - 1 or segments[count].size > 0

    if retention_ms >= 0:
        while may_go() and now_ms - segments[count].last_ms > retention_ms:
            count += 1
    if retention_bytes >= 0:
        excess = sum(segment.size for segment in segments[count:]) - retention_bytes
        while may_go() and excess >= segments[count].size:
            excess -= segments[count].size
            count += 1
    while count < len(segments) - 1 and may_go() and segments[count].end_offset <= log_start_offset:
        count += 1
    return count
