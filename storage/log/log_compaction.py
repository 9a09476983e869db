"""Compaction's steps on a log, on the log's own thread: find the dirty part, start a pass over it, and swap."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from tidelog.model.ids import Offset
from tidelog.model.settings.config_def import LONG_MAX
from tidelog.storage.cleaner.batch_filter import LastOfProducer
from tidelog.storage.cleaner.cleaning import Cleaning, CleaningLimits, CleaningPlan, IndexPart
from tidelog.storage.cleaner.plan import Dirt, LogFacts, SegmentFacts, find_dirt
from tidelog.storage.log.log_examination import ExaminedLog
from tidelog.storage.log.recovery import SPARSE_MARK
from tidelog.storage.producers.state import Producer
from tidelog.storage.segments.index import OffsetIndex, TimeIndex
from tidelog.storage.segments.segment import Segment

_NO_OFFSET: Final = -1


class CompactableLog(ExaminedLog):
    """The part of :class:`tidelog.storage.log.log.Log` that compaction uses."""

    __slots__ = ()

    def find_dirt(self, clean_offset: int, high_watermark: int, now_ms: int) -> Dirt:
        """Return the cleanable part of a log that is clean up to ``clean_offset`` (-1: never cleaned).

        Raises :class:`LogDirFailed`, and :class:`CorruptBatch` if a segment cannot be read.
        """
        self._check_usable()
        config = self.config
        stable = self.last_stable_offset(Offset(high_watermark))
        timed = config.min_compaction_lag_ms > 0 or config.max_compaction_lag_ms < LONG_MAX
        try:
            facts = LogFacts(
                self._segment_facts(timed=timed),
                self.log_start_offset,
                self.log_end_offset,
                self._chain.active.base_offset,
                high_watermark,
                stable,
                clean_offset,
            )
        except OSError as error:
            raise self._failed(error) from error
        return find_dirt(facts, config, now_ms)

    def begin_cleaning(self, dirt: Dirt, limits: CleaningLimits, now_ms: int) -> Cleaning:
        """Return a pass over the part that :meth:`find_dirt` found. That part and the markers that decided it must lie
        before the *stored* recovery point: leader epochs of cleaned batches are known from the epoch file alone.

        Raises :class:`LogDirFailed`, and :class:`CorruptBatch`.
        """
        self._check_usable()
        end, decided = dirt.first_uncleanable_offset, dirt.decided_before_offset
        assert end <= decided <= self.stored_recovery_point, f"{self.name} is not durable up to {decided}"
        segments = [segment for segment in self._chain.segments[:-1] if segment.base_offset < end]
        config = self.config
        try:
            if not self._sparse:
                self._become_sparse()
            facts = self._segment_facts(indexed=True)[: len(segments)]
        except OSError as error:
            raise self._failed(error) from error
        plan = CleaningPlan(
            directory=self.directory,
            segments=segments,
            facts=facts,
            first_dirty_offset=dirt.first_dirty_offset,
            first_uncleanable_offset=end,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            delete_retention_ms=config.delete_retention_ms,
            now_ms=now_ms,
            cuts=self._cuts,
        )
        # Their current length is enough: everything that begins before the end is decided, so its markers are there.
        indexes = [
            IndexPart(segment.base_offset, segment.transactions.file.path, count)
            for segment in self._chain.segments
            if (count := len(segment.transactions))
        ]
        cleaning = Cleaning(self._pool.files, plan, limits, indexes)
        cleaning.refresh(self._last_of_producers(end))
        return cleaning

    def is_current(self, cleaning: Cleaning) -> bool:
        """Return whether a pass is still valid: the log is in service, compacted, not being moved, and was not
        truncated meanwhile."""
        usable = self._owner.failure is None and not self._closed and not self.moving
        return usable and self.config.compacts and cleaning.plan.cuts == self._cuts

    def swap_in(self, cleaning: Cleaning) -> bool:
        """Replace the originals with the ready group, durably.

        Returns False, and does nothing, if the pass is no longer current or retention removed an original. Raises
        :class:`LogDirFailed`.
        """
        group = cleaning.ready
        assert group is not None, "no group is ready"
        chain = self._chain
        if not self.is_current(cleaning) or any(segment not in chain.segments for segment in group.segments):
            return False
        assert chain.active not in group.segments, "the active segment is never cleaned"
        self._hints.clear()
        try:
            chain.replace(group.segments, group.size)
        except OSError as error:
            raise self._failed(error) from error
        cleaning.swapped()
        cleaning.refresh(self._last_of_producers(cleaning.plan.first_uncleanable_offset))
        return True

    def _segment_facts(self, *, timed: bool = False, indexed: bool = False) -> list[SegmentFacts]:
        """Return the facts about all segments but the active one. ``timed``: with times; ``indexed``: with index
        sizes."""
        found = []
        segments = self._chain.segments
        for segment, following in pairwise(segments):
            if (timed or indexed) and segment.size:
                segment.ready(self.config.index_interval_bytes)
            found.append(_facts(segment, following.base_offset, indexed=indexed))
        return found

    def _last_of_producers(self, end: int) -> dict[int, LastOfProducer]:
        """Return each producer's newest data before ``end``, where a segment begins.

        Source: Kafka's ``UnifiedLog.lastRecordsOfActiveProducers``, which looks at the whole log.
        """
        return {producer.producer_id: _last_before(producer, end) for producer in self.producers.all()}

    def _become_sparse(self) -> None:
        """Note, durably, that offsets have gaps: recovery must not mistake a gap for the end."""
        self.make_files()
        try:
            self._pool.files.open(f"{self.directory}/{SPARSE_MARK}", create=True).close()
            self._pool.files.fsync_dir(self.directory)
        except OSError as error:
            raise self._failed(error) from error
        self._sparse = True


def _last_before(producer: Producer, end: int) -> LastOfProducer:
    """Return a producer's newest data before ``end``. Runs have no gaps and batches do not span ``end``, so a run that
    does ends just before it here."""
    before = [min(run.last_offset, end - 1) for run in producer.runs if run.offset < end]
    if before:
        return LastOfProducer(before[-1], producer.epoch)
    return LastOfProducer(_NO_OFFSET, producer.epoch, is_known=not producer.runs)


def _facts(segment: Segment, end_offset: int, *, indexed: bool) -> SegmentFacts:
    first_ms = segment.first_timestamp
    return SegmentFacts(
        segment.base_offset,
        end_offset,
        segment.size,
        len(segment.offsets) * OffsetIndex.ENTRY.size if indexed else 0,
        len(segment.times) * TimeIndex.ENTRY.size if indexed else 0,
        -1 if first_ms is None else first_ms,
        segment.max_timestamp,
    )
