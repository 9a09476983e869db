"""Consume, transform, produce: members of a group make one record from each that they read, and commit their position
in the same transaction. Copiers use the SDK's own loop; recorders do it by hand, and record each step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.aio import Consumer, Producer, Transform
from tidelog.chaos.checkers.history import Outcome, Polled, Positioned, by_partition
from tidelog.chaos.workloads.incarnation import GivenUp, Incarnation, patiently
from tidelog.chaos.workloads.transactions import Transacting, TransactionClients, producer_settings
from tidelog.chaos.workloads.world import World
from tidelog.client.config.interceptors import ProducerRecord
from tidelog.client.errors import TidelogError
from tidelog.client.group_types import ConsumerRebalanceListener
from tidelog.client.producer.transaction_state import TransactionState
from tidelog.client.record import ConsumerRecord
from tidelog.model.ids import TopicPartition

TIMEOUT_MS: Final = 12_000
"""A copier's transactions: longer than a group waits for a paused member."""
POLL_S: Final = 0.5


@dataclass(frozen=True)
class Copying:
    """The task of copiers. ``naps``: how often one delays a record."""

    source: str
    target: str
    partitions: int
    """Partitions of the target."""
    group: str
    naps: float
    polls: Sequence[int]
    """Choices for how many records a poll returns at most."""
    output: Callable[[bytes, str], bytes] = lambda value, by: value
    """Makes the output from a value and the copier's name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of consumers."""

    def member(self, scale: int) -> dict[str, Any]:
        """Return settings of a consumer whose commits belong to transactions."""
        return {**member_settings(scale), **self.settings}


def member_settings(scale: int) -> dict[str, Any]:
    """Return settings of a group's member that soon notices what fails."""
    return {
        "session_timeout_ms": 3_000 * scale,
        "heartbeat_interval_ms": 500 * scale,
        "max_poll_interval_ms": 6_000 * scale,
        "request_timeout_ms": 3_000,
        "default_api_timeout_ms": 10_000 * scale,
        "metadata_max_age_ms": 2_000 * scale,
        "fetch_max_wait_ms": 300,
    }


class Copier(Incarnation):
    """Makes one output from each input, as a member of a group, with the SDK's own loop."""

    def __init__(self, slot: str, name: str, world: World, copying: Copying) -> None:
        super().__init__(name, world)
        self._copying = copying
        rng = self._rng
        self._transform = Transform(
            self._copy,
            world.bootstrap,
            topics=[copying.source],
            group_id=copying.group,
            transactional_id=slot,
            consumer_settings={**copying.member(world.scale), "max_poll_records": rng.choice(copying.polls)},
            producer_settings={
                **producer_settings(rng, world.scale),
                "transaction_timeout_ms": TIMEOUT_MS * world.scale,
            },
            **self.process.seams(),
        )

    @property
    def commits(self) -> int:
        return self._transform.counts.commits

    async def _copy(self, record: ConsumerRecord) -> ProducerRecord:
        rng, copying = self._rng, self._copying
        if rng.random() < copying.naps:
            await asyncio.sleep(rng.choice((0.1, 1.0, 2.5)))
        value = copying.output(record.value or b"", self.name)
        return ProducerRecord(copying.target, value, partition=rng.randrange(copying.partitions))

    async def _run(self) -> None:
        await self._transform.run()

    def _ended_by(self, error: TidelogError) -> None:
        """Its transactions' results are judged, not the answers that it got."""

    def stop(self) -> None:
        """Let the current transaction end."""
        super().stop()
        self._transform.stop()


class Recorder(Transacting, ConsumerRebalanceListener):
    """Makes one output from each input by hand, and records each poll, position and transaction."""

    pauses = 0.002

    def __init__(self, slot: str, name: str, clients: TransactionClients, copying: Copying) -> None:
        self._copying = copying
        super().__init__(slot, name, clients)

    async def _run(self) -> None:
        copying, world = self._copying, self.world
        producer = await self._producer()
        await patiently(producer.init_transactions)
        consumer = self.process.consumer(
            group_id=copying.group,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            max_poll_records=self._rng.choice(copying.polls),
            **copying.member(world.scale),
        )
        await consumer.start()
        consumer.subscribe([copying.source], listener=self)
        while not self.stopping:
            began = world.now()
            records = await consumer.poll(POLL_S)
            for at, got in by_partition(records).items():
                world.history.poll(Polled(self.name, at, got, began, world.now(), read_committed=True))
            if records:
                await self._copy(producer, consumer, records)
        await self.process.close()

    async def _copy(self, producer: Producer, consumer: Consumer, records: Sequence[ConsumerRecord]) -> None:
        copying, transaction = self._copying, self._begun()
        by = f"{self.name}:{self.number}"
        transaction.writes += [
            (
                TopicPartition(copying.target, self._rng.randrange(copying.partitions)),
                copying.output(record.value or b"", by),
            )
            for record in records
        ]
        await self._transact(producer, transaction, 0.15, consumer)
        ready = producer._core.require_transactions().machine.state is TransactionState.READY
        if transaction.outcome is not Outcome.OK:
            self.on_partitions_assigned(sorted(consumer.assignment()))
        elif consumer._core.require_uncommitted().starts() and ready:
            # It was committed after a wait had been abandoned: the consumer does not know, and would go back.
            raise GivenUp("its consumer does not know what was committed")

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for at in partitions:
            self.world.history.position(Positioned(self.name, at))
