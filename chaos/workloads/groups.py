"""Consumer groups: members that come, go, die, pause and are replaced, each an SDK consumer in its own process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from tidelog.aio import Consumer
from tidelog.chaos.checkers.history import Polled, Positioned, by_partition
from tidelog.chaos.workloads.incarnation import Incarnation, Roster
from tidelog.chaos.workloads.world import World
from tidelog.client.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    RebalanceInProgressError,
    RequestTimedOutError,
    RetriableCommitFailedError,
    TidelogError,
    exception_for,
)
from tidelog.client.group_types import ConsumerRebalanceListener
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, TopicPartition

POLL_S: Final = 1.0
ASKS: Final = 0.3
"""How often a member asks for committed offsets, per round."""
COMMITS: Final = ("auto", "auto", "sync", "async")
LAST_COMMITS: Final = 8
"""How often a member with its own commits tries to commit before it leaves."""
MEMBERS_MAX: Final = 6
MAX_POLL_INTERVAL_MS: Final = 5_000
UnreleasedInstanceIdError: Final = type(exception_for(ErrorCode.UNRELEASED_INSTANCE_ID))


class Listener(Protocol):
    """Observes what members do: the judge of groups, or a writer of histories that are judged later."""

    def owns(self, member: str, generation: int, partitions: Iterable[TopicPartition]) -> None: ...

    def gave_up(self, member: str, partitions: Iterable[TopicPartition]) -> None: ...

    def gone(self, member: str) -> None: ...

    def handed_out(self, member: str, partition: TopicPartition, first: int, last: int) -> list[str]: ...

    def worked_off(self, partition: TopicPartition, first: int, last: int) -> None: ...


class GroupMember(Incarnation, ConsumerRebalanceListener):
    """Polls, works on the records, commits, until it is asked to stop or dies."""

    def __init__(
        self,
        name: str,
        world: World,
        listener: Listener,
        topics: Sequence[str] | str,
        settings: Mapping[str, Any],
        works_s: Sequence[float] = (0.0,),
    ) -> None:
        """``topics``: a pattern if it is one string; ``works_s``: choices for how long it works on a poll."""
        self.operations = 0
        self.closed = False
        self.fenced = False
        self.generation = -1
        self.lost = 0
        """How often partitions were taken from it."""
        self.stall_s = 0.0
        """Additional time that it works on the next poll's records."""
        self._listener = listener
        self._topics = topics
        self._settings = settings
        self._choices_s = works_s
        self._given: list[tuple[TopicPartition, int, int]] = []
        """The result of the last poll: partition, first and last offset."""
        super().__init__(name, world)

    def _make(self) -> None:
        self._commits = self._rng.choice(COMMITS)
        self._works_s = self._rng.choice(self._choices_s)
        self.consumer: Consumer = self.process.consumer(enable_auto_commit=self._commits == "auto", **self._settings)

    @property
    def at_work(self) -> bool:
        """Whether it polls: not over, leaving or paused."""
        return not self.stopping and super().at_work

    @property
    def is_classic(self) -> bool:
        return self._settings.get("group_protocol") != "consumer"

    @property
    def assignment(self) -> list[TopicPartition]:
        return sorted(self.consumer.assignment())

    @property
    def believed(self) -> int:
        """The generation that it believes to be current."""
        return self.consumer.group_metadata().generation_id

    def _ended_by(self, error: TidelogError) -> None:
        if not self.stopping:
            self.world.violated(f"{self.name} ended by itself: {error!r}")

    async def _run(self) -> None:
        consumer = self.consumer
        await consumer.start()
        if isinstance(self._topics, str):
            consumer.subscribe(pattern=self._topics, listener=self)
        else:
            consumer.subscribe(self._topics, listener=self)
        try:
            while not self.stopping:
                await self._round()
            if self._commits != "auto":
                await self._commit_the_rest()
            await consumer.close()
            self.closed = True
        except FencedInstanceIdError:
            self.fenced = True
            await consumer.close()
        finally:
            if not self.killed:
                self._listener.gone(self.name)

    async def _round(self) -> None:
        self.operations += 1
        began = self.world.now()
        try:
            records = await self.consumer.poll(POLL_S)
        except UnreleasedInstanceIdError:  # its predecessor's session has not expired
            self.world.note(f"{self.name} waits for its instance id")
            await asyncio.sleep(POLL_S)
            return
        for at, got in by_partition(records).items():
            self._given.append((at, got[0][0], got[-1][0]))
            for text in self._listener.handed_out(self.name, at, got[0][0], got[-1][0]):
                self.world.violated(text)
            self.world.history.poll(Polled(self.name, at, got, began, self.world.now()))
        if self._works_s:
            await asyncio.sleep(self._rng.uniform(0, 2 * self._works_s))
        if self.stall_s:
            stall_s, self.stall_s = self.stall_s, 0.0
            await asyncio.sleep(stall_s)
        self._work_done()
        if records and self._commits == "async":
            self.consumer.commit_async()
        elif records and self._commits == "sync":
            await self._commit()
        await self.process.unpaused()  # a paused one has its commit ready to send
        if self._rng.random() < ASKS:
            await self._ask_committed()

    async def _commit_the_rest(self) -> None:
        """Leave as a careful application does: a commit that a rebalance prevented may be its last one."""
        for _ in range(LAST_COMMITS):
            if await self._commit():
                return
            await self._round()

    async def _commit(self) -> bool:
        """Commit. Returns whether it succeeded."""
        try:
            await self.consumer.commit(timeout=3.0)
        except (
            CommitFailedError,
            RebalanceInProgressError,
            RequestTimedOutError,
            RetriableCommitFailedError,
        ) as error:
            self.world.note(f"{self.name} commits: {type(error).__name__}")
            return False
        return True

    async def _ask_committed(self) -> None:
        """Ask for committed offsets; the answer is judged when it arrives."""
        try:
            await self.consumer.committed(self.assignment, timeout=0.5)
        except TidelogError as error:
            self.world.note(f"{self.name} asks: {type(error).__name__}")

    def _work_done(self) -> None:
        for at, first, last in self._given:
            self._listener.worked_off(at, first, last)
        self._given.clear()

    # --- calls of the consumer --------------------------------------------------------------------------

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.generation = self.believed
        owned = self.assignment
        self._listener.owns(self.name, self.generation, owned)
        for at in partitions:
            self.world.history.position(Positioned(self.name, at))
        self.world.note(f"{self.name} has {_listed(owned)} in generation {self.generation}")

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._listener.gave_up(self.name, partitions)
        self.world.note(f"{self.name} gives up {_listed(partitions)}")

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.lost += 1
        self._listener.gave_up(self.name, partitions)
        self.world.note(f"{self.name} has lost {_listed(partitions)}")

    def kill(self) -> None:
        super().kill()
        self._listener.gone(self.name)


class Group(Roster[GroupMember]):
    """A group: a member that dies or leaves is followed by another, with the same instance id if it is static."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        name: str,
        listener: Listener,
        topics: Sequence[str] | str,
        settings: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        *,
        prefix: str,
        polls: Sequence[int],
        works_s: Sequence[float] = (0.0,),
        is_static: Callable[[int], bool] = lambda slot: False,
    ) -> None:
        """``settings``: further settings of every member, or what returns the next one's; ``prefix``: of their names;
        ``polls``: choices for how many records a poll returns at most; ``is_static``: whether the members of a slot
        have an instance id, by its number."""
        super().__init__(world, rng, (), self._member)
        self.name = name
        self._instances: dict[str, str | None] = {}
        """Slot → the instance id of its members, if they are static."""
        self._listener = listener
        self._topics = topics
        self._settings = settings
        self._prefix = prefix
        self._polls = polls
        self._works_s = works_s
        self._is_static = is_static

    @property
    def living(self) -> list[GroupMember]:
        """The members that have a slot and have not ended."""
        return [member for member in self.current.values() if not (member.killed or member.task.done())]

    @property
    def members(self) -> list[GroupMember]:
        """All members that ever existed."""
        return [member for member in self.everyone if isinstance(member, GroupMember)]

    def name_of(self, base: str) -> str:
        return super().name_of(self._prefix)

    def generation_of(self, client: str) -> int | None:
        """Return the generation that a client believes to be current; None for a stranger."""
        return next((member.believed for member in self.members if member.name == client), None)

    def name_in(self, client: str, topic_id: TopicId) -> str | None:
        """Return a member's name for a topic."""
        member = next((member for member in self.members if member.name == client), None)
        return None if member is None else member.consumer._core.cluster.cache.name_of(topic_id)

    def assignments(self) -> dict[str, list[TopicPartition]]:
        return {member.name: member.assignment for member in self.living}

    def is_whole(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether the members agree on their generation, and each partition belongs to exactly one of them."""
        owned = [at for each in self.assignments().values() for at in each]
        return len({member.believed for member in self.living}) == 1 and sorted(owned) == sorted(partitions)

    def add(self) -> None:
        """Start a member in its own slot."""
        number = len(self.slots)
        slot = f"{self._prefix}slot{number}"
        self._instances[slot] = f"i{number}" if self._is_static(number) else None
        self.slots = (*self.slots, slot)
        self.fill(slot)

    def _member(self, slot: str, name: str) -> GroupMember:
        rng, scale = self.rng, self.world.scale
        own = self._settings() if callable(self._settings) else self._settings
        heart: dict[str, Any] = {}
        if own.get("group_protocol") != "consumer":
            heart = {"session_timeout_ms": 3_000 * scale, "heartbeat_interval_ms": rng.choice((300, 800)) * scale}
        settings: dict[str, Any] = {
            "group_id": self.name,
            "group_instance_id": self._instances[slot],
            "auto_offset_reset": "earliest",
            **heart,
            "max_poll_interval_ms": MAX_POLL_INTERVAL_MS * scale,
            "auto_commit_interval_ms": rng.choice((300, 1_500, 60_000)),
            "max_poll_records": rng.choice(self._polls),
            "request_timeout_ms": 3_000,
            "default_api_timeout_ms": 10_000,
            "metadata_max_age_ms": 2_000 * scale,
            "fetch_max_wait_ms": 500,
            **own,
        }
        return GroupMember(name, self.world, self._listener, self._topics, settings, self._works_s)

    def gone(self, slot: str, client: GroupMember) -> None:
        """Handle a member that ended by itself: it was told to, or another one took its instance id."""
        if client.fenced:  # a join of its dead predecessor, or of one that it replaced, was delayed for a long time
            self.world.later(0.5, lambda: self.follow(slot, client))

    def at(self, number: int) -> tuple[str, GroupMember] | None:
        """Return one of the slots whose members are working, and its member."""
        found = [(slot, self.current[slot]) for slot in self.slots if self.current[slot].at_work]
        return found[number % len(found)] if found else None

    # --- faults -----------------------------------------------------------------------------------------

    def kill(self, number: int, seconds: float) -> bool:
        """Kill a member; another one starts in its slot later, or never (0) if others are left."""
        return self._ends(number, seconds, GroupMember.kill)

    def leave(self, number: int, seconds: float) -> bool:
        """Make a member leave; another one follows as after :meth:`kill`, possibly before the first has left."""
        return self._ends(number, seconds, GroupMember.stop)

    def _ends(self, number: int, seconds: float, end: Callable[[GroupMember], None]) -> bool:
        found = self.at(number)
        if found is None:
            return False
        slot, member = found
        end(member)
        # A static one has a successor: its instance id may be another's, which it was to replace.
        if seconds or self._instances[slot] is not None or all(other.stopping for other in self.living):
            self.world.later(seconds or 1.0, lambda: self.follow(slot, member))
        else:
            self.held[slot] = member
        return True

    def join(self, number: int = 0, seconds: float = 0.0) -> bool:
        """Add a member, in a new slot or in one that was left for good."""
        if len(self.slots) < MEMBERS_MAX:
            self.add()
        elif self.held:
            slot, _ = self.held.popitem()
            self.fill(slot)
        else:
            return False
        return True

    def second(self, number: int, seconds: float) -> bool:
        """Start another process with a static member's instance id while the first still runs."""
        found = self.at(number)
        return found is not None and self._instances[found[0]] is not None and super().second(number, seconds)

    def stall(self, number: int, seconds: float) -> bool:
        """Make a member work for this long on its next poll's records, without polling in the meantime."""
        found = self.at(number)
        if found is None:
            return False
        found[1].stall_s = seconds
        return True


def _listed(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, partitions)) or "nothing"
