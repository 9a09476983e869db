"""The workload of transactions: writers to several partitions at once, a bank and its teller, readers of what counts.

A slot is a transactional id. A client that cannot continue ends, and another one begins under the id, which fences it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.chaos.laboratory.faults.injector import Targets
from tidelog.chaos.laboratory.history.history_file import HistoryFile
from tidelog.chaos.laboratory.workloads.client_world import Churn, LaboratoryWorld, Surroundings, stopped
from tidelog.chaos.laboratory.workloads.workload import ClientWork
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.reading import Reader
from tidelog.chaos.workloads.transactions import (
    BANK,
    MANY,
    PARTITIONS,
    Teller,
    Transaction,
    TransactionClients,
    Writer,
)

READERS: Final = 2
WRITERS: Final = ("w0", "w1")
TELLER: Final = "b0"


def write_down(history: HistoryFile, transaction: Transaction, first: int) -> int:
    """Record a finished transaction and its sends, numbered from ``first``; return the next number."""
    sends = transaction.sends(first)
    for sent in sends:
        history.send(sent)
    asked = transaction.committing_s
    history.transaction(
        transaction.key,
        transaction.transactional_id,
        transaction.outcome,
        transaction.began_s,
        None if asked == math.inf else asked,
        history.now(),
    )
    return first + len(sends)


class RecordedClients(TransactionClients):
    """Transactional clients whose transactions are written to the history as they end."""

    tells_sends = True

    def __init__(
        self,
        world: LaboratoryWorld,
        surroundings: Surroundings,
        name: str,
        slots: Mapping[str, Callable[[str, str, TransactionClients], Incarnation]],
    ) -> None:
        # Without decisions by others: from outside nobody can tell whether one was taken over, which is legal.
        super().__init__(world, surroundings.rng(f"{name}-roster"), slots, prepares=0.0)
        self._history = surroundings.history
        self._sends: Counter[str] = Counter()

    def ended(self, transaction: Transaction) -> None:
        name = transaction.key.producer
        self._sends[name] = write_down(self._history, transaction, self._sends[name])

    def snapshot(self, name: str, balances: Mapping[int, int]) -> None:
        super().snapshot(name, balances)
        self._history.write("snapshot", who=name, balances=balances, at=round(self._history.now(), 6))


class TransactionWork(ClientWork):
    """Two writers, one teller, two readers of what counts."""

    topics: Mapping[str, int] = {MANY: PARTITIONS, BANK: PARTITIONS}

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings, "transactions", rates=len(WRITERS) + 1)
        self.targets = Targets(self.partitions, transactional_ids=(*WRITERS, TELLER))
        slots = {**dict.fromkeys(WRITERS, Writer), TELLER: Teller}
        self._clients = RecordedClients(self.world, surroundings, "transactions", slots)
        self._churn = Churn(self.world, self._clients.roster, surroundings.rng("transactions-churn"))

    async def begin(self) -> None:
        self._clients.roster.begin()
        self.readers += [Reader(f"c{number}", self.world, self.partitions, committed=True) for number in range(READERS)]
        self._churn.begin()

    def heard(self) -> Mapping[str, int]:
        return {slot: self._clients.committed[slot] for slot in self._clients.roster.slots}

    def calm(self) -> None:
        self._churn.calm()

    async def finish(self, bound_s: float) -> None:
        await stopped(self.world, self._clients.roster, bound_s)
