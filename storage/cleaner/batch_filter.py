"""Decides which parts of a batch stay when a log is cleaned. Pure.

==============================================  ====================================================
a record up to the last mapped offset           outcome
==============================================  ====================================================
a later one with its key is mapped              goes
no key                                          goes (leaders refuse such for compacted topics)
of an aborted transaction                       goes
no value (a tombstone), horizon not set         stays; its batch gets the horizon: now and
                                                ``delete.retention.ms``
no value, before the horizon                    stays
no value, after the horizon                     goes
a value                                         stays
==============================================  ====================================================

A record beyond the last mapped offset stays. A marker gets a horizon once no batch of its transaction is left, and goes
after the horizon. A batch that loses all its records goes, unless it is

- a known producer's last batch before the end of the cleaned part: it holds the sequence number that is due next if the
  log is truncated there (Kafka counts later batches that may still be truncated, and forgets the number);
- the last batch of its group of segments: the group's end offset must not be lost;
- the first batch of its leader epoch: a replica that learns epochs from batches must learn where the epoch began, or it
  would truncate too little as a follower. Kafka removes this batch.

Remaining records keep their offsets and timestamps. A batch that loses no record is not touched at all, and neither is
one that cannot be decoded (leaders do not decode batches of topics that are not compacted). Source: Kafka's
``Cleaner.cleanInto`` and ``MemoryRecords.filterTo``, KIP-534.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.model.buffer import Buffer
from tidelog.proto.records.batches import DELETE_HORIZON, Batch
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.decoder import record_bytes
from tidelog.proto.records.spans import Span, emptied, record_spans, rewritten
from tidelog.storage.cleaner.offset_map import OffsetMap
from tidelog.storage.cleaner.transactions import CleanedTransactions

logger: Final = logging.getLogger(__name__)


class LastOfProducer(NamedTuple):
    """The minimum to keep for a producer. ``last_offset``: of its newest data before the end of the cleaned part, -1 if
    only markers are known. Later data may still be truncated, and then this is the newest.

    ``is_known`` is false if everything remembered lies after that end: any earlier batch may be the newest.
    """

    last_offset: int
    epoch: int
    is_known: bool = True


@dataclass(slots=True)
class FilterCounts:
    """Counts of what a filter has seen and kept."""

    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0


class BatchFilter:
    """Filters batches; needs every batch of the cleaned part, in order.

    ``offsets`` holds each key's latest offset up to ``mapped_end`` (exclusive). ``producers`` may be replaced during
    the work: the filter asks which batches still matter.
    """

    def __init__(
        self,
        offsets: OffsetMap,
        mapped_end: int,
        *,
        now_ms: int,
        delete_retention_ms: int,
        producers: Mapping[int, LastOfProducer],
        transactions: CleanedTransactions,
    ) -> None:
        self.producers = producers
        self.transactions = transactions
        self.counts = FilterCounts()
        self._offsets = offsets
        self._mapped_end = mapped_end
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms
        self._epoch = -1

    def filter(self, batch: Batch, *, is_last: bool) -> Buffer | None:
        """Return the batch to write in place of this one, or None to drop it.

        ``is_last``: it is the last batch of its group. Raises :class:`CorruptBatch` for an invalid control batch.
        """
        begins_epoch = batch.leader_epoch != self._epoch
        self._epoch = batch.leader_epoch
        stays = is_last or begins_epoch or self._is_last_of_producer(batch)
        kept, count = self._control(batch) if batch.is_control else self._data(batch)
        if kept is None and stays:
            kept = emptied(batch) if batch.record_count else batch.view
        counts = self.counts
        counts.records_read += batch.record_count
        counts.records_kept += count
        counts.bytes_read += batch.size
        counts.bytes_kept += 0 if kept is None else len(kept)
        return kept

    def _control(self, batch: Batch) -> tuple[Buffer | None, int]:
        may_go = self.transactions.on_control(batch)
        if not batch.record_count:
            return None, 0
        if not may_go:
            return batch.view, batch.record_count
        if not batch.attributes & DELETE_HORIZON:
            body = record_bytes(batch)
            spans = record_spans(body, batch)
            return rewritten(batch, body, spans, delete_horizon_ms=self._horizon_ms), len(spans)
        return (None, 0) if batch.base_timestamp <= self._now_ms else (batch.view, batch.record_count)

    def _data(self, batch: Batch) -> tuple[Buffer | None, int]:
        aborted = self.transactions.on_batch(batch)
        if aborted or not batch.record_count:
            return None, 0
        if batch.base_offset >= self._mapped_end:
            return batch.view, batch.record_count
        try:
            body = record_bytes(batch)
            spans = record_spans(body, batch)
        except CorruptBatch as error:
            logger.warning("keeping a batch at offset %d unchanged: %s", batch.base_offset, error)
            return batch.view, batch.record_count
        kept, has_tombstone = self._kept(batch, spans)
        if not kept:
            return None, 0
        needs_horizon = has_tombstone and not batch.attributes & DELETE_HORIZON
        if len(kept) == len(spans) and not needs_horizon:
            return batch.view, len(kept)
        horizon_ms = self._horizon_ms if needs_horizon else None
        return rewritten(batch, body, kept, delete_horizon_ms=horizon_ms), len(kept)

    def _kept(self, batch: Batch, spans: list[Span]) -> tuple[list[Span], bool]:
        """Return the records that stay, and whether one of them is a tombstone."""
        latest, mapped_end = self._offsets.get, self._mapped_end
        keeps_tombstones = not batch.attributes & DELETE_HORIZON or self._now_ms < batch.base_timestamp
        kept: list[Span] = []
        has_tombstone = False
        for span in spans:
            offset, _, key, has_value, _, _ = span
            if offset < mapped_end:
                if key is None:
                    self.counts.records_without_key += 1
                    continue
                if offset < latest(key) or not (has_value or keeps_tombstones):
                    continue
            kept.append(span)
            if not has_value:
                has_tombstone = True
        return kept, has_tombstone

    def _is_last_of_producer(self, batch: Batch) -> bool:
        """Return whether a batch is its producer's last (Kafka's ``Cleaner.isBatchLastRecordOfProducer``)."""
        if batch.producer_id < 0:
            return False
        known = self.producers.get(batch.producer_id)
        if known is None:
            return False
        if not known.is_known:
            return True
        if known.last_offset >= 0:
            return batch.last_offset == known.last_offset
        return batch.is_control and batch.producer_epoch == known.epoch
