"""Patches of the ledgers of sinks. Each takes away one rule that :mod:`tidelog.chaos.checkers.sinks` judges by."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_LEDGER: Final = "tidelog.transactions.ledger"
_DECIDING: Final = "tidelog.transactions.sinks.deciding"

ORPHANS_KEPT: Final = (
    Edit(
        _DECIDING,
        "            if name not in winners and entry.busy is None and entry.value and "
        "not entry.value.state.is_decided:\n",
        "            if name not in winners and entry.busy is None and entry.value and "
        "entry.value.state is TransactionState.ONGOING:\n",
    ),
    Edit(
        "tidelog.transactions.transaction",
        "self.attempt is not None and state in (TransactionState.EMPTY, TransactionState.PREPARED)\n",
        "self.attempt is not None and state is TransactionState.EMPTY\n",
    ),
)
"""With the look whether the ledger keeps an attempt: a decision's losers, and what times out, are left as they are."""

mutant: Final = partial(Mutant, scenario="sinks")

MUTANTS: Final = (
    mutant(
        id="sink-batch-decided-again",
        rule="once",
        what="Only the last batch counts as decided, and only for its own job: a driver that did not hear the "
        "decision writes the batch once more.",
        module=_LEDGER,
        old="        if batch <= self.last_batch:\n",
        new="        if batch < self.last_batch or (batch == self.last_batch and job == self.last_job):\n",
    ),
    mutant(
        id="sink-decision-told-before-it-is-stored",
        rule="kept",
        what="A driver learns that its batch is committed before the decision is stored.",
        module=_DECIDING,
        old="        pending = PendingAppend((asker,), written)\n",
        new="        shard.answer(asker.waiter, asker.tell(ErrorCode.NONE))\n"
        "        pending = PendingAppend((), written)\n",
    ),
    mutant(
        id="sink-decision-in-two-batches",
        rule="whole",
        what="The ledger's record and the winners' records are two batches: if the coordinator dies between them, the "
        "next one aborts what the ledger says is committed.",
        module=_DECIDING,
        old="        pending = PendingAppend((asker,), written)\n        shard.append(records, pending, now)\n",
        new="        def rest(error: ErrorCode, then: Moment) -> None:\n"
        "            if error is ErrorCode.NONE and records[1:]:\n"
        "                shard.append(records[1:], pending, then)\n"
        "            else:\n"
        "                written(error, then)\n\n"
        "        pending = PendingAppend((asker,), written)\n"
        "        if records[1:]:\n"
        "            shard.append(records[:1], PendingAppend((), rest), now)\n"
        "        else:\n"
        "            shard.append(records, pending, now)\n",
    ),
    mutant(
        id="sink-ledger-not-loaded",
        rule="once",
        what="The next coordinator does not know which batches are decided.",
        module="tidelog.transactions.replaying",
        old="        sink.ledger = found\n",
        new="        sink.ledger = sink.ledger\n",
    ),
    mutant(
        id="sink-orphans-kept",
        rule="no progress",
        what="A prepared transaction that no decision names waits for an outside decision without a timeout, as those "
        "of producers do.",
        module=_LEDGER,
        old="            and not self.ledger.keeps(entry.attempt)\n",
        new="            and not self.ledger.keeps(entry.attempt)\n"
        '            and entry.value.state.value != "Prepared"\n',
        more=ORPHANS_KEPT,
    ),
    mutant(
        id="sink-aborts-what-is-decided",
        rule="decided",
        what="AbortJob does not check whether the batch is decided: a driver that sends it learns that what "
        "everybody sees is aborted.",
        module=_DECIDING,
        old="            return AbortJobResponse(ErrorCode.NONE, True, ledger.last_batch, ledger.last_job)\n",
        new="            return AbortJobResponse(ErrorCode.NONE, False, ledger.last_batch, ledger.last_job)\n",
    ),
)
