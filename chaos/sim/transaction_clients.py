"""Clients with transactions in a simulated cluster, each life of one in a process of its own.

Writers write to several partitions at once, and leave some decisions to others; tellers move money between the
accounts of a bank; transforms make one output of each input; readers are shown what counts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidelog.aio import Producer, Transform
from tidelog.chaos.checkers.history import Outcome, Polled, TransactionKey
from tidelog.chaos.checkers.transactions import Attempt
from tidelog.chaos.sim.lives import Employer, GivenUp, Life
from tidelog.client.errors import OffsetOutOfRangeError, RequestTimedOutError, TidelogError
from tidelog.client.group_types import ConsumerGroupMetadata
from tidelog.client.interceptors import ProducerRecord
from tidelog.client.record import ConsumerRecord
from tidelog.client.transaction_state import TransactionState
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.aio import Consumer
    from tidelog.chaos.sim.transaction_work import TransactionWork

MANY: Final = "many"
BANK: Final = "bank"
COPIES: Final = "copies"
PLACES: Final = {MANY: 3, BANK: 3, COPIES: 2}
"""Topics besides that of the inputs, and their partitions."""
GROUP: Final = "copiers"
ACCOUNTS: Final = 6
BALANCE: Final = 100
TIMEOUT_MS: Final = 4_000
"""Transactions are aborted when they are open for so long."""
COPY_TIMEOUT_MS: Final = 12_000
"""Those of copiers: longer than a group waits for a member that stands still."""
HELD_S: Final = (0.2, 1.0, 3.0, 9.0)
"""About how long a decision is left to others: longer than a transaction may be open, too."""


def group_of(transactional_id: str) -> str:
    """The group whose offsets a writer commits with what it writes."""
    return f"offsets-{transactional_id}"


class Client(Life):
    """One life of one client."""

    @property
    def at_work(self) -> bool:
        return super().at_work and not self.stopping

    def _ended_by(self, error: TidelogError) -> None:
        """What it was told is judged by what came of its transactions."""

    def _producer(self, transactional_id: str, **settings: Any) -> Producer:
        rng = self._rng
        return self._cluster.producer(
            self.process,
            transactional_id=transactional_id,
            **producer_settings(rng),
            **settings,
        )


def producer_settings(rng: random.Random) -> dict[str, Any]:
    """Settings of a transactional producer, by chance."""
    return {
        "transaction_timeout_ms": TIMEOUT_MS,
        "linger_ms": rng.choice((0, 5, 50)),
        "batch_size": rng.choice((100, 16_384)),
        "request_timeout_ms": rng.choice((500, 1_000, 3_000)),
        "delivery_timeout_ms": rng.choice((4_000, 20_000)),
        "max_block_ms": rng.choice((3_000, 20_000)),
    }


class _Transacting(Client):
    """What writers and tellers share: a transaction with its outcome as far as it is told."""

    def __init__(self, slot: str, name: str, work: TransactionWork) -> None:
        self.transactional_id = slot
        self.number = 0
        self._work = work
        super().__init__(name, work)

    async def _transact(self, producer: Producer, attempt: Attempt, *, abort: bool) -> None:
        """Send what is in the attempt, then commit or abort. Raises what cannot be mended."""
        machine = producer._core.require_transactions().machine
        self._work.attempts.append(attempt)
        try:
            async with producer.transaction():
                await self._send(producer, attempt)
                if abort:
                    raise GivenUp
                attempt.committing_s = self._cluster.loop.now
        except (GivenUp, TidelogError):
            await self._settled(producer, attempt)
        else:
            self._heard(attempt, Outcome.OK)
        if machine.state is TransactionState.FATAL_ERROR:
            raise machine.refusal("transaction()")

    async def _send(self, producer: Producer, attempt: Attempt) -> None:
        rng = self._rng
        for at, value in attempt.writes:
            key = value.partition(b"=")[0] if at.topic == BANK else None
            await producer.send(at.topic, value, key, partition=at.partition)
            if rng.random() < 0.1:
                await asyncio.sleep(rng.choice((0.05, 0.3, 2.0)))
        if attempt.offsets:
            await producer.send_offsets_to_transaction(attempt.offsets, ConsumerGroupMetadata(attempt.group))

    async def _settled(self, producer: Producer, attempt: Attempt) -> None:
        """Wait until the outcome is known, or nobody can know it any more."""
        machine = producer._core.require_transactions().machine
        committing = False
        while machine.state is not TransactionState.FATAL_ERROR:
            if machine.state is TransactionState.READY:
                # A commit leads there too, while nobody waits for it.
                self._heard(attempt, Outcome.OK if committing else Outcome.FAILED)
                return
            committing = machine.state is TransactionState.COMMITTING
            try:
                await (producer.commit_transaction() if committing else producer.abort_transaction())
            except TidelogError:
                await asyncio.sleep(0.1)
        self._work.events["unknown"] += 1

    def _heard(self, attempt: Attempt, outcome: Outcome) -> None:
        attempt.outcome = outcome
        if outcome is Outcome.OK:
            self._work.committed_s[self.transactional_id] = self._cluster.loop.now
            self._work.events["committed"] += 1
        else:
            self._work.events["aborted"] += 1

    def _attempt(self) -> Attempt:
        self.number += 1
        return Attempt(TransactionKey(self.name, self.number))


class Writer(_Transacting):
    """Writes unique values to several partitions at once, often with offsets of a group; now and then it leaves the
    decision to another process."""

    def __init__(self, slot: str, name: str, work: TransactionWork, *, token: str | None = None) -> None:
        """``token``: what the former life left prepared, for this one to commit."""
        self._token = token
        self.preparing = False
        """Whether what it has open may be prepared: nobody would end that, should it die."""
        super().__init__(slot, name, work)

    async def _run(self) -> None:
        rng = self._rng
        producer = self._producer(self.transactional_id, transaction_two_phase_commit_enable=True)
        await producer.start()
        if self._token is not None:
            await self._complete(producer, self._token)
        else:
            await _patiently(lambda: producer.init_transactions())
        while not self.stopping:
            attempt = self._attempt()
            values = rng.choice((1, 2, 3, 6))
            for number in range(values):
                value = b"%s:%d:%d:" % (self.name.encode(), self.number, number) + b"x" * rng.choice((0, 10, 200))
                attempt.writes.append((TopicPartition(MANY, rng.randrange(PLACES[MANY])), value))
            if rng.random() < 0.5:
                attempt.group = group_of(self.transactional_id)
                attempt.offsets = dict.fromkeys((at for at, _ in attempt.writes), len(self._work.attempts))
            if rng.random() < 0.15:
                await self._prepare(producer, attempt)
            else:
                await self._transact(producer, attempt, abort=rng.random() < 0.2)
            await asyncio.sleep(rng.choice((0.0, 0.05, 0.5, 1.0)))
        await producer.close(5.0)

    async def _prepare(self, producer: Producer, attempt: Attempt) -> None:
        work, rng = self._work, self._rng
        work.attempts.append(attempt)
        self.preparing = True
        try:
            await producer.begin_transaction()
            await self._send(producer, attempt)
            token = await producer.prepare_transaction()
        except TidelogError:
            # It may be prepared all the same: what follows under this name ends it.
            await asyncio.sleep(0.1)
            if producer._core.require_transactions().state is TransactionState.PREPARING:
                raise GivenUp from None
            await self._abort(producer, attempt)
            self.preparing = False
            return
        if not work.is_current(self):
            raise GivenUp  # whoever has its name now ends what it left
        work.events["prepared"] += 1
        if rng.random() < 0.3:
            work.decide_by_successor(self, attempt, token)
        else:
            work.decide_elsewhere(self, attempt, token, committed=rng.random() < 0.7)
        raise GivenUp

    async def _abort(self, producer: Producer, attempt: Attempt) -> None:
        await self._settled(producer, attempt)
        machine = producer._core.require_transactions().machine
        if machine.state is TransactionState.FATAL_ERROR:
            raise machine.refusal("abort")

    async def _complete(self, producer: Producer, token: str) -> None:
        attempt = self._work.held[self.transactional_id]
        try:
            await _patiently(lambda: producer.init_transactions(keep_prepared=True))
            state = producer._core.require_transactions().state
            if state is not TransactionState.PREPARED and not self._work.watch.taken_over(self.transactional_id):
                self._sim.world.violated(f"prepared: {self.name} finds nothing prepared: it is {state.value}")
            attempt.committing_s = min(attempt.committing_s, self._cluster.loop.now)
            committed = await _patiently(lambda: producer.complete_transaction(token))
        finally:
            self._work.held.pop(self.transactional_id, None)
        # Else an earlier life has completed it already, and nobody has heard.
        if committed:
            self._heard(attempt, Outcome.OK)


class Decider(Client):
    """Decides in a process of its own what another one has prepared."""

    def __init__(
        self, slot: str, name: str, work: TransactionWork, attempt: Attempt, token: str, *, committed: bool
    ) -> None:
        self.transactional_id = slot
        self._attempt = attempt
        self._token = token
        self._committed = committed
        self._work = work
        super().__init__(name, work)

    async def _run(self) -> None:
        rng, attempt = self._rng, self._attempt
        await asyncio.sleep(rng.choice(HELD_S) * rng.uniform(0.7, 1.3))
        decide = Producer.commit_prepared if self._committed else Producer.abort_prepared
        if self._committed:
            attempt.committing_s = self._cluster.loop.now
        seams = self._cluster._seams(self.process)
        for _ in range(rng.choice((1, 1, 2))):
            await self._until_heard(lambda: decide(self._cluster.bootstrap, self._token, timeout=3.0, **seams))
            attempt.outcome = Outcome.OK if self._committed else Outcome.FAILED
            self._work.events["decided-elsewhere"] += 1
        self._work.held.pop(self.transactional_id, None)

    async def _until_heard(self, decide: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Decide; ask again if it was refused by who does not decide any more."""
        while True:
            try:
                await _patiently(decide)
                return
            except TidelogError:
                if not self._work.watch.misled(self.transactional_id):
                    raise
            self._work.events["refused-by-deposed"] += 1
            await asyncio.sleep(0.3)

    async def _guarded(self) -> None:
        try:
            await self._run()
        except TidelogError as error:
            self._work.held.pop(self.transactional_id, None)
            if self._work.watch.taken_over(self.transactional_id):
                self._work.events["prepared-taken-over"] += 1
                return
            self._sim.world.violated(f"prepared: {self.name} could not decide: {type(error).__name__}: {error}")


class Teller(_Transacting):
    """Moves money between accounts. What the accounts hold it learns from the log when it begins."""

    async def _run(self) -> None:
        rng = self._rng
        producer = self._producer(self.transactional_id)
        await producer.start()
        await _patiently(lambda: producer.init_transactions())
        balances = await self._balances()
        while not self.stopping:
            a, b = rng.sample(range(ACCOUNTS), 2)
            amount = rng.randrange(1, 20)
            attempt = self._attempt()
            after = {a: balances[a] - amount, b: balances[b] + amount}
            for account, balance in after.items():
                value = b"%d=%d;%s:%d" % (account, balance, self.name.encode(), self.number)
                attempt.writes.append((TopicPartition(BANK, account % PLACES[BANK]), value))
            await self._transact(producer, attempt, abort=rng.random() < 0.15)
            if attempt.outcome is Outcome.OK:
                balances |= after
            elif attempt.outcome is Outcome.UNKNOWN:
                raise GivenUp
            await asyncio.sleep(rng.choice((0.0, 0.05, 0.5)))
        await producer.close(5.0)

    async def _balances(self) -> dict[int, int]:
        """Read the bank from its start to its end, and judge the sum."""
        consumer = self._cluster.consumer(
            self.process,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
        )
        await consumer.start()
        places = [TopicPartition(BANK, n) for n in range(PLACES[BANK])]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = await _patiently(lambda: consumer.end_offsets(places, timeout=3.0))
        found = dict.fromkeys(range(ACCOUNTS), BALANCE)
        left = {at: end for at, end in ends.items() if end > 0}
        while left:
            for record in await consumer.poll(0.3):
                if record.offset < ends[record.topic_partition]:
                    account, _, rest = (record.value or b"").partition(b"=")
                    found[int(account)] = int(rest.partition(b";")[0])
            for at, end in list(left.items()):
                if await _patiently(lambda at=at: consumer.position(at, timeout=3.0)) >= end:  # type: ignore[misc]
                    del left[at]
        await consumer.close()
        self._work.snapshot(self.name, found)
        return found


class Copier(Client):
    """Makes one output of each input, as a member of a group, by the SDK's own loop."""

    def __init__(self, slot: str, name: str, work: TransactionWork) -> None:
        self.transactional_id = slot
        self._work = work
        super().__init__(name, work)
        rng = self._rng
        self._transform = Transform(
            self._copy,
            self._cluster.bootstrap,
            topics=[self._sim.topic],
            group_id=GROUP,
            transactional_id=slot,
            consumer_settings={
                "session_timeout_ms": 3_000,
                "heartbeat_interval_ms": 500,
                "max_poll_interval_ms": 6_000,
                "max_poll_records": rng.choice((3, 20)),
                "request_timeout_ms": 3_000,
                "default_api_timeout_ms": 10_000,
                "metadata_max_age_ms": 2_000,
                "fetch_max_wait_ms": 300,
            },
            producer_settings={**producer_settings(rng), "transaction_timeout_ms": COPY_TIMEOUT_MS},
            **self._cluster._seams(self.process),
        )

    @property
    def commits(self) -> int:
        return self._transform.counts.commits

    async def _copy(self, record: ConsumerRecord) -> ProducerRecord:
        rng = self._rng
        if rng.random() < 0.08:
            await asyncio.sleep(rng.choice((0.1, 1.0, 2.5)))
        return ProducerRecord(COPIES, record.value or b"", partition=rng.randrange(PLACES[COPIES]))

    async def _run(self) -> None:
        await self._transform.run()

    def stop(self) -> None:
        """Let the transaction that is under way end."""
        self.stopping = True
        self._transform.stop()


class CommittedReader(Client):
    """Reads what counts, from the start on."""

    def __init__(self, name: str, work: Employer, reads: list[Polled], places: Mapping[str, int]) -> None:
        self._reads = reads
        self.places = [TopicPartition(topic, n) for topic, count in places.items() for n in range(count)]
        self.positions = dict.fromkeys(self.places, 0)
        super().__init__(name, work)

    async def _run(self) -> None:
        consumer: Consumer = self._cluster.consumer(
            self.process,
            isolation_level="read_committed",
            auto_offset_reset="none",
            fetch_max_wait_ms=self._rng.choice((100, 500)),
            max_poll_records=self._rng.choice((2, 20, 500)),
        )
        self._sim.observer.client(self.name, consumer._core.cluster.cache)
        await consumer.start()
        consumer.assign(self.places)
        for at in self.places:
            consumer.seek(at, 0)
        while not self.stopping:
            began = self._cluster.loop.now
            try:
                records = await consumer.poll(0.5)
            except OffsetOutOfRangeError as error:
                self._sim.world.violated(f"{self.name}: its position was refused: {error}")
                return
            found: dict[TopicPartition, list[tuple[int, bytes]]] = {}
            for record in records:
                found.setdefault(record.topic_partition, []).append((record.offset, record.value or b""))
            for at, got in found.items():
                self._reads.append(Polled(self.name, at, got, began, self._cluster.loop.now, read_committed=True))
            for at in self.places:
                try:
                    self.positions[at] = await consumer.position(at, timeout=1.0)
                except TidelogError:
                    break
        await consumer.close()


async def _patiently(ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Ask until there is an answer."""
    while True:
        try:
            return await ask()
        except RequestTimedOutError:
            await asyncio.sleep(0.1)
