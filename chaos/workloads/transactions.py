"""Clients with transactions: writers to several partitions, which leave some decisions to others, and tellers that move
money between the accounts of a bank.

A slot is a transactional id. A client that cannot continue ends, and another one begins under the id, which fences it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.aio import Consumer, Producer
from tidelog.chaos.checkers.history import NO_OFFSET, Outcome, Sent, TransactionKey
from tidelog.chaos.checkers.transactions import Attempt
from tidelog.chaos.workloads.incarnation import AGAIN_S, GivenUp, Incarnation, Roster, patiently
from tidelog.chaos.workloads.world import World, partitions_of
from tidelog.client.delivery import Callback, RecordMetadata
from tidelog.client.errors import TidelogError
from tidelog.client.group_types import ConsumerGroupMetadata
from tidelog.client.producer.transaction_state import TransactionState
from tidelog.model.ids import TopicPartition

MANY: Final = "many"
BANK: Final = "bank"
PARTITIONS: Final = 3
ACCOUNTS: Final = 6
BALANCE: Final = 100
SIGN: Final = b"sign"
"""Used instead of an account in a record by which a teller finds its position."""
TIMEOUT_MS: Final = 4_000
"""Transactions are aborted when they are open for this long, times the scale of the world."""
PREPARES: Final = 0.15
HELD_S: Final = (0.2, 1.0, 3.0, 9.0)
"""Approximate times for which a decision is left to others; some exceed the time that a transaction may be open."""


def group_of(transactional_id: str) -> str:
    """Return the group whose offsets a writer commits with its records."""
    return f"offsets-{transactional_id}"


def balances_after(values: Iterable[bytes]) -> dict[int, int]:
    """Return the balance of each account after records of the bank; those of one account must be in order."""
    balances = dict.fromkeys(range(ACCOUNTS), BALANCE)
    for value in values:
        account, _, rest = value.partition(b"=")
        if account != SIGN:
            balances[int(account)] = int(rest.partition(b";")[0])
    return balances


def producer_settings(rng: random.Random, scale: int) -> dict[str, Any]:
    """Return random settings of a transactional producer."""
    return {
        "transaction_timeout_ms": TIMEOUT_MS * scale,
        "linger_ms": rng.choice((0, 5, 50)),
        "batch_size": rng.choice((100, 16_384)),
        "request_timeout_ms": rng.choice((500, 1_000, 3_000)) * scale,
        "delivery_timeout_ms": rng.choice((4_000, 20_000)) * scale,
        "max_block_ms": rng.choice((3_000, 20_000)) * scale,
    }


@dataclass(slots=True)
class Transaction(Attempt):
    """One transaction of one client, as far as it knows, and the records sent in it."""

    transactional_id: str = ""
    began_s: float = 0.0
    delivered: dict[int, tuple[Outcome, int, float, float]] = field(default_factory=dict)
    """Number of a write → outcome, offset, begin and end; missing writes were never sent."""

    def sending(self, number: int, now: Callable[[], float]) -> Callback:
        """Note that a write is about to be sent. Returns the callback for its outcome."""
        began = now()
        self.delivered[number] = (Outcome.UNKNOWN, NO_OFFSET, began, began)

        def heard(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            if metadata is not None:
                self.delivered[number] = (Outcome.OK, metadata.offset, began, now())

        return heard

    def sends(self, first: int) -> list[Sent]:
        """Return the records sent, numbered from ``first`` on."""
        sent = [(*self.writes[number], *heard) for number, heard in sorted(self.delivered.items())]
        return [Sent(self.key.producer, first + n, *each, self.key) for n, each in enumerate(sent)]


class TransactionClients:
    """Writers and tellers, and the answers they get. The creator judges what they write."""

    tells_sends = False
    """Whether to report the outcome of each record."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        slots: Mapping[str, Callable[[str, str, TransactionClients], Incarnation]],
        prepares: float,
    ) -> None:
        """``slots``: transactional ids, and what starts under each."""
        self.world = world
        self.prepares = prepares
        """The share of transactions whose decision is left to others."""
        self.begun_count = 0
        self.committed: Counter[str] = Counter()
        self.committed_s: dict[str, float] = {}
        """When each slot was last told of a commit that it requested."""
        self.roster: Roster[Incarnation] = Roster(
            world, rng, tuple(slots), lambda slot, name: slots[slot](slot, name, self)
        )

    # --- reports of clients -------------------------------------------------------------------------------

    def begun(self, transaction: Transaction) -> None:
        self.begun_count += 1

    def heard(self, transaction: Transaction, outcome: Outcome) -> None:
        """Note that somebody learned the outcome."""
        transaction.outcome = outcome
        slot = transaction.transactional_id
        if outcome is Outcome.OK:
            self.committed[slot] += 1
            self.committed_s[slot] = self.world.now()
        self.world.events["committed" if outcome is Outcome.OK else "aborted"] += 1

    def ended(self, transaction: Transaction) -> None:
        """Note that nobody will learn more about it."""

    def snapshot(self, name: str, balances: Mapping[int, int]) -> None:
        """Note that a teller has read the bank."""
        self.world.events["snapshot"] += 1

    def taken_over(self, transactional_id: str) -> bool:
        """Return whether somebody ended a prepared transaction by requesting the id."""
        return False

    def misled(self, transactional_id: str) -> bool:
        """Return whether a broker that no longer coordinates the id may have answered for it."""
        return False

    # --- decisions --------------------------------------------------------------------------------------

    def decide_elsewhere(self, transaction: Transaction, token: str, *, committed: bool) -> None:
        """Let another process decide, and only then start another incarnation."""
        roster, slot = self.roster, transaction.transactional_id
        roster.held[slot] = transaction
        decider = Decider(roster.name_of("d"), self, transaction, token, committed=committed)
        roster.everyone.append(decider)
        self.world.when_done(decider.task, lambda: roster.gone(slot, roster.current[slot]))

    def decide_by_successor(self, writer: Writer, transaction: Transaction, token: str) -> None:
        """Let the next incarnation commit what this one has prepared."""
        slot = writer.transactional_id
        self.roster.held[slot] = transaction
        seconds = self.roster.rng.choice((0.1, 2.0, 8.0))
        self.roster.refill(slot, writer, seconds, lambda slot, name: Writer(slot, name, self, token=token))


class Transacting(Incarnation):
    """The common part of writers, tellers and copiers: a transaction with its outcome as far as known."""

    pauses = 0.1
    """How often a transaction pauses, per record."""

    def __init__(self, slot: str, name: str, clients: TransactionClients) -> None:
        self.transactional_id = slot
        self.number = 0
        self._clients = clients
        super().__init__(name, clients.world)

    def _ended_by(self, error: TidelogError) -> None:
        """Its transactions' results are judged, not the answers that it got."""

    async def _producer(self, **settings: Any) -> Producer:
        scaled = producer_settings(self._rng, self.world.scale)
        producer = self.process.producer(transactional_id=self.transactional_id, **scaled, **settings)
        await producer.start()
        return producer

    def _begun(self) -> Transaction:
        self.number += 1
        key = TransactionKey(self.name, self.number)
        return Transaction(key, transactional_id=self.transactional_id, began_s=self.world.now())

    async def _transact(
        self, producer: Producer, transaction: Transaction, aborts: float, consumer: Consumer | None = None
    ) -> None:
        """Send the transaction's records, and the offsets of what ``consumer`` has returned; then commit, or abort at
        random. Raises permanent errors."""
        machine = producer._core.require_transactions().machine
        abort = self._rng.random() < aborts
        self._clients.begun(transaction)
        try:
            try:
                async with producer.transaction(consumer=consumer):
                    await self._send(producer, transaction)
                    if abort:
                        raise GivenUp
                    transaction.committing_s = self.world.now()
            except (GivenUp, TidelogError):
                await self._settled(producer, transaction)
            else:
                self._clients.heard(transaction, Outcome.OK)
        finally:
            self._clients.ended(transaction)
        if machine.state is TransactionState.FATAL_ERROR:
            raise machine.refusal("transaction()")

    async def _send(self, producer: Producer, transaction: Transaction) -> None:
        rng = self._rng
        for number, (at, value) in enumerate(transaction.writes):
            if not self.world.may_send():
                self.stopping = True
                raise GivenUp
            key = value.partition(b"=")[0] if at.topic == BANK else None
            heard = transaction.sending(number, self.world.now) if self._clients.tells_sends else None
            try:
                await producer.send(at.topic, value, key, partition=at.partition, on_delivery=heard)
            except (TidelogError, ValueError):
                transaction.delivered.pop(number, None)  # raised before the record was taken
                raise
            if rng.random() < self.pauses:
                await asyncio.sleep(rng.choice((0.05, 0.3, 2.0)))
        if transaction.offsets:
            await producer.send_offsets_to_transaction(transaction.offsets, ConsumerGroupMetadata(transaction.group))

    async def _settled(self, producer: Producer, transaction: Transaction) -> None:
        """Wait until the outcome is known, or nobody can know it any more."""
        machine = producer._core.require_transactions().machine
        committing = False
        while machine.state is not TransactionState.FATAL_ERROR:
            if machine.state is TransactionState.READY:
                # A commit has that effect too, even if nobody waits for it.
                self._clients.heard(transaction, Outcome.OK if committing else Outcome.FAILED)
                return
            committing = machine.state is TransactionState.COMMITTING
            try:
                await (producer.commit_transaction() if committing else producer.abort_transaction())
            except TidelogError:
                await asyncio.sleep(AGAIN_S)
        self.world.events["unknown"] += 1

    async def _pause(self, transaction: Transaction, *choices: float) -> None:
        rng = self._rng
        await asyncio.sleep(self.world.pause_s(rng, len(transaction.writes), lambda: rng.choice(choices)))


class Writer(Transacting):
    """Writes unique values to several partitions, often with a group's offsets; occasionally it leaves the decision to
    another process."""

    def __init__(self, slot: str, name: str, clients: TransactionClients, *, token: str | None = None) -> None:
        """``token``: what the former incarnation left prepared, for this one to commit."""
        self._token = token
        self.preparing = False
        """Whether its open transaction may be prepared: nobody would end that if it died."""
        super().__init__(slot, name, clients)

    async def _run(self) -> None:
        rng, clients = self._rng, self._clients
        producer = await self._producer(transaction_two_phase_commit_enable=clients.prepares > 0)
        if self._token is not None:
            await self._complete(producer, self._token)
        else:
            await patiently(lambda: producer.init_transactions())
        while not self.stopping:
            transaction = self._begun()
            values = rng.choice((1, 2, 3, 6))
            for number in range(values):
                value = b"%s:%d:%d:" % (self.name.encode(), self.number, number) + b"x" * rng.choice((0, 10, 200))
                transaction.writes.append((TopicPartition(MANY, rng.randrange(PARTITIONS)), value))
            if rng.random() < 0.5:
                transaction.group = group_of(self.transactional_id)
                transaction.offsets = dict.fromkeys((at for at, _ in transaction.writes), clients.begun_count)
            if rng.random() < clients.prepares:
                await self._prepare(producer, transaction)
            else:
                await self._transact(producer, transaction, 0.2)
            await self._pause(transaction, 0.0, 0.05, 0.5, 1.0)
        await producer.close(5.0)

    async def _prepare(self, producer: Producer, transaction: Transaction) -> None:
        clients, rng = self._clients, self._rng
        clients.begun(transaction)
        self.preparing = True
        try:
            await producer.begin_transaction()
            await self._send(producer, transaction)
            token = await producer.prepare_transaction()
        except TidelogError:
            # It may be prepared all the same: what follows under this name ends it.
            await asyncio.sleep(AGAIN_S)
            machine = producer._core.require_transactions().machine
            if machine.state is TransactionState.PREPARING:
                raise GivenUp from None
            await self._settled(producer, transaction)
            if machine.state is TransactionState.FATAL_ERROR:
                raise machine.refusal("abort") from None
            self.preparing = False
            return
        if not clients.roster.is_current(self):
            raise GivenUp  # the current owner of its name ends what it left
        self.world.events["prepared"] += 1
        if rng.random() < 0.3:
            clients.decide_by_successor(self, transaction, token)
        else:
            clients.decide_elsewhere(transaction, token, committed=rng.random() < 0.7)
        raise GivenUp

    async def _complete(self, producer: Producer, token: str) -> None:
        clients = self._clients
        transaction = clients.roster.held[self.transactional_id]
        try:
            await patiently(lambda: producer.init_transactions(keep_prepared=True))
            state = producer._core.require_transactions().state
            if state is not TransactionState.PREPARED and not clients.taken_over(self.transactional_id):
                self.world.violated(f"prepared: {self.name} finds nothing prepared: it is {state.value}")
            transaction.committing_s = min(transaction.committing_s, self.world.now())
            committed = await patiently(lambda: producer.complete_transaction(token))
        finally:
            clients.roster.held.pop(self.transactional_id, None)
        # Else an earlier incarnation has completed it already, and nobody has heard.
        if committed:
            clients.heard(transaction, Outcome.OK)


class Decider(Incarnation):
    """Decides, in its own process, what another one has prepared."""

    def __init__(
        self, name: str, clients: TransactionClients, transaction: Transaction, token: str, *, committed: bool
    ) -> None:
        self._clients = clients
        self._transaction = transaction
        self._token = token
        self._committed = committed
        super().__init__(name, clients.world)

    async def _run(self) -> None:
        rng, world, transaction = self._rng, self.world, self._transaction
        await asyncio.sleep(rng.choice(HELD_S) * rng.uniform(0.7, 1.3))
        decide = Producer.commit_prepared if self._committed else Producer.abort_prepared
        if self._committed:
            transaction.committing_s = world.now()
        seams = self.process.seams()
        for _ in range(rng.choice((1, 1, 2))):
            await self._until_heard(lambda: decide(world.bootstrap, self._token, timeout=3.0 * world.scale, **seams))
            transaction.outcome = Outcome.OK if self._committed else Outcome.FAILED
            world.events["decided-elsewhere"] += 1
        self._clients.roster.held.pop(transaction.transactional_id, None)

    async def _until_heard(self, decide: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Decide; ask again after a refusal by a coordinator that no longer decides."""
        while True:
            try:
                await patiently(decide)
                return
            except TidelogError:
                if not self._clients.misled(self._transaction.transactional_id):
                    raise
            self.world.events["refused-by-deposed"] += 1
            await asyncio.sleep(0.3)

    async def _guarded(self) -> None:
        slot = self._transaction.transactional_id
        try:
            await self._run()
        except TidelogError as error:
            self._clients.roster.held.pop(slot, None)
            if self._clients.taken_over(slot):
                self.world.events["prepared-taken-over"] += 1
                return
            self.world.violated(f"prepared: {self.name} could not decide: {type(error).__name__}: {error}")


class Teller(Transacting):
    """Moves money between accounts. It learns the balances from the log at its start.

    It asks nobody for the log's end: a replaced leader that does not know it yet reports an older end. The teller has
    fenced its predecessor, so it writes a sign to each partition, and has read everything once it finds these.
    """

    async def _run(self) -> None:
        rng = self._rng
        producer = await self._producer()
        await patiently(lambda: producer.init_transactions())
        balances = await self._balances(await self._signs(producer))
        while not self.stopping:
            a, b = rng.sample(range(ACCOUNTS), 2)
            amount = rng.randrange(1, 20)
            transaction = self._begun()
            after = {a: balances[a] - amount, b: balances[b] + amount}
            for account, balance in after.items():
                value = b"%d=%d;%s:%d" % (account, balance, self.name.encode(), self.number)
                transaction.writes.append((TopicPartition(BANK, account % PARTITIONS), value))
            if await self._committed(producer, transaction, 0.15):
                balances |= after
            await self._pause(transaction, 0.0, 0.05, 0.5)
        await producer.close(5.0)

    async def _committed(self, producer: Producer, transaction: Transaction, aborts: float) -> bool:
        """Return whether the transaction counts in the end. Raises ``GivenUp`` if nobody can know."""
        await self._transact(producer, transaction, aborts)
        if transaction.outcome is Outcome.UNKNOWN:
            raise GivenUp(f"transaction {self.number} has no known outcome")
        return transaction.outcome is Outcome.OK

    async def _signs(self, producer: Producer) -> dict[TopicPartition, bytes]:
        """Commit a sign to each partition of the bank."""
        while not self.stopping:
            transaction = self._begun()
            for at in partitions_of({BANK: PARTITIONS}):
                transaction.writes.append((at, b"%s=%s:%d:%d" % (SIGN, self.name.encode(), self.number, at.partition)))
            if await self._committed(producer, transaction, 0.0):
                return dict(transaction.writes)
            await self._pause(transaction, 0.0, 0.05, 0.5)
        raise GivenUp

    async def _balances(self, signs: Mapping[TopicPartition, bytes]) -> dict[int, int]:
        """Read the bank from its start to the signs, and judge the sum."""
        consumer = self.process.consumer(
            isolation_level="read_committed", auto_offset_reset="earliest", fetch_max_wait_ms=100
        )
        await consumer.start()
        consumer.assign(list(signs))
        consumer.seek_to_beginning(*signs)
        left = dict(signs)
        values: list[bytes] = []
        while left:
            for record in await consumer.poll(0.3):
                at, value = record.topic_partition, record.value or b""
                if value == left.get(at):
                    del left[at]
                elif at in left:  # a successor may have written the records after the sign
                    values.append(value)
        await consumer.close()
        found = balances_after(values)
        self._clients.snapshot(self.name, found)
        return found
