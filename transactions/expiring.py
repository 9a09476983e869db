"""Forgets transactional ids that have been unused for long, and never one with an open transaction.

Source: ``TransactionStateManager.removeExpiredTransactionalIds``.
"""

from __future__ import annotations

from typing import Final

from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.proto.logs.coordinator_records import CoordinatorRecord
from tidelog.transactions.shard_state import EXPIRY_KEY, PendingAppend, ShardState
from tidelog.transactions.transaction import Busy, Entry
from tidelog.transactions.transitions import ALLOWED, Cause, TransactionState, Transition

_RECORD_OVERHEAD_BYTES: Final = 32
_BATCH_HEADER_BYTES: Final = 61


class Expiring:
    """Checks all ids periodically."""

    __slots__ = ("_shard",)

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard

    def schedule(self, now: Moment) -> None:
        interval = self._shard.settings.remove_expired_transaction_cleanup_interval_ms
        self._shard.timers.set(EXPIRY_KEY, now.monotonic_ms + interval)

    def check(self, now: Moment) -> None:
        """Write tombstones for expired ids, in batches that the topic's size limit allows."""
        limit = now.wall_ms - self._shard.settings.transactional_id_expiration_ms
        batch: list[Entry] = []
        size = _BATCH_HEADER_BYTES
        for entry in list(self._shard.entries.values()):
            value = entry.value
            if entry.busy is not None or value is None or not value.state.is_idle or value.updated_ms > limit:
                continue
            grown = size + len(entry.key) + _RECORD_OVERHEAD_BYTES
            if batch and grown > self._shard.batch_bytes_max:
                self._remove(batch, now)
                batch, grown = [], _BATCH_HEADER_BYTES + len(entry.key) + _RECORD_OVERHEAD_BYTES
            if not self._shard.can_append:
                break
            batch.append(entry)
            size = grown
        if batch:
            self._remove(batch, now)
        self.schedule(now)

    def _remove(self, entries: list[Entry], now: Moment) -> None:
        for entry in entries:
            assert entry.value is not None
            assert Transition(entry.value.state, TransactionState.DEAD, Cause.EXPIRED) in ALLOWED
            entry.busy = Busy.MOVING

        def ended(error: ErrorCode, then: Moment) -> None:
            for entry in entries:
                entry.busy = None
                if error is ErrorCode.NONE:
                    self._shard.forget(entry)
                    self._shard.counters.expired_ids += 1
                self._shard.idle(entry, then)

        records = [CoordinatorRecord(entry.key, None) for entry in entries]
        self._shard.append(records, PendingAppend((), ended), now)
