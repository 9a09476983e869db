"""Writers of a query's inputs: plain records, and transactions that are committed, aborted and left open."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from tidelog.aio import Producer
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.spark import INPUT_PARTITIONS, INPUTS
from tidelog.chaos.workloads.world import World
from tidelog.client.errors import TidelogError

TIMEOUT_MS: Final = 3_000
"""A transaction that nobody ends is aborted after this time."""


class InputWriter(Incarnation):
    """One incarnation of a producer; ``transactional_id`` None: without transactions."""

    def __init__(self, name: str, world: World, transactional_id: str | None) -> None:
        self.transactional_id = transactional_id
        self.number = 0
        super().__init__(name, world)

    async def _guarded(self) -> None:
        """Ignore its errors, which do not matter to this scenario; another one follows."""
        try:
            await self._run()
        except TidelogError as error:
            self.world.note(f"{self.name} ends: {type(error).__name__}: {error}")

    async def _run(self) -> None:
        rng = self._rng
        settings: dict[str, Any] = {
            "linger_ms": rng.choice((0, 5)),
            "request_timeout_ms": rng.choice((500, 2_000)),
            "delivery_timeout_ms": 6_000,
            "max_block_ms": 6_000,
        }
        if self.transactional_id is not None:
            settings |= {"transactional_id": self.transactional_id, "transaction_timeout_ms": TIMEOUT_MS}
        producer = self.process.producer(**settings)
        await producer.start()
        if self.transactional_id is None:
            while not self.stopping:
                for _ in range(rng.choice((1, 2, 4))):
                    await self._send(producer, rng)
                await asyncio.sleep(rng.choice((0.1, 0.5, 1.0)))
        else:
            await producer.init_transactions()
            while not self.stopping:
                await self._transact(producer, rng)
                await asyncio.sleep(rng.choice((0.05, 0.3, 1.0)))
        await producer.close(3.0)

    async def _transact(self, producer: Producer, rng: random.Random) -> None:
        await producer.begin_transaction()
        for _ in range(rng.choice((1, 2, 4))):
            await self._send(producer, rng)
        if rng.random() < 0.3:  # in the meantime, later records cannot be read
            await producer.flush()
            await asyncio.sleep(rng.choice((0.2, 1.0, 2.0)))
        if rng.random() < 0.3:
            self.world.events["input-aborted"] += 1
            await producer.abort_transaction()
        else:
            self.world.events["input-committed"] += 1
            await producer.commit_transaction()

    async def _send(self, producer: Producer, rng: random.Random) -> None:
        self.number += 1
        value = f"{self.name}:{self.number}".encode()
        await producer.send(INPUTS, value, partition=rng.randrange(INPUT_PARTITIONS))
