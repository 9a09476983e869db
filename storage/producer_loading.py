"""A partition's producers from what is on disk: the newest good snapshot, and the batches behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tidelog.proto.control_batches import ControlKind, decode_control
from tidelog.proto.records import Batch, CorruptBatch
from tidelog.storage.batch_walk import walk_headers
from tidelog.storage.files import FileLayer, read_file
from tidelog.storage.producer_snapshot import CorruptSnapshot, decode_snapshot
from tidelog.storage.producer_state import CompletedTransaction, ProducerStates
from tidelog.storage.segment import SNAPSHOT_SUFFIX, Segment, file_name
from tidelog.storage.transaction_index import AbortedTransaction

logger = logging.getLogger(__name__)


def load_producers(
    files: FileLayer,
    directory: str,
    segments: Sequence[Segment],
    snapshots: list[int],
    log_end_offset: int,
    *,
    producers_max: int,
    index_interval: int,
    now_ms: int,
    remove: Callable[[str], None],
    reindex_from: int | None = None,
) -> ProducerStates:
    """Return the producers as of the log's end. Raises ``OSError``.

    ``snapshots`` are offsets of the files there, rising; those beyond the end and unreadable ones are taken
    out of it and handed to ``remove`` by name. Producers found by replay count as used at ``now_ms``.

    ``reindex_from``: the segments' indexes of aborted transactions, which hold nothing from that offset on, get
    what the log has there. The replay begins early enough for that.
    """
    while snapshots and snapshots[-1] > log_end_offset:
        remove(file_name(snapshots.pop(), SNAPSHOT_SUFFIX))
    start = segments[0].base_offset
    states = ProducerStates(producers_max=producers_max)
    # One from before the first segment says nothing of what happened in between: a transaction that it has open may
    # have ended there, and would never end again.
    usable = [offset for offset in snapshots if start <= offset and (reindex_from is None or offset <= reindex_from)]
    while usable:
        offset = usable.pop()
        name = file_name(offset, SNAPSHOT_SUFFIX)
        try:
            producers = decode_snapshot(read_file(files, f"{directory}/{name}"))
        except CorruptSnapshot as error:
            logger.warning("%s/%s: not used: %s", directory, name, error)
            remove(name)
            snapshots.remove(offset)
            continue
        states = ProducerStates(producers, producers_max=producers_max)
        start = max(start, offset)
        break
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        if start < log_end_offset and segment.size and (is_last or segments[number + 1].base_offset > start):
            _replay(segment, start, states, index_interval, now_ms, reindex_from)
    return states


def _replay(
    segment: Segment, start: int, states: ProducerStates, index_interval: int, now_ms: int, reindex_from: int | None
) -> None:
    try:
        position = segment.position_of(start, index_interval) if start > segment.base_offset else 0
        for at, batch in walk_headers(segment.log, position, segment.size):
            if batch.has_producer_id:
                whole = segment.read_batch(at, batch.size) if batch.is_control else batch
                ended = apply_batch(states, whole, batch.base_offset, now_ms)
                if ended is None or not ended.aborted or reindex_from is None:
                    continue
                if ended.last_offset >= reindex_from:
                    segment.transactions.append(aborted_entry(ended))
    except CorruptBatch as error:
        logger.warning("%s: producer state is incomplete: %s", segment.log.path, error)


def aborted_entry(ended: CompletedTransaction) -> AbortedTransaction:
    """What the index of transactions has of one that was aborted."""
    return AbortedTransaction(ended.first_offset, ended.producer_id, ended.last_offset, ended.last_stable_offset)


def apply_batch(states: ProducerStates, batch: Batch, base_offset: int, now_ms: int) -> CompletedTransaction | None:
    """Note a batch with a producer id that stands in the log at ``base_offset``.

    Returns the transaction that it ended, if it did. Raises :class:`CorruptBatch` for a control batch that is none.
    """
    if not batch.is_control:
        states.apply(
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            base_offset,
            batch.last_offset_delta + 1,
            batch.is_transactional,
            now_ms,
        )
    elif batch.record_count:
        marker = decode_control(batch)
        if marker.kind is not ControlKind.UNKNOWN:
            return states.apply_marker(
                batch.producer_id,
                batch.producer_epoch,
                marker.coordinator_epoch,
                base_offset,
                abort=marker.kind is ControlKind.ABORT,
                now_ms=now_ms,
            )
    return None
