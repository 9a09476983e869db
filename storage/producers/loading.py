"""Loads a partition's producers from disk: the newest valid snapshot, and the batches after it.

Each batch is checked as the scrub checks it: a wrong one would give the partition producers that it never had. Damage
is skipped, remembered by its segment, and noted in the state (``ProducerStates.lacking_from``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tidelog.model.ids import Offset
from tidelog.proto.records.batches import Batch, CorruptBatch
from tidelog.proto.records.control_batches import ControlKind, decode_control
from tidelog.storage.disk.files import FileLayer, read_file
from tidelog.storage.producers.snapshot import CorruptSnapshot, decode_snapshot
from tidelog.storage.producers.state import CompletedTransaction, ProducerStates
from tidelog.storage.segments.examination import DamagedRange, Expected, examine
from tidelog.storage.segments.leader_epochs import LeaderEpochs
from tidelog.storage.segments.segment import SNAPSHOT_SUFFIX, Segment, file_name
from tidelog.storage.segments.transaction_index import AbortedTransaction

logger = logging.getLogger(__name__)


def load_producers(
    files: FileLayer,
    directory: str,
    segments: Sequence[Segment],
    snapshots: list[int],
    log_end_offset: int,
    *,
    producers_max: int,
    epochs: LeaderEpochs,
    sparse: bool,
    now_ms: int,
    remove: Callable[[str], None],
    reindex_from: int | None = None,
) -> ProducerStates:
    """Return the producers as of the log's end. Raises ``OSError``.

    ``snapshots`` are the rising offsets of existing files; those past the end and unreadable ones are taken out and
    passed to ``remove`` by name. Producers found by replay count as last used at ``now_ms``.

    ``reindex_from``: the segments' transaction indexes, empty from that offset on, are filled from the log. The replay
    begins early enough for that.
    """
    while snapshots and snapshots[-1] > log_end_offset:
        remove(file_name(snapshots.pop(), SNAPSHOT_SUFFIX))
    start = segments[0].base_offset
    states = ProducerStates(producers_max=producers_max)
    # A snapshot from before the first segment misses what happened in between: a transaction that it shows as open may
    # have ended there, and would stay open forever.
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
        end = log_end_offset if number + 1 == len(segments) else segments[number + 1].base_offset
        if start < end and segment.size:
            position, due = segment.indexed_position(start) if start > segment.base_offset else (0, segment.base_offset)
            expected = Expected(due, end, not sparse, epochs)
            _replay(segment, position, start, expected, states, now_ms, reindex_from)
    return states


def _replay(
    segment: Segment,
    position: int,
    start: int,
    expected: Expected,
    states: ProducerStates,
    now_ms: int,
    reindex_from: int | None,
) -> None:
    damage: list[DamagedRange] = []
    for found in examine(segment.log.get().pread, position, segment.size, expected):
        if isinstance(found, DamagedRange):
            damage.append(found)
        elif found is not None and found.batch.has_producer_id and found.batch.base_offset >= start:
            try:
                ended = apply_batch(states, found.batch, found.batch.base_offset, now_ms)
            except CorruptBatch as error:
                logger.warning("%s: producer state is incomplete: %s", segment.log.path, error)
                continue
            if ended is not None and ended.aborted and reindex_from is not None and ended.last_offset >= reindex_from:
                segment.transactions.append(aborted_entry(ended))
    segment.examined(position, segment.size, damage)
    for each in damage:
        if each.next_offset > start and states.lacking_from is None:
            logger.error("%s: producers are not all known: %s", segment.log.path, each)
            states.lacking_from = Offset(max(start, each.first_offset))


def aborted_entry(ended: CompletedTransaction) -> AbortedTransaction:
    """Return an aborted transaction's entry for the transaction index."""
    return AbortedTransaction(ended.first_offset, ended.producer_id, ended.last_offset, ended.last_stable_offset)


def apply_batch(states: ProducerStates, batch: Batch, base_offset: int, now_ms: int) -> CompletedTransaction | None:
    """Note a batch with a producer id at ``base_offset`` of the log.

    Returns the transaction that it ended, if any. Raises :class:`CorruptBatch` for an invalid control batch.
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
