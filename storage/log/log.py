"""One replica of a partition: its segments, epochs and producers, as one writer's state.

Everything is synchronous and single-threaded. Disk failures raise :class:`LogDirFailed` (after the owner took the
directory out of service) and leave the log unusable; client errors are returned as a :class:`Refusal`.

*Durability.* An append is in the page cache when it returns: it survives the end of the process; replication covers the
loss of the machine. Everything before ``recovery_point`` is synced; :meth:`Log.begin_flush` and
:meth:`Log.finish_flush` advance it, and another thread waits for the disk in between. These invariants make a crash
harmless at any point:

- before the recovery point passes an offset, the log, full segments' indexes, the epoch file and file names are synced
  up to there;
- before the log is truncated below the *stored* recovery point, a lower one is stored;
- before segments at the start are deleted, the log start offset after them is stored;
- truncation at the end is durable, the newest segment first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_OFFSET, LeaderEpoch, Offset
from tidelog.model.settings.topic_config import LOG_APPEND_TIME
from tidelog.proto.records.batches import Batch, CorruptBatch, patched_header, set_log_append_time
from tidelog.storage.log.filtered_log import FilteredLog
from tidelog.storage.log.recompression import KEEP, in_topics_codec
from tidelog.storage.producers.append_checks import (
    LogAppend,
    Origin,
    joint_base,
    refuse_client,
    refuse_coordinator,
    select_for_follower,
)
from tidelog.storage.producers.loading import aborted_entry, apply_batch
from tidelog.storage.segments.index import RELATIVE_MAX
from tidelog.storage.segments.log_read import (
    LogRead,
    LogSpan,
    TimestampOffset,
    empty_read,
    find_latest_timestamp,
    find_span,
    find_timestamp,
    read_batches,
)
from tidelog.storage.segments.retention import expired_count
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.transaction_index import AbortedTransaction

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Log(FilteredLog):
    """A partition's log. Created by :class:`tidelog.storage.log.log_manager.LogManager`."""

    __slots__ = ()

    # --- Appending -----------------------------------------------------------------------------

    def append_as_leader(
        self, batches: Sequence[Batch], leader_epoch: int, now_ms: int, *, origin: Origin = Origin.CLIENT
    ) -> LogAppend | Refusal:
        """Assign the next offsets to the batches and write them, all or none.

        This is the only place that checks a client's batches, CRC included. A refusal changes nothing. Raises
        :class:`LogDirFailed`.
        """
        self._check_usable()
        assert batches, "an append needs a batch"
        config = self.config
        if leader_epoch < self._epochs.latest:
            return Refusal(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"expected leader epoch {self._epochs.latest} or later, found {leader_epoch}",
            )
        stamps = config.message_timestamp_type == LOG_APPEND_TIME
        known = None
        if origin is Origin.CLIENT:
            refusal = refuse_client(config, batches, None if stamps else now_ms)
            if refusal is not None:
                return refusal
            if config.compression_type != KEEP:
                recoded = in_topics_codec(config, batches)
                if isinstance(recoded, Refusal):
                    return recoded
                batches = recoded
            found = self._refuse_unknown(batches) or self.producers.check(batches)
            if isinstance(found, Refusal):
                return found
            known = found
        else:
            refusal = refuse_coordinator(self.producers, batches)
            if refusal is not None:
                return refusal
        if known is not None:
            if NO_OFFSET not in known:
                last_offset = Offset(known[-1] + batches[-1].last_offset_delta)
                return LogAppend(joint_base(batches, known, NO_OFFSET), last_offset, -1, self.log_start_offset, 0, True)
            fresh: Sequence[Batch] = [batch for batch, offset in zip(batches, known, strict=True) if offset < 0]
        else:
            fresh = batches
        base_offset = self.log_end_offset
        self._append(fresh, leader_epoch, now_ms, stamps=stamps)
        last_offset = Offset(self.log_end_offset - 1)
        if known is not None:
            base_offset = joint_base(batches, known, base_offset)
        return LogAppend(
            base_offset,
            last_offset,
            now_ms if stamps else -1,
            self.log_start_offset,
            sum([batch.size for batch in fresh]),
            False,
        )

    def _refuse_unknown(self, batches: Sequence[Batch]) -> Refusal | None:
        """Refuse idempotent producers while damage hides some producers' state: a duplicate would go unnoticed."""
        if not self.producers_lack or not any(batch.producer_id >= 0 for batch in batches):
            return None
        return Refusal(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"expected to know the producers' last records, found damage from offset {self.producers.lacking_from} on, "
            f"which another replica may mend: try again",
        )

    def append_as_follower(
        self,
        data: Buffer,
        now_ms: int,
        *,
        leader_epoch_max: int | None = None,
        takes_gaps: bool = False,
        leader_epoch: int | None = None,
        once: bool = False,
        checked: bool = False,
    ) -> LogAppend | Refusal:
        """Append a leader's data at the end of this log: whole batches with their offsets and epochs.

        Skips batches before the end. Drops the first batch with an epoch above ``leader_epoch_max`` and everything
        after it (the fetch was sent to a leader of that epoch: KAFKA-18723). In an empty log, the first batch may begin
        before the log's start (a leader's log may start within a batch). Refusals, which change nothing:
        CORRUPT_MESSAGE for invalid batches or CRCs, OFFSET_OUT_OF_RANGE for offsets that do not continue the log,
        INVALID_REQUEST for falling epochs. Gaps are allowed if the topic is compacted, if the log already has one, or
        with ``takes_gaps``. ``leader_epoch``: stored instead of the batches' own epochs. ``once``: nobody will read
        this soon; the caller runs and finishes the job in :attr:`writing`. ``checked``: the CRCs were compared in this
        process. Raises :class:`LogDirFailed`.
        """
        self._check_usable()
        end = self.log_end_offset
        selected = select_for_follower(
            data,
            due=end,
            epoch=self._epochs.latest,
            epoch_max=leader_epoch_max,
            is_empty=not self._chain.size,
            gaps=takes_gaps or self._sparse or self.config.compacts,
            own_epoch=leader_epoch,
            checked=checked,
        )
        if isinstance(selected, Refusal):
            return selected
        fresh = selected.batches
        if not fresh:
            return LogAppend(end, Offset(end - 1), -1, self.log_start_offset, 0, False)
        base_offset = fresh[0].base_offset
        if base_offset < end:
            self._start_within(base_offset)
        elif selected.has_gap and not self._sparse:
            self._become_sparse()
        size = sum(batch.size for batch in fresh)
        self._append(fresh, leader_epoch, now_ms, keeps_offsets=True, once=once)
        return LogAppend(base_offset, Offset(self.log_end_offset - 1), -1, self.log_start_offset, size, False)

    def _append(
        self,
        batches: Sequence[Batch],
        leader_epoch: int | None,
        now_ms: int,
        *,
        stamps: bool = False,
        keeps_offsets: bool = False,
        once: bool = False,
    ) -> None:
        """Write batches at the end, with the next offsets unless they keep theirs. ``leader_epoch`` None: they keep
        their epochs as well."""
        self.make_files()
        buffers: list[Buffer] = []
        written: list[tuple[int, int, int]] = []
        placed: list[tuple[Batch, int]] = []
        size = 0
        offset = self.log_end_offset
        segment = self._chain.active
        try:
            for batch in batches:
                base = batch.base_offset if keeps_offsets else offset
                last = base + batch.last_offset_delta
                timestamp = now_ms if stamps else batch.max_timestamp
                if not self._fits(segment, size, batch.size, last, timestamp, now_ms):
                    self._write(buffers, written, placed, leader_epoch, now_ms, once=once)
                    buffers, written, placed, size = [], [], [], 0
                    # Start at the current end even if the batch begins later: by segment boundaries, recovery tells a
                    # gap from a tail lost in a power failure.
                    self._roll(offset if last - offset <= RELATIVE_MAX else base, now_ms)
                    segment = self._chain.active
                if leader_epoch is None:
                    buffers.append(batch.view)
                else:
                    view = memoryview(set_log_append_time(batch, now_ms)) if stamps else batch.view
                    buffers.append(patched_header(batch, base_offset=base, leader_epoch=leader_epoch))
                    buffers.append(view[16:])
                written.append((last, batch.size, timestamp))
                placed.append((batch, base))
                size += batch.size
                offset = Offset(last + 1)
            self._write(buffers, written, placed, leader_epoch, now_ms, once=once)
        except OSError as error:
            raise self._failed(error) from error
        if self._flushes.unflushed_since_ms < 0:
            self._flushes.unflushed_since_ms = now_ms

    def _write(
        self,
        buffers: Sequence[Buffer],
        written: Sequence[tuple[int, int, int]],
        placed: Sequence[tuple[Batch, int]],
        leader_epoch: int | None,
        now_ms: int,
        *,
        once: bool,
    ) -> None:
        if not placed:
            return
        segment = self._chain.active
        before = segment.size
        self._hints.put(placed[0][1], segment.base_offset, before)
        later = self.log_end_offset if once else None
        self.writing = segment.append(buffers, written, self.config.index_interval_bytes, later)
        self._chain.size += segment.size - before
        self.log_end_offset = Offset(written[-1][0] + 1)
        epochs, producers = self._epochs, self.producers
        for batch, base in placed:
            epoch = batch.leader_epoch if leader_epoch is None else leader_epoch
            if epoch > epochs.latest:
                epochs.assign(epoch, base)
            if batch.producer_id >= 0:
                ended = apply_batch(producers, batch, base, now_ms)
                if ended is not None and ended.aborted:
                    self._chain.note_aborted(aborted_entry(ended))

    def _fits(self, segment: Segment, ahead: int, size: int, last_offset: int, timestamp: int, now_ms: int) -> bool:
        """Return whether a batch may go into a segment, ``ahead`` bytes past its end (Kafka's ``shouldRoll``)."""
        config = self.config
        if not (segment.size or ahead):
            return last_offset - segment.base_offset <= RELATIVE_MAX
        if not segment.has_room(ahead + size, last_offset, config.segment_bytes, config.segment_index_bytes):
            return False
        first = segment.first_timestamp
        waited = timestamp - first if first is not None and first >= 0 else now_ms - segment.created_ms
        return waited <= config.segment_ms_max - self._jitter_ms

    # --- Segments ------------------------------------------------------------------------------

    def maybe_roll(self, now_ms: int) -> bool:
        """Start a new segment if the last one is older than ``segment.ms`` (and ``max.compaction.lag.ms``, if it
        applies). Returns whether it did."""
        self._check_usable()
        segment = self._chain.active
        if not segment.size or now_ms - segment.created_ms <= self.config.segment_ms_max - self._jitter_ms:
            return False
        self.roll(now_ms)
        return True

    def roll(self, now_ms: int) -> None:
        """Start a new segment, unless the last one is empty. Raises :class:`LogDirFailed`."""
        self._check_usable()
        if self._chain.active.size:
            try:
                self._roll(self.log_end_offset, now_ms)
            except OSError as error:
                raise self._failed(error) from error

    def _roll(self, base_offset: int, now_ms: int) -> None:
        self._await_write()  # after a kill, no segment may begin where the one before it does not end
        if self._flushes.is_new:
            # After a power loss a log may end early, but it must have no hole: the first segment's name must be durable
            # before the second's. Rarely needed: a flush has usually done this by now.
            self._chain.sync_names()
        reserve = self.config.segment_bytes if self.config.preallocate else 0
        self._chain.roll(base_offset, self._producers_snapshot(), now_ms, reserve)
        self._jitter_ms = self._new_jitter()
        self._flushes.rolled = True

    # --- Reading -------------------------------------------------------------------------------

    def read(self, offset: int, bytes_max: int, *, offset_end: int, at_least_one: bool = True) -> LogRead | Refusal:
        """Return whole batches below ``offset_end``, starting with the one that holds ``offset``.

        At most ``bytes_max`` bytes, except that ``at_least_one`` returns a first batch that is larger (KIP-74).
        OFFSET_OUT_OF_RANGE outside [start, end]; CORRUPT_MESSAGE if the disk returned wrong data. Raises
        :class:`LogDirFailed`.
        """
        return self._look(read_batches, empty_read(offset), offset, bytes_max, offset_end, at_least_one)

    def find(
        self, offset: int, bytes_max: int, *, offset_end: int, at_least_one: bool = True
    ) -> LogSpan | Refusal | None:
        """Like :meth:`read`, but leave the batches in their file; ``None`` if there are none yet.

        Raises :class:`LogDirFailed`.
        """
        return self._look(find_span, None, offset, bytes_max, offset_end, at_least_one)

    def _look(
        self, look: Callable[..., T], nothing: T, offset: int, bytes_max: int, offset_end: int, at_least_one: bool
    ) -> T | Refusal:
        self._check_usable()
        end = self.log_end_offset
        if not self.log_start_offset <= offset <= end:
            return Refusal(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"expected an offset from {self.log_start_offset} to {end}, found {offset}",
            )
        if offset >= end or offset >= offset_end:
            return nothing
        try:
            return look(
                self._chain.segments,
                self._hints,
                offset,
                bytes_max,
                min(offset_end, end),
                log_end_offset=end,
                at_least_one=at_least_one,
                index_interval=self.config.index_interval_bytes,
            )
        except CorruptBatch as error:
            if not any(known.first_offset <= offset < known.next_offset for _, known in self.damage):
                self.suspect(offset)
                logger.error("%s: %s", self.name, error)
            return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
        except OSError as error:
            raise self._failed(error) from error

    def aborted_within(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with a batch between ``start`` and ``end`` (exclusive), by first offset.

        ``end`` must not be past the start of the first open transaction. Raises :class:`LogDirFailed`.
        """
        self._check_usable()
        try:
            return sorted(self._chain.aborted_within(start, end))
        except OSError as error:
            raise self._failed(error) from error

    def offset_for_timestamp(self, timestamp: int, *, offset_end: int) -> TimestampOffset | Refusal | None:
        """Return the first record at or after ``timestamp`` (ms) below ``offset_end``, None if there is none."""
        self._check_usable()
        try:
            return find_timestamp(
                self._chain.segments,
                timestamp,
                log_start_offset=self.log_start_offset,
                offset_end=offset_end,
                index_interval=self.config.index_interval_bytes,
            )
        except CorruptBatch as error:
            return self._corrupt(error)
        except OSError as error:
            raise self._failed(error) from error

    def offset_of_max_timestamp(self, *, offset_end: int) -> TimestampOffset | Refusal | None:
        """Return the first record with the highest timestamp, None if it lies at or after ``offset_end`` (KIP-734)."""
        self._check_usable()
        try:
            return find_latest_timestamp(
                self._chain.segments,
                log_start_offset=self.log_start_offset,
                offset_end=offset_end,
                index_interval=self.config.index_interval_bytes,
            )
        except CorruptBatch as error:
            return self._corrupt(error)
        except OSError as error:
            raise self._failed(error) from error

    def _corrupt(self, error: CorruptBatch) -> Refusal:
        logger.error("%s: %s", self.name, error)
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))

    # --- Leader epochs -------------------------------------------------------------------------

    def end_offset_for_epoch(self, epoch: int) -> tuple[LeaderEpoch, Offset]:
        """Return the largest known epoch up to ``epoch``, and its end; (-1, -1) if unknown (KIP-101, KIP-279)."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def assign_epoch_start(self, epoch: int, offset: int) -> None:
        """Note where a leader's epoch begins, before its first append."""
        self._epochs.assign(epoch, offset)

    def epoch_at(self, offset: int) -> LeaderEpoch:
        return self._epochs.epoch_at(offset)

    # --- Cutting off ---------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> Offset:
        """Remove the batch that holds ``offset`` and everything after it, durably; returns the new end.

        If the offset is within a batch, the whole batch goes; if it is below the first segment, the log becomes empty
        and starts there. Raises :class:`LogDirFailed`.
        """
        self._check_usable()
        chain = self._chain
        if offset >= self.log_end_offset:
            # A leader that appended nothing may have noted an epoch here that the new leader does not know.
            self._epochs.truncate_from_end(offset)
            return self.log_end_offset
        if offset < chain.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return self.log_end_offset
        self._hints.clear()
        try:
            end = chain.cut_at(offset, self.config.index_interval_bytes, self._before_cut, self._examine_now)
            self._load_producers(end)
            chain.sync_names()
            self._epochs.truncate_from_end(end)
            self.log_end_offset = end
            if self.log_start_offset > end:
                self.log_start_offset = end
                self._owner.store_points()
        except OSError as error:
            raise self._failed(error) from error
        return end

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop all records; the next record gets ``offset``. Raises :class:`LogDirFailed`."""
        self._check_usable()
        self.make_files()
        self._hints.clear()
        try:
            self._before_cut(min(offset, self._chain.segments[0].base_offset))
            self._chain.restart_at(offset)
            lower = offset < self.log_start_offset
            self.producers.clear()
            self._epochs.clear()
            self.log_start_offset = self.log_end_offset = Offset(offset)
            self._flushes.recovery_point = Offset(offset)
            if lower:
                self._owner.store_points()
        except OSError as error:
            raise self._failed(error) from error

    def advance_log_start(self, offset: int) -> None:
        """Exclude records before ``offset`` from the log (DeleteRecords, or the leader's start).

        The next retention run deletes their segments. ``offset`` must not be past the log's end.
        """
        self._check_usable()
        assert offset <= self.log_end_offset, f"log start {offset} beyond the end {self.log_end_offset}"
        if offset > self.log_start_offset:
            self.log_start_offset = Offset(offset)
            self._epochs.truncate_from_start(offset)

    def mark_expired(self, now_ms: int, high_watermark: int) -> bool:
        """Advance the log start past the segments that retention removes. Returns whether there are any.

        The caller then stores the log start offsets (of many logs at once) and calls
        :meth:`drop_expired`. Raises :class:`LogDirFailed`.
        """
        self._check_usable()
        config, chain = self.config, self._chain
        if not chain.on_disk:
            return False
        try:
            count = expired_count(
                chain.ages(self.log_end_offset, config.index_interval_bytes),
                now_ms=now_ms,
                high_watermark=high_watermark,
                log_start_offset=self.log_start_offset,
                retention_ms=config.retention_ms if config.deletes else -1,
                retention_bytes=config.retention_bytes if config.deletes else -1,
            )
            if not count:
                return False
            if count == len(chain.segments):
                self._roll(self.log_end_offset, now_ms)
        except CorruptBatch as error:
            logger.error("%s: deleting nothing: %s", self.name, error)
            return False
        except OSError as error:
            raise self._failed(error) from error
        self.advance_log_start(chain.segments[count].base_offset)
        return True

    def drop_expired(self) -> int:
        """Delete the segments before the log start, which must already be stored. Returns how many."""
        self._check_usable()
        try:
            return self._chain.drop_before(self.log_start_offset)
        except OSError as error:
            raise self._failed(error) from error

    def apply_retention(self, now_ms: int, high_watermark: int) -> int:
        """Delete segments by age and size (``retention.ms``, ``retention.bytes``). Returns the number of segments.

        The active segment is never deleted; if all segments must go, it is rolled first.
        """
        if not self.mark_expired(now_ms, high_watermark):
            return 0
        try:
            self._owner.store_points()
        except OSError as error:
            raise self._failed(error) from error
        return self.drop_expired()

    def _start_within(self, base_offset: int) -> None:
        """Start the empty log's file at the first batch, which begins before the log's start."""
        start = self.log_start_offset
        self.truncate_fully_and_start_at(base_offset)
        self.log_start_offset = start
        try:
            self._owner.store_points()
        except OSError as error:
            raise self._failed(error) from error
