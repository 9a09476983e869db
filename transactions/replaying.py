"""Making the state of a partition of ``__transaction_state`` from its log: the last record of a key wins.

A record that only other software knows, or that cannot be read, is passed over and counted: it stops nothing.
"""

from __future__ import annotations

import logging

from tidelog.proto.coordinator_fields import BadCoordinatorRecord
from tidelog.proto.record_decoder import decode_records
from tidelog.proto.records import Batch
from tidelog.proto.sink_records import decode_sink_key, decode_sink_value
from tidelog.proto.transaction_records import TransactionLogKey, decode_transaction_key, decode_transaction_value
from tidelog.transactions import ledger
from tidelog.transactions.shard_state import ShardState
from tidelog.transactions.transaction import Entry, loaded

logger = logging.getLogger(__name__)


class Replaying:
    """Takes batches in the order of the log."""

    __slots__ = ("_shard", "passed_over", "records")

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard
        self.records = 0
        self.passed_over = 0

    def batch(self, batch: Batch) -> None:
        """Replay one batch. Raises :class:`~tidelog.proto.corrupt_batch.CorruptBatch`."""
        if batch.is_control:
            return
        for offset, _, key, value, _ in decode_records(batch):
            self.records += 1
            try:
                used = self._record(b"" if key is None else key, value)
            except BadCoordinatorRecord as cause:
                used = False
                logger.warning("the record at offset %d is passed over: %s", offset, cause)
            self.passed_over += not used

    def _record(self, key: bytes, value: bytes | None) -> bool:
        decoded = decode_transaction_key(key)
        if not isinstance(decoded, TransactionLogKey):
            return self._ledger(key, value)
        transactional_id = decoded.transactional_id
        entry = self._shard.entries.get(transactional_id)
        if value is None:
            if entry is not None:
                self._shard.forget(entry)
            return True
        found = loaded(decode_transaction_value(value))
        if found is None:
            return False
        if entry is None:
            entry = Entry(transactional_id, bytes(key), None)
            self._shard.enter(entry)
        self._shard.put(entry, found)
        return True

    def _ledger(self, key: bytes, value: bytes | None) -> bool:
        name = decode_sink_key(key)
        if name is None:
            return False
        found = ledger.NEW if value is None else ledger.loaded(decode_sink_value(value))
        sink = self._shard.enter_sink(name)
        sink.ledger = found
        self._shard.drop_unused(sink)
        return True
