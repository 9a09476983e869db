"""Carries out a plan of moves: some partitions at a time, throttled, with progress.

All state is in the cluster: its replicas, the moves in progress and the throttle. So a plan may be abandoned at any
time, and the next one starts from the current state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.output import count_of, megabytes
from tidelog.cli.work.replicas import reassignment_plan as plan
from tidelog.cli.work.replicas.placement import Overview, check_only_deleted, placement_of, sizes_of
from tidelog.cli.work.replicas.spreading import Assignment, Part, cost_of
from tidelog.model.errors import ErrorCode, TidelogError
from tidelog.model.ids import TopicPartition
from tidelog.model.settings.node.replication_settings import CORDONED, EVERY_DIRECTORY
from tidelog.proto.calls.api import ConfigResource

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.reassignments import OngoingReassignment

Ongoing = Mapping[TopicPartition, "OngoingReassignment"]

POLL_S: Final = 0.2
PROGRESS_S: Final = 5.0
HEARD_S_MAX: Final = 5.0
"""How long to wait for brokers to learn that a move ended. The controller knows first; the broker lists the
replicas."""
NAMED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Pace:
    """``rate``: how much each broker may send to, and fetch for, replicas that are catching up, in bytes per second;
    None keeps the current throttle. ``at_once``: how many partitions move at a time."""

    rate: int | None
    at_once: int


@dataclass(slots=True)
class Outcome:
    """The result of a plan."""

    done: list[TopicPartition] = field(default_factory=list)
    changed: list[TopicPartition] = field(default_factory=list)
    """Their number of replicas had changed when the move was requested. Plan again."""
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    size: int = 0
    """Bytes that had to be copied."""

    def add(self, other: Outcome) -> None:
        self.done += other.done
        self.changed = other.changed
        self.refused |= other.refused
        self.size += other.size

    def check(self) -> None:
        """Raise :class:`CommandFailed` if something was refused."""
        if self.refused:
            said = "; ".join(list(self.refused.values())[:NAMED_MAX])
            more = len(self.refused) - NAMED_MAX
            also = f"; and {count_of(more, 'partition')} more" if more > 0 else ""
            raise CommandFailed(f"moved {count_of(len(self.done), 'partition')}, refused: {said}{also}; run it again")


def name_of(at: TopicPartition) -> str:
    return f"{at.topic}-{at.partition}"


def names_of(places: Collection[TopicPartition]) -> str:
    """Return the first names, and how many more there are."""
    found = sorted(places)
    more = f" and {len(found) - NAMED_MAX:,} more" if len(found) > NAMED_MAX else ""
    return ", ".join(map(name_of, found[:NAMED_MAX])) + more


class Mover:
    """Carries out a plan. ``also``: moves of an earlier run that belong to it and are waited for."""

    def __init__(
        self,
        admin: Admin,
        found: Overview,
        wanted: Assignment,
        pace: Pace,
        tell: Callable[[str], None],
        *,
        also: Collection[TopicPartition] = (),
        changes_factor: bool = False,
    ) -> None:
        self._admin = admin
        self._pace = pace
        self._tell = tell
        self._changes_factor = changes_factor
        self._wanted = wanted
        self._waiting = sorted(wanted)
        self._goals = {at: found.ongoing[at].target_replicas for at in also} | dict(wanted)
        self._watched = {*also}
        self._moving: Ongoing = {}
        """As of the last answer; moves started since then are in ``_begun``."""
        self._begun: set[TopicPartition] = set()
        self._before = {at: found.before(at) for at in self._goals}
        self._parts = {at: Part(self._before[at], found.sizes.get(at, 0)) for at in self._goals}
        self._outcome = Outcome()
        self._told_at = time.monotonic()

    def run(self) -> Outcome:
        """Return once no part of the plan is in progress."""
        ongoing = self._admin.list_partition_reassignments()
        if self._pace.rate is not None:
            throttle(self._admin, self._before, self._wanted, ongoing, self._pace.rate)
        try:
            while True:
                self._moving, self._begun = {at: ongoing[at] for at in self._watched if at in ongoing}, set()
                room = max(self._pace.at_once - len(self._moving), 0)
                if self._waiting and room:
                    self._begin(room)
                elif not self._moving and not self._waiting:
                    break
                else:
                    self._progress(self._moving)
                    time.sleep(POLL_S)
                ongoing = self._admin.list_partition_reassignments()
        except KeyboardInterrupt:
            self._tell(
                f"interrupted: {count_of(len(self._begun | self._moving.keys()), 'partition')} still moving, "
                f"{len(self._waiting):,} not started. Run the command again to continue, or with --cancel to cancel "
                "what is in progress"
            )
            raise
        return self._end()

    def _begin(self, room: int) -> None:
        batch, self._waiting = self._waiting[:room], self._waiting[room:]
        self._begun = set(batch)
        failures: Mapping[str, TidelogError] = {}
        try:
            self._admin.alter_partition_reassignments(
                {at: self._wanted[at] for at in batch}, allow_replication_factor_change=self._changes_factor
            )
        except TidelogError as error:
            if not error.failures:
                raise
            failures = error.failures
        for at in batch:
            refused = failures.get(name_of(at))
            if refused is None:
                self._watched.add(at)
            elif refused.code is ErrorCode.INVALID_REPLICATION_FACTOR:
                self._outcome.changed.append(at)
            elif refused.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # a topic that was deleted needs no move
                self._outcome.refused[at] = str(refused)

    def _progress(self, moving: Ongoing) -> None:
        now = time.monotonic()
        if now - self._told_at < PROGRESS_S:
            return
        self._told_at = now
        done = [at for at in self._watched if at not in moving]
        copied = self._size(done)
        held = sizes_of(self._admin, {int(node) for one in moving.values() for node in one.adding_replicas})
        for at, one in moving.items():
            size = self._parts[at].size
            copied += sum(min(held.get(int(node), {}).get(at, 0), size) for node in one.adding_replicas)
        self._tell(
            f"{len(done):,} of {count_of(len(self._goals), 'partition')} moved, {megabytes(copied)} of "
            f"{megabytes(self._size(self._goals))}; under way: {names_of(moving)}{self._hindrance(moving)}"
        )

    def _hindrance(self, moving: Ongoing) -> str:
        adding = {int(node) for one in moving.values() for node in one.adding_replicas}
        live = {int(found.node_id) for found in self._admin.describe_cluster().brokers if not found.fenced}
        if not (gone := sorted(adding - live)):
            return ""
        them = ", ".join(map(str, gone))
        return f"; waiting for broker {them}, which is not live: start it, or interrupt and run this again without it"

    def _size(self, places: Iterable[TopicPartition]) -> int:
        return cost_of(self._parts, {at: self._goals[at] for at in places}).size

    def _end(self) -> Outcome:
        done = self._outcome.done = sorted(self._watched)
        self._outcome.size = self._size(done)
        self._wait_until_heard(done)
        if done:
            self._elect(done)
        return self._outcome

    def _wait_until_heard(self, done: Collection[TopicPartition]) -> None:
        deadline = time.monotonic() + HEARD_S_MAX
        while time.monotonic() < deadline:
            placed = placement_of(self._admin)
            if all(at not in placed or placed[at].replicas == tuple(self._goals[at]) for at in done):
                return
            time.sleep(POLL_S)

    def _elect(self, done: Collection[TopicPartition]) -> None:
        """Let the preferred replicas lead now if they can; the controller handles the others later."""
        try:
            self._admin.elect_leaders(done)
        except TidelogError as error:
            if not error.failures:
                raise


def throttle(
    admin: Admin, before: Mapping[TopicPartition, tuple[int, ...]], wanted: Assignment, ongoing: Ongoing, rate: int
) -> None:
    """Throttle these and other moves in progress to this many bytes per second at each broker."""
    moves = {at: plan.move_under_way(one) for at, one in ongoing.items()}
    moves |= {at: plan.Move(before[at], replicas) for at, replicas in wanted.items()}
    if settings := plan.throttles(moves, rate):
        admin.alter_configs(settings)


def cordon(admin: Admin, nodes: Iterable[int]) -> None:
    """Exclude these registered brokers from new replicas (KIP-1066)."""
    _set_cordon(admin, nodes, EVERY_DIRECTORY)


def uncordon(admin: Admin, nodes: Iterable[int]) -> None:
    """Allow these registered brokers to get new replicas again."""
    _set_cordon(admin, nodes, None)


def _set_cordon(admin: Admin, nodes: Iterable[int], value: str | None) -> None:
    if changes := {ConfigResource("broker", str(node)): {CORDONED: value} for node in nodes}:
        admin.alter_configs(changes)


def cancel(admin: Admin, places: Collection[TopicPartition]) -> None:
    """Cancel moves in progress."""
    if places:
        admin.alter_partition_reassignments(dict.fromkeys(places))


def clear_throttles(admin: Admin, topics: Iterable[str] | None = None) -> None:
    """Remove the throttle from all brokers and from these topics (default: all that have one)."""
    nodes = [int(broker.node_id) for broker in admin.describe_cluster().brokers]
    there = [topic.name for topic in admin.list_topics(internal=True)]
    named = _throttled(admin, there) if topics is None else set(topics).intersection(there)
    try:
        admin.alter_configs(plan.without_throttles(named, nodes))
    except TidelogError as error:
        check_only_deleted(error)


def _throttled(admin: Admin, topics: Collection[str]) -> list[str]:
    while topics:
        try:
            found = admin.describe_configs([ConfigResource("topic", name) for name in topics])
        except TidelogError as error:
            check_only_deleted(error)
            topics = [name for name in topics if f"topic {name}" not in error.failures]
            continue
        return [
            at.name
            for at, settings in found.items()
            if any(settings[name].source != "DEFAULT_CONFIG" for name in (plan.LEADER_REPLICAS, plan.FOLLOWER_REPLICAS))
        ]
    return []
