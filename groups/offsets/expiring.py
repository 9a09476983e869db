"""Removes expired offsets, offsets of deleted topics, and groups that are deleted or have nothing left.

Source: KIP-211, KIP-229, ``ClassicGroup.offsetExpirationCondition``, ``GroupCoordinatorShard.deleteGroups``. Removal
means tombstones, which count once the log has them. Departures from Kafka: a group's own tombstone is written once its
offsets are gone in the log, or in one batch with theirs; tombstones that do not fit in one batch are written in
several, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from tidelog.groups.offsets.committing import OffsetChange, offset_record
from tidelog.groups.state.group import Group
from tidelog.groups.state.shard_state import EXPIRY_KEY, ShardState
from tidelog.groups.state.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.model.names import is_delay_service
from tidelog.proto.calls.group_api import DeletedGroup
from tidelog.proto.logs.coordinator_records import (
    NO_TIMESTAMP,
    CoordinatorRecord,
    OffsetCommitValue,
)
from tidelog.replication.coordinators.coordinator_core import append_error

logger = logging.getLogger(__name__)

_LOOKED_AT_ONCE: Final = 20_000
"""How many offsets and groups one round of a check visits, so that other work gets its turn in between."""
_BATCH_BYTES: Final = 256 * 1024
"""Maximum bytes of tombstones in one batch, if the topic allows them."""
_HEADER_BYTES: Final = 61
_RECORD_BYTES: Final = 32
"""Maximum bytes that a batch's record has besides its key and value."""


class Expiring:
    """Removes expired and deleted items from one partition of ``__consumer_offsets``."""

    __slots__ = ("_left", "_shard")

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard
        self._left: list[str] = []  # groups that the current check has not visited

    # --- Expiry -------------------------------------------------------------------------------------

    def schedule(self, now: Moment) -> None:
        """Schedule the next check one interval from now."""
        self._shard.timers.set(EXPIRY_KEY, now.monotonic_ms + self._shard.settings.offsets_retention_check_interval_ms)

    def check(self, now: Moment) -> None:
        """Check some groups, and return immediately for the rest."""
        shard = self._shard
        if not self._left:
            self._left = list(shard.groups)
            self._left.reverse()
        changes: list[tuple[Group, OffsetChange]] = []
        looked_at = 0
        while self._left and looked_at < _LOOKED_AT_ONCE:
            group = shard.groups.get(self._left.pop())
            if group is None:
                continue
            looked_at += 1
            for topic, partition, value in group.offsets.items():
                looked_at += 1
                if self._is_expired(group, topic, value, now) and not group.offsets.is_pending(topic, partition):
                    changes.append((group, (topic, partition, None)))
            if group.is_idle:
                self._remove_record(group, now)
        if changes:
            shard.counters.offset_expirations += len(changes)
            logger.info("%d committed offsets have expired", len(changes))
            self._bury(changes, now)
        if self._left:
            shard.timers.set(EXPIRY_KEY, now.monotonic_ms)
        else:
            self.schedule(now)

    def _is_expired(self, group: Group, topic: str, value: OffsetCommitValue, now: Moment) -> bool:
        """Return whether an offset has expired. The time counts from when the group became empty. For a simple group,
        and for a topic that a stable consumer group no longer subscribes to, it counts from the commit. An old-style
        expire timestamp decides alone."""
        if group.is_subscribed(topic) or is_delay_service(group.group_id):
            return False
        since = value.commit_timestamp
        if group.protocol_type is not None:
            if group.state is GroupState.EMPTY:
                since = since if group.state_since_ms == NO_TIMESTAMP else group.state_since_ms
            elif group.state is not GroupState.STABLE or group.subscribed_topics is None:
                return False
        if value.expire_timestamp != NO_TIMESTAMP:
            return now.wall_ms >= value.expire_timestamp
        return now.wall_ms - since >= self._shard.settings.offsets_retention_ms

    # --- Deleted topics -----------------------------------------------------------------------------

    def topics_deleted(self, topics: Iterable[str], now: Moment) -> None:
        """Delete their committed offsets. Offsets being written stay: they may belong to a new topic with that name."""
        names = tuple(dict.fromkeys(topics))
        changes: list[tuple[Group, OffsetChange]] = []
        for group in self._shard.groups.values():
            for topic in names:
                of_topic = group.offsets.committed.get(topic)
                if of_topic is not None:
                    changes += [(group, (topic, partition, None)) for partition in of_topic]
        if changes:
            logger.info("%d committed offsets are deleted with their topics", len(changes))
            self._bury(changes, now)

    # --- Deleted groups -----------------------------------------------------------------------------

    def delete_group(self, group_id: str, waiter: int, now: Moment) -> None:
        """Remove a group without members, with its offsets."""
        shard = self._shard
        group = shard.groups.get(group_id)
        if group is None:
            shard.answer(waiter, DeletedGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND))
        elif not group.is_empty:
            shard.answer(waiter, DeletedGroup(group_id, ErrorCode.NON_EMPTY_GROUP))
        elif not shard.can_append:
            shard.answer(waiter, DeletedGroup(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            _GroupRemoval(self, shard, group, waiter).go_on(now)

    # --- Tombstones ---------------------------------------------------------------------------------

    def _bury(self, changes: list[tuple[Group, OffsetChange]], now: Moment) -> None:
        """Write tombstones of many groups, in as many batches as necessary."""
        batch: list[tuple[Group, OffsetChange]] = []
        records: list[CoordinatorRecord] = []
        size = _HEADER_BYTES
        for group, change in changes:
            record = offset_record(group.group_id, *change)
            size += record_bytes(record)
            if records and size > self.bytes_max:
                self._write(batch, records, now)
                batch, records, size = [], [], _HEADER_BYTES + record_bytes(record)
            batch.append((group, change))
            records.append(record)
        self._write(batch, records, now)

    def _write(self, batch: list[tuple[Group, OffsetChange]], records: list[CoordinatorRecord], now: Moment) -> None:
        for group, (topic, partition, _) in batch:
            group.offsets.began(topic, partition)
        self._shard.append(records, _Tombstones(self, self._shard, batch), now)

    def settle_if_idle(self, groups: Iterable[Group], now: Moment) -> None:
        """Remove groups that have nothing left after offsets were removed."""
        for group in groups:
            if not self._shard.forget_if_idle(group, now) and group.is_idle:
                self._remove_record(group, now)

    def _remove_record(self, group: Group, now: Moment) -> None:
        if group.record_number is not None:
            self._shard.append(self._shard.tombstones(group), _GroupTombstone(self._shard, group), now)
        else:
            self._shard.forget_if_idle(group, now)

    @property
    def bytes_max(self) -> int:
        return min(_BATCH_BYTES, self._shard.batch_bytes_max)


def record_bytes(record: CoordinatorRecord) -> int:
    """Return the maximum bytes that a record adds to a batch."""
    return len(record.key) + (0 if record.value is None else len(record.value)) + _RECORD_BYTES


def _apply(shard: ShardState, group: Group, change: OffsetChange, number: int, error: ErrorCode) -> None:
    topic, partition, _ = change
    if error is not ErrorCode.NONE:
        group.offsets.failed(topic, partition)
        return
    group.offsets.ended(topic, partition, number, None)
    shard.transactions.tombstone(group, topic, partition, number)


def record_removed(group: Group, number: int) -> None:
    """Note that append ``number`` holds the group's tombstone: earlier records of the group are gone."""
    if group.record_number is not None and group.record_number < number:
        group.record_number = None
        group.is_consumer_stored = False
        if group.consumer is not None and group.is_empty:
            group.consumer = None


class _Tombstones:
    """Tombstones of offsets that nobody waits for. The next check finds refused ones again."""

    __slots__ = ("_changes", "_expiring", "_shard")

    def __init__(self, expiring: Expiring, shard: ShardState, changes: list[tuple[Group, OffsetChange]]) -> None:
        self._expiring = expiring
        self._shard = shard
        self._changes = changes

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        for group, change in self._changes:
            _apply(self._shard, group, change, number, error)
        if error is ErrorCode.NONE:
            self._expiring.settle_if_idle({group.group_id: group for group, _ in self._changes}.values(), now)

    def timed_out(self, now: Moment) -> None:
        pass

    def abandoned(self, error: ErrorCode) -> None:
        pass


class _GroupTombstone:
    """The tombstone of a group that had nothing left."""

    __slots__ = ("_group", "_shard")

    def __init__(self, shard: ShardState, group: Group) -> None:
        self._shard = shard
        self._group = group

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        if error is ErrorCode.NONE:
            record_removed(self._group, number)
            self._shard.forget_if_idle(self._group, now)

    def timed_out(self, now: Moment) -> None:
        pass

    def abandoned(self, error: ErrorCode) -> None:
        pass


class _GroupRemoval:
    """An administrator's deletion of a group, in as many batches as its offsets need, with the group's own tombstone in
    the last."""

    __slots__ = ("_changes", "_expiring", "_group", "_is_last", "_shard", "_waiter")

    def __init__(self, expiring: Expiring, shard: ShardState, group: Group, waiter: int) -> None:
        self._expiring = expiring
        self._shard = shard
        self._group = group
        self._waiter: int | None = waiter
        self._changes: list[OffsetChange] = []
        self._is_last = False

    def go_on(self, now: Moment) -> None:
        """Write the next batch."""
        group = self._group
        keys = group.offsets.keys()
        self._changes = []
        self._is_last = False
        records: list[CoordinatorRecord] = []
        size = _HEADER_BYTES
        for topic, partition, record in _tombstones(group.group_id, keys):
            size += record_bytes(record)
            if records and size > self._expiring.bytes_max:
                break
            records.append(record)
            self._changes.append((topic, partition, None))
        else:
            self._is_last = True
            records += self._shard.tombstones(group)
        if not records:
            self._shard.forget_if_idle(group, now)
            self._tell(ErrorCode.NONE)
            return
        for topic, partition, _ in self._changes:
            group.offsets.began(topic, partition)
        self._shard.append(records, self, now)

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        group = self._group
        for change in self._changes:
            _apply(self._shard, group, change, number, error)
        if error is not ErrorCode.NONE:
            self._tell(append_error(error))
            self._shard.forget_if_idle(group, now)
        elif self._is_last:
            record_removed(group, number)
            self._shard.forget_if_idle(group, now)
            self._tell(ErrorCode.NONE)
        elif group.is_empty:
            self.go_on(now)
        else:
            self._tell(ErrorCode.NON_EMPTY_GROUP)

    def timed_out(self, now: Moment) -> None:
        self._tell(append_error(ErrorCode.REQUEST_TIMED_OUT))

    def abandoned(self, error: ErrorCode) -> None:
        self._tell(error)

    def _tell(self, error: ErrorCode) -> None:
        if self._waiter is not None:
            self._shard.answer(self._waiter, DeletedGroup(self._group.group_id, error))
            self._waiter = None


def _tombstones(group_id: str, keys: list[tuple[str, int]]) -> Iterator[tuple[str, int, CoordinatorRecord]]:
    for topic, partition in keys:
        yield topic, partition, offset_record(group_id, topic, partition, None)
