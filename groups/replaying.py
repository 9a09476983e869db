"""Builds the state of a partition of ``__consumer_offsets`` from its log: the last record of a key wins.

A transaction's offsets are kept separately until a marker says whether they count.
"""

from __future__ import annotations

from tidelog.groups.state.consumer_group import ConsumerGroup
from tidelog.groups.state.group import LOADED, Group
from tidelog.groups.state.group_offsets import loaded_order
from tidelog.groups.state.open_transactions import WrittenOffset
from tidelog.groups.state.shard_state import ShardState
from tidelog.model.ids import Offset, ProducerEpoch, ProducerId
from tidelog.model.moment import Moment
from tidelog.proto.logs.consumer_group_records import GROUP, decode_consumer_key, decode_consumer_value
from tidelog.proto.logs.coordinator_records import (
    NO_TIMESTAMP,
    GroupMetadataKey,
    OffsetCommitKey,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.control_batches import ControlKind, decode_control
from tidelog.replication.coordinators.coordinator_core import CoreReplaying


class Replaying(CoreReplaying):
    """Takes batches in the order of the log, then :meth:`finish`."""

    __slots__ = ("_shard",)

    def __init__(self, shard: ShardState) -> None:
        super().__init__()
        self._shard = shard

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
        """Drop empty groups. Returns those that have members."""
        found: list[Group] = []
        for group in list(self._shard.groups.values()):
            if group.members or (group.consumer is not None and group.consumer.members):
                found.append(group)
            else:
                self._shard.forget_if_idle(group, now)
        return found

    def _record(self, batch: Batch, offset: Offset, key: bytes, value: bytes | None) -> bool:
        match decode_key(key):
            case OffsetCommitKey(group_id, topic, partition):
                decoded = None if value is None else decode_offset_value(value)
                group = self._shard.groups.get(group_id)
                if group is None:
                    if decoded is None:
                        return True
                    group = self._group(group_id)
                if decoded is None:
                    group.offsets.load(topic, partition, None, offset)
                    self._shard.transactions.tombstone(group, topic, partition, loaded_order(offset))
                elif not batch.is_transactional:
                    group.offsets.load(topic, partition, decoded, offset)
                else:
                    self._shard.transactions.load(
                        ProducerId(batch.producer_id),
                        ProducerEpoch(batch.producer_epoch),
                        (group, topic, partition),
                        WrittenOffset(loaded_order(offset), decoded),
                    )
            case GroupMetadataKey(group_id):
                metadata = None if value is None else decode_group_value(value)
                group = self._shard.groups.get(group_id)
                if metadata is None:
                    if group is not None:
                        group.unload()
                    return True
                (self._group(group_id) if group is None else group).load(metadata)
            case UnknownKey():
                return self._consumer(key, value)
        return True

    def _consumer(self, raw: bytes, value: bytes | None) -> bool:
        """Apply a record of a group of the consumer protocol. Returns false if it is of another kind."""
        key = decode_consumer_key(raw)
        if key is None:
            return False
        decoded = None if value is None else decode_consumer_value(key.kind, value)
        group = self._shard.groups.get(key.group)
        if group is None or group.consumer is None:
            if decoded is None:
                return True
            group = group or self._group(key.group)
            group.consumer = ConsumerGroup(key.group, self._shard.population)
        consumer = group.consumer
        consumer.apply(key, decoded)
        if key.kind == GROUP and decoded is None and not consumer.members:
            group.consumer = None
            if group.is_consumer_stored:
                group.record_number, group.is_consumer_stored = None, False
        elif decoded is not None:
            group.become_simple()
            group.record_number, group.is_consumer_stored = LOADED, True
        return True

    def _group(self, group_id: str) -> Group:
        """Return a group from the log. Limits do not apply to it."""
        group = self._shard.groups[group_id] = Group(group_id, self._shard.population, NO_TIMESTAMP)
        return group
