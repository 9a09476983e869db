"""One life of one member of a simulated consumer group: the SDK's consumer in a process of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.chaos.checkers.groups import GroupJudge
from tidelog.chaos.checkers.history import Polled, Positioned
from tidelog.client.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    RebalanceInProgressError,
    RequestTimedOutError,
    RetriableCommitFailedError,
    TidelogError,
)
from tidelog.client.group_types import ConsumerRebalanceListener
from tidelog.client.metadata import MetadataCache
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.aio import Consumer
    from tidelog.chaos.sim.simulation import Simulation

POLL_S: Final = 1.0
ASKS: Final = 0.3
"""How often a member asks what is committed, by rounds."""
COMMITS: Final = ("auto", "auto", "sync", "async")
LAST_COMMITS: Final = 8
"""How often a member that commits by itself tries to, before it leaves."""


class GroupMember(ConsumerRebalanceListener):
    """Polls, works on what it got, commits; until it is told to leave, or dies."""

    def __init__(
        self,
        name: str,
        sim: Simulation,
        judge: GroupJudge,
        topics: Sequence[str] | str,
        settings: dict[str, Any],
        ended: Callable[[GroupMember], None],
    ) -> None:
        """``topics``: a pattern where it is one text."""
        self.name = name
        self.instance_id: str | None = settings.get("group_instance_id")
        self.operations = 0
        self.leaving = False
        self.closed = False
        self.fenced = False
        self.generation = -1
        self.lost = 0
        """How often partitions were taken from it."""
        self._sim = sim
        self._cluster = sim.cluster
        self._judge = judge
        self._topics = topics
        self._ended = ended
        self._rng = rng = random.Random(sim.rng.random())
        self._commits = rng.choice(COMMITS)
        self._work_s = rng.choice((0.0, 0.02, 0.3))
        self._given: list[tuple[TopicPartition, int, int]] = []
        """What the last poll brought: partition, first and last offset."""
        self.process = sim.cluster.client_process(name)
        self.consumer: Consumer = sim.cluster.consumer(
            self.process, enable_auto_commit=self._commits == "auto", **settings
        )
        self._task = sim.cluster.run_in(self.process, self._run())

    @property
    def known(self) -> MetadataCache:
        """What the client knows of the cluster."""
        return self.consumer._core.cluster.cache

    @property
    def at_work(self) -> bool:
        """Whether it polls: neither over nor on its way out, nor paused."""
        return not (self.leaving or self._task.done() or self.process.paused)

    async def _run(self) -> None:
        consumer = self.consumer
        await consumer.start()
        if isinstance(self._topics, str):
            consumer.subscribe(pattern=self._topics, listener=self)
        else:
            consumer.subscribe(self._topics, listener=self)
        try:
            while not self.leaving:
                await self._round()
            if self._commits != "auto":
                await self._commit_the_rest()
            await consumer.close()
            self.closed = True
        except FencedInstanceIdError:
            self.fenced = True
            await consumer.close()
        finally:
            self._judge.gone(self.name)
            self._ended(self)

    async def _round(self) -> None:
        self.operations += 1
        began = self._cluster.loop.now
        records = await self.consumer.poll(POLL_S)
        found: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        for record in records:
            found.setdefault(record.topic_partition, []).append((record.offset, record.value or b""))
        for at, got in found.items():
            self._given.append((at, got[0][0], got[-1][0]))
            self._tell(self._judge.handed_out(self.name, at, got[0][0], got[-1][0]))
            self._sim.history.reads.append(Polled(self.name, at, got, began, self._cluster.loop.now))
        if self._work_s:
            await asyncio.sleep(self._rng.uniform(0, 2 * self._work_s))
        self._work_done()
        if found and self._commits == "async":
            self.consumer.commit_async()
        elif found and self._commits == "sync":
            await self._commit()
        if self._rng.random() < ASKS:
            await self._ask_committed()

    async def _commit_the_rest(self) -> None:
        """As a careful application leaves: what a rebalance kept it from committing may be the last there is."""
        for _ in range(LAST_COMMITS):
            if await self._commit():
                return
            await self._round()

    async def _commit(self) -> bool:
        """Whether it was done."""
        try:
            await self.consumer.commit(timeout=3.0)
        except (
            CommitFailedError,
            RebalanceInProgressError,
            RequestTimedOutError,
            RetriableCommitFailedError,
        ) as error:
            self._sim.world.note(f"{self.name} commits: {type(error).__name__}")
            return False
        return True

    async def _ask_committed(self) -> None:
        """Ask what is committed; the answer is judged where the coordinator gives it."""
        try:
            await self.consumer.committed(sorted(self.consumer.assignment()), timeout=0.5)
        except TidelogError as error:
            self._sim.world.note(f"{self.name} asks: {type(error).__name__}")

    def _work_done(self) -> None:
        for at, first, last in self._given:
            self._judge.worked_off(at, first, last)
        self._given.clear()

    # --- what the consumer tells ------------------------------------------------------------------------

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.generation = self.consumer.group_metadata().generation_id
        owned = sorted(self.consumer.assignment())
        self._judge.owns(self.name, self.generation, owned)
        for at in partitions:
            self._sim.history.reads.append(Positioned(self.name, at))
        self._sim.world.note(f"{self.name} has {_listed(owned)} in generation {self.generation}")

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._judge.gave_up(self.name, partitions)
        self._sim.world.note(f"{self.name} gives up {_listed(partitions)}")

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.lost += 1
        self._judge.gave_up(self.name, partitions)
        self._sim.world.note(f"{self.name} has lost {_listed(partitions)}")

    def _tell(self, violations: list[str]) -> None:
        for text in violations:
            self._sim.world.violated(text)

    # --- its end ----------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the member's process."""
        self._task.cancel()
        self._cluster.fabric.drop_node(self.name)
        # A process that is gone for good: what is left of it never runs again.
        self._cluster.loop.pause(self.process)
        self._judge.gone(self.name)

    async def leave(self) -> None:
        """Let it close after the round that is under way."""
        self.leaving = True
        await asyncio.wait([self._task])

    def failure(self) -> BaseException | None:
        """What ended the member, if anything but the run did."""
        if not self._task.done() or self._task.cancelled():
            return None
        error = self._task.exception()
        return None if isinstance(error, TidelogError) and self.leaving else error


def _listed(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, partitions)) or "nothing"
