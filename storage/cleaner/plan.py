"""Decides which part of a log may be cleaned, which log is dirtiest, and which segments are merged. Pure.

Source: Kafka's ``LogCleanerManager`` and ``Cleaner.groupSegmentsBySize``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.model.settings.topic_config import TopicConfig
from tidelog.storage.segments.index import RELATIVE_MAX


class SegmentFacts(NamedTuple):
    """A segment closed to appends, up to ``end_offset`` (exclusive).

    ``first_ms``: the time of its first batch, ``last_ms``: its highest; -1 if there is none.
    """

    base_offset: int
    end_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int
    first_ms: int
    last_ms: int


class LogFacts(NamedTuple):
    """``segments``: all but the active one. ``last_stable_offset`` is at most the high watermark.

    ``checkpoint``: up to where the log was cleaned before, -1 if never.
    """

    segments: Sequence[SegmentFacts]
    log_start_offset: int
    log_end_offset: int
    active_base_offset: int
    high_watermark: int
    last_stable_offset: int
    checkpoint: int


class Dirt(NamedTuple):
    """The whole segments to clean; keys from ``first_dirty_offset`` on were never mapped.

    ``first_uncleanable_offset`` is a segment's base. ``delay_ms``: the time past ``max.compaction.lag.ms``.
    ``checkpoint_is_void``: the checkpointed offset is no longer in the log. ``decided_before_offset``: the markers of
    all transactions in these segments lie before it. They may lie after the segments, and must be durable too:
    otherwise a power loss could lose a marker after its effects were already cleaned away.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    decided_before_offset: int
    clean_bytes: int
    cleanable_bytes: int
    uncleanable_bytes: int
    delay_ms: int
    checkpoint_is_void: bool

    @property
    def ratio(self) -> float:
        """The dirty share of the cleanable part; 0 for an empty log."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: TopicConfig) -> bool:
        return self.cleanable_bytes > 0 and (self.delay_ms > 0 or self.ratio > config.min_cleanable_dirty_ratio)


def find_dirt(facts: LogFacts, config: TopicConfig, now_ms: int) -> Dirt:
    """Return the part of a log that may be cleaned.

    It begins at the checkpoint, or at the log's start if the checkpoint is not in the log. It ends before the last
    stable offset, the active segment, or the first dirty segment with a record younger than ``min.compaction.lag.ms``.
    """
    start = facts.log_start_offset
    is_void = facts.checkpoint >= 0 and not start <= facts.checkpoint <= facts.log_end_offset
    first_dirty = start if is_void or facts.checkpoint < 0 else facts.checkpoint
    dirty = [segment for segment in facts.segments if segment.end_offset > first_dirty]
    bound = min(facts.last_stable_offset, facts.active_base_offset)
    if config.min_compaction_lag_ms > 0:
        for segment in dirty:
            if segment.last_ms > now_ms - config.min_compaction_lag_ms:
                bound = min(bound, segment.base_offset)
                break
    whole = [segment for segment in dirty if segment.end_offset <= bound]
    first_uncleanable = whole[-1].end_offset if whole else (dirty[0].base_offset if dirty else facts.active_base_offset)
    clean = sum(segment.size for segment in facts.segments if segment.end_offset <= first_dirty)
    cleanable = sum(segment.size for segment in whole)
    uncleanable = sum(segment.size for segment in dirty) - cleanable
    return Dirt(
        first_dirty,
        max(first_dirty, first_uncleanable),
        min(facts.high_watermark, facts.log_end_offset),
        clean,
        cleanable,
        uncleanable,
        _delay_ms(dirty, config, now_ms),
        is_void,
    )


def _delay_ms(dirty: Sequence[SegmentFacts], config: TopicConfig, now_ms: int) -> int:
    """Return how long past ``max.compaction.lag.ms`` the oldest dirty segment has waited (KIP-354)."""
    oldest = min((segment.first_ms for segment in dirty if segment.first_ms > 0), default=None)
    return 0 if oldest is None else max(0, now_ms - config.max_compaction_lag_ms - oldest)


def group_segments(segments: Sequence[SegmentFacts], *, segment_bytes: int, index_bytes: int) -> list[list[int]]:
    """Return the indices of adjacent segments to merge, covering all segments in order.

    Each group is within the bounds before cleaning.
    """
    groups: list[list[int]] = []
    size = entries = times = 0
    for number, segment in enumerate(segments):
        fits = (
            bool(groups)
            and size + segment.size <= segment_bytes
            and entries + segment.index_bytes <= index_bytes
            and times + segment.time_index_bytes <= index_bytes
            and segment.end_offset - 1 - segments[groups[-1][0]].base_offset <= RELATIVE_MAX
        )
        if fits:
            groups[-1].append(number)
        else:
            groups.append([number])
            size = entries = times = 0
        size += segment.size
        entries += segment.index_bytes
        times += segment.time_index_bytes
    return groups
