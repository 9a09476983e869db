"""Patches of the outbox's relay: the usual wrong cures, and rules that :mod:`tidelog.chaos.checkers.patterns.outbox`
judges by. Those for transactions that commit late need PostgreSQL, and are in ``tests/client/outbox/``."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_RELAY: Final = "tidelog.client.outbox.relay"
_SQLITE: Final = "tidelog.client.outbox.sqlite"

mutant: Final = partial(Mutant, scenario="outbox", module=_RELAY)

MUTANTS: Final = (
    mutant(
        id="outbox-place-after-the-records",
        rule="each once",
        what="The place in the outbox is committed after the transaction of the records.",
        old="                    producer.send_offsets_to_transaction({self._at: offset}, consumer.group_metadata())\n",
        new="                consumer.commit({self._at: offset})\n",
    ),
    mutant(
        id="outbox-place-by-what-is-deleted",
        rule="each once",
        what="A relay sends what is in the table, and deletes it then; the place in the cluster is not read.",
        old="        place = self._place(consumer.committed([self._at])[self._at], identity)\n",
        new="        place = self._outbox.deleted()\n",
    ),
    mutant(
        id="outbox-deletes-before-it-sends",
        rule="none lost",
        what="Rows are deleted when they are read.",
        old="            try:\n                with producer.transaction():\n",
        new="            if not self._keep:\n                self._outbox.delete(rows[-1].seq)\n"
        "            try:\n                with producer.transaction():\n",
    ),
    mutant(
        id="outbox-relays-side-by-side",
        rule="each once",
        what="Each relay has a transactional id of its own, so a second one does not fence the first.",
        old="        self._transactional_id: Final = self._name\n",
        new='        self._transactional_id: Final = f"{self._name}-{id(self)}"\n',
    ),
    mutant(
        id="outbox-rows-by-their-time",
        rule="in order",
        what="Rows are read in the order of the programs' clocks.",
        module=_SQLITE,
        old='"FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?",\n',
        new='"FROM outbox WHERE seq > ? ORDER BY created_at LIMIT ?",\n',
    ),
    mutant(
        id="outbox-numbers-are-used-again",
        rule="none lost",
        what="The table has no AUTOINCREMENT: once all rows are sent and deleted, numbers begin at 1 again.",
        module=_SQLITE,
        old="    seq INTEGER PRIMARY KEY AUTOINCREMENT,\n",
        new="    seq INTEGER PRIMARY KEY,\n",
        more=(
            Edit(
                _SQLITE,
                "\"SELECT seq FROM sqlite_sequence WHERE name = 'outbox'\"",
                '"SELECT coalesce(max(seq), 0) FROM outbox"',
            ),
        ),
    ),
)
