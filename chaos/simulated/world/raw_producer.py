"""A producer that writes its own frames: sequences that wrap, epochs that are fenced, gaps that are refused.

The SDK never reaches these cases in a run of a minute: its sequences begin at 0 and its epoch stays. This producer
begins just below the wrap at 2**31, raises its epoch now and then, and sends batches that must be refused.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog.chaos.checkers.history import NO_OFFSET, History, Outcome, Sent
from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.frames import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.proto.transport.network import Address, ConnectionLost, StreamKind

SEQUENCES: Final = 1 << 31
PRODUCER_ID: Final = 1_000_000
"""Far above the ids that a run's controllers hand out."""
TRY_S: Final = 1.5


@dataclass(slots=True)
class _Target:
    at: TopicPartition
    epoch: int
    sequence: int
    """Of the next record."""
    known: bool = False
    """Whether anything was appended: until then any sequence is accepted."""
    last: tuple[bytes, int] | None = None
    """The last batch that was appended, and its offset."""


class RawProducer:
    """One producer with one batch in flight; retries each until it has a definite answer."""

    def __init__(
        self,
        name: str,
        cluster: SimulatedCluster,
        topic: str,
        partitions: int,
        history: History,
        rng: random.Random,
        violated: Callable[[str], None],
    ) -> None:
        self.name = name
        self.operations = 0
        self.stopping = False
        self.process = cluster.client_process(name)
        self._cluster = cluster
        self._network = cluster.fabric.network(name, context=self.process.context)
        self._callers: dict[NodeId, FrameCaller] = {}
        self._history = history
        self._rng = rng
        self._violated = violated
        self._number = 0
        self._under_way: list[Sent] = []
        self._targets = [
            _Target(TopicPartition(topic, n), 0, SEQUENCES - 1 - rng.randrange(6)) for n in range(partitions)
        ]
        self._task = cluster.run_in(self.process, self._run())

    async def finish(self, timeout_s: float) -> None:
        """Stop after the batch in flight. Raises ``TimeoutError``."""
        self.stopping = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._task
        finally:
            for sent in self._under_way:
                self._history.sends.append(sent._replace(outcome=Outcome.UNKNOWN))

    async def _run(self) -> None:
        rng = self._rng
        while not self.stopping:
            target = rng.choice(self._targets)
            kind = rng.random()
            count = rng.choice((1, 2, 3))
            if kind < 0.08 and target.epoch:
                await self._send(target, target.epoch - 1, target.sequence, 1, ErrorCode.INVALID_PRODUCER_EPOCH)
            elif kind < 0.16 and target.known:
                beyond = (target.sequence + 10) % SEQUENCES
                await self._send(target, target.epoch, beyond, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            elif kind < 0.22:
                target.epoch += 1
                target.sequence = 0
                await self._send(target, target.epoch, 0, count, ErrorCode.NONE)
            elif kind < 0.35 and target.last is not None:
                await self._send_again(target)
            else:
                await self._send(target, target.epoch, target.sequence, count, ErrorCode.NONE)
                if kind > 0.7:  # adjacent in the log, since nobody else writes in between
                    await self._send(target, target.epoch, target.sequence, count, ErrorCode.NONE)
                    await self._send_again(target)
            await asyncio.sleep(rng.uniform(0.2, 1.5))
        for caller in self._callers.values():
            await caller.close()

    async def _send_again(self, target: _Target) -> None:
        """Resend the last appended batch, as after a lost answer: the broker must recognise it."""
        assert target.last is not None
        batch, offset = target.last
        self.operations += 1
        answer = await self._until_definite(target.at, batch)
        if answer.error is not ErrorCode.NONE or answer.base_offset != offset:
            self._violated(
                f"{self.name} {target.at}: what stands at {offset} was sent again: expected that offset, found "
                f"{answer.error.name}, offset {answer.base_offset}"
            )

    async def _send(self, target: _Target, epoch: int, sequence: int, count: int, due: ErrorCode) -> None:
        """Send a batch until its outcome is known, and judge that."""
        numbers = range(self._number, self._number + count)
        self._number += count
        self.operations += 1
        values = [b"%s:%d:" % (self.name.encode(), number) for number in numbers]
        began = self._cluster.loop.now
        batch = encode_values(
            values,
            1_750_000_000_000,
            producer_id=PRODUCER_ID,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        outcome = Outcome.OK if due is ErrorCode.NONE else Outcome.FAILED
        self._under_way = [
            Sent(self.name, number, target.at, value, outcome, NO_OFFSET, began)
            for number, value in zip(numbers, values, strict=True)
        ]
        answer = await self._until_definite(target.at, bytes(batch))
        ended = self._cluster.loop.now
        what = f"{self.name} {target.at}: epoch {epoch}, {count} records from sequence {sequence}"
        if answer.error is not due:
            self._violated(f"{what}: expected {due.name}, found {answer.error.name}, offset {answer.base_offset}")
        for index, sent in enumerate(self._under_way):
            offset = answer.base_offset + index if answer.error is ErrorCode.NONE else NO_OFFSET
            told = Outcome.OK if answer.error is ErrorCode.NONE else Outcome.FAILED
            self._history.sends.append(sent._replace(outcome=told, offset=offset, ended_s=ended))
        self._under_way = []
        if answer.error is ErrorCode.NONE:
            target.sequence = (sequence + count) % SEQUENCES
            target.known = True
            target.last = (bytes(batch), answer.base_offset)

    async def _until_definite(self, at: TopicPartition, batch: bytes) -> ProducedPartition:
        while True:
            leader = self._cluster.leader_of(at.topic, at.partition) if self._cluster.nodes else None
            topic = self._cluster.image.topic(at.topic) if self._cluster.nodes else None
            if leader is not None and topic is not None:
                item = ProducePartition(topic.topic_id, at.partition, batch)
                encode = functools.partial(encode_produce_request, request=ProduceRequest(-1, 1_000, (item,)))
                try:
                    async with asyncio.timeout(TRY_S):
                        frame = await self._caller(leader).submit(encode)
                    answer = decode_produce_response(frame)[1][0]
                    if not answer.error.retriable:
                        return answer
                except (ConnectionLost, TimeoutError):
                    self._callers.pop(leader).reset("tried elsewhere")
            await asyncio.sleep(self._rng.uniform(0.05, 0.3))

    def _caller(self, node: NodeId) -> FrameCaller:
        found = self._callers.get(node)
        if found is None:
            connection = self._network.connect(Address(f"node{node}", 9092))
            found = self._callers[node] = FrameCaller(connection, StreamKind.PRODUCE, open_timeout_s=TRY_S)
        return found
