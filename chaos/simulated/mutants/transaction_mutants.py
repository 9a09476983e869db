"""Patches of the transaction coordinator, of what partitions know of transactions, and of the group coordinator.

Each takes away one rule that :mod:`tidelog.chaos.checkers.transactions` judges by. Rules that cover each other are
taken out together.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_ENDING: Final = "tidelog.transactions.ending"
_TRANSACTION: Final = "tidelog.transactions.transaction"
_INITIALISING: Final = "tidelog.transactions.initialising"
_PRODUCERS: Final = "tidelog.storage.producers.state"
_GROUP_OFFSETS: Final = "tidelog.groups.offsets.transactional"

mutant: Final = partial(Mutant, scenario="transactions")

MUTANTS: Final = (
    mutant(
        id="markers-before-the-decision",
        rule="one decision",
        what="Markers are sent before the decision is stored: the next coordinator does not know of it, and aborts "
        "what is committed in some partitions.",
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
    ),
    mutant(
        id="epoch-not-bumped",
        rule="fenced",
        what="InitProducerId gives everybody the same epoch: two processes write one transaction.",
        module=_INITIALISING,
        old="            self._give(entry, request, value.identity.next, previous, waiter, now)\n",
        new="            self._give(entry, request, value.identity, previous, waiter, now)\n",
    ),
    mutant(
        id="timeout-ignores-prepare",
        rule="prepared",
        what="A prepared transaction is aborted after its timeout, although somebody else is to decide it.",
        module=_TRANSACTION,
        old="            self.attempt is not None and state in (TransactionState.EMPTY, TransactionState.PREPARED)\n",
        new="            state is TransactionState.PREPARED\n",
    ),
    mutant(
        id="aborted-index-not-written",
        rule="only what counts",
        what="A partition's leader does not report which transactions were aborted.",
        module="tidelog.storage.log.log",
        old="                if ended is not None and ended.aborted:\n",
        new="                if ended is not None and ended.aborted and ended.first_offset < 0:\n",
    ),
    mutant(
        id="last-stable-offset-not-restored",
        rule="stable",
        what="A partition loaded from its snapshot has forgotten which transactions are open.",
        module=_PRODUCERS,
        old="        opened = [producer for producer in self._producers.values() if producer.transaction_offset >= "
        "0]\n",
        new="        opened: list[Producer] = []\n",
        more=(
            Edit(_PRODUCERS, "        del self._open[producer_id]\n", "        self._open.pop(producer_id, None)\n"),
        ),
    ),
    mutant(
        id="open-producer-expires",
        rule="only what counts",
        what="A producer that was idle for long is forgotten, along with its open transaction.",
        module=_PRODUCERS,
        old="                break\n            if producer.transaction_offset < 0:\n                gone",
        new="                break\n            if producer.producer_id >= 0:\n                gone",
        more=(
            Edit(
                _PRODUCERS,
                "        for producer_id in gone:\n            del self._producers[producer_id]\n",
                "        for producer_id in gone:\n            del self._producers[producer_id]\n"
                "            self._open.pop(producer_id, None)\n",
            ),
        ),
    ),
    mutant(
        id="late-end-accepted",
        rule="fenced",
        what="A late EndTxn of an earlier transaction ends the one that is open now.",
        module=_ENDING,
        old="            return ErrorCode.CONCURRENT_TRANSACTIONS\n        if asker != value.identity:\n"
        "            return _stranger(value, asker)\n        if value.state.is_idle and request.committed:",
        new="            return ErrorCode.CONCURRENT_TRANSACTIONS\n"
        "        if asker.producer_id != value.identity.producer_id:\n"
        "            return _stranger(value, asker)\n        if value.state.is_idle and request.committed:",
    ),
    mutant(
        id="decision-told-before-it-is-stored",
        rule="all or none",
        what="A producer learns that its transaction is committed before the decision is stored.",
        module=_ENDING,
        old="        self._shard.move(entry, after, cause, askers, now, moved=moved)\n\n    # --- Timeouts",
        new="        for asker in askers:\n"
        "            self._shard.answer(asker.waiter, asker.tell(ErrorCode.NONE))\n"
        "        self._shard.move(entry, after, cause, (), now, moved=moved)\n\n    # --- Timeouts",
    ),
    mutant(
        id="complete-after-the-first-marker",
        rule="stable",
        what="A coordinator considers a transaction complete once one leader has written its markers.",
        module=_ENDING,
        old="None)\n        if not entry.unmarked:\n            del self._shard.sendings[number]\n",
        new="None)\n        if partitions:\n            del self._shard.sendings[number]\n",
    ),
    mutant(
        id="markers-not-sent-again",
        rule="stable",
        what="A coordinator that takes over sends no markers for earlier decisions.",
        module="tidelog.transactions.shard",
        old="            if entry.value is not None and entry.value.state.is_decided:\n",
        new="            if entry.value is not None and not entry.transactional_id:\n",
    ),
    mutant(
        id="no-timeout",
        rule="stable",
        what="A transaction stays open after its producer died.",
        module=_ENDING,
        old="        for entry in list(self._shard.ongoing.values()):\n",
        new="        for entry in list(self._shard.ongoing.values())[:0]:\n",
    ),
    mutant(
        id="guard-survives-marker",
        rule="one decision",
        what="If a leader hears late from the coordinator, a transaction's first batch is written behind the marker "
        "that ended it, and hangs there (KIP-890).",
        module=_PRODUCERS,
        old="        guard = self._guards.get(producer_id)\n"
        "        if guard is not None and epoch >= guard.ended_from:\n"
        "            del self._guards[producer_id]\n"
        "        first, producer",
        new="        first, producer",
        more=(
            Edit(
                _PRODUCERS,
                "    if batch.producer_epoch < epoch:\n"
                "        return _old_epoch(producer_id, batch.producer_epoch, epoch)\n",
                "",
            ),
        ),
    ),
    mutant(
        id="no-generation-in-transactions",
        rule="exactly once",
        what="A group's coordinator accepts a transaction's offsets from any former member (KIP-447).",
        module=_GROUP_OFFSETS,
        old="        refusal = group.refusal(member_id, instance_id)\n"
        "        if refusal is not ErrorCode.NONE:\n"
        '            return refusal, ""\n'
        "        if generation != group.generation:\n",
        new="        if generation < -1:\n",
        more=(
            # A consumer that has heard that it is no member says so by itself.
            Edit(
                "tidelog.client.group.consumer_group",
                "NOBODY if self.membership.state is MemberState.UNJOINED else self._taken",
                "self._taken",
            ),
        ),
    ),
    mutant(
        id="undecided-is-shown",
        rule="only what counts",
        what="A leader gives read_committed readers everything below the high watermark.",
        module="tidelog.replication.partition.partition",
        old="        return self.last_stable_offset if read_committed else self.high_watermark\n",
        new="        return self.high_watermark\n",
    ),
    mutant(
        id="aborted-is-shown",
        rule="only what counts",
        what="The consumer ignores the list of aborted transactions.",
        module="tidelog.proto.records.committed_reads",
        old="            elif batch.is_transactional:\n",
        new="            elif batch.base_offset < 0:\n",
    ),
    mutant(
        id="consumer-goes-on-after-an-abort",
        rule="exactly once",
        what="After an abort the consumer continues with the next records: those of the aborted transaction are lost.",
        module="tidelog.client.producer.transaction_scope",
        old="            self._consumer.rewind()\n",
        new="            self._consumer.require_uncommitted()\n",
    ),
    mutant(
        id="cleaner-passes-what-is-open",
        rule="transactions",
        what="A cleaner works up to the high watermark, past transactions that nobody has decided.",
        module="tidelog.storage.log.log_compaction",
        old="        stable = self.last_stable_offset(Offset(high_watermark))\n",
        new="        stable = Offset(high_watermark)\n",
    ),
    mutant(
        id="aborted-supersedes",
        rule="latest stays",
        what="A cleaner keeps aborted records, and drops earlier committed ones with the same key.",
        module="tidelog.storage.cleaner.transactions",
        old="        if batch.producer_id in self._aborted:\n",
        new="        if batch.producer_id < 0:\n",
    ),
)
