"""Patches of delay topics. Each takes away one rule that :mod:`tidelog.chaos.checkers.delays` judges by."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_MOVER: Final = "tidelog.broker.coordinators.delays.mover"
_PENDING: Final = "tidelog.broker.coordinators.delays.pending"
_TRANSACTION: Final = "tidelog.broker.coordinators.delays.transaction"

MUTANTS: Final = (
    Mutant(
        id="delay-mark-not-in-the-transaction",
        rule="each once",
        what="The mark stays where it was: the next leader moves everything again.",
        module=_TRANSACTION,
        old="        item = OffsetCommitPartition(*self._source, offset=mark.position, metadata=mark.text)\n",
        new="        item = OffsetCommitPartition(*self._source, offset=START.position, metadata=START.text)\n",
        scenario="delay",
    ),
    Mutant(
        id="delay-mark-without-position",
        rule="each once",
        what="What comes to the log late, and was due before the last delivery, is taken for done.",
        module=_PENDING,
        old=(
            "        if records[0][0] < position:\n"
            "            keys = [key for key in keys if key > done or key & _OFFSET >= position]\n"
        ),
        new="        keys = [key for key in keys if key > done]\n",
        scenario="delay",
    ),
    Mutant(
        id="delay-no-takeover",
        rule="each once",
        what="A new leader reads the mark first, and then asks for its identity until it gets one.",
        module=_MOVER,
        old="        await self._transactions.take_over()\n        mark = await self._transactions.mark()\n",
        new=(
            "        mark = await self._transactions.mark()\n"
            "        while self._led() is not None:\n"
            "            try:\n"
            "                await self._transactions.take_over()\n"
            "                break\n"
            "            except Unsettled:\n"
            "                await asyncio.sleep(PAUSE_FIRST_S)\n"
        ),
        scenario="delay",
        more=(
            Edit(
                _TRANSACTION,
                "        request = OffsetFetchRequest(asked, require_stable=True)\n",
                "        request = OffsetFetchRequest(asked, require_stable=False)\n",
            ),
        ),
    ),
    Mutant(
        id="delay-cancels-not-read-again",
        rule="cancels",
        what="A new leader heeds only the cancels that come to it, not those that it reads as it takes over.",
        module=_MOVER,
        old="                        if asked.cancels < record.offset:\n",
        new="                        if asked.cancels < record.offset and self._pending is not None:\n",
        scenario="delay",
    ),
    Mutant(
        id="delay-ignores-the-clock",
        rule="none early",
        what="Records are moved three seconds before they are due.",
        module=_PENDING,
        old="            taken = late + self._pop_up_to(key_of(now_ms, _OFFSET), count_max - len(late))\n",
        new="            taken = late + self._pop_up_to(key_of(now_ms + 3_000, _OFFSET), count_max - len(late))\n",
        scenario="delay",
    ),
    Mutant(
        id="delay-commits-what-is-half-written",
        rule="each once",
        what="A transaction is committed although a target has not taken its records.",
        module=_TRANSACTION,
        old="        if errors:\n            raise Refused(errors)\n",
        new="",
        scenario="delay",
    ),
)
