"""Programs with a database and its outbox, and relays of it, on a simulated cluster."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.chaos.checkers.patterns.outbox import OutboxJudge, Sent
from tidelog.chaos.simulated.workloads.patterns.program_work import ProgramWork
from tidelog.chaos.workloads.incarnation import Roster
from tidelog.chaos.workloads.outbox import TRANSACTION_MS, Relay, Shop, create
from tidelog.client.record import ConsumerRecord

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

NAME: Final = "shop"
KINDS: Final = {"order": 2, "mail": 1}
SHOPS: Final = ("s0", "s1")


def topic_of(kind: str) -> str:
    return f"outbox.event.{kind}"


class OutboxWork(ProgramWork[Relay]):
    def __init__(self, sim: Simulation) -> None:
        topics = {topic_of(kind): count for kind, count in KINDS.items()}
        super().__init__(sim, "outbox", ("r",), topics, TRANSACTION_MS / 1_000)
        self._judge = OutboxJudge(topic_of)
        self._keep = self.rng.random() < 0.3
        self._folder = tempfile.TemporaryDirectory(prefix="outbox")
        self._path = Path(self._folder.name) / "shop.db"
        create(self._path, self.rng)
        self._shops: Roster[Shop] = Roster(sim.clients, self.rng, SHOPS, self._shop)

    def _program(self, slot: str, name: str) -> Relay:
        return Relay(name, self.sim.clients, self._path, NAME, keep=self._keep)

    def _shop(self, slot: str, name: str) -> Shop:
        judge = self._judge
        return Shop(
            name, self.sim.clients, self._path, list(KINDS), lambda row: judge.committed.__setitem__(row.id, row)
        )

    def _got(self, record: ConsumerRecord) -> None:
        told = dict(record.headers)
        row_id = (told.get("id") or b"").decode()
        place = (record.topic, record.partition, record.offset)
        self._judge.sent.append(Sent(row_id, *place, record.key, record.value))

    def _roster(self, number: int) -> Roster[Relay] | Roster[Shop]:
        return self.roster if number % 3 else self._shops

    def _kill(self, number: int, seconds: float) -> bool:
        return self._roster(number).kill(number, seconds)

    def _pause(self, number: int, seconds: float) -> bool:
        return self._roster(number).pause(number, seconds)

    @property
    def operations(self) -> int:
        shops = [each for each in self._shops.everyone if isinstance(each, Shop)]
        return sum(shop.transactions for shop in shops) + len(self._judge.sent)

    @property
    def events(self) -> Counter[str]:
        relays = [each for each in self.roster.everyone if isinstance(each, Relay)]
        own = {
            "sent": len(self._judge.sent),
            "aborted": sum(relay.relay.counts.aborts for relay in relays),
            "kept": int(self._keep),
        }
        return super().events + Counter(own)

    async def begin(self) -> None:
        sim = self.sim
        for topic, count in {f"outbox.{NAME}": 1, **self._topics}.items():
            await sim.cluster.create_topic(topic, count, sim.replication_factor)
        self._shops.begin()
        self._begin()

    async def settle(self, bound_s: float) -> None:
        self._shops.stop()
        await self._shops.ended(bound_s)
        await self._over(lambda: self._judge.missing()[:5], "every row sent", bound_s)
        await asyncio.sleep(2.0)  # for what should not come

    def judge(self) -> None:
        for text in self._judge.judge()[:20]:
            self.sim.world.violated(text)

    async def finish(self) -> None:
        self._shops.kill_all()
        await super().finish()
        self._folder.cleanup()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [*super().failures(), *self._shops.failures()]
