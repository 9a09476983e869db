"""The workload of consume, transform, produce: members of groups make one record of each that they read, and commit
where they are in the same transaction; they are killed and stand still meanwhile.

Copiers write down each of their transactions. Mirrors do the same by the SDK's own loop, which tells nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelog.aio import Admin, Consumer, Producer, Transform
from tidelog.chaos.checkers.history import Outcome, Polled, Positioned
from tidelog.chaos.live.client_network import ClientNetwork
from tidelog.chaos.live.hand import Aims
from tidelog.chaos.live.lives import Lives, abandon
from tidelog.chaos.live.recording import CLIENT_SETTINGS, MEMBER_SETTINGS, POLL_S, Appender, Budget, Reader
from tidelog.chaos.live.transaction_work import GivenUp, Slot, patiently, producer_settings
from tidelog.chaos.live.workload import ClientTasks, Stage, derived_value, finish_sending, partitions_of
from tidelog.client.errors import TidelogError
from tidelog.client.group_types import ConsumerRebalanceListener
from tidelog.client.interceptors import ProducerRecord
from tidelog.client.record import ConsumerRecord
from tidelog.client.transaction_state import TransactionState
from tidelog.model.ids import TopicPartition

INPUTS: Final = "inputs"
COPIES: Final = "copies"
MIRRORS: Final = "mirrors"
PLACES: Final = {INPUTS: 4, COPIES: 3, MIRRORS: 3}
COPIERS_GROUP: Final = "copiers"
MIRRORS_GROUP: Final = "mirrors"
COPIERS: Final = 3
TRANSFORMS: Final = 2
COPIES_MAX: Final = 10_000_000
"""Copies that copiers make at most, those of transactions that are aborted too."""
UNPACED: Final = 1e6
"""Records per second: as fast as inputs come."""
ASK_S: Final = 0.3
CLOSE_S: Final = 5.0
_STRATEGIES: Final = ("range", "cooperative-sticky")


class Copier(Slot, ConsumerRebalanceListener):
    """All lives of one copier: a member of the group, and a transactional producer."""

    pauses = 0.002

    def __init__(self, name: str, stage: Stage, strategy: str, *, static: bool) -> None:
        rng = stage.rng(f"transform-{name}")
        super().__init__(name, stage.bootstrap, stage.history, rng, UNPACED, Budget(COPIES_MAX))
        self._settings: dict[str, Any] = {
            **member_settings(strategy),
            "group_id": COPIERS_GROUP,
            "group_instance_id": name if static else None,
        }
        self._lives = Lives(name, self._live_over, stage.history, rng)

    def calm(self) -> None:
        self._lives.calm()

    def stop(self) -> None:
        """Let the transaction that is under way end."""
        self.stopping = True
        self._lives.stop()

    async def run(self) -> None:
        await self._lives.run()

    async def _live_over(self, network: ClientNetwork) -> None:
        self._network = network
        await self._one_life(_network=network)

    async def _live(self, producer: Producer) -> None:
        self._settings["max_poll_records"] = self._rng.choice((20, 100, 500))
        consumer = Consumer(
            self._bootstrap,
            enable_auto_commit=False,
            isolation_level="read_committed",
            _network=self._network,
            **self._settings,
        )
        await consumer.start()
        try:
            consumer.subscribe([INPUTS], listener=self)
            while not self.stopping:
                began = self._history.now()
                records = await consumer.poll(POLL_S)
                if records:
                    self._write_polls(records, began)
                    await self._copy(producer, consumer, records)
        except asyncio.CancelledError:
            await abandon(consumer)
            raise
        finally:
            await consumer.close(CLOSE_S)

    async def _copy(self, producer: Producer, consumer: Consumer, records: Sequence[ConsumerRecord]) -> None:
        transaction = self._begun([])
        by = f"{transaction.key.producer}:{transaction.key.number}"
        transaction.writes += [
            (TopicPartition(COPIES, self._rng.randrange(PLACES[COPIES])), derived_value(record.value or b"", by), None)
            for record in records
        ]
        machine = producer._core.require_transactions().machine
        await self._transact(producer, transaction, consumer)
        if transaction.outcome is not Outcome.OK:
            for at in sorted(consumer.assignment()):
                self._history.position(Positioned(self._client, at))
        elif consumer._core.require_uncommitted().starts() and machine.state is TransactionState.READY:
            # It was committed after a wait had been given up: the consumer has not heard, and would go back.
            raise GivenUp("its consumer does not know what was committed")

    def _write_polls(self, records: Sequence[ConsumerRecord], began: float) -> None:
        found: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        for record in records:
            found.setdefault(record.topic_partition, []).append((record.offset, record.value or b""))
        for at, got in found.items():
            self._history.poll(Polled(self._client, at, got, began, self._history.now(), read_committed=True))

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for at in partitions:
            self._history.position(Positioned(self._client, at))


class Mirror:
    """All lives of a program that is the SDK's :class:`Transform`."""

    def __init__(self, name: str, stage: Stage, strategy: str) -> None:
        self.name = name
        self.committed = 0
        self._rng = rng = stage.rng(f"transform-{name}")
        self._stage = stage
        self._strategy = strategy
        self._transform: Transform | None = None
        self._lives = Lives(name, self._live_over, stage.history, rng)
        self._life = 0

    def calm(self) -> None:
        self._lives.calm()

    def stop(self) -> None:
        self._lives.stop()
        if self._transform is not None:
            self._transform.stop()

    async def run(self) -> None:
        await self._lives.run()

    async def _live_over(self, network: ClientNetwork) -> None:
        self._life += 1
        self._transform = transform = Transform(
            self._mirrored,
            self._stage.bootstrap,
            topics=INPUTS,
            group_id=MIRRORS_GROUP,
            transactional_id=self.name,
            consumer_settings={**member_settings(self._strategy), "max_poll_records": self._rng.choice((20, 200))},
            producer_settings={**producer_settings(self._rng), **CLIENT_SETTINGS},
            _network=network,
        )
        before = self.committed
        counting = asyncio.ensure_future(transform.run())
        try:
            while not counting.done():
                await asyncio.wait([counting], timeout=ASK_S)
                self.committed = before + transform.counts.commits
            await counting
        except TidelogError as error:
            self._stage.history.note(f"{self.name} ends: {type(error).__name__}: {error}")
            await asyncio.sleep(ASK_S)
        finally:
            if not counting.done():
                counting.cancel()
                await asyncio.wait([counting])

    def _mirrored(self, record: ConsumerRecord) -> ProducerRecord:
        value = derived_value(record.value or b"", f"{self.name}.{self._life}")
        return ProducerRecord(MIRRORS, value, partition=self._rng.randrange(PLACES[MIRRORS]))


def member_settings(strategy: str) -> dict[str, Any]:
    """Settings of a consumer whose commits are those of transactions."""
    settings = {name: value for name, value in MEMBER_SETTINGS.items() if name != "auto_commit_interval_ms"}
    return {**settings, "partition_assignment_strategy": strategy, "max_poll_interval_ms": 12_000}


class TransformWork:
    """Producers of inputs, copiers and mirrors of them, readers of what these make."""

    topics: Mapping[str, int] = PLACES
    derived: Mapping[str, str] = {COPIES: INPUTS, MIRRORS: INPUTS}

    def __init__(self, stage: Stage) -> None:
        places = partitions_of(self.topics)
        self._inputs = [at for at in places if at.topic == INPUTS]
        made = [at for at in places if at.topic != INPUTS]
        strategy = stage.rng("transform-strategy").choice(_STRATEGIES)
        self._copiers = [Copier(f"copier-{number}", stage, strategy, static=number == 0) for number in range(COPIERS)]
        self._mirrors = [Mirror(f"mirror-{number}", stage, strategy) for number in range(TRANSFORMS)]
        self._programs: list[Copier | Mirror] = [*self._copiers, *self._mirrors]
        ids = [each.name for each in self._programs]
        self.aims = Aims(places, stage.rng("transform").choice((COPIERS_GROUP, MIRRORS_GROUP)), ids)
        self._history = stage.history
        self._bootstrap = stage.bootstrap
        self._tasks = ClientTasks(stage.history)
        name = "ip0"
        self._appenders = [
            Appender(
                name,
                stage.bootstrap,
                self._inputs,
                stage.history,
                stage.rng(f"transform-{name}"),
                stage.per_s / 3,  # the other two thirds are what is made of it
                stage.budget,
            )
        ]
        self._reader = Reader(
            "ir0", stage.bootstrap, made, stage.history, stage.rng("transform-reader"), committed=True, seeks=False
        )
        self._sending: list[asyncio.Task[None]] = []
        self._working: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        for appender in self._appenders:
            self._sending.append(self._tasks.start(appender.name, appender.run()))
        for each in self._programs:
            self._working.append(self._tasks.start(each.name, each.run()))
        self._tasks.start(self._reader.name, self._reader.run())

    def heard(self) -> Mapping[str, int]:
        """A group gets on if any of its members does: there may be nothing for one of them."""
        return {
            **{appender.name: appender.acknowledged for appender in self._appenders},
            COPIERS_GROUP: sum(copier.committed for copier in self._copiers),
            MIRRORS_GROUP: sum(mirror.committed for mirror in self._mirrors),
        }

    def calm(self) -> None:
        for each in self._programs:
            each.calm()

    async def finish(self, bound_s: float) -> None:
        await finish_sending(self._appenders, self._sending, bound_s)
        late = await self._wait_for_groups(bound_s)
        if late:
            self._history.wrong(f"after everything was mended {', '.join(late)} read on, and had not come to the end")
        for each in self._programs:
            each.stop()
        _, left = await asyncio.wait(self._working, timeout=bound_s / 2)
        if left:
            self._history.wrong(
                f"{len(left)} copiers or mirrors have not ended {bound_s / 2:g} s after they were told to"
            )

    async def _wait_for_groups(self, bound_s: float) -> list[str]:
        """Until both groups have committed where the inputs end; those that have not, and got no further for
        ``bound_s``, or were not done after twice that. Writes down what they have."""
        began = moved = self._history.now()
        async with Admin(self._bootstrap) as admin, Consumer(self._bootstrap, **CLIENT_SETTINGS) as consumer:
            ends = await consumer.end_offsets(self._inputs, timeout=bound_s)
            committed: dict[str, dict[TopicPartition, int]] = {}
            while True:
                before = dict(committed)
                for group in (COPIERS_GROUP, MIRRORS_GROUP):
                    found = await patiently(
                        lambda group=group: admin.list_consumer_group_offsets(group, self._inputs)  # type: ignore[misc]
                    )
                    committed[group] = {at: int(found[at].offset) if at in found else 0 for at in self._inputs}
                now = self._history.now()
                moved = now if committed != before else moved
                behind = [group for group, has in committed.items() if any(has[at] < ends[at] for at in ends)]
                if not behind or now > moved + bound_s or now > began + 2 * bound_s:
                    break
                await asyncio.sleep(ASK_S)
        for group, has in committed.items():
            self._history.write(
                "committed", group=group, offsets=[[at.topic, at.partition, offset] for at, offset in has.items()]
            )
        return behind

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        return [] if self._reader.is_at(ends) else [self._reader.name]

    async def close(self) -> None:
        await self._tasks.end()
        await self._reader.close()
        for appender in self._appenders:
            await appender.abandon()
