"""A consumer group working in a simulated cluster: its members join, leave, die and pause; its topics grow."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tidelog.chaos.checkers.groups import GroupJudge
from tidelog.chaos.simulated.watch.groups import GroupWatch
from tidelog.chaos.simulated.workloads.group_prober import NAME as PROBER
from tidelog.chaos.simulated.workloads.group_prober import GroupProber
from tidelog.chaos.workloads.groups import Group
from tidelog.client.admin.types import NewTopic
from tidelog.client.errors import TidelogError
from tidelog.model.ids import NodeId, TopicPartition

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

GROUP: Final = "workers"
PARTITIONS_MAX: Final = 6
TOPICS_MAX: Final = 3
STEADY_S: Final = 3.0
"""A group is stable after this long without a change."""
_STRATEGIES: Final = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    ("cooperative-sticky",),
    ("cooperative-sticky",),
    ("range", "cooperative-sticky"),
)


class GroupWork:
    """The group of a run. Its kind follows from the seed alone."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._cluster = sim.cluster
        self._rng = rng = random.Random(f"group-{sim.world.seed}")
        self._kind = self._settings()
        self._static = rng.choice((0.0, 0.0, 0.5, 1.0))
        """The share of members that are static."""
        self._by_pattern = rng.random() < 0.4
        self._first = rng.choice((2, 3, 4))
        self.watch = self._watch(sim)
        self._group = group = Group(
            sim.clients,
            rng,
            GROUP,
            self.watch.judge,
            f"{sim.topic}.*" if self._by_pattern else (sim.topic,),
            self._next_settings,
            prefix="m",
            polls=(3, 500),
            works_s=(0.0, 0.02, 0.3),
            is_static=lambda slot: rng.random() < self._static,
        )
        self._prober: GroupProber | None = None
        injector = sim.injector
        injector.roles |= {
            "coordinator": lambda: self.watch.coordinator,
            "coordinator-next": lambda: next(iter(self.watch.coordinator_followers), None),
            "coordinator-last": lambda: next(reversed(self.watch.coordinator_followers), None),
        }
        injector.acts |= {
            "kill-member": group.kill,
            "pause-member": group.pause,
            "leave": group.leave,
            "join": group.join,
            "replace-member": lambda number: group.second(number, 0.0),
            "grow-topic": self._grow,
            "new-topic": self._new_topic,
            "at-coordinator-loaded": self._at_coordinator_loaded,
        }

    def _settings(self) -> dict[str, Any]:
        """Return the settings of every member, which follow from the kind of group."""
        return {"partition_assignment_strategy": self._rng.choice(_STRATEGIES)}

    def _next_settings(self) -> dict[str, Any]:
        """Return the settings of the next member."""
        return self._kind

    def _watch(self, sim: Simulation) -> GroupWatch:
        return GroupWatch(sim.world, GROUP, self._generation_of, self._is_member, GroupJudge())

    def _probe(self) -> GroupProber:
        return GroupProber(self._sim, self.watch, GROUP)

    @staticmethod
    def _is_member(client: str) -> bool:
        return client != PROBER

    @property
    def operations(self) -> int:
        return sum(member.operations for member in self._group.members)

    @property
    def events(self) -> Counter[str]:
        everyone = self._group.members
        return self.watch.events + Counter(
            {
                "redelivered": self.watch.judge.redelivered,
                "lost-partitions": sum(member.lost for member in everyone),
                "fenced-member": sum(member.fenced for member in everyone),
                "cooperative": int(self._kind.get("partition_assignment_strategy") == ("cooperative-sticky",)),
                "forged-commit": 0 if self._prober is None else self._prober.refused,
            }
        )

    def _generation_of(self, client: str) -> int | None:
        return self.watch.judge.newest_generation if client == PROBER else self._group.generation_of(client)

    async def begin(self) -> None:
        self._sim.world.note(f"the group: {self._kind}, static {self._static}, by pattern {self._by_pattern}")
        for _ in range(self._first):
            self._group.add()
        self._prober = self._probe()

    # --- faults -----------------------------------------------------------------------------------------

    def _at_coordinator_loaded(self, within_s: float, *acts: str | float) -> bool:
        """When another node than the current one has loaded the group and serves it, act on that node, ``n``."""
        before = self.watch.coordinator

        def involved() -> dict[str, NodeId | None]:
            serving = [node for node in self.watch.serving() if node != before]
            return {"n": serving[0]} if serving else {}

        self._sim.injector.wait_for("at-coordinator-loaded", involved, within_s, acts)
        return True

    def _grow(self) -> bool:
        topics = self._sim.topics
        topic = self._rng.choice(sorted(topics))
        if topics[topic] >= PARTITIONS_MAX:
            return False
        self._administer(topic, topics[topic] + 1, is_new=False)
        return True

    def _new_topic(self) -> bool:
        topics = self._sim.topics
        if not self._by_pattern or len(topics) >= TOPICS_MAX:
            return False
        self._administer(f"{self._sim.topic}-{len(topics)}", 2, is_new=True)
        return True

    def _administer(self, topic: str, partitions: int, *, is_new: bool) -> None:
        sim = self._sim

        async def administer() -> None:
            try:
                async with self._cluster.admin() as admin:
                    if is_new:
                        await admin.create_topics([NewTopic(topic, partitions, sim.replication_factor)], timeout=5)
                    else:
                        await admin.create_partitions({topic: partitions}, timeout=5)
            except TidelogError as error:
                sim.world.note(f"{topic}: {type(error).__name__}")
            found = self._cluster.image.topic(topic)
            if found is not None:
                sim.grow(topic, len(found.partitions))

        self._sim.injector.run(administer())

    # --- the end ----------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        sim, cluster, judge = self._sim, self._cluster, self.watch.judge
        assert self._prober is not None
        await self._prober.finish()
        for topic in cluster.image.topics.values():  # an administrator may not have learned that it was done
            if topic.name.startswith(sim.topic):
                sim.topics[topic.name] = len(topic.partitions)
        await self._steady(bound_s)
        ends = self._ends()
        try:
            await cluster.wait_for(lambda: not judge.all_delivered(ends), "everything delivered", bound_s)
        except TimeoutError:
            for text in judge.all_delivered(ends):
                sim.world.violated(text)
        for text in judge.settled(self._group.assignments(), ends):
            sim.world.violated(text)
        await self._leave(bound_s)
        await self._judge_committed(ends)

    async def _leave(self, bound_s: float) -> None:
        self._group.stop()
        await self._group.ended(bound_s)

    async def _steady(self, bound_s: float) -> None:
        """Wait until the group no longer changes, and each partition has a member."""
        loop = self._cluster.loop
        until, since, before = loop.now + bound_s, loop.now, ""
        while True:
            standing = self._standing()
            if standing != before:
                since, before = loop.now, standing
            elif loop.now - since >= STEADY_S and self._group.is_whole(self._ends()):
                self._sim.world.note(f"the group is stable: {standing}")
                return
            if loop.now > until:
                raise TimeoutError(f"expected within {bound_s:g} s: a stable group; found {standing}")
            await asyncio.sleep(0.1)

    def _standing(self) -> str:
        return "; ".join(
            f"{member.name} {member.believed} " + " ".join(map(str, member.assignment)) for member in self._group.living
        )

    def _ends(self) -> dict[TopicPartition, int]:
        ends = self._sim.observer.log_ends()
        return {at: end for at, end in ends.items() if at.topic in self._sim.topics}

    async def _judge_committed(self, ends: dict[TopicPartition, int]) -> None:
        """Judge that members that left gracefully have committed everything."""
        async with self._cluster.admin() as admin:
            committed = await admin.list_consumer_group_offsets(GROUP, sorted(ends), timeout=10)
        now = self._cluster.loop.now
        for at, end in sorted(ends.items()):
            found = committed.get(at)
            offset = -1 if found is None else found.offset
            for text in self.watch.judge.committed_read("the question at the end", 1 << 30, at, offset, now, now):
                self._sim.world.violated(text)
            if offset != end and end > 0:
                self._sim.world.violated(f"committed: all members left in good order; {at} is at {offset} of {end}")

    def judge(self) -> None:
        """Do nothing: everything was judged as it happened."""

    async def finish(self) -> None:
        self._group.kill_all()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return self._group.failures()
