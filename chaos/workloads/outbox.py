"""Programs that write rows of a SQLite outbox, and relays that send them.

The database is a real file. A call takes no virtual time, so none waits for a lock: who does not get it tries again
later. Killing a process closes its connections, as the operating system does.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from tidelog.chaos.checkers.patterns.outbox import Row
from tidelog.chaos.workloads.aside import Aside, Blocking
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.transactions import producer_settings
from tidelog.chaos.workloads.world import ClientProcess, World
from tidelog.client.consumer.blocking import Consumer
from tidelog.client.errors import TidelogError
from tidelog.client.outbox.relay import OutboxRelay, RelayCounts
from tidelog.client.outbox.rows import OutboxRow
from tidelog.client.outbox.sqlite import SqliteOutbox
from tidelog.client.producer.blocking import Producer
from tidelog.client.transaction_errors import FENCED

TRANSACTION_MS: Final = 3_000
_KEYS: Final = ("k0", "k1", "k2")
_ROLLED_BACK: Final = 0.25
_LOOKS_S: Final = (0.05, 0.2, 0.5)
_CALLS_S: Final = (0.0, 0.0, 0.001, 0.02)
_ROWS: Final = (1, 4, 500)
"""How many rows a relay gets at a time."""


def connect(path: Path) -> sqlite3.Connection:
    made = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    made.execute("PRAGMA synchronous=OFF")  # no power is lost here
    return made


def create(path: Path, rng: random.Random) -> None:
    """Create the database. Its id follows from the seed."""
    made = connect(path)
    made.execute("PRAGMA journal_mode=WAL")
    SqliteOutbox.create(made)
    made.execute("UPDATE outbox_identity SET id = ?", (_id(rng),))
    made.close()


def _id(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


class Shop(Incarnation):
    """Writes transactions with rows, and rolls some of them back."""

    def __init__(self, name: str, world: World, path: Path, kinds: Sequence[str], told: Callable[[Row], None]) -> None:
        self._database = connect(path)
        self._kinds = kinds
        self._told = told
        self.transactions = 0
        super().__init__(name, world)
        self._clock_off_ms = self._rng.choice((-5_000, 0, 5_000))

    async def _run(self) -> None:
        rng = self._rng
        while not self.stopping:
            try:
                self._database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                self.world.events["database-locked"] += 1
                await asyncio.sleep(0.05)
                continue
            self.transactions += 1
            rows = []
            for number in range(rng.choice((1, 1, 2, 8))):
                rows.append(self._put(b"%s:%d:%d" % (self.name.encode(), self.transactions, number)))
                if rng.random() < 0.2:
                    await asyncio.sleep(rng.choice((0.01, 0.3)))
            if rng.random() < _ROLLED_BACK:
                self._database.execute("ROLLBACK")
                self.world.events["rolled-back"] += 1
            else:
                self._database.execute("COMMIT")
                for row in rows:
                    self._told(row)
            await asyncio.sleep(rng.choice((0.0, 0.1, 0.5, 1.5)))
        self._database.close()

    def _put(self, value: bytes) -> Row:
        """Put a row into the outbox, with an id and a time that follow from the seed."""
        kind, key = self._rng.choice(self._kinds), self._rng.choice(_KEYS)
        given = SqliteOutbox.put(self._database, kind, key, "noted", value)
        row = Row(_id(self._rng), kind, key, value)
        changed = (row.id, self.world.wall_ms() + self._clock_off_ms, given)
        self._database.execute("UPDATE outbox SET id = ?, created_at = ? WHERE id = ?", changed)
        return row

    def kill(self) -> None:
        super().kill()
        self._database.close()


class SlowOutbox(SqliteOutbox):
    """The outbox of a relay, whose calls take time."""

    def __init__(self, aside: Aside[RelayCounts], path: Path, rng: random.Random) -> None:
        super().__init__(path)
        self._aside = aside
        self._rng = rng
        self._most = rng.choice(_ROWS)

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = connect(Path(self._path))
        return self._open

    def identity(self) -> str:
        self._takes(_CALLS_S)
        return super().identity()

    def after(self, seq: int, most: int) -> list[OutboxRow]:
        self._takes(_CALLS_S)
        return super().after(seq, min(most, self._most))

    def delete(self, up_to: int) -> None:
        self._takes(_CALLS_S)
        super().delete(up_to)

    def wait(self, seconds: float) -> None:
        self._takes(_LOOKS_S)

    def _takes(self, choices: Sequence[float]) -> None:
        seconds = self._rng.choice(choices)
        self._aside.ask(lambda: asyncio.sleep(seconds))


class RelayAside(OutboxRelay):
    """A relay with clients of a process of the world."""

    def __init__(
        self,
        aside: Aside[RelayCounts],
        process: ClientProcess,
        rng: random.Random,
        path: Path,
        *,
        name: str,
        keep: bool,
        producer_settings: Mapping[str, object],
    ) -> None:
        super().__init__(SlowOutbox(aside, path, rng), "", name=name, keep=keep, producer_settings=producer_settings)
        self._aside = aside
        self._process = process
        self._rng = rng

    def _consumer(self) -> Consumer:
        settings = {"group_id": self._name, "enable_auto_commit": False, "allow_auto_create_topics": False}
        return cast(Consumer, Blocking(self._aside, self._aside.ask(lambda: self._process.consumer(**settings))))

    def _producer(self) -> Producer:
        settings = {"transactional_id": self._transactional_id, **self._producer_settings}
        return cast(Producer, Blocking(self._aside, self._aside.ask(lambda: self._process.producer(**settings))))

    def _pause(self, seconds: float) -> None:
        self._aside.ask(lambda: asyncio.sleep(seconds))


class Relay(Incarnation):
    def __init__(self, name: str, world: World, path: Path, outbox: str, *, keep: bool) -> None:
        self._aside: Aside[RelayCounts] = Aside()
        super().__init__(name, world)
        settings = {
            **producer_settings(self._rng, world.scale),
            "transaction_timeout_ms": TRANSACTION_MS * world.scale,
        }
        self.relay = RelayAside(
            self._aside, self.process, self._rng, path, name=outbox, keep=keep, producer_settings=settings
        )

    async def _run(self) -> None:
        await self._aside.run(self.relay.run)

    def _ended_by(self, error: TidelogError) -> None:
        if error.code not in FENCED:
            super()._ended_by(error)

    def stop(self) -> None:
        super().stop()
        self.relay.stop()

    def kill(self) -> None:
        super().kill()
        self._aside.kill()
