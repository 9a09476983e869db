"""Follows a consumer group of a simulated cluster: the requests of members, and the answers of coordinators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from tidelog.chaos.checkers.groups import CommitKey, GroupJudge
from tidelog.chaos.simulated.world.world import World
from tidelog.groups.routing import partition_for
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.calls.group_api import (
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.proto.logs.consumer_protocol import BadConsumerProtocol, decode_assignment

OFFSETS_TOPIC: Final = "__consumer_offsets"
FORGED: Final = "forged"
"""The metadata of a commit that must be refused."""


class GroupWatch:
    """Passes network traffic to the judge. ``generation_of`` returns the generation that a client believes it is in,
    ``None`` for a client that is no member."""

    def __init__(
        self,
        world: World,
        group: str,
        generation_of: Callable[[str], int | None],
        is_member: Callable[[str], bool],
        judge: GroupJudge,
    ) -> None:
        self.judge = judge
        self.events: Counter[str] = Counter()
        self.members: dict[int, dict[str, str | None]] = {}
        """Generation → the member ids that were admitted, with their instance ids."""
        self._world = world
        self._group = group
        self._generation_of = generation_of
        self._is_member = is_member
        self._asked: dict[int, tuple[OffsetFetchRequest, str, int, float]] = {}
        """Fetches in progress, by identity: the asker, its generation, the time."""
        self._coordinator = ""
        self._leading: NodeId | None = None
        self._replaced_s: dict[str, float] = {}
        """Node → the time by which another node had taken the group over from it, at the latest that node's first
        answer."""
        fabric = world.cluster.fabric
        fabric.sent.append(self._sent)
        fabric.arrived.append(self._arrived)
        fabric.answered.append(self._answered)

    @property
    def coordinator(self) -> NodeId | None:
        """Return the node that leads the group's partition of the offsets topic."""
        cluster = self._world.cluster
        topic = cluster.image.topic(OFFSETS_TOPIC)
        if topic is None:
            return None
        return cluster.leader_of(OFFSETS_TOPIC, partition_for(self._group, len(topic.partitions)))

    def serving(self) -> list[NodeId]:
        """Return the nodes that really coordinate the group, whatever others believe."""
        found = []
        for node_id, node in self._world.cluster.nodes.items():
            if node.broker is not None:
                answer = node.broker.groups.coordinator._active(self._group)
                if not isinstance(answer, Refusal):
                    found.append(node_id)
        return found

    @property
    def coordinator_followers(self) -> list[NodeId]:
        """Return the in-sync followers of that partition."""
        cluster = self._world.cluster
        topic = cluster.image.topic(OFFSETS_TOPIC)
        if topic is None:
            return []
        place = partition_for(self._group, len(topic.partitions))
        return [node for node in cluster.isr_of(OFFSETS_TOPIC, place) if node != self.coordinator]

    @property
    def _now(self) -> float:
        return self._world.cluster.loop.now

    def _sent(self, client: str, request: object) -> None:
        match request:
            case OffsetCommitRequest() if request.group_id == self._group:
                for item in request.partitions:
                    if item.metadata != FORGED and request.generation_id >= 0:
                        self._tell(self.judge.commit_sent(_commit(request, item), self._now))
            case OffsetFetchRequest() if any(group.group_id == self._group for group in request.groups):
                generation = self._generation_of(client)
                if generation is not None and generation >= 0:
                    self._asked[id(request)] = (request, client, generation, self._now)

    def _arrived(self, server: str, request: object) -> None:
        if isinstance(request, OffsetCommitRequest) and request.group_id == self._group:
            for item in request.partitions:
                if item.metadata != FORGED:
                    self.judge.commit_arrived(_commit(request, item), self._now)

    def _answered(self, server: str, request: object, response: object, asked_s: float) -> None:
        if (leading := self.coordinator) != self._leading:
            self._replaced_s[f"node{self._leading}"] = self._now
            self._leading = leading
        match request, response:
            case JoinGroupRequest(), JoinGroupResponse() if request.group_id == self._group:
                if response.error is ErrorCode.NONE:
                    self._joined(server, request, response)
                elif response.error is not ErrorCode.MEMBER_ID_REQUIRED:
                    self.events[f"join-{word(response.error)}"] += 1
            case SyncGroupRequest(), SyncGroupResponse() if request.group_id == self._group:
                if response.error is ErrorCode.NONE:
                    self._synced(server, request, response)
            case OffsetCommitRequest(), OffsetCommitResponse() if request.group_id == self._group:
                self._committed(request, response, asked_s)
            case OffsetFetchRequest(), OffsetFetchResponse():
                self._fetched(server, request, response)

    def _joined(self, server: str, request: JoinGroupRequest, response: JoinGroupResponse) -> None:
        self.events["join"] += 1
        known = self.members.setdefault(response.generation_id, {})
        instance_id = request.group_instance_id
        known[response.member_id] = instance_id
        deposed = server != f"node{self.coordinator}"
        self._tell(
            self.judge.joined(response.generation_id, response.member_id, instance_id, self._now, deposed=deposed)
        )

    def _synced(self, server: str, request: SyncGroupRequest, response: SyncGroupResponse) -> None:
        if request.generation_id > self.judge.newest_generation:
            self.events["generation"] += 1
            self._moved(server)
        try:
            given = decode_assignment(response.assignment).partitions if response.assignment else ()
        except BadConsumerProtocol as error:
            self._tell([f"one owner: {request.member_id} was given an assignment that is none: {error}"])
            return
        self._tell(
            self.judge.assigned(request.generation_id, request.member_id, request.group_instance_id, given, self._now)
        )

    def _moved(self, server: str) -> None:
        """Note that this node coordinates the group now."""
        if self._coordinator not in ("", server):
            self.events["coordinator-moved"] += 1
        self._coordinator = server

    def _committed(self, request: OffsetCommitRequest, response: OffsetCommitResponse, asked_s: float) -> None:
        errors = {(result.topic, result.partition): result.error for result in response.results}
        for item in request.partitions:
            error = errors.get((item.topic, item.partition))
            if error is ErrorCode.NONE:
                self.events["commit"] += 1
                self._tell(self.judge.commit_acknowledged(_commit(request, item), asked_s, self._now))
            elif error is not None:
                self.events[f"commit-{word(error)}"] += 1

    def _fetched(self, server: str, request: OffsetFetchRequest, response: OffsetFetchResponse) -> None:
        asked = self._asked.pop(id(request), None)
        # A former coordinator may return old state to anybody; judge it for members of its last generation only.
        replaced = server != f"node{self.coordinator}"
        if asked is None or (replaced and not self._is_member(asked[1])):
            return
        _, client, generation, asked_s = asked
        if replaced:  # it cannot know what its successor accepted or said, even in the same generation
            asked_s = min(asked_s, self._replaced_s.get(server, asked_s))
        for group in response.groups:
            if group.group_id == self._group and group.error is ErrorCode.NONE:
                for found in group.offsets:
                    if found.error is ErrorCode.NONE:
                        at = TopicPartition(found.topic, found.partition)
                        read = self.judge.committed_read(client, generation, at, found.offset, asked_s, self._now)
                        self._tell(read)

    def _tell(self, violations: list[str]) -> None:
        for text in violations:
            self._world.violated(text)


def _commit(request: OffsetCommitRequest, item: OffsetCommitPartition) -> CommitKey:
    at = TopicPartition(item.topic, item.partition)
    return CommitKey(request.member_id, request.group_instance_id, request.generation_id, at, item.offset)


def word(error: ErrorCode) -> str:
    return error.name.lower().replace("_", "-")
