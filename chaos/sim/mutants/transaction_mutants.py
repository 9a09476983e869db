"""Patches of the transaction coordinator, of what partitions know of transactions, and of the group coordinator.

Each takes away one rule that :mod:`tidelog.chaos.checkers.transactions` judges by. Rules that cover each other are
taken out together.
"""

from __future__ import annotations

from typing import Final

from tidelog.chaos.sim.mutants.mutant import Edit, Mutant

_ENDING: Final = "tidelog.transactions.ending"
_TRANSACTION: Final = "tidelog.transactions.transaction"
_SHARD_STATE: Final = "tidelog.transactions.shard_state"
_INITIALISING: Final = "tidelog.transactions.initialising"
_PRODUCERS: Final = "tidelog.storage.producer_state"
_GROUP_OFFSETS: Final = "tidelog.groups.transactional"

MUTANTS: Final = (
    Mutant(
        id="markers-before-the-decision",
        rule="one decision",
        what="Markers go out while the decision is being written: the next coordinator knows nothing of it, and "
        "aborts what is committed in some partitions.",
        module=_ENDING,
        old="        self._shard.move(entry, after, cause, askers, now, moved=moved)\n\n    # --- Timeouts",
        new="        if after.partitions:\n"
        "            marker = TransactionMarker(\n"
        "                *after.identity,\n"
        "                after.state is TransactionState.PREPARE_COMMIT,\n"
        "                self._shard.leader_epoch,\n"
        "                tuple(GroupPartition(*partition) for partition in after.partitions),\n"
        "                _SECOND_PROTOCOL,\n"
        "            )\n"
        "            self._shard.effects.append(SendMarkers(self._shard.token(self._shard.number()), marker))\n"
        "        self._shard.move(entry, after, cause, askers, now, moved=moved)\n\n    # --- Timeouts",
        scenario="transactions",
    ),
    Mutant(
        id="epoch-not-bumped",
        rule="fenced",
        what="InitProducerId gives the same epoch to whoever asks: two processes write one transaction.",
        module=_INITIALISING,
        old="            self._give(entry, request, value.identity.next, previous, waiter, now)\n",
        new="            self._give(entry, request, value.identity, previous, waiter, now)\n",
        scenario="transactions",
    ),
    Mutant(
        id="timeout-ignores-prepare",
        rule="prepared",
        what="A prepared transaction is aborted when it is older than its timeout, though its decision is made elsewhere.",
        module=_TRANSACTION,
        old="            self.state is TransactionState.ONGOING\n            and self.timeout_ms",
        new="            self.state in (TransactionState.ONGOING, TransactionState.PREPARED)\n            and self.timeout_ms",
        scenario="transactions",
        more=(
            Edit(
                _SHARD_STATE,
                "        if value.state is TransactionState.ONGOING:\n            self.ongoing[",
                "        if value.state in (TransactionState.ONGOING, TransactionState.PREPARED):\n            self.ongoing[",
            ),
        ),
    ),
    Mutant(
        id="aborted-index-not-written",
        rule="only what counts",
        what="A partition's leader does not say which transactions were aborted.",
        module="tidelog.storage.log",
        old="                if ended is not None and ended.aborted:\n",
        new="                if ended is not None and ended.aborted and ended.first_offset < 0:\n",
        scenario="transactions",
    ),
    Mutant(
        id="last-stable-offset-not-restored",
        rule="only what counts",
        what="A partition that is loaded from its snapshot has forgotten which transactions are open.",
        module=_PRODUCERS,
        old="        opened = [producer for producer in self._producers.values() if producer.transaction_offset >= 0]\n",
        new="        opened: list[Producer] = []\n",
        scenario="transactions",
        more=(Edit(_PRODUCERS, "        del self._open[producer_id]\n", "        self._open.pop(producer_id, None)\n"),),
    ),
    Mutant(
        id="open-producer-expires",
        rule="only what counts",
        what="A producer that was idle for long is forgotten, its open transaction with it.",
        module=_PRODUCERS,
        old="                break\n            if producer.transaction_offset < 0:\n                gone",
        new="                break\n            if producer.producer_id >= 0:\n                gone",
        scenario="transactions",
        more=(
            Edit(
                _PRODUCERS,
                "        for producer_id in gone:\n            del self._producers[producer_id]\n",
                "        for producer_id in gone:\n            del self._producers[producer_id]\n"
                "            self._open.pop(producer_id, None)\n",
            ),
        ),
    ),
    Mutant(
        id="late-end-accepted",
        rule="one decision",
        what="An EndTxn of an earlier transaction that arrives late ends the one that is open now.",
        module=_ENDING,
        old="            return ErrorCode.CONCURRENT_TRANSACTIONS\n        if asker != value.identity:\n"
        "            return _stranger(value, asker)\n        if value.state.is_idle and request.committed:",
        new="            return ErrorCode.CONCURRENT_TRANSACTIONS\n"
        "        if asker.producer_id != value.identity.producer_id:\n"
        "            return _stranger(value, asker)\n        if value.state.is_idle and request.committed:",
        scenario="transactions",
    ),
)
