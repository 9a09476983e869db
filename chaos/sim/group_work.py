"""A consumer group at work in a simulated cluster: its members come, go, die, stand still; its topics grow."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tidelog.chaos.sim.group_member import GroupMember
from tidelog.chaos.sim.group_prober import NAME as PROBER
from tidelog.chaos.sim.group_prober import GroupProber
from tidelog.chaos.sim.group_watch import GroupWatch
from tidelog.client.admin_types import NewTopic
from tidelog.client.errors import TidelogError
from tidelog.model.ids import NodeId, TopicPartition

if TYPE_CHECKING:
    from tidelog.chaos.sim.simulation import Simulation

GROUP: Final = "workers"
MEMBERS_MAX: Final = 6
PARTITIONS_MAX: Final = 6
TOPICS_MAX: Final = 3
STEADY_S: Final = 3.0
"""A group is stable when nothing of it has changed for so long."""
_STRATEGIES: Final = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    ("cooperative-sticky",),
    ("cooperative-sticky",),
    ("range", "cooperative-sticky"),
)


class GroupWork:
    """The group of a run. What kind of group it is follows from the seed alone."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._cluster = sim.cluster
        self._rng = rng = random.Random(f"group-{sim.world.seed}")
        self._strategy = rng.choice(_STRATEGIES)
        self._static = rng.choice((0.0, 0.0, 0.5, 1.0))
        """The share of members that are static."""
        self._by_pattern = rng.random() < 0.4
        self._first = rng.choice((2, 3, 4))
        self._members: list[GroupMember | None] = []
        """By place: a member's successor has its place, and its instance id."""
        self._instances: list[str | None] = []
        self._others: list[GroupMember] = []
        """Members that have ended, or are on their way out."""
        self._lives = 0
        self.watch = GroupWatch(sim.world, GROUP, self._generation_of, lambda client: client != PROBER)
        self._prober: GroupProber | None = None
        hand = sim.hand
        hand.roles |= {
            "coordinator": lambda: self.watch.coordinator,
            "coordinator-next": lambda: next(iter(self.watch.coordinator_followers), None),
            "coordinator-last": lambda: next(reversed(self.watch.coordinator_followers), None),
        }
        hand.acts |= {
            "kill-member": self._kill,
            "pause-member": self._pause,
            "leave": self._leave,
            "join": self._join,
            "replace-member": self._replace,
            "grow-topic": self._grow,
            "new-topic": self._new_topic,
            "at-coordinator-loaded": self._at_coordinator_loaded,
        }

    @property
    def operations(self) -> int:
        return sum(member.operations for member in self._everyone)

    @property
    def events(self) -> Counter[str]:
        everyone = self._everyone
        return self.watch.events + Counter(
            {
                "redelivered": self.watch.judge.redelivered,
                "lost-partitions": sum(member.lost for member in everyone),
                "fenced-member": sum(member.fenced for member in everyone),
                "cooperative": int(self._strategy == ("cooperative-sticky",)),
                "forged-commit": 0 if self._prober is None else self._prober.refused,
            }
        )

    @property
    def _everyone(self) -> list[GroupMember]:
        return [*(member for member in self._members if member is not None), *self._others]

    def _generation_of(self, client: str) -> int | None:
        if client == PROBER:
            return self.watch.judge.newest_generation
        for member in self._everyone:
            if member.name == client:
                return member.consumer.group_metadata().generation_id
        return None

    # --- members ----------------------------------------------------------------------------------------

    async def begin(self) -> None:
        self._sim.world.note(
            f"the group: {'/'.join(self._strategy)}, static {self._static}, by pattern {self._by_pattern}"
        )
        for _ in range(self._first):
            self._add()
        self._prober = GroupProber(self._sim, self.watch, GROUP)

    def _add(self) -> None:
        place = len(self._members)
        self._instances.append(f"i{place}" if self._rng.random() < self._static else None)
        self._members.append(None)
        self._fill(place)

    def _fill(self, place: int) -> None:
        """Start a member in a place."""
        self._members[place] = self._start(self._instances[place])

    def _start(self, instance_id: str | None) -> GroupMember:
        rng = self._rng
        self._lives += 1
        settings: dict[str, Any] = {
            "group_id": GROUP,
            "group_instance_id": instance_id,
            "partition_assignment_strategy": self._strategy,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": 3_000,
            "heartbeat_interval_ms": rng.choice((300, 800)),
            "max_poll_interval_ms": 5_000,
            "auto_commit_interval_ms": rng.choice((300, 1_500, 60_000)),
            "max_poll_records": rng.choice((3, 500)),
            "request_timeout_ms": 3_000,
            "default_api_timeout_ms": 10_000,
            "metadata_max_age_ms": 2_000,
            "fetch_max_wait_ms": 500,
        }
        topics: str | tuple[str, ...] = f"{self._sim.topic}.*" if self._by_pattern else (self._sim.topic,)
        member = GroupMember(f"m{self._lives}", self._sim, self.watch.judge, topics, settings, self._gone)
        self._sim.observer.client(member.name, member.known)
        return member

    def _gone(self, member: GroupMember) -> None:
        """A member has ended by itself: by a word of ours, or because another one took its instance id."""
        if member in self._members:
            place = self._members.index(member)
            self._members[place] = None
            self._others.append(member)
            if member.fenced:
                # A join of its dead predecessor, or of one that it replaced, was on its way for long.
                self._sim.hand.later(0.5, lambda: self._refill(place))

    def _at(self, number: int) -> tuple[int, GroupMember] | None:
        """A place with a member that is at work."""
        taken = [(n, m) for n, m in enumerate(self._members) if m is not None and m.at_work]
        return taken[number % len(taken)] if taken else None

    def _refill(self, place: int) -> None:
        if self._members[place] is None:
            self._fill(place)

    # --- faults -----------------------------------------------------------------------------------------

    def _kill(self, number: int, seconds: float) -> bool:
        """End a member; another one begins in its place later, or never (0) where others are left.

        Not so with a static member: who has its name may be another, that it was to replace.
        """
        found = self._at(number)
        if found is None:
            return False
        place, member = found
        member.kill()
        self._members[place] = None
        self._others.append(member)
        if seconds or self._instances[place] is not None or not any(self._members):
            self._sim.hand.later(seconds or 1.0, lambda: self._refill(place))
        return True

    def _pause(self, number: int, seconds: float) -> bool:
        found = self._at(number)
        if found is None:
            return False
        _, member = found
        self._cluster.loop.pause(member.process)

        def resume() -> None:
            if member in self._members:
                self._cluster.loop.resume(member.process)

        self._sim.hand.later(seconds, resume)
        return True

    def _leave(self, number: int, seconds: float) -> bool:
        found = self._at(number)
        if found is None:
            return False
        place, member = found
        member.leaving = True
        self._sim.hand.later(seconds, lambda: self._come_back(place, member))
        return True

    def _come_back(self, place: int, member: GroupMember) -> None:
        if self._members[place] is member:  # still on its way out
            self._members[place] = None
            self._others.append(member)
        self._refill(place)

    def _join(self) -> bool:
        if len(self._members) >= MEMBERS_MAX:
            return False
        self._add()
        return True

    def _replace(self, number: int) -> bool:
        """Start another process with a static member's instance id while the first still runs."""
        found = self._at(number)
        if found is None or self._instances[found[0]] is None:
            return False
        place, member = found
        self._others.append(member)
        self._fill(place)
        return True

    def _at_coordinator_loaded(self, within_s: float, *acts: str | float) -> bool:
        """When another node than now has loaded the group and serves it, do something to it, ``n``."""
        before = self.watch.coordinator

        def involved() -> dict[str, NodeId | None]:
            serving = [node for node in self.watch.serving() if node != before]
            return {"n": serving[0]} if serving else {}

        self._sim.hand.wait_for("at-coordinator-loaded", involved, within_s, acts)
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

        self._sim.hand.run(administer())

    # --- the end ----------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        sim, cluster, judge = self._sim, self._cluster, self.watch.judge
        assert self._prober is not None
        await self._prober.finish()
        for topic in cluster.image.topics.values():  # an administrator may not have heard that it was done
            if topic.name.startswith(sim.topic):
                sim.topics[topic.name] = len(topic.partitions)
        await self._steady(bound_s)
        ends = self._ends()
        try:
            await cluster.wait_for(lambda: not judge.all_delivered(ends), "everything delivered", bound_s)
        except TimeoutError:
            for text in judge.all_delivered(ends):
                sim.world.violated(text)
        for text in judge.settled(self._assignments(), ends):
            sim.world.violated(text)
        await asyncio.gather(*(member.leave() for member in self._members if member is not None))
        await self._judge_committed(ends)

    async def _steady(self, bound_s: float) -> None:
        """Wait until nothing of the group changes any more, and each partition has a member."""
        loop = self._cluster.loop
        until, since, before = loop.now + bound_s, loop.now, ""
        while True:
            standing = self._standing()
            if standing != before:
                since, before = loop.now, standing
            elif loop.now - since >= STEADY_S and self._is_whole():
                self._sim.world.note(f"the group is stable: {standing}")
                return
            if loop.now > until:
                raise TimeoutError(f"expected within {bound_s:g} s: a stable group; found {standing}")
            await asyncio.sleep(0.1)

    def _is_whole(self) -> bool:
        members = [member for member in self._members if member is not None]
        generations = {member.consumer.group_metadata().generation_id for member in members}
        owned = [at for partitions in self._assignments().values() for at in partitions]
        return len(generations) == 1 and len(owned) == len(set(owned)) and set(owned) == set(self._ends())

    def _standing(self) -> str:
        return "; ".join(
            f"{member.name} {member.consumer.group_metadata().generation_id} "
            + " ".join(map(str, sorted(member.consumer.assignment())))
            for member in self._members
            if member is not None
        )

    def _assignments(self) -> dict[str, list[TopicPartition]]:
        return {member.name: sorted(member.consumer.assignment()) for member in self._members if member is not None}

    def _ends(self) -> dict[TopicPartition, int]:
        ends = self._sim.observer.log_ends()
        return {at: end for at, end in ends.items() if at.topic in self._sim.topics}

    async def _judge_committed(self, ends: dict[TopicPartition, int]) -> None:
        """Members that leave in good order have committed everything."""
        async with self._cluster.admin() as admin:
            committed = await admin.list_consumer_group_offsets(GROUP, sorted(ends), timeout=10)
        now = self._cluster.loop.now
        for at, end in sorted(ends.items()):
            found = committed.get(at)
            offset = -1 if found is None else found.offset
            for text in self.watch.judge.committed_read("whoever asks at the end", 1 << 30, at, offset, now, now):
                self._sim.world.violated(text)
            if offset != end and end > 0:
                self._sim.world.violated(f"committed: all members left in good order; {at} is at {offset} of {end}")

    def judge(self) -> None:
        """Everything was judged as it happened."""

    async def finish(self) -> None:
        for member in self._everyone:
            if member.failure() is None and not member.closed:
                member.kill()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [(member.name, member.failure()) for member in self._everyone]
