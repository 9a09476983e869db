"""A group whose handlers raise, in a simulated cluster: retries come again through a delay topic, or end as dead
letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from tidelog.chaos.checkers.patterns.retries import Found, Place, RetryJudge, TaskSend, Topics, dies
from tidelog.chaos.simulated.workloads.patterns.program_work import ProgramWork
from tidelog.chaos.workloads.retries import ATTEMPTS, TRANSACTION_MS, TaskWriter, Worker, parsed
from tidelog.chaos.workloads.transform import member_settings
from tidelog.chaos.workloads.world import partitions_of
from tidelog.client.record import ConsumerRecord

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

TOPICS: Final = Topics("tasks", "tasks-again", "dead-tasks")
PARTITIONS: Final = {TOPICS.tasks: 2, TOPICS.back: 1, TOPICS.letters: 1}
LATER: Final = "later"
UNDELIVERED: Final = "undelivered"
GROUP: Final = "workers"
WORKERS: Final = ("w0", "w1")
CONFIG: Final = {
    "delay.enable": "true",
    "delay.target": TOPICS.back,
    "delay.dead.letter.topic": UNDELIVERED,
    "message.timestamp.type": "LogAppendTime",
}


class RetryWork(ProgramWork[Worker]):
    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim, "retries", WORKERS, {**PARTITIONS, UNDELIVERED: 1}, TRANSACTION_MS / 1_000)
        self._judge = RetryJudge(TOPICS, ATTEMPTS, GROUP)
        self._undelivered: list[ConsumerRecord] = []
        sim.injector.roles["delay-leader"] = lambda: sim.cluster.leader_of(LATER, 0)

    def _program(self, slot: str, name: str) -> Worker:
        clients = self.sim.clients
        return Worker(
            name,
            clients,
            topics=TOPICS,
            through=LATER,
            group=GROUP,
            settings=member_settings(clients.scale),
            told=self._judge.calls.append,
        )

    def _got(self, record: ConsumerRecord) -> None:
        place = Place(*record.topic_partition, record.offset)
        if record.topic == UNDELIVERED:
            self._undelivered.append(record)
        else:
            self._judge.found.append(Found(parsed(record.value or b"").mark, place, record.key, record.headers))

    @property
    def operations(self) -> int:
        return self._writer.operations + len(self._judge.calls)

    @property
    def events(self) -> Counter[str]:
        judge = self._judge
        calls = Counter(call.place for call in judge.calls)
        letters = {found.mark for found in judge.found if found.place.topic == TOPICS.letters}
        ends = Counter(f"dead-{dies(judge.sends[mark].task, ATTEMPTS)}" for mark in letters if mark in judge.sends)
        return (
            super().events
            + ends
            + Counter(
                {
                    "done": sum(call.returned for call in judge.calls),
                    "came-again": sum(found.place.topic == TOPICS.back for found in judge.found),
                    "handled-again": sum(count > 1 for count in calls.values()),
                }
            )
        )

    async def begin(self) -> None:
        sim = self.sim
        for topic, count in PARTITIONS.items():
            config = {} if topic == TOPICS.tasks else {"delay.sources": LATER}
            await sim.cluster.create_topic(topic, count, sim.replication_factor, config)
        await sim.cluster.create_topic(UNDELIVERED, 1, sim.replication_factor, {"delay.sources": LATER})
        await sim.cluster.create_topic(LATER, 1, sim.replication_factor, CONFIG)
        tasks = partitions_of({TOPICS.tasks: PARTITIONS[TOPICS.tasks]})
        self._writer = TaskWriter("tasks", sim.clients, tasks, self._sent)
        self._others.append(self._writer)
        self._begin()

    def _sent(self, send: TaskSend) -> None:
        self._judge.sends[send.task.mark] = send

    async def settle(self, bound_s: float) -> None:
        cluster, began = self.sim.cluster, self.sim.cluster.loop.now
        await cluster.wait_for(lambda: self._writer.acknowledged_s > began, "the writer heard", bound_s)
        self._writer.stop()
        await asyncio.wait([self._writer.task])
        await self._over(self._missing, "every task at its end", bound_s)
        await asyncio.sleep(2.0)  # for what should not come

    def _missing(self) -> list[bytes]:
        return sorted(self._judge.missing())[:5]

    def judge(self) -> None:
        found = self._judge.judge()
        found += [f"retries: {record.value!r} could not be delivered" for record in self._undelivered]
        for text in found[:20]:
            self.sim.world.violated(text)
