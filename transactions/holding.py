"""A hold: a period in which a coordinator decides nothing, so that a backup finds each transaction complete or open.

No new records are written while a hold is in force; earlier decisions get their markers. A hold that is settled on
every partition of ``__transaction_state`` thus splits all transactions of the cluster in two: those that are complete
in each of their partitions, and undecided ones. Holds end on their own, and no other answer waits for one: clients must
retry.
"""

from __future__ import annotations

from tidelog.model.moment import Moment
from tidelog.proto.calls.backup_api import HeldLedger, HeldPartition
from tidelog.transactions.ledger import NEW
from tidelog.transactions.shard_state import HOLD_KEY, ShardState


class Holding:
    """Begins, extends and ends the hold of one partition."""

    __slots__ = ("_shard",)

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard

    def hold(self, partition: int, hold_id: str, hold_ms: int, now: Moment) -> HeldPartition:
        """Begin or extend a hold; ``hold_ms`` 0 ends it. No other hold may be in force."""
        shard = self._shard
        assert shard.hold in ("", hold_id)
        unbroken = shard.hold == hold_id
        if hold_ms > 0:
            shard.hold = hold_id
            shard.timers.set(HOLD_KEY, now.monotonic_ms + hold_ms)
        else:
            self.end()
        ledgers = tuple(
            HeldLedger(name, sink.ledger.last_batch, sink.ledger.last_job)
            for name, sink in shard.sinks.items()
            if sink.ledger is not NEW and sink.ledger.last_batch >= 0
        )
        settled = not (shard.appends or shard.allocations or shard.sendings)
        return HeldPartition(partition, shard.leader_epoch, settled, unbroken, ledgers)

    def end(self) -> None:
        self._shard.hold = ""
        self._shard.timers.cancel(HOLD_KEY)
