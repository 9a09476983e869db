"""The workload of transactions: writers to several partitions at once, a bank and its teller, readers of what counts.

A slot is a transactional id. A client that cannot go on ends, and another one begins under the id, which fences it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.aio import Consumer, Producer
from tidelog.chaos.checkers.history import NO_OFFSET, Outcome, Sent, TransactionKey
from tidelog.chaos.live.hand import Aims
from tidelog.chaos.live.history_file import HistoryFile
from tidelog.chaos.live.recording import CLIENT_SETTINGS, POLL_S, Budget, Reader
from tidelog.chaos.live.workload import ClientTasks, Stage, partitions_of
from tidelog.client.errors import RequestTimedOutError, TidelogError
from tidelog.client.transaction_state import TransactionState
from tidelog.model.ids import TopicPartition

MANY: Final = "many"
BANK: Final = "bank"
PARTITIONS: Final = 3
ACCOUNTS: Final = 6
BALANCE: Final = 100
TIMEOUT_MS: Final = 10_000
"""Transactions are aborted when they are open for so long."""
ABORTS: Final = 0.15
READERS: Final = 2
WRITERS: Final = ("w0", "w1")
TELLER: Final = "b0"
AGAIN_S: Final = 0.2
_WRITES: Final = (1, 2, 3, 6)


class GivenUp(Exception):
    """A transaction is aborted because its client wants so, or a client ends because it cannot know how it stands."""


@dataclass(slots=True)
class Transaction:
    """One transaction of one client, as far as it knows."""

    key: TransactionKey
    transactional_id: str
    writes: list[tuple[TopicPartition, bytes, bytes | None]]
    """Where to, value, key."""
    began_s: float = 0.0
    asked_s: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    delivered: dict[int, tuple[Outcome, int, float, float]] = field(default_factory=dict)
    """Number of a write → outcome, offset, begin and end; what is not in it was never sent."""


def write_down(history: HistoryFile, transaction: Transaction, sends: int) -> int:
    """Write down a transaction that is over, and what was sent of it; ``sends`` is how many its producer has sent
    before, returned is how many with these."""
    key, ended = transaction.key, history.now()
    for number, (at, value, _) in enumerate(transaction.writes):
        if number in transaction.delivered:
            outcome, offset, began, heard = transaction.delivered[number]
            history.send(Sent(key.producer, sends, at, value, outcome, offset, began, heard, key))
            sends += 1
    history.transaction(
        key, transaction.transactional_id, transaction.outcome, transaction.began_s, transaction.asked_s, ended
    )
    return sends


def producer_settings(rng: random.Random) -> dict[str, Any]:
    """Settings of a transactional producer, by chance."""
    return {
        "transaction_timeout_ms": TIMEOUT_MS,
        "linger_ms": rng.choice((0, 5, 50)),
        "batch_size": rng.choice((100, 16_384)),
        "delivery_timeout_ms": rng.choice((5_000, 60_000)),
        "max_block_ms": rng.choice((5_000, 60_000)),
    }


class Slot:
    """All lives of the clients of one transactional id, one after the other."""

    pauses: float = 0.1
    """How often a transaction waits a while, by its records."""

    def __init__(
        self, name: str, bootstrap: str, history: HistoryFile, rng: random.Random, per_s: float, budget: Budget
    ) -> None:
        self.name = name
        self.committed = 0
        self.stopping = False
        self._bootstrap = bootstrap
        self._history = history
        self._rng = rng
        self._per_s = per_s
        self._budget = budget
        self._life = 0
        self._number = 0
        self._sends = 0

    async def run(self) -> None:
        """Live one life after another until told to stop, or until the run's budget is spent."""
        while not self.stopping and self._budget.left > 0:
            await self._one_life()

    async def _one_life(self, **inside: Any) -> None:
        """``inside``: seams of the SDK's clients."""
        self._life += 1
        self._number = self._sends = 0
        producer = Producer(
            self._bootstrap, transactional_id=self.name, **producer_settings(self._rng), **CLIENT_SETTINGS, **inside
        )
        try:
            await producer.start()
            await patiently(producer.init_transactions)
            await self._live(producer)
        except (GivenUp, TidelogError) as error:
            self._history.note(f"{self._client} ends: {type(error).__name__}: {error}")
            await asyncio.sleep(AGAIN_S)
        finally:
            await producer.close(1.0)

    @property
    def _client(self) -> str:
        return f"{self.name}.{self._life}"

    async def _live(self, producer: Producer) -> None:
        while not self.stopping and self._budget.left > 0:
            writes = [
                (TopicPartition(MANY, self._rng.randrange(PARTITIONS)), self._value(number), None)
                for number in range(self._rng.choice(_WRITES))
            ]
            await self._transact(producer, self._begun(list(writes)))

    def _value(self, number: int) -> bytes:
        return b"%s:%d:%d:" % (self._client.encode(), self._number + 1, number) + b"x" * self._rng.choice((0, 20, 200))

    def _begun(self, writes: list[tuple[TopicPartition, bytes, bytes | None]]) -> Transaction:
        self._number += 1
        return Transaction(TransactionKey(self._client, self._number), self.name, writes, self._history.now())

    async def _transact(self, producer: Producer, transaction: Transaction, consumer: Consumer | None = None) -> None:
        """Send, then commit or abort, and write it all down; with what ``consumer`` has handed out. Raises what cannot
        be mended."""
        machine = producer._core.require_transactions().machine
        try:
            try:
                async with producer.transaction(consumer=consumer):
                    await self._send(producer, transaction)
                    if self._rng.random() < ABORTS:
                        raise GivenUp
                    transaction.asked_s = self._history.now()
            except (GivenUp, TidelogError):
                await self._settled(producer, transaction)
            else:
                transaction.outcome = Outcome.OK
        finally:
            self._sends = write_down(self._history, transaction, self._sends)
        self.committed += transaction.outcome is Outcome.OK
        if machine.state is TransactionState.FATAL_ERROR:
            raise machine.refusal("transaction()")
        await asyncio.sleep(len(transaction.writes) / self._per_s * self._rng.uniform(0.5, 1.5))

    async def _send(self, producer: Producer, transaction: Transaction) -> None:
        for number, (at, value, key) in enumerate(transaction.writes):
            if not self._budget.take():
                raise GivenUp
            transaction.delivered[number] = (Outcome.UNKNOWN, NO_OFFSET, self._history.now(), self._history.now())
            heard = self._heard(transaction, number)
            try:
                await producer.send(at.topic, value, key, partition=at.partition, on_delivery=heard)
            except (TidelogError, ValueError):
                del transaction.delivered[number]  # raised before the record was taken
                raise
            if self._rng.random() < self.pauses:
                await asyncio.sleep(self._rng.choice((0.05, 0.3)))

    def _heard(self, transaction: Transaction, number: int) -> Any:
        def heard(metadata: Any, error: BaseException | None) -> None:
            began = transaction.delivered[number][2]
            if error is None:
                transaction.delivered[number] = (Outcome.OK, metadata.offset, began, self._history.now())

        return heard

    async def _settled(self, producer: Producer, transaction: Transaction) -> None:
        """Wait until the outcome is known, or nobody can know it any more."""
        machine = producer._core.require_transactions().machine
        committing = False
        while machine.state is not TransactionState.FATAL_ERROR:
            if machine.state is TransactionState.READY:
                # A commit leads there too, while nobody waits for it.
                transaction.outcome = Outcome.OK if committing else Outcome.FAILED
                return
            committing = machine.state is TransactionState.COMMITTING
            try:
                await (producer.commit_transaction() if committing else producer.abort_transaction())
            except TidelogError:
                await asyncio.sleep(AGAIN_S)


class Teller(Slot):
    """Moves money between accounts. What they hold it learns from the log when its life begins."""

    async def _live(self, producer: Producer) -> None:
        rng = self._rng
        balances = await self._balances()
        while not self.stopping and self._budget.left > 0:
            a, b = rng.sample(range(ACCOUNTS), 2)
            amount = rng.randrange(1, 20)
            after = {a: balances[a] - amount, b: balances[b] + amount}
            transaction = self._begun(
                [
                    (
                        TopicPartition(BANK, account % PARTITIONS),
                        b"%d=%d;%s:%d" % (account, balance, self._client.encode(), self._number + 1),
                        b"%d" % account,
                    )
                    for account, balance in after.items()
                ]
            )
            await self._transact(producer, transaction)
            if transaction.outcome is Outcome.OK:
                balances |= after
            elif transaction.outcome is Outcome.UNKNOWN:
                raise GivenUp(
                    f"transaction {transaction.key.number} of {transaction.key.producer} has no known outcome"
                )

    async def _balances(self) -> dict[int, int]:
        """Read the bank from its start to where it ends now, and write down what was found."""
        places = [TopicPartition(BANK, number) for number in range(PARTITIONS)]
        found = dict.fromkeys(range(ACCOUNTS), BALANCE)
        settings = {**CLIENT_SETTINGS, "isolation_level": "read_committed", "auto_offset_reset": "none"}
        async with Consumer(self._bootstrap, **settings) as consumer:
            consumer.assign(places)
            for at in places:
                consumer.seek(at, 0)
            ends = await patiently(lambda: consumer.end_offsets(places, timeout=3.0))
            left = [at for at in places if ends[at] > 0]
            while left:
                for record in await consumer.poll(POLL_S):
                    if record.offset < ends[record.topic_partition]:
                        found.update([balance_of(record.value or b"")])
                left = [
                    at
                    for at in left
                    if await patiently(lambda at=at: consumer.position(at, timeout=3.0)) < ends[at]  # type: ignore[misc]
                ]
        balances = {str(account): balance for account, balance in found.items()}
        self._history.write("snapshot", who=self._client, balances=balances, at=round(self._history.now(), 6))
        return found


def balance_of(value: bytes) -> tuple[int, int]:
    """Account and balance that a record of the bank says."""
    account, _, rest = value.partition(b"=")
    return int(account), int(rest.partition(b";")[0])


async def patiently(ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Ask until there is an answer. Raises what is no time-out."""
    while True:
        try:
            return await ask()
        except RequestTimedOutError:
            await asyncio.sleep(AGAIN_S)


class TransactionWork:
    """Two writers, one teller, two readers of what counts."""

    topics: Mapping[str, int] = {MANY: PARTITIONS, BANK: PARTITIONS}
    derived: Mapping[str, str] = {}

    def __init__(self, stage: Stage) -> None:
        bootstrap, history, budget = stage.bootstrap, stage.history, stage.budget
        places = partitions_of(self.topics)
        self.aims = Aims(places, transactional_ids=(*WRITERS, TELLER))
        self._tasks = ClientTasks(history)
        self._working: list[asyncio.Task[None]] = []

        def rng(name: str) -> random.Random:
            return stage.rng(f"transactions-{name}")

        each_per_s = stage.per_s / (len(WRITERS) + 1)
        self._slots: list[Slot] = [Slot(name, bootstrap, history, rng(name), each_per_s, budget) for name in WRITERS]
        self._slots.append(Teller(TELLER, bootstrap, history, rng(TELLER), each_per_s, budget))
        names = [f"c{number}" for number in range(READERS)]
        self._readers = [
            Reader(name, bootstrap, places, history, rng(name), committed=True, seeks=False) for name in names
        ]
        self._history = history

    async def begin(self) -> None:
        for slot in self._slots:
            self._working.append(self._tasks.start(slot.name, slot.run()))
        for reader in self._readers:
            self._tasks.start(reader.name, reader.run())

    def heard(self) -> Mapping[str, int]:
        return {slot.name: slot.committed for slot in self._slots}

    def calm(self) -> None:
        """Nobody is disturbed."""

    async def finish(self, bound_s: float) -> None:
        for slot in self._slots:
            slot.stopping = True
        _, late = await asyncio.wait(self._working, timeout=bound_s)
        if late:
            names = ", ".join(slot.name for slot, task in zip(self._slots, self._working, strict=True) if task in late)
            self._history.wrong(f"{bound_s:g} s after everything was mended no outcome is known to {names}")

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        return [reader.name for reader in self._readers if not reader.is_at(ends)]

    async def close(self) -> None:
        await self._tasks.end()
        for reader in self._readers:
            await reader.close()
