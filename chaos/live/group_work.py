"""The workload of groups: members come, leave, are killed, stand still and are replaced, under faults of the cluster.

Two groups read the same topic: one rebalances eagerly, one cooperatively; a third of each one's members are static.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelog.chaos.live.group_member import GroupMember
from tidelog.chaos.live.hand import Aims
from tidelog.chaos.live.history_file import HistoryFile
from tidelog.chaos.live.recording import MEMBER_SETTINGS, Appender
from tidelog.chaos.live.workload import ClientTasks, Stage, finish_sending, partitions_of
from tidelog.model.ids import TopicPartition

TOPIC: Final = "shared"
PARTITIONS: Final = 6
EAGER: Final = "eager"
COOPERATIVE: Final = "cooperative"
PLACES: Final = 3
"""Members that a group has while nothing happens to it."""
MORE_MAX: Final = 2
"""Members that may come to these."""
CHURN_S: Final = (1.0, 6.0)
"""From one change of a group to the next."""
AWAY_S: Final = (0.1, 0.5, 3.0, 9.0)
"""How long a place stays empty: longer than a session, too."""
STILL_S: Final = (1.0, 4.0, 9.0)
"""How long a member stands still, or works on what one poll brought."""
_EAGER_STRATEGIES: Final = ("range", "roundrobin", "sticky")
_CHANGES: Final = ("kill", "kill", "leave", "replace", "more", "still", "stall")


class Group:
    """One group with its places: who dies or leaves is followed by another, under the same instance id if static."""

    def __init__(self, name: str, strategy: str, stage: Stage, tasks: ClientTasks) -> None:
        self.name = name
        self.stopping = False
        self._strategy = strategy
        self._bootstrap = stage.bootstrap
        self._history: HistoryFile = stage.history
        self._rng = rng = stage.rng(f"groups-{name}")
        self._tasks = tasks
        self._lives = 0
        self._instances: list[str | None] = [f"{name}-static", *[None] * (PLACES - 1)]
        self._members: list[GroupMember | None] = [None] * PLACES
        self._more: list[GroupMember] = []
        self._running: dict[GroupMember, asyncio.Task[None]] = {}
        self._session_ms = rng.choice((6_000, 8_000))
        self._settled = False
        self._done: dict[TopicPartition, int] = {}

    @property
    def worked_off(self) -> int:
        """Records, as far as behind the last of each partition that a member was given."""
        for member in self._running:
            for at, end in member.done.items():
                self._done[at] = max(self._done.get(at, 0), end)
        return sum(self._done.values())

    def begin(self) -> None:
        for place in range(PLACES):
            self._fill(place)

    async def churn(self) -> None:
        """Change the group now and then, until told to stop; then have it as it was."""
        while not self.stopping:
            await asyncio.sleep(self._rng.uniform(*CHURN_S))
            if not self.stopping:
                await self._change()
            self._tidy()
        for place, member in enumerate(self._members):
            if member is None or member.over:
                self._fill(place)

    def is_behind(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether anything is left to do: records, or partitions without one member. Writes down when nothing is."""
        assert self.worked_off >= 0
        living = [member for member in self._running if not member.over]
        owned = sorted(at for member in living for at in member.assignment)
        mine = [at for at in ends if at.topic == TOPIC]
        if owned != sorted(mine) or any(self._done.get(at, 0) < ends[at] for at in mine):
            return True
        if not self._settled:
            self._settled = True
            members = {member.name: [[at.topic, at.partition] for at in member.assignment] for member in living}
            self._history.write("settled", group=self.name, who="", topics=[TOPIC], members=members)
        return False

    async def close(self) -> None:
        for member in list(self._running):
            await self._kill(member)

    # --- changes ----------------------------------------------------------------------------------------

    async def _change(self) -> None:
        rng = self._rng
        place = rng.randrange(PLACES)
        member = self._members[place]
        if member is None or member.over:
            self._fill(place)
            return
        match rng.choice(_CHANGES):
            case "kill":
                await self._kill(member)
                await asyncio.sleep(rng.choice(AWAY_S))
                self._fill(place)
            case "leave":
                member.leave()
                await asyncio.sleep(rng.choice(AWAY_S))
                self._fill(place)
            case "replace":
                # A static one finds its place taken; to others it is one more that comes, and one that goes.
                self._fill(place)
                if self._instances[place] is None:
                    member.leave()
            case "more":
                if len(self._more) < MORE_MAX:
                    self._more.append(self._start(None))
                else:
                    self._more[0].leave()
            case "still":
                member.stand_still()
                await asyncio.sleep(rng.choice(STILL_S))
                member.go_on()
            case _:
                member.stall(rng.choice(STILL_S))

    def _fill(self, place: int) -> None:
        self._members[place] = self._start(self._instances[place])

    def _start(self, instance: str | None) -> GroupMember:
        rng = self._rng
        self._lives += 1
        settings: dict[str, Any] = {
            **MEMBER_SETTINGS,
            "group_instance_id": instance,
            "partition_assignment_strategy": self._strategy,
            "session_timeout_ms": self._session_ms,
            "heartbeat_interval_ms": rng.choice((500, 1_500)),
            "max_poll_interval_ms": 7_000,
            "auto_commit_interval_ms": rng.choice((300, 1_500)),
        }
        name = f"{self.name}.{self._lives}"
        member = GroupMember(
            name, self._bootstrap, self.name, [TOPIC], self._history, random.Random(rng.random()), settings
        )
        self._running[member] = self._tasks.start(name, member.run())
        return member

    async def _kill(self, member: GroupMember) -> None:
        task = self._running[member]
        task.cancel()
        await asyncio.wait([task])
        await member.kill()

    def _tidy(self) -> None:
        """Forget who is gone."""
        assert self.worked_off >= 0
        self._more = [member for member in self._more if not member.over]
        for member in [member for member in self._running if member.over]:
            del self._running[member]


class GroupWork:
    """Producers to one topic, and two groups that read it."""

    topics: Mapping[str, int] = {TOPIC: PARTITIONS}
    derived: Mapping[str, str] = {}

    def __init__(self, stage: Stage) -> None:
        places = partitions_of(self.topics)
        self.aims = Aims(places, stage.rng("groups").choice((EAGER, COOPERATIVE)))
        self._tasks = ClientTasks(stage.history)
        eager = stage.rng("groups-strategy").choice(_EAGER_STRATEGIES)
        self._groups: Sequence[Group] = [
            Group(EAGER, eager, stage, self._tasks),
            Group(COOPERATIVE, "cooperative-sticky", stage, self._tasks),
        ]
        names = ("gp0", "gp1")
        self._appenders = [
            Appender(
                name,
                stage.bootstrap,
                places,
                stage.history,
                stage.rng(f"groups-{name}"),
                stage.per_s / len(names),
                stage.budget,
            )
            for name in names
        ]
        self._sending: list[asyncio.Task[None]] = []
        self._churning: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        for appender in self._appenders:
            self._sending.append(self._tasks.start(appender.name, appender.run()))
        for group in self._groups:
            group.begin()
            self._churning.append(self._tasks.start(f"churn of {group.name}", group.churn()))

    def heard(self) -> Mapping[str, int]:
        appended = {appender.name: appender.acknowledged for appender in self._appenders}
        return {**appended, **{group.name: group.worked_off for group in self._groups}}

    def calm(self) -> None:
        for group in self._groups:
            group.stopping = True

    async def finish(self, bound_s: float) -> None:
        await finish_sending(self._appenders, self._sending, bound_s)
        await asyncio.wait(self._churning, timeout=bound_s)

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        return [group.name for group in self._groups if group.is_behind(ends)]

    async def close(self) -> None:
        for task in self._churning:
            task.cancel()
        for group in self._groups:
            await group.close()
        await self._tasks.end()
        for appender in self._appenders:
            await appender.abandon()
