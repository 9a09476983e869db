"""How far the groups that this node coordinates are behind.

It looks when somebody reads the metrics, so a node that nobody watches pays nothing. The ends of logs come from their
leaders, one request to each.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.broker.health.facts import Progress
from tidelog.broker.health.log_growth import LogGrowth
from tidelog.broker.health.progress import Sample, Windows, judge
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.model.link_position import GROUP_PREFIX
from tidelog.proto.calls.api import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse
from tidelog.proto.transport.network import CallTimeout, Connection, ConnectionLost

LOOK_MS: Final = 10_000
"""The minimum time between two looks, so that several readers of the metrics do not shorten the windows."""
ANSWER_S: Final = 2.0
"""How long to wait for a leader. Without its answer, the ends that it told last count."""
POSITIONS_MAX: Final = 5_000
"""Beyond this many committed offsets, further groups are not watched."""
GROUPS_MAX: Final = 1_000
"""Maximum groups that are told of: those that are the most records behind."""
_LATEST: Final = -1
_WATCHED: Final = (Progress.OK, Progress.UNSETTLED)
"""States that are not told of."""


@dataclass(slots=True)
class GroupLag:
    """A group's lag by topic, in records and in ms, and the partitions in each state that is not good. The ms are the
    age of the oldest record that the group has yet to read, or less, if this node has not watched for that long."""

    name: str
    records: Counter[str] = field(default_factory=Counter)
    age_ms: dict[str, int] = field(default_factory=dict)
    states: Counter[Progress] = field(default_factory=Counter)


class GroupLags:
    """See the module. ``groups``: what the last look found. ``unwatched``: the groups that it left out."""

    def __init__(
        self,
        node_id: int,
        coordinator: GroupCoordinator,
        view: MetadataView,
        clock: Clock,
        list_offsets: Callable[[ListOffsetsRequest], ListOffsetsResponse],
        connection: Callable[[NodeId], Connection | None],
    ) -> None:
        self._node_id = node_id
        self._coordinator = coordinator
        self._view = view
        self._clock = clock
        self._list_offsets = list_offsets
        self._connection = connection
        self._windows = Windows()
        self._growth: dict[TopicPartition, LogGrowth] = {}
        self._looked_ms: int | None = None
        self.groups: list[GroupLag] = []
        self.unwatched = 0

    async def look(self) -> None:
        """Look again, unless the last look was a moment ago."""
        now_ms = self._clock.monotonic_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        committed, members = self._positions()
        partitions = {at for _, at in committed}
        ends = await self._ends(partitions)
        growth = {at: self._growth.get(at) or LogGrowth() for at in partitions}
        for at, end in ends.items():
            growth[at].note(now_ms, end)
        self._growth = {at: one for at, one in growth.items() if one.known}
        samples = {
            (group, at): Sample(now_ms, offset, self._growth[at].end)
            for (group, at), offset in committed.items()
            if at in self._growth
        }
        self._windows.look(samples)
        found: dict[str, GroupLag] = {}
        for (name, at), sample in samples.items():
            group = found.setdefault(name, GroupLag(name))
            group.records[at.topic] += sample.lag
            age_ms = self._growth[at].age_ms(now_ms, sample.committed)
            group.age_ms[at.topic] = max(group.age_ms.get(at.topic, 0), age_ms)
            progress, _ = judge(self._windows.of(name, at), members[name])
            if progress not in _WATCHED:
                group.states[progress] += 1
        self.groups = heapq.nlargest(GROUPS_MAX, found.values(), key=lambda one: one.records.total())

    def _positions(self) -> tuple[dict[tuple[str, TopicPartition], int], dict[str, bool]]:
        """Return committed offsets, and whether each group has members. Positions of links have metrics of their
        own."""
        committed: dict[tuple[str, TopicPartition], int] = {}
        members: dict[str, bool] = {}
        self.unwatched = 0
        for name, has_members, offsets in self._coordinator.positions():
            if name.startswith(GROUP_PREFIX):
                continue
            if len(committed) >= POSITIONS_MAX:
                self.unwatched += 1
                continue
            members[name] = has_members
            for topic, partition, value in offsets:
                committed[name, TopicPartition(topic, partition)] = value.offset
        return committed, members

    async def _ends(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        image = self._view.image
        by_leader: dict[NodeId, list[TopicPartition]] = defaultdict(list)
        for at in partitions:
            topic = image.topic(at.topic)
            state = None if topic is None else topic.partitions.get(at.partition)
            if state is not None and state.leader >= 0:
                by_leader[state.leader].append(at)
        answers = await asyncio.gather(*(self._ask(leader, asked) for leader, asked in by_leader.items()))
        return {
            TopicPartition(one.topic, one.partition): one.offset
            for answer in answers
            if answer is not None
            for one in answer.results
            if one.error is ErrorCode.NONE and one.offset >= 0
        }

    async def _ask(self, leader: NodeId, partitions: Iterable[TopicPartition]) -> ListOffsetsResponse | None:
        request = ListOffsetsRequest(tuple(ListOffsetsPartition(at.topic, at.partition, _LATEST) for at in partitions))
        if leader == self._node_id:
            return self._list_offsets(request)
        connection = self._connection(leader)
        try:
            return None if connection is None else await connection.call(request, timeout_s=ANSWER_S)
        except (ConnectionLost, CallTimeout):
            return None
