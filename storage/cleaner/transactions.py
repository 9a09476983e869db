"""Tracks transactions during cleaning: which batches were aborted, which markers may go.

A marker may go once no batch of its transaction is left. Source: Kafka's ``CleanedTransactionMetadata``. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from tidelog.proto.records.batches import Batch
from tidelog.proto.records.control_batches import ControlKind, decode_control
from tidelog.storage.segments.transaction_index import AbortedTransaction


class CleanedTransactions:
    """Transaction state during a pass; needs each batch in log order."""

    def __init__(self) -> None:
        self._ahead: list[AbortedTransaction] = []
        self._aborted: dict[int, AbortedTransaction] = {}
        self._observed: set[int] = set()
        self._committed: set[int] = set()
        self._retained: list[AbortedTransaction] = []

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions of the part that comes next."""
        for transaction in transactions:
            heapq.heappush(self._ahead, transaction)

    def take_retained(self) -> list[AbortedTransaction]:
        """Return, once, the aborted transactions that still had data when their markers passed: the content of the new
        segment's transaction index."""
        taken, self._retained = self._retained, []
        return taken

    def on_batch(self, batch: Batch) -> bool:
        """Note a data batch. Returns whether it was aborted, so that its records may go."""
        self._reach(batch.last_offset)
        if not batch.is_transactional:
            return False
        if batch.producer_id in self._aborted:
            self._observed.add(batch.producer_id)
            return True
        self._committed.add(batch.producer_id)
        return False

    def on_control(self, batch: Batch) -> bool:
        """Note a control batch. Returns whether it is no longer needed. Raises ``CorruptBatch``."""
        self._reach(batch.last_offset)
        if not batch.record_count:
            return True
        kind, producer_id = decode_control(batch).kind, batch.producer_id
        if kind is ControlKind.ABORT:
            transaction = self._aborted.pop(producer_id, None)
            if transaction is None or producer_id not in self._observed:
                return True
            self._observed.discard(producer_id)
            self._retained.append(transaction)
            return False
        if kind is ControlKind.COMMIT:
            if producer_id in self._committed:
                self._committed.discard(producer_id)
                return False
            return True
        return False

    def _reach(self, offset: int) -> None:
        while self._ahead and self._ahead[0].first_offset <= offset:
            transaction = heapq.heappop(self._ahead)
            self._aborted.setdefault(transaction.producer_id, transaction)
