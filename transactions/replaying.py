"""Builds the state of a partition of ``__transaction_state`` from its log: the last record of a key wins."""

from __future__ import annotations

from tidelog.model.ids import Offset
from tidelog.proto.logs.sink_records import decode_sink_key, decode_sink_value
from tidelog.proto.logs.transaction_records import TransactionLogKey, decode_transaction_key, decode_transaction_value
from tidelog.proto.records.batches import Batch
from tidelog.replication.coordinators.coordinator_core import CoreReplaying
from tidelog.transactions import ledger
from tidelog.transactions.shard_state import ShardState
from tidelog.transactions.transaction import Entry, loaded


class Replaying(CoreReplaying):
    """Replays transactions and sinks' ledgers."""

    __slots__ = ("_shard",)

    def __init__(self, shard: ShardState) -> None:
        super().__init__()
        self._shard = shard

    def _control(self, batch: Batch) -> None:
        """Do nothing: no transaction writes to this topic."""

    def _record(self, batch: Batch, offset: Offset, key: bytes, value: bytes | None) -> bool:
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
