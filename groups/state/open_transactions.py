"""Offsets of transactions that have not ended, in one partition of ``__consumer_offsets``.

A value committed within a transaction counts once the transaction's commit marker is in this partition; an abort marker
drops it. Of several values or tombstones of one key, the one whose record comes last in the log wins, whichever marker
comes first: compaction keeps the last record of a key, and a node that loads the log must get the same result. Source:
``OffsetMetadataManager`` (``pendingTransactionalOffsets``, ``replayEndTransactionMarker``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from tidelog.groups.state.group import Group
from tidelog.model.ids import ProducerEpoch, ProducerId
from tidelog.proto.logs.coordinator_records import OffsetCommitValue

OffsetKey: TypeAlias = tuple[Group, str, int]
"""Group, topic, partition."""


class WrittenOffset(NamedTuple):
    """A value in the log, and its place in the log's order."""

    order: int
    value: OffsetCommitValue


class OpenTransaction:
    """The offsets that one transaction has committed here. ``appends`` and ``markers``: those in flight; ``committed``:
    the outcome."""

    __slots__ = ("appends", "committed", "epoch", "markers", "offsets", "producer_id")

    def __init__(self, producer_id: ProducerId, epoch: ProducerEpoch) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.offsets: dict[OffsetKey, WrittenOffset] = {}
        self.appends = 0
        self.markers = 0
        self.committed: bool | None = None


class OpenTransactions:
    """One per producer id. A key of an open transaction is *pending* in its group's offsets."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[ProducerId, OpenTransaction] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, producer_id: ProducerId) -> OpenTransaction | None:
        return self._open.get(producer_id)

    def clear(self) -> None:
        self._open.clear()

    # --- Values -------------------------------------------------------------------------------------

    def began(self, producer_id: ProducerId, epoch: ProducerEpoch, keys: Iterable[OffsetKey]) -> OpenTransaction:
        """Note that an append of values was requested; the first one opens the transaction here."""
        found = self._open.get(producer_id)
        if found is None:
            found = self._open[producer_id] = OpenTransaction(producer_id, epoch)
        assert not found.markers
        found.epoch = max(found.epoch, epoch)
        found.appends += 1
        for group, topic, partition in keys:
            group.offsets.began(topic, partition)
        return found

    def written(self, transaction: OpenTransaction, values: dict[OffsetKey, WrittenOffset]) -> None:
        """Note that the append is committed in the log."""
        transaction.appends -= 1
        for (group, topic, partition), (order, value) in values.items():
            if transaction.committed is None:
                self._keep(transaction, (group, topic, partition), WrittenOffset(order, value))
            elif transaction.committed:
                group.offsets.ended(topic, partition, order, value)
            else:
                group.offsets.failed(topic, partition)

    def refused(self, transaction: OpenTransaction, keys: Iterable[OffsetKey]) -> None:
        """Note that nothing of the append is in the log."""
        transaction.appends -= 1
        for group, topic, partition in keys:
            group.offsets.failed(topic, partition)
        self._forget_if_empty(transaction)

    # --- The end ------------------------------------------------------------------------------------

    def ending(self, producer_id: ProducerId) -> OpenTransaction | None:
        """Note that a marker is being written; until its append ends, the transaction accepts nothing."""
        found = self._open.get(producer_id)
        if found is not None:
            found.markers += 1
        return found

    def ended(self, transaction: OpenTransaction, *, committed: bool) -> list[Group]:
        """Note that the marker is committed in the log. Returns the groups that this changed."""
        transaction.markers -= 1
        if transaction.committed is not None:
            return []  # the same marker, sent twice
        transaction.committed = committed
        del self._open[transaction.producer_id]
        for (group, topic, partition), (order, value) in transaction.offsets.items():
            if committed:
                group.offsets.ended(topic, partition, order, value)
            else:
                group.offsets.failed(topic, partition)
        return list(dict.fromkeys(group for group, _, _ in transaction.offsets))

    def not_ended(self, transaction: OpenTransaction) -> None:
        """Note that the marker was refused: the transaction is open as before."""
        transaction.markers -= 1
        self._forget_if_empty(transaction)

    def tombstone(self, group: Group, topic: str, partition: int, order: int) -> None:
        """Note that a tombstone is committed in the log: earlier values no longer count, however their transactions
        end."""
        if not group.offsets.is_pending(topic, partition):
            return
        for transaction in list(self._open.values()):
            written = transaction.offsets.get((group, topic, partition))
            if written is not None and written.order < order:
                del transaction.offsets[group, topic, partition]
                group.offsets.failed(topic, partition)
                self._forget_if_empty(transaction)

    # --- Loading ------------------------------------------------------------------------------------

    def load(self, producer_id: ProducerId, epoch: ProducerEpoch, key: OffsetKey, written: WrittenOffset) -> None:
        """Load a value of a transaction from the log."""
        self.written(self.began(producer_id, epoch, [key]), {key: written})

    def _keep(self, transaction: OpenTransaction, key: OffsetKey, written: WrittenOffset) -> None:
        known = transaction.offsets.get(key)
        if known is None:
            transaction.offsets[key] = written
            return
        group, topic, partition = key
        group.offsets.failed(topic, partition)  # one of the two counts for both
        if written.order > known.order:
            transaction.offsets[key] = written

    def _forget_if_empty(self, transaction: OpenTransaction) -> None:
        if (
            not transaction.offsets
            and not transaction.appends
            and not transaction.markers
            and self._open.get(transaction.producer_id) is transaction
        ):
            del self._open[transaction.producer_id]
