"""Making the state of a partition of ``__consumer_offsets`` from its log: the last record of a key wins.

A record that only other software knows, or that cannot be read, is passed over and counted: it stops nothing.
Offsets of a transaction are kept apart until a marker says whether they count.
"""

from __future__ import annotations

import logging

from tidelog.groups.effects import Writer
from tidelog.groups.group import Group
from tidelog.groups.group_offsets import loaded_order
from tidelog.groups.open_transactions import WrittenOffset
from tidelog.groups.shard_state import ShardState
from tidelog.model.ids import Offset, ProducerEpoch, ProducerId
from tidelog.model.moment import Moment
from tidelog.proto.control_batches import ControlKind, decode_control
from tidelog.proto.coordinator_records import (
    NO_TIMESTAMP,
    BadCoordinatorRecord,
    GroupMetadataKey,
    OffsetCommitKey,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from tidelog.proto.record_decoder import decode_records
from tidelog.proto.records import Batch

logger = logging.getLogger(__name__)


class Replaying:
    """Takes batches in the order of the log, then :meth:`finish`."""

    __slots__ = ("_shard", "passed_over", "records")

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard
        self.records = 0
        self.passed_over = 0

    def batch(self, batch: Batch) -> None:
        """Replay one batch. Raises :class:`~tidelog.proto.corrupt_batch.CorruptBatch`."""
        if batch.is_control:
            self._control(batch)
            return
        writer = Writer(ProducerId(batch.producer_id), ProducerEpoch(batch.producer_epoch))
        of_transaction = writer if batch.is_transactional else None
        for offset, _, key, value, _ in decode_records(batch):
            self.records += 1
            try:
                self._record(Offset(offset), b"" if key is None else key, value, of_transaction)
            except BadCoordinatorRecord as cause:
                self.passed_over += 1
                logger.warning("the record at offset %d is passed over: %s", offset, cause)

    def _control(self, batch: Batch) -> None:
        if not batch.record_count:
            return  # what compaction leaves of one
        kind = decode_control(batch).kind
        if kind is ControlKind.UNKNOWN:
            return
        transactions = self._shard.transactions
        transaction = transactions.ending(ProducerId(batch.producer_id))
        if transaction is not None:
            transactions.ended(transaction, committed=kind is ControlKind.COMMIT)

    def finish(self, now: Moment) -> list[Group]:
        """Drop groups of which nothing is left; return those that have members."""
        found: list[Group] = []
        for group in list(self._shard.groups.values()):
            if group.members:
                found.append(group)
            else:
                self._shard.forget_if_idle(group, now)
        return found

    def _record(self, offset: Offset, key: bytes, value: bytes | None, writer: Writer | None) -> None:
        match decode_key(key):
            case OffsetCommitKey(group_id, topic, partition):
                decoded = None if value is None else decode_offset_value(value)
                group = self._shard.groups.get(group_id)
                if group is None:
                    if decoded is None:
                        return
                    group = self._group(group_id)
                if decoded is None:
                    group.offsets.load(topic, partition, None, offset)
                    self._shard.transactions.tombstone(group, topic, partition, loaded_order(offset))
                elif writer is None:
                    group.offsets.load(topic, partition, decoded, offset)
                else:
                    self._shard.transactions.load(
                        *writer, (group, topic, partition), WrittenOffset(loaded_order(offset), decoded)
                    )
            case GroupMetadataKey(group_id):
                metadata = None if value is None else decode_group_value(value)
                group = self._shard.groups.get(group_id)
                if metadata is None:
                    if group is not None:
                        group.unload()
                    return
                (self._group(group_id) if group is None else group).load(metadata)
            case UnknownKey():
                self.passed_over += 1

    def _group(self, group_id: str) -> Group:
        """A group that the log has: no bound keeps it out."""
        group = self._shard.groups[group_id] = Group(group_id, self._shard.population, NO_TIMESTAMP)
        return group
